"""Tests of the white-box checks, on brokers with corrupted state and for past findings."""

import pytest

from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.partition_table import PartitionTable
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.cluster import STEADY, chain


def a_dead_broker() -> tuple[SimulatedCluster, PartitionTable]:
    """Return a cluster in which b2 is dead, and the partition table of b1."""
    cluster = SimulatedCluster(chain("b1", "b2", "b3", "b4"), network=STEADY).start()
    cluster.run_until_quiet()
    cluster.broker("b2").kill()
    cluster.run_until_quiet()
    cluster.inspection.check_internals()
    core = cluster.brokers[0].protocol
    assert isinstance(core, DeltaTree)
    return cluster, core._partitions


def test_a_partition_both_live_and_ended_is_a_violation() -> None:
    cluster, table = a_dead_broker()
    (known,) = table.detectors[2].live
    table.detectors[2].ended = [(1, known)]
    with pytest.raises(InvariantViolated, match="are present and departed"):
        cluster.inspection.check_internals()


def test_partitions_far_away_are_in_no_table() -> None:
    cluster, table = a_dead_broker()
    table.detectors[2].path = (2, 9, 1, 0)
    with pytest.raises(InvariantViolated, match="2 is 3 links away"):
        cluster.inspection.check_internals()


def test_a_broker_cut_off_during_a_detector_restart_drops_the_ended_partitions() -> None:
    """b1 receives the restart from b2 alone, which has no other information about b3."""
    cluster = SimulatedCluster(chain("b1", "b2", "b3", "b4"), network=STEADY).start()
    cluster.run_until_quiet()
    cluster.broker("b4").kill()
    cluster.run_until_quiet()
    far = cluster.brokers[0]
    assert far.core.statistics()["partitions"] == 1
    for other in ("b2", "b3"):
        cluster.link("b1", other).cut()
    cluster.run_for(3)
    cluster.broker("b4").start()
    cluster.broker("b3").restart()
    cluster.run_for(5)
    cluster.link("b1", "b2").heal()
    cluster.run_until_quiet()
    assert far.core.statistics()["partitions"] == 0
