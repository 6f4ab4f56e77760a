"""What a fault would cut off, worked out before it is applied: pairs of brokers, and islands.

Pure: topology and outage in, pairs out. The model is the protocol's rule for the next hop: a
broker hands on to the nearest broker of the path that it reaches, at most delta + 1 links away,
and to nobody if there is none. What is gone or mute is gone past; what absorbs is not, because
nobody notices. Faults that only slow down cut nobody off.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.topology import Topology

Pair = tuple[BrokerNumber, BrokerNumber]


@dataclass(frozen=True)
class Outage:
    """What does not work at one moment.

    Attributes:
        down: brokers that are gone, or that nobody hears: they are gone past.
        absorbing: brokers that take everything in and let nothing out, unnoticed.
        cut: pairs of brokers (smaller number first) that have no session with each other.
        absorbed: (from, to): what is sent that way is lost on the way, unnoticed.
    """

    down: frozenset[BrokerNumber] = frozenset()
    absorbing: frozenset[BrokerNumber] = frozenset()
    cut: frozenset[Pair] = frozenset()
    absorbed: frozenset[Pair] = frozenset()

    def __or__(self, other: "Outage") -> "Outage":
        return Outage(
            self.down | other.down,
            self.absorbing | other.absorbing,
            self.cut | other.cut,
            self.absorbed | other.absorbed,
        )


@dataclass(frozen=True)
class Effect:
    """What an outage means.

    Attributes:
        live: brokers that are not down, in order.
        cut_off: (source, subscriber) pairs of live brokers between which nothing is delivered
            for as long as it lasts, in order.
        islands: live brokers that still reach each other both ways, directly or over others;
            the largest first. One island: nobody is cut off for good.
    """

    live: tuple[BrokerNumber, ...]
    cut_off: tuple[Pair, ...]
    islands: tuple[tuple[BrokerNumber, ...], ...] = field(default=())


def effect_of(
    topology: Topology, outage: Outage, *, bypasses: bool = True, relays: bool = False
) -> Effect:
    """The effect of an outage on a tree.

    Args:
        bypasses: whether failed brokers are gone past.
        relays: whether a third broker relays for two whose session is cut (`assist`).
    """
    neighbours = topology.neighbours()
    radius = topology.delta + 1 if bypasses else 1
    present = [topology.number_of(name) for name in topology.present()]
    live = tuple(number for number in present if number not in outage.down)
    near = {number: _ball(number, radius, neighbours) for number in present}
    cut = outage.cut
    if relays:
        cut = frozenset(pair for pair in cut if not _relayed(pair, near, outage))
    reached: dict[BrokerNumber, set[BrokerNumber]] = {}
    for subscriber in live:
        reached[subscriber] = _sources(subscriber, neighbours, radius, outage, cut)
    cut_off = tuple(
        (source, subscriber)
        for source in live
        for subscriber in live
        if source != subscriber and source not in reached[subscriber]
    )
    return Effect(live, cut_off, _islands(live, reached))


def _sources(
    subscriber: BrokerNumber,
    neighbours: Sequence[Sequence[BrokerNumber]],
    radius: int,
    outage: Outage,
    cut: frozenset[Pair],
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
    pair: Pair, near: Mapping[BrokerNumber, Iterable[BrokerNumber]], outage: Outage
) -> bool:
    """Whether somebody reaches both ends."""
    a, b = pair
    for other in near[a]:
        usable = other in near[b] and other not in outage.down | outage.absorbing
        if usable and not {_pair(other, a), _pair(other, b)} & outage.cut:
            return True
    return False


def _islands(
    live: Sequence[BrokerNumber], reached: Mapping[BrokerNumber, set[BrokerNumber]]
) -> tuple[tuple[BrokerNumber, ...], ...]:
    islands: list[tuple[BrokerNumber, ...]] = []
    left = dict.fromkeys(live)
    while left:
        first = next(iter(left))
        del left[first]
        island = [first]
        for broker in island:
            both = [
                other for other in left if other in reached[broker] and broker in reached[other]
            ]
            for other in both:
                del left[other]
            island += both
        islands.append(tuple(sorted(island)))
    return tuple(sorted(islands, key=lambda island: (-len(island), island)))


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


def _pair(a: BrokerNumber, b: BrokerNumber) -> Pair:
    return (a, b) if a < b else (b, a)
