"""Tests of brokers that join the running tree as leaves, and leaves that leave the tree."""

import pytest

from brokerd.errors import ConfigError
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import MILLISECOND_NS, SECOND_NS
from tests.helpers.cluster import STEADY, chain, star, tree
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants


def _settled(cluster: SimulatedCluster) -> None:
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    cluster.inspection.check_internals()
    assert cluster.statistics()["queue_publications"] == 0


def _chain() -> SimulatedCluster:
    return SimulatedCluster(chain("b1", "b2", "b3"), network=STEADY).start()


def _publish_from_a_newcomer_at_once() -> None:
    cluster = SimulatedCluster(chain("b1", "b2", "b3"), network=STEADY).start()
    old = cluster.subscribe("b1")
    cluster.run_until_quiet()
    newcomer = cluster.join("n", "b3")
    cluster.link("n", "b3").delay(100 * MILLISECOND_NS)
    newcomer.start()
    sent = [cluster.publish("n", n=1), cluster.publish("n", n=2)]
    _settled(cluster)
    assert old.received == sent


def test_publications_wait_until_a_newcomer_has_the_subscriptions() -> None:
    _publish_from_a_newcomer_at_once()


def test_publications_are_lost_if_a_newcomer_considers_itself_complete() -> None:
    with (
        pytest.raises(InvariantViolated, match="acknowledged too early: n acknowledges"),
        plant_mutants([Mutant.NEWCOMER_IS_COMPLETE]),
    ):
        _publish_from_a_newcomer_at_once()


def _join_behind_a_broker_that_a_subscriber_cannot_reach() -> None:
    cluster = SimulatedCluster(chain("h", "p"), network=STEADY).start()
    cluster.run_until_quiet()
    cluster.link("h", "p").cut()
    subscriber = cluster.subscribe("h")
    cluster.run_for(5.0)
    assert subscriber.started
    newcomer = cluster.join("n", "p")
    cluster.link("h", "n").cut()
    newcomer.start()
    withheld = [cluster.publish("n", n=1), cluster.publish("n", n=2)]
    cluster.run_for(5.0)
    cluster.link("h", "p").heal()
    cluster.link("h", "n").heal()
    _settled(cluster)
    heard = [cluster.publish("n", n=3)]
    _settled(cluster)
    assert subscriber.received == heard
    assert cluster.oracle.notices.announced == len(withheld)


def test_a_newcomer_behind_an_unreachable_broker_is_withheld_until_the_links_heal() -> None:
    _join_behind_a_broker_that_a_subscriber_cannot_reach()


def test_an_unreachable_newcomer_counted_as_reached_loses_publications() -> None:
    with (
        pytest.raises(InvariantViolated, match=r"too early|silent|gap"),
        plant_mutants([Mutant.NEWCOMERS_ARE_HEARD]),
    ):
        _join_behind_a_broker_that_a_subscriber_cannot_reach()


def _joining() -> SimulatedCluster:
    """Return a settled chain with a subscriber, and a leaf with a publisher that is not started."""
    parameters = DeltaTreeParameters(cold_start_after_ns=SECOND_NS)
    cluster = SimulatedCluster(chain("b1", "b2", "b3"), network=STEADY, parameters=parameters)
    cluster.start().subscribe("b1", client="s")
    cluster.run_until_quiet()
    cluster.join("n", "b3")
    cluster.client("p", "n", publishes=True)
    return cluster


def _cut_off(cluster: SimulatedCluster) -> None:
    """Start the leaf without a path to the tree."""
    for other in ("b2", "b3"):
        cluster.link("n", other).cut()
    cluster.broker("n").start()


def _heal(cluster: SimulatedCluster) -> None:
    for other in ("b2", "b3"):
        cluster.link("n", other).heal()


def _publish_while_cut_off(cluster: SimulatedCluster, state: str) -> None:
    """Start the leaf without a path to the tree; what it accepts must arrive nevertheless."""
    _cut_off(cluster)
    cluster.link("p", "n").heal()
    cluster.publish("n", client="p", n=1)
    cluster.run_for(5)
    assert cluster.broker("n").status().state == state
    _heal(cluster)
    _settled(cluster)
    assert len(cluster.clients["s"].received[1]) == 1


