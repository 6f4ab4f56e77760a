"""The routing decisions of a broker, and the brokers that take decisions further on.

A publication is on its route to interested units, and to gatekeepers that decide which of their
siblings are interested. A broker that decides on a route writes it into the packet, as units of
its own graph; brokers on the route only choose how to cross their unit. So no packet travels in
circles, though no two units see the same graph.

Paper: [GES] §3 (event routing). Deviates: routes are written into packets, because decisions of
each hop on views of different units loop where the costs of links differ.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges.connectivity_graph import GraphView, Paths
from brokerd.protocols.ges.keepers import Keepers
from brokerd.protocols.ges.messages import SYSTEM, RoutedPublications, Target
from brokerd.protocols.ges.profile_graph import Interest, Profiles
from brokerd.protocols.ges.units import Place, Unit, is_inside
from brokerd.protocols.interface import Deliver, Send
from brokerd.protocols.parts.selection import RunSelection


@dataclass(slots=True)
class RoutingResult:
    """The result of routing a packet at a broker.

    Attributes:
        deliver: True for clients of this broker.
        hops: the next neighbours, with the targets to follow there; a packet per neighbour.
        lost: targets without a path.
    """

    deliver: bool = False
    hops: dict[BrokerNumber, list[Target]] = field(default_factory=dict)
    lost: list[Target] = field(default_factory=list)


class Router:
    """The routing decisions of a broker.

    Args:
        reroute_limit: a packet with more abandoned paths is lost.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        place: Place,
        view: GraphView,
        paths: Paths,
        reroute_limit: int,
    ) -> None:
        self._broker = broker
        self._place = place
        self._view = view
        self._paths = paths
        self._reroute_limit = reroute_limit

    def first_targets(self) -> Sequence[Target]:
        """Return the targets of a local publication: this broker, the cluster, and units beyond."""
        own = self._place.address
        here = Target(0, own, SYSTEM, (), 0)
        cluster = Target(0, self._place.own_unit(1), own, (), 0)
        beyond = [Target(1, self._place.own_unit(1), SYSTEM, (), 0)] if self._place.top else []
        return [here, cluster, *beyond]

    def keepers(self, level: int) -> Sequence[Unit]:
        """Return the keepers of the own unit of a level.

        Paper: [GES] §3, with a reduced rule: the gatekeepers of the lowest level that leave the
        unit, or, where none does, the unit's controller.
        """
        for above in range(level, self._place.top + 1):
            own = self._place.own_unit(level)
            inside = [unit for unit in self._view.gatekeepers(above) if unit[: len(own)] == own]
            if inside:
                return inside
        return [self.controller(level)]

    def controller(self, level: int) -> Unit:
        """Return the broker with the lowest address in the own unit of a level, or its unit.

        Paper: [GES] §2 (unit controllers).
        """
        own = self._place.own_unit(level)
        return min(unit for unit in self._view.units() if unit[: len(own)] == own)

    def route(
        self, targets: Iterable[Target], interested: Callable[[Unit], Iterable[Unit]]
    ) -> RoutingResult:
        """Decide on targets that can be decided here, and route the rest onwards.

        Args:
            interested: returns, for a unit, the inner units of the level below with interested
                clients.
        """
        found = RoutingResult()
        waiting = deque(targets)
        while waiting:
            arrival = waiting.popleft()
            target = self._advance(arrival)
            arrived = arrival.frames[0][-1] if arrival.frames and not target.frames else SYSTEM
            if target.frames and not self._follow(target, found):
                target = self._abandon(target)
                if self._is_lost(target, found):
                    continue
            if not target.frames:
                waiting.extend(self._decide(target, interested, found, arrived))
        return found

    def _decide(
        self,
        target: Target,
        interested: Callable[[Unit], Iterable[Unit]],
        found: RoutingResult,
        arrived: Unit,
    ) -> list[Target]:
        if target.level:
            return self._dispatch(target, interested, found, arrived)
        unit = target.unit
        if unit == self._place.address:
            found.deliver = True
        elif not self._place.is_in(unit):
            self._route_nearest(target, [self._place.outermost_unit_of(unit)], found, arrived)
        else:
            keepers = self.keepers(self._place.level(unit))
            if self._place.address in keepers:
                chosen = [inner for inner in interested(unit) if inner != target.skip]
                return [Target(0, inner, SYSTEM, (), target.reroutes) for inner in chosen]
            self._route_nearest(target, keepers, found, arrived)
        return []

    def _dispatch(
        self,
        target: Target,
        interested: Callable[[Unit], Iterable[Unit]],
        found: RoutingResult,
        arrived: Unit,
    ) -> list[Target]:
        level = target.level
        gatekeepers = self._view.gatekeepers(level)
        decided: list[Target] = []
        if gatekeepers:
            if self._place.address not in gatekeepers:
                self._route_nearest(target, gatekeepers, found, arrived)
                return []
            siblings = interested(self._place.own_unit(level + 1))
            decided = [
                Target(0, unit, SYSTEM, (), target.reroutes)
                for unit in siblings
                if unit != self._place.own_unit(level)
            ]
        if level < self._place.top:
            above = self._place.own_unit(level + 1)
            decided.append(Target(level + 1, above, SYSTEM, (), target.reroutes))
        return decided

    def _route_nearest(
        self, target: Target, candidates: Sequence[Unit], found: RoutingResult, arrived: Unit
    ) -> None:
        """Route to the nearest of several units, first those in the smallest unit around here.

        Args:
            arrived: the end of the last path. A route that leaves that unit again has found the
                unit partitioned inside and counts as abandoned: two units of that kind would
                exchange the packet for ever.
        """
        ways = [
            (self._place.level(unit), *way)
            for unit in candidates
            if (way := self._paths.best(unit)) is not None
        ]
        if not ways:
            found.lost.append(target)
            return
        chosen = min(ways)[2]
        if not is_inside(chosen[-1], arrived):
            target = self._abandon(target)
        if not self._is_lost(target, found):
            taken = self._follow(replace(target, frames=(chosen,)), found)
            assert taken, f"no link begins the way {chosen}"

    def _abandon(self, target: Target) -> Target:
        return replace(target, frames=(), reroutes=target.reroutes + 1)

    def _is_lost(self, target: Target, found: RoutingResult) -> bool:
        if target.reroutes > self._reroute_limit:
            found.lost.append(target)
            return True
        return False

    def _advance(self, target: Target) -> Target:
        """Return the target without the finished parts of its paths."""
        if not target.frames:
            return target
        frames = list(target.frames)
        while frames:
            way = frames[-1]
            if len(way) > 1 and self._place.is_in(way[1]):
                frames[-1] = way[1:]
            elif len(way) <= 1:
                frames.pop()
            else:
                break
        return replace(target, frames=tuple(frames))

    def _follow(self, target: Target, found: RoutingResult) -> bool:
        """Continue along the innermost path; return False if that has become impossible."""
        current, onward = target.frames[-1][:2]
        if not self._place.is_in(current):
            return False
        peer = self._link_to(onward)
        if peer is None:
            inside = self._paths.paths_out_of(current, onward)
            if inside is None or len(inside[1]) < 3:
                return False
            target = replace(target, frames=(*target.frames, inside[1]))
            peer = self._link_to(inside[1][1])
            assert peer is not None, f"no link begins the way {inside[1]}"
        found.hops.setdefault(peer, []).append(target)
        return True

    def _link_to(self, unit: Unit) -> BrokerNumber | None:
        """Return the neighbour in a unit over the connection with the lowest cost."""
        own = self._place.address
        edge = (own, unit) if own < unit else (unit, own)
        behind: Mapping[tuple[int, int], int] = self._view.edges.get(edge, {})
        if not behind:
            return None
        _, (low, high) = min((factor, link) for link, factor in behind.items())
        return high if low == self._broker else low


