"""Merged queue entries produce the same messages as entries that are never merged."""

from collections.abc import Callable
from functools import wraps
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.model.client_messages import Acknowledge
from brokerd.protocols.delta_tree import entry_merge
from brokerd.protocols.delta_tree.entry_merge import EntryMerge, MergeBounds
from brokerd.protocols.delta_tree.messages import PublicationConfirmation, PublicationCopy
from brokerd.protocols.delta_tree.queue_entries import Entry
from brokerd.simulator.search.swarm import run_seed
from tests.helpers.exchange import Client, Exchange, blob

CHAIN = ((0, 1), (1, 2))
STAR = ((0, 1), (0, 2))
A, B = blob(kind="a"), blob(kind="b")
EAGER = MergeBounds(fewest=1, step=1, interval_ns=0, window=6, publications=6)
SEEDS = (7, 9, 30, 47)
"""Seeds with crashes, cuts and slow clients, and with the most merges under eager bounds."""


def in_haste(story: Callable[..., None]) -> Callable[..., None]:
    """Run a story with brokers that merge entries eagerly, and check that entries were merged."""

    @wraps(story)
    def hasty(**arguments: Any) -> None:
        made: list[Entry] = []
        joined = EntryMerge._join

        def noting(self: EntryMerge, group: list[Entry]) -> Entry:
            made.append(joined(self, group))
            return made[-1]

        with (
            patch.object(entry_merge, "MergeBounds", lambda: EAGER),
            patch.object(EntryMerge, "_join", noting),
        ):
            story(**arguments)
        assert len(made) > 4, f"{len(made)} entries were joined"

    return hasty


def confirmed(exchange: Exchange, a: int, b: int) -> list[int]:
    """Return the sequence numbers that broker a confirmed to broker b, in order."""
    return [
        number
        for message in exchange.sent(a, b, PublicationConfirmation)
        for _, first, last in message.ranges
        for number in range(first, last + 1)
    ]


def copies(exchange: Exchange, a: int, b: int) -> list[int]:
    """Return the sequence numbers that broker a sent to broker b, in order."""
    return [
        number for copy in exchange.sent(a, b, PublicationCopy) for number in copy.run.sequences
    ]


def done(publisher: Client) -> list[int]:
    """Return the sequence numbers that were acknowledged to a publisher, sorted."""
    return sorted(n for first, last in publisher.done for n in range(first, last + 1))


def publish_one_by_one(exchange: Exchange, client: Client, last: int) -> None:
    """Publish 1 to `last`, with kinds a and b in turn."""
    for number in range(1, last + 1):
        exchange.publish(client, number, B if number % 2 else A)


def entries(exchange: Exchange, broker: int) -> list[list[int]]:
    """Return the sequence numbers in every entry of a broker's queue."""
    queue = exchange.cores[broker]._publications.queue
    return [list(each.run().sequences) for of in queue.entries.values() for each in of]


@pytest.mark.parametrize("seed", SEEDS)
@in_haste
def test_brokers_that_join_in_haste_keep_every_promise(seed: int) -> None:
    report = run_seed(seed, "delta_tree")
    assert not report.violations


@in_haste
def test_unconfirmed_publications_are_joined_and_resent_unchanged() -> None:
    exchange = Exchange(CHAIN)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    exchange.hold(1, 2)
    publish_one_by_one(exchange, publisher, 40)
    assert len(entries(exchange, 1)) < 20
    assert copies(exchange, 1, 2) == [*range(1, 41)]
    exchange.cut(1, 2, heal=True)
    exchange.mend(1, 2)
    assert copies(exchange, 1, 2) == [*range(1, 41), *range(1, 41)]
    exchange.release(1, 2)
    assert subscriber.got() == [*range(1, 41)]
    assert subscriber.payloads() == [f"{number:02}".encode() for number in range(1, 41)]
    assert sorted(confirmed(exchange, 1, 0)) == [*range(1, 41)]
    assert exchange.cores[1].statistics()["queue_publications"] == 0


@in_haste
def test_joined_publications_are_not_confirmed_before_they_are_acknowledged() -> None:
    exchange = Exchange(CHAIN)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    subscriber.quiet = True
    exchange.subscribe(subscriber, "true")
    publish_one_by_one(exchange, publisher, 20)

    def acknowledge(first: int, last: int) -> None:
        assert publisher.source is not None
        exchange.say(subscriber, Acknowledge(publisher.source, first, last))

    acknowledge(5, 7)
    acknowledge(1, 4)
    assert set(confirmed(exchange, 2, 1)) <= set(range(1, 8))
    acknowledge(9, 18)
    assert not set(confirmed(exchange, 2, 1)) & {8, 19, 20}
    acknowledge(8, 8)
    acknowledge(19, 20)
    assert sorted(confirmed(exchange, 2, 1)) == [*range(1, 21)]
    assert done(publisher) == [*range(1, 21)]
    assert subscriber.got() == [*range(1, 21)]


