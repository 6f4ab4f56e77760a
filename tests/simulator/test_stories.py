"""Interleavings that random seeds rarely reach, step by step.

Each story runs with the strict oracle: a violation of any rule ends the story at once.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from brokerd.config import SessionParameters
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import MILLISECOND_NS, SECOND_NS
from brokerd.wire.attributes import encode_attributes
from tests.helpers.cluster import STEADY, chain, star, tree
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants


def _settle(cluster: SimulatedCluster) -> None:
    """Run until quiet; all owed deliveries must have arrived."""
    cluster.run_until_quiet()
    cluster.oracle.judge_end()
    cluster.inspection.check_internals()
    assert cluster.statistics()["queue_publications"] == 0


def _run_until(cluster: SimulatedCluster, condition: Callable[[], bool]) -> None:
    """Run until a condition holds, 20 s at most."""
    for _ in range(20_000):
        if condition():
            return
        cluster.run_for(0.001)
    raise AssertionError("it never came to that")


def _start_behind_a_lost_publication() -> SimulatedCluster:
    """Start a subscription while its source's broker loses the record of confirmed publications.

    n=6 matches z and cannot leave p; n=7 has no match and is confirmed. Then `late` subscribes to
    everything, p crashes, and its client publishes the unacknowledged n=6 alone again.
    """
    cluster = SimulatedCluster(chain("s", "p"), network=STEADY).start()
    z = cluster.subscribe("s", "n = 6", "z")
    cluster.client("p-p", "p", publishes=True)
    cluster.run_until_quiet()
    cluster.link("p", "p-p").delay(20 * MILLISECOND_NS)  # p confirms before it is resubmitted to
    cluster.link("s", "p").cut()
    six = cluster.publish("p", n=6)
    cluster.run_for(0.05)
    cluster.publish("p", n=7)
    cluster.run_for(0.05)
    late = cluster.subscribe("s", "true", "late")
    cluster.run_for(0.05)
    cluster.broker("p").kill()
    cluster.link("s", "p").heal()
    cluster.broker("p").start()
    cluster.run_until_quiet()
    eight = cluster.publish("p", n=8)
    _settle(cluster)
    assert z.received == [six]
    assert late.received == [eight]
    return cluster


def test_e1_publications_before_the_start_are_no_part_of_the_stream() -> None:
    """Delivering n=6 to `late` and then n=8 would hide the loss of n=7.

    Paper: [DFT11] §VI lines 614-621, whose condition per publication misses the loss.
    """
    _start_behind_a_lost_publication()


def test_e1_is_a_gap_without_the_start_cut() -> None:
    with pytest.raises(InvariantViolated, match="gap: late/1"), plant_mutants([Mutant.NO_CUT]):
        _start_behind_a_lost_publication()


def _start_behind_what_home_has_seen() -> None:
    """Let a publication pass the home broker before a start; the record is lost in a crash.

    `late` waits for w, which stalls. Meanwhile q publishes n=5, which z has not acknowledged, and
    n=6, which matches no started subscription and is confirmed. Then `late` starts and home
    crashes, so that q resends the unconfirmed n=5 alone.
    """
    cluster = SimulatedCluster(chain("q", "home", "w"), network=STEADY).start()
    z = cluster.subscribe("home", "n = 5", "z")
    cluster.client("p-q", "q", publishes=True)
    cluster.run_until_quiet()
    z.client.take_after_ns = 60 * SECOND_NS
    cluster.broker("w").absorb()
    cluster.run_until_quiet()
    late = cluster.subscribe("home", "true", "late")
    cluster.run_for(0.05)
    five = cluster.publish("q", n=5)
    cluster.run_for(0.05)
    cluster.publish("q", n=6)
    cluster.run_for(0.05)
    cluster.broker("w").release()
    _run_until(cluster, lambda: late.started)
    cluster.broker("home").restart()
    z.client.take_after_ns = 0
    cluster.run_for(5)
    seven = cluster.publish("q", n=7)
    cluster.run_for(60)
    _settle(cluster)
    assert z.received == [five]
    assert late.received == [seven]


def test_publications_forwarded_before_the_start_are_not_part_of_the_stream() -> None:
    _start_behind_what_home_has_seen()


def test_a_start_cut_without_the_position_of_the_home_leaves_a_gap() -> None:
    with (
        pytest.raises(InvariantViolated, match="gap: late/1"),
        plant_mutants([Mutant.NO_LAST_IN_CUT]),
    ):
        _start_behind_what_home_has_seen()


def test_no_duplicate_is_delivered_if_a_broker_dies_with_an_unsaved_position() -> None:
    """Positions are written lazily; the client's resume vector covers the rest."""
    cluster = SimulatedCluster(chain("b1", "b2"), network=STEADY).start()
    s = cluster.subscribe("b2")
    cluster.run_until_quiet()
    first = cluster.publish("b1", n=1)
    _run_until(cluster, lambda: bool(s.received))
    second = cluster.publish("b1", n=2)
    cluster.broker("b2").restart()
    _settle(cluster)
    assert s.received == [first, second]


