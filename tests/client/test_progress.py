"""Tests of a client whose positions are not origins: one stream, two alternating publishers.

The stream resembles a pubend's: positions rise with gaps, with silence between events.
"""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from brokerd.client.core import ClientCore
from brokerd.client.events import GapAnnounced, GapsAnnounced, Received, Withheld
from brokerd.client.received_positions import RANGE_LIMIT, SourceRanges
from brokerd.client.restart import restart, state_of
from brokerd.client.state import Home
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Connected,
    Deliveries,
    Gap,
    Silence,
    Subscribed,
)
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.losses import STATE_LOST, stream_marker
from brokerd.model.predicate import EVERYTHING
from brokerd.model.publication import PublicationRun
from tests.helpers.stream_runs import origin_runs

PUBEND = StreamId(5, 3, 1)
ANN, BOB = SourceId(1, 0, 1), SourceId(1, 1, 4)

# Position, publisher, its number.
TICKS = [
    (10, ANN, 1), (13, ANN, 2), (20, BOB, 1), (21, ANN, 3),
    (34, BOB, 5), (35, BOB, 6), (60, ANN, 9),
]  # fmt: skip


def ticks(*chosen: int) -> PublicationRun:
    """Return the events at these places of TICKS, as a broker sends them."""
    rows = [TICKS[place] for place in chosen]
    return PublicationRun(
        PUBEND,
        tuple(position for position, _, _ in rows),
        (b"a",),
        bytes(len(rows)),
        1,
        (bytes(chosen),),
        origin_runs([(source, number) for _, source, number in rows]),
    )


def connect(core: ClientCore) -> Connect:
    core.on_established()
    said, *_ = core.messages_to_send()
    core.on_message(Connected(None, 1))
    assert isinstance(said, Connect)
    return said


def client(**options: Any) -> ClientCore:
    core = ClientCore("c", publishes=False, **options)
    connect(core)
    core.subscribe(EVERYTHING)
    core.messages_to_send()
    return core


def said(events: list[Any]) -> list[tuple[SourceId, list[int]]]:
    """Return publishers and numbers of the received events, in order."""
    return [
        (item.run.source, list(item.run.sequences))
        for event in events
        if isinstance(event, Received)
        for item in event.deliveries
    ]


def test_the_application_receives_origins_and_the_broker_receives_positions():
    core = client()
    events = core.on_message(Deliveries(ticks(0, 1, 2, 3), (1,)))
    assert said(events) == [(ANN, [1, 2]), (BOB, [1]), (ANN, [3])]
    (received,) = events
    assert [item.run.place for item in received.deliveries] == [
        (PUBEND, (10, 13)), (PUBEND, (20,)), (PUBEND, (21,)),
    ]  # fmt: skip
    assert [bytes(piece) for item in received.deliveries for piece in item.run.payload] == [
        b"\0\1", b"\2", b"\3",
    ]  # fmt: skip
    core.progress.take(received.serial)
    assert core.messages_to_send() == [Acknowledge(PUBEND, 10, 21)]


def test_a_reconnected_client_resumes_at_its_position_and_withholds_duplicates():
    core = client()
    (received,) = core.on_message(Deliveries(ticks(0, 1, 2), (1,)))
    core.progress.take(received.serial)
    assert connect(core).resume == ((1, ((PUBEND, 20),)),)
    withheld, *rest = core.on_message(Deliveries(ticks(2, 3, 4), (1,)))
    assert isinstance(withheld, Withheld)
    assert (withheld.deliveries.run.source, list(withheld.deliveries.run.sequences)) == (BOB, [1])
    assert said(rest) == [(ANN, [3]), (BOB, [5])]
    assert core.progress.duplicates == 1


def test_a_lower_number_at_a_higher_place_is_no_duplicate():
    """The position decides; the origin serves the checker and hides nothing."""
    core = client()
    assert said(core.on_message(Deliveries(ticks(4), (1,)))) == [(BOB, [5])]
    again = PublicationRun(PUBEND, range(70, 71), (b"a",), b"\0", 0, (), origin_runs([(BOB, 2)]))
    assert said(core.on_message(Deliveries(again, (1,)))) == [(BOB, [2])]


