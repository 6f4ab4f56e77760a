"""Stories of absent subscribers and of crashes of their broker.

Every omitted rule is detected by the story about the rule.

Paper: [DS03] §3, §4.
"""

import pytest

from brokerd.model.client_messages import Connect, Deliveries, Gap, Subscribe
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.durable.checks.steps import RECOUNTS
from brokerd.protocols.durable.messages import Fetch, Fetched
from brokerd.protocols.gryphon.messages import EVERYWHERE, AckExpected, Done, Events
from brokerd.protocols.interface import (
    Commit,
    DeadlineReached,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    SessionLost,
)
from brokerd.simulator.checks.recounts import check_recounts
from brokerd.simulator.named_bugs import bugs_of, mistaken_functions, plant
from brokerd.units import SECOND_NS
from tests.helpers.durable_cores import events, handle, relay
from tests.helpers.durable_stories import DurableStory, fails
from tests.helpers.stream_runs import STREAM

MUTANTS = bugs_of("durable")
BUGS = tuple(bugs_of("durable").values())


def test_a_returning_subscriber_fetches_missed_events_that_only_the_pubend_keeps() -> None:
    story = DurableStory()
    away, other = story.subscriber("s1"), story.subscriber("s1", "kind = 'b'")
    sent = story.publish(5)
    link = story.away(away)
    sent += story.publish(20)
    story.cluster.run_for(5)
    assert [story.kept(broker) for broker in ("p1", "b1", "s1")] == [20, 0, 0]
    assert (story.logged("p1"), story.logged("s1")) == (20, 0)
    assert story.logged("s1", "matches.0.0") == 20
    story.quiet_since()
    link.heal()
    story.settle()
    assert away.received == sent
    assert other.received == []
    (asked,) = story.from_to("s1", "b1", Fetch)
    (answer,) = story.from_to("p1", "b1", Fetched)
    assert asked.ranges == answer.ranges
    assert len(answer.run) == 20
    assert [story.kept(broker) for broker in ("p1", "b1", "s1")] == [0, 0, 0]


def test_only_matching_events_are_fetched() -> None:
    story = DurableStory()
    away = story.subscriber("s1", "kind = 'b'")
    link = story.away(away)
    story.publish(30)
    wanted = [story.cluster.publish("p1", kind="b")]
    story.publish(10)
    story.quiet_since()
    link.heal()
    story.settle()
    assert away.received == wanted
    assert [len(each.run) for each in story.from_to("b1", "s1", Fetched)] == [1]


def test_a_broker_that_was_down_too_catches_up_first_and_then_its_clients() -> None:
    story = DurableStory()
    away = story.subscriber()
    sent = story.publish(5)
    link = story.away(away)
    sent += story.publish(10)
    story.cluster.broker("s1").kill()
    sent += story.publish(10)
    story.cluster.broker("s1").start()
    sent += story.publish(10)
    link.heal()
    story.settle()
    assert away.received == sent


def test_statistics_report_delivered_and_released_ticks_per_stream() -> None:
    story = DurableStory()
    away, _ = story.subscriber("s1"), story.subscriber("s1")
    link = story.away(away)
    story.publish(3)
    story.cluster.run_for(5)
    before = story.core("s1").statistics()
    assert before["delivered_us.0.0"] > before["released_us.0.0"]
    link.heal()
    story.settle()
    story.cluster.run_for(5)
    after = story.core("s1").statistics()
    assert after["released_us.0.0"] >= before["delivered_us.0.0"]


def test_matching_events_of_a_run_are_delivered_to_a_client_at_once() -> None:
    """The number of alternations between subscribers in the run does not matter."""
    story = DurableStory()
    both = story.subscriber("s1", "kind = 'a'"), story.subscriber("s1", "kind = 'b'")
    story.given.clear()
    sent = story.cluster.publish_run("p1", [(story.blob(kind), b"") for kind in "abababab"])
    story.settle()
    assert [each.received for each in both] == [sent[::2], sent[1::2]]
    assert [len(each.item.run) for each in story.given if type(each.item) is Deliveries] == [4, 4]


def test_two_returning_subscribers_share_one_fetch() -> None:
    story = DurableStory()
    both = story.subscriber(), story.subscriber()
    links = [story.away(each) for each in both]
    sent = story.publish(20)
    story.cluster.run_for(3)
    story.quiet_since()
    upstream = story.cluster.link("p1", "b1").cut()
    story.cluster.run_for(1)
    for link in links:
        link.heal()
    story.cluster.run_for(3)
    upstream.heal()
    story.settle()
    assert [each.received for each in both] == [sent, sent]
    assert sum(len(each.run) for each in story.from_to("p1", "b1", Fetched)) == 20
    assert sum(len(each.run) for each in story.from_to("b1", "s1", Fetched)) == 20


def test_a_slow_client_delays_no_other_client_and_misses_nothing() -> None:
    story = DurableStory(live_limit=4, catchup_batch=3)
    slow, quick = story.subscriber(), story.subscriber()
    slow.client.take_after_ns = 2_000_000_000
    sent = story.publish(30)
    assert quick.received == sent
    assert story.core("s1").status().state == "running"
    story.settle(200)
    assert slow.received == sent