def test_publications_are_delivered_once_if_the_access_broker_dies() -> None:
    cluster = SimulatedCluster(chain("b1", "b2", "b3"), network=STEADY).start()
    s = cluster.subscribe("b3")
    cluster.run_until_quiet()
    sent = [cluster.publish("b1", n=n) for n in range(20)]
    cluster.run_for(0.0035)  # some of them are on their way, none is done
    cluster.broker("b1").restart()
    _settle(cluster)
    assert s.received == sent


def test_a_frozen_broker_is_bypassed_and_its_old_sessions_are_dead_when_it_thaws() -> None:
    """The frozen broker's messages after the thaw belong to sessions that no peer has any more."""
    cluster = SimulatedCluster(chain("b1", "b2", "b3"), network=STEADY).start()
    s = cluster.subscribe("b3")
    cluster.run_until_quiet()
    sent = [cluster.publish("b1", n=1)]
    cluster.run_for(0.0025)  # b2 has it
    cluster.broker("b2").freeze()
    sent.append(cluster.publish("b1", n=2))
    cluster.run_for(2)
    assert s.received == sent
    cluster.broker("b2").thaw()
    sent.append(cluster.publish("b1", n=3))
    _settle(cluster)
    assert s.received == sent


def test_a_stall_and_then_a_kill_lose_nothing() -> None:
    """The papers' fault: traffic stalls before the kill, and the bypass begins with the kill."""
    cluster = SimulatedCluster(star("b2", "b1", "b3", "b4"), network=STEADY).start()
    near, far = cluster.subscribe("b3"), cluster.subscribe("b4")
    cluster.run_until_quiet()
    cluster.broker("b2").absorb()
    sent = [cluster.publish("b1", n=n) for n in range(10)]
    cluster.run_for(5)
    assert near.received == far.received == []
    cluster.broker("b2").kill()
    cluster.run_until_quiet()
    assert near.received == far.received == sent
    cluster.broker("b2").start()
    _settle(cluster)


def test_publications_sent_into_a_half_open_session_are_sent_again() -> None:
    """b1 no longer receives from b2 and ends the session; b2 detects the end late and resends."""
    cluster = SimulatedCluster(chain("b1", "b2"), network=STEADY).start()
    s = cluster.subscribe("b1")
    cluster.run_until_quiet()
    cluster.link("b2", "b1").cut("out")
    sent = [cluster.publish("b2", n=n) for n in range(5)]
    cluster.run_for(2)
    assert s.received == []
    cluster.link("b2", "b1").heal()
    _settle(cluster)
    assert s.received == sent


def test_a_link_loss_within_the_suspicion_time_starts_a_new_instance() -> None:
    """M3′: a session that has lost a message must end, even before a suspicion."""
    cluster = SimulatedCluster(chain("b1", "b2"), network=STEADY).start()
    s = cluster.subscribe("b2")
    cluster.run_until_quiet()
    sent = [cluster.publish("b1", n=1)]
    cluster.run_for(0.0015)
    cluster.link("b1", "b2").cut().heal()
    sent.append(cluster.publish("b1", n=2))
    _settle(cluster)
    assert s.received == sent
    assert cluster.network.counters["messages_lost"] >= 1


