"""Stories of bypass, retransmission and restarts, on cores that are wired by hand."""

import pytest

from brokerd.model.client_messages import Acknowledge, Detach, Publish
from brokerd.protocols.delta_tree.messages import (
    PublicationConfirmation,
    PublicationCopy,
    SubscriptionConfirmation,
    SubscriptionCopy,
    SyncEnd,
    UpstreamCopy,
)
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.interface import MessageReceived, OpenSession
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants
from tests.helpers.exchange import Exchange, blob, run_of, states

CHAIN4 = ((0, 1), (1, 2), (2, 3))
A, B = blob(kind="a"), blob(kind="b")


def sequences(messages):
    return [list(message.run.sequences) for message in messages]


# ---------------------------------------------------------------- duplicates and confirmations


def test_a_repeated_confirmed_run_is_confirmed_at_once_and_not_forwarded():
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)))
    exchange.publish(publisher, 1, A, A, A)
    again = PublicationCopy(run_of(publisher.source, 2, A, A), (0, 1))
    effects = exchange.handle(1, MessageReceived(0, exchange.sessions[0, 1], again))
    assert [effect.message for effect in effects] == [
        PublicationConfirmation(((publisher.source, 2, 3),))
    ]
    assert subscriber.got() == [1, 2, 3]


def test_a_repeated_pending_run_is_confirmed_after_its_completion():
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)))
    exchange.hold(1, 2)
    exchange.publish(publisher, 1, A, A, A)
    again = PublicationCopy(run_of(publisher.source, 2, A, A, A), (0, 1))
    effects = exchange.handle(1, MessageReceived(0, exchange.sessions[0, 1], again))
    forwarded = [e.message for e in effects if isinstance(e.message, PublicationCopy)]
    assert sequences(forwarded) == [[4]], "only what is new goes on"
    assert not exchange.sent(1, 0, PublicationConfirmation)
    exchange.release(1, 2)
    confirmed = [m.ranges for m in exchange.sent(1, 0, PublicationConfirmation)]
    assert confirmed == [((publisher.source, 1, 3),), ((publisher.source, 2, 4),)]
    assert subscriber.got() == [1, 2, 3, 4]


def test_a_confirmation_never_covers_pending_entries_of_another_branch():
    exchange = Exchange(((0, 1), (1, 2), (1, 3)))
    publisher = exchange.client("p", 0, publishes=True)
    near, far = exchange.client("s", 2), exchange.client("t", 3)
    exchange.subscribe(near, "true")
    exchange.subscribe(far, "kind = 'b'")
    exchange.hold(1, 3)
    exchange.publish(publisher, 1, A, B, A)
    exchange.publish(publisher, 4, A)
    assert near.got() == [1, 2, 3, 4]
    assert publisher.done == [(4, 4)]
    exchange.release(1, 3)
    assert publisher.done == [(4, 4), (1, 3)]
    assert far.got() == [2]


def test_a_confirmation_of_a_part_of_an_entry_leaves_the_rest_open():
    exchange, publisher, _ = pair_over(((0, 1), (1, 2)))
    exchange.hold(1, 2)
    exchange.publish(publisher, 1, A, A, A, A)
    session = exchange.sessions[1, 2]
    for first, last in ((2, 2), (1, 1), (4, 4)):
        part = PublicationConfirmation(((publisher.source, first, last),))
        exchange.handle(1, MessageReceived(2, session, part))
        assert not publisher.done
    rest = PublicationConfirmation(((publisher.source, 3, 3),))
    exchange.handle(1, MessageReceived(2, session, rest))
    exchange.settle()
    assert publisher.done == [(1, 4)]


def test_a_confirmation_from_an_older_session_is_ignored():
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)))
    exchange.hold(1, 2)
    exchange.publish(publisher, 1, A)
    old = exchange.sessions[1, 2]
    exchange.cut(1, 2)
    exchange.mend(1, 2)
    late = PublicationConfirmation(((publisher.source, 1, 1),))
    effects = exchange.handle(1, MessageReceived(2, old, late))
    assert (effects, publisher.done) == ([], [])
    assert exchange.cores[1].statistics()["messages_ignored"] == 1
    exchange.release(1, 2)
    assert (subscriber.got(), publisher.done) == ([1], [(1, 1)])


# ---------------------------------------------------------------- bypass


