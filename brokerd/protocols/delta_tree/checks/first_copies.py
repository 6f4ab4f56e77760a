"""Checks of duplicate detection at every broker, for any scheme.

A broker delivers no publication twice to a client on a session, and none out of order;
the client's own check would hide that. Two schemes may disagree only if a broker has restarted. A
first copy that counts as a duplicate is found at its confirmation: see StepChecker.

Paper: [DFT11] §VII lines 676-691.
"""

from typing import Any

from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import ClientId, SourceId
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.interface import (
    Deliver,
    Effect,
    Event,
    MessageReceived,
    Record,
    SessionEstablished,
)
from brokerd.simulator.checks.oracle import Oracle
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView


class FirstCopyChecker:
    """Checks of every step of every broker.

    Attributes:
        disagreements: number of publications with a disagreement between two schemes.
    """

    def __init__(self, tree: PrimaryTree, oracle: Oracle) -> None:
        self.disagreements = 0
        self._tree = tree
        self._oracle = oracle
        self._delivered: dict[tuple[int, ClientId], dict[tuple[int, SourceId], list[int]]] = {}

    def step(self, broker: BrokerView, event: Event, effects: list[Effect]) -> None:
        if type(event) is SessionEstablished and isinstance(event.peer, str):
            self._delivered[broker.number, event.peer] = {}
        for effect in effects:
            if type(effect) is Deliver and isinstance(effect.item, Deliveries):
                self._check_delivery(broker, effect.client, effect.item)
            elif type(effect) is Record and effect.event == "dedupe_disagreement":
                assert type(event) is MessageReceived, f"{effect} on {event}"
                self._check_disagreement(broker, event, effect.details)

    def _check_delivery(self, broker: BrokerView, client: ClientId, item: Deliveries) -> None:
        run = item.run
        delivered = self._delivered[broker.number, client]
        for number in item.subscriptions:
            known = delivered.setdefault((number, run.source), [])
            if known and run.first <= known[-1]:
                again = not set(known).isdisjoint(run.sequences)
                raise InvariantViolated(
                    "delivered again" if again else "delivered out of order",
                    f"{broker.name} to {client}/{number}: {run.first} of "
                    f"{tuple(run.source)} after {known[-1]}",
                )
            known.extend(run.sequences)

    def _check_disagreement(self, broker: BrokerView, event: MessageReceived, details: Any) -> None:
        """I6: no disagreement without a restart, except on publications not owed behind.

        A subscription may be in the table here and not yet at a broker of the window. A publication
        that the other broker has stamped and not forwarded for the subscription may arrive later
        than the stamp indicates; it lies below the cut of the subscription, and is never delivered.
        """
        run = event.message.run
        disputed = [s for s in run.sequences if details["first"] <= s <= details["last"]]
        self.disagreements += len(disputed)
        if details["restarted"]:
            return
        peer = event.peer
        assert isinstance(peer, int), f"{peer} sends copies"
        wrong = details["old_by"] == "source"
        for sequence in disputed:
            for client in self._oracle.list_missing_subscribers(run.source, sequence):
                path = self._tree.path(peer, self._oracle.homes[client])
                back = self._tree.path(peer, run.source.broker)
                wrong |= broker.number in path and broker.number not in back
        if wrong:
            raise InvariantViolated(
                "duplicate detection", f"{broker.name}: {dict(details)}, without a restart"
            )
