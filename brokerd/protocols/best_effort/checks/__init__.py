"""Simulation of best_effort: the wording of its messages, and one rule."""

from collections.abc import Sequence
from typing import Any

from brokerd.model.client_messages import Subscribe, Subscribed
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SubscriptionId
from brokerd.protocols.best_effort.messages import (
    ForwardedPublications,
    SubscriptionsOffered,
    SubscriptionsReached,
    SubscriptionsWithdrawn,
)
from brokerd.protocols.interface import Effect, Event, MessageReceived, Send
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks, SimulatedProtocol
from brokerd.simulator.checks.step_text import Wording
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView


class BestEffortWording(Wording):
    """See Wording."""

    def message(self, message: Any) -> str:
        match message:
            case ForwardedPublications(run=run):
                return f"publication {self.run(run)}"
            case SubscriptionsOffered(subscriptions=entries, complete=complete):
                listed = " ".join(self.subscription(entry[0]) for entry in entries) or "nothing"
                return f"{'all subscriptions' if complete else 'subscription'}: {listed}"
            case SubscriptionsReached(subscriptions=entries):
                return f"has {' '.join(map(self.subscription, entries))}"
            case SubscriptionsWithdrawn(subscriptions=entries):
                return f"withdraws {' '.join(map(self.subscription, entries))}"
        return super().message(message)


class StartChecks(ProtocolChecks):
    """Checks of best_effort.

    - started early: when a subscription is reported as started, every live broker has a route to
      it, unless a broker on the way has restarted since the request: a restart forgets routes.
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self._requested: dict[SubscriptionId, dict[BrokerNumber, int]] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[ClientId, int]]:
        if type(event) is MessageReceived and type(event.message) is Subscribe:
            requested = _subscription(broker, event.peer, event.message.number)
            if requested is not None and requested not in self._requested:
                incarnations = {each.number: each.incarnation for each in self.world.brokers()}
                self._requested[requested] = incarnations
        for effect in effects:
            message = effect.message if isinstance(effect, Send) else None
            if type(message) is Subscribed and message.state == "started":
                assert isinstance(effect, Send), f"{effect} reports {message}"
                self._check(broker, effect.peer, message)
        return ()

    def _check(self, broker: BrokerView, client: Peer, message: Subscribed) -> None:
        subscription = _subscription(broker, client, message.number)
        assert subscription is not None, f"{broker.name} has no {client}/{message.number}"
        brokers, before = self.world.brokers(), self._requested[subscription]
        for there in brokers:
            core: Any = there.core
            path = self.world.graph.path(broker.number, there.number)
            restarted = [n for n in path if brokers[n].incarnation != before.get(n)]
            if there.alive and not restarted and subscription not in core._routes._routes:
                raise InvariantViolated(
                    "started early",
                    f"{broker.name} reports {client}/{message.number} as started, and "
                    f"{there.name} has no route to it",
                )


def _subscription(broker: BrokerView, client: Peer, number: int) -> SubscriptionId | None:
    core: Any = broker.core
    known = core._table.clients.get(client)
    local = known.subscriptions.get(number) if known is not None else None
    found: SubscriptionId | None = local.subscription if local is not None else None
    return found


SIMULATED = SimulatedProtocol(
    make_checks=StartChecks, checks_always=True, make_wording=BestEffortWording
)
