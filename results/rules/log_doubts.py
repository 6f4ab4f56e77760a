"""Doubts about single logs: torn files, clocks that step back, lost numbers."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from results.rules.terms import doubt
from results.tables.record_files import RecordFile, Scan

JITTER_NS = 1_000_000
"""Tolerance for stamps of a process, which writes rows in the order of its stamps."""


class Made(Protocol):
    """A subscription as made by a client."""

    @property
    def sub_id(self) -> str: ...
    @property
    def subscriber(self) -> str: ...
    @property
    def broker(self) -> str: ...
    @property
    def predicate(self) -> str: ...


def doubts_about_file(file: RecordFile) -> Iterator[str]:
    """Yield a doubt if a file is incomplete, or belongs to another run."""
    if file.foreign_run:
        yield f"{file.name} is of run {file.foreign_run}"
    elif not file.closed:
        torn = f", {file.torn_bytes} bytes of a torn record left out" if file.torn_bytes else ""
        yield f"{file.name} was not closed{torn}"


def doubts_about_clock(name: str, scan: Scan) -> Iterator[str]:
    """Yield doubts if stamps of a file are absent, or step back."""
    if scan.untimed:
        yield doubt("untimed", who=name, n=scan.untimed)
    if scan.back_ns > JITTER_NS:
        yield doubt("clock_back", who=name, s=scan.back_ns / 1e9)


def doubts_about_numbers(records: Mapping[str, RecordFile]) -> Iterator[str]:
    """Yield doubts about numbers of a process's sources that were used but are not in its log.

    A source's numbers begin with 1 in every incarnation, without omissions. Every number is
    reserved before its use.
    """
    published = records["publications"].numbers()
    answered = records["acks"].numbers() if "acks" in records else {}
    reserved = records["intents"].numbers() if "intents" in records else None
    for source, incarnation in sorted({*published} | {*answered}):
        mine = published.get((source, incarnation))
        logged, first = (mine.logged, mine.first_lost) if mine is not None else (0, 1)
        stated = answered.get((source, incarnation))
        highest = max(
            mine.highest if mine is not None else 0, stated.highest if stated is not None else 0
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
    """Yield doubts if a subscription differs from the workload.

    Args:
        wanted: broker and predicate by subscriber.
    """
    if made.subscriber not in wanted or made.sub_id.partition("/")[0] != made.subscriber:
        yield doubt("not_in_workload", who=f"subscription {made.sub_id}")
        return
    broker, predicate = wanted[made.subscriber]
    name = f"subscription {made.sub_id}"
    if made.broker != broker:
        yield doubt("elsewhere", who=name, found=made.broker, wanted=broker)
    if made.predicate != predicate:
        yield doubt("other_predicate", who=name, found=made.predicate, wanted=predicate)
