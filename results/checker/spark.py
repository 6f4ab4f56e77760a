"""The one place with Spark settings: how a session starts, and how it ends without a trace.

PySpark is imported inside the functions, because importing it takes longer than most commands
run, and `pubsubctl --help` must not wait for it.
"""

import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from results.checker.cluster import check_master, check_workers, cluster_settings
from results.checker.java import find_java, spark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JVM_EXIT_SECONDS = 30
SMALL_ROWS = 300_000
SMALL_PLANS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


LARGE_ROWS = 20_000_000
LARGE_PLANS = {
    # By the size of its files, which hold numbers that follow each other in little room, a table
    # of twenty million publications is one to be held by every task.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
}


class SparkAlreadyRunning(RuntimeError):
    """A second session was asked for in a process that has one; Spark would hand out the first."""


class TooLittleMemory(Exception):
    """Spark's process cannot hold what one of its tasks needs."""

    exit_status = 4


class SparkFailed(Exception):
    """Spark gave up, by its own words."""


def in_own_words(error: Exception) -> Exception:
    """The same error as one of ours: those of Java lose their words when its process has ended."""
    from py4j.protocol import Py4JError

    try:
        words = str(error)
    except Exception:  # whatever comes of asking a process that is gone
        words = "its Java process has ended"
    if any(sign in words for sign in ("OutOfMemory", "Could not allocate memory")):
        return TooLittleMemory(
            f"Spark ran out of memory, of which its process here has {_heap_mebibytes()} MiB; "
            "`pubsubctl spark up --memory` starts workers with more"
        )
    return SparkFailed(words) if isinstance(error, Py4JError) else error


@contextmanager
def spark_session(app_name: str, master: str = "local[*]") -> "Iterator[SparkSession]":
    """A Spark session that is gone, its Java process too, when the block is left.

    One session per command: starting it takes seconds. With a local master it listens on
    loopback only, answers only to its own processes, and keeps what it spills in a folder that
    nobody else can read and that is removed. Times are UTC, conversions go through Arrow.

    Args:
        app_name: shown by cluster masters, otherwise unused.
        master: `local[N]`, `local[*]`, or the URL of a cluster whose machines have the same
            Python and this package.

    Raises:
        JavaNotFound: there is no Java that could run Spark.
        FolderNotExecutable: the folder for temporary files does not serve; see TMPDIR.
        SparkAlreadyRunning: this process has a session already.
        NoMaster, MasterRefused: there is no such master, or its workers cannot do our work.
    """
    check_master(master)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise SparkAlreadyRunning("this process has a Spark session already; pass that one on")
    java = find_java()
    scratch = Path(tempfile.mkdtemp(prefix="pubsubctl-spark-"))  # mode 0700
    log4j_file = resources.files("results") / "log4j2.properties"
    try:
        with resources.as_file(log4j_file) as log4j_path:
            conf = SparkConf(loadDefaults=False)
            conf.setAll([*spark_settings(app_name, master, scratch, log4j_path).items()])
            on_interrupt = signal.getsignal(signal.SIGINT)
            in_order = False
            # py4j tells the root logger what it also raises; without a handler, that is printed.
            unheard = logging.NullHandler()
            logging.getLogger().addHandler(unheard)
            try:
                of_cluster = cluster_settings(master)
                conf.setAll([*of_cluster.items()])
                variables = spark_environment(java, scratch)
                if of_cluster:
                    variables["SPARK_LOCAL_IP"] = of_cluster["spark.driver.host"]
                with _environment(variables):
                    # Going through the context keeps settings from a session that ended before
                    # out of this one; the session's builder remembers them.
                    spark = SparkSession(SparkContext(conf=conf))
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGINT, on_interrupt)  # PySpark would ask Java first
                check_workers(spark, master)
                yield spark
                in_order = True
            except Exception:
                in_order = True
                raise
            finally:
                _stop_java(in_order=in_order)
                logging.getLogger().removeHandler(unheard)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def planned_for(spark: "SparkSession", rows: int) -> Iterator[bool]:
    """Let Spark plan queries for about so many rows while the block lasts; says if that is few.

    What Spark does for large tables (generate and compile code, look at sizes between stages,
    spread shuffles) takes seconds of its own, which is all the time that small ones take. Of very
    many rows none is held by every task but those that we say.
    """
    small = rows < SMALL_ROWS
    settings = SMALL_PLANS if small else LARGE_PLANS if rows >= LARGE_ROWS else {}
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield small
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)


def spark_settings(app_name: str, master: str, scratch: Path, log4j_path: Path) -> dict[str, str]:
    """Every setting that differs from Spark's own defaults."""
    java_options = (
        # Our jobs are short: code compiled quickly beats code compiled well.
        "-XX:TieredStopAtLevel=1",
        # With that, Java reserves a fifth of what it otherwise would. A long check fills it, and
        # Java then compiles nothing more, and says so on the terminal.
        "-XX:ReservedCodeCacheSize=240m",
        # Its classes and ours came with hashes; to verify each again takes a fifth of a start.
        "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions",
        "-XX:-BytecodeVerificationRemote",
        *_collector(),
        f'"-Djava.io.tmpdir={scratch}"',
        f'"-Dlog4j2.configurationFile={log4j_path.as_uri()}"',
    )
    settings = {
        "spark.app.name": app_name,
        "spark.master": master,
        "spark.driver.extraJavaOptions": " ".join(java_options),
        "spark.driver.memory": f"{_heap_mebibytes()}m",
        # By default 64 MiB for whatever a task sorts and each table that is broadcast, which Java
        # clears, copies and keeps: most of the memory and a fifth of the time of a small check.
        "spark.buffer.pageSize": "4m",
        # Else each column says from which line it is, in twelve messages to Java.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # Otherwise rows are sorted by partition before they are written.
        "spark.sql.maxConcurrentOutputFileWriters": "64",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if master.startswith("local"):
        settings |= {
            "spark.authenticate": "true",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(scratch),
            # The default of 200 tasks per shuffle is meant for clusters.
            "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        }
    return settings


def _collector() -> tuple[str, ...]:
    """On one or two cores, collecting garbage beside the work costs a sixth more than in turn."""
    return ("-XX:+UseSerialGC",) if (os.cpu_count() or 1) <= 2 else ()


def _heap_mebibytes() -> int:
    """A quarter of the memory, so that brokers still running beside it keep theirs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(memory // 4 // 2**20, 1024), 8192)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables while Java is started; it is only then that they are read."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _stop_java(*, in_order: bool) -> None:
    """Stop what runs of Spark and wait until its Java process has ended.

    PySpark leaves that process to end by itself some time after the session, and would hand
    it to the next session, settings and all.

    Args:
        in_order: whether Spark may clean up; else, or where it cannot, its process is killed.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context
    try:
        if in_order and (
            session := SparkSession.getActiveSession() or SparkSession._instantiatedSession
        ):
            session.stop()
        elif in_order and context is not None:
            context.stop()
        if in_order and gateway is not None:
            gateway.shutdown()
    except Exception:  # of whatever kind: the process is gone already, or must go now
        in_order = False
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    if gateway is None:
        return
    java: subprocess.Popen[bytes] = gateway.proc
    if not in_order:
        if context is not None and context._accumulatorServer is not None:
            context._accumulatorServer.shutdown()  # else it complains when Java is gone
        java.kill()
    if java.stdin is not None:
        java.stdin.close()  # which is what the Java side takes as the sign to leave
    try:
        java.wait(JVM_EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        java.kill()
        java.wait()
