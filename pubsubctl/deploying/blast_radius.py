"""Predicted effects of a fault: pairs of brokers that are cut off, and islands.

Pure: a topology, a protocol and an outage result in pairs. The protocol decides which pairs still
have deliveries. Faults that only slow down cut off no pair.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.outage import Outage
from brokerd.protocols.registry import RunningProtocol

Pair = tuple[BrokerNumber, BrokerNumber]


@dataclass(frozen=True)
class Effect:
    """The effect of an outage.

    Attributes:
        live: brokers that are not down, in order.
        cut_off: (source, subscriber) pairs of live brokers without deliveries during the outage,
            in order.
        islands: live brokers with mutual reachability, directly or over others; the largest first.
            One island: no broker is cut off permanently.
    """

    live: tuple[BrokerNumber, ...]
    cut_off: tuple[Pair, ...]
    islands: tuple[tuple[BrokerNumber, ...], ...] = field(default=())


def effect_of(known: RunningProtocol, outage: Outage) -> Effect:
    """Return the effect of an outage on a protocol's deliveries."""
    reached = known.reached(outage)
    live = outage.live(known.topology)
    cut_off = tuple(
        (source, subscriber)
        for source in live
        for subscriber in live
        if source != subscriber and source not in reached[subscriber]
    )
    return Effect(live, cut_off, _islands(live, reached))


def _islands(
    live: Sequence[BrokerNumber], reached: Mapping[BrokerNumber, AbstractSet[BrokerNumber]]
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
