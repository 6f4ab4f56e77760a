"""Tests of delivered, committed and received positions on objects: ends, moves, single arrivals."""

import weakref
from random import Random
from typing import Any

import pytest

from brokerd.client.commitment import ArrivalPart, Commitment
from brokerd.client.outgoing import RUN_LIMIT_PUBLICATIONS, SHORT_RUN, merge_short, split_by_size
from brokerd.client.received_positions import ReceivedPositions
from brokerd.client.state import KeptSubscription, Revision
from brokerd.model.client_messages import Acknowledge, Deliveries, Gap
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.losses import STATE_LOST
from brokerd.model.predicate import EVERYTHING, Predicate
from brokerd.model.publication import PublicationRun
from tests.client.test_progress import ANN, BOB, PUBEND, ticks
from tests.client.test_window import run as own_run
from tests.model.test_publication import contents

STREAM, OTHER = StreamId(1, 0, 1), StreamId(2, 0, 1)
FIRST, SECOND = 7, 8
"""Numbers of two subscriptions."""


def commitment(*wanted: int) -> tuple[Commitment, dict[int, Predicate]]:
    """Return the commitment of a client in a session, and its subscriptions."""
    present: dict[int, Predicate] = dict.fromkeys(wanted, EVERYTHING)
    found = Commitment(present, Revision(is_kept=True))
    found.attach()
    return found, present


def arrive(client: Commitment, first: int, last: int, *numbers: int, **options: Any) -> None:
    """Add an arrival that the application receives."""
    options = {"stream": STREAM, "is_new": True, **options}
    client.put(options.pop("stream"), first, last, numbers, **options)


def mentions(thing: object, number: int) -> list[str]:
    """Return the attributes that are mappings with a key of a subscription."""
    attributes = vars(thing)
    if isinstance(thing, ReceivedPositions):
        attributes = attributes | vars(thing._origins)
    return [
        name
        for name, value in attributes.items()
        if isinstance(value, dict) and name != "_wanted"
        if any(key == number or (isinstance(key, tuple) and key[0] == number) for key in value)
    ]


# ---------------------------------------------------------------- ends


def test_an_ended_subscription_is_in_no_position() -> None:
    client, wanted = commitment(FIRST, SECOND)
    client.delivered_before[FIRST, STREAM] = 1
    arrive(client, 10, 21, FIRST, SECOND, stream=PUBEND, placed=ticks(0, 1, 2, 3))
    client.deliver(1)
    client.commit(FIRST, ANN, 3)
    assert len(mentions(client, FIRST)) == 4
    del wanted[FIRST]
    client.forget(FIRST)
    assert mentions(client, FIRST) == []
    assert mentions(client, SECOND) != []


@pytest.mark.parametrize("keeps", [1, 2, 3])
def test_a_client_that_moves_keeps_predecessors_with_uncommitted_arrivals_alone(keeps: int) -> None:
    """The next broker delivers an arrival again, and the application commits the arrival there."""
    client, wanted = commitment(FIRST)
    kept: list[weakref.ref[Commitment]] = []
    for move in range(1, 5):
        arrive(client, move, move, FIRST)
        client.deliver(1)
        kept.append(weakref.ref(client))
        following = Commitment(wanted, Revision(is_kept=True))
        following.attach()
        following.take_over(client)
        if move < keeps:
            arrive(following, move, move, FIRST, is_new=False)
            following.take(0)
        client = following
    assert [each() is not None for each in kept] == [move >= keeps for move in range(1, 5)]
    assert client.was_delivered(FIRST, STREAM, 4)


def test_deliveries_after_the_end_of_a_subscription_leave_no_position() -> None:
    client, wanted = commitment(FIRST, SECOND)
    arrive(client, 1, 3, FIRST, SECOND)
    del wanted[FIRST]
    client.forget(FIRST)
    client.deliver(1)
    client.take(1)
    assert mentions(client, FIRST) == []
    assert client.committed(SECOND) == ((STREAM, 3),)
    assert client.acknowledgements() == [Acknowledge(STREAM, 1, 3)]


