"""Tests of the promises of [DFT11], one test per promise: §I, §II and §IX.

The docstrings state the promise in our words and name the lines. Where a promise requires a repair
of ours, the test shows the repair, and the failure of the paper's own rule. The claims of figures
are in bench/claims/dft11.toml; this module tests their basis. The promises about subscriptions,
publications and recovery are in test_dft11_protocol.py.
"""

import random
from itertools import pairwise

import pytest

from brokerd.overlay.generate import generate_balanced_tree
from brokerd.overlay.graph import Connectivity
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.handles import PublicationHandle, Subscription
from brokerd.units import MILLISECOND_NS
from tests.helpers.cluster import chain, star
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants
from tests.helpers.paper_stories import names, publish, settle, start

# ---------------------------------------------------------------- abstract and §I


@pytest.mark.parametrize("delta", [1, 2, 3])
def test_delta_brokers_in_a_row_may_crash_at_once(delta: int) -> None:
    """Up to δ brokers fail together; delivery remains exactly once and in order (lines 2-11)."""
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
    settle(cluster)
    assert subscriber.received == sent


@pytest.mark.parametrize("delta", [1, 2])
def test_delta_links_may_fail_at_once_and_nothing_is_lost(delta: int) -> None:
    """Links fail likewise (lines 2-5); waiting publications arrive after the heal."""
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
    settle(cluster)
    assert subscriber.received == sent


def test_more_than_delta_failures_stall_delivery_without_a_violation() -> None:
    """Beyond δ the paper studies the share of deliveries (lines 12-17); no rule is violated."""
    cluster = start(chain("b0", "b1", "b2", "b3", "b4"))
    subscriber = cluster.subscribe("b4")
    cluster.run_until_quiet()
    cluster.broker("b1").kill()
    cluster.broker("b2").kill()
    sent = publish(cluster, "b0", 5)
    assert subscriber.received == []
    cluster.broker("b1").start()
    cluster.broker("b2").start()
    settle(cluster)
    assert subscriber.received == sent


def test_no_matching_publication_is_missing_between_two_delivered_ones() -> None:
    """Gap-less refers to the matching publications only, per source (lines 33-40)."""
    cluster = start(star("m", "p", "q", "s"))
    some = cluster.subscribe("s", "n > 9")
    cluster.run_until_quiet()
    sent = []
    for n in (1, 12, 3, 11, 10, 2, 15):
        published = [cluster.publish(broker, n=n) for broker in ("p", "q")]
        sent += published if n > 9 else []
        cluster.run_for(0.02)
    settle(cluster)
    for source in ("p-p", "p-q"):
        wanted = [each for each in sent if each.client == source]
        assert [each for each in some.received if each.client == source] == wanted


def _figure_1() -> tuple[Subscription, list[PublicationHandle]]:
    """Subscribe s2 while b1 is cut off; s1 matches two of p1, p2, p3 behind the cut."""
    cluster = start(star("b2", "b1", "b3", "b4", delta=0))
    cluster.subscribe("b3", "kind != 'video'", "s1")
    cluster.run_until_quiet()
    cluster.link("b1", "b2").cut()
    cluster.run_for(2)
    second = cluster.subscribe("b4", "true", "s2")
    cluster.run_for(1)
    behind = [cluster.publish("b1", kind=kind) for kind in ("page", "video", "page")]
    cluster.run_for(1)
    cluster.link("b1", "b2").heal()
    settle(cluster)
    after = [cluster.publish("b1", kind=kind) for kind in ("video", "page")]
    settle(cluster)
    assert not {*second.received} & {*behind}
    return second, after


def test_the_gap_of_figure_1_is_prevented() -> None:
    """A broker that missed a subscription must not cause a gap in its stream (lines 100-150)."""
    second, after = _figure_1()
    assert second.received == after


def test_the_gap_of_figure_1_is_there_without_tags() -> None:
    with (
        pytest.raises(InvariantViolated, match="gap: s2/1"),
        plant_mutants([Mutant.NO_TAGS_UNREACHABLE_DONE]),
    ):
        _figure_1()


def test_a_new_broker_and_its_neighbourhood_discover_each_other() -> None:
    """A joining broker and the brokers within Δ = δ + 1 discover each other (lines 201-207)."""
    cluster = start(chain("b0", "b1", "b2", "b3"))
    cluster.join("n", "b3").start()
    cluster.run_until_quiet()
    cluster.broker("b3").kill()
    cluster.run_for(3)
    assert names(cluster, cluster.broker("n").status().ready) == ["b2"]
    assert "n" in names(cluster, cluster.broker("b2").status().ready)
    assert "n" not in names(cluster, cluster.broker("b1").status().wanted)


