"""Tests of subscriptions, publications, confirmations and clients without failures."""

import pytest

from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Refused,
    Subscribe,
    Subscribed,
)
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.delta_tree.messages import (
    PartitionGone,
    PublicationConfirmation,
    PublicationCopy,
    SubscriptionConfirmation,
    SubscriptionCopy,
    Summary,
    SyncEnd,
)
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.interface import Commit, MessageReceived, Send, SessionEstablished
from tests.helpers.exchange import Client, Exchange, blob, states

CHAIN = ((0, 1), (1, 2))
A, B, C = blob(kind="a"), blob(kind="b"), blob(kind="c")


def test_every_session_begins_with_a_summary_and_an_active_one_ends_its_sync():
    exchange = Exchange(CHAIN)
    kinds = [type(message) for message in exchange.sent(0, 1, object)]
    assert [kind for kind in kinds if kind is not PartitionGone] == [Summary, SyncEnd]
    assert exchange.cores[1].status().ready == (
        0,
        2,
    )
    assert exchange.cores[0].status().wanted == (1,), "two links away is not wanted"


def test_a_subscription_floods_is_confirmed_back_and_starts():
    exchange = Exchange(CHAIN)
    subscriber = exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind = 'a'")
    assert [copy.path for copy in exchange.sent(1, 0, SubscriptionCopy)] == [(2, 1, 0)]
    assert len(exchange.sent(1, 2, SubscriptionConfirmation)) == 1
    assert states(subscriber)[-1] == "started"
    assert exchange.cores[0].statistics()["subscriptions"] == 1


def test_a_subscription_starts_only_when_that_is_on_disk():
    exchange = Exchange(((0, 1),))
    core, client = exchange.cores[1], Client("s", 1)
    client.session = 77
    exchange.clients["s"] = client
    core.handle(SessionEstablished("s", 77, 1), 0)
    core.handle(MessageReceived("s", 77, Connect(False, 1, 1, 0, ())), 0)
    subscribe = Subscribe(1, parse_predicate("kind = 'a'"))
    pending = core.handle(MessageReceived("s", 77, subscribe), 0)
    subscription = next(e.message.subscription for e in pending if isinstance(e, Send))
    session = exchange.sessions[1, 0]
    confirmation = SubscriptionConfirmation(subscription, (), (), ())
    effects = core.handle(MessageReceived(0, session, confirmation), 0)
    commits = [effect for effect in effects if isinstance(effect, Commit)]
    assert len(commits) == 1
    assert commits[0].token is not None
    assert not any(isinstance(e, Send) and isinstance(e.message, Subscribed) for e in effects)


def test_a_broker_confirms_a_subscription_only_when_it_is_on_disk():
    exchange = Exchange(CHAIN)
    subscriber = exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind = 'a'")
    for number, _, effects in exchange.log:
        confirms = [
            e
            for e in effects
            if isinstance(e, Send) and isinstance(e.message, SubscriptionConfirmation)
        ]
        assert not (confirms and any(isinstance(e, Commit) for e in effects)), number
    assert list(exchange.disks[0]["routing"]) == ["2.1.1"]


def test_publications_arrive_in_order_and_are_acknowledged_end_to_end():
    exchange = Exchange(CHAIN)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind in ('a', 'b')")
    exchange.publish(publisher, 1, A, C, B, A)
    assert subscriber.got() == [1, 3, 4]
    assert subscriber.payloads() == [b"01", b"03", b"04"]
    assert publisher.done == [(1, 4)]
    assert all(core.statistics()["queue_publications"] == 0 for core in exchange.cores.values())


def test_nothing_is_acknowledged_before_the_subscriber_has_it():
    exchange = Exchange(CHAIN)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind = 'a'")
    subscriber.quiet = True
    exchange.publish(publisher, 1, A, A)
    exchange.publish(publisher, 3, C)
    assert subscriber.got() == [1, 2]
    assert publisher.done == [(3, 3)], "what nobody wants is done at once"
    assert exchange.cores[0].statistics()["queue_publications"] == 2
    source = publisher.source
    exchange.say(subscriber, Acknowledge(source, 1, 1))
    assert publisher.done == [(3, 3)], "a part of a frame is not the frame"
    exchange.say(subscriber, Acknowledge(source, 2, 2))
    assert publisher.done == [(3, 3), (1, 2)]


