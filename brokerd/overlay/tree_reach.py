"""The pairs of brokers that publications still connect in a tree with bypassed brokers.

A broker hands publications on to the nearest reachable broker of the path, within a bounded number
of links, and to none if there is none. A crashed or mute broker is bypassed; an absorbing broker is
not, because it is not detected.

Paper: [DFT11] §IV (bypassing).
"""

from collections.abc import Iterable, Mapping, Sequence

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.outage import Outage, Reached
from brokerd.overlay.routes import Link
from brokerd.overlay.topology import Topology


def reached_in_tree(
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
        cut = frozenset(pair for pair in cut if not _relayed(pair, near, outage))
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


def _relayed(
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
