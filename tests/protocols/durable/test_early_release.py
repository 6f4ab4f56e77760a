"""Early release loses old events for absent subscribers only, with an announced gap.

Paper: [DS03] §3 (maxRetain).
"""

from dataclasses import replace

import pytest

from brokerd.model.client_messages import Gap
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.retention_policy import RetentionPolicy
from brokerd.protocols.durable.catchup import (
    NOTHING_LOST,
    Batch,
    BatchReader,
    Catchup,
    LostPart,
    LostRange,
)
from brokerd.protocols.durable.filtering_subsystem import FilterLog
from brokerd.protocols.durable.messages import LOST
from brokerd.protocols.gryphon import EVENT_BYTES
from brokerd.protocols.interface import RetentionChanged
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import SECOND_NS
from tests.helpers.durable_stories import DurableStory, fails
from tests.helpers.stream_runs import run_at

MUTANTS = bugs_of("durable")

ANN, BOB = SourceId(0, 0, 0), SourceId(0, 1, 0)


def story_of(**parameters) -> DurableStory:
    """Return a story that retains two seconds of events, with three seconds of grace at a start."""
    chosen = {"max_retain_ns": 2 * SECOND_NS, "release_grace_ns": 3 * SECOND_NS, **parameters}
    return DurableStory(**chosen)


def gaps_of(story: DurableStory) -> list[Gap]:
    return [each.item for each in story.given if type(each.item) is Gap]


def sent_of(story: DurableStory, *kinds: str) -> list:
    sent = []
    for kind in kinds:
        sent.append(story.cluster.publish("p1", kind=kind))
        story.cluster.run_for(0.02)
    return sent


def away_for_too_long(**parameters) -> bool:
    """Return True if an absent subscriber receives one gap and the rest, and others miss nothing.

    The gap starts and ends at events that match.
    """
    story = story_of(**parameters)
    away, live = story.subscriber("s1", "kind = 'a'"), story.subscriber("s1")
    sent = sent_of(story, *"ab")
    link = story.away(away)
    lost = sent_of(story, *"baabaaaabb")
    story.cluster.run_for(5)
    assert story.kept("p1") == 0
    kept = sent_of(story, *"baab")
    link.heal()
    story.cluster.run_for(2)
    told = gaps_of(story)
    assert len(told) == 1
    gap = told[0]
    ticks = story.ticks_of(live)
    assert (gap.first, gap.last) == (ticks[lost[1]], ticks[lost[7]])
    assert gap.reason == LOST
    assert story.told(away) == [(sent[0].sequence + 1, lost[-1].sequence)]
    assert away.received == [sent[0], *kept[1:3]]
    story.settle()
    return live.received == [*sent, *lost, *kept]


@pytest.mark.parametrize("batch", [2, 3, 100])
def test_a_loss_is_announced_in_one_gap_for_any_batch_size(batch) -> None:
    assert away_for_too_long(catchup_batch=batch)


def back_in_time() -> bool:
    """Return True if younger events are retained."""
    story = story_of()
    away = story.subscriber()
    link = story.away(away)
    story.cluster.run_for(3)
    sent = story.publish(5)
    story.cluster.run_for(1)
    link.heal()
    story.settle()
    return away.received == sent and gaps_of(story) == []


def told_of_nothing() -> bool:
    """Return True if a broker that was cut off for long loses no event of live subscribers."""
    story = story_of()
    far, near = story.subscriber("s1"), story.subscriber("s2")
    link = story.cluster.link("p1", "b1").cut()
    sent = story.publish(10)
    story.cluster.run_for(10)
    link.heal()
    story.settle()
    return far.received == near.received == sent and gaps_of(story) == []


def restarted_with_one_below() -> bool:
    """Return True if a restarted pubend waits for all downstream brokers before a release."""
    story = story_of()
    away = story.subscriber("s1")
    story.subscriber("s2")
    story.away(away)
    story.publish(5)
    story.cluster.link("b1", "s2").cut()
    story.cluster.broker("p1").kill()
    story.cluster.run_for(10)
    story.cluster.broker("p1").start()
    story.cluster.run_for(8)
    held = story.kept("p1")
    story.cluster.link("b1", "s2").heal()
    story.cluster.run_for(10)
    return held == 5 and story.kept("p1") == 0


def restarted_for_a_while() -> bool:
    """Return True if live subscribers have time to reconnect after the pubend's broker was down."""
    story = story_of()
    story.steady_clocks()
    both = story.subscriber("s1"), story.subscriber("s2")
    sent = story.publish(5)
    links = [story.away(each, at) for each, at in zip(both, ("s1", "s2"), strict=True)]
    sent += story.publish(5)
    story.cluster.broker("p1").kill()
    story.cluster.run_for(10)
    story.cluster.broker("p1").start()
    story.cluster.run_for(1)
    for link in links:
        link.heal()
    story.settle()
    return [each.received for each in both] == [sent, sent]


