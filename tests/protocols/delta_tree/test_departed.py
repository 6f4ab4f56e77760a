"""Tests of leaves that left the tree: late messages about a departed leaf end no broker."""

from collections import deque
from itertools import pairwise

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Unsubscribe
from brokerd.protocols.delta_tree.messages import (
    PartitionGone,
    PartitionNew,
    PublicationConfirmation,
    PublicationCopy,
    RecoveryNotifier,
    SubscriptionConfirmation,
    SubscriptionCopy,
    Summary,
    UpstreamCopy,
)
from brokerd.protocols.interface import MessageReceived
from tests.helpers.exchange import Exchange, blob

ANY = blob(kind="a")


def line(brokers: int, **settings: object) -> Exchange:
    """Return a chain 0–1–2–…; broker 0 is the leaf that departs."""
    return Exchange(tuple(pairwise(range(brokers))), **settings)


def at_rest(exchange: Exchange) -> None:
    """Check that no broker has queued publications or tagged subscriptions."""
    exchange.advance(30)
    for number, core in exchange.cores.items():
        counters = core.statistics()
        assert counters["queue_publications"] == 0, number
        assert counters["subscriptions_tagged"] == 0, number
        assert core.status().state == "running", number


STAYS = {"SourceSequences.paths", "TombstoneTable._homes"}
"""Attributes of near brokers that keep a departed leaf's number: its publications may be late."""


def test_brokers_near_a_departed_leaf_keep_nothing_else_by_its_number() -> None:
    leaf = 7
    exchange = line(leaf + 1)
    subscribers = [exchange.client(f"s{at}", at) for at in (0, leaf)]
    for subscriber in subscribers:
        exchange.subscribe(subscriber, "true")
    publishers = [exchange.client(f"p{at}", at, publishes=True) for at in (3, leaf)]
    for sequence in (1, 2, 3):
        for publisher in publishers:
            exchange.publish(publisher, sequence, ANY)
        exchange.cut(leaf - 1 - sequence % 2, leaf - sequence % 2, heal=True)
        exchange.advance(5)
    exchange.say(subscribers[1], Unsubscribe(1))
    exchange.advance(1)
    assert "PublicationQueue.sent" in keyed_by(exchange.cores[leaf - 1], leaf)
    exchange.leave(leaf)
    exchange.advance(30)
    for near in (leaf - 1, leaf - 2):
        assert keyed_by(exchange.cores[near], leaf) == STAYS


def keyed_by(core: object, number: int) -> set[str]:
    """Return the attributes below an object with a dictionary that has a key of this number."""
    found: set[str] = set()
    seen: dict[int, object] = {}
    waiting: list[tuple[str, object]] = [("", core)]
    for name, each in waiting:
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if isinstance(each, dict):
            if any(type(key) is int and key == number for key in each):
                found.add(name)
            waiting += [(name, value) for value in each.values()]
        elif isinstance(each, (list, tuple, set, deque)):
            waiting += [(name, value) for value in each]
        elif type(each).__module__.startswith("brokerd"):
            slots = [slot for kind in type(each).__mro__ for slot in getattr(kind, "__slots__", ())]
            waiting += [
                (f"{type(each).__name__}.{attribute}", getattr(each, attribute, None))
                for attribute in (*getattr(each, "__dict__", ()), *slots)
            ]
    return found


def test_a_repeated_copy_of_a_departed_leaf_may_be_confirmed_late() -> None:
    """Broker 1 holds a copy for broker 2, and broker 0 sent the same copy directly to 2."""
    exchange = line(3)
    exchange.subscribe(exchange.client("s", 2), "true")
    publisher = exchange.client("p", 0, publishes=True)
    exchange.hold(1, 2)
    exchange.publish(publisher, 1, ANY)
    exchange.cut(0, 1)
    exchange.advance(1)
    assert exchange.clients["p"].done == [(1, 1)]
    exchange.leave(0)
    exchange.release(1, 2)
    assert exchange.clients["s"].got() == [1]
    at_rest(exchange)


def test_a_restarted_broker_accepts_a_repeated_copy_of_a_departed_leaf() -> None:
    """Broker 2 has restarted, so neither the copy nor the path is in memory."""
    exchange = line(3)
    exchange.subscribe(exchange.client("s", 2), "true")
    publisher = exchange.client("p", 0, publishes=True)
    exchange.hold(1, 2)
    exchange.publish(publisher, 1, ANY)
    exchange.cut(0, 1)
    exchange.advance(1)
    exchange.leave(0)
    exchange.release(1, 2)
    exchange.hold(1, 2)
    exchange.cut(1, 2)
    exchange.kill(2)
    exchange.start(2)
    exchange.mend(1, 2)
    exchange.release(1, 2)
    assert exchange.sent(1, 2, PublicationCopy)
    at_rest(exchange)


def test_a_publication_for_a_departed_access_broker_is_dropped() -> None:
    """The confirmation is lost with the session, so broker 0 would send the publication again."""
    exchange = line(3)
    subscriber = exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    publisher = exchange.client("p", 0, publishes=True)
    exchange.hold(1, 0)
    exchange.publish(publisher, 1, ANY)
    exchange.say(subscriber, Unsubscribe(1))
    exchange.leave(2)
    exchange.cut(0, 1, heal=True)
    exchange.release(1, 0)
    at_rest(exchange)
    assert exchange.clients["p"].done == [(1, 1)]


