"""Tokens that no pubend issued are refused, and no event is lost.

Paper: [DS03] §2 (checkpoint tokens).
"""

import pytest

from brokerd.model.identity import StreamId
from brokerd.simulator.named_bugs import bugs_of, plant
from tests.helpers.durable_stories import DurableStory, fails

MUTANTS = bugs_of("durable")

FAR = 1 << 60


def back_with(story: DurableStory, subscription, link, token: dict) -> None:
    """Reconnect a client with this token."""
    taken = story.taken(subscription)
    taken.clear()
    taken.update(token)
    subscription.client.on_refused = lambda refused: None
    link.heal()
    story.cluster.run_for(4)


def of_the_future() -> bool:
    """Return True if a token of the future is refused and the correct token misses no event."""
    story = DurableStory()
    subscription = story.subscriber("s1", "kind = 'a'")
    sent = story.publish(3)
    link, right = story.away(subscription), dict(story.taken(subscription))
    back_with(story, subscription, link, dict.fromkeys(right, FAR))
    sent += story.publish(3)
    refused = [each.reason for each in subscription.client.refused]
    back_with(story, subscription, story.away(subscription), right)
    story.settle()
    told = [each for each in refused if f"tick {FAR}" in each and "ends at" in each]
    return subscription.received == sent and bool(told) and told == refused


def test_a_token_of_the_future_is_refused() -> None:
    assert of_the_future()


def test_a_token_of_a_pubend_stays_valid_after_its_broker_crashes() -> None:
    story = DurableStory(commit_interval_ns=10**10)
    subscription = story.subscriber()
    sent = story.publish(3)
    link = story.cluster.link("b1", "s1").cut()
    story.cluster.broker("s1").restart()
    story.cluster.run_for(4)
    link.heal()
    sent += story.publish(3)
    story.settle(30)
    assert subscription.received == sent
    assert subscription.client.refused == []


@pytest.mark.parametrize("stream, tick", [(StreamId(9, 0, 0), 5), (StreamId(0, 9, 0), 5)])
def test_a_token_of_a_missing_pubend_is_refused(stream, tick) -> None:
    story = DurableStory()
    subscription = story.subscriber()
    sent = story.publish(2)
    link, right = story.away(subscription), dict(story.taken(subscription))
    back_with(story, subscription, link, {**right, (subscription.number, stream): tick})
    (refused,) = subscription.client.refused
    assert f"of {tuple(stream)}, a pubend that is not there" in refused.reason
    sent += story.publish(2)
    back_with(story, subscription, story.away(subscription), right)
    story.settle()
    assert subscription.received == sent


def test_a_bug_that_believes_tokens_is_seen() -> None:
    with plant([MUTANTS["future-token-is-a-floor"]]):
        assert fails(of_the_future)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_token_of_an_earlier_session_counts_no_more(times: int) -> None:
    """The client returns with a token, acknowledges more, and returns without a token."""
    story = DurableStory()
    subscription = story.subscriber()
    sent = story.publish(3)
    for _ in range(times):
        link, token = story.away(subscription), dict(story.taken(subscription))
        back_with(story, subscription, link, token)
        sent += story.publish(3)
        story.cluster.run_for(2)
        link, reached = story.away(subscription), dict(story.taken(subscription))
        back_with(story, subscription, link, {})
        assert subscription.client.refused == []
        assert story.taken(subscription) == reached, "the broker says where it begins"
        sent += story.publish(2)
        story.cluster.run_for(2)
    story.settle()
    assert subscription.received == sent
