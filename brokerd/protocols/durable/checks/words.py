"""How scenarios say what brokers of durable tell each other."""

from typing import Any

from brokerd.protocols.durable.messages import Beyond, Fetch, Fetched, NothingFetched, Released
from brokerd.protocols.gryphon.checks.words import GryphonWording


class DurableWording(GryphonWording):
    """See Wording."""

    def message(self, message: Any) -> str:
        """See Wording."""
        match message:
            case Released(through=through):
                told = [f"{self.stream(each)}/{self.tick(each, last)}" for each, last in through]
                return f"released {' '.join(told)}"
            case Fetch(stream=stream, ranges=ranges):
                return f"fetch {self.stream(stream)} {self.listed(stream, ranges)}"
            case Fetched(ranges=ranges, run=run):
                ticks = ",".join(self.tick(run.source, tick) for tick in run.sequences)
                within = self.listed(run.source, ranges)
                return f"fetched {self.stream(run.source)} {within} at {ticks}"
            case Beyond(stream=stream, ranges=ranges):
                return f"beyond {self.stream(stream)} {self.listed(stream, ranges)}"
            case NothingFetched(stream=stream, ranges=ranges):
                return f"nothing fetched {self.stream(stream)} {self.listed(stream, ranges)}"
        return super().message(message)