def test_a_dead_broker_is_bypassed_and_unconfirmed_entries_are_sent_first_in_order():
    exchange, publisher, subscriber = pair_over(CHAIN4)
    exchange.hold(1, 2)
    exchange.publish(publisher, 1, A, A)
    exchange.publish(publisher, 3, B, A)
    exchange.publish(publisher, 5, A)
    exchange.kill(2)
    exchange.publish(publisher, 6, A)
    assert sequences(exchange.sent(1, 3, PublicationCopy)) == [[1, 2, 4, 5, 6]]
    assert exchange.sent(1, 3, PublicationCopy)[0].path == (0, 1, 2, 3)
    assert subscriber.got() == [1, 2, 4, 5, 6]
    assert publisher.done == [(1, 6)]


def test_a_restarted_broker_receives_unconfirmed_publications_first():
    exchange, publisher, subscriber = pair_over(CHAIN4)
    exchange.kill(2)
    exchange.hold(1, 3)
    exchange.publish(publisher, 1, A, A)
    exchange.start(2)
    exchange.publish(publisher, 3, A)
    assert sequences(exchange.sent(1, 2, PublicationCopy)) == [[1, 2], [3]]
    exchange.release(1, 3)
    assert subscriber.got() == [1, 2, 3], "the copies over the bypass are duplicates by now"


def test_a_new_session_with_the_same_broker_is_a_new_route():
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)))
    exchange.hold(1, 2)
    exchange.publish(publisher, 1, A)
    exchange.cut(1, 2, heal=True)
    exchange.release(1, 2)
    assert subscriber.got() == []
    exchange.mend(1, 2)
    assert subscriber.got() == [1]


def test_publications_for_an_unreachable_home_broker_wait_and_are_not_acknowledged():
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)))
    exchange.cut(1, 2)
    exchange.publish(publisher, 1, A)
    exchange.publish(publisher, 2, B)
    assert publisher.done == [(2, 2)]
    assert exchange.cores[1].statistics()["queue_publications"] == 1
    exchange.mend(1, 2)
    assert (subscriber.got(), publisher.done[-1]) == ([1], (1, 1))


def test_bypassing_waits_for_a_verdict_and_tries_brokers_behind_one_by_one():
    exchange = Exchange(CHAIN4, delta=2)
    exchange.unreachable[0, 2] = exchange.unreachable[0, 3] = None
    exchange.log.clear()
    exchange.cut(0, 1)
    opened = [
        e.peer
        for n, _, effects in exchange.log
        for e in effects
        if n == 0 and isinstance(e, OpenSession)
    ]
    assert opened == [2, 3]
    status = exchange.cores[0].status()
    assert (status.wanted, status.missing, status.ready) == ((1, 2, 3), (1, 2, 3), ())


def test_an_unreachable_broker_is_tried_again_with_longer_and_longer_waits():
    exchange = Exchange(((0, 1),), parameters=DeltaTreeParameters(retry_limit_ns=3 * 10**9))
    exchange.cut(0, 1)
    exchange.log.clear()
    tries = []
    for _ in range(100):
        exchange.advance(0.1)
        if any(
            isinstance(e, OpenSession) for n, _, effects in exchange.log for e in effects if n == 0
        ):
            tries.append(round(exchange.now_ns / 1e9, 1))
        exchange.log.clear()
    assert tries == [0.5, 1.5, 3.5, 6.5, 9.5]
    exchange.unreachable.clear()
    exchange.advance(3)
    assert exchange.cores[0].status().ready == (1,)


# ---------------------------------------------------------------- subscriptions under failures


def test_subscriptions_and_publications_bypass_an_unreachable_broker():
    exchange = Exchange(CHAIN4)
    exchange.kill(1)
    subscriber, publisher = exchange.client("s", 0), exchange.client("p", 3, publishes=True)
    exchange.subscribe(subscriber, "kind = 'a'")
    assert exchange.cores[3].statistics()["subscriptions"] == 1, "those behind it know early"
    assert states(subscriber) == ["pending", "started"]
    assert exchange.cores[0].statistics()["subscriptions_tagged"] == 1
    exchange.publish(publisher, 1, A)
    assert subscriber.got() == [1]
    exchange.start(1)
    exchange.publish(publisher, 2, A)
    assert exchange.cores[0].statistics()["subscriptions_tagged"] == 0
    assert subscriber.got() == [1, 2]