def only_the_newest_are_kept() -> bool:
    """Return True if the newest events of the bound are kept, and the live subscriber has all."""
    story = DurableStory(max_retain_bytes=4 * EVENT_BYTES, release_grace_ns=0)
    away, live = story.subscriber("s1"), story.subscriber("s2")
    link = story.away(away)
    sent = story.cluster.publish_run("p1", [(story.blob("a"), b"")] * 10)
    story.cluster.run_for(2)
    kept = story.kept("p1")
    link.heal()
    story.settle()
    lost = [last for _, last in story.told(away)] == [sent[5].sequence]
    return kept == 4 and lost and away.received == sent[6:] and live.received == sent


def beyond_the_bound_twice() -> bool:
    """Return True if a second absence loses what is beyond the bound, too."""
    story = DurableStory(
        max_retain_bytes=2 * EVENT_BYTES, max_retain_ns=3_600 * SECOND_NS, release_grace_ns=0
    )
    story.cluster.run_for(3_601)
    away, kept, lost = story.subscriber("s1"), [], []
    for _ in range(2):
        link = story.away(away)
        lost.append(story.publish(5)[2].sequence)
        story.cluster.run_for(2)
        kept.append(story.kept("p1"))
        link.heal()
        story.cluster.run_for(10)
    story.settle()
    return kept == [2, 2] and [last for _, last in story.told(away)] == lost


def bytes_of_an_unreachable_subscriber() -> bool:
    """Return True if a live subscriber behind a cut link loses nothing beyond the bound."""
    story = DurableStory(max_retain_bytes=2 * EVENT_BYTES, release_grace_ns=0)
    far = story.subscriber("s1")
    link = story.cluster.link("p1", "b1").cut()
    sent = story.publish(10)
    story.cluster.run_for(5)
    link.heal()
    story.settle()
    return far.received == sent and gaps_of(story) == []


def told_after_restart() -> bool:
    """Return True if a loss and its origins survive a restart of the pubend."""
    story = story_of()
    away = story.subscriber()
    sent = story.publish(2)
    link = story.away(away)
    lost = story.publish(3)
    story.cluster.run_for(5)
    assert story.kept("p1") == 0
    story.cluster.broker("p1").restart()
    story.cluster.run_for(1)
    link.heal()
    sent += story.publish(2)
    story.settle()
    told = story.told(away) == [(lost[0].sequence, lost[-1].sequence)]
    return told and away.received == sent


def one_pubend_cannot_be_asked() -> bool:
    """Return True if a subscriber receives kept events of one pubend while another is cut off."""
    story = DurableStory("p1-b1", "p2-b1", "b1-s1", catchup_batch=2, catchup_window=1)
    away = story.subscriber()
    link = story.away(away)
    far = story.publish(5, at="p1")
    near = story.publish(5, at="p2")
    story.cluster.run_for(2)
    upstream = story.cluster.link("p1", "b1").cut()
    link.heal()
    story.cluster.run_for(6)
    before = [*away.received]
    upstream.heal()
    story.settle()
    return before == near and away.received == [*near, *far]


def each_pubend_has_its_policy() -> bool:
    """Return True if one pubend releases old events, and the other one retains them."""
    story = DurableStory(pubends=2, retention="1:age=2s", release_grace_ns=0)
    away = story.subscriber()
    link = story.away(away)
    for client in ("c0", "c1"):
        story.cluster.publish("p1", client=client, kind="a")
    story.cluster.run_for(8)
    kept = [stream.knowledge.events.events for stream in story.core("p1").gryphon.streams.own()]
    link.heal()
    story.settle()
    lost = [each.origins[0][0].publisher % 2 for each in gaps_of(story)]
    return kept == [1, 0] and lost == [1] and len(away.received) == 1


def change(story: DurableStory, text: str | None, at: str = "p1") -> None:
    """Change the policy of all pubends of a broker, as an operator does."""
    broker = story.cluster.broker(at).broker
    for pubend in range(story.cluster.parameters.pubends):
        policy = None if text is None else RetentionPolicy.parse(text, "story")
        broker.operate(RetentionChanged(pubend, policy))


