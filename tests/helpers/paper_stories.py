"""Helpers for stories of a paper's promises: a calm cluster under a strict oracle."""

from brokerd.overlay.topology import Topology
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import PublicationHandle
from tests.helpers.cluster import STEADY

PUBLISHED = 20


def start(topology: Topology, **settings: object) -> SimulatedCluster:
    """Start all brokers and sessions; the strict oracle judges every step from here on."""
    cluster = SimulatedCluster(topology, network=STEADY, **settings).start()
    cluster.run_until_quiet()
    return cluster


def publish(
    cluster: SimulatedCluster, broker: str, count: int = PUBLISHED
) -> list[PublicationHandle]:
    """Publish one publication every 50 ms."""
    sent = []
    for n in range(count):
        sent.append(cluster.publish(broker, n=n))
        cluster.run_for(0.05)
    return sent


def settle(cluster: SimulatedCluster) -> None:
    """Run until quiet; check that all owed deliveries have arrived and that brokers are clean."""
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    cluster.inspection.check_internals()


def names(cluster: SimulatedCluster, numbers: tuple[int, ...] | list[int]) -> list[str]:
    """Return the names of brokers, by number."""
    return [cluster.topology.brokers[number] for number in numbers]
