"""Brokers that are slower than the answers they request; see gryphon's `flow_control.py`."""

from brokerd.protocols.durable.fetching import ANSWER_WINDOWS
from brokerd.protocols.durable.messages import Fetch, Fetched
from brokerd.protocols.gryphon.flow_control import weight_bytes
from brokerd.protocols.gryphon.messages import WindowUpdate
from brokerd.simulator.named_bugs import bugs_of, plant
from tests.helpers.durable_stories import DurableStory, fails

MUTANTS = bugs_of("durable")

WINDOW_BYTES = 4_000
EVENT_BYTES = 400
"""The size of an event of these stories in a window."""


def what_was_missed_comes_in_windows() -> bool:
    """A subscriber that missed ten windows reconnects."""
    story = DurableStory("p1-b1", "b1-s1", answer_window_bytes=WINDOW_BYTES)
    subscription = story.subscriber()
    link = story.away(subscription)
    sent = story.cluster.publish_run("p1", [(story.blob("a"), bytes(272))] * 100)
    story.cluster.run_for(2)
    story.quiet_since()
    link.heal()
    story.wait_for(lambda: bool(story.from_to("p1", "b1", Fetched)))
    story.wait_for(lambda: subscription.received == sent, limit_s=0.5)  # before a repeated request
    untaken = []
    for sender, receiver in (("p1", "b1"), ("b1", "s1")):
        sent_bytes = taken_bytes = 0
        for _, a, b, message in story.said:
            if (a, b) == (sender, receiver) and type(message) is Fetched:
                sent_bytes += weight_bytes(message.run)
                untaken.append(sent_bytes - taken_bytes)
            elif (a, b) == (receiver, sender) and type(message) is WindowUpdate:
                taken_bytes = max(taken_bytes, message.taken_bytes if message.again else 0)
    story.settle()
    return len(untaken) > 1 and max(untaken) <= 2 * WINDOW_BYTES + EVENT_BYTES


def what_was_missed_elsewhere_comes_in_batches() -> bool:
    """A subscriber that missed ten windows moves to another broker and is slow."""
    story = DurableStory(answer_window_bytes=WINDOW_BYTES, catchup_batch=5)
    subscription = story.subscriber()
    link = story.away(subscription)
    sent = story.cluster.publish_run("p1", [(story.blob("a"), bytes(272))] * 100)
    story.cluster.run_for(2)
    story.quiet_since()
    subscription.client.take_after_ns = 1_000_000_000
    link.heal()
    story.cluster.transfers.reattach(subscription.client.name, "s2")
    story.cluster.run_for(0.8)
    batch_bytes = sum(weight_bytes(each.run) for each in story.from_to("b1", "s2", Fetched))
    sent += story.publish(5)
    story.settle(60)
    fetched_bytes = [0]
    for _, a, b, message in story.said:
        if (a, b) == ("s2", "b1") and type(message) is Fetch:
            fetched_bytes.append(0)
        elif (a, b) == ("b1", "s2") and type(message) is Fetched:
            fetched_bytes[-1] += weight_bytes(message.run)
    is_bounded = max(fetched_bytes) == batch_bytes <= ANSWER_WINDOWS * WINDOW_BYTES + EVENT_BYTES
    return is_bounded and subscription.received == sent


def test_events_missed_at_another_broker_are_fetched_in_batches() -> None:
    assert what_was_missed_elsewhere_comes_in_batches()
    for bug in ("answered-without-end", "deferred-is-silent"):
        with plant([MUTANTS[bug]]):
            assert fails(what_was_missed_elsewhere_comes_in_batches)


def test_missed_events_of_a_subscriber_arrive_in_windows() -> None:
    assert what_was_missed_comes_in_windows()
    for bug in ("fetched-unbounded", "fetch-without-room-never-continues"):
        with plant([MUTANTS[bug]]):
            assert fails(what_was_missed_comes_in_windows)
