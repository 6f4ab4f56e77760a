"""What single logs leave in doubt: files that are torn, clocks that jump, numbers that are lost."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from results.rules.terms import doubt
from results.tables.record_files import RecordFile, Scan

JITTER_NS = 1_000_000
"""A process stamps its rows in the order it writes them; so little is forgiven."""


class Made(Protocol):
    """A subscription as it was made."""

    @property
    def sub_id(self) -> str: ...
    @property
    def subscriber(self) -> str: ...
    @property
    def broker(self) -> str: ...
    @property
    def predicate(self) -> str: ...


def doubts_about_file(file: RecordFile) -> Iterator[str]:
    """That it is not all that its process wrote down for this run."""
    if file.foreign_run:
        yield f"{file.name} is of run {file.foreign_run}"
    elif not file.closed:
        torn = f", {file.torn_bytes} bytes of a torn record left out" if file.torn_bytes else ""
        yield f"{file.name} was not closed{torn}"


def doubts_about_clock(who: str, scan: Scan) -> Iterator[str]:
    """That the stamps of a file are none, or go back."""
    if scan.untimed:
        yield doubt("untimed", who=who, n=scan.untimed)
    if scan.back_ns > JITTER_NS:
        yield doubt("clock_back", who=who, s=scan.back_ns / 1e9)


def doubts_about_numbers(records: Mapping[str, RecordFile]) -> Iterator[str]:
    """Numbers of a process's sources that were answered or used, and are not in its log.

    A source's numbers begin with 1 in every incarnation and leave none out. Each is reserved
    before it is used.
    """
    published = records["publications"].numbers()
    answered = records["acks"].numbers() if "acks" in records else {}
    reserved = records["intents"].numbers() if "intents" in records else None
    for source, incarnation in sorted({*published} | {*answered}):
        mine = published.get((source, incarnation))
        logged, first = (mine.logged, mine.first_lost) if mine is not None else (0, 1)
        told = answered.get((source, incarnation))
        highest = max(
            mine.highest if mine is not None else 0, told.highest if told is not None else 0
        )
        if logged < highest:
            yield doubt(
                "numbers",
                source=source,
                incarnation=incarnation,
                n=highest - logged,
                highest=highest,
                first=first,
            )
        if reserved is not None and mine is not None:
            limit = reserved.get((source, incarnation))
            if limit is None or limit.highest < mine.highest:
                yield doubt("unreserved", source=source, highest=mine.highest)


def doubts_about_subscription(made: Made, wanted: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """That it is not one of the workload's, or not as the workload has it.

    Args:
        wanted: broker and predicate by subscriber.
    """
    if made.subscriber not in wanted or made.sub_id.partition("/")[0] != made.subscriber:
        yield doubt("not_asked", who=f"subscription {made.sub_id}")
        return
    broker, predicate = wanted[made.subscriber]
    who = f"subscription {made.sub_id}"
    if made.broker != broker:
        yield doubt("elsewhere", who=who, found=made.broker, wanted=broker)
    if made.predicate != predicate:
        yield doubt("other_predicate", who=who, found=made.predicate, wanted=predicate)