def test_silence_advances_the_position_without_an_event():
    core = client()
    assert core.on_message(Silence((1,), PUBEND, 1, 9)) == []
    assert core.messages_to_send() == [Acknowledge(PUBEND, 1, 9)]
    (received,) = core.on_message(Deliveries(ticks(0), (1,)))
    assert core.on_message(Silence((1,), PUBEND, 11, 30)) == []
    assert core.messages_to_send() == []
    core.progress.take(received.serial)
    assert core.messages_to_send() == [Acknowledge(PUBEND, 10, 30)]
    assert connect(core).resume == ((1, ((PUBEND, 30),)),)


def test_a_gap_is_announced_once_by_origin_and_in_order():
    core = client()
    (before,) = core.on_message(Deliveries(ticks(0), (1,)))
    lost = Gap((1,), PUBEND, 11, 34, "released", ((ANN, 2, 3), (BOB, 1, 5)))
    (gaps,) = core.on_message(lost)
    assert gaps == GapsAnnounced(
        (GapAnnounced(1, ANN, 2, 3, "released"), GapAnnounced(1, BOB, 1, 5, "released")),
        before.serial + 1,
    )
    (after,) = core.on_message(Deliveries(ticks(5), (1,)))
    core.progress.take(before.serial)
    assert core.messages_to_send() == [Acknowledge(PUBEND, 10, 10)]
    core.progress.take(after.serial)
    assert core.messages_to_send() == [Acknowledge(PUBEND, 11, 35)]
    connect(core)
    assert core.on_message(lost) == []


def test_a_gap_by_origin_omits_delivered_publications():
    core = client()
    (before,) = core.on_message(Deliveries(ticks(0), (1,)))
    had = before.deliveries[0].run
    lost = Gap((1,), PUBEND, 11, 34, "released", ((had.source, 1, had.last + 4), (BOB, 1, 5)))
    (gaps,) = core.on_message(lost)
    assert {gap.source: (gap.first, gap.last) for gap in gaps.gaps} == {
        had.source: (had.last + 1, had.last + 4),
        BOB: (1, 5),
    }
    (more,) = core.on_message(replace(lost, first=40, last=50, origins=((BOB, 1, 7),)))
    assert [(gap.first, gap.last) for gap in more.gaps] == [(6, 7)]


def test_a_publication_that_is_published_again_after_a_loss_is_withheld():
    """The broker lost it before the acknowledgement; the repetition has another position."""
    core = client()
    core.on_message(Deliveries(ticks(0, 1), (1,)))
    core.on_message(Gap((1,), PUBEND, 14, 14, STATE_LOST))
    again = replace(ticks(0, 1, 2), sequences=(15, 16, 20), attribute_index=bytes(3))
    told = core.on_message(Deliveries(again, (1,)))
    withheld = [each.deliveries.run.sequences for each in told if isinstance(each, Withheld)]
    assert [[*each] for each in withheld] == [[1, 2]]
    (received,) = [each for each in told if isinstance(each, Received)]
    assert [item.run.source for item in received.deliveries] == [BOB]
    core.progress.take(received.serial)
    assert core.messages_to_send() == [Acknowledge(PUBEND, 10, 20)]


def test_a_stream_marker_in_a_gap_is_lost_state_once():
    """The marker was released with other publications before this client received it."""
    core = client()
    marker = stream_marker(5, 1_000_000, 3, 4).source
    lost = Gap((1,), PUBEND, 11, 34, "released", ((ANN, 1, 3), (marker, 1, 1)))
    (gaps,) = core.on_message(lost)
    assert gaps.gaps == (
        GapAnnounced(1, ANN, 1, 3, "released"),
        GapAnnounced(1, PUBEND, 11, 34, STATE_LOST),
    )
    assert core.on_message(replace(lost, last=40)) == []


def survivor(position: int, sequence: int) -> Deliveries:
    """Return the delivery of one publication of Ann."""
    placed = origin_runs([(ANN, sequence)])
    run = PublicationRun(PUBEND, (position,), (b"a",), b"\0", 1, (b"",), origins=placed)
    return Deliveries(run, (1,))


