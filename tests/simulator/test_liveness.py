"""Tests of owed deliveries while links stay broken for ever, and of the detection of stalls."""

import pytest

from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.checks.liveness import WhileBroken
from brokerd.simulator.search.plan import BrokenLink
from brokerd.simulator.search.swarm import plan_of
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.cluster import STEADY, chain

ALONE = DeltaTreeParameters(assist="off")
"""Parameters without relayed sessions: a broken link prevents deliveries."""


def four_in_a_line(parameters: DeltaTreeParameters) -> SimulatedCluster:
    """Return b1-b2-b3-b4, δ = 1."""
    topology = chain("b1", "b2", "b3", "b4")
    return SimulatedCluster(topology, network=STEADY, parameters=parameters).start()


def names_that_hear(cluster: SimulatedCluster, source: str, names: str) -> str:
    """Return the brokers that a source reaches although b2-b3 is broken."""
    number = cluster.topology.number_of
    broken = WhileBroken(cluster, [(number("b2"), number("b3"))])
    return "".join(n for n in names if broken.reaches(number(source), number(f"b{n}")))


def test_around_a_broken_link_one_side_sends_the_events_that_the_other_cannot_forward() -> None:
    """b2 bypasses b3 and reaches b4; b4 has b3, which has only b1 beyond b2, so not b2 itself."""
    cluster = four_in_a_line(ALONE)
    assert names_that_hear(cluster, "b1", "1234") == "124"
    assert names_that_hear(cluster, "b2", "1234") == "124"
    assert names_that_hear(cluster, "b3", "1234") == "134"
    assert names_that_hear(cluster, "b4", "1234") == "134"


def test_every_source_reaches_all_brokers_over_relayed_sessions() -> None:
    cluster = four_in_a_line(DeltaTreeParameters(assist="on"))
    assert [names_that_hear(cluster, f"b{n}", "1234") for n in "1234"] == ["1234"] * 4


def test_only_some_bridges_are_required_beyond_delta_broken_links() -> None:
    """b1 has b2 and b3 within two links; both links are broken, and b4 is too far."""
    cluster = four_in_a_line(DeltaTreeParameters(assist="on"))
    broken = WhileBroken(cluster, [(0, 1), (0, 2)])
    assert [broken.reaches(0, there) for there in (1, 2, 3)] == [False, False, False]
    assert [broken.reaches(3, there) for there in (0, 1, 2)] == [False, True, True]


@pytest.mark.parametrize("assist", ["off", "on"])
@pytest.mark.parametrize("source", ["b1", "b2", "b3", "b4"])
def test_a_source_reaches_exactly_the_brokers_on_the_walk_of_next_hops(
    source: str, assist: str
) -> None:
    cluster = four_in_a_line(DeltaTreeParameters(assist=assist))
    heard = {name: cluster.subscribe(name) for name in cluster.topology.brokers}
    cluster.run_until_quiet()
    cluster.link("b2", "b3").cut("out")
    cluster.run_for(10)
    published = cluster.publish(source, n=1)
    cluster.run_for(10)
    hearing = "".join(name[1] for name, who in heard.items() if published in who.received)
    assert hearing == names_that_hear(cluster, source, "1234")


def test_more_than_a_quarter_of_the_seeds_keep_links_broken_one_way_included() -> None:
    plans = [plan_of(seed, "delta_tree") for seed in range(400)]
    broken = [plan.broken for plan in plans if plan.broken]
    assert len(broken) > len(plans) / 4
    kinds = {item.kind for items in broken for item in items}
    assert kinds == {"cut", "cut_one_way", "blackhole", "blackhole_one_way"}
    assert all(type(item) is BrokenLink for items in broken for item in items)


def test_only_deliveries_owed_despite_a_broken_link_are_required() -> None:
    cluster = four_in_a_line(ALONE)
    cluster.subscribe("b2")
    cluster.run_until_quiet()
    cluster.link("b2", "b3").cut()
    cluster.run_for(10)
    number = cluster.topology.number_of
    broken = WhileBroken(cluster, [(number("b2"), number("b3"))])
    assert broken.missing() == []
    cluster.publish("b4", n=1)
    cluster.run_for(1)
    assert cluster.oracle.obligations.describe_undelivered()
    assert broken.missing() == []
    cluster.link("b1", "b2").absorb()
    cluster.publish("b1", n=2)
    cluster.run_for(1)
    assert "s1-b2/1 misses [1] of p-b1" in broken.missing()
    assert "p-b1 has no acknowledgement of [1]" in broken.missing()
    cluster.link("b1", "b2").heal()
    cluster.run_for(1)
    assert broken.missing() == []


def test_a_start_is_owed_whichever_link_is_broken() -> None:
    """The tags of the subscription name unreachable brokers; the stalled b2 is reachable."""
    cluster = SimulatedCluster(chain("b1", "b2", "b3"), network=STEADY).start()
    cluster.run_until_quiet()
    cluster.link("b2", "b3").absorb()
    cluster.subscribe("b1")
    cluster.run_for(1)
    for broken in [(0, 2)], [(0, 1)]:
        assert "s1-b1/1 has not started" in WhileBroken(cluster, broken).missing()
    cluster.link("b2", "b3").cut()
    cluster.link("b1", "b3").cut()
    cluster.run_for(5)
    assert WhileBroken(cluster, [(1, 2), (0, 2)]).missing() == []
