"""Clusters for stories: trees of named brokers."""

from itertools import pairwise

from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import BrokerHandle
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.units import MILLISECOND_NS

STEADY = NetworkParameters(
    latency_lowest_ns=MILLISECOND_NS,
    latency_highest_ns=MILLISECOND_NS,
    jitter_ns=0,
    lost_on_close=False,
)
"""Every message takes one millisecond; messages sent before a close arrive before the close."""


def tree(*links: str, delta: int = 1) -> Topology:
    """Return the tree of links like "b1-b2"; brokers are numbered in order of first mention."""
    pairs = [link.split("-") for link in links]
    return Topology.from_mapping(
        {
            "schema": SCHEMA,
            "name": "story",
            "kind": "tree",
            "tree": {"delta": delta},
            "brokers": list(dict.fromkeys(name for pair in pairs for name in pair)),
            "links": pairs,
        },
        "story",
    )


def chain(*names: str, delta: int = 1) -> Topology:
    """Return a line of brokers."""
    return tree(*(f"{a}-{b}" for a, b in pairwise(names)), delta=delta)


def star(middle: str, *others: str, delta: int = 1) -> Topology:
    """Return a star: one broker in the middle of all others."""
    return tree(*(f"{middle}-{other}" for other in others), delta=delta)


def crash_in_repetition(
    cluster: SimulatedCluster, broker: BrokerHandle, log: str, records: int
) -> None:
    """Let a broker crash while publications are stored again behind an accepted loss.

    Args:
        records: number of records in the log at the crash; the table `proved` has a row then.
    """
    for _ in range(1000):
        cluster.run_for(0.0001)
        if len(broker.broker.records_of(log)[1]) >= records:
            break
    assert broker.broker.rows_of("proved"), f"the repetition is over at {records} records"
    broker.kill()
    cluster.run_for(1)
    broker.start()
