"""Checks of partition tags at the start of subscriptions, against the real sessions.

A home broker stores the tags of a new subscription. Without a check, a broker
with too many tags would be owed less. So the tags are compared with the sessions: a
source may be tagged only if, at some moment while the subscription spread, a broker on
the way could reach neither the source's broker, nor a nearer broker, within its radius.

Reachability is computed here from the starts, ends and failures of sessions only;
a first attempt counts as neither reachable nor unreachable.

Paper: [DFT11] §III lines 320-336, §IV lines 356-361.
"""

from collections.abc import Sequence

from brokerd.model.identity import BrokerNumber, SubscriptionId
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree.state import SUBSCRIPTIONS
from brokerd.protocols.interface import (
    Commit,
    Effect,
    Event,
    OpenFailed,
    SessionEstablished,
    SessionLost,
    Started,
    TopologyGrown,
    TopologyShrunk,
)
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

Unreachable = frozenset[BrokerNumber]

_OF_SESSIONS = (
    Started,
    SessionEstablished,
    SessionLost,
    OpenFailed,
    TopologyGrown,
    TopologyShrunk,
)


class Outlook:
    """The reachable brokers of a broker, now and at every earlier moment.

    Args:
        radius: of the neighbourhood: Δ.
    """

    def __init__(self, tree: PrimaryTree, broker: BrokerNumber, radius: int) -> None:
        self._tree = tree
        self._broker = broker
        self._radius = radius
        self._up: dict[BrokerNumber, None] = {}
        self._lost: dict[BrokerNumber, None] = {}
        self._tried: dict[BrokerNumber, None] = {}
        self._past: list[Unreachable] = []

    @property
    def present(self) -> int:
        """The number of the present moment, among all changes of the reachable brokers."""
        return max(0, len(self._past) - 1)

    def take(self, event: Event) -> None:
        """Record an event of a session with another broker."""
        if type(event) is Started:
            self._up, self._lost, self._tried = {}, {}, {}
        elif type(event) is SessionEstablished and isinstance(event.peer, int):
            self._up[event.peer] = None
            self._lost.pop(event.peer, None)
        elif type(event) is SessionLost and isinstance(event.peer, int):
            self._up.pop(event.peer, None)
            self._lost[event.peer] = None
        elif type(event) is OpenFailed and isinstance(event.peer, int):
            if event.peer not in self._tried or event.peer in self._up:
                return
            self._lost[event.peer] = None
        self._look_around()
        now = frozenset(self._lost)
        if not self._past or self._past[-1] != now:
            self._past.append(now)

    def is_cut_off_since(self, source: BrokerNumber, since: int, newcomers: BrokerNumber) -> bool:
        """Return True if the broker had no path to a source's broker at a moment since then."""
        path = self._tree.path(self._broker, source)
        if source >= newcomers:  # it has the subscriptions of brokers before it
            return any(unreachable & set(path) for unreachable in self._past[since:])
        end = path[min(len(path) - 1, self._radius)]
        return any(end in unreachable for unreachable in self._past[since:])

    def _look_around(self) -> None:
        """Update the unreachable brokers; brokers behind a reachable broker are not dialled."""
        found: dict[BrokerNumber, None] = {}
        tried: dict[BrokerNumber, None] = {}
        for other, path in self._tree.ball(self._broker, self._radius).items():
            if len(path) == 2 or path[-2] in found:
                tried[other] = None
                if other in self._lost:
                    found[other] = None
        self._tried, self._lost = tried, found


class SeparationChecker:
    """Checks of the tags of subscriptions at their start."""

    def __init__(self, tree: PrimaryTree, radius: int) -> None:
        self._tree = tree
        self._radius = radius
        self._outlooks: dict[BrokerNumber, Outlook] = {}
        self._issued: dict[SubscriptionId, dict[BrokerNumber, int]] = {}
        self._judged: dict[SubscriptionId, None] = {}

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        """Record a core's step."""
        if type(event) in _OF_SESSIONS:
            outlook = self._outlooks.get(broker.number)
            if outlook is None:
                outlook = Outlook(self._tree, broker.number, self._radius)
                self._outlooks[broker.number] = outlook
            outlook.take(event)
        for effect in effects:
            for change in effect.changes if type(effect) is Commit else ():
                if change.table == SUBSCRIPTIONS and change.value is not None:
                    incarnation, number = change.value[:2]
                    subscription = SubscriptionId(broker.number, incarnation, number)
                    if subscription not in self._issued:
                        self._issued[subscription] = {
                            number: outlook.present
                            for number, outlook in sorted(self._outlooks.items())
                        }

    def judge(
        self, subscription: SubscriptionId, name: str, closed: frozenset[BrokerNumber]
    ) -> None:
        """Check the tagged brokers of a started subscription; later calls for it do nothing.

        Raises:
            InvariantViolated: some of them were never cut off.
        """
        if subscription in self._judged:
            return
        self._judged[subscription] = None
        since = self._issued[subscription]
        wrong = [
            source for source in sorted(closed) if not self._can_close(subscription, source, since)
        ]
        if wrong:
            raise InvariantViolated(
                "gate closed needlessly",
                f"{name} starts without {wrong}, although it was never partitioned from it",
            )

    def _can_close(
        self, subscription: SubscriptionId, source: BrokerNumber, since: dict[BrokerNumber, int]
    ) -> bool:
        newcomers = self._tree.newcomers
        return any(
            self._outlooks[broker].is_cut_off_since(source, since.get(broker, 0), newcomers)
            for broker in self._tree.path(subscription.home, source)[:-1]
            if broker in self._outlooks
        )
