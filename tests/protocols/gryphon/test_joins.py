"""Pubends that join a total order at an agreed tick, long after other pubends started.

Paper: [GD02] §2.3 (total order); the paper leaves joining pubends open.
"""

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.protocols.gryphon.messages import Events, Join, Joined, Nack, Silent
from brokerd.protocols.gryphon.state import MERGED
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from tests.helpers.gryphon_stories import PaperStory, Story
from tests.protocols.gryphon.test_restarts import ClockAt

MUTANTS = bugs_of("gryphon")


class JoinStory(Story):
    """Subscribers at s1 and s2; the pubend of s2 is active, p1's is not and has a slow clock."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__(order="total", pubends=1, **parameters)
        for name, seconds in (("p1", 1_000_000), ("s2", 1_003_600)):
            broker = self.cluster.broker(name)
            broker.broker._wall_clocks = ClockAt(seconds)  # type: ignore[assignment]
            broker.restart()
        self.subscribers = [self.cluster.subscribe(name) for name in ("s1", "s2")]
        self.cluster.run_until_quiet()
        self.sent = self.publish(3, at="s2")
        self.cluster.run_for(1)
        self.quiet_since()

    def ticks(self, sender: str) -> list[int]:
        """Return the ticks of the new events that a broker sent to b1."""
        told = [m for m in self.from_to(sender, "b1", Events) if not m.again]
        return [tick for m in told for tick in m.run.sequences]

    def begin(self) -> None:
        """Publish the first event at p1."""
        self.sent.append(self.cluster.publish("p1", kind="a"))

    def check(self) -> None:
        """Check that both subscribers received all events in the same order."""
        self.settle()
        first, second = self.subscribers
        assert first.received == second.received
        assert len(first.received) == len(self.sent)
        assert {*first.received} == {*self.sent}


def test_an_event_does_not_wait_for_pubends_without_publications() -> None:
    """The pubends of b1, s1 and p1 are idle: they receive no requests and send no messages."""
    story = JoinStory()
    story.sent += story.publish(1, at="s2", pause_s=0.01)
    assert [each.received for each in story.subscribers] == [story.sent] * 2
    story.check()
    assert not [m for *_, m in story.said if type(m) in (Nack, Silent, Join)]


def test_a_new_pubend_starts_behind_all_delivered_ticks() -> None:
    """The clock of the new pubend is an hour slow; the others do not stop meanwhile."""
    story = JoinStory()
    story.sent += story.publish(2, at="s2", pause_s=0.001)
    before = max(story.ticks("s2"), default=0)
    story.begin()
    story.sent += story.publish(40, at="s2", pause_s=0.001)
    story.sent += story.publish(3)
    story.check()
    assert before < min(story.ticks("p1"))
    assert story.ticks("p1") == sorted({*story.ticks("p1")})


def test_all_pubends_may_begin_at_once() -> None:
    story = JoinStory()
    for _ in range(3):
        story.sent += [story.cluster.publish(name, kind="a") for name in ("p1", "b1", "s1", "s2")]
        story.cluster.run_for(0.003)
    story.check()


def something_is_lost(way: tuple[str, str], kind: type) -> None:
    story = JoinStory()
    story.lose(*way, kind)
    story.begin()
    story.cluster.run_for(3)
    story.check()


@pytest.mark.parametrize(
    "way, kind",
    [
        (("p1", "b1"), Join),
        (("b1", "s1"), Join),
        (("s1", "b1"), Joined),
        (("b1", "p1"), Joined),
    ],
)
def test_lost_join_messages_are_repeated(way: tuple[str, str], kind: type) -> None:
    something_is_lost(way, kind)


def both_questions_miss_somebody() -> None:
    """Broker s1 delivers later events of s2 and then restarts without memory.

    Broker s2, which has waited for p1 since its answer, never gets to request the tick.
    """
    story = JoinStory()
    story.lose("b1", "s1", Join)
    for _ in range(64):  # one per piece of the gap
        story.lose("s2", "b1", Nack)
    story.begin()
    story.cluster.run_for(0.1)
    story.sent += story.publish(1, at="s2", pause_s=0.1)
    assert story.subscribers[0].received == [*story.sent[:3], story.sent[-1]]
    story.lose("b1", "s2", Join)
    story.cluster.broker("s1").restart()
    story.sent += story.publish(1, pause_s=3)
    story.check()


def a_broker_crashes_when_it_has_answered() -> None:
    story = JoinStory()
    story.begin()
    story.wait_for(lambda: bool(story.from_to("s1", "b1", Joined)))
    story.cluster.broker("s1").restart()
    story.sent += story.publish(3, at="s2")
    story.check()


def a_broker_restarts_later() -> None:
    """Broker s1 still waits for p1, with events of p1 and s2 in flight at the restart."""
    story = JoinStory()
    story.begin()
    story.cluster.run_for(2)
    story.cluster.broker("s1").restart()
    for _ in range(5):
        story.sent += [story.cluster.publish(name, kind="a") for name in ("p1", "s2")]
        story.cluster.run_for(0.02)
    story.check()


def test_nothing_is_at_rest_while_a_pubend_waits_to_begin() -> None:
    """The result holds without matching subscriptions and after the publisher's departure."""
    story = JoinStory()
    story.cluster.broker("s2").kill()
    story.begin()
    story.cluster.run_for(3)
    core = story.cluster.broker("p1").broker.core
    assert core.aftermath() == ["1 publications whose pubend was not announced to all brokers"]
    story.cluster.broker("s2").start()
    story.check()
    assert core.aftermath() == []


