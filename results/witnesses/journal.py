"""The times of the journal and of the manifest, and losses of state that brokers accepted.

The controller writes each line of the journal with both of its clocks, in the order of its acts.
The name of a run begins with the time of day at which the run began. When a broker begins a run, it
reports the loss that it accepted at its start, and the controller logs the report. A folder before
LOGGED_SCHEMA has these lines or none.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from brokerd.protocols.interface import LOSS_ACCEPTED
from results.rules.terms import doubt
from results.witnesses.folder import JOURNAL, MANIFEST, RunFolder, differ

_SLACK_S: Final = 2.0
"""The time of day is adjusted meanwhile, and rounded."""
_PREPARED_S: Final = 600.0
"""A run has its name at most so long before its first line."""
_NAME: Final = "%Y%m%dT%H%M%SZ"
_OF_FAULTS: Final = "fault"
"""Lines about faults have the time of the stage, not of the line."""


def doubts_about_journal(folder: RunFolder) -> Iterator[str]:
    """Yield lines out of order, times of day that differ, and losses that one side logged."""
    if not (folder.is_of_processes and folder.is_closed) or not folder.journal:
        return
    yield from _check_order(folder)
    yield from _check_day(folder)
    if not folder.is_foreign:
        yield from _check_losses(folder)


def _day_s(text: object) -> float:
    return datetime.fromisoformat(str(text)).timestamp()


def _check_order(folder: RunFolder) -> Iterator[str]:
    """Yield the first line with a time before the line above, or with clocks that moved apart."""
    for before, after in pairwise(folder.journal):
        back_s = _day_s(before["utc"]) - _day_s(after["utc"])
        if back_s > _SLACK_S:
            yield differ(JOURNAL, JOURNAL, "the time of day", after["utc"], before["utc"])
            return
    timed = [line for line in folder.journal if line.get("what") != _OF_FAULTS]
    for before, after in pairwise(timed):
        passed_s = _day_s(after["utc"]) - _day_s(before["utc"])
        passed_ns = after["t_ns"] - before["t_ns"]
        subject = f"the time of the line about {after['what']}"
        if passed_ns < 0:
            yield differ(JOURNAL, JOURNAL, subject, after["t_ns"], before["t_ns"])
            return
        if abs(passed_s - passed_ns / 1e9) > _SLACK_S:
            yield differ(JOURNAL, JOURNAL, f"{subject} by both clocks", passed_s, passed_ns / 1e9)
            return


def _check_day(folder: RunFolder) -> Iterator[str]:
    """Yield a start or an end of the manifest at another time of day than in the journal."""
    manifest, lines = folder.manifest, folder.journal
    first_s, last_s = _day_s(lines[0]["utc"]), _day_s(lines[-1]["utc"])
    started, ended = manifest.get("started_utc"), manifest.get("ended_utc")
    if not -_SLACK_S <= first_s - _day_s(started) <= _PREPARED_S:
        yield differ(MANIFEST, JOURNAL, "started_utc", started, lines[0]["utc"])
    if ended is not None and abs(last_s - _day_s(ended)) > _SLACK_S:
        yield differ(MANIFEST, JOURNAL, "ended_utc", ended, lines[-1]["utc"])
    run_id = str(manifest.get("run_id"))
    named = datetime.strptime(run_id.partition("-")[0], _NAME).replace(tzinfo=UTC).timestamp()
    if not -_SLACK_S <= first_s - named <= _PREPARED_S:
        yield differ(MANIFEST, JOURNAL, "the time in run_id", run_id, lines[0]["utc"])


def _check_losses(folder: RunFolder) -> Iterator[str]:
    """Yield accepted losses that a broker logged and the controller did not, or vice versa."""
    logged = {
        (str(line["broker"]), line["loss"])
        for line in folder.journal
        if line.get("what") == LOSS_ACCEPTED
    }
    served = {
        (process.name, line.get("loss")): f"{process.place}/events.jsonl"
        for process in folder.processes
        for line in process.lines("events.jsonl")
        if line.get("event") == LOSS_ACCEPTED
    }
    is_demanded = folder.is_logged or bool(logged)
    for broker, loss in sorted(served.keys() - logged if is_demanded else (), key=str):
        yield differ(served[broker, loss], JOURNAL, f"the loss that {broker} accepted", loss, None)
    for broker, loss in sorted(logged - served.keys(), key=str):
        other = f"raw/*/{broker}/events.jsonl"
        yield doubt("missing_line", file=other, what=f"accepted loss {loss}", other=JOURNAL)
