"""The wording of messages between brokers of durable, for scenarios."""

from typing import Any

from brokerd.protocols.durable.messages import (
    Beyond,
    Decommissioned,
    Deferred,
    Fetch,
    Fetched,
    Held,
    Hold,
    LetGo,
    Letter,
    Moved,
    NothingFetched,
    Released,
)
from brokerd.protocols.gryphon.checks.words import GryphonWording


class DurableWording(GryphonWording):
    """See Wording."""

    def message(self, message: Any) -> str:
        match message:
            case Released(cell=cell, through=through):
                parts = [f"{self.stream(each)}/{self.tick(each, last)}" for each, last in through]
                return f"released by cell {cell} {' '.join(parts)}"
            case Fetch(stream=stream, ranges=ranges):
                return f"fetch {self.stream(stream)} {self.listed(stream, ranges)}"
            case Fetched(ranges=ranges, run=run):
                ticks = ",".join(self.tick(run.source, tick) for tick in run.sequences)
                within = self.listed(run.source, ranges)
                return f"fetched {self.stream(run.source)} {within} at {ticks}"
            case Beyond(stream=stream, ranges=ranges):
                return f"beyond {self.stream(stream)} {self.listed(stream, ranges)}"
            case Deferred(stream=stream, ranges=ranges):
                return f"deferred {self.stream(stream)} {self.listed(stream, ranges)}"
            case NothingFetched(stream=stream, ranges=ranges):
                return f"nothing fetched {self.stream(stream)} {self.listed(stream, ranges)}"
            case Hold(behind=behind):
                kept = [f"{self.stream(each)}/{self.tick(each, last)}" for each, last in behind]
                return f"hold {_describe_owner(message)} {' '.join(kept) or 'nothing'}"
            case Held(last=last):
                there = [f"{self.stream(each)}/{self.tick(each, tick)}" for each, tick in last]
                return f"held {_describe_owner(message)} {' '.join(there) or 'nothing'}"
            case Moved():
                return f"moved {_describe_owner(message)}"
            case Decommissioned(decommissions=signed):
                return f"decommissioned {' '.join(str(broker) for broker, _ in signed)}"
            case LetGo():
                return f"released {_describe_owner(message)}"
        return super().message(message)


def _describe_owner(letter: Letter) -> str:
    return f"{letter.client}#{letter.number}.{letter.generation} {letter.at}>{letter.to}"
