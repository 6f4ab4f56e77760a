"""Tests of the protocol promises of [DFT11], one test per promise: §III to §VIII.

The docstrings state the promise in our words and name the lines, as in test_dft11.py.
"""

from itertools import combinations

import pytest

from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.delta_tree.regions import covers
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import PublicationHandle, Subscription
from tests.helpers.cluster import chain, tree
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants
from tests.helpers.paper_stories import names, publish, settle, start

# ---------------------------------------------------------------- §III and §IV

FIGURE_4 = tree(
    "b0-b1", "b1-b2", "b2-b3", "b3-b4", "b4-b5", "b5-b6", "b6-b7",
    "b4-c1", "c1-c2", "c2-c3", "b3-d1", "d1-d2", "d2-d3", delta=2,
)  # fmt: skip


def test_the_partitions_of_figure_4_have_the_ids_of_the_paper() -> None:
    """An id is a tuple of detector, increasing number, and path of the nodes (lines 336-346)."""
    cluster = start(FIGURE_4)
    made = []
    for name in ("b3", "b4", "c1"):
        cluster.broker(name).kill()
        cluster.run_for(3)
    for event, details in cluster.broker("b2").broker.recorded:
        if event == "partition_new":
            made.append((details["number"], names(cluster, details["nodes"])))
    assert made == [(1, ["b3"]), (2, ["b3", "b4"]), (3, ["b3", "b4", "c1"])]


def test_a_partition_is_a_barrier_or_an_island_depending_on_the_path() -> None:
    """B3 alone: a barrier on the path to B3, an island on the path to D3 (lines 332-336)."""
    cluster = start(FIGURE_4)
    cluster.broker("b3").kill()
    cluster.run_for(3)
    cluster.subscribe("b2", "true", "s")
    cluster.run_until_quiet()
    number = {name: place for place, name in enumerate(FIGURE_4.brokers)}
    b2 = cluster.brokers[number["b2"]].protocol
    (row,) = b2._subscriptions.table.rows.values()  # type: ignore[attr-defined]
    behind = {
        name: covers(row.tags, cluster.tree.path(number["b2"], number[name]))
        for name in ("b3", "d1", "d3", "b4", "b0")
    }
    assert behind == {"b3": True, "d1": False, "d3": False, "b4": False, "b0": False}


def test_a_broken_session_is_replaced_by_sessions_to_all_neighbours_beyond() -> None:
    """X tries the neighbours of F in the background (lines 357-361)."""
    cluster = start(FIGURE_4)
    cluster.broker("b3").kill()
    cluster.run_for(3)
    assert {*names(cluster, cluster.broker("b2").status().ready)} >= {"b1", "b4", "d1"}


def partitions_at(cluster: SimulatedCluster, name: str) -> int:
    known: int = cluster.broker(name).status().detail["partitions"]
    return known


def test_partition_information_spreads_and_is_withdrawn() -> None:
    """Brokers within D_PT of a detector have the id (lines 362-370), and later not (891-900)."""
    cluster = start(chain(*(f"b{place}" for place in range(7))))
    cluster.broker("b5").kill()
    cluster.run_for(3)
    tables = [partitions_at(cluster, f"b{place}") for place in (0, 1, 2, 3, 4)]
    assert tables == [0, 0, 1, 1, 2]  # of b4 within 2δ = 2, and of b6, who detects it as well
    cluster.broker("b5").start()
    settle(cluster)
    assert [partitions_at(cluster, name) for name in cluster.topology.brokers] == [0] * 7


# ---------------------------------------------------------------- §V


def test_a_subscription_starts_when_every_broker_behind_has_confirmed() -> None:
    """A broker waits for its downstream brokers; edge brokers confirm at once (lines 400-424)."""
    cluster = start(chain("s", "b", "edge"))
    cluster.broker("edge").absorb()
    subscription = cluster.subscribe("s")
    cluster.run_for(0.3)
    assert not subscription.started
    cluster.broker("edge").release()
    cluster.run_for(0.3)
    assert subscription.started


def test_a_crashed_broker_does_not_block_a_subscription_for_ever() -> None:
    """The tags avoid a choice between liveness and reliability (lines 425-436)."""
    cluster = start(chain("s", "b", "dead"))
    cluster.broker("dead").kill()
    cluster.run_for(2)
    subscription = cluster.subscribe("s")
    cluster.run_for(2)
    assert subscription.started
    cluster.broker("dead").start()
    settle(cluster)
    one = cluster.publish("dead", n=1)
    settle(cluster)
    assert subscription.received == [one]


