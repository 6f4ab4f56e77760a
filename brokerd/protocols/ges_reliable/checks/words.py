"""The wording of messages between access brokers and storages, for scenarios."""

from typing import Any

from brokerd.protocols.ges.messages import (
    ClientsCounted,
    GraphStated,
    ProfileChanged,
    ProfileReached,
    ProfileStated,
)
from brokerd.protocols.ges_reliable.messages import (
    Change,
    Changed,
    Events,
    Fetch,
    Fetched,
    LossProof,
    Store,
    Stored,
)
from brokerd.simulator.checks.step_text import Wording


class GesReliableWording(Wording):
    """See Wording."""

    def message(self, message: Any) -> str:
        match message:
            case Store(run=run):
                return f"store {self.run(run)}"
            case Stored(through=through):
                return f"stored up to {through}"
            case LossProof(through=through, acknowledged=last):
                return f"lost {through + 1} up to {last}"
            case Change(requests=requests):
                parts = [
                    f"{'with' if each.predicate else 'without'} {each.key.client}/{each.key.number}"
                    for each in requests
                ]
                return f"change: {', '.join(parts)}"
            case Changed(answers=answer):
                parts = [
                    f"{each.key.client}/{each.key.number} behind {each.after}" for each in answer
                ]
                return f"changed: {', '.join(parts)}"
            case Fetch(after=after):
                return f"fetch behind {after}"
            case Events(after=after, run=run):
                return f"events {run.first} to {run.last} behind {after}"
            case Fetched(through=through):
                return f"fetched up to {through}"
            case GraphStated():
                return "links"
            case ProfileStated() | ProfileChanged() | ProfileReached():
                return "profiles"
            case ClientsCounted(clients=clients):
                return f"about {clients} clients are here"
        return super().message(message)
