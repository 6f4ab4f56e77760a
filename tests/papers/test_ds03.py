"""Tests of the promises of [DS03], one test per promise: abstract, §1 to §5.

`ELSEWHERE` lists the rules that stories of the protocol test.
"""

from itertools import pairwise
from pathlib import Path

import pytest

from brokerd.model.client_messages import Deliveries, Gap, Silence
from brokerd.model.identity import StreamId
from brokerd.protocols.durable.messages import Fetch, Fetched
from brokerd.protocols.durable.state import Mode
from brokerd.simulator.world.handles import Subscription
from tests.helpers.durable_stories import DurableStory
from tests.helpers.stories import is_story

STORIES = Path(__file__).parents[1] / "protocols/durable"
ELSEWHERE = {
    "§1 each event is logged once": "test_stories.py::"
    "test_a_returning_subscriber_fetches_missed_events_that_only_the_pubend_keeps",
    "§1 misbehaving subscribers hold nobody up": "test_stories.py::"
    "test_a_slow_client_delays_no_other_client_and_misses_nothing",
    "§1, footnote 2 a record is 8 + 16 n bytes": "test_filter_log.py::"
    "test_a_record_has_the_size_of_the_paper",
    "§2 an older token may get gaps": "test_stories.py::"
    "test_an_old_token_yields_redelivery_or_a_gap",
    "§3 nacks are consolidated": "test_stories.py::test_two_returning_subscribers_share_one_fetch",
    "§3 brokers on the way answer": "test_wrong_input.py::"
    "test_an_intermediate_broker_answers_with_its_events_and_requests_the_rest",
    "§3 early release gives who is away a gap": "test_early_release.py::"
    "test_a_loss_is_announced_in_one_gap_for_any_batch_size",
    "§3 nothing is lost that the one stream was not told of": "test_early_release.py::"
    "told_of_nothing",
    "§4.1 a subscription survives a crash once it has begun": "test_stories.py::"
    "STORIES[accepted-before-written]",
    "§4.1 switch-over": "test_returns.py::"
    "test_a_catch_up_under_load_ends_live_without_loss_or_duplicate",
    "§4.1 resources are left for catching up": "test_returns.py::"
    "test_every_catching_up_subscriber_gets_a_turn_in_any_window",
    "§4.2 only what matched is retrieved": "test_stories.py::test_only_matching_events_are_fetched",
    "§4.2 the example of three subscribers": "test_filter_log.py::test_the_papers_example",
    "§4.2 a batch has all, or the oldest": "test_filter_log.py::"
    "test_batches_equal_those_of_a_history_per_subscription",
    "§5.1.2 25 times less data": "test_filter_log.py::"
    "test_25_subscribers_cost_a_25th_of_logging_events_for_each",
    "§5.3 forty reconnect at once": "test_returns.py::"
    "test_forty_returning_subscribers_fetch_each_event_once",
}


@pytest.mark.parametrize("promise", ELSEWHERE)
def test_the_test_of_each_promise_exists(promise: str) -> None:
    assert is_story(ELSEWHERE[promise], STORIES)


def told(story: DurableStory, subscription: Subscription) -> list[Deliveries | Silence | Gap]:
    """Return the stream messages that a subscriber's client received, in order."""
    name = subscription.client.name
    kinds = (Deliveries, Silence, Gap)
    return [each.item for each in story.given if each.client == name and type(each.item) in kinds]


def last_of(item: Deliveries | Silence | Gap) -> int:
    """Return the last position that a message covers."""
    return item.run.last if isinstance(item, Deliveries) else item.last


def stream_of(item: Deliveries | Silence | Gap) -> StreamId:
    return item.run.source if isinstance(item, Deliveries) else item.stream


def positions(story: DurableStory, broker: str = "s1") -> dict[StreamId, int]:
    """Return the positions through which a broker has delivered, per stream."""
    return {each.identity: each.position for each in story.core(broker).hosted.values()}


# ---------------------------------------------------------------- abstract and §1


def test_publications_during_a_disconnection_arrive_despite_broker_failures() -> None:
    """The subscriber is disconnected while each broker fails in turn (§1)."""
    story = DurableStory()
    subscription = story.subscriber()
    sent = story.publish(3)
    link = story.away(subscription)
    for broker in ("s1", "b1", "p1"):
        sent += story.publish(3)
        story.cluster.broker(broker).restart()
        story.cluster.run_for(3)
    link.heal()
    sent += story.publish(3)
    story.settle()
    assert subscription.received == sent


# ---------------------------------------------------------------- §2


def test_a_new_subscriber_receives_its_start_in_each_stream() -> None:
    story = DurableStory(pubends=2)
    story.publish(4)
    subscription = story.subscriber()
    began = {stream: tick for (_, stream), tick in story.taken(subscription).items()}
    assert began == positions(story)
    assert any(began.values())


def test_positions_delivered_to_a_subscriber_increase_in_each_stream() -> None:
    """The test covers events and silence, through disconnections and a crash of the broker."""
    story = DurableStory(silence_interval_ns=20_000_000)
    subscription = story.subscriber("s1", "kind = 'b'")
    for _ in range(3):
        story.publish(5)
        story.cluster.publish("p1", kind="b")
        story.cluster.run_for(0.2)
        link = story.away(subscription)
        story.cluster.publish("p1", kind="b")
        story.publish(2)
        link.heal()
        story.cluster.run_for(3)
    items = told(story, subscription)
    by_stream: dict[StreamId, list[int]] = {}
    for item in items:
        by_stream.setdefault(stream_of(item), []).append(last_of(item))
    assert all(a < b for each in by_stream.values() for a, b in pairwise(each))
    assert {type(item) for item in items} == {Deliveries, Silence}
    assert len(subscription.received) == 6


