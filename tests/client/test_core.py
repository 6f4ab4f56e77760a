"""Tests of the client's decisions: numbers, resubmission, duplicates, acknowledgements."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.client.core import ClientCore
from brokerd.client.events import (
    Announced,
    Attached,
    PublicationsDone,
    Received,
    RequestRefused,
    RetryLater,
    SubscriptionAnswered,
    Withheld,
)
from brokerd.client.restart import restart, state_of
from brokerd.client.state import Home
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Connected,
    Deliveries,
    Detach,
    Notice,
    Publish,
    PublishAcknowledged,
    Refused,
    Subscribe,
    Subscribed,
)
from brokerd.model.identity import PartitionId, SourceId, StreamId
from brokerd.model.predicate import EVERYTHING
from brokerd.model.publication import PublicationRun

OURS = SourceId(3, 0, 1)
THEIRS = SourceId(1, 4, 1)
OTHERS = SourceId(2, 0, 1)


def attached(publishes: bool = True) -> ClientCore:
    core = ClientCore("c", publishes=publishes)
    attach(core)
    return core


def attach(core: ClientCore, source: SourceId | None = OURS) -> list[Any]:
    """Start a session up to Connected; return the messages of the client, Connect included."""
    core.on_established()
    said = core.messages_to_send()
    core.on_message(Connected(source if said[0].publishes else None, 1))
    return said + core.messages_to_send()


def run(
    first: int, last: int, source: SourceId = THEIRS, steps: tuple[int, ...] = ()
) -> PublicationRun:
    sequences: range | tuple[int, ...] = steps or range(first, last + 1)
    payload = b"".join(bytes([sequence % 256]) for sequence in sequences)
    return PublicationRun(source, sequences, (b"a",), bytes(len(sequences)), 1, (payload,))


def published(messages: list[Any]) -> list[int]:
    return [s for m in messages if isinstance(m, Publish) for s in m.run.sequences]


def test_publications_before_the_first_attach_are_sent_at_the_attach() -> None:
    core = ClientCore("c", publishes=True, incarnation=7)
    assert core.outgoing.publish(b"a", b"x") == 1
    assert core.outgoing.publish_many([b"a", b"b"], b"\0\1", 1, b"yz") == range(2, 4)
    assert core.messages_to_send() == []
    core.on_established()
    assert core.messages_to_send() == [Connect(True, 7, 1, 0, ())]
    assert core.on_message(Connected(OURS, 5)) == [Attached(OURS, 5)]
    (publish,) = core.messages_to_send()
    assert publish.run.source == OURS
    assert list(publish.run.publications()) == [(1, b"a", b"x"), (2, b"a", b"y"), (3, b"b", b"z")]


def test_publications_of_single_calls_travel_as_one_run() -> None:
    core = attached()
    for payload in (b"x", b"yy", b""):
        core.outgoing.publish(b"a", payload)
    (publish,) = core.messages_to_send()
    assert publish.run.attribute_table == (b"a",)
    assert [bytes(p) for _, _, p in publish.run.publications()] == [b"x", b"yy", b""]
    assert core.messages_to_send() == []


def test_only_attributes_that_are_used_travel() -> None:
    core = attached()
    core.outgoing.publish_many([b"a", b"b", b"c"], bytes([2, 1, 2]), 1, b"xyz")
    (first,) = (message.run for message in core.messages_to_send())
    core.outgoing.publish_many([b"a", b"b", b"c"], (2, 2), 1, b"xy")
    (second,) = (message.run for message in core.messages_to_send())
    assert (first.attribute_table, first.attribute_index) == ((b"c", b"b"), b"\0\1\0")
    assert (second.attribute_table, second.attribute_index) == ((b"c",), b"\0\0")


def test_after_an_interruption_everything_unacknowledged_is_sent_again_in_order() -> None:
    core = attached()
    core.outgoing.publish_many([b"a"], bytes(6), 1, b"abcdef")
    core.messages_to_send()
    assert core.on_message(PublishAcknowledged(1, 2)) == [PublicationsDone(1, 2)]
    assert core.on_message(PublishAcknowledged(4, 4)) == [PublicationsDone(4, 4)]
    core.on_lost()
    core.outgoing.publish(b"b", b"g")
    assert len(core.outgoing) == 4
    connect, *rest = attach(core)
    assert (connect.next_sequence, connect.highest_sequence) == (3, 6)
    assert published(rest) == [3, 5, 6, 7]
    assert core.outgoing.resubmitted == 3


@pytest.mark.parametrize("left, done", [(0, 7), (1, 6), (4, 3)])
def test_a_detach_reports_the_last_confirmed_publication(left: int, done: int) -> None:
    """The report is repeated on a later session, because a restarted broker may lack the state."""
    core = attached()
    core.outgoing.publish_many([b"a"], bytes(7), 1, b"abcdefg")
    core.messages_to_send()
    core.on_message(PublishAcknowledged(1, 7 - left))
    core.detach(drain=False)
    assert core.messages_to_send() == [Detach(drain=False, done_through=done)]
    assert attach(core)[-1] == Detach(drain=False, done_through=done)


def test_a_publication_is_done_once_however_often_it_is_acknowledged() -> None:
    core = attached()
    core.outgoing.publish_many([b"a"], bytes(4), 1, b"abcd")
    core.messages_to_send()
    core.on_message(PublishAcknowledged(2, 3))
    done = core.on_message(PublishAcknowledged(1, 4))
    assert done == [PublicationsDone(1, 1), PublicationsDone(4, 4)]
    assert len(core.outgoing) == 0


@pytest.mark.parametrize("first, last", [(0, 1), (2, 1), (1, 3), (3, 3)])
def test_an_acknowledgement_of_an_unsent_number_is_refused(first: int, last: int) -> None:
    core = attached()
    core.outgoing.publish(b"a", b"x")
    core.outgoing.publish(b"a", b"x")
    core.messages_to_send()
    core.outgoing.publish(b"a", b"still here")
    with pytest.raises(RemoteProtocolError, match="never sent"):
        core.on_message(PublishAcknowledged(first, last))


def test_a_broker_that_assigns_another_source_is_refused() -> None:
    core = attached()
    core.on_established()
    with pytest.raises(RemoteProtocolError, match="became"):
        core.on_message(Connected(SourceId(3, 1, 1), 2))


def test_each_attach_requests_subscriptions_that_have_not_started() -> None:
    core = ClientCore("c", publishes=False)
    assert (core.subscribe(EVERYTHING), core.subscribe(EVERYTHING)) == (1, 2)
    said = attach(core)
    assert said[1:] == [Subscribe(1, EVERYTHING), Subscribe(2, EVERYTHING)]
    assert core.on_message(Subscribed(1, "started")) == [SubscriptionAnswered(1, "started")]
    assert attach(core)[1:] == [Subscribe(1, EVERYTHING), Subscribe(2, EVERYTHING)]


def test_a_temporary_refusal_can_be_retried_and_a_final_refusal_is_reported() -> None:
    core = attached(publishes=False)
    number = core.subscribe(EVERYTHING)
    core.messages_to_send()
    later = Refused("subscribe", number, "recovering", retry=True)
    assert core.on_message(later) == [RetryLater(later)]
    core.subscribe_again(number)
    assert core.messages_to_send() == [Subscribe(number, EVERYTHING)]
    never = Refused("subscribe", number, "too many", retry=False)
    assert core.on_message(never) == [RequestRefused(never)]


def test_deliveries_are_acknowledged_when_the_application_has_them() -> None:
    core = attached(publishes=False)
    core.subscribe(EVERYTHING)
    core.messages_to_send()
    (one,) = core.on_message(Deliveries(run(1, 5), (1,)))
    (two,) = core.on_message(Deliveries(run(8, 9), (1,)))
    (other,) = core.on_message(Deliveries(run(1, 1, OTHERS), (1,)))
    assert core.messages_to_send() == []
    core.progress.take(two.serial)
    assert core.messages_to_send() == [Acknowledge(THEIRS, 1, 9)]
    core.progress.take(other.serial)
    assert core.messages_to_send() == [Acknowledge(OTHERS, 1, 1)]
    assert one.deliveries[0].run == run(1, 5)


def test_deliveries_of_a_lost_session_are_not_acknowledged_on_the_next_session() -> None:
    """The broker confirms deliveries of this session and repeats deliveries of the last one."""
    core = attached(publishes=False)
    core.subscribe(EVERYTHING)
    (received,) = core.on_message(Deliveries(run(1, 5), (1,)))
    connect, *_ = attach(core)
    assert connect.resume == ()  # the application has none of it yet
    core.progress.take(received.serial)
    assert core.messages_to_send() == []
    assert core.on_message(Deliveries(run(1, 5), (1,))) == [Withheld(Deliveries(run(1, 5), (1,)))]
    assert core.messages_to_send() == [Acknowledge(THEIRS, 1, 5)]
    assert attach(core)[0].resume == ((1, ((THEIRS, 5),)),)


def test_a_duplicate_is_acknowledged_only_after_earlier_deliveries() -> None:
    core = attached(publishes=False)
    core.subscribe(EVERYTHING)
    core.messages_to_send()
    (received,) = core.on_message(Deliveries(run(1, 5), (1,)))
    assert core.on_message(Deliveries(run(2, 3), (1,))) == [Withheld(Deliveries(run(2, 3), (1,)))]
    assert core.progress.duplicates == 2
    assert core.messages_to_send() == []
    core.progress.take(received.serial)
    assert core.messages_to_send() == [Acknowledge(THEIRS, 1, 5), Acknowledge(THEIRS, 2, 3)]


def test_subscriptions_at_different_positions_receive_their_missing_events() -> None:
    core = attached(publishes=False)
    core.subscribe(EVERYTHING)
    core.subscribe(EVERYTHING)
    core.on_message(Deliveries(run(1, 4), (1,)))
    core.on_message(Deliveries(run(1, 2), (2,)))
    *withheld, received = core.on_message(Deliveries(run(1, 6), (1, 2)))
    told = [(list(d.run.sequences), d.subscriptions) for d in received.deliveries]
    assert told == [([3, 4], (2,)), ([5, 6], (1, 2))]
    kept = [(list(w.deliveries.run.sequences), w.deliveries.subscriptions) for w in withheld]
    assert kept == [([1, 2], (1, 2)), ([3, 4], (1,))]


@pytest.mark.parametrize(
    "message",
    [
        Deliveries(run(1, 1), (2,)),
        Subscribed(2, "started"),
        Refused("subscribe", 2, "", retry=True),
        Connected(None, 1),
        Connect(False, 1, 1, 0, ()),
    ],
)
def test_an_invalid_message_of_a_broker_is_refused(message: Any) -> None:
    core = attached(publishes=False)
    core.subscribe(EVERYTHING)
    with pytest.raises(RemoteProtocolError):
        core.on_message(message)


def test_nothing_may_be_delivered_before_the_client_is_connected() -> None:
    core = ClientCore("c", publishes=False)
    core.subscribe(EVERYTHING)
    core.on_established()
    with pytest.raises(RemoteProtocolError, match="before Connected"):
        core.on_message(Deliveries(run(1, 1), (1,)))


@pytest.mark.parametrize("seed", range(40))
def test_a_publisher_behind_a_bad_line_gets_everything_through_in_order(seed: int) -> None:
    """Sessions end anywhere, and acknowledgements arrive in any order and pieces.

    The broker must first receive publications in order and unchanged. At the end none is
    outstanding, and all have been completed once.
    """
    random = Random(seed)
    core = ClientCore("c", publishes=True)
    contents: dict[int, tuple[bytes, bytes]] = {}
    line: list[Any] = []
    arrived: dict[int, tuple[bytes, bytes]] = {}
    on_session: list[int] = []
    done: list[int] = []

    def publish() -> None:
        if random.random() < 0.5:
            blob, payload = random.randbytes(1), random.randbytes(random.randrange(4))
            contents[core.outgoing.publish(blob, payload)] = (blob, payload)
            return
        count = random.randrange(1, 60)
        table = [bytes([i]) for i in range(random.randrange(1, 5))]
        index = bytes(random.randrange(len(table)) for _ in range(count))
        payload = random.randbytes(2 * count)
        numbers = core.outgoing.publish_many(table, index, 2, payload)
        for place, number in enumerate(numbers):
            contents[number] = (table[index[place]], payload[2 * place : 2 * place + 2])

    def arrive(message: Any) -> None:
        for sequence, blob, payload in message.run.publications():
            if sequence not in arrived:
                assert not arrived or sequence == max(arrived) + 1, "a first copy out of order"
                arrived[sequence] = (blob, bytes(payload))
            on_session.append(sequence)

    def acknowledge() -> None:
        first = random.choice(on_session)
        last = first
        while last + 1 in on_session and random.random() < 0.9:
            last += 1
        for event in core.on_message(PublishAcknowledged(first, last)):
            done.extend(range(event.first, event.last + 1))

    for step in range(300):
        action = random.random()
        if not core.attached or action < 0.03:
            line.clear()
            on_session.clear()
            line += [m for m in attach(core) if isinstance(m, Publish)]
        elif action < 0.4 and step < 250:
            publish()
        elif action < 0.6:
            line += core.messages_to_send()
        elif action < 0.8 and line:
            arrive(line.pop(0))
        elif on_session:
            acknowledge()
    line.clear()
    on_session.clear()
    for message in attach(core):
        if isinstance(message, Publish):
            arrive(message)
    if on_session:
        last = max(on_session)
        for event in core.on_message(PublishAcknowledged(min(on_session), last)):
            done.extend(range(event.first, event.last + 1))
    assert arrived == contents
    assert len(core.outgoing) == 0
    assert sorted(done) == list(contents)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([THEIRS, OTHERS]),
            st.integers(1, 20),
            st.lists(st.integers(1, 3), min_size=1, max_size=6),
            st.sampled_from([(1,), (2,), (1, 2)]),
        ),
        max_size=12,
    )
)
def test_the_duplicate_check_of_runs_equals_that_of_single_publications(
    said: list[tuple[SourceId, int, list[int], tuple[int, ...]]],
) -> None:
    core = attached(publishes=False)
    core.subscribe(EVERYTHING)
    core.subscribe(EVERYTHING)
    expected: list[tuple[SourceId, int, int]] = []
    got: list[tuple[SourceId, int, int]] = []
    last: dict[tuple[int, SourceId], int] = {}
    for source, first, steps, numbers in said:
        sequences = tuple(first + sum(steps[:i]) for i in range(len(steps)))
        # Positions are raised once per message: within a message nothing is repeated.
        for sequence in sequences:
            expected += [
                (source, sequence, n) for n in numbers if sequence > last.get((n, source), 0)
            ]
        for n in numbers:
            last[n, source] = max(last.get((n, source), 0), sequences[-1])
        for event in core.on_message(Deliveries(run(0, 0, source, sequences), numbers)):
            if isinstance(event, Withheld):
                continue
            assert isinstance(event, Received)
            for item in event.deliveries:
                for sequence, _, payload in item.run.publications():
                    assert bytes(payload) == bytes([sequence % 256])
                    got += [(source, sequence, n) for n in item.subscriptions]
    assert got == expected


PARTITION = PartitionId(0, 1, 2, (1,))


def test_a_notice_is_announced_once_and_acknowledged_in_order() -> None:
    core = attached(publishes=False)
    core.subscribe(EVERYTHING)
    core.messages_to_send()
    (received,) = core.on_message(Deliveries(run(1, 2, OTHERS), (1,)))
    notice = Notice(1, THEIRS, ((1, 3), (5, 5)), PARTITION)
    assert core.on_message(notice) == [Announced(notice, received.serial + 1)]
    core.progress.take(received.serial)
    assert core.messages_to_send() == [Acknowledge(OTHERS, 1, 2)]
    core.progress.take(received.serial + 1)
    assert core.messages_to_send() == [Acknowledge(THEIRS, 1, 5)]
    longer = Notice(1, THEIRS, ((5, 5), (7, 8)), PARTITION)
    (announced,) = core.on_message(longer)
    assert announced.notice.ranges == ((7, 8),)


def test_a_repeated_notice_is_only_acknowledged() -> None:
    core = attached(publishes=False)
    core.subscribe(EVERYTHING)
    notice = Notice(1, THEIRS, ((1, 3),), PARTITION)
    (announced,) = core.on_message(notice)
    core.progress.take(announced.serial)
    attach(core)
    assert core.on_message(notice) == []
    assert core.messages_to_send() == [Acknowledge(THEIRS, 1, 3)]


def test_a_notice_for_a_mark_is_acknowledged_and_not_announced() -> None:
    core = attached()
    mark = core.mark()
    core.messages_to_send()
    partition = PartitionId(1, 1, 1, (2,))
    assert core.on_message(Notice(mark, THEIRS, ((1, 4),), partition)) == []
    assert core.messages_to_send() == [Acknowledge(THEIRS, 1, 4)]


@pytest.mark.parametrize("ranges", [(), ((0, 2),), ((3, 2),), ((4, 5), (1, 2))])
def test_a_notice_that_cannot_be_is_refused(ranges: tuple[tuple[int, int], ...]) -> None:
    core = attached(publishes=False)
    core.subscribe(EVERYTHING)
    with pytest.raises(RemoteProtocolError, match="notice"):
        core.on_message(Notice(1, THEIRS, ranges, PARTITION))


# ---------------------------------------------------------------- keeping and committing

REDELIVERS = Home("b0", "d", "p", may_lose=False, redelivers=True)


def keeping(home: Home, **options: Any) -> ClientCore:
    """Return an attached subscriber with a store and a saved state."""
    core = ClientCore("c", publishes=False, keeps_state=True, **options)
    core.move_to(home)
    core.subscribe(EVERYTHING)
    core.revision.on_saved(core.revision.current)
    attach(core)
    core.on_message(Subscribed(1, "started"))
    core.revision.on_saved(core.revision.current)
    return core


def given(core: ClientCore, *runs: PublicationRun) -> None:
    """Deliver these runs to the application."""
    for each in runs:
        (received,) = core.on_message(Deliveries(each, (1,)))
        core.progress.record_delivery(received.serial)


def marked(core: ClientCore, message: Deliveries) -> list[tuple[list[int], bool]]:
    return [
        (list(item.run.sequences), item.redelivered)
        for event in core.on_message(message)
        if isinstance(event, Received)
        for item in event.deliveries
    ]


def restarted(core: ClientCore) -> ClientCore:
    core.revision.on_saved(core.revision.current)
    again = restart(state_of(core), mode="explicit")
    attach(again)
    return again


def test_a_message_waits_until_its_state_is_saved() -> None:
    core = ClientCore("c", publishes=True, keeps_state=True)
    core.outgoing.publish(b"a", b"x")
    core.on_established()
    assert core.messages_to_send() == []
    core.revision.on_saved(core.revision.current)
    assert core.messages_to_send() == [Connect(True, 1, 1, 0, ())]
    core.on_message(Connected(OURS, 1))
    assert core.messages_to_send() == [], "a restart must know where it has published"
    version = core.revision.current
    core.outgoing.publish(b"a", b"y")
    core.revision.on_saved(version)
    assert published(core.messages_to_send()) == [1]
    core.revision.on_saved(core.revision.current)
    assert published(core.messages_to_send()) == [2]


def test_a_message_of_a_lost_session_is_not_sent() -> None:
    core = ClientCore("c", publishes=True, keeps_state=True)
    core.outgoing.publish(b"a", b"x")
    core.on_established()
    assert core.messages_to_send() == []
    core.on_lost()
    core.revision.on_saved(core.revision.current)
    assert core.messages_to_send() == []


def test_uncommitted_deliveries_are_redelivered_with_a_mark_if_guaranteed() -> None:
    core = keeping(REDELIVERS, mode="explicit")
    given(core, run(1, 5))
    assert core.progress.commit(1, THEIRS, 3)
    again = restarted(core)
    assert marked(again, Deliveries(run(1, 7), (1,))) == [([4, 5], True), ([6, 7], False)]


def test_redeliveries_are_marked_after_each_restart() -> None:
    core = keeping(REDELIVERS, mode="explicit")
    given(core, run(1, 5))
    again = restarted(core)
    given(again, run(1, 2))
    again = restarted(again)
    assert marked(again, Deliveries(run(1, 6), (1,))) == [([1, 2, 3, 4, 5], True), ([6], False)]


def test_uncommitted_deliveries_are_not_redelivered_without_the_guarantee() -> None:
    core = keeping(replace(REDELIVERS, redelivers=False), mode="explicit")
    given(core, run(1, 5))
    assert core.progress.commit(1, THEIRS, 3)
    again = restarted(core)
    assert marked(again, Deliveries(run(1, 7), (1,))) == [([6, 7], False)]


def test_unprocessed_deliveries_are_new_after_a_restart() -> None:
    core = keeping(REDELIVERS, mode="explicit")
    given(core, run(1, 2))
    core.on_message(Deliveries(run(3, 4), (1,)))
    again = restarted(core)
    assert marked(again, Deliveries(run(1, 4), (1,))) == [([1, 2], True), ([3, 4], False)]


def committing() -> ClientCore:
    core = ClientCore("c", publishes=False, mode="explicit")
    core.subscribe(EVERYTHING)
    core.subscribe(EVERYTHING)
    attach(core)
    return core


def test_a_shared_delivery_is_acknowledged_after_both_subscriptions_committed() -> None:
    core = committing()
    for message in (Deliveries(run(1, 2), (1, 2)), Deliveries(run(3, 4), (1,))):
        (received,) = core.on_message(message)
        core.progress.take(received.serial)
    assert core.progress.commit(1, THEIRS, 4)
    assert core.messages_to_send() == []
    assert core.progress.commit(2, THEIRS, 2)
    assert core.messages_to_send() == [Acknowledge(THEIRS, 1, 4)]


def test_a_commit_covers_earlier_deliveries_of_every_source() -> None:
    core = committing()
    given(core, run(1, 2), run(1, 3, OTHERS), run(3, 6))
    assert core.progress.commit(1, THEIRS, 4)
    assert core.messages_to_send() == [Acknowledge(THEIRS, 1, 2), Acknowledge(OTHERS, 1, 3)]
    assert core.progress.committed_positions(1) == ((THEIRS, 4), (OTHERS, 3))
    assert core.progress.commit(1, THEIRS, 6)
    assert core.messages_to_send() == [Acknowledge(THEIRS, 3, 6)]


def test_an_unreceived_delivery_cannot_be_committed() -> None:
    core = committing()
    given(core, run(1, 2))
    core.on_message(Deliveries(run(3, 4), (1,)))
    assert not core.progress.commit(1, THEIRS, 3)
    assert not core.progress.commit(2, THEIRS, 1)
    assert core.progress.committed_positions(1) == ()


def test_a_notice_behind_all_that_is_committed_needs_no_commit_of_its_own() -> None:
    core = committing()
    given(core, run(1, 2))
    (announced,) = core.on_message(Notice(1, OTHERS, ((1, 3),), PARTITION))
    core.progress.take(announced.serial)
    assert core.messages_to_send() == []
    assert core.progress.commit(1, THEIRS, 2)
    assert core.messages_to_send() == [Acknowledge(THEIRS, 1, 2), Acknowledge(OTHERS, 1, 3)]
    (announced,) = core.on_message(Notice(1, OTHERS, ((4, 5),), PARTITION))
    core.progress.take(announced.serial)
    assert core.messages_to_send() == [Acknowledge(OTHERS, 4, 5)]


def test_a_repeated_delivery_is_acknowledged_at_its_commit() -> None:
    core = committing()
    given(core, run(1, 4))
    attach(core)
    assert core.on_message(Deliveries(run(1, 4), (1,))) == [Withheld(Deliveries(run(1, 4), (1,)))]
    assert core.messages_to_send() == []
    assert core.progress.commit(1, THEIRS, 4)
    assert core.messages_to_send() == [Acknowledge(THEIRS, 1, 4)]


@pytest.mark.parametrize("seed", range(60))
def test_nothing_is_acknowledged_before_all_its_subscriptions_have_committed_it(seed: int) -> None:
    """Three subscriptions commit in any order; a plain table of deliveries is the twin."""
    random = Random(seed)
    core = committing()
    core.subscribe(EVERYTHING)
    core.messages_to_send()
    streams = (THEIRS, OTHERS)
    delivered: dict[tuple[StreamId, int], tuple[int, ...]] = {}
    acknowledged: list[tuple[StreamId, int]] = []
    last = dict.fromkeys(streams, 0)

    def note_acknowledged() -> None:
        for message in core.messages_to_send():
            assert isinstance(message, Acknowledge)
            for place in range(message.first, message.last + 1):
                for number in delivered.get((message.stream, place), ()):
                    reached = dict(core.progress.committed_positions(number)).get(message.stream, 0)
                    assert reached >= place, f"{message} before {number} has committed {place}"
                if (message.stream, place) in delivered:
                    acknowledged.append((message.stream, place))

    for _ in range(40):
        if random.random() < 0.5:
            stream = random.choice(streams)
            first = last[stream] + random.choice((1, 1, 2))
            last[stream] = first + random.randrange(3)
            numbers = tuple(sorted(random.sample((1, 2, 3), random.randrange(1, 4))))
            (received,) = core.on_message(Deliveries(run(first, last[stream], stream), numbers))
            for place in range(first, last[stream] + 1):
                delivered[stream, place] = numbers
            core.progress.take(received.serial)
        elif delivered:
            (stream, place), numbers = random.choice(list(delivered.items()))
            core.progress.commit(random.choice(numbers), stream, place)
        note_acknowledged()
    for (stream, place), numbers in delivered.items():
        for number in numbers:
            assert core.progress.commit(number, stream, place)
    note_acknowledged()
    assert sorted(acknowledged) == sorted(delivered)