def notified_after_home_has_left(exchange: Exchange) -> None:
    """Hold a notifier for the departed broker 0 on the link from 3 to 2; 3 is not notified."""
    exchange.kill(4)
    exchange.advance(1)
    subscriber = exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    exchange.hold(3, 2)
    exchange.start(4)
    exchange.advance(1)
    assert [m for _, m in exchange.queues[3, 2] if isinstance(m, RecoveryNotifier)]
    exchange.say(subscriber, Unsubscribe(1))
    exchange.leave(0)


def test_a_recovery_notifier_for_a_departed_access_broker_is_dropped() -> None:
    exchange = line(5)
    notified_after_home_has_left(exchange)
    exchange.release(3, 2)
    at_rest(exchange)


def test_a_notifier_for_a_departed_home_is_dropped() -> None:
    """The broker next to the departed broker is unreachable, so only the bypass remains."""
    exchange = line(5)
    notified_after_home_has_left(exchange)
    exchange.cut(1, 2)
    exchange.advance(1)
    exchange.release(3, 2)
    exchange.advance(5)
    exchange.mend(1, 2)
    at_rest(exchange)


def test_a_broker_that_missed_a_departure_starts_without_the_departed_state() -> None:
    exchange = line(3)
    subscriber = exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    exchange.kill(1)
    exchange.advance(1)
    exchange.say(subscriber, Unsubscribe(1))
    exchange.leave(0)
    exchange.start(1)
    at_rest(exchange)
    assert exchange.cores[1].status().subscriptions == 0
    assert exchange.disks[1].get("routing", {}) == {}


@pytest.mark.parametrize("home", [1, 2])
def test_a_gate_that_a_departed_leaf_kept_closed_opens_at_a_home_that_was_down(home: int) -> None:
    exchange = line(4)
    exchange.cut(0, 1)
    exchange.cut(0, 2)
    exchange.advance(1)
    exchange.subscribe(exchange.client("s", home), "true")
    assert exchange.cores[home].statistics()["subscriptions_tagged"] == 1
    exchange.kill(home)
    exchange.leave(0)
    exchange.start(home)
    at_rest(exchange)


def life_of_a_leaf() -> Exchange:
    """Return a story on 0–1–2–3–4 in which brokers fail and return one after the other."""
    exchange = line(5)
    for number in (0, 2, 4):
        exchange.client(f"p{number}", number, publishes=True)
        exchange.subscribe(exchange.client(f"s{number}", number), "true")
    for first, lost in enumerate((0, 1, 4), 1):
        for number in (0, 2, 4):
            exchange.publish(exchange.clients[f"p{number}"], first, ANY)
        exchange.kill(lost)
        exchange.advance(3)
        for home in (0, 2):
            if home != lost:
                exchange.subscribe(exchange.client(f"t{lost}{home}", home), "true")
        exchange.start(lost)
        exchange.advance(3)
        if lost != 1:
            known = {"next_sequence": first + 1, "highest_sequence": first}
            exchange.client(f"p{lost}", lost, publishes=True, **known)
    return exchange


KINDS = (
    Summary,
    SubscriptionCopy,
    UpstreamCopy,
    SubscriptionConfirmation,
    RecoveryNotifier,
    PartitionNew,
    PartitionGone,
    PublicationCopy,
    PublicationConfirmation,
)


def heard(exchange: Exchange, number: int) -> list[tuple[int, object]]:
    """Return the distinct messages that a broker received, with their senders."""
    found = [
        (event.peer, event.message)
        for at, event, _ in exchange.log
        if at == number and isinstance(event, MessageReceived) and isinstance(event.peer, int)
    ]
    return [entry for place, entry in enumerate(found) if entry not in found[:place]]


@pytest.mark.parametrize("restarts", [False, True], ids=["told", "down meanwhile"])
@pytest.mark.parametrize("number", [1, 2])
def test_every_earlier_message_is_tolerated_after_the_departure_of_a_leaf(
    number: int, restarts: bool
) -> None:
    """A late message is ignored or ends the session with the sender; the broker stays up."""
    for sender, message in heard(life_of_a_leaf(), number):
        exchange = life_of_a_leaf()
        if restarts:
            exchange.kill(number)
        exchange.leave(0)
        if restarts:
            exchange.start(number)
        exchange.advance(1)
        peer = sender or number + 1
        try:
            session = exchange.sessions[number, peer]
            exchange.handle(number, MessageReceived(peer, session, message))
        except RemoteProtocolError:
            exchange.cut(number, peer, heal=True)
        exchange.cut(number, number + 1, heal=True)
        exchange.advance(12)
        assert 0 not in exchange.cores[number].status().wanted
        assert exchange.cores[number].status().queued == 0


def test_the_replayed_messages_cover_every_kind() -> None:
    exchange = life_of_a_leaf()
    kinds = [type(message) for number in (1, 2) for _, message in heard(exchange, number)]
    assert [kind for kind in KINDS if kind not in kinds] == []
