"""What [GD02] promises, sentence by sentence, each promise a test: §2 and §3.

Begun: publisher order, consolidation and both kinds of liveness, on cells of one broker. Cells of
several, total order and the experiments of §4 have no test yet.
"""

import pytest

from brokerd.protocols.gryphon.messages import AckExpected, Events, Nack
from tests.helpers.gryphon_stories import Story, ticks_of


def stalled(story: Story, a: str, b: str, count: int) -> list:
    """A link stalls, taking publications that never come out of it, and then fails."""
    link = story.cluster.link(a, b).absorb()
    sent = story.publish(count)
    link.cut()
    story.cluster.run_for(0.5)
    link.heal()
    story.cluster.run_for(3)
    return sent


def test_every_event_is_delivered_exactly_once_while_a_subscriber_stays_connected() -> None:
    """Brokers and links fail and come back: exactly once, in publisher order (§1, §2.3)."""
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


def test_only_the_publishers_broker_logs_and_nothing_is_seen_before() -> None:
    """An event is published when it is logged; what is not logged is not delivered (§2.2)."""
    story = Story()
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    publication = story.cluster.publish("p1", kind="a")
    story.cluster.run_for(0.0015)  # it is at its broker, whose disk takes longer
    assert not story.from_to("p1", "b1", Events)
    story.settle()
    assert subscriber.received == [publication]
    assert story.loggers == ["p1"]


@pytest.mark.parametrize("subscribers", [1, 2, 3])
def test_nacks_of_many_subscribers_are_one_towards_the_publisher(subscribers: int) -> None:
    """Curiosity is consolidated on its way (§2.4, §3.1)."""
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


def test_a_gap_is_asked_for_when_it_has_lasted_for_gct() -> None:
    """Not at once: what is late may still come (§3.2, GCT = 200 ms)."""
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


def test_nobody_asks_while_a_pubend_is_down_and_it_asks_when_it_is_back() -> None:
    """No gap, no nack; AckExpected makes subscribers ask for what was logged and not sent
    (§3.2, §4.2 Fig. 8)."""
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
