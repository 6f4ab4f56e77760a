"""Standalone Spark clusters from the view of a session: address and settings."""

import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

CONNECT_S: Final = 5.0
WORK_S: Final = 300.0
_LOCAL: Final = re.compile(r"local(\[(\*|[1-9]\d*)\])?")
_URL: Final = re.compile(r"spark://(?P<host>[^:/,]+):(?P<port>\d{1,5})")
_PROJECT: Final = Path(__file__).parents[2]


class MasterRefused(Exception):
    """The master does not exist, or its workers cannot run this program; the user's fault."""

    exit_status = 4


class NoMaster(Exception):
    """A text that names no master; the user's fault."""

    exit_status = 2


def check_master(master: str) -> None:
    """Check a master at once, before any Java is started.

    Raises:
        NoMaster: the text is neither local nor the URL of a standalone cluster.
        MasterRefused: no process listens at the address.
    """
    if _LOCAL.fullmatch(master):
        return
    url = _URL.fullmatch(master)
    if url is None:
        raise NoMaster(
            f"--master {master}: local[N], local[*], or the spark://HOST:PORT of a standalone "
            "cluster, as `pubsubctl spark up` prints it"
        )
    try:
        socket.create_connection((url["host"], int(url["port"])), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise MasterRefused(
            f"no Spark master at {master}: {getattr(error, 'strerror', None) or error}; "
            "`pubsubctl spark status` says what runs, --master 'local[*]' needs none"
        ) from None


def cluster_file(master: str) -> Path:
    """Return the file of this user with the settings for sessions on a cluster."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    name = master.removeprefix("spark://").replace(":", "-")
    return base / "pubsubctl" / "spark" / f"{name}.json"


def cluster_settings(master: str) -> dict[str, str]:
    """Return the further settings of a session on a cluster; empty for local masters.

    Workers run this Python and this program, under the same paths.
    """
    url = _URL.fullmatch(master)
    if url is None:
        return {}
    settings = {
        "spark.driver.host": _find_own_address(url["host"], int(url["port"])),
        "spark.driver.bindAddress": _find_own_address(url["host"], int(url["port"])),
        "spark.executorEnv.PYTHONPATH": str(_PROJECT),
        "spark.pyspark.python": sys.executable,
    }
    path = cluster_file(master)
    if path.is_file():
        known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        settings |= known["settings"]
        settings["spark.executor.memory"] = known["memory"]
        settings["spark.sql.shuffle.partitions"] = str(2 * known["cores"])
    return settings


def _find_own_address(host: str, port: int) -> str:
    """Return the address by which a host reaches this machine; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def check_workers(spark: "SparkSession", master: str) -> None:
    """Run a minimal job on a worker.

    Raises:
        MasterRefused: no worker accepts work in time; or a worker has another Python, or lacks this
            program.
    """
    if _URL.fullmatch(master) is None:
        return
    import pyarrow as pa

    def look(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import results.checker.cluster as there

        for batch in batches:
            yield pa.RecordBatch.from_arrays(
                [pa.array([there.__file__] * batch.num_rows)], names=["file"]
            )

    with _limit(spark, WORK_S) as is_over:
        try:
            spark.range(1).mapInArrow(look, "file STRING").collect()
        except Exception as error:
            raise MasterRefused(
                f"{master}: {_explain(str(error), over=is_over.is_set())}"
            ) from None


@contextmanager
def _limit(spark: "SparkSession", seconds: float) -> Iterator[threading.Event]:
    """Cancel all jobs at the end of the time; the event is set if the time has ended."""
    over = threading.Event()

    def end() -> None:
        over.set()
        spark.sparkContext.cancelAllJobs()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield over
    finally:
        timer.cancel()


def _explain(reason: str, *, over: bool) -> str:
    """Return the reason of a failed job in a sentence."""
    if over:
        return (
            f"no worker took any work within {WORK_S:g} s; `pubsubctl spark status` says which "
            "run; they may all be busy for another session"
        )
    versions = re.findall(r"\b(\d+\.\d+)\b", reason) if "PYTHON_VERSION_MISMATCH" in reason else []
    if versions:
        return (
            f"its workers have another Python ({versions[0]}) than this program "
            f"({sys.version_info[0]}.{sys.version_info[1]}); all need the same"
        )
    if "No module named" in reason:
        module = re.search(r"No module named '([^']+)'", reason)
        return (
            f"its workers have no {module[1] if module else 'package of ours'}; they need this "
            f"program at {_PROJECT} and its Python at {sys.executable}"
        )
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    return f"its workers cannot do our work: {lines[-1][:300] if lines else 'no reason given'}"