def _publish_into_an_island() -> None:
    """Cut the link a-b of s-a-b-c: c receives the subscription of s around b, and publishes."""
    cluster = start(chain("s", "a", "b", "c"))
    cluster.link("a", "b").cut()
    cluster.run_for(2)
    subscriber = cluster.subscribe("s")
    cluster.run_for(0.1)
    sent = publish(cluster, "c", 3)
    cluster.link("a", "b").heal()
    settle(cluster)
    sent.append(cluster.publish("c", n=9))
    settle(cluster)
    assert subscriber.received == sent[-len(subscriber.received) :]


def test_an_island_receives_a_subscription_before_a_matching_publication() -> None:
    """The upstream copy, tagged, is accepted at once (lines 445-465)."""
    _publish_into_an_island()


def test_deliveries_from_behind_a_barrier_form_a_suffix_of_the_publications() -> None:
    """Tags in confirmations reach the source, which stores them in a table (lines 466-613)."""
    cluster = start(chain("s", "b1", "b2", "far"))
    for name in ("b1", "b2"):
        cluster.broker(name).kill()
    cluster.run_for(3)
    subscriber = cluster.subscribe("s")
    cluster.run_for(3)
    assert subscriber.started
    assert cluster.broker("s").broker.core.statistics()["subscriptions_tagged"] == 1
    early = publish(cluster, "far", 3)
    for name in ("b2", "b1"):
        cluster.broker(name).start()
        cluster.run_for(1)
    settle(cluster)
    later = publish(cluster, "far", 3)
    settle(cluster)
    assert cluster.broker("s").broker.core.statistics()["subscriptions_tagged"] == 0
    assert [each for each in subscriber.received if each not in early] == later
    kept = [each for each in subscriber.received if each in early]
    assert kept == early[len(early) - len(kept) :]


# ---------------------------------------------------------------- §VI


def test_a_copy_is_retained_until_all_brokers_downstream_confirm() -> None:
    """The copy waits for each subscriber accepted by then (lines 627-630)."""
    cluster = start(chain("p", "b", "s"))
    cluster.subscribe("s")
    cluster.run_until_quiet()
    cluster.broker("s").absorb()
    cluster.publish("p", n=1)
    cluster.run_for(0.3)
    assert [cluster.broker(name).status().queued for name in ("p", "b")] == [1, 1]
    cluster.broker("s").release()
    cluster.run_until_quiet()
    assert [cluster.broker(name).status().queued for name in ("p", "b", "s")] == [0, 0, 0]


def _subscribers_broker_dies() -> None:
    cluster = start(chain("p", "b", "s"))
    subscriber = cluster.subscribe("s")
    cluster.run_until_quiet()
    cluster.broker("s").absorb()
    sent = publish(cluster, "p", 3)
    cluster.broker("s").kill()
    cluster.run_for(2)
    cluster.broker("s").start()
    settle(cluster)
    assert subscriber.received == sent


def test_a_broker_with_subscribers_is_waited_for() -> None:
    """A broker with subscribers remains in the outgoing set, unlike others (lines 658-662)."""
    _subscribers_broker_dies()


def test_the_invariants_detect_dropped_publications_for_unreachable_brokers() -> None:
    with (
        pytest.raises(InvariantViolated, match="too early"),
        plant_mutants([Mutant.DROP_UNREACHABLE_DESTINATIONS]),
    ):
        _subscribers_broker_dies()


@pytest.mark.parametrize("profile", ["robust", "paper"])
def test_publications_are_excluded_at_the_last_broker_and_announced(profile: str) -> None:
    """Interim brokers exclude nothing (lines 645-652); the announcement is ours."""
    parameters = DeltaTreeParameters(delta=1, profile=profile)
    cluster = start(chain("s", "b1", "b2", "far"), parameters=parameters)
    other = cluster.subscribe("b1", "true", "near")
    cluster.run_until_quiet()
    cluster.link("s", "b1").cut()
    cluster.link("s", "b2").cut()
    cluster.run_for(3)
    subscriber = cluster.subscribe("s")
    cluster.run_for(3)
    assert subscriber.started
    sent = publish(cluster, "far", 4)
    cluster.run_for(1)
    assert other.received == sent
    cluster.link("s", "b1").heal()
    cluster.link("s", "b2").heal()
    settle(cluster)
    late = cluster.publish("far", n=9)
    settle(cluster)
    assert subscriber.received[-1] == late
    assert cluster.oracle.notices.announced == len(sent) + 1 - len(subscriber.received)