def test_a_hop_sends_one_frame_per_run_with_alternating_matches():
    exchange = Exchange(((0, 1), (1, 2), (1, 3)))
    publisher = exchange.client("p", 0, publishes=True)
    for name, broker, predicate in (("s", 2, "kind = 'a'"), ("t", 3, "kind in ('b', 'a')")):
        exchange.subscribe(exchange.client(name, broker), predicate)
    exchange.publish(publisher, 1, A, B, C, A, B)
    to_2, to_3 = exchange.sent(1, 2, PublicationCopy), exchange.sent(1, 3, PublicationCopy)
    assert [tuple(copy.run.sequences) for copy in to_2] == [(1, 4)]
    assert [tuple(copy.run.sequences) for copy in to_3] == [(1, 2, 4, 5)]
    assert to_3[0].path == (0, 1, 3)
    assert publisher.done == [(1, 5)]


def test_a_publication_is_not_sent_back_to_its_sender():
    exchange = Exchange(CHAIN)
    first, publisher = exchange.client("s", 0), exchange.client("p", 1, publishes=True)
    second = exchange.client("t", 2)
    for client in (first, second):
        exchange.subscribe(client, "true")
    exchange.publish(publisher, 1, A)
    exchange.subscribe(exchange.client("u", 0), "true")
    other = exchange.client("q", 0, publishes=True)
    exchange.publish(other, 1, A)
    assert (first.got(), second.got()) == ([1, 1], [1, 1])
    assert exchange.sent(1, 0, PublicationCopy)[0].run.source == publisher.source
    assert len(exchange.sent(1, 0, PublicationCopy)) == 1


def test_a_client_gets_one_copy_that_names_all_its_subscriptions():
    exchange = Exchange(CHAIN)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind in ('a', 'b')", number=1)
    exchange.subscribe(subscriber, "kind = 'a'", number=2)
    exchange.publish(publisher, 1, A, A, B, A)
    named = [(tuple(item.run.sequences), item.subscriptions) for item in subscriber.deliveries]
    assert named == [((1, 2), (1, 2)), ((3,), (1,)), ((4,), (1, 2))]


def test_a_subscription_excludes_publications_before_its_start():
    exchange = Exchange(CHAIN)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.publish(publisher, 1, A, A)
    exchange.subscribe(subscriber, "kind = 'a'")
    confirmation = exchange.sent(0, 1, SubscriptionConfirmation)[0]
    assert confirmation.cut == ((publisher.source, 2),)
    exchange.publish(publisher, 3, A)
    assert subscriber.got() == [3]


def test_the_cut_counts_publications_of_earlier_sessions():
    exchange = Exchange(CHAIN)
    publisher = exchange.client("p", 0, publishes=True, next_sequence=4, highest_sequence=9)
    subscriber = exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind = 'a'")
    exchange.publish(publisher, 4, *[A] * 7)
    assert subscriber.got() == [10]


def test_a_stream_may_begin_in_the_middle_of_a_run():
    exchange = Exchange(CHAIN)
    publisher = exchange.client("p", 0, publishes=True, highest_sequence=2)
    subscriber = exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind in ('a', 'b')")
    exchange.publish(publisher, 1, A, B, A, B)
    assert subscriber.got() == [3, 4]
    assert publisher.done == [(1, 4)]


def test_asking_again_for_a_subscription_changes_nothing():
    exchange = Exchange(CHAIN)
    subscriber = exchange.client("s", 2)
    for _ in range(3):
        exchange.subscribe(subscriber, "kind = 'a'")
    assert exchange.cores[2].statistics()["subscriptions"] == 1
    assert states(subscriber)[-2:] == ["started", "started"]
    exchange.subscribe(subscriber, "kind = 'b'")
    refused = subscriber.answers[-1]
    assert isinstance(refused, Refused)
    assert (refused.number, refused.retry) == (1, False)


