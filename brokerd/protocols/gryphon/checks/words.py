"""How scenarios say what brokers of gryphon tell each other."""

from collections.abc import Sequence
from typing import Any

from brokerd.model.identity import StreamId
from brokerd.protocols.gryphon.intervals import Range
from brokerd.protocols.gryphon.messages import (
    EVERYWHERE,
    AckExpected,
    Done,
    Events,
    LinkStatus,
    Nack,
    Silent,
)
from brokerd.simulator.checks.wording import Wording


class GryphonWording(Wording):
    """See Wording; a stream is called after its broker and the pubend's number there."""

    def message(self, message: Any) -> str:
        """See Wording."""
        match message:
            case Events(start=start, end=end, again=again, onto=onto, run=run):
                which = ("again" if again else "first") + _for(onto)
                ticks = ",".join(map(str, run.sequences))
                return f"events {which} {self.stream(run.source)} [{start},{end}) at {ticks}"
            case Silent(stream=stream, ranges=ranges):
                return f"silence {self.stream(stream)} {_listed(ranges)}"
            case Nack(stream=stream, ranges=ranges):
                return f"nack {self.stream(stream)} {_listed(ranges)}"
            case Done(cell=cell, through=through):
                listed = " ".join(f"{self.stream(stream)}/{last}" for stream, last in through)
                return f"done in cell {cell} {listed}"
            case AckExpected(stream=stream, through=through, onto=onto):
                return f"ack expected{_for(onto)} {self.stream(stream)}/{through}"
            case LinkStatus(direct=direct, around=around):
                return f"gets to cells {_numbers(direct)}, around to {_numbers(around)}"
        return super().message(message)

    def stream(self, stream: StreamId) -> str:
        """One stream."""
        return f"{self.name(stream.broker)}.{stream.publisher}"


def _for(onto: int) -> str:
    return "" if onto == EVERYWHERE else f" for cell {onto}"


def _numbers(cells: Sequence[int]) -> str:
    return ",".join(map(str, cells)) or "none"


def _listed(ranges: Sequence[Range]) -> str:
    return " ".join(f"[{start},{end})" for start, end in ranges)
