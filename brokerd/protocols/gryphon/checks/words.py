"""The wording of gryphon's messages in scenarios."""

from collections.abc import Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.knowledge import TICK_NS, Range
from brokerd.protocols.gryphon.messages import (
    EVERYWHERE,
    AckExpected,
    Beginnings,
    Done,
    Doubt,
    Events,
    FilterChange,
    FilterSet,
    FilterVersion,
    FilterVersions,
    Join,
    Joined,
    LinkStatus,
    Nack,
    Silent,
)
from brokerd.simulator.checks.step_text import NamedWorld, Wording
from brokerd.units import MILLISECOND_NS


class GryphonWording(Wording):
    """See Wording; a stream is named by its broker and the pubend's number there.

    Ticks are milliseconds since the first mentioned tick of their broker.
    """

    def __init__(self, cluster: NamedWorld) -> None:
        super().__init__(cluster)
        self._bases: dict[BrokerNumber, int] = {}

    def message(self, message: Any) -> str:
        match message:
            case Events(start=start, end=end, again=again, onto=onto, run=run):
                which = ("again" if again else "first") + _describe_receiver(onto)
                ticks = ",".join(self.tick(run.source, tick) for tick in run.sequences)
                within = self.listed(run.source, ((start, end),))
                return f"events {which} {self.stream(run.source)} {within} at {ticks}"
            case Silent(stream=stream, ranges=ranges, again=again):
                when = "" if again else "first "
                return f"silence {when}{self.stream(stream)} {self.listed(stream, ranges)}"
            case FilterVersions(versions=versions, lacking=lacking):
                lacks = " ".join(self.name(broker) for broker in lacking) or "none"
                return f"filters {' '.join(map(self.version, versions))}, lacks {lacks}"
            case FilterSet(version=version, predicates=predicates):
                return f"filter {self.version(version)} of {len(predicates)} predicates"
            case FilterChange(version=version, added=added, removed=removed):
                return f"filter {self.version(version)}, {len(added)} more, {len(removed)} less"
            case Beginnings(beginnings=beginnings):
                begun = [
                    (self.version(each.version), self.name(each.broker)) for each in beginnings
                ]
                return f"begins {' '.join(f'{filter_} at {name}' for filter_, name in begun)}"
            case Nack(stream=stream, ranges=ranges):
                return f"nack {self.stream(stream)} {self.listed(stream, ranges)}"
            case Done(cell=cell, through=through):
                done = [f"{self.stream(each)}/{self.tick(each, last)}" for each, last in through]
                return f"done in cell {cell} {' '.join(done)}"
            case AckExpected(stream=stream, through=through, onto=onto):
                upto = self.tick(stream, through)
                return f"ack expected{_describe_receiver(onto)} {self.stream(stream)}/{upto}"
            case Doubt(stream=stream, after=after):
                return f"doubt {self.stream(stream)}/{self.tick(stream, after)}"
            case LinkStatus(direct=direct, around=around):
                return f"gets to cells {_numbers(direct)}, around to {_numbers(around)}"
            case Join(stream=stream, incarnation=incarnation, number=number):
                return f"join {self.stream(stream)}, question {incarnation}.{number}"
            case Joined(stream=stream, incarnation=incarnation, number=number, broker=broker):
                place = f"{self.stream(stream)} for {self.name(broker)}"
                given = self.tick(StreamId(broker, 0, 0), message.tick)
                return f"joined {place} at {given}, question {incarnation}.{number}"
        return super().message(message)

    def run(self, run: PublicationRun) -> str:
        """See Wording: with the publishers' sequence numbers."""
        origins = ((each.source, each.sequences[0], each.sequences[-1]) for each in run.origins)
        return self.ranges(tuple(origins))

    def version(self, version: FilterVersion) -> str:
        """Return the text of a filter's version."""
        return f"{self.name(version.broker)}/{version.incarnation}.{version.number}"

    def stream(self, stream: StreamId) -> str:
        return f"{self.name(stream.broker)}.{stream.publisher}"

    def tick(self, stream: StreamId, tick: int) -> str:
        if tick <= 1:
            return "begin"
        base = self._bases.setdefault(stream.broker, tick)
        return f"{(tick - base) * TICK_NS / MILLISECOND_NS:g}"

    def listed(self, stream: StreamId, ranges: Sequence[Range]) -> str:
        """Return the text of ranges of ticks."""
        return " ".join(
            f"[{self.tick(stream, start)},{self.tick(stream, end)})" for start, end in ranges
        )


def _describe_receiver(onto: int) -> str:
    return "" if onto == EVERYWHERE else f" for cell {onto}"


def _numbers(cells: Sequence[int]) -> str:
    return ",".join(map(str, cells)) or "none"