def lossy() -> tuple[ReceivedPositions, dict[int, Predicate]]:
    """Return the received positions of two subscriptions after a loss of state."""
    wanted: dict[int, Predicate] = {FIRST: EVERYTHING, SECOND: EVERYTHING}
    client = ReceivedPositions(wanted)
    message = Deliveries(ticks(0, 1, 2), (FIRST, SECOND))
    fresh, _ = client.new_deliveries(message)
    client.new_deliveries(message)
    client.record_origins(PUBEND, [Deliveries(own, (FIRST, SECOND)) for own in origins(fresh[0])])
    client.new_gaps(
        Gap((FIRST, SECOND), PUBEND, 21, 30, STATE_LOST, ((ANN, 3, 3),)), (FIRST, SECOND)
    )
    client.new_gaps(Gap((FIRST, SECOND), PUBEND, 31, 33, STATE_LOST), (FIRST, SECOND))
    survivor = Deliveries(ticks(5), (FIRST, SECOND))
    fresh, _ = client.new_deliveries(survivor)
    client.record_origins(PUBEND, [Deliveries(own, (FIRST, SECOND)) for own in origins(fresh[0])])
    return client, wanted


def origins(message: Deliveries) -> list[PublicationRun]:
    """Return a run with the same sources and numbers, for each source."""
    return [
        PublicationRun(each.source, each.sequences, (b"",), bytes(len(each.sequences)), 0, ())
        for each in message.run.origins
    ]


def test_an_ended_subscription_has_received_nothing() -> None:
    client, wanted = lossy()
    assert len(mentions(client, FIRST)) == 6
    del wanted[FIRST]
    client.forget(FIRST)
    assert mentions(client, FIRST) == []
    assert len(mentions(client, SECOND)) == 6


def test_only_a_later_start_is_a_change() -> None:
    client, wanted = commitment(FIRST)
    received = ReceivedPositions(wanted)
    assert client.begin_after(FIRST, STREAM, 0) == 2
    for last, is_later in ((5, True), (5, False), (4, False), (6, True)):
        assert client.begin_after(FIRST, STREAM, last) == 2 * is_later
        assert received.begin_after(FIRST, STREAM, last) == is_later


# ---------------------------------------------------------------- restarts


@pytest.mark.parametrize("delivered", [4, 12])
def test_a_restart_continues_behind_the_later_position(delivered: int) -> None:
    """Silence is committed without a delivery."""
    kept = KeptSubscription(FIRST, EVERYTHING, True, ((STREAM, 9),), ((STREAM, delivered),))
    client, _ = commitment(FIRST)
    client.restore((kept,), redelivers=False)
    assert client.committed(FIRST) == ((STREAM, max(9, delivered)),)
    client, _ = commitment(FIRST)
    client.restore((kept,), redelivers=True)
    assert client.committed(FIRST) == ((STREAM, 9),)


# ---------------------------------------------------------------- parts of arrivals


def test_a_part_of_an_arrival_is_delivered_and_committed_without_the_rest() -> None:
    client, _ = commitment(FIRST, SECOND)
    arrive(client, 1, 3, FIRST)
    arrive(client, 4, 9, FIRST, SECOND)
    client.deliver_part(ArrivalPart(2, STREAM, 6, (FIRST, SECOND)))
    assert client.delivered(FIRST) == client.delivered(SECOND) == ((STREAM, 6),)
    assert client.was_delivered(FIRST, STREAM, 6)
    assert not client.was_delivered(FIRST, STREAM, 7)
    client.commit(FIRST, STREAM, 5)
    assert client.committed(FIRST) == ((STREAM, 5),)
    assert client.acknowledgements() == [Acknowledge(STREAM, 1, 3)]
    client.deliver(2)
    assert client.delivered(SECOND) == ((STREAM, 9),)
    client.take(2)
    assert client.acknowledgements() == [Acknowledge(STREAM, 4, 9)]