def test_a_newcomer_does_not_continue_alone_before_its_first_recovery() -> None:
    _publish_while_cut_off(_joining(), "recovering")


def test_a_newcomer_recovers_from_its_parent_alone() -> None:
    """Another broker may lack a subscription that waits for no newcomer at the parent."""
    cluster = SimulatedCluster(tree("s-p", "p-q"), network=STEADY).start()
    cluster.run_until_quiet()
    links = [cluster.link("q", "s"), cluster.link("q", "p")]
    for link in links:
        link.cut()
    cluster.run_for(3)
    subscriber = cluster.subscribe("s")
    cluster.run_for(3)
    cluster.broker("p").kill()
    cluster.join("n", "p")
    links.append(cluster.link("n", "s").cut())
    cluster.broker("n").start()
    one = cluster.publish("n", n=1)
    cluster.run_for(3)
    assert cluster.broker("n").status().ready == (2,)
    cluster.broker("p").start()
    for link in links:
        link.heal()
    _settled(cluster)
    assert subscriber.received == [one]


def test_the_first_recovery_puts_unconfirmed_subscriptions_on_disk() -> None:
    """The newcomer confirms none: a publisher from before its restart is not back."""
    cluster = _joining()
    _cut_off(cluster)
    cluster.run_for(0.5)
    cluster.link("p", "n").cut()
    cluster.broker("n").restart()
    _heal(cluster)
    cluster.run_for(3)
    assert cluster.broker("n").status().state == "running"
    cluster.broker("n").kill()
    _publish_while_cut_off(cluster, "running")


def test_a_broker_that_joins_is_used_in_both_directions() -> None:
    cluster = _chain()
    old = cluster.subscribe("b1")
    cluster.run_until_quiet()
    cluster.join("n", "b3").start()
    new = cluster.subscribe("n")
    cluster.run_until_quiet()
    assert new.started
    sent = [cluster.publish("n", n=1), cluster.publish("n", n=2)]
    cluster.run_until_quiet()
    sent.append(cluster.publish("b1", n=3))
    _settled(cluster)
    assert old.received == sent
    assert new.received == sent
    status = cluster.broker("n").status()
    assert status.state == "running"
    assert [cluster.topology.brokers[number] for number in status.ready] == ["b3"]


def test_a_newcomer_learns_its_neighbourhood_and_bypasses_a_dead_parent() -> None:
    cluster = _chain()
    old = cluster.subscribe("b1")
    cluster.join("n", "b3").start()
    cluster.run_until_quiet()
    cluster.broker("b3").kill()
    cluster.run_for(2)
    one = cluster.publish("n", n=1)
    cluster.run_for(1)
    assert old.received == [one]  # b3 is still dead
    cluster.broker("b3").start()
    _settled(cluster)


def test_nothing_in_flight_is_lost_during_a_join() -> None:
    """Publications flow, subscriptions start, and the newcomer's parent crashes meanwhile."""
    cluster = SimulatedCluster(chain("b1", "b2", "b3", "b4"), network=STEADY, seed=5).start()
    before = cluster.subscribe("b4")
    cluster.run_until_quiet()
    sent = []
    for n in range(60):
        sent.append(cluster.publish("b1", n=n))
        cluster.run_for(0.05)
        if n == 10:
            cluster.join("n", "b2")
        if n == 12:
            cluster.broker("n").start()
        if n == 13:
            during = cluster.subscribe("n")
        if n == 14:
            cluster.broker("b2").kill()
        if n == 45:
            cluster.broker("b2").start()
    _settled(cluster)
    assert before.received == sent
    assert during.received == sent[-len(during.received) :]
    assert len(during.received) > 10


def test_a_subscription_made_before_a_newcomer_starts_receives_its_publications() -> None:
    """Before its start the new broker is tagged as unreachable."""
    cluster = _chain()
    cluster.join("n", "b3")
    cluster.run_for(1)
    early = cluster.subscribe("b1")
    cluster.run_for(5)
    assert early.started
    cluster.broker("n").start()
    cluster.run_until_quiet()
    one = cluster.publish("n", n=1)
    _settled(cluster)
    assert early.received == [one]


