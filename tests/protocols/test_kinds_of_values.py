"""Values of different kinds differ in every protocol: `true`, `1` and `'1'`."""

import pytest

from brokerd.model.predicate import Scalar
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.cluster import STEADY
from tests.helpers.every_protocol import PROTOCOLS, three_brokers
from tests.protocols.ges_reliable.test_trees import TREES

VALUES: tuple[Scalar, ...] = (True, 1, 1.0, "1", False, 0, -0.0, "", 0.5)


def wanted_at_one_broker(cluster: SimulatedCluster, at: str, publisher: str) -> None:
    """Every subscriber receives the values of its own kind, in any order of subscription."""
    predicates = {
        "x = true": [1],
        "x = 1": [2, 3],
        "x = 1.0": [2, 3],
        "x = '1'": [4],
        "x in (false, 1)": [2, 3, 5],
        "x in (0, true)": [1, 6, 7],
        "x != 0": [2, 3, 9],
    }
    subscriptions = [cluster.subscribe(at, predicate) for predicate in predicates]
    cluster.run_for(5)
    for value in VALUES:
        cluster.publish(publisher, x=value)
    cluster.run_for(5)
    received = [[each.sequence for each in one.received] for one in subscriptions]
    assert received == [*predicates.values()]


@pytest.mark.parametrize("at", ["c1", "c3"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_subscribers_at_one_broker_distinguish_values_that_python_equates(
    protocol: str, at: str
) -> None:
    cluster = SimulatedCluster(three_brokers(protocol), protocol, network=STEADY).start()
    cluster.run_for(2)
    wanted_at_one_broker(cluster, at, "c1")


def test_a_storage_asks_its_parent_for_each_of_them() -> None:
    cluster = SimulatedCluster(TREES, "ges_reliable", network=STEADY).start()
    cluster.run_for(2)
    wanted_at_one_broker(cluster, "x", "z")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_unsubscribe_ends_no_subscription_of_an_equal_value(protocol: str) -> None:
    """The subscription `x = 1` ends; `x = true` at the same broker continues over a restart."""
    cluster = SimulatedCluster(three_brokers(protocol), protocol, network=STEADY).start()
    cluster.run_for(2)
    ends, stays = cluster.subscribe("c3", "x = 1"), cluster.subscribe("c3", "x = true")
    cluster.run_for(2)
    cluster.unsubscribe(ends.client.name)
    cluster.run_for(2)
    cluster.publish("c1", x=True)
    cluster.run_for(2)
    cluster.broker("c3").restart()
    cluster.run_for(5)
    cluster.publish("c1", x=1)
    cluster.publish("c1", x=True)
    cluster.run_for(5)
    assert [each.sequence for each in stays.received] == [1, 3]
