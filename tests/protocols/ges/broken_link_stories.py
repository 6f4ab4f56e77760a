"""Stories of subscriptions that begin while links of the paper's hierarchy break."""

from random import Random

from bench.spec.spec import load_topology
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.sessions import NetworkParameters

MILLISECOND_NS = 1_000_000


def list_waiting(seed: int) -> list[str]:
    """Return the brokers of subscriptions that have not started long after all links healed."""
    random = Random(f"c{seed}")
    highest_ns = random.choice((2, 20, 200)) * MILLISECOND_NS
    jitter_ns = random.choice((300_000, highest_ns))
    topology = load_topology("t22-hi")
    network = NetworkParameters(
        latency_highest_ns=highest_ns, jitter_ns=jitter_ns, session=topology.session_parameters()
    )
    cluster = SimulatedCluster(
        topology, "ges", seed=seed, network=network, strict=False, trace=False
    )
    cluster.start().run_for(random.choice((0, 5)))
    begin_ns, found = cluster.schedule.now_ns, []

    def subscribe(broker: str) -> None:
        found.append((broker, cluster.subscribe(broker, "true")))

    for _ in range(100):
        broker = random.choice(topology.brokers)
        at_ns = begin_ns + random.randrange(20_000) * MILLISECOND_NS
        cluster.schedule.at(at_ns, subscribe, broker)
    for _ in range(random.choice((4, 12, 30))):
        link = cluster.link(*(topology.brokers[end] for end in random.choice(topology.links)))
        at_ns = begin_ns + random.randrange(20_000) * MILLISECOND_NS
        cluster.schedule.at(at_ns, link.cut)
        lasts_ns = random.choice((300, 1_000, 3_000, 15_000)) * MILLISECOND_NS
        cluster.schedule.at(at_ns + lasts_ns, link.heal)
    cluster.run_for(200)
    assert len(found) == 100
    return [broker for broker, subscription in found if not subscription.started]


def subscriptions_start_beside_links_that_break() -> None:
    assert list_waiting(108) == []


def subscriptions_start_although_sessions_end_with_confirmations() -> None:
    assert list_waiting(164) == []


def subscriptions_start_although_versions_wait_for_each_other() -> None:
    assert list_waiting(274) == []


STORIES = (
    subscriptions_start_beside_links_that_break,
    subscriptions_start_although_sessions_end_with_confirmations,
    subscriptions_start_although_versions_wait_for_each_other,
)
SEEN = {
    "received-versions-wait-for-stated-ones": subscriptions_start_beside_links_that_break,
    "lost-confirmations-are-not-repeated": (
        subscriptions_start_although_sessions_end_with_confirmations
    ),
}
