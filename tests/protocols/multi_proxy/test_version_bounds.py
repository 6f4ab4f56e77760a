"""Generations that are too far ahead of the known one."""

from typing import Any

import pytest
from _pytest.outcomes import Failed

from brokerd.errors import RemoteProtocolError
from brokerd.protocols.interface import Commit, MessageReceived
from brokerd.protocols.multi_proxy.messages import (
    Assign,
    Generation,
    Located,
    Merged,
    Owned,
    Owner,
)
from brokerd.protocols.multi_proxy.parameters import ARBITER
from brokerd.protocols.multi_proxy.topics import Topics
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.proxy_stories import CountedStory, Story, sides
from tests.protocols.multi_proxy.test_server import PROXY, SERVER, TOPIC, Disk

MUTANTS = bugs_of("multi_proxy")

FAR = (1 << 33, 1 << 62)


def an_assignment_leaps(number: int) -> None:
    disk = Disk(ownership=ARBITER)
    message = Assign(SERVER, SERVER, (Generation(TOPIC, 1), Generation(TOPIC, number)))
    with pytest.raises(RemoteProtocolError, match="leaps from 0"):
        disk.core.handle(MessageReceived(PROXY, 7, message), 0)
    fair = Assign(SERVER, SERVER, (Generation(TOPIC, 1),))
    effects = disk.core.handle(MessageReceived(PROXY, 7, fair), 0)
    assert any(isinstance(each, Commit) for each in effects)


def an_owner_leaps(number: int) -> None:
    story = Story(ownership=ARBITER)
    x1, v1 = (story.topology.number_of(name) for name in ("x1", "v1"))
    broker = story.cluster.broker("x1").broker
    message = Owned((Owner(TOPIC, v1, number),))
    event = MessageReceived(v1, broker.session_with(v1), message)
    assert x1 != v1
    with pytest.raises(RemoteProtocolError, match="leaps from"):
        broker.core.handle(event, story.cluster.schedule.now_ns)


@pytest.mark.parametrize("number", FAR)
@pytest.mark.parametrize("story", [an_assignment_leaps, an_owner_leaps])
def test_a_generation_that_leaps_is_refused(story, number: int) -> None:
    story(number)
    with plant([MUTANTS["generations-leap"]]), pytest.raises((Failed, AssertionError)):
        story(number)


class Forged(CountedStory):
    """A home that follows a topic, and a server that is not the owner."""

    def __init__(self) -> None:
        super().__init__(sides(servers=3), "a", ownership=ARBITER, topics=8)
        self.subscribe("e1", "a")
        self.cluster.run_for(1)
        self.put()
        self.cluster.run_for(1)
        topics = Topics(self.parameters, decode_attribute_table)
        self.topic = topics.topic_of_value("a")
        self.owners: Any = self.cluster.broker("e1").broker.core._owners
        self.right = self.owners.of(self.topic)
        arbiter = self.owners._arbiters[self.topic]
        self.wrong = next(each for each in (2, 3, 4) if each != self.right)
        self.proxy = self.topology.number_of("x1")
        self.arbiter = arbiter


@pytest.mark.parametrize("kind", ["located", "merged", "owned"])
def test_an_owner_beyond_the_number_of_servers_is_refused(kind: str) -> None:
    """Each server has a topic once, so a generation is bounded by the known one."""

    def refused() -> bool:
        story = Forged()
        home = story.cluster.broker("e1").broker
        owners = (Owner(story.topic, story.wrong, story.owners._generations[story.topic] + 3),)
        number = story.topology.number_of("e1")
        message = {
            "located": Located(story.arbiter, number, owners),
            "merged": Merged(number, owners),
            "owned": Owned(owners),
        }[kind]
        event = MessageReceived(story.proxy, home.session_with(story.proxy), message)
        with pytest.raises(RemoteProtocolError, match="leaps from"):
            home.core.handle(event, story.cluster.schedule.now_ns)
        return True

    assert refused()
    with plant([MUTANTS["generations-beyond-the-servers"]]), pytest.raises(Failed):
        refused()
