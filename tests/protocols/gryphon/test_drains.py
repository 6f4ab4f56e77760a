"""Clients that move receive everything at their old broker that precedes the move.

A new broker delivers behind the ticks at which it has begun, and the old broker all up to there.
"""

import pytest

from brokerd.model.identity import StreamId
from brokerd.protocols.gryphon.messages import Events
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import SECOND_NS
from tests.helpers.durable_stories import fails
from tests.helpers.gryphon_stories import Story

MUTANTS = bugs_of("gryphon")


def moved(story: Story, at: str) -> bool:
    """Move a subscriber that lacks events to s2; return True if it receives all, in order."""
    story.cluster.publish("s2", kind="a")  # total order waits for its pubend from now on
    story.settle()
    subscriber = story.cluster.subscribe(at)
    story.cluster.run_until_quiet()
    sent = story.publish(1)
    story.settle()
    story.lose("b1", "s1", Events)
    sent += story.publish(2, pause_s=0.02)
    assert len(subscriber.received) == 1
    arrived: list[str] = []
    story.cluster.population.move(
        subscriber.client.name, "s2", lambda name, _: bool(arrived.append(name)) or True
    )
    story.wait_for(lambda: bool(arrived))
    sent += story.publish(2)
    story.settle()
    there = story.cluster.clients[arrived[0]]
    received = [number for _, number in subscriber.client.received[1] + there.received[1]]
    return received == [each.sequence for each in sent]


def behind_a_gap() -> bool:
    return moved(Story(pubends=1, gap_curiosity_ns=SECOND_NS), "s1")


def behind_the_streams_of_others() -> bool:
    return moved(Story(pubends=1, order="total", doubt_curiosity_ns=SECOND_NS), "p1")


def without_filters() -> bool:
    """Lose the last event on its way to the old broker, which therefore has no gap."""
    story = Story(pubends=1, filters=False, ack_expected_ns=60 * SECOND_NS)
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    sent = story.publish(1)
    story.settle()
    story.lose("b1", "s1", Events)
    sent += story.publish(1)
    story.cluster.run_for(1)
    assert len(subscriber.received) == 1
    arrived: list[str] = []
    story.cluster.population.move(
        subscriber.client.name, "s2", lambda name, _: bool(arrived.append(name)) or True
    )
    story.wait_for(lambda: bool(arrived))
    sent += story.publish(1)
    story.settle()
    there = story.cluster.clients[arrived[0]]
    received = [number for _, number in subscriber.client.received[1] + there.received[1]]
    return received == [each.sequence for each in sent]


@pytest.mark.parametrize(
    "bug",
    ["leaves-before-stated-ticks", "stated-ticks-are-not-requested", "starts-without-positions"],
)
def test_without_filters_a_client_leaves_behind_the_start_at_its_next_broker(bug: str) -> None:
    """Seed 66000118: the next broker began behind an event that the old broker lacked."""
    assert without_filters()
    with plant([MUTANTS[bug]]):
        assert fails(without_filters)


def test_ticks_that_a_client_invents_are_requested_of_no_broker() -> None:
    """Other brokers would close their sessions; the client waits for as long as it likes."""
    story = Story(pubends=1, filters=False)
    subscriber, other = (story.cluster.subscribe("s1") for _ in range(2))
    story.cluster.run_until_quiet()
    story.publish(1)
    story.settle()
    opened = {**story.cluster.broker("s1").broker.ends}
    future = tuple((StreamId(broker, 0, 0), 1 << 60) for broker in (0, 1, 99))
    subscriber.client.detach(drain=True, through=future)
    story.cluster.run_for(30)
    story.publish(1)
    story.cluster.run_for(3)
    assert not subscriber.client.detached
    assert {**story.cluster.broker("s1").broker.ends} == opened
    assert len(other.received) == 2


def test_a_client_leaves_behind_the_events_of_a_gap() -> None:
    """Seed 66000070: the new broker had begun behind events that the old broker still lacked."""
    assert behind_a_gap()
    with plant([MUTANTS["leaves-before-the-streams-pass"]]):
        assert fails(behind_a_gap)


@pytest.mark.parametrize("bug", ["leaves-before-the-streams-pass", "leaves-before-own-events"])
def test_in_total_order_a_client_leaves_behind_the_events_of_its_broker(bug: str) -> None:
    """Seed 66000051: events of the broker itself waited for silence of the others."""
    assert behind_the_streams_of_others()
    with plant([MUTANTS[bug]]):
        assert fails(behind_the_streams_of_others)