def test_a_part_of_a_shared_stream_is_delivered_up_to_its_place() -> None:
    client, _ = commitment(FIRST)
    arrive(client, 10, 21, FIRST, stream=PUBEND, placed=ticks(0, 1, 2, 3))
    places = ticks(0, 1, 2, 3)
    (source, sequences), *_ = places.origins
    client.deliver_part(ArrivalPart(1, source, sequences[0], (FIRST,)))
    assert client.delivered(FIRST) == ((PUBEND, places.sequences[0]),)
    assert client.was_delivered(FIRST, source, sequences[0])
    assert not client.was_delivered(FIRST, source, sequences[0] + 1)


# ---------------------------------------------------------------- moves


def test_a_successor_recognises_what_its_predecessor_received() -> None:
    predecessor, wanted = lossy()
    assert predecessor.duplicates == 6
    successor = ReceivedPositions(wanted)
    successor.duplicates = 1
    successor.take_over(predecessor)
    assert successor.duplicates == 7
    for client in (predecessor, successor):
        client.duplicates = 0
        again = PublicationRun(
            PUBEND, (40,), (b"",), bytes(1), 0, (), origins=ticks(1).origins
        )  # published again, at another position
        fresh, repeated = client.new_deliveries(Deliveries(again, (FIRST,)))
        assert (fresh, len(repeated), client.duplicates) == ((), 1, 1)
        gaps = client.new_gaps(Gap((FIRST,), PUBEND, 50, 60, "silence", ((BOB, 1, 2),)), (FIRST,))
        assert [(gap.source, gap.first, gap.last) for gap in gaps] == [(BOB, 2, 2)]
        gaps = client.new_gaps(Gap((FIRST,), PUBEND, 61, 61, STATE_LOST, ((BOB, 2, 8),)), (FIRST,))
        assert [(gap.first, gap.last) for gap in gaps] == [(3, 5), (7, 8)]


def test_a_successor_has_nothing_of_subscriptions_that_it_does_not_have() -> None:
    predecessor, _ = lossy()
    successor = ReceivedPositions({SECOND: EVERYTHING})
    successor.take_over(predecessor)
    assert mentions(successor, FIRST) == []
    assert mentions(successor, SECOND) == mentions(predecessor, SECOND)


# ---------------------------------------------------------------- commits


def test_a_consumed_arrival_commits_all_before_it_and_itself_up_to_the_publication() -> None:
    client, _ = commitment(FIRST)
    arrive(client, 1, 4, FIRST)
    arrive(client, 1, 3, FIRST, stream=OTHER)
    arrive(client, 10, 34, FIRST, stream=PUBEND, placed=ticks(0, 1, 2, 3, 4))
    arrive(client, 5, 9, FIRST)
    client.deliver(4)
    client.commit_consumed(FIRST, 3, ANN, 2)
    assert client.committed(FIRST) == ((STREAM, 4), (OTHER, 3), (PUBEND, 13))
    assert client.acknowledgements() == [Acknowledge(STREAM, 1, 4), Acknowledge(OTHER, 1, 3)]
    client.commit_consumed(FIRST, 3, BOB, 5)
    assert client.committed(FIRST) == ((STREAM, 4), (OTHER, 3), (PUBEND, 34))
    client.commit_consumed(FIRST, 4, SourceId(*STREAM), 7)
    assert client.committed(FIRST)[0] == (STREAM, 7)


