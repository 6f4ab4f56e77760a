"""The collection of a run's records from its hosts, at the end of the run or later.

The file `uncollected.json` in a run's folder names the folders of its hosts, and what the run needs
for its end. It exists from the start of the run until all records are here. If this machine has no
room for a record, nothing more is written, and `pubsubctl results collect` ends the run later.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import trio

from bench.run.outcome import RunOutcome, outcome_of
from bench.run.run_directory import JOURNAL, RunDirectory, RunState, json_text
from bench.run.testbed import FILE_NAME, HostFiles, ListingRefused, Testbed
from brokerd.errors import ControlError
from brokerd.files import write_whole
from brokerd.storage.files import is_no_room

UNCOLLECTED: Final = "uncollected.json"
_SCHEMA: Final = "pubsubctl/uncollected/1"
_NO_END: Final = "this machine had no room for the end of the run"


@dataclass(frozen=True, slots=True)
class RecordFolder:
    """A folder of a host with files of a run.

    Attributes:
        folder: None for the agent's folder with the output of the process.
        names: only these files; None for all.
    """

    host: str
    process: str
    folder: str | None
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """The facts for the end of a run, in addition to the records.

    Attributes:
        state, reasons: the state of the run if all records are collected, and its reasons.
        manifest, journal_bytes: the manifest and the size of the journal before the collection.
        measured, finished, lateness_limit_ns, cpu_s, has_rate, ready_after_s: see `outcome_of`.
        waited_share, not_healed, down: see `RunOutcome`.
    """

    state: RunState
    reasons: Sequence[str]
    manifest: Mapping[str, Any]
    journal_bytes: int
    measured: tuple[int, int] | None = None
    finished: Sequence[Mapping[str, Any]] = ()
    lateness_limit_ns: float = math.inf
    cpu_s: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {})
    has_rate: bool = False
    ready_after_s: float | None = None
    waited_share: Mapping[str, float] | None = None
    not_healed: Sequence[str] = ()
    down: Sequence[str] = ()


def write_uncollected(
    run: Path, folders: Sequence[RecordFolder], end: RunEnd | None = None
) -> None:
    """Write the file that a later collection reads.

    Args:
        end: None while the run goes on.
    """
    document: dict[str, Any] = {"schema": _SCHEMA, "folders": [asdict(each) for each in folders]}
    if end is not None:
        document["end"] = asdict(end)
    write_whole(run / UNCOLLECTED, json_text(document))


def is_uncollected(run: Path) -> bool:
    """Return True if records of a run may be on its hosts only."""
    return (run / UNCOLLECTED).is_file()


def read_uncollected(run: Path) -> tuple[list[RecordFolder], RunEnd]:
    """Return the folders with uncollected records of a run, and the end of the run.

    Raises:
        ValueError: no run has written this file; names it.
    """
    path = run / UNCOLLECTED
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        folders = [RecordFolder(**row) for row in document["folders"]]
        end = RunEnd(**document["end"]) if "end" in document else _unknown_end(run)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: damaged: {type(error).__name__}") from None
    for name in [name for each in folders for name in (each.host, each.process)]:
        if not isinstance(name, str) or not FILE_NAME.fullmatch(name):
            raise ValueError(f"{path}: {str(name)[:80]!r} is no name of a host or process")
    return folders, end


async def collect_records(
    files: Testbed | HostFiles, directory: RunDirectory, folders: Sequence[RecordFolder]
) -> list[str]:
    """Collect the files of a run, and record their digests; return what is wrong, in words.

    Raises:
        OSError: this machine has no room; nothing more was written.
    """
    problems: list[str] = []
    missing: dict[tuple[str, str], dict[str, None]] = {}
    for each in folders:
        source = None if each.folder is None else Path(each.folder)
        try:
            target = directory.raw_folder(each.host, each.process)
            damaged = await files.collect(each.host, each.process, source, target, each.names)
        except (ControlError, ListingRefused, OSError) as error:
            if isinstance(error, OSError) and is_no_room(error):
                raise
            missing.setdefault((each.host, str(error)), {})[each.process] = None
            continue
        problems += [f"{name} is not here as its host saw it" for name in damaged]
    for (host, reason), processes in missing.items():
        text = f"{len(processes)} processes" if len(processes) > 1 else next(iter(processes))
        problems.append(f"files of {text} on {host} could not be fetched: {reason}")
    await trio.to_thread.run_sync(directory.log_collected)
    return problems


def end_run(directory: RunDirectory, outcome: RunOutcome) -> None:
    """Write the end of a run after the collection of records."""
    manifest = directory.manifest
    manifest["loadgen_saturated"] = outcome.saturated
    manifest["limited_by"] = outcome.limited_by
    manifest["waited_share"] = dict(outcome.waited_share)
    manifest["headline"] = outcome.headline()
    uncollected = directory.path / UNCOLLECTED
    content = uncollected.read_text(encoding="utf-8")
    uncollected.unlink()
    try:
        directory.end(outcome.state, outcome.reasons)
    except OSError:
        write_whole(uncollected, content)
        raise
    directory.add_to_index(outcome.headline())


async def collect_later(run: Path, files: HostFiles) -> RunOutcome:
    """Collect the records of a run that this machine had no room for, and end the run.

    Raises:
        ValueError: see `read_uncollected`.
        OSError: this machine still has no room; the call may be repeated.
    """
    folders, end = read_uncollected(run)
    os.truncate(run / JOURNAL, end.journal_bytes)  # the rest is of a collection that had no room
    directory = RunDirectory(run)
    directory.manifest = {**end.manifest}
    try:
        problems = await collect_records(files, directory, folders)
        outcome = outcome_of(
            run, end.state, [*end.reasons, *problems], end.measured, end.finished,
            end.lateness_limit_ns, end.cpu_s, None,
            has_rate=end.has_rate, ready_after_s=end.ready_after_s,
        )  # fmt: skip
        outcome = replace(
            outcome,
            waited_share=end.waited_share or {},
            not_healed=tuple(end.not_healed),
            down=tuple(end.down),
        )
        await trio.to_thread.run_sync(end_run, directory, outcome)
    finally:
        directory.leave()
    return outcome


def _unknown_end(run: Path) -> RunEnd:
    """Return the end of a run that had no room to describe its end."""
    journal = (run / JOURNAL).read_bytes()
    return RunEnd(
        state="partial",
        reasons=[_NO_END],
        manifest=json.loads((run / "manifest.json").read_text(encoding="utf-8")),
        journal_bytes=journal.rfind(b"\n") + 1,
    )