def test_a_join_waits_for_a_down_broker_and_delays_no_other_pubend() -> None:
    """Events of s2 reach its own subscriber all the time; p1's publisher is not acknowledged."""
    story = JoinStory()
    story.cluster.broker("s1").kill()
    story.begin()
    story.cluster.run_for(1)
    later = story.publish(3, at="s2", pause_s=1)
    assert story.subscribers[1].received == [*story.sent[:3], *later]
    assert not story.ticks("p1")
    (reason,) = story.cluster.broker("p1").broker.core.status().idle_reasons
    assert reason == "1 publications whose pubend was not announced to all brokers"
    story.cluster.broker("s1").start()
    story.sent += later
    story.check()
    assert story.ticks("p1")


@pytest.mark.parametrize("after_ms", range(0, 24, 2))
def test_a_pubend_may_crash_while_it_begins(after_ms: int) -> None:
    """The publisher sends unacknowledged events again, and they arrive once."""
    story = JoinStory()
    story.begin()
    story.cluster.run_for(after_ms / 1_000)
    story.cluster.broker("p1").restart()
    story.sent += story.publish(2, at="s2")
    story.sent += story.publish(1)
    story.check()


def test_a_joined_pubend_sends_no_join_after_a_restart() -> None:
    """The result does not depend on events in the log."""
    story = JoinStory()
    story.begin()
    story.cluster.run_for(0.03)
    story.cluster.broker("p1").restart()
    story.sent += story.publish(1, pause_s=5)
    assert story.from_to("p1", "b1", Join)
    story.quiet_since()
    story.cluster.broker("p1").restart()
    story.sent += story.publish(1)
    story.check()
    assert not story.from_to("p1", "b1", Join)


def test_a_pubend_starts_although_a_broker_of_an_intermediate_cell_dies() -> None:
    story = PaperStory(at=("s1", "s4"), order="total", pubends=1)
    published = story.cluster.publish("s4", client="late", kind="a")
    story.sent.append(story.note_published(published))
    story.cluster.run_for(0.002)
    story.cluster.broker("b3").kill()
    story.rounds(3)
    story.cluster.broker("b3").start()
    story.check()
    assert story.subscribers[0].received == story.subscribers[1].received


def a_pubend_begins() -> None:
    test_a_new_pubend_starts_behind_all_delivered_ticks()


def a_question_is_lost() -> None:
    something_is_lost(("b1", "s1"), Join)


@pytest.mark.parametrize(
    "bug, rule, story",
    [
        ("begins-at-the-lowest-answer", "start early", a_pubend_begins),
        ("pubend-begins-at-its-clock", "start early", a_pubend_begins),
        ("pubend-begins-without-agreement", "start unannounced", a_pubend_begins),
        ("pubend-begins-after-one-round", "start early", both_questions_miss_somebody),
        ("answered-before-it-is-written", "joined early", a_broker_crashes_when_it_has_answered),
        ("awaited-streams-are-volatile", None, a_broker_restarts_later),
        ("join-request-is-not-repeated", None, a_question_is_lost),
    ],
)
def test_bugs_of_pubends_that_begin_are_seen(
    bug: str, rule: str | None, story: Callable[[], None]
) -> None:
    story()
    seen = (InvariantViolated, AssertionError)
    with plant([MUTANTS[bug]]), pytest.raises(seen, match=rule):
        story()


def test_the_set_of_merged_pubends_is_durable() -> None:
    story = JoinStory()
    assert story.cluster.broker("s1").broker.on_disk()[MERGED] == {"3.0": True}
    story.begin()
    story.check()
    assert {*story.cluster.broker("s1").broker.on_disk()[MERGED]} == {"0.0", "3.0"}