def test_messages_go_along_the_primary_tree_whatever_links_are_in_use() -> None:
    """Primary paths decide the routing, active sessions the forwarding (220-229)."""
    cluster = start(chain("b0", "b1", "b2", "b3"))
    subscriber = cluster.subscribe("b3")
    cluster.run_until_quiet()
    cluster.broker("b1").kill()
    cluster.run_for(3)
    sent = publish(cluster, "b0", 3)
    assert subscriber.received == sent
    assert names(cluster, cluster.broker("b0").status().ready) == ["b2"]


def test_reconfiguring_loses_no_publication() -> None:
    """The change to other links is smooth: no publication is lost in transit (lines 229-232)."""
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
    settle(cluster)
    assert subscriber.received == sent


def _ask_while_a_publication_is_kept() -> None:
    """Keep n=6 for z and confirm the unmatched n=7; then subscribe `late`, and crash p."""
    cluster = start(chain("s", "p"))
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
    settle(cluster)
    assert late.received == [eight]


def test_the_safety_condition_needs_a_start_cut() -> None:
    """Only aware brokers forward (lines 236-239, 614-621): true of n=6, and not enough."""
    _ask_while_a_publication_is_kept()
    with pytest.raises(InvariantViolated, match="gap: late/1"), plant_mutants([Mutant.NO_CUT]):
        _ask_while_a_publication_is_kept()


# ---------------------------------------------------------------- §II


@pytest.mark.parametrize("how", ["crash", "freeze", "blackhole"])
def test_an_unreachable_neighbour_is_bypassed_for_every_kind_of_failure(how: str) -> None:
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
    """S(A,C) is active for A while A has no session to a broker between (284-288); asymmetric."""
    alone = DeltaTreeParameters(delta=1, assist="off")  # else b would be reached through c
    cluster = start(chain("a", "b", "c"), parameters=alone)
    cluster.link("a", "b").cut()
    cluster.run_for(3)
    a, c = cluster.broker("a").status(), cluster.broker("c").status()
    assert names(cluster, a.ready) == ["c"]
    assert "c" in names(cluster, a.wanted)  # active for a
    assert "a" not in names(cluster, c.wanted) or "b" not in names(cluster, c.ready)


@pytest.mark.parametrize("seed", range(5))
def test_at_most_one_session_is_active_on_each_primary_path(seed: int) -> None:
    """Lines 300-304, checked in every broker while random brokers crash."""
    draw = random.Random(seed)
    cluster = start(generate_balanced_tree(14, 3, 2), seed=seed)
    for _ in range(6):
        victims = [cluster.broker(name) for name in draw.sample(cluster.topology.brokers, 2)]
        for victim in victims:
            victim.kill()
        for _ in range(10):
            cluster.run_for(0.2)
            cluster.inspection.check_internals()
        for victim in victims:
            victim.start()
    cluster.run_until_quiet()


# ---------------------------------------------------------------- §IX


def test_a_larger_delta_disconnects_fewer_brokers() -> None:
    """Of 1,000 brokers, at either fan-out and any number of failures (lines 946-970)."""
    for fanout in (3, 7):
        shape = Connectivity(generate_balanced_tree(1_000, fanout, 3))
        for failed in (16, 60, 100):
            draw = random.Random(failed)
            brokers = draw.sample(range(1_000), failed)
            shares = [shape.count_disconnected_pairs(brokers, delta) for delta in range(4)]
            assert shares == sorted(shares, reverse=True)
            assert shares[0] > shares[3]


def test_delta_3_keeps_97_of_100_pairs_connected_with_17_of_100_brokers_dead() -> None:
    """The abstract's 97 % is a static bound (lines 12-17, 984-994)."""
    shape = Connectivity(generate_balanced_tree(500, 3, 3))
    draws = [random.Random(draw).sample(range(500), 85) for draw in range(20)]
    apart = sum(shape.count_disconnected_pairs(failed, 3) for failed in draws)
    assert apart <= 0.03 * sum(shape.live_pairs(failed) for failed in draws)


def test_neighbourhoods_are_small_at_fanout_3_and_large_at_fanout_7() -> None:
    """Fan-out 3: all below 100 brokers; fan-out 7, δ = 3: nearly all brokers (lines 995-1009)."""
    sizes = {}
    for fanout in (3, 7):
        shape = PrimaryTree(generate_balanced_tree(1_000, fanout, 3))
        sizes[fanout] = [len(shape.ball(number, 4)) for number in range(1_000)]
    assert max(sizes[3]) < 100
    assert max(sizes[7]) > 900


def test_distances_follow_from_delta() -> None:
    """Table I: Δ = δ + 1; partition ids within 2δ; vectors of 2δ + 1."""
    for delta in range(4):
        cluster = start(chain(*(f"b{place}" for place in range(10)), delta=delta))
        cluster.broker("b5").kill()
        cluster.run_for(3)
        states = [cluster.broker(f"b{place}").status() for place in range(5)]
        know = [place for place, state in enumerate(states) if state.detail["partitions"]]
        assert know == [place for place in range(5) if 4 - place <= 2 * delta]
