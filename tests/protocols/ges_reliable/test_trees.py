"""Stories of several storages: roots that exchange events, and finer storages below."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.overlay.generate import random_hierarchy
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.ges.units import hierarchy_of
from brokerd.protocols.ges_reliable.checks.planning import with_storages
from brokerd.protocols.ges_reliable.definition import (
    StoragePlace,
    place_of,
    root_of,
    storages_for,
)
from brokerd.protocols.ges_reliable.epochs import EpochLog
from brokerd.protocols.ges_reliable.messages import Events, Fetch, Fetched
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.state import Event, LogAppend
from brokerd.protocols.ges_reliable.storage_tree import StorageFeeds
from brokerd.protocols.interface import LogEnds
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.wire.attributes import encode_attributes
from tests.protocols.ges_reliable.test_stories import Story

TREES = Topology.from_mapping(
    {
        "schema": SCHEMA,
        "name": "trees",
        "kind": "hierarchy",
        "brokers": ["r", "g", "f", "x", "q", "y", "z"],
        "hierarchy": {
            "addresses": {
                "r": "0.0.0", "g": "0.0.1", "f": "0.1.0", "x": "0.1.1",
                "q": "1.0.0", "y": "1.0.1", "z": "1.1.0",
            },
            "links": [
                ["r", "g"], ["f", "x"], ["r", "f"], ["g", "x"],
                ["q", "y"], ["y", "z"], ["q", "z"], ["g", "y"], ["x", "q"],
            ],
            "storages": {"r": 2, "f": 1, "q": 2},
        },
    },
    "trees",
)  # fmt: skip
"""Roots r and q; f stores for the cluster of f and x, below r."""

BLOB = encode_attributes({"kind": "a"})
P = SourceId(9, 0, 1)


class Trees(Story):
    """A publisher at z, stored at q, and a subscriber at x, stored for at f."""

    topology = TREES

    def log_of(self, name: str) -> EpochLog:
        return self.cluster.broker(name).broker.core.storage.log

    def stored_for(self, name: str) -> int:
        return len(self.cluster.broker(name).broker.core.storage.registrations)

    def successors(self, name: str) -> int:
        """Return the number of successors that a storage has on record."""
        return len(self.cluster.broker(name).broker.core.storage.registrations.successors())


def publications_of_any_unit_reach_all_units() -> None:
    trees = Trees()
    other = trees.subscribe("y")
    trees.publish("z", "a", "b")
    trees.publish("g", "a", "b")
    trees.publish("x", "a")
    trees.settle()
    assert trees.got() == 4
    assert len(other.received) == 5
    assert [trees.stored_for(name) for name in "rfq"] == [0, 1, 1]


def a_coarser_storage_is_done_when_the_finer_one_has_it() -> None:
    """No client of that unit has the events yet (the paper's example of nodes 1 and 19)."""
    trees = Trees()
    trees.cluster.link(trees.subscription.client.name, "x").cut()
    trees.publish("z", *"ab" * 10, seconds=4)
    assert [trees.log_of(name).retained() for name in "rfq"] == [0, 10, 0]
    trees.cluster.link(trees.subscription.client.name, "x").heal()
    trees.settle()
    assert trees.got() == 11


def a_finer_storage_dies_and_restarts() -> None:
    """The parent keeps the missing events, and no other storage waits (a19, second half)."""
    trees = Trees()
    trees.subscribe("g")
    trees.cluster.broker("f").kill()
    trees.publish("z", "a", "a", "b", seconds=4)
    assert trees.log_of("r").retained() == 3
    assert not list(trees.cluster.oracle.obligations.unacknowledged())
    trees.cluster.broker("f").start()
    trees.publish("z", "a")
    trees.settle()
    assert trees.got() == 4


def a_root_dies_and_restarts() -> None:
    """Events that another root stored meanwhile are kept for the root (a20_storage_bounce)."""
    trees = Trees()
    trees.cluster.broker("r").kill()
    trees.publish("z", "a", "a", seconds=4)
    assert trees.log_of("q").retained() == 2
    trees.cluster.broker("r").start()
    trees.settle(20)
    assert trees.got() == 3


def nothing_starts_before_the_root_has_the_subscription() -> None:
    """The finer storage alone would receive no event for a first subscription of this kind."""
    trees = Trees()
    trees.cluster.broker("r").kill()
    late = trees.cluster.subscribe("x", "kind = 'b'")
    trees.cluster.run_for(3)
    assert late.number not in late.client.started_numbers
    trees.cluster.broker("r").start()
    trees.cluster.run_for(5)
    assert late.number in late.client.started_numbers
    trees.publish("z", "b")
    trees.settle()
    assert len(late.received) == 1


def one_of_two_equal_subscriptions_ends() -> None:
    """The other subscription still receives its events."""
    trees = Trees()
    twin = trees.subscribe("f", "kind = 'a'")
    trees.cluster.unsubscribe(twin.client.name)
    trees.cluster.run_for(2)
    trees.publish("z", "a")
    trees.settle()
    assert trees.got() == 2


def a_client_that_moves_before_the_reply_is_stored_for_once() -> None:
    """Storage f has the subscription; the client lacks the reply and moves (a18_early_leave)."""
    trees = Trees()
    early = trees.cluster.subscribe("x", "true")
    while trees.stored_for("f") < 2:
        trees.cluster.run_for(0.001)
    trees.lose("x")
    trees.cluster.transfers.reattach(early.client.name, "z")
    trees.cluster.transfers.reattach(trees.subscription.client.name, "y")
    trees.publish("z", "a")
    trees.settle()
    assert [trees.stored_for(name) for name in "rfq"] == [0, 0, 2]
    assert trees.got() == 2


def a_publisher_moves_to_another_root_before_the_acknowledgement() -> None:
    """The publications that the first root stored are not in flight (a13_gap_across_roots)."""
    trees = Trees()
    client = "p-z"
    trees.cluster.broker("r").kill()
    trees.publish("z", "a", seconds=0.3)  # at q only
    trees.cluster.broker("q").kill()
    trees.cluster.broker("r").start()
    trees.cluster.transfers.reattach(client, "g")
    for _ in range(3):
        trees.cluster.publish_run("z", [(BLOB, b"")], client)
    trees.cluster.run_for(3)
    assert trees.got() == 1
    trees.cluster.broker("q").start()
    trees.settle(20)
    assert trees.got() == 5


def a_subscriber_roams_from_unit_to_unit() -> None:
    """The client moves before it has acknowledged the events of the previous storage."""
    trees = Trees()
    client = trees.subscription.client
    for broker in ("y", "g", "z", "f"):
        trees.cluster.transfers.reattach(client.name, broker)
        trees.publish("z", "a", "b", seconds=0.2)
        trees.publish("g", "a", seconds=0.2)
    trees.settle()
    assert trees.got() == 9
    assert [trees.stored_for(name) for name in "rfq"] == [0, 1, 0]


def a_client_of_a_storage_outside_the_topology_is_refused() -> None:
    """Broker y runs on a topology without f."""
    trees = Trees()
    y = trees.cluster.broker("y").broker.core
    searches = y.access.searches
    searches.storages = tuple(each for each in searches.storages if TREES.brokers[each] != "f")
    client = trees.subscription.client
    trees.cluster.transfers.reattach(client.name, "y")
    said = "was stored for at broker f, which is no storage any more', retry=False"
    with pytest.raises(InvariantViolated, match=said):
        trees.cluster.run_for(3)


class IntakeAlone:
    """A root that fetches from another root, 5, with answers that the test makes up."""

    def __init__(self, held_limit: int = 100) -> None:
        self.sent, self.kept = list[Any](), list[Event]()
        self.appends: list[LogAppend] = []
        self.log = EpochLog(7, held_limit)
        place, timers = StoragePlace(None, (5,), ()), DeadlineQueue[Any]()
        self.feeds = StorageFeeds(7, place, self.log, timers, GesReliableParameters(), self)
        self.feeds.start(1)
        assert not list(self.log.recover({}, LogEnds()))
        self.sent += self.feeds.begin(0)

    def to(self, broker: int) -> int:
        return broker

    def store(self, run: PublicationRun, root: int) -> None:
        self.appends += self.log.store(run, root)

    def receives_from(self, message: Events) -> None:
        rest = self.feeds.rest_of(message)
        assert rest is not None, f"{message} has nothing new"
        self.appends += self.feeds.on_rest(message.storage, rest)

    def due(self) -> None:
        self.sent.append(self.feeds.due(5, 0))

    def asked(self) -> Fetch:
        return self.sent[-1]

    def answer(self, *runs: tuple[int, int]) -> None:
        """Answer with these (sequence number of P, epoch) pairs, in this order."""
        asked = self.asked()
        log = EpochLog(5, 0)
        placed = [
            log._placed(range(epoch, epoch + 1), numbered(number, number)) for number, epoch in runs
        ]
        run = merge_runs(placed)
        about = 5, asked.incarnation, asked.number
        self.receives_from(Events(7, 0, *about, asked.after, run, True))
        self.sent += self.feeds.on_fetched(Fetched(7, 0, *about, run.last, run.last, True), 0)

    def written(self) -> None:
        appends, self.appends = self.appends, []
        for each in appends:
            self.log.on_appended(each.event)
            self.kept.append(each.event)

    def numbers(self) -> list[int]:
        return [n for event in self.kept for each in event.run.origins for n in each.sequences]


def numbered(first: int, last: int) -> PublicationRun:
    count = last - first + 1
    return PublicationRun(P, range(first, last + 1), (BLOB,), bytes(count), 0, ())


def placed_elsewhere(first: int, last: int, *, epoch: int) -> PublicationRun:
    """Return the same publications with these epochs, as another root sends them."""
    log = EpochLog(5, 0)
    return log._placed(range(epoch, epoch + last - first + 1), numbered(first, last))


def publications_stored_at_another_root_are_not_skipped() -> None:
    """Another root has 1 and 3 of the publisher; 2 was stored here before 1 arrived."""
    alone = IntakeAlone()
    alone.answer((1, 4), (3, 6))
    alone.written()
    assert alone.numbers() == [1]
    alone.store(numbered(2, 2), 7)
    alone.written()
    assert alone.numbers() == [1, 2, 3]


def the_receiving_root_forwards_a_publication_that_waited() -> None:
    """An access broker sends 2, which waits for 1; no other root would ever have 2."""
    alone = IntakeAlone()
    alone.store(numbered(2, 2), 7)
    alone.answer((1, 4))
    alone.written()
    assert [event.root for event in alone.kept] == [5, 7]


def publications_are_announced_once_durable() -> None:
    alone = IntakeAlone()
    alone.answer((1, 4))
    assert alone.asked().through == 3
    alone.written()
    alone.due()
    assert alone.asked().through == 4


def publications_without_room_are_requested_again() -> None:
    alone = IntakeAlone(held_limit=0)
    alone.answer((2, 4))
    alone.due()
    assert (alone.asked().after, alone.asked().through) == (3, 3)


def publications_with_room_for_a_part_are_requested_again() -> None:
    """The end of the range is here, from another root, and the beginning is missing."""
    alone = IntakeAlone(held_limit=2)
    alone.receives_from(
        Events(7, 0, 5, 1, alone.asked().number, 0, placed_elsewhere(2, 4, epoch=8), True)
    )
    alone.store(numbered(3, 4), 6)
    alone.due()
    assert (alone.asked().after, alone.asked().through) == (7, 7)


TREE_STORIES = (
    publications_of_any_unit_reach_all_units,
    a_coarser_storage_is_done_when_the_finer_one_has_it,
    a_finer_storage_dies_and_restarts,
    a_root_dies_and_restarts,
    nothing_starts_before_the_root_has_the_subscription,
    one_of_two_equal_subscriptions_ends,
    a_client_that_moves_before_the_reply_is_stored_for_once,
    a_publisher_moves_to_another_root_before_the_acknowledgement,
    a_subscriber_roams_from_unit_to_unit,
    a_client_of_a_storage_outside_the_topology_is_refused,
    publications_stored_at_another_root_are_not_skipped,
    the_receiving_root_forwards_a_publication_that_waited,
    publications_are_announced_once_durable,
    publications_without_room_are_requested_again,
    publications_with_room_for_a_part_are_requested_again,
)


@pytest.mark.parametrize("story", TREE_STORIES, ids=lambda story: story.__name__)
def test_story(story: Callable[[], None]) -> None:
    story()


def test_each_broker_has_one_storage_and_each_finer_storage_one_parent() -> None:
    """The result equals a search of all units on 300 hierarchies (invariant 18)."""
    finer = 0
    for seed in range(300):
        random = Random(seed)
        drawn = random_hierarchy(random.randrange(2, 20), random.randrange(1, 4), random.randrange)
        hierarchy = hierarchy_of(with_storages(drawn, random))
        addresses, levels = hierarchy.addresses, dict(hierarchy.storages)
        for broker, address in enumerate(addresses):
            around = [
                (level, storage)
                for storage, level in levels.items()
                if address[: len(address) - level] == addresses[storage][: len(address) - level]
            ]
            assert storages_for(hierarchy, broker)[0] == min(around)[1]
            assert sorted(storages_for(hierarchy, broker)) == sorted(levels)
            assert root_of(hierarchy, broker) == max(around)[1]
            if broker not in levels:
                continue
            place = place_of(hierarchy, broker)
            coarser = [each for each in around if each[0] > levels[broker]]
            assert place.parent == (min(coarser)[1] if coarser else None)
            assert (place.parent is None) == (levels[broker] == hierarchy.top)
            if place.parent is not None:
                assert broker in place_of(hierarchy, place.parent).children
                assert not place.siblings
                finer += 1
    assert finer > 300