def test_a_storm_of_false_suspicions_loses_nothing() -> None:
    parameters = DeltaTreeParameters(retry_first_ns=MILLISECOND_NS)
    names = ("b1", "b2", "b3", "b4")
    cluster = SimulatedCluster(chain(*names), network=STEADY, parameters=parameters).start()
    s = cluster.subscribe("b4")
    cluster.run_until_quiet()
    sent = []
    for n in range(40):
        sent.append(cluster.publish("b1", n=n))
        cluster.link(f"b{n % 3 + 1}", f"b{n % 3 + 2}").suspect()
        cluster.run_for(0.02)
    _settle(cluster)
    assert s.received == sent
    assert cluster.network.counters["sessions_lost_silent"] >= 20


def test_a_crashed_neighbour_never_restores_the_state_of_an_earlier_crash() -> None:
    """b3's only neighbour dies before b3 has recovered; both return and recover everything.

    Paper: [DFT11] §VIII-B, with the end of the recovery tied to a peer that is complete.
    """
    cluster = SimulatedCluster(chain("b1", "b2", "b3"), network=STEADY).start()
    s = cluster.subscribe("b1")
    cluster.run_until_quiet()
    cluster.broker("b2").kill()
    cluster.run_for(0.01)
    cluster.broker("b3").restart()
    cluster.broker("b2").start()
    _settle(cluster)
    sent = [cluster.publish("b3", n=n) for n in range(3)]
    _settle(cluster)
    assert s.received == sent


def test_a_broker_recovers_from_a_peer_on_the_far_side_of_a_dead_home() -> None:
    """b1 and b3 are both neighbours of the home broker b2, which is down."""
    cluster = SimulatedCluster(chain("b1", "b2", "b3"), network=STEADY).start()
    s = cluster.subscribe("b2")
    cluster.run_until_quiet()
    cluster.broker("b2").kill()
    cluster.run_until_quiet()
    cluster.broker("b1").restart()
    cluster.run_until_quiet()
    assert cluster.broker("b1").status().state == "running"
    sent = cluster.publish("b1", n=1)
    cluster.broker("b2").start()
    _settle(cluster)
    assert s.received == [sent]


def test_a_cold_start_of_all_brokers_completes_after_its_timeout() -> None:
    """No broker is complete, so none can send state to the others; all wait, and then report it."""
    parameters = DeltaTreeParameters(cold_start_after_ns=30 * SECOND_NS)
    cluster = SimulatedCluster(chain("b1", "b2"), network=STEADY, parameters=parameters).start()
    s = cluster.subscribe("b1")
    cluster.run_until_quiet()
    for name in ("b1", "b2"):
        cluster.broker(name).kill()
    for name in ("b1", "b2"):
        cluster.broker(name).start()
    cluster.run_for(20)
    assert {cluster.broker(name).status().state for name in ("b1", "b2")} == {"recovering"}
    cluster.run_for(20)
    assert {cluster.broker(name).status().state for name in ("b1", "b2")} == {"running"}
    recorded = [what for broker in cluster.brokers for what, _ in broker.recorded]
    assert "cold_start" in recorded
    sent = cluster.publish("b2", n=1)
    _settle(cluster)
    assert s.received == [sent]


@pytest.mark.parametrize("lost", ["34", "1234"], ids=["two brokers", "all brokers"])
def test_brokers_that_lost_their_disks_wait_for_all_others(lost: str) -> None:
    """The others may have subscriptions that the dead broker in between had confirmed."""
    parameters = DeltaTreeParameters(cold_start_after_ns=SECOND_NS)
    brokers = chain("b1", "b2", "b3", "b4")
    cluster = SimulatedCluster(brokers, network=STEADY, parameters=parameters).start()
    s = cluster.subscribe("b1")
    cluster.run_until_quiet()
    cluster.link("b1", "b3").cut()
    for number in dict.fromkeys(f"{lost}2"):
        cluster.broker(f"b{number}").kill()
    for number in lost:
        cluster.broker(f"b{number}").put_back(None)
    one = cluster.publish("b4", n=1)
    cluster.run_for(5)
    states = {cluster.broker(f"b{number}").status().state for number in lost}
    assert states == {"recovering" if lost == "34" else "running"}
    if lost == "34":
        cluster.broker("b2").start()
    cluster.link("b1", "b3").heal()
    _settle(cluster)
    two = cluster.publish("b4", n=2)
    _settle(cluster)
    assert s.received == ([one, two] if lost == "34" else [two])


