"""One host's part in a standalone Spark cluster: `python -m results.checker.cluster_host VERB …`.

The folder is shared by all hosts and belongs to the user alone. The folder has the settings of the
cluster with its secret, which is thus in no list of processes, and for each process a log and a
line with its identity. Spilled data of Spark stays in a folder of the host's own, which is removed
with the process.

Each verb prints one JSON object; on failure the status is 1 and the object has `refused`.
"""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

SETTINGS: Final = "spark.conf"
ROLES: Final = {
    "master": ("org.apache.spark.deploy.master.Master", r"Starting Spark master at (spark://\S+)"),
    "worker": (
        "org.apache.spark.deploy.worker.Worker", r"Successfully registered with master (spark://\S+)"
    ),
}  # fmt: skip
STARTED_WITHIN_S: Final = 160.0
ENDED_WITHIN_S: Final = 15.0
_POLL_S: Final = 0.1


class VerbFailed(Exception):
    """The reason for a failed verb."""


def facts(folder: Path) -> dict[str, Any]:
    """Return the facts that must agree on all hosts, and the access of this host to the folder."""
    found: dict[str, Any] = {
        "python": platform.python_version(), "pyspark": "", "java": "",
        "cores": len(os.sched_getaffinity(0)),
    }  # fmt: skip
    try:
        found["pyspark"] = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        pass
    from results.checker.java import JavaNotFound, find_java

    try:
        found["java"] = find_java().version
    except JavaNotFound as error:
        found["java_refused"] = str(error)
    try:
        found["settings"] = (folder / SETTINGS).is_file()
        with tempfile.TemporaryFile(dir=folder):
            found["writable"] = True
    except OSError as error:
        found["folder_refused"] = error.strerror or str(error)
    return found


def start(
    folder: Path, name: str, role: str, address: str, arguments: Sequence[str]
) -> dict[str, Any]:
    """Start a master or worker that outlives this process, and wait until the start is reported.

    Raises:
        VerbFailed: the process ended, or was too slow; with its last output.
    """
    from results.checker.java import find_java, own_spark, spark_environment, without_spark

    row = folder / f"{name}.json"
    if (running := _find_process(row)) is not None:
        return {**running, "changed": False}
    program, sign = ROLES[role]
    scratch = Path(tempfile.mkdtemp(prefix="pubsubctl-spark-"))
    environment = {
        **without_spark(os.environ), **spark_environment(find_java(), scratch),
        "SPARK_LOCAL_IP": address,
        "SPARK_LOCAL_DIRS": str(scratch), "SPARK_WORKER_DIR": str(scratch / "work"),
        "SPARK_CONF_DIR": str(scratch), "SPARK_DAEMON_MEMORY": "512m",
    }  # fmt: skip
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                str(own_spark() / "bin" / "spark-class"), program, "--host", address,
                "--webui-port", "0", "--properties-file", str(folder / SETTINGS), *arguments,
            ],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment,
            cwd=scratch, start_new_session=True,
        )  # fmt: skip
    about = {"pid": process.pid, "began": _start_of(process.pid), "scratch": str(scratch)}
    row.write_text(json.dumps({**about, "role": role, "address": address}), encoding="utf-8")
    found = _wait(lambda: re.search(sign, log.read_text("utf-8", "replace")), process)
    if found is None:
        _stop(row)
        lines = log.read_text("utf-8", "replace").strip().splitlines() or ["nothing"]
        error_line = next((line for line in reversed(lines) if "ERROR" in line), lines[-1])
        raise VerbFailed(f"Spark's {role} did not start; its output: {error_line.strip()[:300]}")
    document = {**about, "role": role, "address": address, "url": found[1]}
    row.write_text(json.dumps(document), encoding="utf-8")
    return {**document, "changed": True}


def status(folder: Path, name: str) -> dict[str, Any]:
    """Return the running process of the cluster on this host; empty if none runs."""
    return _find_process(folder / f"{name}.json") or {}


def stop(folder: Path, name: str) -> dict[str, Any]:
    """End the process of the cluster on this host, and remove its spilled data."""
    return {"changed": _stop(folder / f"{name}.json")}


def _stop(row: Path) -> bool:
    running = _find_process(row)
    if running is not None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            _signal(running, number)
            end = time.monotonic() + ENDED_WITHIN_S
            while _find_process(row) is not None and time.monotonic() < end:
                time.sleep(_POLL_S)
    if row.is_file():
        scratch = Path(json.loads(row.read_text(encoding="utf-8"))["scratch"])
        if scratch.name.startswith("pubsubctl-spark-"):
            shutil.rmtree(scratch, ignore_errors=True)
        row.unlink()
    return running is not None


def _signal(process: Mapping[str, Any], number: int) -> None:
    """Send a signal to the whole session of a process, with a worker's executors."""
    try:
        os.killpg(int(process["pid"]), number)
    except (PermissionError, ProcessLookupError):
        pass


def _find_process(row: Path) -> dict[str, Any] | None:
    """Return the process of a line, if the same process still runs."""
    try:
        found: dict[str, Any] = json.loads(row.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if _start_of(int(found["pid"])) == found["began"] else None


def _start_of(pid: int) -> int:
    """Return the start of a process, in ticks since boot; 0 without a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    state, *fields = text.rpartition(")")[2].split()
    return 0 if state == "Z" else int(fields[18])


def _wait(
    look: Callable[[], re.Match[str] | None], process: "subprocess.Popen[bytes]"
) -> re.Match[str] | None:
    end = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < end:
        if (found := look()) is not None:
            return found
        if process.poll() is not None:
            return look()
        time.sleep(_POLL_S)
    return None


def main(words: Sequence[str]) -> int:
    """Perform one verb and print its answer."""
    verb, folder, *rest = words
    try:
        if verb == "facts":
            answer = facts(Path(folder))
        elif verb == "start":
            name, role, address, *arguments = rest
            answer = start(Path(folder), name, role, address, arguments)
        else:
            answer = {"status": status, "stop": stop}[verb](Path(folder), rest[0])
    except (VerbFailed, OSError) as error:
        answer = {"refused": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
    return 1 if "refused" in answer else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