@pytest.mark.parametrize("seed", range(8))
def test_positions_are_those_of_a_list_of_publications(seed: int) -> None:
    """The twin has each publication of its own, and commits publication by publication."""
    random = Random(seed)
    client, wanted = commitment(FIRST, SECOND)
    arrivals: list[tuple[StreamId, int, int, tuple[int, ...]]] = []
    given = 0
    done: dict[tuple[int, StreamId], int] = {}
    acknowledged: set[tuple[StreamId, int]] = set()
    ends = {STREAM: 0, OTHER: 0}

    def commit_through(serial: int, numbers: tuple[int, ...], last: int | None = None) -> None:
        for place, (stream, _, end, those) in enumerate(arrivals[:serial], start=1):
            upto = last if last is not None and place == serial else end
            for number in those:
                if number in numbers and number in wanted:
                    done[number, stream] = max(done.get((number, stream), 0), upto)

    for _ in range(60):
        act = random.randrange(6)
        if act < 2:
            stream = random.choice((STREAM, OTHER))
            first = ends[stream] + random.choice((1, 1, 3))
            ends[stream] = last = first + random.randrange(3)
            numbers = random.choice(((FIRST,), (SECOND,), (FIRST, SECOND)))
            arrive(client, first, last, *numbers, stream=stream)
            arrivals.append((stream, first, last, numbers))
        elif act == 2:
            given = random.randint(given, len(arrivals))
            client.deliver(given)
        elif act == 3 and given:
            client.commit_through(given)
            commit_through(given, (FIRST, SECOND))
        elif act == 4 and given:
            serial, number = random.randint(1, given), random.choice((FIRST, SECOND))
            stream, first, last, those = arrivals[serial - 1]
            if number in those:
                upto = random.randint(first, last)
                client.commit_consumed(number, serial, SourceId(*stream), upto)
                commit_through(serial, (number,), upto)
        elif act == 5 and random.random() < 0.1 and SECOND in wanted:
            del wanted[SECOND]
            client.forget(SECOND)
            done = {key: last for key, last in done.items() if key[0] != SECOND}
        for number in wanted:
            assert dict(client.committed(number)) == {
                stream: last for (each, stream), last in done.items() if each == number
            }
        for each in client.acknowledgements():
            acknowledged.update((each.stream, n) for n in range(each.first, each.last + 1))
        for stream, _, last, those in arrivals:
            is_due = all(done.get((n, stream), 0) >= last for n in those if n in wanted)
            if not is_due and any(n in wanted for n in those):
                assert (stream, last) not in acknowledged
    client.deliver(len(arrivals))
    client.commit_through(len(arrivals))
    for each in client.acknowledgements():
        acknowledged.update((each.stream, n) for n in range(each.first, each.last + 1))
    assert {(stream, n) for stream, a, b, _ in arrivals for n in range(a, b + 1)} <= acknowledged
    assert len(client) == 0


# ---------------------------------------------------------------- runs of a window


def test_a_run_that_fits_a_frame_is_sent_whole_and_a_longer_one_in_halves() -> None:
    whole = own_run(1, 9)
    assert split_by_size(whole) == [whole]
    longest = own_run(1, RUN_LIMIT_PUBLICATIONS)
    assert split_by_size(longest) == [longest]
    parts = split_by_size(own_run(1, RUN_LIMIT_PUBLICATIONS + 2))
    assert [len(part) for part in parts] == 2 * [RUN_LIMIT_PUBLICATIONS // 2 + 1]


def test_short_runs_are_joined_up_to_the_limit_of_a_frame_and_long_ones_stay() -> None:
    long = [own_run(1, SHORT_RUN), own_run(SHORT_RUN + 1, SHORT_RUN)]
    assert merge_short(long) is long
    single = [own_run(1)]
    assert merge_short(single) is single
    # The average is short, and two long runs do not fit one frame together.
    half = RUN_LIMIT_PUBLICATIONS // 2
    runs = [own_run(1, half + 1), own_run(half + 2, half)]
    runs += [own_run(2 * half + 2 + number) for number in range(half)]
    merged = merge_short(runs)
    assert [len(run) for run in merged] == [half + 1, 2 * half]
    assert [each for run in merged for each in contents(run)] == [
        each for run in runs for each in contents(run)
    ]