@pytest.mark.parametrize("unknown", [True, False], ids=["by its marker", "by its positions"])
def test_a_gap_has_the_numbers_between_survivors_of_a_loss(unknown):
    """Survivors in caches arrive before the gap that names the numbers of the loss."""
    core = client()
    marker = stream_marker(5, 1_000_000, 3, 4).source
    core.on_message(Deliveries(ticks(0, 1), (1,)))
    placed = ((ANN, 1, 3), (marker, 1, 1)) if unknown else ()
    core.on_message(Gap((1,), PUBEND, 14, 39, "released" if unknown else STATE_LOST, placed))
    core.on_message(survivor(40, 7))
    core.on_message(survivor(44, 9))
    core.on_message(Gap((1,), PUBEND, 45, 49, "released", ((marker, 1, 1),)))
    core.on_message(survivor(50, 12))
    (gaps,) = core.on_message(Gap((1,), PUBEND, 60, 60, STATE_LOST, ((ANN, 2, 20),)))
    assert [(gap.source, gap.first, gap.last) for gap in gaps.gaps] == [
        (ANN, 4 if unknown else 3, 6),
        (ANN, 10, 11),
        (ANN, 13, 20),
    ]
    assert core.on_message(Gap((1,), PUBEND, 61, 61, STATE_LOST, ((ANN, 2, 20),))) == []
    core.on_message(survivor(62, 25))
    (gaps,) = core.on_message(Gap((1,), PUBEND, 63, 63, STATE_LOST, ((ANN, 2, 26),)))
    assert [(gap.first, gap.last) for gap in gaps.gaps][-1] == (26, 26)


def test_ranges_of_a_source_are_bounded():
    """The earliest are joined; the later ones are exact."""
    ranges, run = SourceRanges(), survivor(1, 1).run
    for number in range(10, 1000 * RANGE_LIMIT, 10):
        own = PublicationRun(ANN, (number,), run.attribute_table, b"\0", 1, (b"",))
        ranges.extend(1, PUBEND, own)
        ranges.on_loss(1, PUBEND)
    missing = ranges.add_gap(1, PUBEND, ANN, (1, number))
    assert len(missing) == RANGE_LIMIT - 1
    assert missing[-1] == (number - 9, number - 1)
    assert ranges.add_gap(1, PUBEND, ANN, (1, number)) == []


def test_a_gap_in_a_source_omits_delivered_publications():
    core = client()
    run = PublicationRun(ANN, range(1, 4), (b"a",), bytes(3), 0, ())
    core.on_message(Deliveries(run, (1,)))
    (gaps,) = core.on_message(Gap((1,), ANN, 2, 7, "released"))
    assert gaps.gaps == (GapAnnounced(1, ANN, 4, 7, "released"),)
    assert core.on_message(Gap((1,), ANN, 2, 7, "released")) == []


@pytest.mark.parametrize(
    "message",
    [
        Gap((1,), PUBEND, 9, 8, "released"),
        Gap((1,), PUBEND, 8, 9, "released", ((ANN, 3, 2),)),
        Gap((2,), PUBEND, 8, 9, "released"),
        Silence((1,), PUBEND, 9, 8),
        Silence((2,), PUBEND, 8, 9),
    ],
)
def test_a_gap_or_silence_of_no_sense_ends_the_session(message):
    with pytest.raises(RemoteProtocolError):
        client().on_message(message)


def test_a_publication_is_committed_where_it_stands_and_not_in_another_stream():
    """A source may be in several streams without a common order; the last delivery decides."""
    core = client(mode="explicit")
    other = StreamId(6, 1, 0)
    later = PublicationRun(other, (7,), (b"a",), b"\0", 0, (), origin_runs([(ANN, 5)]))
    core.on_message(Deliveries(later, (1,)))
    core.on_message(Deliveries(ticks(0), (1,)))
    core.progress.record_delivery(2)
    assert core.progress.commit(1, ANN, 5)
    assert core.progress.committed_positions(1) == ((other, 7),)
    assert core.progress.commit(1, ANN, 1)
    assert core.progress.committed_positions(1) == ((PUBEND, 10), (other, 7))


def test_a_commit_by_origin_acknowledges_all_earlier_positions():
    core = client(mode="explicit")
    (one,) = core.on_message(Deliveries(ticks(0, 1, 2), (1,)))
    core.on_message(Silence((1,), PUBEND, 21, 21))
    (two,) = core.on_message(Deliveries(ticks(4, 5, 6), (1,)))
    assert not core.progress.commit(1, BOB, 1)  # it was not given yet
    core.progress.take(one.serial)
    core.progress.take(two.serial)
    assert core.messages_to_send() == []
    assert core.progress.commit(1, BOB, 5)
    assert core.progress.committed_positions(1) == ((PUBEND, 34),)
    assert core.messages_to_send() == [Acknowledge(PUBEND, 10, 21)]
    assert core.progress.commit(1, ANN, 2)  # is done already
    assert core.progress.commit(1, ANN, 9)
    assert core.messages_to_send() == [Acknowledge(PUBEND, 34, 60)]
    assert not core.progress.commit(1, ANN, 10)