def a_smaller_policy_announces_its_gaps() -> bool:
    """Return True if a policy that shrinks releases what is beyond it, with a gap, at once."""
    story = DurableStory(release_grace_ns=0, max_retain_ns=3_600 * SECOND_NS)
    away, live = story.subscriber("s1"), story.subscriber("s2")
    link = story.away(away)
    lost = story.publish(3)
    story.cluster.run_for(5)
    kept = story.publish(2)
    before = story.kept("p1")
    change(story, "age=3s")
    story.cluster.run_for(0.5)
    after = story.kept("p1")
    link.heal()
    story.cluster.run_for(1)
    link.cut()
    lost_later = story.publish(2)
    story.cluster.run_for(6)
    link.heal()
    story.settle()
    told = story.told(away) == [
        (each[0].sequence, each[-1].sequence) for each in (lost, lost_later)
    ]
    has_all = live.received == [*lost, *kept, *lost_later]
    return (before, after) == (5, 2) and told and has_all and away.received == kept


def a_larger_policy_brings_nothing_back() -> bool:
    """Return True if a policy that grows retains later events, and those that are lost stay so."""
    story = story_of()
    story.cluster.run_for(4)
    away = story.subscriber()
    link = story.away(away)
    lost = story.publish(2)
    story.cluster.run_for(4)
    change(story, "age=1h")
    kept = story.publish(3)
    story.cluster.run_for(6)
    link.heal()
    story.settle()
    return story.told(away) == [(lost[0].sequence, lost[-1].sequence)] and away.received == kept


def a_larger_policy_retains_what_was_due() -> bool:
    """Return True if events beyond the old policy are retained while a live client lacks them."""
    story = DurableStory(retention="0:age=1s;1:age=1s;2:age=1s;3:age=1s", release_grace_ns=0)
    story.cluster.run_for(2)
    away, slow = story.subscriber("s1"), story.subscriber("s2")
    link = story.away(away)
    upstream = story.cluster.link("b1", "s2").cut()
    sent = story.publish(3)
    story.cluster.run_for(4)
    change(story, "never")
    story.cluster.run_for(1)
    upstream.heal()
    story.cluster.run_for(15)
    kept = story.kept("p1")
    link.heal()
    story.settle()
    return kept == 3 and gaps_of(story) == [] and away.received == slow.received == sent


def a_policy_outlives_its_broker() -> bool:
    """Return True if a changed policy is in force after a crash, and a reset one is not."""
    story = DurableStory(release_grace_ns=0)
    broker = story.cluster.broker("p1")
    change(story, "age=2s,bytes=1MiB")
    story.cluster.run_for(1)
    broker.restart()
    story.cluster.run_for(1)
    stated = [str(each.policy) for each in story.core("p1").list_retention(0)]
    change(story, None)
    story.cluster.run_for(1)
    broker.restart()
    story.cluster.run_for(1)
    now = [str(each.policy) for each in story.core("p1").list_retention(0)]
    return stated == ["age=2s,bytes=1MiB"] * 4 and now == ["never"] * 4


def a_policy_is_durable_before_it_is_in_force() -> bool:
    """Return True if a crash before the row is durable leaves the earlier policy in force."""
    story = DurableStory(release_grace_ns=0)
    change(story, "age=1s")
    in_force = [str(each.policy) for each in story.core("p1").list_retention(0)]
    story.kill("p1", 0)
    story.cluster.broker("p1").start()
    story.cluster.run_for(1)
    after = [str(each.policy) for each in story.core("p1").list_retention(0)]
    return in_force == after == ["never"] * 4


def a_reset_that_a_crash_interrupts_is_recorded() -> bool:
    """Return True if a policy is recorded that was durable before a crash, in force after it."""
    story = DurableStory(release_grace_ns=0, max_retain_ns=SECOND_NS)
    change(story, "never")
    story.cluster.run_for(1)
    change(story, None)
    story.kill("p1", 100)
    story.cluster.broker("p1").start()
    story.cluster.run_for(1)
    away = story.subscriber()
    story.publish(1)  # a process without memory has its first gap from the first number on
    story.settle()
    link = story.away(away)
    lost = story.publish(2)
    story.cluster.run_for(4)
    link.heal()
    story.settle()
    return story.told(away) == [(lost[0].sequence, lost[-1].sequence)]


