"""What [DFT11] promises, sentence by sentence, each promise a test.

The docstrings name the promise in our words and the lines it stands in. Where a promise holds
only with a repair of ours, the test shows the repair, and that the paper's own rule is not
enough. Figures have their claims in bench/claims/dft11.toml; here is what they rest on.
"""

import random
from itertools import combinations, pairwise

import pytest

from brokerd.config import DeltaTreeParameters, Mutant
from brokerd.model.identity import PartitionId
from brokerd.overlay.connectivity import Connectivity
from brokerd.overlay.generate import balanced_tree
from brokerd.overlay.primary_tree import PrimaryTree
from brokerd.overlay.topology import Topology
from brokerd.protocols.delta_tree.partitions import partition_kind
from brokerd.simulator.clock import MILLISECOND_NS
from brokerd.simulator.cluster import Published, SimulatedCluster, Subscription
from brokerd.simulator.oracle import InvariantViolated
from tests.helpers.cluster import STEADY, chain, star, tree

PUBLISHED = 20


def start(topology: Topology, **settings: object) -> SimulatedCluster:
    """All brokers up, all sessions ready; the strict oracle judges every step from here on."""
    cluster = SimulatedCluster(topology, network=STEADY, **settings).start()
    cluster.run_until_quiet()
    return cluster


def publish(cluster: SimulatedCluster, broker: str, count: int = PUBLISHED) -> list[Published]:
    """One publication every 50 ms."""
    sent = []
    for n in range(count):
        sent.append(cluster.publish(broker, n=n))
        cluster.run_for(0.05)
    return sent


def settled(cluster: SimulatedCluster) -> None:
    """Everything owed has arrived, and nobody holds anything any more."""
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    cluster.check_internals()


def names(cluster: SimulatedCluster, numbers: tuple[int, ...] | list[int]) -> list[str]:
    return [cluster.topology.brokers[number] for number in numbers]


# ---------------------------------------------------------------- abstract and §I


@pytest.mark.parametrize("delta", [1, 2, 3])
def test_delta_brokers_in_a_row_may_crash_at_once(delta: int) -> None:
    """Up to δ brokers fail together: exactly once and in order all the same (lines 2-11)."""
    line = [f"b{place}" for place in range(delta + 4)]
    cluster = start(chain(*line, delta=delta))
    subscriber = cluster.subscribe(line[-1])
    cluster.run_until_quiet()
    sent = publish(cluster, line[0], 5)
    for name in line[2 : 2 + delta]:
        cluster.broker(name).kill()
    sent += publish(cluster, line[0])
    cluster.run_for(3)
    assert subscriber.received == sent  # they are still dead
    for name in line[2 : 2 + delta]:
        cluster.broker(name).start()
    settled(cluster)
    assert subscriber.received == sent


@pytest.mark.parametrize("delta", [1, 2])
def test_delta_links_may_fail_at_once_and_nothing_is_lost(delta: int) -> None:
    """The same for links (lines 2-5); what waits for a link arrives once it is back."""
    line = [f"b{place}" for place in range(delta + 4)]
    cluster = start(chain(*line, delta=delta))
    subscriber = cluster.subscribe(line[-1])
    cluster.run_until_quiet()
    links = list(pairwise(line))[1 : 1 + delta]
    for a, b in links:
        cluster.link(a, b).cut()
    sent = publish(cluster, line[0])
    for a, b in links:
        cluster.link(a, b).heal()
    settled(cluster)
    assert subscriber.received == sent


def test_one_failure_more_than_delta_may_stall_but_not_break_anything() -> None:
    """Beyond δ the paper studies how much arrives (lines 12-17); never is anything wrong."""
    cluster = start(chain("b0", "b1", "b2", "b3", "b4"))
    subscriber = cluster.subscribe("b4")
    cluster.run_until_quiet()
    cluster.broker("b1").kill()
    cluster.broker("b2").kill()
    sent = publish(cluster, "b0", 5)
    assert subscriber.received == []
    cluster.broker("b1").start()
    cluster.broker("b2").start()
    settled(cluster)
    assert subscriber.received == sent