def test_an_unsubscription_releases_its_withheld_publications() -> None:
    story = DurableStory()
    away, other = story.subscriber("s1"), story.subscriber("s1")
    link = story.away(away)
    story.publish(10)
    story.cluster.run_for(5)
    assert story.kept("p1") == 10
    link.heal()
    story.cluster.run_until_quiet()
    away.client.unsubscribe(away.number)
    story.cluster.run_until_quiet()
    story.cluster.run_for(5)
    assert story.kept("p1") == 0
    assert len(other.received) == 10


@pytest.mark.parametrize("is_kept", [True, False])
def test_an_old_token_yields_redelivery_or_a_gap(is_kept) -> None:
    """The ranges are never silent, since acknowledged matches are no longer recorded."""
    story = DurableStory()
    subscription = story.subscriber()
    if is_kept:
        story.away(story.subscriber("s2"), "s2")
    story.publish(5)
    tokens = dict(story.taken(subscription))
    story.publish(5)
    story.cluster.run_for(5)
    assert story.kept("p1") == (10 if is_kept else 0)
    link = story.away(subscription)
    story.taken(subscription).update(tokens)
    story.given.clear()
    link.heal()
    story.cluster.run_for(5)
    if is_kept:
        assert deliveries(story) == 5
    else:
        gaps = [each.item for each in story.given if type(each.item) is Gap]
        assert len(gaps) == 1
        (gap,) = gaps
        assert gap.first == tokens[subscription.number, gap.stream] + 1
        assert gap.reason == "early release"
        assert deliveries(story) == 0


def given_again() -> bool:
    """Return True if a client that is ahead of its broker's disk receives no event twice."""
    story = DurableStory(commit_interval_ns=10**10)
    subscription = story.subscriber()
    sent = story.publish(10)
    before = deliveries(story)
    link = story.cluster.link("b1", "s1").cut()
    story.cluster.broker("s1").restart()
    story.cluster.run_for(2)
    link.heal()
    sent += story.publish(5)
    story.settle(30)
    assert before == 10
    return subscription.received == sent and deliveries(story) == 15


def deliveries(story: DurableStory) -> int:
    return sum(len(each.item.run) for each in story.given if type(each.item) is Deliveries)


def crashed(at_ms: int, kept: int) -> bool:
    """Return True if a broker that crashes while a client is absent delivers every event.

    Args:
        at_ms: the moment of the crash.
        kept: the number of writes that survive although they were not durable.
    """
    story = DurableStory(commit_interval_ns=20_000_000)
    subscription = story.subscriber()
    link = story.away(subscription)
    sent = story.publish(4, pause_s=0.01)
    story.cluster.run_for(at_ms / 1000)
    story.kill("s1", kept)
    story.cluster.broker("s1").start()
    sent += story.publish(3)
    link.heal()
    story.settle(25)
    return subscription.received == sent


def new_beside_an_old_tail() -> bool:
    """Return True if a subscription made after a crash receives events matched before the crash."""
    story = DurableStory(commit_interval_ns=20_000_000)
    story.subscriber()
    sent = story.publish(4, pause_s=0.01)
    upstream = story.cluster.link("b1", "s1").cut()
    story.kill("s1", 1_000)
    story.cluster.broker("s1").start()
    story.cluster.run_for(1)
    subscription = story.subscriber()
    link = story.away(subscription)
    upstream.heal()
    sent += story.publish(1)
    story.cluster.run_for(5)
    link.heal()
    story.settle(25)
    return bool(subscription.received) and subscription.received == sent[-2:]


def accepted(at_us: int) -> bool:
    """Return True if a subscription whose start was confirmed to the client is on disk."""
    story = DurableStory()
    subscription = story.cluster.subscribe("s1")
    story.cluster.run_for(at_us / 1_000_000)
    started = subscription.number in subscription.client.started_numbers
    story.kill("s1", 0)
    rows = story.cluster.broker("s1").broker.on_disk().get("subscriptions", {})
    return bool(rows) or not started


def one_of_two_is_away() -> bool:
    """Return True if a subscriber receives all events that another has acknowledged meanwhile."""
    story = DurableStory()
    away, other = story.subscriber("s1"), story.subscriber("s2")
    link = story.away(away)
    sent = story.publish(10)
    story.cluster.run_for(5)
    link.heal()
    story.settle(25)
    return away.received == other.received == sent


def in_small_batches() -> bool:
    """Return True if a backlog of many batches arrives once and in order during publications."""
    story = DurableStory(catchup_batch=3, live_limit=5, silence_interval_ns=2_000_000)
    subscription = story.subscriber()
    story.subscriber("s1", "kind = 'b'")
    link = story.away(subscription)
    sent = story.publish(20)
    link.heal()
    sent += story.publish(20, pause_s=0.005)
    sent += story.cluster.publish_run("p1", [(story.blob(kind), b"") for kind in "aabbaabbaabb"])
    story.settle(25)
    return subscription.received == sent


