"""Topologies made to measure: chains, stars, balanced and random trees.

Brokers are called b1, b2, … in breadth-first order, so that the same arguments give the same
file on every machine.
"""

from collections.abc import Callable

from brokerd.errors import ConfigError
from brokerd.overlay.topology import SCHEMA, Topology

MAXIMUM_BROKERS = 10_000

Draw = Callable[[int], int]
"""draw(n) gives a whole number from 0 to n - 1; the caller owns the seed."""


def chain(brokers: int, delta: int) -> Topology:
    """A line b1-b2-…; the longest paths there are."""
    return _tree("chain", brokers, delta, lambda broker: broker - 1)


def star(brokers: int, delta: int) -> Topology:
    """b1 in the middle, all others its neighbours."""
    return _tree("star", brokers, delta, lambda broker: 0)


def balanced_tree(brokers: int, fanout: int, delta: int) -> Topology:
    """A balanced tree in which no broker has more than `fanout` neighbours.

    The root has `fanout` children, everyone else `fanout - 1`: the only shape that agrees with
    what the paper reports of its neighbourhood sizes.

    Raises:
        ConfigError: fanout < 2.

    Paper: [DFT11] §IX-C.
    """
    if fanout < 2:
        raise ConfigError(f"fanout = {fanout}; a tree of more than two brokers needs 2 or more")

    def parent(broker: int) -> int:
        return 0 if broker <= fanout else (broker - fanout - 1) // (fanout - 1) + 1

    return _tree("tree", brokers, delta, parent)


def random_tree(brokers: int, delta: int, draw: Draw) -> Topology:
    """A tree in which each broker's parent is drawn from those before it."""
    return _tree("random", brokers, delta, draw)


def _tree(name: str, brokers: int, delta: int, parent: Callable[[int], int]) -> Topology:
    if not 1 <= brokers <= MAXIMUM_BROKERS:
        raise ConfigError(f"brokers = {brokers}; from 1 to {MAXIMUM_BROKERS}")
    names = [f"b{number + 1}" for number in range(brokers)]
    return Topology.from_mapping(
        {
            "schema": SCHEMA,
            "name": f"{name}-{brokers}",
            "kind": "tree",
            "tree": {"delta": delta},
            "brokers": names,
            "links": [[names[parent(broker)], names[broker]] for broker in range(1, brokers)],
        },
        f"topology {name}",
    )