def test_no_matching_publication_is_missing_between_two_delivered_ones() -> None:
    """Gap-less means over the matching ones only, per source (lines 33-40)."""
    cluster = start(star("m", "p", "q", "s"))
    some = cluster.subscribe("s", "n > 9")
    cluster.run_until_quiet()
    sent = []
    for n in (1, 12, 3, 11, 10, 2, 15):
        published = [cluster.publish(broker, n=n) for broker in ("p", "q")]
        sent += published if n > 9 else []
        cluster.run_for(0.02)
    settled(cluster)
    for source in ("p-p", "p-q"):
        wanted = [each for each in sent if each.client == source]
        assert [each for each in some.received if each.client == source] == wanted


def _figure_1(mutants: frozenset[Mutant] = frozenset()) -> tuple[Subscription, list[Published]]:
    """s2 asks while b1 is cut off; of p1, p2, p3 behind the cut b1 knows s1 to want two."""
    cluster = start(star("b2", "b1", "b3", "b4", delta=0), mutants=mutants)
    cluster.subscribe("b3", "kind != 'video'", "s1")
    cluster.run_until_quiet()
    cluster.link("b1", "b2").cut()
    cluster.run_for(2)
    second = cluster.subscribe("b4", "true", "s2")
    cluster.run_for(1)
    behind = [cluster.publish("b1", kind=kind) for kind in ("page", "video", "page")]
    cluster.run_for(1)
    cluster.link("b1", "b2").heal()
    settled(cluster)
    after = [cluster.publish("b1", kind=kind) for kind in ("video", "page")]
    settled(cluster)
    assert not {*second.received} & {*behind}
    return second, after


def test_the_gap_of_figure_1_is_prevented() -> None:
    """A broker that missed a subscription must not tear a hole into its stream (lines 100-150)."""
    second, after = _figure_1()
    assert second.received == after


def test_the_gap_of_figure_1_is_there_without_tags() -> None:
    with pytest.raises(InvariantViolated, match="gap: s2/1"):
        _figure_1(frozenset((Mutant.NO_TAGS_UNREACHABLE_DONE,)))


def test_a_newcomer_knows_its_neighbourhood_and_its_neighbourhood_knows_it() -> None:
    """Joining, a broker learns who is within Δ = δ + 1 and is made known to them (201-207)."""
    cluster = start(chain("b0", "b1", "b2", "b3"))
    cluster.join("n", "b3").start()
    cluster.run_until_quiet()
    cluster.broker("b3").kill()
    cluster.run_for(3)
    assert names(cluster, cluster.broker("n").status()["ready"]) == ["b2"]
    assert "n" in names(cluster, cluster.broker("b2").status()["ready"])
    assert "n" not in names(cluster, cluster.broker("b1").status()["wanted"])


def test_messages_go_along_the_primary_tree_whatever_links_are_in_use() -> None:
    """Routing is decided by the primary paths, forwarding by the sessions there are (220-229)."""
    cluster = start(chain("b0", "b1", "b2", "b3"))
    subscriber = cluster.subscribe("b3")
    cluster.run_until_quiet()
    cluster.broker("b1").kill()
    cluster.run_for(3)
    sent = publish(cluster, "b0", 3)
    assert subscriber.received == sent
    assert names(cluster, cluster.broker("b0").status()["ready"]) == ["b2"]


def test_reconfiguring_loses_no_publication() -> None:
    """The transition to other links is smooth: nothing is lost on the way (lines 229-232)."""
    cluster = start(chain("b0", "b1", "b2", "b3"))
    subscriber = cluster.subscribe("b3")
    cluster.run_until_quiet()
    sent = []
    for n in range(60):
        sent.append(cluster.publish("b0", n=n))
        cluster.run_for(0.02)
        if n in (10, 35):
            cluster.broker("b1" if n == 10 else "b2").absorb()
        if n in (14, 39):
            cluster.broker("b1" if n == 14 else "b2").kill()
        if n in (30, 55):
            cluster.broker("b1" if n == 30 else "b2").start()
    settled(cluster)
    assert subscriber.received == sent


