"""Tests of unsubscriptions, which are final at all brokers despite failures.

Interleaving 24 of the design: the unsubscription overtakes the subscription; brokers are down
during it; all brokers that received it crash. Each story runs with the strict oracle, and once more
without the rule under test.
"""

import pytest

from brokerd.protocols.delta_tree.checks.internals import zombies
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.tombstones import LAST_NUMBER
from brokerd.simulator.world.cluster import SimulatedCluster
from tests.helpers.cluster import STEADY, chain, star
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants


def _cluster(*names: str, linger_s: float = 60) -> SimulatedCluster:
    parameters = DeltaTreeParameters(delta=1, client_linger_ns=int(linger_s * 1e9))
    return SimulatedCluster(chain(*names), network=STEADY, parameters=parameters).start()


def _rows(cluster: SimulatedCluster) -> dict[str, int]:
    return {
        broker.name: broker.core.status().subscriptions
        for broker in cluster.brokers
        if broker.alive
    }


def _settle(cluster: SimulatedCluster) -> None:
    cluster.run_until_quiet()
    cluster.inspection.check_internals()
    assert cluster.statistics()["queue_publications"] == 0


def test_an_ended_subscription_is_removed_everywhere_and_its_stream_stops() -> None:
    cluster = _cluster("b1", "b2", "b3", "b4")
    oil, gas = cluster.subscribe("b4", "n = 1", "s"), cluster.subscribe("b4", "n > 0", "s")
    cluster.run_until_quiet()
    first = cluster.publish("b1", n=1)
    cluster.run_until_quiet()
    cluster.publish("b1", n=1)  # is under way
    cluster.unsubscribe("s", oil.number)
    second = cluster.publish("b1", n=2)
    _settle(cluster)
    cluster.oracle.judge_end()
    assert oil.received == [first]
    assert [each.sequence for each in gas.received] == [1, 2, second.sequence]
    assert set(_rows(cluster).values()) == {1}, "the other subscription stays"


def test_queued_publications_are_discarded_after_the_last_unsubscription() -> None:
    cluster = _cluster("b1", "b2", "b3")
    s = cluster.subscribe("b3", client="s")
    cluster.run_until_quiet()
    s.client.take_after_ns = 10_000_000_000
    for number in range(5):
        cluster.publish("b1", n=number)
    cluster.run_for(0.1)
    assert cluster.statistics()["queue_publications"] > 0
    cluster.unsubscribe("s")
    cluster.run_for(0.1)
    assert cluster.statistics()["queue_publications"] == 0
    assert cluster.oracle.obligations.describe_undelivered() == [], (
        "the publisher knows that all is done"
    )


def test_ending_a_subscription_again_or_before_it_started_changes_nothing_else() -> None:
    cluster = _cluster("b1", "b2", "b3")
    cluster.broker("b1").absorb()
    cluster.subscribe("b3", client="s")
    cluster.run_for(0.05)
    cluster.unsubscribe("s")
    cluster.run_for(0.05)
    cluster.broker("b1").release()
    _settle(cluster)
    assert set(_rows(cluster).values()) == {0}
    assert zombies(cluster.brokers) == []


def test_a_client_that_detaches_leaves_nothing_behind() -> None:
    cluster = _cluster("b1", "b2", "b3")
    for predicate in ("n = 1", "n = 2", "true"):
        cluster.subscribe("b3", predicate, "s")
    cluster.publish("b1", n=1)
    cluster.run_until_quiet()
    cluster.population.detach("s")
    cluster.population.detach("p-b1")
    _settle(cluster)
    assert set(_rows(cluster).values()) == {0}
    assert all(client.detached for client in cluster.clients.values())


@pytest.mark.parametrize("seed", range(6))
def test_a_crash_causes_no_wait_for_a_detached_publisher(seed: int) -> None:
    """The detachment is confirmed only after the release of state is on disk."""
    cluster = SimulatedCluster(chain("b1", "b2"), network=STEADY, seed=seed).start()
    cluster.publish("b1", client="p", n=1)
    cluster.run_until_quiet()
    cluster.population.detach("p")
    while not cluster.clients["p"].detached:
        assert cluster.step(cluster.schedule.now_ns + 1_000_000_000)
    cluster.broker("b1").restart()
    cluster.run_until_quiet()
    late = cluster.subscribe("b2")
    cluster.run_for(1)
    assert late.started


def test_subscriptions_of_a_vanished_client_end_after_its_linger_time() -> None:
    cluster = _cluster("b1", "b2", "b3", linger_s=2)
    s = cluster.subscribe("b3", client="s")
    cluster.run_until_quiet()
    s.client.leave()
    cluster.oracle.on_unsubscribed("s", s.number)
    cluster.publish("b1", n=1)
    cluster.run_for(1)
    assert set(_rows(cluster).values()) == {1}
    cluster.run_for(3)
    assert set(_rows(cluster).values()) == {0}
    assert cluster.oracle.obligations.describe_undelivered() == []


def test_a_number_is_free_again_for_an_application_that_forgot_it() -> None:
    cluster = _cluster("b1", "b2", "b3")
    first = cluster.subscribe("b3", "n = 1", "s")
    cluster.run_until_quiet()
    cluster.publish("b1", n=1)
    cluster.run_until_quiet()
    cluster.population.detach("s")
    cluster.run_until_quiet()
    del cluster.clients["s"]
    again = cluster.subscribe("b3", "n = 1", "s")
    cluster.run_until_quiet()
    third = cluster.publish("b1", n=1)
    _settle(cluster)
    assert (len(first.received), again.received) == (1, [third])