def test_a_next_hop_receives_a_subscription_before_its_first_publication():
    """On 0–1–2–3, link 0–1 is down, broker 1 is alive, and broker 2 sends through 1.

    Paper: [DFT11] §V-B, the upstream copy.
    """
    exchange = Exchange(CHAIN4)
    exchange.cut(0, 1)
    publisher, subscriber = exchange.client("p", 3, publishes=True), exchange.client("s", 0)
    exchange.subscribe(subscriber, "kind = 'a'")
    exchange.publish(publisher, 1, A)
    to_1 = [type(message) for message in exchange.sent(2, 1, object)]
    assert to_1.index(UpstreamCopy) < to_1.index(PublicationCopy)
    copy = exchange.sent(2, 1, UpstreamCopy)[0]
    assert copy.path == (0, 1)
    assert exchange.cores[1].statistics()["queue_publications"] == 1, "1 waits for its link"


def test_a_subscription_is_sent_again_to_a_broker_that_lost_it_before_confirming():
    exchange = Exchange(((0, 1), (1, 2)))
    exchange.hold(1, 2)
    exchange.hold(1, 0)
    subscriber = exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    exchange.kill(1)
    exchange.held.clear()
    exchange.start(1)
    exchange.advance(3)
    assert states(subscriber)[-1] == "started"


def bypass_resurrects():
    """Play the story in which a bypass revives a publication that a crash erased.

    S–X–V–P are brokers 0–1–2–3, and Z is broker 4 behind X with a subscription to kind b. All
    brokers have the subscription s, but X still waits for the confirmation of Z. P sends 1, which
    matches at Z too, and 2. S has not started s and lets both pass; X keeps 1 for Z. Then s starts.
    S loses its record of 1 in a crash. V loses X, reaches S directly and sends 1 again.
    """
    exchange = Exchange(((0, 1), (1, 2), (2, 3), (1, 4)))
    publisher, other = exchange.client("p", 3, publishes=True), exchange.client("z", 4)
    exchange.subscribe(other, "kind = 'b'")
    exchange.hold(4, 1)
    subscriber = exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    exchange.publish(publisher, 1, B)
    exchange.publish(publisher, 2, A)
    assert (states(subscriber), publisher.done) == (["pending"], [(2, 2)])
    late = [m for _, m in exchange.queues[4, 1] if isinstance(m, SubscriptionConfirmation)]
    exchange.queues[4, 1].clear()
    for message in late:
        exchange.handle(1, MessageReceived(4, exchange.sessions[4, 1], message))
    exchange.settle()
    assert states(subscriber)[-1] == "started"
    exchange.kill(0)
    exchange.start(0)
    exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    exchange.cut(1, 2)
    exchange.mend(0, 2)
    exchange.publish(publisher, 3, A)
    return subscriber.got()


def test_a_stream_never_starts_before_a_lost_publication():
    """The cut forbids 1; [DFT11] §VI lines 614-621 would deliver 1 and 3 and lose 2."""
    assert bypass_resurrects() == [3]


def test_without_the_cut_the_story_ends_in_a_gap():
    with plant_mutants([Mutant.NO_CUT, Mutant.NO_LAST_IN_CUT]):
        assert bypass_resurrects() == [1, 3]


# ---------------------------------------------------------------- restarts


def test_a_recovering_broker_holds_publications_and_new_subscriptions():
    exchange = Exchange(((0, 1), (1, 2)))
    subscriber = exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    exchange.kill(0)
    exchange.hold(1, 0)
    exchange.start(0)
    publisher, late = exchange.client("p", 0, publishes=True), exchange.client("t", 0)
    exchange.publish(publisher, 1, A)
    exchange.subscribe(late, "true")
    assert exchange.cores[0].status().state == "recovering"
    assert (subscriber.got(), states(late)) == ([], [])
    exchange.release(1, 0)
    assert exchange.cores[0].status().state == "running"
    assert subscriber.got() == [1]
    assert states(late)[-1] == "started"


def test_a_recovering_peer_does_not_end_the_recovery_of_another_broker():
    exchange = Exchange(((0, 1), (1, 2)))
    exchange.kill(0)
    exchange.kill(1)
    exchange.cut(0, 2)
    exchange.cut(1, 2)
    exchange.start(0)
    exchange.start(1)
    exchange.advance(2)
    assert [exchange.cores[n].status().state for n in (0, 1)] == ["recovering"] * 2
    assert exchange.sent(1, 0, SyncEnd)[-1].recovering
    exchange.unreachable.clear()
    exchange.mend(1, 2)
    assert [exchange.cores[n].status().state for n in (0, 1)] == ["running"] * 2


