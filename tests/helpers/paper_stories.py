"""What the stories of a paper's promises are told with: a calm cluster under a strict oracle."""

from brokerd.overlay.topology import Topology
from brokerd.simulator.world.cluster import PublicationHandle, SimulatedCluster
from tests.helpers.cluster import STEADY

PUBLISHED = 20


def start(topology: Topology, **settings: object) -> SimulatedCluster:
    """All brokers up, all sessions ready; the strict oracle judges every step from here on."""
    cluster = SimulatedCluster(topology, network=STEADY, **settings).start()
    cluster.run_until_quiet()
    return cluster


def publish(
    cluster: SimulatedCluster, broker: str, count: int = PUBLISHED
) -> list[PublicationHandle]:
    """One publication every 50 ms."""
    sent = []
    for n in range(count):
        sent.append(cluster.publish(broker, n=n))
        cluster.run_for(0.05)
    return sent


def settled(cluster: SimulatedCluster) -> None:
    """Everything owed has arrived, and nobody holds anything any more."""
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    cluster.check_internals()


def names(cluster: SimulatedCluster, numbers: tuple[int, ...] | list[int]) -> list[str]:
    """The brokers of these numbers."""
    return [cluster.topology.brokers[number] for number in numbers]
