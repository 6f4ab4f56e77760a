"""Who gets whose publications in a tree in which some are gone past.

A broker hands on to the nearest broker of the path that it reaches, at most so many links away,
and to nobody if there is none. What is gone or mute is gone past; what absorbs is not, because
nobody notices.

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
    """Who gets whose publications.

    Args:
        radius: how many links a broker reaches along a path; 1: nobody is gone past.
        relays: whether a third broker relays for two whose session is cut.
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
    """The brokers whose publications come to `subscriber`."""
    # Outwards from the subscriber, so that the way on from each next hop is known already.
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
    """Whether somebody reaches both ends."""
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
