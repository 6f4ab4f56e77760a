"""Tests of a thousand brokers in one process: equal parts are shared, idle brokers cost nothing."""

from brokerd.overlay.generate import generate_balanced_tree
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.sessions import NetworkParameters


def test_a_thousand_brokers_route_around_a_dead_one() -> None:
    network = NetworkParameters(jitter_ns=0)
    topology = generate_balanced_tree(1_000, 3, 1)
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


def test_a_departed_application_stops_dialling_and_delays_no_broker() -> None:
    cluster = SimulatedCluster(generate_balanced_tree(5, 3, 1), strict=False, trace=False).start()
    subscription = cluster.subscribe("b2")
    cluster.run_until_quiet()
    cluster.client("gone", "b1", publishes=True)
    cluster.run_until_quiet()
    cluster.broker("b1").kill()
    cluster.clients["gone"].leave()
    failed = cluster.network.counters["opens_failed"]
    cluster.run_for(0.4)
    by_brokers = cluster.network.counters["opens_failed"] - failed
    assert by_brokers <= 4  # its neighbours, once each
    cluster.broker("b1").start()
    cluster.run_until_quiet()
    assert not cluster.clients["gone"].ends
    cluster.publish("b3", n=1)
    cluster.run_until_quiet()
    assert len(subscription.received) == 1
    assert cluster.inspection.broker_events > 0