# ---------------------------------------------------------------- §VII


def test_a_copy_sent_again_around_a_dead_broker_is_no_second_delivery() -> None:
    """A sends p by B and, after the failure of that session, to C directly (lines 680-685)."""
    cluster = start(chain("a", "b", "c"))
    subscriber = cluster.subscribe("c")
    cluster.run_until_quiet()
    cluster.link("b", "a").absorb()
    one = cluster.publish("a", n=1)
    cluster.run_for(0.3)
    cluster.broker("b").kill()
    cluster.run_for(2)
    two = cluster.publish("a", n=2)
    cluster.link("b", "a").heal()
    cluster.broker("b").start()
    settle(cluster)
    assert subscriber.received == [one, two]


@pytest.mark.parametrize("delta", [0, 1, 2, 3])
def test_two_legitimate_copies_meet_in_every_window(delta: int) -> None:
    """A window has 2δ+1 brokers, a copy bypasses at most δ: one broker saw both (lines 693-700)."""
    window = range(2 * delta + 1)
    routes = [
        {*window} - {*bypassed}
        for count in range(delta + 1)
        for bypassed in combinations(window, count)
    ]
    assert all(len(route) > delta for route in routes)  # a majority
    assert all(first & second for first in routes for second in routes)


# ---------------------------------------------------------------- §VIII


def test_a_reconnected_broker_receives_exactly_the_missed_publications() -> None:
    """The summary lists received publications; the sync point sends the rest (lines 826-850)."""
    cluster = start(chain("s", "b", "r"))
    cluster.subscribe("s", "n = 1", "before")
    cluster.run_until_quiet()
    cluster.broker("r").freeze()
    cluster.run_for(3)
    missed = cluster.subscribe("s", "n = 2", "missed")
    cluster.run_for(2)
    cluster.broker("r").thaw()
    cluster.run_until_quiet()
    assert cluster.broker("r").status().subscriptions == 2
    two = cluster.publish("r", n=2)
    settle(cluster)
    assert missed.received == [two]


def _barrier_heals() -> tuple[Subscription, list[PublicationHandle]]:
    cluster = start(chain("s", "b1", "b2", "far"))
    for name in ("b1", "b2"):
        cluster.broker(name).kill()
    cluster.run_for(3)
    subscriber = cluster.subscribe("s")
    cluster.run_for(3)
    for name in ("b1", "b2"):
        cluster.broker(name).start()
    cluster.run_for(30)
    later = publish(cluster, "far", 3)
    cluster.run_for(5)
    return subscriber, later


def test_a_recovery_notifier_opens_the_gate() -> None:
    """The source replaces the id by the ids still unaware, and delivers again (859-900)."""
    subscriber, later = _barrier_heals()
    assert subscriber.received == later


def test_without_notifiers_it_stays_closed() -> None:
    with plant_mutants([Mutant.NO_NOTIFIERS]):
        subscriber, _ = _barrier_heals()
    assert subscriber.received == []


@pytest.mark.parametrize("persist_routing", [True, False])
def test_a_broker_that_lost_everything_recovers_under_load(persist_routing: bool) -> None:
    """The broker has the neighbourhood; recovery ends with all partial ones (lines 905-916)."""
    parameters = DeltaTreeParameters(delta=1, persist_routing=persist_routing)
    cluster = start(chain("b0", "b1", "b2", "b3"), parameters=parameters)
    subscribers = [cluster.subscribe(name) for name in ("b0", "b3")]
    cluster.run_until_quiet()
    sent = []
    for n in range(60):
        sent.append(cluster.publish("b0", n=n))
        cluster.run_for(0.05)
        if n == 15:
            cluster.broker("b1").kill()
        if n == 25:
            cluster.broker("b1").start()
    settle(cluster)
    assert [subscriber.received for subscriber in subscribers] == [sent, sent]
    assert cluster.broker("b1").status().state == "running"
    assert "recovered" in [event for event, _ in cluster.broker("b1").broker.recorded]