def _ask_while_a_publication_is_kept(mutants: frozenset[Mutant]) -> None:
    """n=6 is kept for z and n=7, which nobody wants, is done; then `late` asks, p forgets."""
    cluster = start(chain("s", "p"), mutants=mutants)
    cluster.subscribe("s", "n = 6", "z")
    cluster.client("p-p", "p", publishes=True)
    cluster.run_until_quiet()
    cluster.link("p", "p-p").delay(20 * MILLISECOND_NS)
    cluster.link("s", "p").cut()
    for n in (6, 7):
        cluster.publish("p", n=n)
        cluster.run_for(0.05)
    late = cluster.subscribe("s", "true", "late")
    cluster.run_for(0.05)
    cluster.broker("p").kill()
    cluster.link("s", "p").heal()
    cluster.broker("p").start()
    cluster.run_until_quiet()
    eight = cluster.publish("p", n=8)
    settled(cluster)
    assert late.received == [eight]


def test_the_safety_condition_needs_a_start_cut() -> None:
    """Forwarded by aware brokers only (lines 236-239, 614-621): true of n=6, and not enough."""
    _ask_while_a_publication_is_kept(frozenset())
    with pytest.raises(InvariantViolated, match="gap: late/1"):
        _ask_while_a_publication_is_kept(frozenset((Mutant.NO_CUT,)))


# ---------------------------------------------------------------- §II


@pytest.mark.parametrize("how", ["crash", "freeze", "blackhole"])
def test_whatever_makes_a_neighbour_unreachable_it_is_gone_around(how: str) -> None:
    """A crash and a dead link look the same, so one notion covers both (lines 258-268)."""
    cluster = start(chain("b0", "b1", "b2", "b3"))
    subscriber = cluster.subscribe("b3")
    cluster.run_until_quiet()
    if how == "crash":
        cluster.broker("b1").kill()
    elif how == "freeze":
        cluster.broker("b1").freeze()
    else:
        for other in ("b0", "b2", "b3"):
            cluster.link("b1", other).blackhole()
    sent = publish(cluster, "b0", 5)
    cluster.run_for(4)
    assert subscriber.received == sent


def test_an_active_session_has_no_established_one_before_it() -> None:
    """S(A,C) is active for A while A has none to a broker between (284-288); asymmetric."""
    alone = DeltaTreeParameters(delta=1, assist="off")  # else b would be reached through c
    cluster = start(chain("a", "b", "c"), parameters=alone)
    cluster.link("a", "b").cut()
    cluster.run_for(3)
    a, c = cluster.broker("a").status(), cluster.broker("c").status()
    assert names(cluster, a["ready"]) == ["c"]
    assert "c" in names(cluster, a["wanted"])  # active for a
    assert "a" not in names(cluster, c["wanted"]) or "b" not in names(cluster, c["ready"])


@pytest.mark.parametrize("seed", range(5))
def test_at_most_one_session_is_active_on_each_primary_path(seed: int) -> None:
    """Lines 300-304; looked at in every broker while random brokers crash."""
    draw = random.Random(seed)
    cluster = start(balanced_tree(14, 3, 2), seed=seed)
    for _ in range(6):
        victims = [cluster.broker(name) for name in draw.sample(cluster.topology.brokers, 2)]
        for victim in victims:
            victim.kill()
        for _ in range(10):
            cluster.run_for(0.2)
            cluster.check_internals()
        for victim in victims:
            victim.start()
    cluster.run_until_quiet()


# ---------------------------------------------------------------- §III and §IV

FIGURE_4 = tree(
    "b0-b1", "b1-b2", "b2-b3", "b3-b4", "b4-b5", "b5-b6", "b6-b7",
    "b4-c1", "c1-c2", "c2-c3", "b3-d1", "d1-d2", "d2-d3", delta=2,
)  # fmt: skip


