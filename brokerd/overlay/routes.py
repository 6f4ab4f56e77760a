"""Routes: the brokers and links that a stream may pass from its origin to its home.

A route is computed before any failure, and tested afterwards with `is_open`. Some steps need all
parts (a path), others any of several (a bundle).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeGuard

from brokerd.model.identity import BrokerNumber

Link = tuple[BrokerNumber, BrokerNumber]
"""The smaller number first."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A step over any one of several links, from any end that was reached before.

    Attributes:
        may_stay: True if the step may be left out, too.
    """

    links: tuple[Link, ...]
    may_stay: bool = False


@dataclass(frozen=True, slots=True)
class Unit:
    """A step from any broker of a part of the system to any other, over links inside only.

    A part that was left is not entered again: each sub-unit is passed at most once, and passed from
    one sibling to another only while its remaining brokers, and those of each unit inside, are
    connected inside. A route may begin or end in a connected part of a disconnected unit.

    Attributes:
        brokers: all brokers of the unit.
        links: links between different sub-units; without sub-units, between brokers.
        units: sub-units; none if the unit consists of brokers.
    """

    brokers: tuple[BrokerNumber, ...]
    links: tuple[Link, ...]
    units: tuple["Unit", ...] = ()


Step = BrokerNumber | Link | Bundle | Unit


@dataclass(frozen=True, slots=True)
class Route:
    """The brokers and links that a stream needs; the first step and the last step are brokers.

    A link leads to the end that was not reached before.
    """

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        ends = (self.steps[:1], self.steps[-1:])
        assert all(isinstance(end[0], int) for end in ends if end), f"ends of {self.steps}"
        assert self.steps, "a route needs a broker"

    def extend(self, onward: "Route") -> "Route":
        """Return this route followed by a route from its end."""
        here, there = self.steps[-1], onward.steps[0]
        assert here == there, f"a route to {here} continues from {there}"
        return Route((*self.steps, *onward.steps[1:]))


@dataclass(frozen=True, slots=True)
class FailedElements:
    """Brokers and links that have failed at the same time.

    Attributes:
        brokers: in ascending order.
        links: links between brokers that may be present.
        latest: a broker without which the other losses are confirmed to be tolerated.
    """

    brokers: tuple[BrokerNumber, ...]
    links: tuple[Link, ...] = ()
    latest: BrokerNumber | None = None


def is_open(
    route: Route, lost_brokers: Iterable[BrokerNumber] = (), lost_links: Iterable[Link] = ()
) -> bool:
    """Return True if all parts that a route needs are present, or one of several alternatives."""
    losses = _Losses(
        frozenset(lost_brokers), frozenset((min(link), max(link)) for link in lost_links)
    )
    first, *onward = route.steps
    assert _is_broker(first)
    reached = losses.remaining((first,))
    for step in onward:
        reached = _step(step, reached, losses)
    return bool(reached)


def list_possible_elements(route: Route) -> tuple[tuple[BrokerNumber, ...], tuple[Link, ...]]:
    """Return the brokers and links that a stream may pass, in ascending order.

    The result has all parts of a path, and the parts of a bundle and of a unit that lie on any path
    between the ends of the route that passes no broker twice. Links are (from, to), in both
    directions except for links into the origin and out of the home.
    """
    origin, home = route.steps[0], route.steps[-1]
    assert _is_broker(origin)
    assert _is_broker(home)
    if origin == home:
        return (origin,), ()
    links = _block_of(sorted({*_links_of(route.steps)}), origin, home)
    brokers = sorted({broker for link in links for broker in link})
    ways = sorted({way for a, b in links for way in ((a, b), (b, a))})
    return tuple(brokers), tuple(way for way in ways if way[1] != origin and way[0] != home)


def _links_of(steps: Iterable[Step]) -> Iterator[Link]:
    for step in steps:
        if isinstance(step, tuple):
            yield step
        elif isinstance(step, Bundle | Unit):
            yield from step.links
            yield from _links_of(step.units if isinstance(step, Unit) else ())


def _block_of(links: Iterable[Link], origin: BrokerNumber, home: BrokerNumber) -> list[Link]:
    """Return the links on paths between two brokers that pass no broker twice.

    With a link between the two brokers, these links lie on a ring with that link: a block of the
    graph, found by a depth-first walk from one of the brokers (Hopcroft and Tarjan).
    """
    direct = (min(origin, home), max(origin, home))
    near: dict[BrokerNumber, list[BrokerNumber]] = {}
    given = [*links]
    for a, b in dict.fromkeys((direct, *given)):
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    depth, low = {origin: 0}, {origin: 0}
    passed: list[Link] = []
    walk = [(origin, iter(near[origin]))]
    while True:
        broker, rest = walk[-1]
        other = next(rest, None)
        if other is None:
            walk.pop()
            above = walk[-1][0]
            low[above] = min(low[above], low[broker])
            if low[broker] >= depth[above]:
                block = passed[passed.index((above, broker)) :]
                del passed[-len(block) :]
                found = {(min(link), max(link)) for link in block}
                if direct in found:
                    return [link for link in given if link in found]
        elif other not in depth:
            passed.append((broker, other))
            depth[other] = low[other] = depth[broker] + 1
            walk.append((other, iter(near[other])))
        elif depth[other] < depth[broker] - 1:
            passed.append((broker, other))
            low[broker] = min(low[broker], depth[other])


@dataclass(frozen=True, slots=True)
class _Losses:
    brokers: frozenset[BrokerNumber]
    links: frozenset[Link]

    def remaining(self, brokers: Iterable[BrokerNumber]) -> tuple[BrokerNumber, ...]:
        return tuple(broker for broker in brokers if broker not in self.brokers)

    def ways(self, links: Iterable[Link]) -> list[Link]:
        """Return the usable links, in both directions."""
        usable = [
            link for link in links if link not in self.links and not self.brokers.intersection(link)
        ]
        return [*usable, *((b, a) for a, b in usable)]


def _is_broker(step: Step) -> TypeGuard[BrokerNumber]:
    return isinstance(step, int)


def _step(
    step: Step, reached: tuple[BrokerNumber, ...], losses: _Losses
) -> tuple[BrokerNumber, ...]:
    if isinstance(step, Unit):
        return _find_reached(step, reached, losses)
    if isinstance(step, Bundle):
        onward = (there for here, there in losses.ways(step.links) if here in reached)
        return tuple(dict.fromkeys(chain(reached if step.may_stay else (), onward)))
    if isinstance(step, tuple):
        return tuple(there for here, there in losses.ways((step,)) if here in reached)
    return losses.remaining((step,)) if step in reached else ()


def _find_reached(
    unit: Unit, entries: tuple[BrokerNumber, ...], losses: _Losses
) -> tuple[BrokerNumber, ...]:
    if not unit.units:
        return _flood(entries, losses.ways(unit.links))
    unit_of = {broker: place for place, inner in enumerate(unit.units) for broker in inner.brokers}
    ways = losses.ways(unit.links)
    found: dict[BrokerNumber, None] = {}
    for start in dict.fromkeys(unit_of[broker] for broker in entries):
        inside = {start: tuple(broker for broker in entries if unit_of[broker] == start)}
        inside[start] = _find_reached(unit.units[start], inside[start], losses)
        passed = [start]
        for place in passed:
            for here, there in ways:
                onward = unit_of[there]
                if here not in inside[place] or onward in passed:
                    continue
                more = _find_reached(unit.units[onward], (there,), losses)
                inside[onward] = tuple(dict.fromkeys((*inside.get(onward, ()), *more)))
                if _is_connected(unit.units[onward], losses):
                    passed.append(onward)
        found.update(dict.fromkeys(chain.from_iterable(inside.values())))
    return tuple(found)


def _is_connected(unit: Unit, losses: _Losses) -> bool:
    """Return True if the remaining brokers of a unit, and of its inner units, are connected."""
    remaining = losses.remaining(unit.brokers)
    return all(_is_connected(inner, losses) for inner in unit.units) and len(
        _find_reached(unit, remaining[:1], losses)
    ) == len(remaining)


def _flood(entries: tuple[BrokerNumber, ...], ways: list[Link]) -> tuple[BrokerNumber, ...]:
    onward: dict[BrokerNumber, list[BrokerNumber]] = {}
    for here, there in ways:
        onward.setdefault(here, []).append(there)
    found = dict.fromkeys(entries)
    frontier = list(entries)
    for broker in frontier:
        for there in onward.get(broker, ()):
            if there not in found:
                found[there] = None
                frontier.append(there)
    return tuple(found)