def test_silence_covers_ticks_without_an_event_for_the_subscriber() -> None:
    story = DurableStory(silence_interval_ns=20_000_000)
    subscription = story.subscriber("s1", "kind = 'b'")
    story.cluster.publish("p1", kind="b")
    story.publish(10)
    story.cluster.run_for(2)
    *_, last = told(story, subscription)
    assert type(last) is Silence
    assert last.last == positions(story)[last.stream]
    assert max(story.taken(subscription).values()) == last.last


# ---------------------------------------------------------------- §3


def test_a_tick_is_released_once_all_here_and_away_have_acknowledged_it() -> None:
    story = DurableStory()
    here, away, elsewhere = (story.subscriber(at) for at in ("s1", "s1", "s2"))
    links = [story.away(away), story.away(elsewhere, "s2")]
    sent = story.publish(10)
    story.cluster.run_for(5)
    assert here.received == sent
    assert story.kept("p1") == 10
    links[0].heal()
    story.cluster.run_for(5)
    assert away.received == sent
    assert story.kept("p1") == 10
    links[1].heal()
    story.cluster.run_for(5)
    assert story.kept("p1") == 0


def test_a_live_subscriber_receives_no_gap_while_another_is_disconnected() -> None:
    story = DurableStory()
    live, away = story.subscriber(), story.subscriber()
    story.away(away)
    for _ in range(5):
        story.publish(5)
        story.cluster.broker("s2").restart()
        story.cluster.run_for(1)
    assert Gap not in {type(item) for item in told(story, live)}
    assert len(live.received) == 25


# ---------------------------------------------------------------- §4.1


def test_all_live_subscribers_share_the_consolidated_stream() -> None:
    """A hundred subscribers cost the upstream brokers as much as one."""
    messages = []
    for count in (1, 100):
        story = DurableStory()
        subscribers = [story.cluster.subscribe("s1") for _ in range(count)]
        story.cluster.run_until_quiet()
        story.quiet_since()
        sent = story.publish(20)
        assert all(each.received == sent for each in subscribers)
        messages.append(len([each for each in story.said if each[1:3] == ("b1", "s1")]))
    assert messages[0] == messages[1]


def test_a_new_subscription_is_live_and_a_reconnected_subscription_catches_up() -> None:
    story = DurableStory()
    story.publish(3)
    subscription = story.subscriber()
    assert story.mode(subscription) is Mode.LIVE
    link = story.away(subscription)
    assert story.mode(subscription) is Mode.AWAY
    story.publish(3)
    upstream = story.cluster.link("p1", "b1").absorb()
    link.heal()
    story.wait_for(lambda: story.mode(subscription) is not Mode.AWAY)
    assert story.mode(subscription) is Mode.CATCHING_UP
    upstream.heal()
    story.wait_for(lambda: story.mode(subscription) is Mode.LIVE)
    story.settle()


def test_the_consolidated_stream_resumes_after_a_crash_without_a_client() -> None:
    story = DurableStory()
    subscription = story.subscriber()
    link = story.away(subscription)
    story.publish(3)
    story.cluster.run_for(1)
    story.cluster.broker("s1").kill()
    story.publish(5)
    story.cluster.broker("s1").start()
    story.cluster.run_for(5)
    known = story.core("p1").gryphon.streams
    assert {max(each.knowledge.highest for each in known)} == {max(positions(story).values())}
    assert story.logged("s1", "matches.0.0") == 8
    link.heal()
    story.settle()


# ---------------------------------------------------------------- §4.2


def test_an_event_without_a_match_is_not_logged() -> None:
    story = DurableStory()
    away = story.subscriber("s1", "kind = 'b'")
    link = story.away(away)
    story.publish(30)
    story.cluster.run_for(2)
    assert story.logged("s1", "matches.0.0") == 0
    link.heal()
    story.settle()


def test_all_streams_of_matches_are_in_one_volume_and_each_is_chopped_alone() -> None:
    story = DurableStory(pubends=2)
    subscription = story.subscriber()
    link = story.away(subscription)
    for client in ("one", "two", "three", "four"):
        for _ in range(3):
            story.cluster.publish("p1", client=client, kind="a")
        story.cluster.run_for(0.5)
    logged = [story.logged("s1", f"matches.0.{pubend}") for pubend in (0, 1)]
    assert sum(logged) == 12
    assert all(logged)
    link.heal()
    story.settle()


# ---------------------------------------------------------------- §5.3


def test_the_pubend_receives_one_request_per_event_after_a_broker_restart() -> None:
    """All subscribers are disconnected; the broker fetches its gaps, then all reconnect (§5.3)."""
    story = DurableStory()
    subscribers = [story.cluster.subscribe("s1") for _ in range(10)]
    story.cluster.run_until_quiet()
    links = [story.away(each) for each in subscribers]
    story.cluster.broker("s1").kill()
    sent = story.publish(25)
    story.quiet_since()
    story.cluster.broker("s1").start()
    story.cluster.run_for(5)
    for link in links:
        link.heal()
    story.settle()
    assert all(each.received == sent for each in subscribers)
    asked = [each for message in story.from_to("b1", "p1", Fetch) for each in message.ranges]
    assert len(asked) == len(set(asked))
    assert sum(len(each.run) for each in story.from_to("p1", "b1", Fetched)) <= 25
