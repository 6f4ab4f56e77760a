"""Tests of the baseline protocol, including the guarantees that the protocol omits on purpose."""

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.client_messages import Acknowledge, Publish, Subscribe
from brokerd.model.identity import SourceId, SubscriptionId
from brokerd.model.predicate import EVERYTHING
from brokerd.protocols.best_effort.messages import (
    ForwardedPublications,
    SubscriptionsOffered,
    SubscriptionsReached,
    SubscriptionsWithdrawn,
)
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.interface import MessageReceived, SessionEstablished
from brokerd.protocols.registry import make_protocol
from tests.helpers.exchange import Exchange, blob, decode, run_of, states

CHAIN = ((0, 1), (1, 2))
A, B = blob(kind="a"), blob(kind="b")


def chain():
    exchange = Exchange(CHAIN, protocol="best_effort")
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind = 'a'")
    return exchange, publisher, subscriber


def test_a_publication_is_acknowledged_as_soon_as_it_is_sent_on():
    exchange, publisher, subscriber = chain()
    exchange.hold(0, 1)
    exchange.publish(publisher, 1, A)
    assert (publisher.done, subscriber.got()) == ([(1, 1)], [])


def test_a_subscription_is_started_once_and_pending_only_if_others_must_hear_of_it():
    alone, chained = (Exchange(links, protocol="best_effort") for links in ((), CHAIN))
    for exchange, expected in ((alone, ["started"]), (chained, ["pending", "started"])):
        client = exchange.client("s", 0)
        exchange.subscribe(client, "kind = 'a'")
        assert states(client) == expected


def test_publications_on_a_broken_link_are_lost():
    exchange, publisher, subscriber = chain()
    exchange.publish(publisher, 1, A)
    exchange.cut(1, 2)
    exchange.publish(publisher, 2, A)
    exchange.mend(1, 2)
    exchange.publish(publisher, 3, A)
    assert subscriber.got() == [1, 3]
    assert publisher.done == [(1, 1), (2, 2), (3, 3)]


def test_a_dead_broker_is_not_bypassed():
    exchange, publisher, subscriber = chain()
    exchange.kill(1)
    exchange.publish(publisher, 1, A)
    exchange.advance(10)
    assert subscriber.got() == []
    assert (0, 2) not in exchange.sessions


def test_a_repeated_publication_is_delivered_again():
    exchange, publisher, subscriber = chain()
    exchange.publish(publisher, 1, A)
    exchange.publish(publisher, 1, A)
    assert subscriber.got() == [1, 1]


def test_a_returning_neighbour_receives_all_current_subscriptions_only():
    exchange, publisher, subscriber = chain()
    exchange.cut(0, 1)
    exchange.detach(subscriber)
    exchange.advance(61)
    exchange.subscribe(exchange.client("t", 2), "kind = 'b'")
    exchange.mend(0, 1)
    exchange.publish(publisher, 1, A, B)
    assert exchange.clients["t"].got() == [2]
    assert exchange.cores[0].statistics()["subscriptions"] == 1
    assert exchange.sent(1, 0, SubscriptionsOffered)[-1].complete


def test_a_subscription_made_while_a_neighbour_is_away_starts_when_it_is_back():
    exchange = Exchange(CHAIN, protocol="best_effort")
    exchange.cut(0, 1)
    subscriber = exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    assert states(subscriber) == ["pending"]
    exchange.mend(0, 1)
    assert states(subscriber)[-1] == "started"


def test_a_client_that_stays_away_is_withdrawn_everywhere():
    exchange, publisher, subscriber = chain()
    exchange.detach(subscriber)
    exchange.advance(61)
    exchange.publish(publisher, 1, A)
    assert all(core.statistics()["subscriptions"] == 0 for core in exchange.cores.values())
    assert not exchange.sent(0, 1, ForwardedPublications)


