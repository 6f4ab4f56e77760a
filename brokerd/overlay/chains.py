"""Adjacent lost brokers on a path of the tree, which delta bounds.

Paper: [DFT11] §II ("δ-fault-tolerance").
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.routes import Link
from brokerd.overlay.topology import Topology


def longest_lost(topology: Topology, lost: Iterable[BrokerNumber]) -> tuple[BrokerNumber, ...]:
    """Return the longest path of the tree on which every broker is lost; () if none is lost."""
    gone = dict.fromkeys(sorted(lost))
    neighbours = topology.neighbours()
    longest: tuple[BrokerNumber, ...] = ()
    seen: set[BrokerNumber] = set()
    for start in gone:
        if start in seen:
            continue
        far = farthest_lost(start, gone, neighbours)
        seen.update(far)
        end = list(far)[-1]
        path = list(farthest_lost(end, gone, neighbours).values())[-1]
        if len(path) > len(longest):
            longest = min(path, path[::-1])
    return longest


def row_around(
    topology: Topology, broker: BrokerNumber, lost: Iterable[BrokerNumber]
) -> tuple[BrokerNumber, ...]:
    """Return the longest path of lost brokers in the connected lost part that contains `broker`."""
    gone, neighbours = dict.fromkeys(lost), _neighbours(topology.brokers, topology.links)
    end = list(farthest_lost(broker, gone, neighbours))[-1]
    return list(farthest_lost(end, gone, neighbours).values())[-1]


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
    gone: Mapping[BrokerNumber, None],
    neighbours: Sequence[Sequence[BrokerNumber]],
) -> dict[BrokerNumber, tuple[BrokerNumber, ...]]:
    """Return the lost brokers that lost brokers connect with `start`, nearest first, with paths."""
    found: dict[BrokerNumber, tuple[BrokerNumber, ...]] = {start: (start,)}
    frontier = [start]
    for broker in frontier:
        for near in neighbours[broker]:
            if near in gone and near not in found:
                found[near] = (*found[broker], near)
                frontier.append(near)
    return found
