"""The event logs of brokers: accepted losses of state, and changes of retention."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from results.reference.announcements import ToTimeline
from results.reference.files import read_lines
from results.reference.history import ACKNOWLEDGED
from results.reference.times import Clocks
from results.rules.terms import Retention

_MOST_SEQUENCE = 1 << 63


class AcceptedLoss(NamedTuple):
    """A loss of a broker's state that the operator has accepted."""

    broker: str
    host: str
    lost_ns: int


def accepted_losses_of(folder: Path, to_timeline: ToTimeline) -> list[AcceptedLoss]:
    """Return the signed losses of a run."""
    found: list[AcceptedLoss] = []
    for process in sorted(folder.glob("raw/*/*")):
        for line in read_lines(process / "events.jsonl"):
            signature = line.get("signature")
            if line.get("event") != "loss_accepted" or not isinstance(signature, str):
                continue
            is_signed = len(signature) == 128 and not {*signature} - {*"0123456789abcdef"}
            if is_signed and type(line.get("loss")) is type(line.get("t_ns")) is int:
                host = process.parent.name
                lost_ns = to_timeline(line["t_ns"], host)
                found.append(AcceptedLoss(process.name, host, lost_ns))
    return found


def find_sent_again(
    losses: Iterable[AcceptedLoss],
    published: Sequence[Mapping[str, int]],
    answers: Sequence[Mapping[str, int]],
    clocks: Clocks,
    to_timeline: ToTimeline,
    host: str,
) -> Iterator[tuple[int, int]]:
    """Yield the publications of a source without an acknowledgement at a loss of its broker.

    Args:
        losses: of the broker of the source.
        host: the host of the publisher.
    """
    for _, place, lost_ns in losses:
        error_ns = clocks.error_ns(host, place) or 0
        acknowledged = sorted(
            (row["incarnation"], row["first"], row["last"])
            for row in answers
            if row["outcome"] == ACKNOWLEDGED
            and to_timeline(row["at_ns"], host) < lost_ns - error_ns
        )
        for row in published:
            key = row["incarnation"], row["sequence"]
            at = bisect_right(acknowledged, (*key, _MOST_SEQUENCE)) - 1
            is_acknowledged = at >= 0 and (
                acknowledged[at][0] == key[0] and acknowledged[at][2] >= key[1]
            )
            if to_timeline(row["at_ns"], host) <= lost_ns + error_ns:
                yield from () if is_acknowledged else (key,)


def retentions_of(folder: Path, clocks: Clocks, to_timeline: ToTimeline) -> Iterator[Retention]:
    """Yield the changes of retention that brokers logged."""
    for process in sorted(folder.glob("raw/*/*")):
        host = process.parent.name
        for line in read_lines(process / "events.jsonl"):
            if _is_retention(line):
                yield Retention(
                    broker=process.name,
                    stream=line["pubend"],
                    streams=line["pubends"],
                    reason=str(line.get("reason")),
                    gap_age_ns=line.get("gap_age_ns"),
                    since_ns=to_timeline(line["t_ns"], host),
                    err_ns=clocks.error_ns(host),
                )


def _is_retention(line: Mapping[str, Any]) -> bool:
    numbers = line.get("t_ns"), line.get("pubend"), line.get("pubends")
    age_ns = line.get("gap_age_ns")
    return (
        line.get("event") == "retention_changed"
        and all(type(each) is int for each in numbers)
        and 0 <= line["pubend"] < line["pubends"]
        and (age_ns is None or (type(age_ns) is int and age_ns >= 0))
    )
