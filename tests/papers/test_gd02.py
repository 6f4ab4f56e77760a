"""Tests of the promises of [GD02], one test per promise: abstract, §1 to §3.

The paper's observations of failures (§4.2) are in test_gd02_experiments.py. `ELSEWHERE` lists the
rules that stories of the protocol test; the rules of filters are in test_filters.py.
"""

from itertools import pairwise
from pathlib import Path

import pytest

from brokerd.protocols.gryphon.messages import AckExpected, Done, Events, Nack, Silent
from tests.helpers.gryphon_stories import PaperStory, Story, ticks_of
from tests.helpers.stories import is_story

STORIES = Path(__file__).parents[1] / "protocols/gryphon"
ELSEWHERE = {
    "§2.1 no tick is an event here and silent there": "test_knowledge.py::"
    "test_contradicting_knowledge_is_found_and_consistent_knowledge_is_accepted",
    "§2.1.1 without failures nobody is curious": "test_stories.py::"
    "test_no_requests_are_sent_while_nothing_is_lost",
    "§2.1.1 gaps of reordering are transient": "test_losses.py::"
    "test_an_event_overtaken_for_less_than_gct_is_not_requested",
    "§2.2 ticks are unique and go up": "test_restarts.py::"
    "test_ticks_increase_although_the_clock_is_set_back",
    "§2.2 a pubend pre-assigns silence": "test_total_order.py::"
    "test_idle_pubends_delay_an_event_only_briefly",
    "§3.1 events in answers only where they were asked for": "test_questions.py::"
    "test_silence_and_events_are_sent_only_to_brokers_that_requested_them",
    "§3.1 a nack goes on only as far as it is news": "test_questions.py::"
    "test_only_new_ranges_of_overlapping_requests_are_forwarded",
    "§3.1 curiosity is forgotten so that repetitions pass": "test_losses.py::"
    "test_a_repetition_that_is_faster_than_the_first_is_passed_on",
    "§3.1 sideways until the news of the link has spread": "test_cells.py::"
    "test_events_sent_before_a_link_loss_is_reported_pass_over_a_peer",
    "§3.1 nacks go to all above where nobody has told anything": "test_losses.py::"
    "test_a_subscribers_broker_without_a_route_asks_each_upstream_broker_once",
    "§3.2 nacks are repeated until they are satisfied": "test_losses.py::"
    "test_a_lost_request_is_repeated_within_two_repetition_times",
    "§3.2 the repetition time is estimated as TCP's is": "test_gaps.py::"
    "test_a_slow_answer_makes_the_next_one_be_waited_for_longer",
    "§3.2 the latest message is guarded by DCT": "test_losses.py::"
    "test_the_last_event_of_a_stream_arrives_early_with_a_finite_dct",
    "§3.2 and by AET": "test_losses.py::"
    "test_the_last_event_of_a_stream_arrives_within_aet_and_one_check",
    "§4.2 nacks of long ranges are cut": "test_gaps.py::"
    "test_a_gap_is_requested_in_pieces_within_the_nack_window",
}


@pytest.mark.parametrize("promise", ELSEWHERE)
def test_the_test_of_each_promise_exists(promise: str) -> None:
    assert is_story(ELSEWHERE[promise], STORIES)


# ---------------------------------------------------------------- abstract and §1


def stalled(story: Story, a: str, b: str, count: int) -> list:
    """Stall a link, lose the publications in it, and fail the link."""
    link = story.cluster.link(a, b).absorb()
    sent = story.publish(count)
    link.cut()
    story.cluster.run_for(0.5)
    link.heal()
    story.cluster.run_for(3)
    return sent


def test_every_event_is_delivered_exactly_once_while_a_subscriber_stays_connected() -> None:
    """Despite failures and recoveries, delivery is once and in publisher order (§1, §2.3)."""
    story = Story("p1-b1", "b1-s1", "b1-b2", "b2-s2")
    subscribers = [story.cluster.subscribe(name) for name in ("s1", "s2", "p1")]
    story.cluster.run_until_quiet()
    sent = story.publish(5)
    for a, b in (("p1", "b1"), ("b1", "b2"), ("b2", "s2")):
        sent += stalled(story, a, b, 5)
    for name in ("b1", "b2", "p1", "s1"):
        story.cluster.broker(name).kill()
        if name != "p1":
            sent += story.publish(5)
        story.cluster.broker(name).start()
        story.cluster.run_for(1)
    story.settle()
    for subscriber in subscribers:
        assert subscriber.received == sent


def test_messages_may_be_dropped_anywhere() -> None:
    """A tenth of all messages between brokers is lost (abstract, §2.1)."""
    story = PaperStory()
    story.lose_some(0.1)
    story.rounds(50)
    story.lose_some(0)
    story.check()


