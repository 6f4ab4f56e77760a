"""How scenarios say what brokers of gryphon tell each other."""

from collections.abc import Sequence
from typing import Any

from brokerd.model.identity import StreamId
from brokerd.protocols.gryphon.intervals import Range
from brokerd.protocols.gryphon.messages import AckExpected, Done, Events, Nack, Silent
from brokerd.simulator.checks.wording import Wording


class GryphonWording(Wording):
    """See Wording; a stream is called after its broker and the pubend's number there."""

    def message(self, message: Any) -> str:
        """See Wording."""
        match message:
            case Events(start=start, end=end, again=again, run=run):
                which = "again" if again else "first"
                ticks = ",".join(map(str, run.sequences))
                return f"events {which} {self.stream(run.source)} [{start},{end}) at {ticks}"
            case Silent(stream=stream, ranges=ranges):
                return f"silence {self.stream(stream)} {_listed(ranges)}"
            case Nack(stream=stream, ranges=ranges):
                return f"nack {self.stream(stream)} {_listed(ranges)}"
            case Done(through=through):
                listed = " ".join(f"{self.stream(stream)}/{last}" for stream, last in through)
                return f"done {listed}"
            case AckExpected(stream=stream, through=through):
                return f"ack expected {self.stream(stream)}/{through}"
        return super().message(message)

    def stream(self, stream: StreamId) -> str:
        """One stream."""
        return f"{self.name(stream.broker)}.{stream.publisher}"


def _listed(ranges: Sequence[Range]) -> str:
    return " ".join(f"[{start},{end})" for start, end in ranges)