def test_the_partitions_of_figure_4_have_the_ids_of_the_paper() -> None:
    """A tuple of detector, a number that rises, and the path of the nodes (lines 336-346)."""
    cluster = start(FIGURE_4)
    made = []
    for name in ("b3", "b4", "c1"):
        cluster.broker(name).kill()
        cluster.run_for(3)
    for event, details in cluster.broker("b2").broker.recorded:
        if event == "partition_new":
            made.append((details["number"], names(cluster, details["nodes"])))
    assert made == [(1, ["b3"]), (2, ["b3", "b4"]), (3, ["b3", "b4", "c1"])]


def test_one_partition_is_a_barrier_for_some_and_an_island_for_others() -> None:
    """B3 alone: a barrier on the way to itself, an island on the way to D3 (lines 332-336)."""
    number = {name: place for place, name in enumerate(FIGURE_4.brokers)}
    path = PrimaryTree(FIGURE_4).path
    alone = PartitionId(number["b2"], 1, 1, (number["b3"],))
    reached = [number["b4"], number["d1"]]
    assert partition_kind(alone, path(number["b2"], number["b3"]), reached) == "barrier"
    assert partition_kind(alone, path(number["b2"], number["d3"]), reached) == "island"
    assert partition_kind(alone, path(number["b2"], number["b0"]), reached) is None


def test_a_broken_session_is_replaced_by_sessions_to_all_neighbours_beyond() -> None:
    """X tries the neighbours of F in the background (lines 357-361)."""
    cluster = start(FIGURE_4)
    cluster.broker("b3").kill()
    cluster.run_for(3)
    assert {*names(cluster, cluster.broker("b2").status()["ready"])} >= {"b1", "b4", "d1"}


def test_partition_information_spreads_and_is_taken_back() -> None:
    """Those within D_PT of a detector have its id (lines 362-370), and then not (891-900)."""
    cluster = start(chain(*(f"b{place}" for place in range(7))))
    cluster.broker("b5").kill()
    cluster.run_for(3)
    tables = [cluster.broker(f"b{place}").status()["partitions"] for place in (0, 1, 2, 3, 4)]
    assert tables == [0, 0, 1, 1, 2]  # of b4 within 2δ = 2, and of b6, who detects it as well
    cluster.broker("b5").start()
    settled(cluster)
    assert [cluster.broker(name).status()["partitions"] for name in cluster.topology.brokers] == [
        0
    ] * 7


# ---------------------------------------------------------------- §V


def test_a_subscription_starts_when_every_broker_behind_has_confirmed() -> None:
    """Each waits for those it sent to; an edge broker confirms at once (lines 400-424)."""
    cluster = start(chain("s", "b", "edge"))
    cluster.broker("edge").absorb()
    subscription = cluster.subscribe("s")
    cluster.run_for(0.3)
    assert not subscription.started
    cluster.broker("edge").release()
    cluster.run_for(0.3)
    assert subscription.started


def test_a_crashed_broker_does_not_block_a_subscription_for_ever() -> None:
    """The choice between liveness and reliability that the tags avoid (lines 425-436)."""
    cluster = start(chain("s", "b", "dead"))
    cluster.broker("dead").kill()
    cluster.run_for(2)
    subscription = cluster.subscribe("s")
    cluster.run_for(2)
    assert subscription.started
    cluster.broker("dead").start()
    settled(cluster)
    one = cluster.publish("dead", n=1)
    settled(cluster)
    assert subscription.received == [one]


def _publish_into_an_island(mutants: frozenset[Mutant]) -> None:
    """s-a-b-c, the link a-b is cut: c hears of s around b, and publishes through b at once."""
    cluster = start(chain("s", "a", "b", "c"), mutants=mutants)
    cluster.link("a", "b").cut()
    cluster.run_for(2)
    subscriber = cluster.subscribe("s")
    cluster.run_for(0.1)
    sent = publish(cluster, "c", 3)
    cluster.link("a", "b").heal()
    settled(cluster)
    sent.append(cluster.publish("c", n=9))
    settled(cluster)
    assert subscriber.received == sent[-len(subscriber.received) :]


