"""Stories of gryphon with cells of one broker; a link that absorbs and breaks loses messages.

Stories of bundles and of messages between peers are in `test_cells.py`.

Paper: [GD02] §2.4, §3.
"""

import pytest

from brokerd.model.client_messages import PublishAcknowledged
from brokerd.protocols.gryphon.messages import KINDS, AckExpected, Events, Nack, Silent
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.stream import Stream
from brokerd.simulator.world.handles import Subscription
from brokerd.units import MILLISECOND_NS, SECOND_NS
from brokerd.wire.attributes import encode_attributes
from tests.helpers.gryphon_stories import Story, ticks_of
from tests.helpers.stream_runs import STREAM


def lose(story: Story, a: str, b: str, count: int = 5) -> list:
    """Publish events that a broken link loses, and restore the link."""
    link = story.cluster.link(a, b).absorb()
    sent = story.publish(count)
    link.cut()
    story.cluster.run_for(0.2)
    link.heal()
    story.cluster.run_for(3)
    return sent


def two_subscribers(story: Story) -> tuple[Subscription, Subscription]:
    subscribers = story.cluster.subscribe("s1"), story.cluster.subscribe("s2")
    story.cluster.run_until_quiet()
    return subscribers


def test_no_requests_are_sent_while_nothing_is_lost() -> None:
    """A subscriber without matches for long receives the silence together with events."""
    story = Story()
    all_of_it = story.cluster.subscribe("s1")
    none_of_it = story.cluster.subscribe("s2", "kind = 'b'")
    story.cluster.run_until_quiet()
    sent = story.publish(100, pause_s=0.6)
    story.settle()
    assert all_of_it.received == sent
    assert none_of_it.received == []
    for kind in (Nack, AckExpected, Silent):
        assert not [entry for entry in story.said if type(entry[3]) is kind]


def test_only_the_broker_with_a_gap_requests_it_and_receives_the_answer() -> None:
    story = Story()
    first, second = two_subscribers(story)
    sent = story.publish(2)
    sent += lose(story, "b1", "s1")
    story.quiet_since()
    sent += story.publish(3)
    story.settle()
    assert first.received == second.received == sent
    assert story.from_to("s1", "b1", Nack)
    assert not story.from_to("s2", "b1", Nack)
    assert not story.from_to("b1", "p1", Nack), "b1 knows what s1 asks for"
    again = [len(m.run) for m in story.from_to("b1", "s1", Events) if m.again]
    assert sum(again) == 5
    assert not any(m.again for m in story.from_to("b1", "s2", Events))


def test_brokers_send_one_event_per_message_if_configured() -> None:
    """The paper's brokers do so, also for answers and for queued events."""
    story = Story(events_per_message=1)
    first, second = two_subscribers(story)
    contents = [(encode_attributes({"kind": "a"}), b"") for _ in range(8)]
    sent = story.cluster.publish_run("p1", contents)
    link = story.cluster.link("b1", "s1").absorb()
    sent += story.cluster.publish_run("p1", contents)
    story.cluster.run_for(0.3)
    link.cut()
    story.cluster.run_for(0.2)
    link.heal()
    story.cluster.run_for(3)
    sent += story.cluster.publish_run("p1", contents)
    story.settle()
    assert first.received == second.received == sent
    told = [m for *_, m in story.said if type(m) is Events]
    assert {len(m.run) for m in told} == {1}
    joining = next(kind.joining for kind in KINDS if kind.type is Events)
    assert joining is not None
    assert not joining.continues(told[0], told[1])


def test_two_subscribers_with_one_gap_are_one_question_to_the_pubend() -> None:
    story = Story()
    first, second = two_subscribers(story)
    sent = story.publish(2)
    sent += lose(story, "p1", "b1")
    sent += story.publish(3)
    story.settle()
    assert first.received == second.received == sent
    asked = [ticks_of(m.ranges) for m in story.from_to("b1", "p1", Nack)]
    below = [ticks_of(m.ranges) for name in ("s1", "s2") for m in story.from_to(name, "b1", Nack)]
    assert sum(asked) == sum(below) / 2
    answers = [m for m in story.from_to("p1", "b1", Events) if m.again]
    assert sum(len(m.run) for m in answers) == 5


def test_only_new_ranges_are_forwarded_until_the_old_request_expires() -> None:
    stream = Stream(STREAM, 1, (2,), GryphonParameters())
    assert stream.request([(10, 20)], 0, 450) == [(10, 20)]
    assert stream.request([(15, 30)], 1, 451) == [(20, 30)]
    assert stream.request([(10, 30)], 449, 900) == []
    assert stream.request([(10, 30)], 450, 900) == [(10, 20)]
    stream.on_answer(10, 30)
    assert not stream.requested