STORIES = (
    ("one-policy-for-all-pubends", each_pubend_has_its_policy, ()),
    ("policy-waits-for-the-former-age", a_smaller_policy_announces_its_gaps, ()),
    ("longer-policy-releases-due-events", a_larger_policy_retains_what_was_due, ()),
    ("policy-is-lost-in-a-restart", a_policy_outlives_its_broker, ()),
    ("policy-in-force-before-it-is-durable", a_policy_is_durable_before_it_is_in_force, ()),
    ("restart-records-no-policy", a_reset_that_a_crash_interrupts_is_recorded, ()),
    ("one-pubend-for-another", one_pubend_cannot_be_asked, ()),
    ("younger-is-lost", back_in_time, ()),
    ("lost-before-the-announcement", told_of_nothing, ()),
    ("lost-before-the-announcement", bytes_of_an_unreachable_subscriber, ()),
    ("one-newest-event-less", only_the_newest_are_kept, ()),
    ("bytes-wait-for-the-age", beyond_the_bound_twice, ()),
    ("no-grace", restarted_for_a_while, ()),
    ("gap-covers-every-lost-event", away_for_too_long, ()),
    ("a-gap-per-batch", away_for_too_long, (2,)),
    ("lost-is-silent", away_for_too_long, ()),
    ("gap-names-later-publications", away_for_too_long, ()),
)


@pytest.mark.parametrize(
    "name, told, batches", STORIES, ids=[f"{name}-{told.__name__}" for name, told, _ in STORIES]
)
def test_a_story_fails_with_its_named_bug(name, told, batches) -> None:
    chosen = {"catchup_batch": batches[0]} if batches else {}
    with plant([MUTANTS[name]]):
        assert fails(told, **chosen), f"{name} is not seen"


RIGHT = (one_pubend_cannot_be_asked, back_in_time, told_of_nothing, restarted_with_one_below,
         restarted_for_a_while, told_after_restart, only_the_newest_are_kept,
         beyond_the_bound_twice, bytes_of_an_unreachable_subscriber, each_pubend_has_its_policy,
         a_smaller_policy_announces_its_gaps, a_larger_policy_brings_nothing_back,
         a_larger_policy_retains_what_was_due, a_policy_outlives_its_broker,
         a_policy_is_durable_before_it_is_in_force,
         a_reset_that_a_crash_interrupts_is_recorded)  # fmt: skip


@pytest.mark.parametrize("told", RIGHT)
def test_a_story_passes_without_a_bug(told) -> None:
    assert told()


# ------------------------------------------------------------ one catch-up stream


def catching_up(*ticks: int) -> Catchup:
    """Return a catch-up stream that lacks these ticks."""
    catchup = Catchup(BatchReader(FilterLog("log"), 1, 100), 0, 0, 0)
    catchup.next_batch(Batch(0, 0, ticks, ticks[-1]))
    return catchup


def test_events_in_flight_split_and_bound_the_gap_of_a_loss() -> None:
    catchup = catching_up(2, 4, 6)
    kept = run_at([4])
    (origin,) = kept.origins
    catchup.take(LostPart(0, ()), [(4, 5)], kept)
    catchup.take(LostPart(9, ((origin.source, 99),)), [(2, 3), (6, 7)], None)
    before = ((origin.source, origin.sequences[0] - 1),)
    assert [*catchup.finish()] == [LostRange(2, 2, before), kept]
    assert catchup.rest() == [LostRange(6, 6, ((origin.source, 99),))]


def test_lost_ticks_are_not_fetched_again() -> None:
    catchup = catching_up(2)
    catchup.take(LostPart(9, ((ANN, 3), (BOB, 1))), [(2, 3)], None)
    assert [*catchup.finish()] == []
    assert catchup.next_batch(Batch(2, 0, (5, 9, 11), 12)) == [(11, 12)]


def test_before_the_first_publication_nothing_is_lost() -> None:
    catchup = catching_up(2, 4)
    first = run_at([4])
    (origin,) = first.origins
    first = replace(first, origins=(origin._replace(sequences=range(1, 2)),))
    catchup.take(NOTHING_LOST, [(4, 5)], first)
    catchup.take(LostPart(4, ((origin.source, 1),)), [(2, 3)], None)
    assert [*catchup.finish()] == [first]


def test_a_stream_without_publications_loses_nothing() -> None:
    catchup = catching_up(2)
    catchup.take(LostPart(9, ()), [(2, 3)], None)
    assert [*catchup.finish()] == catchup.rest() == []


def test_streams_are_those_of_one_pubend() -> None:
    story = story_of()
    away = story.subscriber()
    link = story.away(away)
    for client in ("c0", "c1"):
        story.cluster.publish("p1", client=client, kind="a")
    story.cluster.run_for(8)
    link.heal()
    story.cluster.run_for(2)
    streams = {gap.stream: [each[0] for each in gap.origins] for gap in gaps_of(story)}
    assert len(streams) == 2
    for stream, sources in streams.items():
        assert type(stream) is StreamId
        assert {source.publisher % 4 for source in sources} == {stream.publisher}
