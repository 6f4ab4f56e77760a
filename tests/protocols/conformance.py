"""Conformance tests for all delivery protocols.

A test file imports the tests with `from tests.protocols.conformance import *` and defines a fixture
`protocol` that returns the name of the protocol.
"""

import json
import subprocess
import sys

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Connected,
    Detach,
    Refused,
    Subscribe,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.predicate import EVERYTHING
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.interface import Commit, CoreStatus, MessageReceived, SessionEstablished
from tests.helpers.exchange import Client, Exchange, blob, states

TREE = ((0, 1), (1, 2), (1, 3))
A, B = blob(kind="a"), blob(kind="b")

STATISTICS = (
    "publications_received",
    "publications_forwarded",
    "publications_delivered",
    "queue_publications",
    "queue_bytes",
    "subscriptions",
    "matching_hits",
    "matching_misses",
    "sessions_active",
    "sessions_ready",
    "messages_ignored",
)


def test_a_subscriber_gets_what_matches_in_order(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    publisher = exchange.client("p", 0, publishes=True)
    wants_a, wants_all = exchange.client("s", 2), exchange.client("t", 3)
    exchange.subscribe(wants_a, "kind = 'a'")
    exchange.subscribe(wants_all, "true")
    exchange.publish(publisher, 1, A, B, A)
    exchange.publish(publisher, 4, B, A)
    assert wants_a.got() == [1, 3, 5]
    assert wants_all.got() == [1, 2, 3, 4, 5]
    assert wants_all.payloads() == [b"01", b"02", b"03", b"04", b"05"]
    assert publisher.done[-1][1] == 5


def test_a_healed_failure_leaves_no_aftermath(protocol):
    """Neither a healed failure nor traffic in flight counts as aftermath."""
    exchange = Exchange(TREE, protocol=protocol)
    publisher = exchange.client("p", 0, publishes=True)
    exchange.subscribe(exchange.client("s", 2), "true")
    exchange.hold(1, 2)
    exchange.publish(publisher, 1, A)
    for core in exchange.cores.values():
        assert list(core.aftermath()) == []
    exchange.release(1, 2)
    exchange.cut(1, 3)
    exchange.advance(3)
    exchange.subscribe(exchange.client("t", 0), "true")
    exchange.mend(1, 3)
    exchange.kill(2)
    exchange.start(2)
    exchange.advance(10)
    for core in exchange.cores.values():
        assert list(core.aftermath()) == []
        assert core.status().queued == 0


def test_a_subscription_is_pending_until_every_broker_received_it(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    exchange.hold(1, 3)
    subscriber = exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    assert states(subscriber) == ["pending"]
    exchange.release(1, 3)
    assert states(subscriber)[-1] == "started"


def test_a_client_has_so_many_subscriptions_and_no_more(protocol):
    parameters = DeltaTreeParameters(delta=1, client_subscriptions=2)
    exchange = Exchange(TREE, protocol=protocol, parameters=parameters)
    greedy, other = exchange.client("s", 2), exchange.client("t", 2)
    for number in (1, 2, 3):
        exchange.subscribe(greedy, "true", number)
    assert [each.number for each in greedy.answers if isinstance(each, Refused)] == [3]
    exchange.subscribe(greedy, "true", 1)
    exchange.subscribe(other, "true")
    assert states(other)[-1] == "started", "others have their own"
    exchange.say(greedy, Unsubscribe(1))
    exchange.subscribe(greedy, "true", 4)
    refused = [each for each in greedy.answers if isinstance(each, Refused)]
    assert len(refused) == 1, "there is room for one again"
    assert "at most 2" in refused[0].reason
    assert refused[0].retry is False


def test_a_publisher_receives_its_number_only_after_the_commit(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    exchange.client("p", 0, publishes=True)
    effects = [
        (type(effect), getattr(effect, "message", None))
        for number, _, each in exchange.log
        for effect in each
        if number == 0
    ]
    committed = [i for i, (kind, _) in enumerate(effects) if kind is Commit]
    told = [i for i, (_, message) in enumerate(effects) if isinstance(message, Connected)]
    assert committed[0] < told[0]
    per_event = [each for _, _, each in exchange.log if any(isinstance(e, Commit) for e in each)]
    assert not any(isinstance(getattr(e, "message", None), Connected) for e in per_event[0])


def test_publisher_numbers_survive_a_restart(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    sources = [exchange.client(name, 0, publishes=True).source for name in ("p", "q")]
    exchange.kill(0)
    exchange.start(0)
    again = [exchange.client(name, 0, publishes=True).source for name in ("q", "p")]
    assert again == sources[::-1]
    assert sources[0] != sources[1]


def test_a_broker_that_restarts_delivers_and_forwards_again(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    exchange.publish(publisher, 1, A)
    exchange.kill(1)
    exchange.start(1)
    exchange.advance(10)
    exchange.publish(publisher, 2, A)
    assert subscriber.got() == [1, 2]


def test_messages_of_a_closed_session_are_ignored(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    client = exchange.client("s", 0)
    old = client.session
    exchange.detach(client)
    exchange.client("s", 0)
    late = MessageReceived("s", old, Subscribe(1, EVERYTHING))
    assert exchange.cores[0].handle(late, 0) == []
    assert exchange.cores[0].statistics()["messages_ignored"] == 1


def test_a_message_for_clients_is_refused_by_a_broker(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    client = exchange.client("s", 0)
    for peer, session in ((1, exchange.sessions[0, 1]), ("s", client.session)):
        with pytest.raises(RemoteProtocolError):
            exchange.cores[0].handle(MessageReceived(peer, session, Connected(None, 1)), 0)


def test_statistics_and_status_have_the_fields_that_the_toolkit_reads(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    core = exchange.cores[1]
    assert set(STATISTICS) <= set(core.statistics())
    assert all(type(value) is int for value in core.statistics().values())
    status = core.status()
    expected = CoreStatus(state="running", wanted=(0, 2, 3), ready=(0, 2, 3))
    assert status == expected
    assert status.missing == ()


def test_a_status_survives_json_with_the_names_of_brokers(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    exchange.subscribe(exchange.client("s", 1), "true")
    status = exchange.cores[1].status()
    assert status.own_subscriptions == 1
    assert status.idle_reasons == ("1 subscriptions of its own clients",)
    mapping = json.loads(json.dumps(status.to_mapping({n: f"b{n}" for n in range(4)})))
    found = CoreStatus.from_mapping({**mapping, "pid": 7})
    names = tuple(f"b{n}" for n in status.wanted)
    assert (found.state, found.wanted, found.missing) == ("running", names, ())
    assert found.to_mapping({name: name for name in names}) == mapping


def test_a_client_that_is_away_for_a_short_while_keeps_its_subscription(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    exchange.detach(subscriber)
    exchange.advance(10)
    exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    exchange.publish(publisher, 1, A)
    assert subscriber.got() == [1]
    assert exchange.cores[0].statistics()["subscriptions"] == 1


def over(client) -> list[int]:
    """Return the subscriptions that ended with a confirmation to the client."""
    return [answer.number for answer in client.answers if isinstance(answer, Unsubscribed)]


def rows(exchange) -> list[int]:
    """Return the number of subscriptions in every broker's routing table."""
    return [core.statistics()["subscriptions"] for core in exchange.cores.values()]


def test_a_subscription_ends_at_once_and_everywhere(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    for number, predicate in enumerate(("kind = 'a'", "kind = 'b'"), 1):
        exchange.subscribe(subscriber, predicate, number=number)
    exchange.publish(publisher, 1, A, B)
    exchange.say(subscriber, Unsubscribe(1))
    exchange.publish(publisher, 3, A, B)
    assert (subscriber.got(1), subscriber.got(2)) == ([1], [2, 4])
    assert over(subscriber) == [1]
    assert rows(exchange) == [1, 1, 1, 1]
    assert publisher.done[-1][1] == 4


def test_the_end_of_an_unknown_subscription_is_answered_and_changes_nothing(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    subscriber = exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    for number in (1, 1, 5):
        exchange.say(subscriber, Unsubscribe(number))
    assert over(subscriber) == [1, 1, 5]
    assert rows(exchange) == [0, 0, 0, 0]
    no_number = MessageReceived("s", subscriber.session, Unsubscribe(0))
    with pytest.raises(RemoteProtocolError):
        exchange.cores[2].handle(no_number, 0)


def test_an_end_waits_for_no_other_broker(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    subscriber = exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    exchange.hold(2, 1)
    exchange.say(subscriber, Unsubscribe(1))
    assert over(subscriber) == [1]
    assert rows(exchange) == [1, 1, 0, 1]
    exchange.release(2, 1)
    assert rows(exchange) == [0, 0, 0, 0]


def test_an_unsubscription_reaches_brokers_that_were_disconnected(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    subscriber = exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    exchange.cut(1, 3)
    exchange.cut(0, 3)
    exchange.cut(2, 3)
    exchange.say(subscriber, Unsubscribe(1))
    assert rows(exchange) == [0, 0, 0, 1]
    exchange.mend(1, 3)
    assert rows(exchange) == [0, 0, 0, 0]


def test_a_client_that_detaches_leaves_nothing_behind(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    for number in (1, 2, 3):
        exchange.subscribe(subscriber, "true", number=number)
    exchange.publish(publisher, 1, A)
    for client in (publisher, subscriber):
        done = len(client.done) if client is publisher else 0
        exchange.say(client, Detach(drain=True, done_through=done))
        assert over(client) == [0]
    assert rows(exchange) == [0, 0, 0, 0]
    exchange.detach(subscriber)
    exchange.detach(publisher)
    exchange.client("s", 2)
    exchange.subscribe(subscriber, "true", number=1)
    again = exchange.client("p", 0, publishes=True, incarnation=2)
    exchange.publish(again, 1, B)
    assert subscriber.got(1) == [1, 1]


def test_a_disconnected_client_is_evicted_at_all_brokers_after_its_linger(protocol):
    exchange = Exchange(TREE, protocol=protocol)
    subscriber = exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    exchange.detach(subscriber)
    exchange.advance(30)
    assert rows(exchange) == [1, 1, 1, 1]
    exchange.advance(31)
    assert rows(exchange) == [0, 0, 0, 0]


def test_a_client_session_needs_no_time_and_a_lonely_broker_no_peers(protocol):
    exchange = Exchange(((0, 1),), protocol=protocol, parameters=DeltaTreeParameters())
    core, client = exchange.cores[0], Client("c", 0)
    exchange.clients["c"] = client
    assert core.handle(SessionEstablished("c", 900, 1), 0) == []


def history_digest(protocol: str) -> str:
    """Return a digest of every event and effect in a story with faults."""
    import hashlib

    exchange = Exchange(TREE, protocol=protocol)
    publishers = [exchange.client(f"p{n}", n, publishes=True) for n in (0, 2)]
    for number, name in enumerate(("s", "t", "u", "v")):
        client = exchange.client(name, number)
        for subscription, predicate in enumerate(("kind = 'a'", "kind in ('a', 'b')"), 1):
            exchange.subscribe(client, predicate, number=subscription)
    for first in (1, 4, 7):
        for publisher in publishers:
            exchange.publish(publisher, first, A, B, A)
        if first == 1:
            exchange.kill(1)
        if first == 4:
            exchange.start(1)
            exchange.advance(3)
    exchange.advance(100)
    text = "\n".join(f"{number} {event} {effects}" for number, event, effects in exchange.log)
    return hashlib.blake2b(_without_addresses(text).encode()).hexdigest()


def _without_addresses(text: str) -> str:
    import re

    return re.sub(r"<memory at 0x[0-9a-f]+>", "<memory>", text)


def test_the_same_events_produce_the_same_effects_in_every_interpreter(protocol):
    program = f"from tests.protocols.conformance import *; print(history_digest({protocol!r}))"
    digests = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert digests[0] == digests[1]
    assert len(digests[0]) > 100