def test_each_side_and_client_gets_its_part_of_a_run_in_order():
    exchange = Exchange(((0, 1), (1, 2), (1, 3)), protocol="best_effort")
    publisher, local = exchange.client("p", 0, publishes=True), exchange.client("l", 1)
    exchange.subscribe(local, "kind = 'a'", number=1)
    exchange.subscribe(local, "true", number=2)
    far = exchange.client("f", 3)
    exchange.subscribe(far, "kind = 'b'")
    exchange.publish(publisher, 1, A, B, B, A)
    named = [(tuple(item.run.sequences), item.subscriptions) for item in local.deliveries]
    assert named == [((1,), (1, 2)), ((2, 3), (2,)), ((4,), (1, 2))]
    assert far.got() == [2, 3]
    assert not exchange.sent(1, 2, ForwardedPublications)


OURS = SubscriptionId(1, 1, 1)
OF_0 = SubscriptionId(0, 1, 5)
WRONG = {
    "our own subscription": SubscriptionsOffered(((OURS, EVERYTHING),), False),
    "a subscription of the other side": SubscriptionsWithdrawn((SubscriptionId(2, 1, 1),)),
    "reached what it sent itself": SubscriptionsReached((OF_0,)),
    "our own publications": ForwardedPublications(run_of(SourceId(1, 0, 1), 1, A)),
    "malformed attributes": ForwardedPublications(run_of(SourceId(0, 0, 1), 1, b"{")),
}


def test_a_subscription_that_is_named_twice_is_refused_or_taken_once():
    exchange, publisher, subscriber = chain()
    core, session = exchange.cores[1], exchange.sessions[1, 0]
    twice = SubscriptionsOffered(((OF_0, EVERYTHING), (OF_0, EVERYTHING)), False)
    with pytest.raises(RemoteProtocolError, match="twice"):
        core.handle(MessageReceived(0, session, twice), 0)
    exchange.handle(
        1, MessageReceived(0, session, SubscriptionsOffered(twice.subscriptions[:1], False))
    )
    confirmed = SubscriptionsReached((OF_0, OF_0))
    exchange.handle(1, MessageReceived(2, exchange.sessions[1, 2], confirmed))
    exchange.handle(1, MessageReceived(0, session, SubscriptionsWithdrawn((OF_0, OF_0))))
    exchange.publish(publisher, 1, A)
    assert subscriber.got() == [1]


@pytest.mark.parametrize("message", WRONG.values(), ids=WRONG)
def test_a_broker_that_breaks_the_rules_is_refused(message):
    exchange, publisher, subscriber = chain()
    core, session = exchange.cores[1], exchange.sessions[1, 0]
    offered = SubscriptionsOffered(((OF_0, EVERYTHING),), False)
    exchange.handle(1, MessageReceived(0, session, offered))
    exchange.settle()
    with pytest.raises(RemoteProtocolError):
        core.handle(MessageReceived(0, session, message), 0)
    exchange.publish(publisher, 1, A)
    assert subscriber.got() == [1]


@pytest.mark.parametrize(
    "message",
    [
        Subscribe(1, EVERYTHING),
        Acknowledge(SourceId(0, 0, 1), 1, 1),
        Publish(run_of(SourceId(0, 0, 1), 1, A)),
    ],
)
def test_a_client_message_before_connect_is_refused(message):
    exchange, _, _ = chain()
    core = exchange.cores[0]
    core.handle(SessionEstablished("c", 77, 1), 0)
    with pytest.raises(RemoteProtocolError, match="before Connected"):
        core.handle(MessageReceived("c", 77, message), 0)


def test_a_publisher_speaks_for_itself_only():
    exchange, publisher, _ = chain()
    foreign = Publish(run_of(SourceId(0, 9, 1), 1, A))
    with pytest.raises(RemoteProtocolError, match="publishes as"):
        exchange.cores[0].handle(MessageReceived("p", publisher.session, foreign), 0)


def test_an_unknown_protocol_is_the_users_error():
    topology = Exchange(CHAIN).topology
    with pytest.raises(ConfigError, match="did you mean 'delta_tree'"):
        make_protocol("delta", 0, topology, DeltaTreeParameters(), decode)


def test_a_subscription_starts_when_the_last_neighbour_has_answered():
    exchange = Exchange(((0, 1), (0, 2)), protocol="best_effort")
    exchange.hold(0, 2)
    subscriber = exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    assert states(subscriber) == ["pending"]
    exchange.release(0, 2)
    assert states(subscriber) == ["pending", "started"]
