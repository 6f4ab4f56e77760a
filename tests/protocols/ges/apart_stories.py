"""Stories of units that are partitioned inside, or that lost the record of a dead broker."""

from collections.abc import Mapping
from typing import Any

from brokerd.overlay.topology import SCHEMA
from brokerd.protocols.ges.core import Ges
from brokerd.protocols.registry import read_topology
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import SECOND_NS

FOR_EVER_S = 200
"""Much longer than `purge_ns`, for units of units."""
TWO_CLUSTERS = {
    "addresses": {"g": "0.0.0", "h": "0.0.1", "m": "0.1.0", "n": "0.1.1", "x": "1.0.0"},
    "links": [["g", "h"], ["m", "n"], ["g", "n"], ["h", "m"], ["h", "x"], ["m", "x"]],
}
"""Brokers g and n of two-member clusters are linked; the other members have outside links."""
RING = {
    "addresses": {"a": "0.0", "b": "1.0", "c": "1.1", "d": "2.0"},
    "links": [["a", "b"], ["a", "d"], ["b", "c"], ["c", "d"]],
}
"""A cluster of two, b and c, with an outside link each."""


def _started(hierarchy: Mapping[str, Any]) -> SimulatedCluster:
    overlay = {"kind": "hierarchy", "hierarchy": hierarchy, "brokers": [*hierarchy["addresses"]]}
    topology = read_topology({"schema": SCHEMA, "name": "apart", **overlay}, "apart")
    cluster = SimulatedCluster(topology, "ges", strict=False)
    cluster.start().run_until_quiet()
    return cluster


def _core(cluster: SimulatedCluster, name: str) -> Ges:
    core = cluster.broker(name).broker.core
    assert isinstance(core, Ges), f"{core} is no broker of a hierarchy"
    return core


def two_clusters_partition_at_once() -> None:
    """The clusters take each other for the route out, and no publication loops (seed 60968)."""
    cluster = _started(TWO_CLUSTERS)
    wanted = cluster.subscribe("x")
    cluster.run_until_quiet()
    for link in (("g", "h"), ("m", "n")):
        cluster.link(*link).cut()
    cluster.run_for(5)
    before = cluster.statistics()["publications_forwarded"]
    cluster.publish("n", kind="a")
    cluster.run_for(5)
    assert cluster.statistics()["publications_forwarded"] <= before + 10
    for link in (("g", "h"), ("m", "n")):
        cluster.link(*link).heal()
    cluster.run_for(10)
    cluster.publish("n", kind="a")
    cluster.run_until_quiet()
    assert len(wanted.received) == 1


def all_brokers_with_a_connection_have_restarted() -> None:
    """Broker b lost the record of link c–d, and a did not; c and d are dead (seed 62088)."""
    cluster = _started(RING)
    for name in "cdb":
        cluster.broker(name).kill()
    cluster.run_for(5)
    cluster.broker("b").start()
    cluster.run_for(FOR_EVER_S)
    cluster.run_until_quiet()
    cluster.checker.own.check_settled(cluster.brokers)


def statements_for_a_live_broker_are_corrected() -> None:
    """Broker b restarted and cannot reach c; every statement for c is corrected, as c is alive."""
    cluster = _started(RING)
    cluster.broker("b").kill()
    cluster.link("b", "c").cut()
    cluster.run_for(5)
    cluster.broker("b").start()
    cluster.run_for(10 * FOR_EVER_S)
    a, b = (_core(cluster, name) for name in "ab")
    assert 1 <= b.statistics()["spoken_for"] <= 8
    assert a.units.view.edges[(1,), (2,)] == {(2, 3): 1}


def late_statements_of_a_departed_broker_arrive() -> None:
    """Late statements of a departed broker arrive after a neighbour lost its state (seed 99977)."""
    cluster = _started(RING)
    links = [cluster.link("b", other) for other in "ac"]
    for link in links:
        link.delay(SECOND_NS)
    cluster.join("m", "b", place="1.7").start()
    cluster.run_for(0.5)
    cluster.leave("m")
    cluster.run_for(0.7)
    cluster.broker("b").kill()
    cluster.broker("b").start()
    cluster.run_for(20)
    cluster.run_until_quiet()
    cluster.checker.own.check_settled(cluster.brokers)


STORIES = (
    two_clusters_partition_at_once,
    all_brokers_with_a_connection_have_restarted,
    statements_for_a_live_broker_are_corrected,
    late_statements_of_a_departed_broker_arrive,
)
SEEN = {
    "units-send-each-other": two_clusters_partition_at_once,
    "only-outsiders-remember-links": all_brokers_with_a_connection_have_restarted,
    "departed-broker-is-accepted-again": late_statements_of_a_departed_broker_arrive,
    "spoken-for-ever-again": statements_for_a_live_broker_are_corrected,
}