def test_a_publisher_keeps_its_number_and_another_gets_another():
    exchange = Exchange(((0, 1),))
    first = exchange.client("p", 0, publishes=True)
    second = exchange.client("q", 0, publishes=True)
    source = first.source
    assert source != second.source
    exchange.detach(first)
    exchange.kill(0)
    exchange.start(0)
    assert exchange.client("p", 0, publishes=True).source == source


def test_deliveries_wait_while_a_client_has_a_full_window():
    exchange = Exchange(CHAIN, parameters=DeltaTreeParameters(delta=1, client_window=3))
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind = 'a'")
    subscriber.quiet = True
    for first in (1, 3, 5, 7):
        exchange.publish(publisher, first, A, A)
    assert subscriber.got() == [1, 2, 3, 4], "the window may be overrun by one run"
    exchange.say(subscriber, Acknowledge(publisher.source, 1, 2))
    assert subscriber.got() == [1, 2, 3, 4, 5, 6]


def test_confirmations_of_one_event_leave_in_one_message_with_touching_ranges_joined():
    exchange = Exchange(CHAIN)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind = 'a'")
    subscriber.quiet = True
    for first in (1, 3, 5):
        exchange.publish(publisher, first, A, A)
    exchange.say(subscriber, Acknowledge(publisher.source, 1, 6))
    assert exchange.sent(2, 1, PublicationConfirmation) == [
        PublicationConfirmation(((publisher.source, 1, 6),))
    ]
    assert publisher.done == [(1, 6)]


def test_positions_reach_the_disk_lazily_and_together():
    exchange = Exchange(((0, 1),))
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 1)
    exchange.subscribe(subscriber, "true")
    for first in (1, 2, 3):
        exchange.publish(publisher, first, A)
    assert "positions" not in exchange.disks[1]
    exchange.advance(1)
    assert exchange.disks[1]["positions"] == {"s/1/0.0.1": 3}


@pytest.mark.parametrize("size", [1, 7, 64])
def test_many_runs_with_filters_deliver_the_matches_of_plain_matching(size):
    exchange = Exchange(((0, 1), (1, 2), (1, 3)))
    publisher = exchange.client("p", 0, publishes=True)
    predicates = {"x": (2, "kind = 'a'"), "y": (3, "kind in ('b', 'c')"), "z": (1, "true")}
    subscribers = {}
    for name, (broker, predicate) in predicates.items():
        subscribers[name] = exchange.client(name, broker)
        exchange.subscribe(subscribers[name], predicate)
    kinds = [(A, B, C)[(7 * n + n // 5) % 3] for n in range(1, 257)]
    for first in range(1, 257, size):
        exchange.publish(publisher, first, *kinds[first - 1 : first - 1 + size])
    for name, (_, predicate) in predicates.items():
        wanted = parse_predicate(predicate)
        letters = {A: "a", B: "b", C: "c"}
        owed = [n for n, kind in enumerate(kinds, 1) if wanted.matches({"kind": letters[kind]})]
        assert subscribers[name].got() == owed
    assert sum(last - first + 1 for first, last in publisher.done) == 256


def test_statistics_count_events():
    exchange = Exchange(CHAIN)
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind = 'a'")
    exchange.publish(publisher, 1, A, B, A)
    statistics = [exchange.cores[number].statistics() for number in range(3)]
    assert [each["publications_received"] for each in statistics] == [3, 2, 2]
    assert [each["publications_forwarded"] for each in statistics] == [2, 2, 0]
    assert [each["publications_delivered"] for each in statistics] == [0, 0, 2]
    assert [each["sessions_active"] for each in statistics] == [1, 2, 1]
    assert statistics[0]["matching_misses"] == 2


def test_a_broker_with_publisher_and_subscriber_bothers_no_other():
    exchange = Exchange(((0, 1),))
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    exchange.publish(publisher, 1, A)
    assert subscriber.got() == [1]
    assert publisher.done == [(1, 1)]
    assert not exchange.sent(0, 1, PublicationCopy)