def test_a_restarted_client_resumes_at_its_position_and_marks_redeliveries():
    core = client(keeps_state=True, mode="explicit")
    core.move_to(Home("b", "d1", "p", may_lose=False, redelivers=True))
    (one,) = core.on_message(Deliveries(ticks(0, 1, 2, 3), (1,)))
    core.progress.take(one.serial)
    core.progress.commit(1, ANN, 2)
    again = restart(state_of(core), mode="explicit")
    again.revision.on_saved(again.revision.current)
    assert connect(again).resume == ((1, ((PUBEND, 13),)),)
    (received,) = again.on_message(Deliveries(ticks(2, 3, 4), (1,)))
    assert [(item.run.source, item.redelivered) for item in received.deliveries] == [
        (BOB, True), (ANN, True), (BOB, False),
    ]  # fmt: skip


def test_a_new_subscription_starts_behind_the_reported_positions():
    core = client()
    core.on_message(Subscribed(1, "started", ((PUBEND, 12),)))
    assert connect(core).resume == ((1, ((PUBEND, 12),)),)
    assert said(core.on_message(Deliveries(ticks(0, 1), (1,)))) == [(ANN, [2])]


def successor(core: ClientCore, begins_after: int) -> ClientCore:
    """Return the client at another broker, with a subscription that starts behind a position."""
    other = core.successor()
    connect(other)
    other.on_message(Subscribed(1, "started", ((PUBEND, begins_after),)))
    return other


@pytest.mark.parametrize("begins_after, goes_on_behind", [(12, 20), (34, 34)])
def test_a_moved_client_resumes_behind_its_progress_and_its_new_start(
    begins_after: int, goes_on_behind: int
) -> None:
    core = client()
    (received,) = core.on_message(Deliveries(ticks(0, 1, 2), (1,)))
    core.progress.take(received.serial)
    other = successor(core, begins_after)
    other.take_over(core)
    assert connect(other).resume == ((1, ((PUBEND, goes_on_behind),)),)


def test_a_new_subscription_after_a_move_ignores_the_positions_of_the_mark() -> None:
    core = client()
    other = successor(core, 12)
    mark = core.mark()
    core.on_message(Subscribed(mark, "started", ((PUBEND, 60),)))
    other.take_over(core)
    number = other.subscribe(EVERYTHING)
    assert number == mark
    assert connect(other).resume == ((1, ((PUBEND, 12),)),)
    assert said(other.on_message(Deliveries(ticks(4), (number,)))) == [(BOB, [5])]


@pytest.mark.parametrize("seed", range(30))
def test_each_event_is_delivered_once_and_in_stream_order_through_random_breaks(seed):
    """The broker keeps the whole stream, and sends from the reported position of the client."""
    random = Random(seed)
    core, given = client(), []
    place = 0
    for _ in range(200):
        if random.random() < 0.15:
            resume = dict(connect(core).resume)
            reached = dict(resume.get(1, ())).get(PUBEND, 0)
            place = sum(position <= reached for position, _, _ in TICKS)
            continue
        if place == len(TICKS):
            break
        until = random.randint(place + 1, len(TICKS))
        chosen = range(place, until)
        events = core.on_message(Deliveries(ticks(*chosen), (1,)))
        if (
            until < len(TICKS)
            and TICKS[until][0] > TICKS[until - 1][0] + 1
            and random.random() < 0.5
        ):
            core.on_message(Silence((1,), PUBEND, TICKS[until - 1][0] + 1, TICKS[until][0] - 1))
        place = until
        for event in events:
            if isinstance(event, Received):
                given += [(i.run.source, n) for i in event.deliveries for n in i.run.sequences]
                if random.random() < 0.7:
                    core.progress.take(event.serial)
        core.messages_to_send()
    assert given == [(source, number) for _, source, number in TICKS], f"seed {seed}"
