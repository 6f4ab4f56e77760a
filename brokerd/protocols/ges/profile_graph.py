"""The profiles of all brokers, as far as a broker has received profiles.

A broker stores every profile under the largest unit around the origin that does not contain this
broker. Only keepers and gatekeepers decide by profiles; routes lead to keepers and gatekeepers.

Equal predicates share an edge, which counts them by unit. A unit stays a destination of the edge
until its count is zero. A publication is tested against each edge once.

Paper: [GES] §3 (profile graph: edges with units and their predicate counts; destinations).
Deviates: an edge stands for a whole predicate; the index shares the tests of different ones.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SubscriptionId
from brokerd.model.predicate import DecodeAttributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges.messages import Entry, ProfileStated
from brokerd.protocols.ges.state import ProfileConfirmation
from brokerd.protocols.ges.units import Unit, Version, is_inside
from brokerd.protocols.parts.selection import match_run

REPETITIONS: Final = 3
"""The most later versions that replace late versions of a subscription."""
LATE: Final = "subscription_started_late"
"""Event of a Record: a subscription has started, and the report is not exact."""


class Interest(NamedTuple):
    """The units and clients that match a publication.

    Attributes:
        places: brokers and units with matching clients.
        clients: matching clients of this broker, with the numbers of matching subscriptions.
    """

    places: tuple[Unit, ...]
    clients: Mapping[ClientId, tuple[int, ...]]

    def interested_units(self, unit: Unit) -> Sequence[Unit]:
        """Return the interested units in a unit, one level below."""
        length = len(unit)
        inner = {place[: length + 1]: None for place in self.places if is_inside(place, unit)}
        return [found for found in inner if len(found) > length]


@dataclass(slots=True)
class Profile:
    """The predicates of the clients of one broker."""

    place: Unit
    version: Version
    predicates: dict[SubscriptionId, Predicate] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Edge:
    """Equal predicates, in the profiles of any brokers.

    Attributes:
        counts: the number of subscriptions with the predicate in each unit that has any.
        local: those of clients of this broker.
    """

    counts: dict[Unit, int] = field(default_factory=dict)
    local: dict[SubscriptionId, None] = field(default_factory=dict)

    def count(self, place: Unit, change: int) -> None:
        """Change the count of a unit, which is a destination while it has any."""
        self.counts[place] = self.counts.get(place, 0) + change
        if not self.counts[place]:
            del self.counts[place]


class Profiles:
    """The profiles of all brokers, by origin."""

    def __init__(self, decode_attributes: DecodeAttributes) -> None:
        self._by_origin: dict[BrokerNumber, Profile] = {}
        self._local: dict[SubscriptionId, tuple[ClientId, int]] = {}
        self._edges: dict[Predicate, Edge] = {}
        self._index: MatchingIndex[Edge] = MatchingIndex()
        self._memo: MatchMemo[Edge, Interest] = MatchMemo(
            self._index, decode_attributes, conclude=self._conclude
        )

    def version(self, origin: BrokerNumber) -> Version | None:
        """Return the version of a broker's profile, or None without a profile."""
        known = self._by_origin.get(origin)
        return known.version if known is not None else None

    def statement(self, origin: BrokerNumber) -> ProfileStated:
        """Return the statement of a whole profile."""
        known = self._by_origin[origin]
        entries = tuple(known.predicates.items())
        return ProfileStated(origin, known.place, known.version, entries)

    def by_origin(self) -> Mapping[BrokerNumber, Profile]:
        return self._by_origin

    def origins(self) -> Iterable[BrokerNumber]:
        """Return the origins of all profiles, first received first."""
        return tuple(self._by_origin)

    def places(self) -> Iterable[Unit]:
        """Return the places of all profiles that are not empty."""
        return [known.place for known in self._by_origin.values() if known.predicates]

    def origins_in(self, unit: Unit) -> Sequence[BrokerNumber]:
        """Return the brokers in a unit with a profile that is not empty."""
        return [
            origin
            for origin, known in self._by_origin.items()
            if known.predicates and is_inside(known.place, unit)
        ]

    def size(self, origin: BrokerNumber) -> int:
        """Return the number of subscriptions in a broker's profile."""
        known = self._by_origin.get(origin)
        return len(known.predicates) if known is not None else 0

    def wants(self, origin: BrokerNumber) -> bool:
        """Return True if the profile of a broker is not empty."""
        known = self._by_origin.get(origin)
        return known is not None and bool(known.predicates)

    def replace(self, stated: ProfileStated) -> None:
        known = self._by_origin.get(stated.origin)
        if known is not None:
            self._remove(known, tuple(known.predicates))
        self._by_origin[stated.origin] = fresh = Profile(stated.place, stated.version)
        self._add(fresh, stated.predicates)

    def change(
        self,
        origin: BrokerNumber,
        version: Version,
        added: Iterable[Entry],
        removed: Iterable[SubscriptionId],
    ) -> None:
        """Apply a change to a profile, and set its version."""
        known = self._by_origin[origin]
        known.version = version
        self._remove(known, [each for each in removed if each in known.predicates])
        self._add(known, added)

    def remove(self, origin: BrokerNumber) -> None:
        known = self._by_origin.pop(origin)
        self._remove(known, tuple(known.predicates))

    def restart(self, broker: BrokerNumber, place: Unit) -> None:
        """Move this broker's own profile to another place, and remove all others."""
        for origin in self.origins():
            if origin != broker:
                self.remove(origin)
        own = self._by_origin[broker]
        for predicate in own.predicates.values():
            self._edges[predicate].count(own.place, -1)
            self._edges[predicate].count(place, +1)
        own.place = place
        self._memo.forget()

    def set_local(self, subscription: SubscriptionId, client: ClientId, number: int) -> None:
        """Record the client and number of a subscription of this broker's profile."""
        self._local[subscription] = client, number

    def match(self, run: PublicationRun, peer: Peer) -> list[Interest]:
        """Return the interest in the publications of every attribute blob of a run, in table order.

        Raises:
            RemoteProtocolError: a blob is malformed; the fault of the sending peer.
        """
        return match_run(self._memo, run, peer)

    def statistics(self) -> Mapping[str, int]:
        return {
            "subscriptions": sum(len(known.predicates) for known in self._by_origin.values()),
            "profile_edges": len(self._edges),
            "matching_hits": self._memo.hits,
            "matching_misses": self._memo.misses,
        }

    def edges(self) -> Mapping[Predicate, Mapping[Unit, int]]:
        """Return the number of subscriptions in each unit, by predicate."""
        return {predicate: edge.counts for predicate, edge in self._edges.items()}

    def _add(self, profile: Profile, entries: Iterable[Entry]) -> None:
        for subscription, predicate in entries:
            if subscription in profile.predicates:
                continue
            profile.predicates[subscription] = predicate
            edge = self._edges.get(predicate)
            if edge is None:
                edge = self._edges[predicate] = Edge()
                self._index.add(edge, predicate)
            edge.count(profile.place, +1)
            if subscription in self._local:
                edge.local[subscription] = None
        self._memo.forget()

    def _remove(self, profile: Profile, subscriptions: Collection[SubscriptionId]) -> None:
        for subscription in subscriptions:
            predicate = profile.predicates.pop(subscription)
            edge = self._edges[predicate]
            edge.count(profile.place, -1)
            edge.local.pop(subscription, None)
            self._local.pop(subscription, None)
            if not edge.counts:
                del self._edges[predicate]
                self._index.remove(edge)
        self._memo.forget()

    def _conclude(self, edges: tuple[Edge, ...]) -> Interest:
        places = dict.fromkeys(place for edge in edges for place in edge.counts)
        clients: dict[ClientId, list[int]] = {}
        for each in sorted(each for edge in edges for each in edge.local):
            client, number = self._local[each]
            clients.setdefault(client, []).append(number)
        return Interest(tuple(sorted(places)), {name: tuple(n) for name, n in clients.items()})


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
    """

    def __init__(self, purge_ns: int) -> None:
        self._purge_ns = purge_ns
        self._known: dict[SubscriptionId, Subscription] = {}

    def add(self, subscription: Subscription) -> None:
        """Add a subscription that starts once its version is confirmed."""
        self._known[subscription.subscription] = subscription

    def remove(self, subscriptions: Iterable[SubscriptionId]) -> None:
        for subscription in subscriptions:
            del self._known[subscription]

    def on_confirmed(
        self, confirmation: ProfileConfirmation, coming: Version
    ) -> tuple[list[Subscription], bool]:
        """Return the subscriptions that start, and True if a later version must be stated.

        Args:
            coming: the version after the next change of this broker's profile.
        """
        taken_ns = confirmation.taken_ns
        reached = [each for each in self._known.values() if each.version == confirmation.version]
        is_late = taken_ns >= self._purge_ns
        may_wait = [route for route in reached if is_late and route.repetitions < REPETITIONS]
        again = may_wait if confirmation.is_complete else reached
        started = [route for route in reached if route not in again]
        for route in started:
            route.path_age_ns = taken_ns if is_late else 0
        for route in again:
            route.version = coming
            route.repetitions += confirmation.is_complete
        return started, bool(again)
