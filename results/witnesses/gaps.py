"""The gaps that were announced to subscribers.

A protocol announces a gap to a subscriber that was absent, because the publications of that time
are no longer kept. A gap therefore needs an absence of the subscriber between publication and
announcement. A gap contains no fence, because a fence is owed to every subscriber, and names
publications of the run."""

from collections.abc import Iterator

from brokerd.model.fault_verbs import DISK_VERBS, FAILING_VERBS, LIMITING_VERBS, STANDING_VERBS
from brokerd.protocols.interface import LOSS_ACCEPTED
from results.rules.terms import STATE_LOST, doubt
from results.witnesses.folder import Line, ProcessFolder, RunFolder, span_of
from results.witnesses.rows import Rows

_SLACK_NS = 5_000_000
_BREAKS = (
    *(*FAILING_VERBS, *STANDING_VERBS, "restart"),
    *(verb for verb in DISK_VERBS if verb not in LIMITING_VERBS),
)
"""Verbs of faults that keep publications from a subscriber, and do not only delay them."""


def doubts_about_gaps(folder: RunFolder, rows: Rows) -> Iterator[str]:
    """Yield the gaps that no other file of the run bears out."""
    for process in folder.processes:
        for line in process.lines("gaps.jsonl"):
            yield from _check_gap(folder, rows, process, line)


def _check_gap(folder: RunFolder, rows: Rows, process: ProcessFolder, line: Line) -> Iterator[str]:
    source, incarnation = str(line["source"]), int(line["incarnation"])
    first, last = int(line["first"]), int(line["last"])
    names = {
        "who": line["sub_id"], "source": source, "file": f"{process.place}/gaps.jsonl",
        "first": first, "last": last,
    }  # fmt: skip
    known = rows.sources.get((source, incarnation))
    announced_ns = folder.timeline.to_timeline(int(line["t_ns"]), process.host)
    if line.get("reason") == STATE_LOST and all(name != source for name, _ in rows.sources):
        # A stream of a broker, which no publisher has.
        hosts = {other.host for other in folder.processes}
        error_ns = max(folder.timeline.error_ns(process.host, host) or 0 for host in hosts)
        if not any(at_ns <= announced_ns + error_ns + _SLACK_NS for at_ns in _losses(folder)):
            yield doubt("gap_without_loss", **names)
        return
    if known is None or last > known.highest:
        yield doubt("gap_of_nothing", **names)
        return
    if any(first <= fence <= last for fence in known.fences):
        yield doubt("gap_over_fence", **names)
    sent = [rows.sent_ns(source, incarnation, number) for number in (first, last)]
    began_ns = min((at for at in sent if at is not None), default=known.first_ns)
    ends = folder.phase_ns("drain")
    over_ns = None if ends is None else ends[1] - folder.origin_ns
    error_ns = folder.timeline.error_ns(process.host, _host_of(folder, source, rows)) or 0
    if announced_ns + error_ns < began_ns or (
        over_ns is not None and announced_ns > over_ns + error_ns
    ):
        yield doubt("gap_when", **names)
    if line.get("reason") == STATE_LOST:
        # What a broker accepts to have lost when it starts was sent before.
        lost_ns = [*_losses(folder)]
        if not any(at_ns + error_ns + _SLACK_NS >= began_ns for at_ns in lost_ns):
            yield doubt("gap_without_loss", **names)
    client = str(line["sub_id"]).partition("/")[0]
    away = [*folder.absences(client), *find_broken(folder)]
    if not any(
        left_ns <= announced_ns + _SLACK_NS + error_ns and back_ns >= began_ns - error_ns
        for left_ns, back_ns in away
    ):
        yield doubt("gap_without_absence", **names)


def _losses(folder: RunFolder) -> Iterator[int]:
    """Yield the times at which brokers logged an accepted loss."""
    for process in folder.processes:
        for line in process.lines("events.jsonl"):
            if line.get("event") == LOSS_ACCEPTED and isinstance(line.get("cause"), str):
                yield folder.timeline.to_timeline(int(line["t_ns"]), process.host)


def find_broken(folder: RunFolder) -> Iterator[tuple[int, int]]:
    """Yield the times at which a broker or a link let nothing pass."""
    for row in folder.fault_rows:
        span = None if row["verb"] not in _BREAKS else span_of(folder, row)
        if span is not None:
            yield span


def _host_of(folder: RunFolder, source: str, rows: Rows) -> str:
    for process in folder.processes:
        if process.place in rows.published:
            return process.host
    return ""
