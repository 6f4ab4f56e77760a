"""Tests of the observations in [GD02] §4.2 after failures of links and brokers, in the simulator.

The tests use the paper's ten brokers, parameters and rate: four publishers at separate pubends, one
event per 40 ms. A failing element first stalls for 2.4 s and loses its input. The durations on real
machines are claims in bench/claims/gd02.toml.
"""

from itertools import pairwise

import pytest

from brokerd.protocols.gryphon.messages import AckExpected, Events, Nack
from brokerd.units import MILLISECOND_NS
from tests.helpers.gryphon_stories import PaperStory, ticks_of

PACE_MS = 40
STALL_ROUNDS = 60
STALL_MS = STALL_ROUNDS * PACE_MS
GCT_MS = 200
CALM_MS = 10
"""Latency of an event to any subscriber without failures: four links, and a disk."""


def link_fails() -> PaperStory:
    """Stall b1-s1 for 2.4 s, fail the link for 10 s, and heal it."""
    story = PaperStory()
    story.cluster.link("b1", "s1").absorb()
    story.rounds(STALL_ROUNDS)
    story.fail_link("b1", "s1")
    return story


def broker_fails() -> PaperStory:
    """Stall b1 for 2.4 s, during which its input is lost, and kill it."""
    story = PaperStory()
    for name in ("s1", "s2"):
        story.cluster.link("b1", name).absorb("out")
    story.rounds(STALL_ROUNDS)
    story.cluster.broker("b1").kill()
    for name in ("s1", "s2"):
        story.cluster.link("b1", name).heal()
    return story


# ---------------------------------------------------------------- failures without a stall


@pytest.mark.parametrize("which", ["link", "broker"])
def test_a_failure_that_is_seen_at_once_loses_hardly_anything(which: str) -> None:
    """Neighbours switch to another path; often no message is lost (§4.2)."""
    story = PaperStory()
    story.rounds(5)
    if which == "link":
        story.fail_link("b1", "s1")
    else:
        story.cluster.broker("b1").kill()
    story.rounds(25)
    story.check()
    assert not story.times_ms("s1", Nack)
    assert max(story.latencies_ms(story.subscribers[0], story.sent[12:])) <= CALM_MS


# ---------------------------------------------------------------- the link b1-s1, Fig. 6


