"""A thousand brokers in one process: what is the same is shared, and idle brokers cost nothing."""

from brokerd.overlay.generate import balanced_tree
from brokerd.simulator.cluster import SimulatedCluster
from brokerd.simulator.network import NetworkParameters


def test_a_thousand_brokers_route_around_a_dead_one() -> None:
    network = NetworkParameters(jitter_ns=0)
    topology = balanced_tree(1_000, 3, 1)
    cluster = SimulatedCluster(
        topology, "delta_tree", network=network, strict=False, trace=False
    ).start()
    subscriptions = [cluster.subscribe(f"b{number}") for number in (3, 400, 999)]
    cluster.run_until_quiet()
    assert all(subscription.started for subscription in subscriptions)
    cluster.broker("b2").kill()
    sent = [cluster.publish("b1", n=n) for n in range(3)]
    cluster.run_until_quiet()
    assert all(subscription.received == sent for subscription in subscriptions)
    assert cluster.oracle.violations == {}
