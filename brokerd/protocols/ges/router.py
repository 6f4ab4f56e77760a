"""Where a publication goes from here: what is decided, and by whom it is to be decided.

A publication is on its way to units in which somebody is interested, and to gatekeepers who know in
which of their siblings somebody is. Who decides on a way writes it into the packet, as units of its
own graph; those on the way only choose how to cross the unit that they are in. So no packet goes in
circles, though no two units see the same graph.

Paper: [GES] §3 (event routing). Deviates: routes are written into packets, because decisions of
each hop on views of different units loop where the costs of links differ.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from brokerd.model.identity import BrokerNumber
from brokerd.model.record import record
from brokerd.protocols.ges.paths import Path, Paths
from brokerd.protocols.ges.units import Place, Unit, is_inside
from brokerd.protocols.ges.view import GraphView

SYSTEM: Unit = ()


@record
class Target:
    """Where a packet is to go, or who is to decide on it.

    Attributes:
        level: 0: it is for all in `unit` who are interested, but `skip`; otherwise a gatekeeper of
            this level in `unit`, which is of this level, is to say which of its siblings get it.
        unit: see there.
        skip: a unit in it that has it already; SYSTEM for none.
        frames: the ways that were decided on and not gone yet, the innermost last; each begins
            with where the packet is.
        reroutes: how often a way was given up.
    """

    level: int
    unit: Unit
    skip: Unit
    frames: tuple[Path, ...]
    reroutes: int


@dataclass(slots=True)
class Routed:
    """What becomes of a packet at one broker.

    Attributes:
        deliver: it is for clients of this broker.
        hops: the neighbours it goes to, one packet each, with what it is to do there.
        lost: what there is no way for.
    """

    deliver: bool = False
    hops: dict[BrokerNumber, list[Target]] = field(default_factory=dict)
    lost: list[Target] = field(default_factory=list)


class Router:
    """One broker's decisions.

    Args:
        reroute_limit: a packet whose way was given up so often before is lost.
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
        """Of a publication of a client here: who else is here, the own cluster, what is beyond."""
        own = self._place.address
        here = Target(0, own, SYSTEM, (), 0)
        cluster = Target(0, self._place.own(1), own, (), 0)
        beyond = [Target(1, self._place.own(1), SYSTEM, (), 0)] if self._place.top else []
        return [here, cluster, *beyond]

    def keepers(self, level: int) -> Sequence[Unit]:
        """Who in the own unit of a level knows which units in it are interested.

        Paper: [GES] §3, of whose rule little is left: the gatekeepers of the lowest level that
        leave the unit, or, where none does, the unit's controller.
        """
        for above in range(level, self._place.top + 1):
            own = self._place.own(level)
            inside = [unit for unit in self._view.gatekeepers(above) if unit[: len(own)] == own]
            if inside:
                return inside
        return [self.controller(level)]

    def controller(self, level: int) -> Unit:
        """The broker with the lowest address in the own unit of a level, or the unit it is in.

        Paper: [GES] §2 (unit controllers).
        """
        own = self._place.own(level)
        return min(unit for unit in self._view.units() if unit[: len(own)] == own)

    def route(
        self, targets: Iterable[Target], interested: Callable[[Unit], Iterable[Unit]]
    ) -> Routed:
        """Decide on what can be decided here, and send the rest on.

        Args:
            interested: of a unit, those units in it, one level below, with interested clients.
        """
        found = Routed()
        waiting = deque(targets)
        while waiting:
            came = waiting.popleft()
            target = self._advanced(came)
            arrived = came.frames[0][-1] if came.frames and not target.frames else SYSTEM
            if target.frames and not self._follow(target, found):
                target = self._given_up(target)
                if self._is_lost(target, found):
                    continue
            if not target.frames:
                waiting.extend(self._decide(target, interested, found, arrived))
        return found

    def _decide(
        self,
        target: Target,
        interested: Callable[[Unit], Iterable[Unit]],
        found: Routed,
        arrived: Unit,
    ) -> list[Target]:
        if target.level:
            return self._dispatch(target, interested, found, arrived)
        unit = target.unit
        if unit == self._place.address:
            found.deliver = True
        elif not self._place.is_in(unit):
            self._go(target, [self._place.seen_as(unit)], found, arrived)
        else:
            keepers = self.keepers(self._place.level(unit))
            if self._place.address in keepers:
                chosen = [inner for inner in interested(unit) if inner != target.skip]
                return [Target(0, inner, SYSTEM, (), target.reroutes) for inner in chosen]
            self._go(target, keepers, found, arrived)
        return []

    def _dispatch(
        self,
        target: Target,
        interested: Callable[[Unit], Iterable[Unit]],
        found: Routed,
        arrived: Unit,
    ) -> list[Target]:
        level = target.level
        gatekeepers = self._view.gatekeepers(level)
        decided: list[Target] = []
        if gatekeepers:
            if self._place.address not in gatekeepers:
                self._go(target, gatekeepers, found, arrived)
                return []
            siblings = interested(self._place.own(level + 1))
            decided = [
                Target(0, unit, SYSTEM, (), target.reroutes)
                for unit in siblings
                if unit != self._place.own(level)
            ]
        if level < self._place.top:
            above = self._place.own(level + 1)
            decided.append(Target(level + 1, above, SYSTEM, (), target.reroutes))
        return decided

    def _go(self, target: Target, candidates: Sequence[Unit], found: Routed, arrived: Unit) -> None:
        """Towards the nearest of several, those in the smallest unit around here first.

        Args:
            arrived: where the last way has ended. Who leaves that unit again has found it apart
                inside, and gives that way up: two such units would send it to each other for ever.
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
            target = self._given_up(target)
        if not self._is_lost(target, found):
            taken = self._follow(replace(target, frames=(chosen,)), found)
            assert taken, f"no link begins the way {chosen}"

    def _given_up(self, target: Target) -> Target:
        return replace(target, frames=(), reroutes=target.reroutes + 1)

    def _is_lost(self, target: Target, found: Routed) -> bool:
        if target.reroutes > self._reroute_limit:
            found.lost.append(target)
            return True
        return False

    def _advanced(self, target: Target) -> Target:
        """The target without what of its ways is behind it."""
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

    def _follow(self, target: Target, found: Routed) -> bool:
        """Go on along the innermost way; False: that is not possible any more."""
        current, onward = target.frames[-1][:2]
        if not self._place.is_in(current):
            return False
        peer = self._link_to(onward)
        if peer is None:
            inside = self._paths.leaving(current, onward)
            if inside is None or len(inside[1]) < 3:
                return False
            target = replace(target, frames=(*target.frames, inside[1]))
            peer = self._link_to(inside[1][1])
            assert peer is not None, f"no link begins the way {inside[1]}"
        found.hops.setdefault(peer, []).append(target)
        return True

    def _link_to(self, unit: Unit) -> BrokerNumber | None:
        """The neighbour in a unit over the connection that costs least."""
        own = self._place.address
        edge = (own, unit) if own < unit else (unit, own)
        behind: Mapping[tuple[int, int], int] = self._view.edges.get(edge, {})
        if not behind:
            return None
        _, (low, high) = min((factor, link) for link, factor in behind.items())
        return high if low == self._broker else low