def test_in_total_order_all_get_the_same_sequence_whatever_fails() -> None:
    """Total order is uniform: also for other brokers, and over every failure (abstract, §2.3)."""
    story = PaperStory(at=("s1", "s2", "s4", "p1"), order="total", pubends=2)
    story.rounds(3)
    story.cluster.broker("b1").kill()
    story.rounds(5)
    story.fail_link("b4", "s4")
    story.rounds(5)
    story.cluster.broker("b1").start()
    story.cluster.link("b4", "s4").heal()
    story.cluster.broker("p1").kill()
    story.cluster.run_for(1)
    story.cluster.broker("p1").start()
    story.rounds(5)
    story.check()
    first, *others = story.subscribers
    assert all(each.received == first.received for each in others)


def test_a_filtered_subsequence_has_no_gap() -> None:
    """Between two neighbours of the subsequence nothing matches, even after a loss (§1)."""
    story = Story()
    some = story.cluster.subscribe("s1", "n > 2")
    story.cluster.run_until_quiet()
    sent = []
    for n in (1, 3, 2, 4, 5, 1, 7):
        if n == 4:
            story.lose("b1", "s1", Events)
        published = story.cluster.publish("p1", n=n)
        sent += [published] * (n > 2)
        story.cluster.run_for(0.04)
    story.settle()
    assert some.received == sent


def test_a_lost_message_stalls_only_its_own_receivers() -> None:
    """Events after a gap are forwarded at once; only the delivery waits (§1, §6)."""
    story = Story("p1-b1", "b1-b2", "b2-s1", "b2-s2")
    first, second = story.cluster.subscribe("s1"), story.cluster.subscribe("s2")
    story.cluster.run_until_quiet()
    sent = story.publish(2)
    story.lose("b2", "s1", Events)
    story.quiet_since()
    sent += story.publish(4)
    passed_on = [m for m in story.from_to("b2", "s1", Events) if not m.again]
    assert len(passed_on) == 4, "one of them is lost behind that"
    assert (first.received, second.received) == (sent[:2], sent)
    assert max(story.latencies_ms(second, sent[2:])) <= 10
    story.settle()
    assert first.received == sent


def test_brokers_between_hold_nothing_that_cannot_be_lost() -> None:
    """All intermediate brokers crash at once and return without state (abstract, §2.1)."""
    story = PaperStory()
    story.rounds(2)
    for name in ("b1", "b2", "b3", "b4"):
        story.cluster.broker(name).kill()
    story.rounds(5)
    for name in ("b1", "b2", "b3", "b4"):
        assert not story.cluster.broker(name).broker.on_disk()
        story.cluster.broker(name).start()
    story.rounds(2)
    story.check()
    assert {*story.loggers} == {"p1"}


# ---------------------------------------------------------------- §2


def test_only_the_publishers_broker_logs_and_nothing_is_seen_before() -> None:
    """An event is published once it is logged; unlogged events are not delivered (§2.2)."""
    story = Story()
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    publication = story.cluster.publish("p1", kind="a")
    story.cluster.run_for(0.0015)  # it is at its broker, whose disk takes longer
    assert not story.from_to("p1", "b1", Events)
    story.settle()
    assert subscriber.received == [publication]
    assert story.loggers == ["p1"]


def test_events_behind_an_unknown_tick_wait_and_arrive_in_order() -> None:
    """The doubt horizon delays no other publisher's events (§2.3)."""
    story = PaperStory()
    story.lose("b1", "s1", Events)
    story.rounds(4, pause_s=0.03)
    got = story.subscribers[0].received
    counts = [sum(each.client == f"c{number}" for each in got) for number in range(4)]
    assert counts in ([3, 7, 7, 7], [7, 7, 3, 7])
    story.check()


def test_a_tick_is_acknowledged_after_all_brokers_downstream_acknowledged() -> None:
    """The upstream acknowledgement is the minimum of the downstream ones (§2.1.1, §2.4)."""
    story = Story()
    subscribers = [story.cluster.subscribe(name) for name in ("s1", "s2")]
    story.cluster.run_until_quiet()
    slow = story.cluster.link("s2", subscribers[1].client.name)
    slow.absorb("out")
    story.publish(5)
    story.cluster.run_for(1)
    below = {name: _acked(story, name, "b1") for name in ("s1", "s2")}
    assert below["s2"] < below["s1"]
    assert _acked(story, "b1", "p1") == below["s2"]
    slow.heal()
    story.cluster.run_for(1)
    assert _acked(story, "s2", "b1") == _acked(story, "b1", "p1") == below["s1"]


def _acked(story: Story, sender: str, receiver: str) -> int:
    told = [through for m in story.from_to(sender, receiver, Done) for _, through in m.through]
    return max(told, default=0)


@pytest.mark.parametrize("subscribers", [1, 2, 3])
def test_nacks_of_many_subscribers_are_one_towards_the_publisher(subscribers: int) -> None:
    """Curiosity is consolidated at intermediate brokers (§2.4, §3.1)."""
    names = [f"s{number}" for number in range(1, subscribers + 1)]
    story = Story("p1-b1", *(f"b1-{name}" for name in names))
    hosted = [story.cluster.subscribe(name) for name in names]
    story.cluster.run_until_quiet()
    sent = story.publish(2)
    sent += stalled(story, "p1", "b1", 5)
    sent += story.publish(2)
    story.settle()
    assert all(each.received == sent for each in hosted)
    up = sum(ticks_of(m.ranges) for m in story.from_to("b1", "p1", Nack))
    below = sum(ticks_of(m.ranges) for name in names for m in story.from_to(name, "b1", Nack))
    assert below == subscribers * up > 0


