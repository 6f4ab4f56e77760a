"""Generations that are too far ahead of the current generation."""

from collections.abc import Callable
from functools import partial
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
    Move,
    Owned,
    Owner,
)
from brokerd.protocols.multi_proxy.parameters import ARBITER
from brokerd.protocols.multi_proxy.routes import Places
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
    """An access broker that follows a topic, and a server that is not the owner."""

    def __init__(self, spread_topics: int = 0) -> None:
        super().__init__(
            sides(servers=3), "a", ownership=ARBITER, topics=8, spread_topics=spread_topics
        )
        self.subscribe("e1", "a")
        self.cluster.run_for(1)
        self.put()
        self.cluster.run_for(1)
        topics = Topics(self.parameters, decode_attribute_table)
        self.topic = topics.topic_of_value("a")
        self.owners: Any = self.cluster.broker("e1").broker.core._owners.table
        self.right = self.owners.of(self.topic)
        arbiter = Places(0, self.topology, self.parameters.topics).arbiters[self.topic]
        self.wrong = next(each for each in (2, 3, 4) if each != self.right)
        self.proxy = self.topology.number_of("x1")
        self.arbiter = arbiter


@pytest.mark.parametrize("kind", ["located", "merged", "owned"])
def test_an_owner_beyond_the_number_of_servers_is_refused(kind: str) -> None:
    """A server has a topic at most once, so the current generation bounds the next."""

    def refused() -> bool:
        story = Forged()
        home = story.cluster.broker("e1").broker
        owners = (Owner(story.topic, story.wrong, story.owners.generations[story.topic] + 3),)
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


# ------------------------------------------------------------ generations within their bound


def perform(story: Forged, broker: str, peer: int, message: Any) -> None:
    """Let a broker handle a forged message of a neighbour."""
    forged = story.cluster.broker(broker).broker
    forged._handle(MessageReceived(peer, forged.session_with(peer), message))
    story.cluster.run_for(0.05)


def heals(story: Forged) -> bool:
    """Return True if all publications arrive, also at a later client, without doubt."""
    story.put()
    story.cluster.run_for(10)
    if story.lost():
        return False
    story.sent.clear()
    story.subscribe("e2", "a")
    story.cluster.run_for(5)
    story.put()
    story.cluster.run_for(10)
    for _, had in story.subscriptions:
        had.received[:] = [each for each in had.received if ("a", each) in story.sent]
    doubts = [each for each in story.cluster.broker("e1").status().idle_reasons if "own" in each]
    return not story.lost() and not any("does not own" in reason for reason in doubts)


@pytest.mark.parametrize("kind", ["located", "merged", "owned", "proxy"])
def test_a_forged_owner_is_denied_and_the_arbiter_names_the_right_one(kind: str) -> None:
    """The named server denies the topic and keeps its sessions with innocent proxies."""
    story = Forged()
    owners = (Owner(story.topic, story.wrong, story.owners.generations[story.topic] + 1),)
    home = story.topology.number_of("e1")
    message = {
        "located": Located(story.arbiter, home, owners),
        "merged": Merged(home, owners),
        "owned": Owned(owners),
        "proxy": Owned(owners),
    }[kind]
    peer = story.wrong if kind == "proxy" else story.proxy
    perform(story, "x1" if kind == "proxy" else "e1", peer, message)
    assert heals(story)
    assert story.owners.of(story.topic) == story.right


def test_a_forged_generation_of_the_right_owner_does_not_block_its_move() -> None:
    """An access broker with an unassigned generation asks for the next owner."""
    story = Forged(spread_topics=9)
    story.cluster.broker("e1").kill()
    story.cluster.run_for(0.1)
    story.cluster.broker("e1").start()
    story.cluster.run_for(1)
    story.owners = story.cluster.broker("e1").broker.core._owners.table
    story.owners.generations[story.topic] += 1
    third = next(each for each in (2, 3, 4) if each != story.right)
    move = Move(story.arbiter, (Owner(story.topic, third),))
    perform(story, story.topology.brokers[story.arbiter], story.proxy, move)
    story.cluster.run_for(2)
    assert heals(story)
    assert story.owners.of(story.topic) == third


def test_a_proxy_forgets_two_owners_of_one_generation() -> None:
    """The sessions with both servers continue, and access brokers ask the arbiter."""
    story = Forged()
    generation = story.owners.generations[story.topic]
    perform(story, "x1", story.wrong, Owned((Owner(story.topic, story.wrong, generation),)))
    proxy: Any = story.cluster.broker("x1").broker.core
    assert story.topic not in {owner.topic for owner in proxy._proxy._claims.owners()}
    assert heals(story)


def test_a_server_takes_no_topic_of_another_arbiter() -> None:
    disk = Disk(ownership=ARBITER, servers=2)
    topic = disk.core._places.arbiters.index(SERVER + 1)  # type: ignore[attr-defined]
    message = Assign(SERVER, SERVER, (Generation(topic, 1),))
    with pytest.raises(RemoteProtocolError, match="is not its arbiter"):
        disk.core.handle(MessageReceived(PROXY, 7, message), 0)


FORGED: dict[str, Callable[[], None]] = {
    "denied-owner-is-kept": partial(
        test_a_forged_owner_is_denied_and_the_arbiter_names_the_right_one, "owned"
    ),
    "denied-topics-close-sessions": partial(
        test_a_forged_owner_is_denied_and_the_arbiter_names_the_right_one, "proxy"
    ),
    "equal-generations-are-kept": (
        test_a_forged_generation_of_the_right_owner_does_not_block_its_move
    ),
    "proxy-keeps-one-of-two-owners": test_a_proxy_forgets_two_owners_of_one_generation,
    "any-server-assigns": test_a_server_takes_no_topic_of_another_arbiter,
}


@pytest.mark.parametrize("bug", FORGED)
def test_a_bug_that_a_forged_generation_shows_is_seen(bug: str) -> None:
    with plant([MUTANTS[bug]]), pytest.raises((Failed, AssertionError, RemoteProtocolError)):
        FORGED[bug]()