def test_a_lost_answer_is_requested_again() -> None:
    story = Story()
    first, _ = two_subscribers(story)
    sent = story.publish(2)
    sent += lose(story, "b1", "s1")
    story.quiet_since()
    sent += story.publish(1, pause_s=0.1)
    link = story.cluster.link("b1", "s1")
    link.absorb()
    story.cluster.run_for(0.3)  # the request is sent, and no answer arrives
    link.cut()
    story.cluster.run_for(0.2)
    link.heal()
    story.settle()
    assert first.received == sent
    assert len(story.times_ms("s1", Nack)) >= 1


def test_a_pubend_requests_acknowledgement_of_its_last_event() -> None:
    """No event follows, so no downstream broker can detect the loss.

    The pubend waits for AET and checks every second.
    """
    story = Story()
    first, second = two_subscribers(story)
    sent = story.publish(2)
    published_ms = story.cluster.schedule.now_ns // MILLISECOND_NS
    sent += lose(story, "b1", "s1", count=1)
    story.cluster.run_for(5)
    assert first.received == sent[:-1]
    assert second.received == sent
    story.settle()
    assert first.received == sent
    (when_ms,) = story.times_ms("b1", AckExpected)
    assert 10_000 <= when_ms - published_ms <= 11_100


def test_logged_events_that_were_not_sent_are_delivered_after_a_restart() -> None:
    story = Story()
    first, _ = two_subscribers(story)
    sent = story.publish(2)
    broker = story.cluster.broker("p1")
    story.cluster.link("p1", "b1").absorb()
    sent += story.publish(3)
    assert story.from_to("p1", "p-p1", PublishAcknowledged), "they are on disk"
    broker.kill()
    story.cluster.link("p1", "b1").heal()
    story.cluster.run_for(20)
    story.quiet_since()
    broker.start()
    story.settle(5)
    assert first.received == sent
    assert story.from_to("p1", "b1", AckExpected), "it asks at once, not after AET"


@pytest.mark.parametrize("seed", range(4))
def test_events_not_durable_at_a_crash_are_published_once(seed: int) -> None:
    """The publisher, without an acknowledgement, sends the event again, logged or not."""
    story = Story()
    first, second = two_subscribers(story)
    sent = [story.cluster.publish("p1", kind="a") for _ in range(3 + seed)]
    story.cluster.run_for(0.001 * (1 + seed))
    story.cluster.broker("p1").kill()
    story.cluster.run_for(0.1)
    story.cluster.broker("p1").start()
    story.settle()
    assert first.received == second.received == sent


def test_ticks_go_up_although_the_clock_is_put_back() -> None:
    """Simulated clocks jump by up to an hour between two starts of a broker."""
    story = Story()
    first, _ = two_subscribers(story)
    sent = []
    for _ in range(8):
        sent += story.publish(2)
        story.cluster.broker("p1").restart()
        story.cluster.run_for(1)
    story.settle()
    assert first.received == sent
    ticks = [
        tick for m in story.from_to("p1", "b1", Events) if not m.again for tick in m.run.sequences
    ]
    assert ticks == sorted(set(ticks))


def test_an_intermediate_broker_with_many_restarts_loses_nothing() -> None:
    story = Story()
    first, second = two_subscribers(story)
    sent = []
    for _ in range(20):
        sent += story.publish(3, pause_s=0.1)
        story.cluster.broker("b1").restart()
    story.settle()
    assert first.received == second.received == sent
    for broker in story.cluster.brokers:
        for stream in broker.core.streams:  # type: ignore[attr-defined]
            assert not stream.curious, f"{broker.name} thinks that somebody still asks"


def test_a_subscribers_broker_restarts_and_its_client_gets_each_event_once() -> None:
    story = Story()
    first, second = two_subscribers(story)
    sent = story.publish(5)
    story.cluster.broker("s1").kill()
    sent += story.publish(5)
    story.cluster.broker("s1").start()
    sent += story.publish(5)
    story.settle()
    assert first.received == second.received == sent


def test_a_log_empties_only_after_all_brokers_have_acknowledged() -> None:
    story = Story()
    two_subscribers(story)
    story.cluster.broker("s2").kill()
    story.publish(5)
    story.cluster.run_for(30)
    assert story.cluster.broker("p1").status().queued == 5
    assert story.cluster.broker("s1").status().queued == 0
    story.cluster.broker("s2").start()
    story.settle()
    assert [story.cluster.broker(name).status().queued for name in ("p1", "b1", "s1", "s2")] == [
        0
    ] * 4


def test_a_client_that_stays_away_holds_events_until_its_subscription_ends() -> None:
    story = Story(client_linger_ns=5 * SECOND_NS)
    story.cluster.subscribe("s1")
    away = story.cluster.subscribe("s2")
    story.cluster.run_until_quiet()
    story.cluster.link(away.client.name, "s2").cut()
    story.publish(5)
    story.cluster.run_for(3)
    assert story.cluster.broker("p1").status().queued == 5
    story.cluster.run_for(5)
    assert story.cluster.broker("p1").status().queued == 0
