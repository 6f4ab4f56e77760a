"""The folder of runs: created, and checked before a run begins."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from bench.spec.predictions import find_owed_pairs
from bench.spec.spec import ExperimentSpec
from brokerd.text import size_text
from pubsubctl.console.outputs import create_folder, reason_of
from pubsubctl.errors import PreflightFailed

_RUN_BYTES: Final = 500_000
"""The size of an empty run: manifest, specification, evidence and tables."""
_BROKER_BYTES_PER_S: Final = 4_000
_PUBLICATION_BYTES: Final = 200
_DELIVERY_BYTES: Final = 150


def check_results(folder: Path, spec: ExperimentSpec | None = None) -> None:
    """Check that a run can be written into the folder of runs, which is created.

    Args:
        spec: the run; None to check only that anything can be written.

    Raises:
        PreflightFailed: the folder cannot be created or written, or its disk has less free space
            than the run needs; with both numbers.
    """
    create_folder(folder)
    probe = folder / f".probe-{os.getpid()}"
    try:
        probe.write_bytes(b"\\0")
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise PreflightFailed(f"{folder}: no run can be written here: {reason_of(error)}") from None
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
    needed_bytes = 0 if spec is None else bytes_of(spec)
    if problem := _explain_room(folder, free_bytes, needed_bytes):
        raise PreflightFailed(problem)


def explain_obstacle(folder: Path, specs: Iterable[ExperimentSpec]) -> str:
    """Return the reason why the largest of some runs cannot be written; "" if it can.

    Creates and leaves nothing.
    """
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        os.rmdir(mkdtemp(prefix=".probe-", dir=existing))
        free_bytes = shutil.disk_usage(existing).free
    except OSError as error:
        return f"{folder}: no run can be written here: {reason_of(error)}"
    return _explain_room(folder, free_bytes, max(map(bytes_of, specs), default=0))


def _explain_room(folder: Path, free_bytes: int, needed_bytes: int) -> str:
    if needed_bytes <= free_bytes:
        return ""
    return (
        f"{folder}: {size_text(free_bytes)} free, and the run needs about "
        f"{size_text(needed_bytes)}; choose another folder with -o"
    )


def bytes_of(spec: ExperimentSpec) -> int:
    """Return the estimated size of a run's folder, tables included."""
    phases = spec.workload.phases
    pairs = find_owed_pairs(spec) or ()
    published = sum({pair.publisher: pair.published or 0 for pair in pairs}.values())
    owed = sum(pair.owed or 0 for pair in pairs)
    seconds = (phases.warmup + phases.measure) / 1e9
    brokers = len(spec.topology.present())
    return round(
        _RUN_BYTES
        + brokers * seconds * _BROKER_BYTES_PER_S
        + published * _PUBLICATION_BYTES
        + owed * _DELIVERY_BYTES
    )