def test_the_broker_behind_a_failed_link_asks_the_other_one_of_the_cell() -> None:
    """The nacks follow the failure and cover the stall of two pubends, in pieces (Fig. 6)."""
    story = link_fails()
    assert not story.times_ms("s1", Nack), "while it stalls nobody notices"
    story.quiet_since()
    story.rounds(250)
    assert not story.from_to("s1", "b1", Nack)
    nacks = story.from_to("s1", "b2", Nack)
    of_each = dict.fromkeys(range(4), 0)
    for nack in nacks:
        of_each[nack.stream.publisher] += ticks_of(nack.ranges) // 1_000
    assert of_each[1] == of_each[3] == 0, "those came by b2 before"
    for pubend in (0, 2):
        assert STALL_MS - PACE_MS <= of_each[pubend] <= STALL_MS + 2 * PACE_MS
    assert sum(len(nack.ranges) for nack in nacks) >= 2 * (STALL_MS // 500), "pieces of 500 ms"
    story.cluster.link("b1", "s1").heal()
    story.cluster.run_for(3)
    story.check()


def test_latencies_are_a_sawtooth_and_then_as_before() -> None:
    """Lost messages arrive in a burst: the first of them has waited longest (Fig. 6)."""
    story = link_fails()
    story.rounds(50)
    story.check()
    first = story.subscribers[0]
    for pubend in (0, 2):
        late = story.latencies_ms(first, story.of_pubends(pubend))
        lost, after = late[: STALL_ROUNDS - 1], late[STALL_ROUNDS + 20 :]
        assert all(a - b in range(PACE_MS - 5, PACE_MS + 6) for a, b in pairwise(lost))
        assert STALL_MS <= lost[0] <= STALL_MS + PACE_MS + GCT_MS + 2 * CALM_MS
        assert max(after) <= CALM_MS
    for pubend in (1, 3):
        assert max(story.latencies_ms(first, story.of_pubends(pubend))) <= CALM_MS


def test_a_subscriber_that_is_not_on_the_failed_path_notices_nothing() -> None:
    """The subscribers of s2 to s5 see neither late messages nor nacks (Fig. 6)."""
    story = link_fails()
    story.rounds(50)
    story.cluster.link("b1", "s1").heal()
    story.cluster.run_for(3)
    story.rounds(10)
    story.check()
    assert max(story.latencies_ms(story.subscribers[1], story.sent[12:])) <= CALM_MS
    assert not [name for name in ("s2", "s3", "s4", "s5") if story.times_ms(name, Nack)]


def test_all_routing_switches_to_the_other_path_while_the_link_is_down_and_back() -> None:
    """All traffic goes via b2, and half again after the repair (§3.1, Fig. 6)."""
    story = link_fails()
    story.cluster.run_for(0.1)
    story.quiet_since()
    story.rounds(5)
    assert story.first_ways("b2", "s1") == [0, 1, 2, 3]
    assert not story.from_to("b1", "b2", Events), "sideways is transient"
    story.cluster.link("b1", "s1").heal()
    story.cluster.run_for(3)
    story.quiet_since()
    story.rounds(5)
    assert (story.first_ways("b1", "s1"), story.first_ways("b2", "s1")) == ([0, 2], [1, 3])
    story.check()


# ---------------------------------------------------------------- the broker b1, Fig. 7


def test_a_crash_moves_the_load_of_two_brokers_to_the_remaining_broker() -> None:
    """b1 and b2 carry two of four pubends each; b2 carries all once b1 is dead (Fig. 7)."""
    story = PaperStory()
    story.rounds(5)
    assert (story.first_ways("p1", "b1"), story.first_ways("p1", "b2")) == ([0, 2], [1, 3])
    story.cluster.broker("b1").kill()
    story.quiet_since()
    story.rounds(5)
    assert story.first_ways("p1", "b2") == [0, 1, 2, 3]


def test_both_subscribers_ask_for_the_same_and_their_broker_asks_once() -> None:
    """b2 has none of the events and requests half of the sum from p1 (Fig. 7)."""
    story = broker_fails()
    story.quiet_since()
    story.rounds(50)
    asked = {name: story.requested(name) for name in ("s1", "s2", "b2")}
    assert abs(asked["s1"] - asked["s2"]) <= PACE_MS
    assert 2 * (STALL_MS - PACE_MS) <= asked["s1"] <= 2 * (STALL_MS + 2 * PACE_MS)
    assert abs(asked["b2"] - (asked["s1"] + asked["s2"]) / 2) <= PACE_MS
    story.check()


def test_a_restarted_broker_regains_its_share_without_nacks() -> None:
    """Two of four pubends use b1 again, without a lost message (Fig. 7)."""
    story = broker_fails()
    story.rounds(50)
    story.cluster.broker("b1").start()
    story.cluster.run_for(0.1)
    story.quiet_since()
    story.rounds(50)
    assert (story.first_ways("p1", "b1"), story.first_ways("p1", "b2")) == ([0, 2], [1, 3])
    assert not [name for name in ("s1", "s2", "b1", "b2") if story.times_ms(name, Nack)]
    story.check()
    assert max(story.latencies_ms(story.subscribers[0], story.sent[-200:])) <= CALM_MS


# ---------------------------------------------------------------- the publishers' broker, Fig. 8


def publishers_broker_fails() -> tuple[PaperStory, int]:
    """Stall p1 for 1 s, logging without sending, and kill it for 20 s; return its restart time."""
    story = PaperStory(at=("s1", "s2", "s3", "s4", "s5"))
    for name in ("b1", "b2", "b3", "b4"):
        story.cluster.link("p1", name).absorb("out")
    story.rounds(25)
    story.cluster.broker("p1").kill()
    for name in ("b1", "b2", "b3", "b4"):
        story.cluster.link("p1", name).heal()
    story.quiet_since()
    story.cluster.run_for(20)
    return story, story.now_ms


def test_no_nacks_are_sent_while_the_broker_of_the_publishers_is_down() -> None:
    """No message arrives and no gap either; DCT is infinite (Fig. 8)."""
    story, _ = publishers_broker_fails()
    assert not [m for *_, m in story.said if type(m) is Nack]


def test_a_restarted_pubend_expects_acknowledgements_and_delivers_logged_events() -> None:
    """AckExpected covers each pubend's log; s1 to s5 all send nacks, and recovery is quick (Fig.

    8).
    """
    story, back_ms = publishers_broker_fails()
    logged = story.sent[12:]
    story.cluster.broker("p1").start()
    story.cluster.run_for(1.5)
    expected = [m for name in ("b1", "b2") for m in story.from_to("p1", name, AckExpected)]
    assert {m.stream.publisher for m in expected} == {0, 1, 2, 3}
    for subscriber, name in zip(story.subscribers, ("s1", "s2", "s3", "s4", "s5"), strict=True):
        assert story.times_ms(name, Nack)
        late = story.latencies_ms(subscriber, logged)
        for pubend in range(4):
            of_one = late[pubend::4]
            assert all(a - b in range(PACE_MS - 5, PACE_MS + 6) for a, b in pairwise(of_one))
        assert max(late) <= 25 * PACE_MS + (story.now_ms - back_ms) + 20_000
    story.rounds(25)
    story.check()
    for subscriber in story.subscribers:
        assert max(story.latencies_ms(subscriber, story.sent[-100:])) <= CALM_MS


def test_an_ack_expected_message_names_the_last_logged_tick_of_each_pubend() -> None:
    """The message names the last tick (Fig. 8)."""
    story, _ = publishers_broker_fails()
    last = {
        stream.identity: stream.knowledge.events.last
        for stream in story.cluster.broker("p1").broker.core.streams  # type: ignore[attr-defined]
        if stream.identity.broker == 0
    }
    story.cluster.broker("p1").start()
    story.cluster.run_for(1)
    expected = {m.stream: m.through for m in story.from_to("p1", "b1", AckExpected)}
    assert expected.items() <= last.items()
    assert expected
    assert story.cluster.schedule.now_ns > 20_000 * MILLISECOND_NS