def test_an_island_is_given_the_subscription_before_a_publication_that_matches_it() -> None:
    """The copy upstream, tagged, is accepted at once (lines 445-465)."""
    _publish_into_an_island(frozenset())


def test_what_lies_behind_a_barrier_is_not_delivered_before_it_is_aware() -> None:
    """Tags in confirmations reach the source, which keeps them in its table (lines 466-613)."""
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
    settled(cluster)
    later = publish(cluster, "far", 3)
    settled(cluster)
    assert cluster.broker("s").broker.core.statistics()["subscriptions_tagged"] == 0
    assert [each for each in subscriber.received if each not in early] == later
    kept = [each for each in subscriber.received if each in early]
    assert kept == early[len(early) - len(kept) :]


# ---------------------------------------------------------------- §VI


def test_a_copy_is_kept_until_everybody_behind_has_it() -> None:
    """Until a confirmation says so, for each subscriber accepted by then (lines 627-630)."""
    cluster = start(chain("p", "b", "s"))
    cluster.subscribe("s")
    cluster.run_until_quiet()
    cluster.broker("s").absorb()
    cluster.publish("p", n=1)
    cluster.run_for(0.3)
    assert [cluster.broker(name).status()["queue"] for name in ("p", "b")] == [1, 1]
    cluster.broker("s").release()
    cluster.run_until_quiet()
    assert [cluster.broker(name).status()["queue"] for name in ("p", "b", "s")] == [0, 0, 0]


def _subscribers_broker_dies(mutants: frozenset[Mutant]) -> None:
    cluster = start(chain("p", "b", "s"), mutants=mutants)
    subscriber = cluster.subscribe("s")
    cluster.run_until_quiet()
    cluster.broker("s").absorb()
    sent = publish(cluster, "p", 3)
    cluster.broker("s").kill()
    cluster.run_for(2)
    cluster.broker("s").start()
    settled(cluster)
    assert subscriber.received == sent


def test_a_broker_with_subscribers_is_waited_for() -> None:
    """Unlike others it is not taken out of the outgoing set (lines 658-662)."""
    _subscribers_broker_dies(frozenset())


def test_what_is_for_its_subscribers_is_lost_if_it_is_not_waited_for() -> None:
    with pytest.raises(InvariantViolated, match="too early"):
        _subscribers_broker_dies(frozenset((Mutant.DROP_UNREACHABLE_DESTINATIONS,)))


@pytest.mark.parametrize("profile", ["robust", "paper"])
def test_what_is_excluded_is_excluded_at_the_last_broker_and_told(profile: str) -> None:
    """Not at interim brokers (lines 645-652); the subscriber is told, which is ours."""
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
    settled(cluster)
    late = cluster.publish("far", n=9)
    settled(cluster)
    assert subscriber.received[-1] == late
    assert cluster.oracle.announced == len(sent) + 1 - len(subscriber.received)


# ---------------------------------------------------------------- §VII


def test_a_copy_sent_again_around_a_dead_broker_is_no_second_delivery() -> None:
    """A sends p by B and, when that session fails, to C itself (lines 680-685)."""
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
    settled(cluster)
    assert subscriber.received == [one, two]


@pytest.mark.parametrize("delta", [0, 1, 2, 3])
def test_two_legitimate_copies_meet_in_every_window(delta: int) -> None:
    """2δ+1 brokers, each copy around δ of them at most: one has seen both (lines 693-700)."""
    window = range(2 * delta + 1)
    routes = [
        {*window} - {*bypassed}
        for count in range(delta + 1)
        for bypassed in combinations(window, count)
    ]
    assert all(len(route) > delta for route in routes)  # a majority
    assert all(first & second for first in routes for second in routes)


