"""The subscriptions of this broker's clients, and how far their profile versions have spread."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from brokerd.model.client_messages import Subscribed
from brokerd.model.identity import ClientId, SubscriptionId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges.profile_graph import Profiles
from brokerd.protocols.ges.propagation import Propagation
from brokerd.protocols.ges.router import PublicationForwarding
from brokerd.protocols.ges.units import Version
from brokerd.protocols.interface import Instant
from brokerd.protocols.parts.event_machine import EventMachine

REPETITIONS: Final = 3
"""The most later versions that replace late versions of a subscription."""
LATE: Final = "subscription_started_late"
"""Event of a Record: a subscription has started, and the report is not exact."""


@dataclass(slots=True)
class Subscription:
    """A client's subscription, and the version of this broker's profile that it starts with.

    Attributes:
        repetitions: the number of later versions that have replaced a late version.
        path_age_ns: see Subscribed.
    """

    subscription: SubscriptionId
    predicate: Predicate
    client: ClientId
    number: int
    version: Version
    repetitions: int = 0
    path_age_ns: int = 0


class LocalSubscriptions:
    """The subscriptions of all clients of this broker.

    An incomplete version proves nothing, because brokers behind a neighbour that restarted or was
    not awaited any more may lack it although they have other paths. A later version is stated
    instead, as often as that happens.

    A complete version that took `purge_ns` or longer is late: brokers that have had a path for
    longer than `purge_ns`, and not for as long as that took, may lack it. A later version is
    stated instead, up to `REPETITIONS` times. Where messages take so long that none is in time, no
    version can be, so the subscription then starts with a late one, and the client is notified of
    the age of the paths that count.

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
        if started:
            answer = Subscribed(route.number, "started", path_age_ns=route.path_age_ns)
        else:
            answer = Subscribed(route.number, "pending")
        self._machine.send(route.client, answer)

    def forget(self, subscriptions: list[SubscriptionId], origin: ClientId) -> None:
        """See Forwarding."""
        for subscription in subscriptions:
            del self._known[subscription]
        if subscriptions:
            self._propagation.change_own((), subscriptions)

    def forward(self, run: PublicationRun, origin: ClientId) -> None:
        """See Forwarding."""
        self._forwarding.publish(run, origin)

    def _on_reached(self, version: Version, taken_ns: Instant, is_complete: bool) -> None:
        reached = [route for route in self._known.values() if route.version == version]
        is_late = taken_ns >= self._purge_ns
        may_wait = [route for route in reached if is_late and route.repetitions < REPETITIONS]
        again = may_wait if is_complete else reached
        for route in reached:
            if route not in again:
                self._start(route, taken_ns if is_late else 0)
        if again:
            coming = self._propagation.next_version()
            for route in again:
                route.version = coming
                route.repetitions += is_complete
            self._propagation.change_own((), ())

    def _start(self, route: Subscription, path_age_ns: Instant) -> None:
        route.path_age_ns = path_age_ns
        if path_age_ns:
            about = {"client": route.client, "number": route.number}
            self._machine.record(LATE, **about, path_age_ns=path_age_ns)
        if self._reaches(route.client):
            self.tell(route)
