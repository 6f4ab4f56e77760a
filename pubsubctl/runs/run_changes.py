"""Changes of the folder of runs: labels, removals, journal rows, and the page over all runs."""

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.run.run_directory import RUN_ID, append_line, utc_now
from pubsubctl.console.console import Console, Progress
from pubsubctl.errors import IntegrityError, PreflightFailed, UserError
from pubsubctl.hosts.files import shown
from pubsubctl.runs.run_records import (
    INDEX,
    INTERRUPTED,
    RUNNING,
    UNCOLLECTED,
    RunIndex,
    RunRecord,
    record_in_any_case,
    records_in,
)
from pubsubctl.runs.runs import MANIFEST, size_bytes_of

_LABEL: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MOST_VALUE: Final = 200


@dataclass(frozen=True, slots=True)
class Removal:
    """Runs to remove, with their size."""

    records: Sequence[RunRecord]
    size_bytes: int


PAGE: Final = "index.html"
MOST_RUNS: Final = 200
"""Runs on the page; the folder of runs may have many more."""


def write_run_index(results: Path) -> tuple[Path, int]:
    """Write the page over the runs of a folder; return its path and the number of all runs.

    Raises:
        PreflightFailed: the page cannot be written.
        IntegrityError: the manifest of a run is not JSON.
    """
    from results.report.index_page import IndexEntry, write_index

    records = records_in(results)
    verdicts = {record.run_id: record.verdict for record in records}

    def entry_of(record: RunRecord) -> IndexEntry:
        return IndexEntry(
            folder=record.folder,
            experiment=record.experiment,
            kind=record.kind,
            state=record.state,
            protocol=record.protocol,
            verdict=record.verdict,
            started_utc=record.started_utc,
            labels=record.labels,
            members={member: verdicts.get(member, "") for member in record.members},
            plain_verdict=record.plain_verdict,
        )

    page = results / PAGE
    shown = records[-MOST_RUNS:]
    try:
        write_index([*map(entry_of, shown)], page, len(records) - len(shown))
    except OSError as error:
        raise PreflightFailed(f"{page}: {(error.strerror or str(error)).lower()}") from None
    return page, len(records)


def refresh_run_index(runs: Iterable[Path], progress: Progress | Console) -> None:
    """Write the pages over the folders of these runs again; a failure is reported, and no error.

    A run outside of a folder of runs, such as a sample, has no page.
    """
    folders = {run.resolve().parents[1] for run in runs if len(run.resolve().parents) > 1}
    for folder in sorted(folders):
        if not (folder / INDEX).is_file():
            continue
        try:
            write_run_index(folder)
        except (PreflightFailed, IntegrityError) as error:
            progress.print(f"the page over all runs was not written: {error}")


def label_runs(folders: Sequence[Path], texts: Sequence[str]) -> dict[str, str]:
    """Label runs, and return the labels. An empty value removes a label.

    Raises:
        UserError: a text is not KEY=VALUE, or a run is in no folder of runs.
        PreflightFailed: the folder of runs cannot be written.
    """
    for folder in folders:
        if not RUN_ID.fullmatch(folder.resolve().name):
            raise UserError(
                f"{folder}: not in a folder of runs, such as results/runs; only runs there have "
                "labels beside them"
            )
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not _LABEL.fullmatch(key) or len(value) > _MOST_VALUE:
            raise UserError(
                f"label {shown(text)}: write KEY=VALUE; a key has letters, digits, _ . -, and a "
                f"value at most {_MOST_VALUE} characters"
            )
        labels[key] = value
    for folder in folders:
        _append_row(
            folder.resolve().parent.parent,
            {"run_id": folder.name, "labels": labels, "utc": utc_now()},
        )
    return labels


def removal_of(results: Path, folders: Sequence[Path], *, force: bool) -> Removal:
    """Return the removal of runs.

    Args:
        force: also remove runs without an end.

    Raises:
        UserError: a folder is outside of the folder of runs, a run has no end, or a series that
            remains needs a run.
    """
    chosen = {folder.resolve() for folder in folders}
    records = []
    for folder in folders:
        if folder.resolve().parents[1] != results.resolve() or not RUN_ID.fullmatch(folder.name):
            raise UserError(f"{folder}: `results remove` removes runs of {results} only")
        record = record_in_any_case(folder, RunIndex())
        if record.state == UNCOLLECTED and not force:
            raise UserError(
                f"{folder}: its records are on its hosts; `pubsubctl results collect "
                f"{folder.name}` fetches them, --force removes the run"
            )
        if record.state in (RUNNING, INTERRUPTED) and not force:
            reason = "it runs" if record.state == RUNNING else "it was interrupted"
            raise UserError(f"{folder}: this run has no end: {reason}; --force removes it")
        records.append(record)
    names = {record.run_id for record in records}
    for other in records_in(results):
        needed = names.intersection(other.members)
        if needed and other.folder.resolve() not in chosen:
            raise UserError(
                f"series {other.folder} needs {min(needed)}; remove the series, too, or neither"
            )
    return Removal(records, sum(size_bytes_of(record.folder) for record in records))


def remove(removal: Removal) -> None:
    """Remove run folders, and point `latest` at the newest remaining runs."""
    for record in removal.records:
        folder = record.folder
        results = folder.resolve().parents[1]
        hidden = folder.with_name(f".removed-{folder.name}")
        folder.rename(hidden)
        _append_row(results, {"run_id": record.run_id, "removed": True, "utc": utc_now()})
        shutil.rmtree(hidden)
        _repair_latest(folder.parent)
        _repair_latest(results)


def note_plain_verdict(run: Path, verdict: str) -> None:
    """Record the verdict of the plain judge on a run whose folder has no other verdict yet.

    Raises:
        PreflightFailed: the folder of runs cannot be written.
    """
    _append_row(run.resolve().parents[1], {"run_id": run.name, "plain_verdict": verdict})


def _append_row(results: Path, row: Mapping[str, Any]) -> None:
    path = results / INDEX
    try:
        append_line(path, row)
    except OSError as error:
        raise PreflightFailed(f"{path}: {(error.strerror or str(error)).lower()}") from None


def _repair_latest(folder: Path) -> None:
    """Point a dangling `latest` at the newest run below a folder; remove it without a run."""
    link = folder / "latest"
    if not link.is_symlink() or link.exists():
        return
    runs = [path.parent for path in folder.glob(f"*/{MANIFEST}")]
    runs += [path.parent for path in folder.glob(f"*/*/{MANIFEST}")]
    runs = [path for path in runs if RUN_ID.fullmatch(path.name)]
    link.unlink()
    if runs:
        newest = max(runs, key=lambda path: path.name)
        link.symlink_to(newest.relative_to(folder))
    elif not any(folder.iterdir()):
        folder.rmdir()
