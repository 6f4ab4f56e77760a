"""Tests of the sources that a new subscription lacks, against the network's partitions."""

import pytest

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.messages import Tag
from brokerd.protocols.delta_tree.routing_table import RoutedSubscription
from brokerd.protocols.delta_tree.subscriptions import Subscriptions
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.cluster import STEADY, chain
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants


def _chain() -> SimulatedCluster:
    topology = chain("b1", "b2", "b3", "b4")
    return SimulatedCluster(topology, network=STEADY).start()


def _subscribe_past_a_dead_broker(cluster: SimulatedCluster) -> None:
    """Subscribe while b3 is dead; b4 replies past b3."""
    cluster.run_until_quiet()
    cluster.broker("b3").kill()
    cluster.run_for(3)
    subscription = cluster.subscribe("b1")
    cluster.run_for(3)
    assert subscription.started


def test_a_dead_broker_may_be_closed_off() -> None:
    cluster = _chain()
    _subscribe_past_a_dead_broker(cluster)
    assert cluster.oracle.gates.list_closed_sources() == [frozenset({2})]


@pytest.mark.parametrize("mutant", [Mutant.ISLANDS_AS_BARRIERS, Mutant.EVERY_PARTITION_TAGGED])
def test_an_answering_broker_past_a_dead_one_may_not_be_closed_off(mutant: Mutant) -> None:
    with (
        pytest.raises(
            InvariantViolated, match=r"gate closed needlessly: s1-b1/1 starts without \[3\]"
        ),
        plant_mutants([mutant]),
    ):
        _subscribe_past_a_dead_broker(_chain())


def test_a_broker_cut_off_before_the_subscription_may_not_be_closed_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """b2 still names brokers that were unreachable long ago."""
    cluster = _chain()
    _subscribe_past_a_dead_broker(cluster)
    cluster.broker("b3").start()
    cluster.run_until_quiet()
    assert cluster.oracle.gates.list_closed_sources() == [frozenset()]
    confirm = Subscriptions._confirm_to

    def name_b3(self: Subscriptions, peer: BrokerNumber, row: RoutedSubscription) -> None:
        if self._state.broker == 1:
            self.table.set_tags(row, (Tag((0, 1, 2), 1, 1, 1, False),))
        confirm(self, peer, row)

    monkeypatch.setattr(Subscriptions, "_confirm_to", name_b3)
    cluster.subscribe("b1")
    with pytest.raises(
        InvariantViolated, match=r"gate closed needlessly: s2-b1/1 starts without \[2\]"
    ):
        cluster.run_for(1)