def test_a_fully_restarted_component_records_a_cold_start_after_a_timeout():
    exchange = Exchange(((0, 1),))
    for broker in (0, 1):
        exchange.kill(broker)
    for broker in (0, 1):
        exchange.start(broker)
    exchange.advance(25)
    assert exchange.cores[0].status().state == "recovering"
    exchange.advance(10)
    assert [exchange.cores[n].status().state for n in (0, 1)] == ["running"] * 2
    assert [event for _, event in exchange.records].count("cold_start") == 1


def test_a_started_subscription_resumes_after_its_broker_restarts():
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)))
    exchange.publish(publisher, 1, A, A)
    exchange.advance(1)
    exchange.kill(2)
    exchange.publish(publisher, 3, A)
    exchange.start(2)
    exchange.subscribe(exchange.client("s", 2), "kind = 'a'")
    assert subscriber.got() == [1, 2, 3]
    assert publisher.done[-1] == (3, 3)


def test_a_broker_skips_publications_covered_by_the_resume_token():
    """The broker crashes with a position that is not on disk; the client has the position."""
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)))
    exchange.hold(2, 1)
    exchange.publish(publisher, 1, A, A)
    assert subscriber.got() == [1, 2]
    exchange.kill(2)
    exchange.held.clear()
    exchange.start(2)
    exchange.client("s", 2, resume=((1, ((publisher.source, 1),)),))
    exchange.subscribe(subscriber, "kind = 'a'")
    assert subscriber.got() == [1, 2, 2], "1 was known to be there, 2 was not"
    exchange.kill(2)
    exchange.start(2)
    exchange.client("s", 2, resume=((1, ((publisher.source, 2),)),))
    exchange.subscribe(subscriber, "kind = 'a'")
    exchange.publish(publisher, 3, A)
    assert subscriber.got()[-1] == 3


def test_a_pending_subscription_is_issued_again_under_a_new_id():
    exchange = Exchange(((0, 1), (1, 2)))
    exchange.hold(1, 2)
    exchange.subscribe(exchange.client("s", 0), "true")
    exchange.kill(0)
    exchange.start(0)
    ids = [copy.subscription for copy in exchange.sent(0, 1, SubscriptionCopy)]
    assert [(each.incarnation, each.number) for each in ids] == [(1, 1), (2, 1)]
    subscriber = exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    assert states(subscriber)[-1] == "pending"
    exchange.release(1, 2)
    assert states(subscriber)[-1] == "started"


def test_a_broker_confirms_nothing_while_an_earlier_publisher_is_missing():
    exchange = Exchange(((0, 1),))
    publisher = exchange.client("p", 0, publishes=True)
    exchange.publish(publisher, 1, A)
    exchange.subscribe(exchange.client("x", 1), "true")
    exchange.hold(0, 1)
    exchange.publish(publisher, 2, A)
    exchange.kill(0)
    exchange.held.clear()
    exchange.start(0)
    subscriber = exchange.client("s", 1)
    exchange.subscribe(subscriber, "true")
    assert states(subscriber) == ["pending"]
    exchange.client("p", 0, publishes=True, next_sequence=2, highest_sequence=5)
    assert states(subscriber)[-1] == "started"
    exchange.publish(publisher, 2, *[A] * 5)
    assert subscriber.got() == [6]


def test_a_new_subscription_does_not_wait_for_a_publisher_that_detached():
    """The second publication was acknowledged before the first when the broker crashed.

    The restarted broker has the first publication, and learns of the second from the Detach.
    """
    exchange = Exchange(((0, 1), (0, 2)))
    for home in (1, 2):
        exchange.subscribe(exchange.client(f"s{home}", home), f"kind = '{'ab'[home - 1]}'")
    exchange.hold(1, 0)
    publisher = exchange.client("p", 0, publishes=True)
    exchange.publish(publisher, 1, A)
    exchange.publish(publisher, 2, B)
    assert publisher.done == [(2, 2)]
    exchange.kill(0)
    exchange.held.clear()
    exchange.start(0)
    again = exchange.client("p", 0, publishes=True, next_sequence=1, highest_sequence=2)
    exchange.publish(again, 1, A)
    assert again.done == [(2, 2), (1, 1)]
    exchange.say(again, Detach(drain=False, done_through=2))
    exchange.detach(again)
    exchange.kill(0)
    exchange.start(0)
    late = exchange.client("late", 0)
    exchange.subscribe(late, "true")
    assert states(late)[-1] == "started"


