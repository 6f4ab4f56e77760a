"""The page over all runs of a folder, `index.html`, written again when a run ends or is judged."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pubsubctl.console.console import Progress
from pubsubctl.errors import IntegrityError, UserError
from pubsubctl.running.runs import INDEX, RunRecord, records_in

PAGE: Final = "index.html"
MOST_RUNS: Final = 200
"""Runs on the page; the folder of runs may have many more."""


def write_run_index(results: Path) -> tuple[Path, int]:
    """Write the page over the runs of a folder; return its path and the number of all runs.

    Raises:
        UserError: the page cannot be written.
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
        )

    page = results / PAGE
    shown = records[-MOST_RUNS:]
    try:
        write_index([*map(entry_of, shown)], page, len(records) - len(shown))
    except OSError as error:
        raise UserError(f"{page}: {(error.strerror or str(error)).lower()}") from None
    return page, len(records)


def refresh_run_index(runs: Iterable[Path], progress: Progress) -> None:
    """Write the pages over the folders of these runs again; a failure is reported, and no error.

    A run outside of a folder of runs, such as a sample, has no page.
    """
    folders = {run.resolve().parents[1] for run in runs if len(run.resolve().parents) > 1}
    for folder in sorted(folders):
        if not (folder / INDEX).is_file():
            continue
        try:
            write_run_index(folder)
        except (UserError, IntegrityError) as error:
            progress.say(f"the page over all runs was not written: {error}")
