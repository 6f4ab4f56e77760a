"""Stories of subscribers that leave their broker for another one, and take all that it owes them.

The new broker delivers behind its position, and the old broker everything up to there.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.model.identity import StreamId
from brokerd.protocols.durable.clients import DurableClients
from brokerd.protocols.gryphon.messages import Events
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.handles import Subscription
from brokerd.units import SECOND_NS
from tests.helpers.durable_stories import DurableStory, fails

MUTANTS = bugs_of("durable")


def arrive_at_s2(story: DurableStory, mover: Subscription) -> list[tuple[object, int]]:
    """Move a subscriber to s2 as the client library does; return all that it has received."""
    arrived: list[str] = []
    story.cluster.population.move(
        mover.client.name, "s2", lambda name, _: bool(arrived.append(name)) or True
    )
    story.wait_for(lambda: bool(arrived))
    last = story.publish(1)
    story.settle(40)
    there = story.cluster.clients[arrived[0]]
    received = [*mover.client.received[1], *there.received[1]]
    assert received[-1][1] == last[0].sequence
    return received


def without_filters() -> bool:
    """Lose the last event on its way to the old broker, which therefore has no gap."""
    story = DurableStory(pubends=1, filters=False, ack_expected_ns=60 * SECOND_NS)
    mover = story.subscriber("s1")
    story.publish(1)
    story.settle()
    story.lose("b1", "s1", Events)
    story.publish(1)
    story.cluster.run_for(1)
    assert len(mover.received) == 1
    return len(arrive_at_s2(story, mover)) == 3


def while_catching_up() -> bool:
    """Move while most of the events from an absence are still to be fetched."""
    story = DurableStory(pubends=1, catchup_batch=2)
    mover = story.subscriber("s1")
    link = story.away(mover)
    story.publish(20)
    story.cluster.run_for(3)
    mover.client.take_after_ns = SECOND_NS // 5
    link.heal()
    story.wait_for(lambda: bool(mover.received))
    assert len(mover.received) < 10
    return len(arrive_at_s2(story, mover)) == 21


STORIES = {
    "leaves-before-stated-ticks": without_filters,
    "leaves-while-it-catches-up": while_catching_up,
}


@pytest.mark.parametrize("bug", STORIES)
def test_a_client_leaves_behind_everything_before_its_start_elsewhere(bug: str) -> None:
    story: Callable[[], bool] = STORIES[bug]
    assert story()
    with plant([MUTANTS[bug]]):
        assert fails(story)


def test_a_client_leaves_although_a_pubend_has_joined_since_its_detach() -> None:
    old, joined = StreamId(0, 0, 0), StreamId(1, 0, 0)
    lanes: Any = {
        each: SimpleNamespace(stream=each, has_given=(5).__ge__) for each in (old, joined)
    }
    client = SimpleNamespace(subscriptions={1: SimpleNamespace(lanes=lanes)})
    released: list[object] = []
    clients: Any = SimpleNamespace(
        departing={"s": {old: 5}},
        table=SimpleNamespace(clients={"s": client}),
        _leave=lambda client, drain: released.append(client),
    )
    DurableClients.settle_departures(clients)
    assert released == [client]
    assert clients.departing == {}
