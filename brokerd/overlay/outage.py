"""Outages: failures of one moment, and the pairs of brokers that publications still connect."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import FailedElements, Link, is_open
from brokerd.overlay.topology import Topology

Reached = Mapping[BrokerNumber, frozenset[BrokerNumber]]
"""Subscriber's broker → the brokers with publications that arrive there."""


@dataclass(frozen=True, slots=True)
class Outage:
    """The brokers and connections that have failed.

    Attributes:
        down: brokers that have crashed or are unreachable.
        absorbing: brokers that receive everything and send nothing, unnoticed.
        cut: pairs of brokers (smaller number first) without a session with each other.
        absorbed: (from, to): messages in this direction are lost in transit, unnoticed.
    """

    down: frozenset[BrokerNumber] = frozenset()
    absorbing: frozenset[BrokerNumber] = frozenset()
    cut: frozenset[Link] = frozenset()
    absorbed: frozenset[Link] = frozenset()

    def __or__(self, other: "Outage") -> "Outage":
        return Outage(
            self.down | other.down,
            self.absorbing | other.absorbing,
            self.cut | other.cut,
            self.absorbed | other.absorbed,
        )

    def live(self, topology: Topology) -> tuple[BrokerNumber, ...]:
        """Return the brokers that are present and not down, in order."""
        present = map(topology.number_of, topology.present())
        return tuple(number for number in present if number not in self.down)


def open_routes(topology: Topology, outage: Outage) -> Reached:
    """Return the brokers that reach each other over the routes of a topology's first kind.

    A pair that absorbs in one direction is treated as absorbing in both.
    """
    overlay = topology.overlay()
    live = outage.live(topology)
    lost = outage.down | outage.absorbing
    links = outage.cut | {(min(pair), max(pair)) for pair in outage.absorbed}
    return {
        home: frozenset(
            origin for origin in live if is_open(overlay.route(origin, home), lost, links)
        )
        for home in live
    }


def find_closed_route(topology: Topology, lost: FailedElements) -> Link | None:
    """Return an origin and a home, among the remaining brokers, without an open route; or None."""
    overlay = topology.overlay()
    left = Outage(down=frozenset(lost.brokers)).live(topology)
    pairs = ((origin, home) for origin in left for home in left if origin != home)
    closed = (pair for pair in pairs if not is_open(overlay.route(*pair), lost.brokers, lost.links))
    return next(closed, None)


def find_reached_in_tree(
    topology: Topology, outage: Outage, radius: int, *, relays: bool = False
) -> Reached:
    """Return the sources of publications that arrive, per subscriber's broker.

    Args:
        radius: number of links that a broker reaches along a path; 1: no broker is bypassed.
        relays: True if a third broker relays for two brokers without a session.
    """
    neighbours = topology.neighbours()
    present = [topology.number_of(name) for name in topology.present()]
    cut = outage.cut
    if relays:
        near = {number: _ball(number, radius, neighbours) for number in present}
        cut = frozenset(pair for pair in cut if not _can_relay(pair, near, outage))
    return {
        subscriber: frozenset(_sources(subscriber, neighbours, radius, outage, cut))
        for subscriber in outage.live(topology)
    }


def _sources(
    subscriber: BrokerNumber,
    neighbours: Sequence[Sequence[BrokerNumber]],
    radius: int,
    outage: Outage,
    cut: frozenset[Link],
) -> set[BrokerNumber]:
    """Return the brokers with publications that arrive at `subscriber`."""
    # Outwards from the subscriber, so that the path from each next hop is already computed.
    towards = {subscriber: subscriber}
    arrives: set[BrokerNumber] = set()
    if subscriber not in outage.absorbing:  # its clients get nothing either
        arrives.add(subscriber)
    order = [subscriber]
    for broker in order:
        for other in neighbours[broker]:
            if other in towards:
                continue
            towards[other] = broker
            order.append(other)
            if other not in outage.down and other not in outage.absorbing:
                hop = other
                for _ in range(radius):
                    hop = towards[hop]
                    if hop not in outage.down and _pair(other, hop) not in cut:
                        if hop in arrives and (other, hop) not in outage.absorbed:
                            arrives.add(other)
                        break
                    if hop == subscriber:
                        break
    return arrives


def _can_relay(
    pair: Link, near: Mapping[BrokerNumber, Iterable[BrokerNumber]], outage: Outage
) -> bool:
    """Return True if a third broker reaches both ends."""
    a, b = pair
    for other in near[a]:
        usable = other in near[b] and other not in outage.down | outage.absorbing
        if usable and not {_pair(other, a), _pair(other, b)} & outage.cut:
            return True
    return False


def _ball(
    center: BrokerNumber, radius: int, neighbours: Sequence[Sequence[BrokerNumber]]
) -> tuple[BrokerNumber, ...]:
    found = {center: 0}
    order = [center]
    for broker in order:
        if found[broker] == radius:
            continue
        for near in neighbours[broker]:
            if near not in found:
                found[near] = found[broker] + 1
                order.append(near)
    return tuple(order[1:])


def _pair(a: BrokerNumber, b: BrokerNumber) -> Link:
    return (a, b) if a < b else (b, a)


def longest_lost(topology: Topology, lost: Iterable[BrokerNumber]) -> tuple[BrokerNumber, ...]:
    """Return the longest path of the tree on which every broker is lost; () if none is lost."""
    missing = dict.fromkeys(sorted(lost))
    neighbours = topology.neighbours()
    longest: tuple[BrokerNumber, ...] = ()
    seen: set[BrokerNumber] = set()
    for start in missing:
        if start in seen:
            continue
        far = farthest_lost(start, missing, neighbours)
        seen.update(far)
        end = list(far)[-1]
        path = list(farthest_lost(end, missing, neighbours).values())[-1]
        if len(path) > len(longest):
            longest = min(path, path[::-1])
    return longest


def row_around(
    topology: Topology, broker: BrokerNumber, lost: Iterable[BrokerNumber]
) -> tuple[BrokerNumber, ...]:
    """Return the longest path of lost brokers in the connected lost part that contains `broker`."""
    missing, neighbours = dict.fromkeys(lost), _neighbours(topology.brokers, topology.links)
    end = list(farthest_lost(broker, missing, neighbours))[-1]
    return list(farthest_lost(end, missing, neighbours).values())[-1]


@lru_cache(maxsize=2)
def _neighbours(
    brokers: tuple[str, ...], links: tuple[Link, ...]
) -> tuple[tuple[BrokerNumber, ...], ...]:
    found: list[list[BrokerNumber]] = [[] for _ in brokers]
    for a, b in links:
        found[a].append(b)
        found[b].append(a)
    return tuple(map(tuple, found))


def farthest_lost(
    start: BrokerNumber,
    missing: Mapping[BrokerNumber, None],
    neighbours: Sequence[Sequence[BrokerNumber]],
) -> dict[BrokerNumber, tuple[BrokerNumber, ...]]:
    """Return the lost brokers that lost brokers connect with `start`, nearest first, with paths."""
    found: dict[BrokerNumber, tuple[BrokerNumber, ...]] = {start: (start,)}
    frontier = [start]
    for broker in frontier:
        for near in neighbours[broker]:
            if near in missing and near not in found:
                found[near] = (*found[broker], near)
                frontier.append(near)
    return found