HOPS_PER_LEVEL = 32
"""Links per level; a publication that has crossed more has travelled in a circle."""


class PublicationForwarding:
    """The forwarding of publications by one broker.

    Args:
        connected: the clients that are connected, as a live view.
    """

    def __init__(
        self,
        place: Place,
        router: Router,
        profiles: Profiles,
        keepers: Keepers,
        connected: Collection[ClientId],
    ) -> None:
        self._place = place
        self._keepers = keepers
        self._router = router
        self._profiles = profiles
        self._connected = connected
        self._delivered: dict[SourceId, int] = {}
        self.counters = dict.fromkeys(
            (
                "publications_received",
                "publications_forwarded",
                "publications_delivered",
                "publications_without_route",
                "duplicates_received",
                "publications_flooded",
            ),
            0,
        )

    def publish(self, run: PublicationRun, client: ClientId) -> list[Send | Deliver]:
        """Route publications of a client of this broker."""
        return self._forward(run, self._router.first_targets(), 0, client)

    def on_routed(self, peer: BrokerNumber, message: RoutedPublications) -> list[Send | Deliver]:
        """Route publications that a neighbour has forwarded.

        Raises:
            RemoteProtocolError: a target is impossible; the fault of the neighbour.
        """
        self._check(peer, message)
        return self._forward(message.run, message.targets, message.hops, peer)

    def _check(self, peer: BrokerNumber, message: RoutedPublications) -> None:
        if message.hops > HOPS_PER_LEVEL * len(self._place.address):
            raise RemoteProtocolError(
                peer, f"{message.run.source} arrived over {message.hops} links"
            )
        for target in message.targets:
            empty = not all(target.frames) or not all(map(all, map(_lengths, target.frames)))
            if empty or target.level > self._place.top:
                raise RemoteProtocolError(peer, f"nothing can be done for {target}"[:300])

    def _forward(
        self, run: PublicationRun, targets: Sequence[Target], hops: int, origin: Peer
    ) -> list[Send | Deliver]:
        self.counters["publications_received"] += len(run)
        undecided = _EmptyInterest()
        routed = self._router.route(targets, undecided.interested)
        if not (undecided.is_requested or routed.deliver):
            return [*self._send(run, routed, hops)]
        interests = self._profiles.match(run, origin)
        effects: list[Send | Deliver] = []
        for interest, stretch in RunSelection(run).stretches(interests):
            decision = _Decision(interest, self._keepers)
            routed = self._router.route(targets, decision.choose)
            effects += self._send(stretch, routed, hops)
            self.counters["publications_flooded"] += len(stretch) * decision.is_flooded
            if routed.deliver:
                effects += self._deliver(stretch, interest)
        return effects

    def _send(self, run: PublicationRun, routed: RoutingResult, hops: int) -> list[Send]:
        if routed.lost:
            self.counters["publications_without_route"] += len(run)
        self.counters["publications_forwarded"] += len(run) * len(routed.hops)
        return [
            Send(peer, RoutedPublications(run, tuple(targets), hops + 1))
            for peer, targets in routed.hops.items()
        ]

    def _deliver(self, run: PublicationRun, interest: Interest) -> list[Deliver]:
        """Deliver publications, except those overtaken by a later publication of their source."""
        latest = self._delivered.get(run.source, 0)
        fresh = [place for place, number in enumerate(run.sequences) if number > latest]
        self.counters["duplicates_received"] += len(run) - len(fresh)
        if not fresh:
            return []
        if len(fresh) < len(run):
            run = run.select(fresh)
        self._delivered[run.source] = run.last
        deliveries = [
            Deliver(client, Deliveries(run, numbers))
            for client, numbers in interest.clients.items()
            if client in self._connected
        ]
        self.counters["publications_delivered"] += len(run) * len(deliveries)
        return deliveries


class _Decision:
    """The decision about the units that receive publications with one interest.

    Units of which this broker lacks profiles receive them, too.

    Paper: [GES] §3 (a unit receives events that a client inside wants).
    """

    def __init__(self, interest: Interest, keepers: Keepers) -> None:
        self.is_flooded = False
        self._interest = interest
        self._keepers = keepers

    def choose(self, unit: Unit) -> Sequence[Unit]:
        """Return the units in a unit, one level below, that receive the publications."""
        found = self._interest.interested_units(unit)
        if not self._keepers.is_paper:
            return found
        more = [each for each in self._keepers.incomplete(unit) if each not in found]
        self.is_flooded |= bool(more)
        return [*found, *more]


class _EmptyInterest:
    """An empty interest that records if a router has requested it."""

    def __init__(self) -> None:
        self.is_requested = False

    def interested(self, unit: Unit) -> Iterable[Unit]:
        self.is_requested = True
        return ()


def _lengths(frame: tuple[Unit, ...]) -> list[int]:
    return [len(unit) for unit in frame]