# ---------------------------------------------------------------- §3.1


def test_each_pubend_uses_one_path_and_each_link_carries_half_the_pubends() -> None:
    """The rule holds in the absence of failures and recoveries."""
    story = PaperStory()
    story.rounds(30)
    ways = [{*story.first_ways("p1", name)} for name in ("b1", "b2", "b3", "b4")]
    assert ways == [{0, 2}, {1, 3}, {0, 2}, {1, 3}]


def test_acknowledgements_are_sent_to_the_latest_sender_of_their_pubend() -> None:
    """The acknowledgement goes to one broker of a cell of two."""
    story = PaperStory()
    story.rounds(10)
    story.check()
    for name, pubends in (("b1", {0, 2}), ("b2", {1, 3})):
        told = story.from_to("s1", name, Done)
        assert {stream.publisher for m in told for stream, _ in m.through} == pubends


def test_a_nack_is_satisfied_by_an_intermediate_broker_if_possible() -> None:
    """b1 replies from its own knowledge; p1 receives no request."""
    story = Story()
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    sent = story.publish(2)
    story.lose("b1", "s1", Events)
    sent += story.publish(3)
    story.settle()
    assert subscriber.received == sent
    assert story.from_to("s1", "b1", Nack)
    assert not story.from_to("b1", "p1", Nack)


def test_silence_is_sent_only_to_brokers_that_requested_the_stream() -> None:
    """If a lost event is unavailable, the rest of the requested ticks is silence."""
    story = Story(order="total", pubends=1)
    subscribers = [story.cluster.subscribe(name) for name in ("s1", "s2")]
    story.cluster.run_until_quiet()
    sent = [story.publish(1, at=name)[0] for name in ("b1", "s1", "s2")]
    sent += story.publish(3)
    story.settle()
    assert all(each.received == sent for each in subscribers)
    for name in ("s1", "s2"):
        asked = {m.stream for m in story.from_to(name, "b1", Nack)}
        assert asked
        assert {m.stream for m in story.from_to("b1", name, Silent)} <= asked


# ---------------------------------------------------------------- §3.2


def test_nacks_are_ever_rarer_while_their_pubend_is_down() -> None:
    """Back-off doubles, because no message of the pubend arrives (§3.2)."""
    story = Story()
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    sent = story.publish(2)
    story.lose("p1", "b1", Events)
    sent += story.publish(2, pause_s=0.01)
    story.cluster.broker("p1").kill()
    story.quiet_since()
    story.cluster.run_for(12)
    waits = [after - before for before, after in pairwise(story.times_ms("s1", Nack))]
    assert waits == [600, 1_200, 2_400, 4_800]
    story.cluster.broker("p1").start()
    story.settle()
    assert subscriber.received == sent


def test_an_ack_is_expected_on_the_paths_that_have_not_acked_only() -> None:
    """T is an event older than AET; s1 alone receives the message and nacks at once (§3.2)."""
    story = Story()
    for name in ("s1", "s2"):
        story.cluster.subscribe(name)
    story.cluster.run_until_quiet()
    story.publish(2)
    story.cluster.run_for(1)
    story.lose("b1", "s1", Events)
    story.publish(1)
    story.settle()
    (expected,) = story.from_to("b1", "s1", AckExpected)
    assert not story.from_to("b1", "s2", AckExpected)
    asked = story.from_to("s1", "b1", Nack)
    assert asked[-1].ranges[-1][1] == expected.through + 1
    assert story.times_ms("s1", Nack)[0] - story.times_ms("b1", AckExpected)[0] <= 2


def test_a_gap_is_requested_after_the_gap_curiosity_threshold() -> None:
    """The request waits because late events may still arrive (§3.2, GCT = 200 ms)."""
    story = Story()
    story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    story.publish(2)
    stalled(story, "b1", "s1", 3)
    story.quiet_since()
    before_ms = story.cluster.schedule.now_ns // 1_000_000
    story.publish(1)
    story.settle()
    (asked_ms, *_) = story.times_ms("s1", Nack)
    assert 200 <= asked_ms - before_ms <= 210


def test_nacks_stop_while_a_pubend_is_down_and_resume_after_its_restart() -> None:
    """Without a gap there is no nack; AckExpected makes subscribers request logged, unsent events.

    Paper: [GD02] §3.2, §4.2 Fig. 8.
    """
    story = Story()
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    sent = story.publish(2)
    story.cluster.link("p1", "b1").absorb()
    sent += story.publish(3)
    story.cluster.broker("p1").kill()
    story.cluster.link("p1", "b1").heal()
    story.quiet_since()
    story.cluster.run_for(20)
    assert not story.times_ms("s1", Nack)
    story.cluster.broker("p1").start()
    story.settle(3)
    assert subscriber.received == sent
    (expected_ms, *_) = story.times_ms("b1", AckExpected)
    (asked_ms, *_) = story.times_ms("s1", Nack)
    assert 0 <= asked_ms - expected_ms <= 2