def test_a_broker_that_lost_its_disk_needs_more_than_one_complete_neighbour() -> None:
    """The neighbour was cut off when a subscription started, and has not received it since."""
    cluster = SimulatedCluster(chain("b1", "b2", "b3"), network=STEADY).start()
    cluster.run_until_quiet()
    for name in ("b1", "b2"):
        cluster.link("b3", name).cut()
    cluster.run_for(3)
    s = cluster.subscribe("b1")
    cluster.run_for(3)
    cluster.broker("b2").kill()
    cluster.link("b1", "b2").cut()
    cluster.link("b3", "b2").heal()
    cluster.broker("b2").put_back(None)
    one = cluster.publish("b2", n=1)
    cluster.run_for(3)
    assert cluster.broker("b2").status().ready == (2,)
    for a, b in (("b3", "b1"), ("b1", "b2")):
        cluster.link(a, b).heal()
    _settle(cluster)
    assert s.received == [one]


def test_the_publication_that_bypassed_is_not_overtaken_when_the_broker_returns() -> None:
    cluster = SimulatedCluster(chain("b1", "b2", "b3", "b4"), network=STEADY).start()
    s = cluster.subscribe("b4")
    cluster.run_until_quiet()
    cluster.broker("b2").kill()
    cluster.run_until_quiet()
    cluster.link("b1", "b3").delay(200_000_000)
    sent = [cluster.publish("b1", n=1)]
    cluster.run_for(0.05)
    cluster.broker("b2").start()
    cluster.run_for(0.1)
    sent.append(cluster.publish("b1", n=2))
    cluster.link("b1", "b3").heal()
    _settle(cluster)
    assert s.received == sent


def test_two_adjacent_failures_are_tolerated_with_delta_two() -> None:
    names = [f"b{number}" for number in range(1, 6)]
    cluster = SimulatedCluster(chain(*names, delta=2), network=STEADY).start()
    s = cluster.subscribe("b5")
    cluster.run_until_quiet()
    for name in ("b2", "b3"):
        cluster.broker(name).kill()
    sent = [cluster.publish("b1", n=n) for n in range(5)]
    cluster.run_until_quiet()
    assert s.received == sent
    for name in ("b2", "b3"):
        cluster.broker(name).start()
    _settle(cluster)


def test_a_subscriber_receives_only_matching_publications_on_every_branch() -> None:
    cluster = SimulatedCluster(tree("b1-b2", "b2-b3", "b2-b4"), network=STEADY).start()
    oil = cluster.subscribe("b3", "topic = 'oil' and kind != 'video'")
    all_oil = cluster.subscribe("b4", "topic = 'oil'")
    nothing = cluster.subscribe("b4", "topic = 'gold'")
    cluster.run_until_quiet()
    page, video = (cluster.publish("b1", topic="oil", kind=kind) for kind in ("page", "video"))
    _settle(cluster)
    assert oil.received == [page]
    assert all_oil.received == [page, video]
    assert nothing.started
    assert nothing.received == []


def _heard_across_an_island(*, strict: bool = True) -> list[int]:
    """Subscribe while a broker is dead, then publish behind it; return the deliveries."""
    topology = chain("b1", "b2", "b3", "b4")
    cluster = SimulatedCluster(topology, network=STEADY, strict=strict)
    cluster.start()
    cluster.client("p-b4", "b4", publishes=True)
    cluster.run_until_quiet()
    cluster.broker("b2").kill()
    cluster.run_until_quiet()
    s = cluster.subscribe("b1")
    cluster.run_until_quiet()
    assert s.started
    cluster.publish("b4", n=1)
    cluster.run_until_quiet()
    early = [publication.sequence for publication in s.received]
    assert [notice.ranges for notice in s.client.withheld] == ([] if early else [((1, 1),)])
    cluster.broker("b2").start()
    cluster.run_until_quiet()
    cluster.publish("b4", n=2)
    _settle(cluster)
    assert cluster.oracle.gates.describe_closed() == []
    assert s.received[-1].sequence == 2
    assert not cluster.oracle.violations
    return early


def test_publications_of_sources_behind_an_island_are_received_at_once() -> None:
    """Paper: [DFT11] §V-B."""
    assert _heard_across_an_island() == [1]