def test_a_subscriber_that_falls_behind_within_a_run_receives_the_rest() -> None:
    story = DurableStory(catchup_batch=3, live_limit=5)
    subscription = story.subscriber()
    story.subscriber("s1", "kind = 'b'")
    contents = [(story.blob(kind), b"") for kind in "aabbaabbaabb"]
    sent = story.cluster.publish_run("p1", contents)
    story.settle(25)
    assert subscription.received == sent


def subscribed_anew() -> bool:
    """Return True if matches are released after their subscription ended and a new one started."""
    story = DurableStory(commit_interval_ns=500_000_000)
    subscription = story.subscriber()
    story.publish(3)
    subscription.client.unsubscribe(subscription.number)
    story.cluster.run_for(0.1)
    story.cluster.subscribe("s1")
    story.cluster.run_for(5)
    return story.kept("b1") == 0


MOMENTS = range(0, 40, 4)


def back_without_what_it_was_done_with(told: bool) -> bool:
    """Return True if a reconnected neighbour receives AckExpected for released ticks.

    The neighbour had acknowledged the ticks, had not written the acknowledgement, and lost it. No
    broker up to the pubend has the ticks.
    """
    core = relay()
    if told:
        handle(core, MessageReceived(0, 10, AckExpected(STREAM, 20, EVERYWHERE)))
    else:
        handle(core, MessageReceived(2, 12, Done(2, ((STREAM, 20),))))
    handle(core, SessionLost(2, 12, "timeout"))
    return Send(2, AckExpected(STREAM, 20, EVERYWHERE)) in handle(
        core, SessionEstablished(2, 13, 2)
    )


def told_again_before_its_commit() -> bool:
    """Return True if a broker keeps delivered, uncommitted ticks while a tick is missing.

    The peer that sends the ticks again states everything that it has.
    """
    core = relay()
    core.handle(MessageReceived(2, 12, Done(2, ((STREAM, 9),))), 0)
    again = Events(0, 1, 10, True, True, EVERYWHERE, events(3, 6))
    core.handle(MessageReceived(0, 10, Events(0, 20, 21, False, True, EVERYWHERE, events(20))), 0)
    core.handle(DeadlineReached(), 60 * SECOND_NS)
    core.handle(MessageReceived(0, 10, again), 60 * SECOND_NS)
    return not core.status().discrepancies


def first_behind_what_is_known() -> bool:
    """Return True if a broker releases events from before its first subscription.

    The release is computed while the row of the subscription is not durable yet.
    """
    core = relay()
    handle(core, SessionEstablished("c", 20, 1))
    handle(core, MessageReceived("c", 20, Connect(False, 0, 1, 0, ())))
    begun = core.handle(MessageReceived("c", 20, Subscribe(1, parse_predicate("true"))), 0)
    handle(core, SessionLost(2, 12, "timeout"))
    for effect in begun:
        if isinstance(effect, Commit) and effect.token is not None:
            handle(core, Persisted(effect.token))
    return core.statistics()["released_us.0.0"] == 9


def ended_before_a_restart() -> bool:
    """Return True if a log names no ended subscription, although its records do."""
    story = DurableStory()
    away, other = story.subscriber("s1"), story.subscriber("s1")
    story.away(away)
    story.publish(3)
    story.cluster.run_for(1)
    other.client.unsubscribe(other.number)
    story.cluster.run_for(1)
    story.cluster.broker("s1").restart()
    story.cluster.run_for(1)
    return check_recounts("s1", story.core("s1"), RECOUNTS) > 0


STORIES = (
    ("ended-subscription-in-a-recovered-log", ended_before_a_restart, [()]),
    ("first-subscription-releases-nothing", first_behind_what_is_known, [()]),
    ("released-before-its-commit", told_again_before_its_commit, [()]),
    ("no-floor", given_again, [()]),
    ("rows-before-matches", crashed, [(each, 0) for each in MOMENTS]),
    ("not-truncated", new_beside_an_old_tail, [()]),
    ("accepted-before-written", accepted, [(each,) for each in range(6_000, 12_000, 250)]),
    ("released-before-written", one_of_two_is_away, [()]),
    ("released-by-the-first", one_of_two_is_away, [()]),
    ("live-too-early", in_small_batches, [()]),
    ("open-matches-dropped", subscribed_anew, [()]),
    ("silence-covers-events-in-flight", in_small_batches, [()]),
    ("received-ticks-only-are-expected", back_without_what_it_was_done_with, [(True,)]),
    ("received-ticks-only-are-expected", back_without_what_it_was_done_with, [(False,)]),
)


@pytest.mark.parametrize("name, told, tellings", STORIES, ids=[name for name, *_ in STORIES])
def test_a_story_passes_without_its_named_bug_and_fails_with_it(name, told, tellings) -> None:
    assert not [each for each in tellings if fails(told, *each)]
    with plant([MUTANTS[name]]):
        assert any(fails(told, *each) for each in tellings), f"{name} is not seen"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_row_of_a_bug_fits_the_source(bug) -> None:
    assert mistaken_functions((bug,))