def test_a_start_waits_for_a_publisher_with_unacknowledged_publications():
    """The first publication is not acknowledged when the publisher detaches, so the start waits."""
    exchange = Exchange(((0, 1),))
    exchange.subscribe(exchange.client("s", 1), "true")
    exchange.hold(1, 0)
    publisher = exchange.client("p", 0, publishes=True)
    exchange.publish(publisher, 1, A, B)
    exchange.say(publisher, Detach(drain=False, done_through=0))
    exchange.detach(publisher)
    exchange.kill(0)
    exchange.held.clear()
    exchange.start(0)
    late = exchange.client("late", 0)
    exchange.subscribe(late, "true")
    assert states(late)[-1] == "pending"


def test_the_aftermath_of_a_failure_is_listed_until_recovery_ends():
    exchange = Exchange(((0, 1), (1, 2)))
    exchange.kill(2)
    exchange.advance(1)
    exchange.subscribe(exchange.client("s", 1), "true")
    assert exchange.cores[1].aftermath() == ["1 subscriptions tagged", "1 partitions in its table"]
    exchange.hold(1, 2)
    exchange.start(2)
    assert exchange.cores[2].aftermath()[0] == "a recovery"
    exchange.release(1, 2)
    exchange.advance(5)
    assert [core.aftermath() for core in exchange.cores.values()] == [[], [], []]


def test_a_broker_that_confirmed_a_subscription_has_it_after_a_restart():
    """The only remaining peer lacks the subscription and could not restore the subscription."""
    exchange = Exchange(((0, 1), (0, 2)))
    exchange.cut(0, 2)
    subscriber = exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    assert states(subscriber) == ["pending", "started"], "2 has not got it, and is tagged"
    exchange.kill(1)
    exchange.cut(0, 1)
    exchange.start(1)
    exchange.mend(1, 2)
    assert exchange.cores[1].status().state == "running", "2 brought it up to date"
    assert exchange.cores[1].statistics()["subscriptions"] == 1


def test_without_routing_on_disk_the_same_story_leaves_a_broker_unaware():
    parameters = DeltaTreeParameters(persist_routing=False)
    exchange = Exchange(((0, 1), (0, 2)), parameters=parameters)
    exchange.cut(0, 2)
    exchange.subscribe(exchange.client("s", 0), "true")
    exchange.kill(1)
    exchange.cut(0, 1)
    exchange.start(1)
    exchange.mend(1, 2)
    assert exchange.cores[1].status().state == "running"
    assert exchange.cores[1].statistics()["subscriptions"] == 0


# ---------------------------------------------------------------- clients that connect and depart


def test_the_next_session_redelivers_unacknowledged_publications_in_order():
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)))
    subscriber.quiet = True
    exchange.publish(publisher, 1, A, A)
    exchange.publish(publisher, 3, A)
    exchange.say(subscriber, Acknowledge(publisher.source, 1, 1))
    exchange.detach(subscriber)
    exchange.publish(publisher, 4, A)
    subscriber.deliveries.clear()
    subscriber.quiet = False
    exchange.client("s", 2)
    assert subscriber.got() == [], "nothing comes for a subscription it has not asked for"
    exchange.subscribe(subscriber, "kind = 'a'")
    assert subscriber.got() == [2, 3, 4]
    assert publisher.done[-1] == (4, 4)
    assert exchange.cores[0].statistics()["queue_publications"] == 0


def test_a_client_that_asks_for_one_of_its_subscriptions_gets_that_one():
    exchange = Exchange(((0, 1),))
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 1)
    exchange.subscribe(subscriber, "true", number=1)
    exchange.subscribe(subscriber, "kind = 'a'", number=2)
    exchange.detach(subscriber)
    exchange.publish(publisher, 1, A, B)
    exchange.client("s", 1)
    exchange.subscribe(subscriber, "kind = 'a'", number=2)
    assert (subscriber.got(1), subscriber.got(2)) == ([], [1])
    exchange.subscribe(subscriber, "true", number=1)
    assert (subscriber.got(1), subscriber.got(2)) == ([1, 2], [1])
    assert publisher.done == [(1, 2)]