def test_islands_treated_as_barriers_are_safe_but_receive_less() -> None:
    with plant_mutants([Mutant.ISLANDS_AS_BARRIERS]):
        assert _heard_across_an_island(strict=False) == []


def test_publications_withheld_by_a_barrier_are_announced_and_precede_the_stream() -> None:
    """No bypass of the failed link exists; an older subscription lets n=1 pass.

    Paper: [DFT11] Fig. 1.
    """
    cluster = SimulatedCluster(chain("b1", "b2", "b3"), network=STEADY).start()
    old = cluster.subscribe("b1", "n = 1", "old")
    cluster.client("p-b3", "b3", publishes=True)
    cluster.run_until_quiet()
    cluster.link("b1", "b3").cut()
    cluster.link("b1", "b2").cut()
    new = cluster.subscribe("b1", "true", "new")
    cluster.run_for(5)
    assert new.started
    one = cluster.publish("b3", n=1)
    cluster.publish("b3", n=2)
    cluster.run_for(1)
    cluster.link("b1", "b2").heal()
    cluster.run_until_quiet()
    three = cluster.publish("b3", n=3)
    cluster.link("b1", "b3").heal()
    _settle(cluster)
    assert old.received == [one]
    assert new.received == [three]
    assert [notice.ranges for notice in new.client.withheld] == [((1, 1),), ((2, 2),)]
    assert cluster.statistics()["publications_withheld"] == 1


def test_a_gate_that_opened_stays_open_when_its_broker_crashes_at_once() -> None:
    """The open gate was on disk before the first delivery from behind the gate."""
    cluster = SimulatedCluster(chain("b1", "b2"), network=STEADY).start()
    cluster.client("p-b2", "b2", publishes=True)
    cluster.run_until_quiet()
    cluster.link("b1", "b2").cut()
    s = cluster.subscribe("b1", "true", "s")
    cluster.run_for(5)
    assert s.started
    cluster.link("b1", "b2").heal()
    _run_until(cluster, lambda: not cluster.statistics()["subscriptions_tagged"])
    sent = [cluster.publish("b2", n=n) for n in range(3)]
    _run_until(cluster, lambda: bool(s.received))
    cluster.broker("b1").restart()
    cluster.run_until_quiet()
    sent.append(cluster.publish("b2", n=9))
    _settle(cluster)
    assert s.received == sent


def test_separately_confirmed_parts_of_a_frame_are_all_acknowledged() -> None:
    """n=2 and n=4 are for s, n=3 between them is for t; each is confirmed before the next.

    All three arrive at p in one frame, and leave late, in three frames: with n=1 and n=5 one frame
    is too large. When n=2 is confirmed, the rest of p's entry for s begins after n=3.
    """
    session = SessionParameters(frame_limit_bytes=1_000)
    network = replace(STEADY, encode=True, session=session)
    cluster = SimulatedCluster(chain("s", "t", "p"), network=network).start()
    at_once = cluster.subscribe("s", "n = 1 or n = 2", "at-once")
    soon = cluster.subscribe("t", "n = 3", "soon")
    late = cluster.subscribe("s", "n = 4 or n = 5", "late")
    soon.client.take_after_ns = 1 * SECOND_NS
    late.client.take_after_ns = 2 * SECOND_NS
    cluster.client("p-p", "p", publishes=True)
    cluster.run_until_quiet()
    for broker in ("s", "t"):
        cluster.link("p", broker).cut()
    sent = []
    for numbers in ((1,), (2, 3, 4), (5,)):
        sizes = {4: 500, 5: 500}
        contents = [(encode_attributes({"n": n}), bytes(sizes.get(n, 100))) for n in numbers]
        sent += cluster.publish_run("p", contents)
    cluster.run_for(1)
    assert not cluster.network.counters["frames_split"]
    for broker in ("s", "t"):
        cluster.link("p", broker).heal()
    cluster.run_for(20)
    _settle(cluster)
    assert cluster.network.counters["frames_split"]
    assert at_once.received == sent[:2]
    assert soon.received == sent[2:3]
    assert late.received == sent[3:]
    assert not list(cluster.oracle.obligations.unacknowledged())