def test_a_newcomer_restarts_like_any_other_broker() -> None:
    cluster = _chain()
    cluster.join("n", "b3").start()
    subscriber = cluster.subscribe("n")
    cluster.run_until_quiet()
    sent = [cluster.publish("b1", n=1)]
    cluster.broker("n").restart()
    cluster.broker("b3").restart()
    sent.append(cluster.publish("b1", n=2))
    _settled(cluster)
    assert subscriber.received == sent


def test_a_newcomer_may_be_joined_in_its_turn() -> None:
    cluster = _chain()
    for name, at in (("n", "b3"), ("m", "n"), ("o", "m")):
        cluster.join(name, at).start()
    first, last = cluster.subscribe("b1"), cluster.subscribe("o")
    cluster.run_until_quiet()
    sent = [cluster.publish("o", n=1), cluster.publish("n", n=2)]
    _settled(cluster)
    assert set(first.received) == set(last.received) == set(sent)


def test_the_remaining_brokers_continue_after_a_leaf_leaves() -> None:
    cluster = SimulatedCluster(star("b1", "b2", "b3", "b4"), network=STEADY).start()
    subscriber = cluster.subscribe("b2")
    cluster.run_until_quiet()
    cluster.leave("b4")
    cluster.run_for(1)
    one = cluster.publish("b3", n=1)
    late = cluster.subscribe("b3")
    cluster.run_until_quiet()
    assert late.started
    two = cluster.publish("b2", n=2)
    _settled(cluster)
    assert subscriber.received == [one, two]
    assert late.received == [two]
    assert 3 not in cluster.broker("b1").status().wanted


def test_gates_that_only_a_departed_leaf_kept_closed_are_opened() -> None:
    cluster = _chain()
    cluster.join("n", "b3")
    cluster.run_for(1)
    early = cluster.subscribe("b1")
    cluster.run_for(3)
    assert early.started
    assert cluster.statistics()["subscriptions_tagged"] > 0
    cluster.broker("n").start()
    cluster.broker("n").freeze()
    cluster.broker("n").thaw()
    cluster.leave("n")
    cluster.run_until_quiet()
    assert cluster.statistics()["subscriptions_tagged"] == 0
    _settled(cluster)


@pytest.mark.parametrize(
    "name, at, why",
    [
        ("b1", "b2", "a broker is or was called 'b1' already"),
        ("n", "b9", "no broker called 'b9' to link it to; did you mean"),
        ("N!", "b1", "'N!' is not of"),
    ],
)
def test_an_invalid_join_is_refused_with_the_reason(name, at, why) -> None:
    with pytest.raises(ConfigError, match=why):
        _chain().join(name, at)


def test_a_broker_with_several_links_cannot_leave() -> None:
    with pytest.raises(ConfigError, match="b2 is linked to b1, b3; only a leaf can leave"):
        _chain().leave("b2")


def test_subscriptions_of_a_departed_leaf_are_removed_from_the_disks() -> None:
    """The leaf departs before all brokers have received the unsubscription of its client."""
    cluster = SimulatedCluster(chain("b1", "b2", "b3"), network=STEADY, seed=2).start()
    cluster.join("n", "b3").start()
    cluster.subscribe("n", client="s")
    cluster.run_until_quiet()
    assert all(broker.core.status().subscriptions for broker in cluster.brokers)
    cluster.link("b3", "n").blackhole()
    cluster.population.detach("s")
    cluster.run_for(0.05)
    cluster.leave("n")
    cluster.run_for(0.5)
    for name in ("b1", "b2", "b3"):
        cluster.broker(name).kill()
    for name in ("b1", "b2", "b3"):
        cluster.broker(name).start()
    cluster.run_for(1)
    subscriptions = {b.name: b.core.status().subscriptions for b in cluster.brokers if b.alive}
    assert subscriptions == {"b1": 0, "b2": 0, "b3": 0}
