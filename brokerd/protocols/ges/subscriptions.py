"""The subscriptions of this broker's clients, and how far their profile versions have spread."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from brokerd.model.client_messages import Subscribed
from brokerd.model.identity import ClientId, SubscriptionId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges.forwarding import PublicationForwarding
from brokerd.protocols.ges.profiles import Profiles
from brokerd.protocols.ges.propagation import Propagation
from brokerd.protocols.ges.versions import Version
from brokerd.protocols.interface import Instant
from brokerd.protocols.parts.event_machine import EventMachine

REPETITIONS: Final = 3
"""The most later versions that a subscription waits for."""


@dataclass(slots=True)
class Subscription:
    """A client's subscription, and the version of this broker's profile that it starts with.

    Attributes:
        repetitions: the number of later versions that have replaced that version.
    """

    subscription: SubscriptionId
    predicate: Predicate
    client: ClientId
    number: int
    version: Version
    repetitions: int = 0


class LocalSubscriptions:
    """The subscriptions of all clients of this broker.

    A neighbour that forwarded a version and then lost all sessions is awaited until `purge_ns` is
    over, and brokers behind may lack the version although they have other paths. So a version that
    took `purge_ns` or longer proves nothing, and a later version is stated instead, up to
    `REPETITIONS` times: where every answer takes so long, no subscription would start otherwise.

    Args:
        purge_ns: the time without a session after which a neighbour is not awaited any more.
        reaches: returns True if a client is connected.
    """

    def __init__(
        self,
        machine: EventMachine,
        profiles: Profiles,
        propagation: Propagation,
        forwarding: PublicationForwarding,
        reaches: Callable[[ClientId], bool],
        purge_ns: int,
    ) -> None:
        self._machine = machine
        self._profiles = profiles
        self._propagation = propagation
        self._forwarding = forwarding
        self._reaches = reaches
        self._purge_ns = purge_ns
        self._known: dict[SubscriptionId, Subscription] = {}
        propagation.reached = self._on_reached

    def add_local(
        self, client: ClientId, number: int, subscription: SubscriptionId, predicate: Predicate
    ) -> Subscription:
        """See Forwarding."""
        self._profiles.set_local(subscription, client, number)
        coming = self._propagation.next_version()
        route = Subscription(subscription, predicate, client, number, coming)
        self._known[subscription] = route
        self._propagation.change_own([(subscription, predicate)], ())
        if not self._propagation.is_everywhere(coming):
            self.tell(route)
        return route

    def tell(self, route: Subscription) -> None:
        """See Forwarding."""
        started = self._propagation.is_everywhere(route.version)
        state = Subscribed(route.number, "started" if started else "pending")
        self._machine.send(route.client, state)

    def forget(self, subscriptions: list[SubscriptionId], origin: ClientId) -> None:
        """See Forwarding."""
        for subscription in subscriptions:
            del self._known[subscription]
        if subscriptions:
            self._propagation.change_own((), subscriptions)

    def forward(self, run: PublicationRun, origin: ClientId) -> None:
        """See Forwarding."""
        self._forwarding.publish(run, origin)

    def _on_reached(self, version: Version, taken_ns: Instant) -> None:
        reached = [route for route in self._known.values() if route.version == version]
        is_late = taken_ns >= self._purge_ns
        again = [route for route in reached if is_late and route.repetitions < REPETITIONS]
        for route in reached:
            if route not in again and self._reaches(route.client):
                self.tell(route)
        if again:
            coming = self._propagation.next_version()
            for route in again:
                route.version = coming
                route.repetitions += 1
            self._propagation.change_own((), ())
