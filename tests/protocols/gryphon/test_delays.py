"""The loss of the last event of a stream: found by its subends, by its pubend, or by both.

Paper: [GD02] §3.2 (DCT guards against the loss of the latest message; AET).
"""

import pytest

from brokerd.errors import ConfigError
from brokerd.protocols.gryphon.messages import AckExpected, Done, Doubt, Events
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import MILLISECOND_NS, SECOND_NS
from tests.helpers.durable_stories import DurableStory, fails
from tests.helpers.gryphon_stories import PaperStory, Story

MUTANTS = bugs_of("gryphon")
DCT_NS = 400 * MILLISECOND_NS
SUBENDS = {"ack_expected_ns": 0, "delay_curiosity_ns": DCT_NS}
"""No pubend requests acks; subends alone find what is lost."""
PUBENDS = {"gap_curiosity_ns": 3600 * SECOND_NS}
"""No subend requests a gap before its pubend requests acks."""
BOTH = {"ack_expected_ns": 2 * SECOND_NS, "delay_curiosity_ns": DCT_NS}


def found_after_ms(story_type=Story, *, upstream: str = "p1", **parameters) -> int:
    """Lose the last event on one link; return the time until it arrives."""
    story = story_type(pubends=1, **parameters)
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    sent = story.publish(5)
    story.cluster.run_for(0.2)
    story.lose(upstream, "b1" if upstream == "p1" else "s1", Events)
    sent += story.publish(1)
    took_ms = story.wait_for(lambda: subscriber.received == sent)
    story.settle()
    return took_ms


@pytest.mark.parametrize("order", ["publisher", "total"])
@pytest.mark.parametrize("upstream", ["p1", "b1"])
def test_a_subend_finds_a_lost_last_event_after_dct_without_its_pubend(
    order: str, upstream: str
) -> None:
    assert found_after_ms(upstream=upstream, order=order, **SUBENDS) <= 2 * 400 + 20


@pytest.mark.parametrize("name", ["never-in-doubt", "doubts-stay-on-the-way"])
def test_without_doubts_that_reach_the_pubend_the_last_event_stays_lost(name: str) -> None:
    with plant([MUTANTS[name]]):
        assert fails(lambda: found_after_ms(**SUBENDS) < 30_000)


def test_a_pubend_alone_finds_a_lost_last_event_after_aet() -> None:
    assert 9_000 < found_after_ms(**PUBENDS) < 12_000


def test_with_both_the_earlier_one_finds_it() -> None:
    assert found_after_ms(**BOTH) <= 2 * 400 + 20
    assert found_after_ms(**{**BOTH, "delay_curiosity_ns": 60 * SECOND_NS}) > 1_000


def test_a_durable_subscriber_receives_a_lost_last_event_after_dct() -> None:
    assert found_after_ms(DurableStory, **SUBENDS) <= 2 * 400 + 20


def test_brokers_consolidate_doubts_and_no_stream_with_news_is_doubted() -> None:
    story = PaperStory(**SUBENDS)
    story.rounds(50)
    assert not count_doubts(story, "s1", "b1") + count_doubts(story, "s1", "b2")
    story.quiet_since()
    story.cluster.run_for(8)
    below = sum(count_doubts(story, s, b) for s in ("s1", "s2") for b in ("b1", "b2"))
    above = sum(count_doubts(story, b, "p1") for b in ("b1", "b2"))
    streams = 4 * 8_000 // 400
    assert 2 * streams * 8 // 10 <= below <= 2 * streams
    assert above <= streams, "two subscribers' brokers, one doubt upstream"
    assert not story.from_to("p1", "b1", AckExpected), "the streams are complete"


def count_doubts(story: Story, sender: str, receiver: str) -> int:
    """Return the number of doubts about streams of the publishers' broker."""
    return sum(each.stream.broker == 0 for each in story.from_to(sender, receiver, Doubt))


def lost_ack() -> bool:
    """Lose the ack of the last event on its way to the pubend."""
    story = Story(pubends=1, filters=False, **SUBENDS)
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    story.lose("b1", "p1", Done)
    sent = story.publish(1)
    story.settle()
    queued = story.cluster.broker("p1").broker.core.status().queued
    return subscriber.received == sent and queued == 0


def lost_without_subscribers() -> bool:
    """Lose the last event on its way to a broker without subscribers."""
    story = Story("p1-s1", pubends=1, filters=False, **SUBENDS)
    story.lose("p1", "s1", Events)
    story.publish(1)
    story.settle()
    return story.cluster.broker("p1").broker.core.status().queued == 0


def test_a_broker_without_subscribers_acknowledges_a_lost_event() -> None:
    assert lost_without_subscribers()
    with plant([MUTANTS["idle-brokers-never-doubt"]]):
        assert not lost_without_subscribers()


def test_a_doubt_repeats_an_ack_that_was_lost_with_a_broker() -> None:
    assert lost_ack()
    with plant([MUTANTS["doubts-repeat-no-ack"]]):
        assert not lost_ack()


def test_pubends_and_subends_may_not_both_be_silent() -> None:
    with pytest.raises(ConfigError, match="no broker would find the loss of the last event"):
        GryphonParameters(ack_expected_ns=0).check("here")
    with pytest.raises(ConfigError, match="delay_curiosity_ns = -1; 0 for never"):
        GryphonParameters(delay_curiosity_ns=-1).check("here")
    GryphonParameters(**SUBENDS).check("here")