# ---------------------------------------------------------------- §VIII


def test_a_broker_that_was_away_gets_what_it_has_missed_and_nothing_else() -> None:
    """Its summary says what it has; the sync point sends the rest (lines 826-850)."""
    cluster = start(chain("s", "b", "r"))
    cluster.subscribe("s", "n = 1", "before")
    cluster.run_until_quiet()
    cluster.broker("r").freeze()
    cluster.run_for(3)
    missed = cluster.subscribe("s", "n = 2", "missed")
    cluster.run_for(2)
    cluster.broker("r").thaw()
    cluster.run_until_quiet()
    assert cluster.broker("r").status()["subscriptions"] == 2
    two = cluster.publish("r", n=2)
    settled(cluster)
    assert missed.received == [two]


def _barrier_heals(mutants: frozenset[Mutant]) -> tuple[Subscription, list[Published]]:
    cluster = start(chain("s", "b1", "b2", "far"), mutants=mutants)
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
    """The source replaces the id by what is still unaware, and delivers again (859-900)."""
    subscriber, later = _barrier_heals(frozenset())
    assert subscriber.received == later


def test_without_notifiers_it_stays_closed() -> None:
    subscriber, _ = _barrier_heals(frozenset((Mutant.NO_NOTIFIERS,)))
    assert subscriber.received == []


@pytest.mark.parametrize("persist_routing", [True, False])
def test_a_broker_that_lost_everything_recovers_under_load(persist_routing: bool) -> None:
    """It has its neighbourhood, and is done when all partial recoveries are (lines 905-916)."""
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
    settled(cluster)
    assert [subscriber.received for subscriber in subscribers] == [sent, sent]
    assert cluster.broker("b1").status()["state"] == "running"
    assert "recovered" in [event for event, _ in cluster.broker("b1").broker.recorded]


# ---------------------------------------------------------------- §IX


def test_a_larger_delta_disconnects_fewer_brokers() -> None:
    """Of 1,000 brokers, at either fan-out and any number of failures (lines 946-970)."""
    for fanout in (3, 7):
        shape = Connectivity(balanced_tree(1_000, fanout, 3))
        for failed in (16, 60, 100):
            draw = random.Random(failed)
            brokers = draw.sample(range(1_000), failed)
            shares = [shape.disconnected_pairs(brokers, delta) for delta in range(4)]
            assert shares == sorted(shares, reverse=True)
            assert shares[0] > shares[3]


def test_delta_3_keeps_97_of_100_pairs_connected_with_17_of_100_brokers_dead() -> None:
    """What the 97 % of the abstract rest on: a static bound (lines 12-17, 984-994)."""
    shape = Connectivity(balanced_tree(500, 3, 3))
    draws = [random.Random(draw).sample(range(500), 85) for draw in range(20)]
    apart = sum(shape.disconnected_pairs(failed, 3) for failed in draws)
    assert apart <= 0.03 * sum(shape.live_pairs(failed) for failed in draws)


def test_neighbourhoods_are_small_at_fanout_3_and_large_at_fanout_7() -> None:
    """All below 100 at fan-out 3; at fan-out 7 and δ = 3 nearly everybody (lines 995-1009)."""
    sizes = {}
    for fanout in (3, 7):
        shape = PrimaryTree(balanced_tree(1_000, fanout, 3))
        sizes[fanout] = [len(shape.ball(number, 4)) for number in range(1_000)]
    assert max(sizes[3]) < 100
    assert max(sizes[7]) > 900


def test_distances_follow_from_delta() -> None:
    """Table I: Δ = δ + 1; partition ids within 2δ; vectors of 2δ + 1."""
    for delta in range(4):
        cluster = start(chain(*(f"b{place}" for place in range(10)), delta=delta))
        cluster.broker("b5").kill()
        cluster.run_for(3)
        know = [place for place in range(5) if cluster.broker(f"b{place}").status()["partitions"]]
        assert know == [place for place in range(5) if 4 - place <= 2 * delta]