# ---------------------------------------------------------------- interleaving 24


def _end_overtakes_subscription() -> list[str]:
    """v receives the subscription and its end by bypass, and later the subscription from x."""
    cluster = _cluster("s", "x", "v")
    cluster.link("x", "v").absorb("out")
    cluster.subscribe("s", client="c")
    cluster.run_for(0.02)
    cluster.link("s", "x").cut()
    cluster.run_for(2)
    cluster.unsubscribe("c")
    cluster.run_for(0.1)
    assert _rows(cluster) == {"s": 0, "x": 0, "v": 0}
    cluster.link("x", "v").release_one()
    cluster.run_for(0.1)
    cluster.link("x", "v").heal()
    cluster.run_for(5)
    return zombies(cluster.brokers)


def test_the_end_overtakes_the_subscription_and_stays_the_end() -> None:
    assert _end_overtakes_subscription() == []


def test_without_tombstones_a_late_copy_brings_the_subscription_back() -> None:
    with plant_mutants([Mutant.NO_TOMBSTONES]):
        assert _end_overtakes_subscription()


def _broker_is_away_when_it_is_told() -> list[str]:
    """w, cut off, keeps the subscription that c has ended; home dies for good before w returns."""
    cluster = _cluster("s", "x", "v", "w")
    cluster.subscribe("s", client="c")
    cluster.run_until_quiet()
    cluster.link("v", "w").cut()
    cluster.link("x", "w").cut()
    cluster.unsubscribe("c")
    cluster.run_for(10)  # v and w, asked for a way to each other, never stop dialling
    assert _rows(cluster) == {"s": 0, "x": 0, "v": 0, "w": 1}
    cluster.broker("s").kill()
    cluster.link("v", "w").heal()
    cluster.run_for(20)
    return zombies(cluster.brokers)


def test_a_returning_broker_is_notified_of_an_ended_subscription() -> None:
    assert _broker_is_away_when_it_is_told() == []


def test_without_tombstones_it_brings_the_subscription_back() -> None:
    with plant_mutants([Mutant.NO_TOMBSTONES]):
        left = _broker_is_away_when_it_is_told()
    assert "v routes by (0, 1, 1), which is over" in left


def _all_who_know_crash() -> list[str]:
    """w is down when c unsubscribes; home dies for good, and all notified brokers restart."""
    cluster = _cluster("s", "x", "v", "w")
    cluster.subscribe("s", client="c")
    cluster.run_until_quiet()
    cluster.broker("w").kill()
    cluster.unsubscribe("c")
    cluster.run_for(2)
    for name in ("s", "x", "v"):
        cluster.broker(name).kill()
    for name in ("x", "v", "w"):
        cluster.broker(name).start()
    cluster.run_for(60)
    return zombies(cluster.brokers)


def test_the_end_is_remembered_on_disk_where_the_subscription_is() -> None:
    assert _all_who_know_crash() == []


def test_volatile_tombstones_leave_a_row_for_ever() -> None:
    with plant_mutants([Mutant.TOMBSTONES_VOLATILE]):
        left = _all_who_know_crash()
    assert "x routes by (0, 1, 1), which is over" in left


def _home_crashes_with_a_pending_subscription() -> list[str]:
    """The subscription is reissued after the crash; no broker has the old id."""
    cluster = _cluster("s", "x", "v", "w")
    cluster.broker("w").absorb()
    cluster.subscribe("s", client="c")
    cluster.run_for(0.1)
    cluster.broker("s").restart()
    cluster.run_for(1)
    cluster.broker("w").release()
    cluster.run_until_quiet()
    return zombies(cluster.brokers)


def test_an_access_broker_revokes_subscriptions_pending_at_its_crash() -> None:
    assert _home_crashes_with_a_pending_subscription() == []


def test_a_pending_subscription_remains_without_the_authority_of_its_access_broker() -> None:
    with plant_mutants([Mutant.NO_HOME_AUTHORITY]):
        assert _home_crashes_with_a_pending_subscription()


def test_many_ended_subscriptions_are_stored_as_ranges() -> None:
    cluster = SimulatedCluster(star("m", "a", "b"), network=STEADY).start()
    for _ in range(40):
        cluster.subscribe("a", client="c")
    cluster.run_until_quiet()
    for number in range(1, 41):
        if number != 7:
            cluster.unsubscribe("c", number)
    cluster.run_until_quiet()
    (said,) = cluster.brokers[2].protocol._unsubscriptions.statements()
    assert said.ranges == ((1, 1, 1, 6), (1, 8, 1, 40))
    for _ in range(3):
        cluster.broker("a").restart()
        cluster.run_until_quiet()
    (said,) = cluster.brokers[0].protocol._unsubscriptions.statements()
    assert said.ranges == ((1, 1, 1, 6), (1, 8, 3, LAST_NUMBER)), "one range for what is between"
    cluster.unsubscribe("c", 7)
    cluster.run_until_quiet()
    cluster.broker("a").restart()
    cluster.run_until_quiet()
    (said,) = cluster.brokers[0].protocol._unsubscriptions.statements()
    assert (said.before, said.ranges) == (5, ()), "one number for whole incarnations"