@in_haste
def test_a_slow_client_does_not_delay_publications_of_other_clients() -> None:
    exchange = Exchange(CHAIN)
    publisher = exchange.client("p", 0, publishes=True)
    clients = [exchange.client(name, 0) for name in ("s", "t")]
    for client, predicate in zip(clients, ("kind = 'a'", "kind = 'b'"), strict=True):
        client.quiet = True
        exchange.subscribe(client, predicate)
    publish_one_by_one(exchange, publisher, 40)
    assert publisher.source is not None
    exchange.say(clients[0], Acknowledge(publisher.source, 1, 40))
    assert done(publisher) == [*range(2, 41, 2)]
    exchange.say(clients[1], Acknowledge(publisher.source, 1, 40))
    assert done(publisher) == [*range(1, 41)]
    assert exchange.cores[0].statistics()["queue_publications"] == 0


@in_haste
def test_a_slow_neighbour_does_not_delay_publications_of_other_neighbours() -> None:
    exchange = Exchange(STAR)
    publisher = exchange.client("p", 0, publishes=True)
    for broker, predicate in ((1, "kind = 'a'"), (2, "kind = 'b'")):
        exchange.subscribe(exchange.client(f"s{broker}", broker), predicate)
        exchange.hold(0, broker)
    publish_one_by_one(exchange, publisher, 40)
    assert done(publisher) == []
    (queue,) = exchange.cores[0]._publications.queue.entries.values()
    for number in range(1, 41):
        found = queue.between(number, number)
        assert found == [each for each in queue if each.first <= number <= each.last]
    exchange.release(0, 1)
    assert done(publisher) == [*range(2, 41, 2)]
    exchange.release(0, 2)
    assert done(publisher) == [*range(1, 41)]


@in_haste
def test_a_returning_client_receives_joined_publications_in_order() -> None:
    exchange = Exchange(CHAIN)
    publishers = [exchange.client(name, 0, publishes=True) for name in ("p", "q")]
    subscriber, other = exchange.client("s", 2), exchange.client("t", 2)
    exchange.subscribe(subscriber, "true")
    exchange.subscribe(other, "kind = 'b'")
    other.quiet = True
    exchange.detach(subscriber)
    for number in range(1, 21):
        for publisher in publishers:
            exchange.publish(publisher, number, A if number % 2 else B)
    assert not subscriber.deliveries
    exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    for publisher in publishers:
        came = [
            (number, bytes(payload))
            for item in subscriber.deliveries
            if item.run.source == publisher.source
            for number, _, payload in item.run.publications()
        ]
        assert came == [(number, f"{number:02}".encode()) for number in range(1, 21)]
    assert exchange.cores[2].statistics()["queue_publications"] == 2 * len(range(2, 21, 2))
    assert len(subscriber.deliveries) < 40


@in_haste
def test_each_of_two_subscriptions_gets_its_own_in_order() -> None:
    exchange = Exchange(CHAIN)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    subscriber.quiet = True
    exchange.subscribe(subscriber, "kind = 'a'", number=1)
    exchange.subscribe(subscriber, "kind = 'b'", number=2)
    for number in range(1, 31):
        exchange.publish(publisher, number, A if number % 10 < 7 else B)
    exchange.detach(subscriber)
    subscriber.deliveries.clear()
    subscriber.quiet = False
    exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind = 'a'", number=1)
    exchange.subscribe(subscriber, "kind = 'b'", number=2)
    assert subscriber.got(1) == [number for number in range(1, 31) if number % 10 < 7]
    assert subscriber.got(2) == [number for number in range(1, 31) if number % 10 >= 7]
    assert len(subscriber.deliveries) < 30
    assert exchange.cores[2].statistics()["queue_publications"] == 0


@in_haste
def test_a_queue_of_constant_length_is_joined_too() -> None:
    exchange = Exchange(CHAIN)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    subscriber.quiet = True
    for number in range(1, 100):
        exchange.publish(publisher, number, A)
        if number > 30:
            assert publisher.source is not None
            exchange.say(subscriber, Acknowledge(publisher.source, 1, number - 30))
    assert len(entries(exchange, 2)) < 15
    assert subscriber.got() == [*range(1, 100)]