def test_two_copies_of_a_publication_are_never_in_flight_to_a_client_at_once():
    """An acknowledgement names sequence numbers only, so two copies would be indistinguishable."""
    exchange = Exchange(((0, 1),))
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 1)
    exchange.subscribe(subscriber, "true", number=1)
    exchange.subscribe(subscriber, "true", number=2)
    exchange.detach(subscriber)
    exchange.publish(publisher, 1, A)
    subscriber.quiet = True
    exchange.client("s", 1)
    exchange.subscribe(subscriber, "true", number=2)
    exchange.subscribe(subscriber, "true", number=1)
    assert (subscriber.got(1), subscriber.got(2)) == ([], [1])
    exchange.say(subscriber, Acknowledge(publisher.source, 1, 1))
    assert (subscriber.got(1), publisher.done) == ([1], [])
    exchange.say(subscriber, Acknowledge(publisher.source, 1, 1))
    assert publisher.done == [(1, 1)]


def test_a_subscriber_that_stays_away_too_long_loses_its_subscriptions():
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)))
    exchange.detach(subscriber)
    exchange.publish(publisher, 1, A)
    exchange.advance(59)
    assert publisher.done == []
    exchange.advance(2)
    assert publisher.done == [(1, 1)]
    assert (2, "subscriptions_given_up") in exchange.records
    assert not exchange.disks[2]["subscriptions"]
    exchange.client("s", 2)
    exchange.subscribe(subscriber, "kind = 'b'")
    exchange.publish(publisher, 2, A, B)
    assert subscriber.got() == [3]


def test_a_publisher_resubmits_and_is_acknowledged_once_all_is_done():
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)))
    exchange.hold(1, 2)
    exchange.publish(publisher, 1, A, A)
    exchange.detach(publisher)
    exchange.client("p", 0, publishes=True, next_sequence=1, highest_sequence=2)
    exchange.publish(publisher, 1, A, A, A)
    assert publisher.done == []
    exchange.release(1, 2)
    assert publisher.done == [(1, 3)]
    assert subscriber.got() == [1, 2, 3]


def test_a_full_queue_is_put_on_record_once_each_time_and_nothing_is_dropped():
    parameters = DeltaTreeParameters(queue_limit=3)
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)), parameters=parameters)
    for episode in (1, 2):
        exchange.cut(1, 2)
        for first in range(6 * episode - 5, 6 * episode + 1):
            exchange.publish(publisher, first, A)
        assert exchange.records.count((1, "queue_over_limit")) == episode
        exchange.mend(1, 2)
    assert subscriber.got() == [*range(1, 13)]


def test_frames_that_are_sent_again_are_of_bounded_size_and_in_order():
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)))
    exchange.hold(1, 2)
    runs = [
        run_of(publisher.source, first, *[A, B, A] * 100, size=400) for first in (1, 301, 601, 901)
    ]
    for run in runs:
        exchange.say(publisher, Publish(run))
    exchange.cut(1, 2, heal=True)
    exchange.held.clear()
    before = len(exchange.sent(1, 2, PublicationCopy))
    exchange.mend(1, 2)
    frames = exchange.sent(1, 2, PublicationCopy)[before:]
    assert [frame.run.payload_bytes() <= 256 << 10 for frame in frames] == [True, True]
    assert subscriber.got() == [n for n in range(1, 1201) if n % 3 != 2]


# ---------------------------------------------------------------- mutants


@pytest.mark.parametrize(
    "mutant, lost",
    [
        (Mutant.NO_RESEND_ON_ACTIVATION, [3]),
        (Mutant.RESEND_AFTER_NEWER, [2, 3]),
    ],
)
def test_a_mutant_of_re_sending_loses_publications(mutant, lost):
    with plant_mutants([mutant]):
        assert _lost_by_a_cut() == lost


def _lost_by_a_cut():
    exchange, publisher, subscriber = pair_over(((0, 1), (1, 2)))
    exchange.hold(1, 2)
    exchange.publish(publisher, 1, A)
    exchange.publish(publisher, 2, A)
    exchange.cut(1, 2, heal=True)
    exchange.held.clear()
    exchange.mend(1, 2)
    exchange.publish(publisher, 3, A)
    return subscriber.got()


def pair_over(links, **options):
    """Return a publisher at the first broker and a started subscriber to kind a at the last."""
    exchange = Exchange(links, **options)
    publisher = exchange.client("p", 0, publishes=True)
    subscriber = exchange.client("s", len(exchange.topology.brokers) - 1)
    exchange.subscribe(subscriber, "kind = 'a'")
    assert states(subscriber)[-1] == "started"
    return exchange, publisher, subscriber
