"""What telling duplicates must bring about at every broker, whichever way it is done.

A broker hands no publication to a client twice on one session, nor an older one behind a newer;
the client's own check would hide it. And two ways of telling duplicates may tell different
things only where a broker has restarted. That nothing is wrongly taken for a duplicate shows
where it is confirmed: see StepChecker.

Paper: [DFT11] §VII lines 676-691.
"""

from typing import Any

from brokerd.model.identity import ClientId, SourceId
from brokerd.protocols.interface import (
    Deliver,
    Effect,
    Event,
    Record,
    SessionEstablished,
)
from brokerd.simulator.broker import SimulatedBroker
from brokerd.simulator.oracle import InvariantViolated


class FirstCopyChecker:
    """Checks each step of each broker.

    Attributes:
        disagreements: publications that two ways of telling duplicates told differently.
    """

    def __init__(self) -> None:
        self.disagreements = 0
        self._delivered: dict[tuple[int, ClientId], dict[tuple[int, SourceId], int]] = {}

    def step(self, broker: SimulatedBroker, event: Event, effects: list[Effect]) -> None:
        """See broker.Observer."""
        if type(event) is SessionEstablished and isinstance(event.peer, str):
            self._delivered[broker.number, event.peer] = {}
        for effect in effects:
            if type(effect) is Deliver:
                self._check_delivery(broker, effect)
            elif type(effect) is Record and effect.event == "dedupe_disagreement":
                self._check_disagreement(broker, effect.details)

    def _check_delivery(self, broker: SimulatedBroker, effect: Deliver) -> None:
        run = effect.item.run
        delivered = self._delivered[broker.number, effect.client]
        for number in effect.item.subscriptions:
            last = delivered.get((number, run.source), 0)
            if run.first <= last:
                raise InvariantViolated(
                    "delivered again",
                    f"{broker.name} to {effect.client}/{number}: {run.first} of "
                    f"{tuple(run.source)} behind {last}",
                )
            delivered[number, run.source] = run.last

    def _check_disagreement(self, broker: SimulatedBroker, details: Any) -> None:
        self.disagreements += details["last"] - details["first"] + 1
        if not details["restarted"]:
            raise InvariantViolated(
                "duplicate detection", f"{broker.name}: {dict(details)} with no restart"
            )
