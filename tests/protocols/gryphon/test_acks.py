"""A batch of acks has the changes since the last batch, once for every neighbour."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import StreamId
from brokerd.protocols.gryphon.acknowledgements import (
    ACKS,
    UNWANTED,
    Acknowledgements,
    OverdueAcks,
)
from brokerd.protocols.gryphon.knowledge import LAST_TICK
from brokerd.protocols.gryphon.messages import EVERYWHERE, AckExpected, Done
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.interface import Send
from brokerd.protocols.parts.deadlines import DeadlineQueue
from tests.helpers.stream_runs import run_at

INTERVAL_NS = 100
CELL, ABOVE, BELOW = 1, 0, 2
PARENT, SIBLINGS = 10, (21, 22)


class Member:
    """A broker in a cell of three, with one upstream neighbour and its streams."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.deadlines: DeadlineQueue[Any] = DeadlineQueue()
        self.streams: list[Any] = []
        routes: Any = SimpleNamespace(
            cell=CELL, peers=SIBLINGS, cells=(ABOVE, BELOW),
            cell_of=lambda peer: CELL if peer in SIBLINGS else ABOVE,
        )  # fmt: skip
        links: Any = SimpleNamespace(up=lambda *_, **__: (PARENT,), senders={})
        parameters = GryphonParameters(ack_interval_ns=INTERVAL_NS)
        filters, streams = SimpleNamespace(is_on=False), self.streams
        self.acks = Acknowledgements(
            routes,
            parameters,
            streams,
            filters,
            links,
            self.deadlines,
            {},  # type: ignore[arg-type]
        )

    def stream(self, number: int, upstream: int | None = ABOVE) -> Any:
        final = SimpleNamespace(final=5)
        return SimpleNamespace(
            identity=StreamId(9, number, 0), upstream=upstream, via=None, knowledge=final,
            children={BELOW}, acknowledged_by=lambda _: 7,
        )  # fmt: skip

    def batch(self) -> list[tuple[int, Done]]:
        """Return the messages of the next batch; an empty list without a deadline."""
        due_ns = self.deadlines.earliest()
        if due_ns is None:
            return []
        assert due_ns == self.now_ns + INTERVAL_NS
        self.now_ns = due_ns
        assert self.deadlines.due(due_ns) == [(ACKS, None)]
        effects = self.acks.flush()
        return [(each.peer, each.message) for each in effects if isinstance(each, Send)]


@pytest.mark.parametrize("times", [1, 2, 4])
def test_each_ack_is_in_one_batch(times: int) -> None:
    member = Member()
    one, other = member.stream(1), member.stream(2)
    for _ in range(times):
        member.acks.add_final(one, member.now_ns)
        member.acks.add_final(one, member.now_ns)
        assert member.batch() == [(PARENT, Done(CELL, ((one.identity, 5),)))]
        assert member.batch() == []
        member.acks.add_done(other, BELOW, member.now_ns)
        done = Done(BELOW, ((other.identity, 7),))
        assert member.batch() == [(peer, done) for peer in SIBLINGS]
        assert member.batch() == []
        member.acks.add_final(other, member.now_ns)
        assert member.batch() == [(PARENT, Done(CELL, ((other.identity, 5),)))]


def test_a_final_tick_ends_at_its_pubend() -> None:
    member = Member()
    own = Stream(StreamId(9, 1, 0), None, (), GryphonParameters())
    own.subend.position = 5
    assert member.acks.settle(own, member.now_ns), "its log may be released"
    assert not member.acks.settle(own, member.now_ns), "once"
    assert member.batch() == []


def test_a_neighbour_with_a_new_session_gets_all_that_is_its_own() -> None:
    member = Member()
    member.streams += [member.stream(1), member.stream(2, upstream=BELOW)]
    (sent,) = member.acks.resend(PARENT)
    assert sent == Send(PARENT, Done(CELL, ((member.streams[0].identity, 5),)))


@pytest.mark.parametrize("times", [1, 2])
def test_a_peer_with_a_new_session_gets_the_acks_of_all_cells_below(times: int) -> None:
    """The acks that were sent before are lost with the session, and no batch repeats them."""
    member = Member()
    one, other, above = (member.stream(number) for number in (1, 2, 3))
    member.streams += [one, other, above]
    above.children, other.children = {ABOVE}, {ABOVE, BELOW}
    member.acks.add_done(one, BELOW, 0)
    member.batch()
    for peer in SIBLINGS * times:
        found = {each.message.cell: each.message.through for each in member.acks.resend(peer)
                 if isinstance(each, Send) and each.peer == peer}  # fmt: skip
        assert found == {
            BELOW: ((one.identity, 7), (other.identity, 7)),
            ABOVE: ((other.identity, 7), (above.identity, 7)),
        }


# ---------------------------------------------------------------- cells and filters


class Filters:
    """Filters by which the cell below wants some ticks only."""

    def __init__(self, wanted: tuple[int, ...], *, is_on: bool) -> None:
        self.is_on, self.changes, self.matches, self._wanted = is_on, 0, 0, wanted

    def first_wanted(self, events: Any, _: int, after: int) -> int | None:
        self.matches += 1
        return next((tick for tick in events.ticks(after + 1, 99) if tick in self._wanted), None)

    def select(self, run: Any) -> Any:
        places = [place for place, tick in enumerate(run.sequences) if tick in self._wanted]
        return SimpleNamespace(wanted=lambda _: run.select(places) if places else None)


def between(
    *wanted: int, is_on: bool = True, deadlines: DeadlineQueue[Any] | None = None
) -> tuple[Acknowledgements, Stream]:
    """Return a broker between two cells, which knows ticks 1 to 9 but for 4, with events 3 to 8."""
    routes: Any = SimpleNamespace(
        cell=CELL,
        cells=(ABOVE, BELOW),
        peers=SIBLINGS,
        cell_by_broker={PARENT: ABOVE, SIBLINGS[0]: CELL, 30: BELOW},
    )
    filters: Any = Filters(wanted, is_on=is_on)
    parameters = GryphonParameters()
    stream = Stream(StreamId(9, 1, 0), ABOVE, (BELOW,), parameters)
    stream.knowledge.accumulate(1, 4, run_at([3]))
    stream.knowledge.accumulate(5, 10, run_at([5, 6, 7, 8]))
    streams: Any = {stream.identity: stream}
    links: Any = SimpleNamespace(
        senders={9: (PARENT,)},
        targets=lambda _, children, __: [(cell, ((30, EVERYWHERE),)) for cell in children],
    )
    counters = {"acks_expected": 0}
    acks = Acknowledgements(
        routes, parameters, streams, filters, links, deadlines or DeadlineQueue(), counters
    )
    return acks, stream


@pytest.mark.parametrize(
    "wanted, is_on, through", [((3,), True, 2), ((), True, 3), ((8,), True, 3), ((), False, 0)]
)
def test_unwanted_ticks_are_acknowledged_for_a_cell_with_filters_only(
    wanted: tuple[int, ...], is_on: bool, through: int
) -> None:
    acks, stream = between(*wanted, is_on=is_on)
    acks.settle(stream, 0)
    assert stream.acknowledged_by(BELOW) == through


def test_behind_an_unknown_tick_only_wanted_events_are_kept() -> None:
    acks, stream = between(6)
    stream.subend.position = 7
    stream.note_done(BELOW, 3)
    assert stream.is_held_up
    acks.release_unwanted(stream)
    assert [*stream.knowledge.events.ticks(0, 99)] == [6, 8], "8 is not delivered here"
    stream.note_done(BELOW, 6)
    acks.release_unwanted(stream)
    assert [*stream.knowledge.events.ticks(0, 99)] == [8]
    acks, stream = between()
    stream.subend.position = 7
    acks.release_unwanted(stream)
    assert [*stream.knowledge.events.ticks(0, 99)] == [8]


@pytest.mark.parametrize("peer, asked", [(30, [(8, 12)]), (SIBLINGS[0], [(4, 12)])])
def test_an_ack_answers_the_nacks_of_its_own_cell(peer: int, asked: list[tuple[int, int]]) -> None:
    """A member of this cell forwards the ack of the cell below, and still needs the events."""
    acks, stream = between(3, 5, 6, 7, 8)
    stream.want(peer, [(4, 12)])
    assert [*acks.on_done(peer, Done(BELOW, ((stream.identity, 7),)), 0)] == []
    assert stream.acknowledged_by(BELOW) == 7
    assert [*stream.curious[peer]] == asked


@pytest.mark.parametrize(
    "upstream, children, is_on, change, is_watched",
    [
        (ABOVE, (BELOW,), True, "fill", True),
        (ABOVE, (BELOW,), False, "fill", False),
        (ABOVE, (), True, "fill", False),
        (None, (BELOW,), True, "fill", False),
        (ABOVE, (), False, "gap", True),
        (ABOVE, (BELOW,), True, "empty", False),
    ],
)
def test_kept_events_are_watched_where_brokers_above_may_have_released_them(
    upstream: int | None, children: tuple[int, ...], is_on: bool, change: str, is_watched: bool
) -> None:
    deadlines: DeadlineQueue[Any] = DeadlineQueue()
    acks, stream = between(3, is_on=is_on, deadlines=deadlines)
    stream.upstream, stream.children = upstream, children
    if change != "gap":
        stream.knowledge.accumulate(4, 5, None)
    if change == "empty":
        stream.finish(9)
    for now_ns in (7, 8):  # later changes do not put off the look
        acks.settle(stream, now_ns)
    due_ns = deadlines.instant((UNWANTED, None))
    assert due_ns == (7 + GryphonParameters().unwanted_ns if is_watched else None)


@pytest.mark.parametrize("upstream, through", [(ABOVE, [8]), (None, [])])
def test_only_a_broker_on_the_route_requests_acks_for_events_that_it_keeps(
    upstream: int | None, through: list[int]
) -> None:
    """A pubend requests acks by the age of events."""
    acks, stream = between(3, 5, 6, 7, 8)
    stream.upstream = upstream
    assert acks.release_unwanted(stream) == []
    sent = acks.release_unwanted(stream)
    assert [each.message.through for each in sent if isinstance(each, Send)] == through


def test_acks_that_follow_from_a_filter_are_forwarded_once_and_those_of_silence_never() -> None:
    acks, stream = between(8)
    acks.settle(stream, 0)
    identity = stream.identity
    final = Send(PARENT, Done(CELL, ((identity, 2),)))
    beside = [Send(peer, Done(BELOW, ((identity, 3),))) for peer in SIBLINGS]
    assert acks.flush() == [final, *beside]
    acks.settle(stream, 0)
    assert acks.flush() == []
    stream.subend.position = 4
    stream.knowledge.accumulate(4, 5, None)
    acks.settle(stream, 0)
    beside = [Send(peer, Done(BELOW, ((identity, 7),))) for peer in SIBLINGS]
    assert acks.flush() == [Send(PARENT, Done(CELL, ((identity, 4),))), *beside]
    acks, stream = between(5)
    stream.subend.position = 3
    stream.note_done(BELOW, 3)
    stream.knowledge.accumulate(4, 5, None)
    acks.settle(stream, 0)
    assert [each.peer for each in acks.flush() if isinstance(each, Send)] == [PARENT]


def test_a_wanted_event_is_matched_again_only_after_a_change_of_filters() -> None:
    acks, stream = between(3)
    filters: Any = acks._filters
    for changes, matches in ((0, 1), (0, 1), (1, 2), (1, 2)):
        filters.changes = changes
        acks.settle(stream, 0)
        assert filters.matches == matches


@pytest.mark.parametrize("via, near", [(PARENT + 1, PARENT + 1), (PARENT + 2, PARENT)])
def test_an_ack_goes_to_the_last_sender_only_if_it_reaches_the_pubend(via: int, near: int) -> None:
    acks, stream = between()
    acks._links.senders[9] = (PARENT, PARENT + 1)
    stream.via = via
    acks.add_final(stream, 0)
    stream.finish(1)
    (sent, *_) = acks.flush()
    assert isinstance(sent, Send)
    assert sent.peer == near


@pytest.mark.parametrize("tick, is_refused", [(9, False), (10, True), (LAST_TICK, True)])
@pytest.mark.parametrize("has_lost", [False, True])
def test_an_ack_beyond_a_pubend_is_possible_only_after_a_loss(
    tick: int, is_refused: bool, has_lost: bool
) -> None:
    acks, stream = between()
    stream.upstream = None
    acks._streams = SimpleNamespace(has_lost=has_lost, from_downstream=lambda *_: stream)
    message = Done(BELOW, ((stream.identity, tick),))
    if is_refused and (tick == LAST_TICK or not has_lost):
        with pytest.raises(RemoteProtocolError, match=f"acknowledges {tick}"):
            acks.check(30, message)
    else:
        assert acks.check(30, message) == [(stream, tick)] * is_refused


def test_without_aet_a_pubend_never_looks_for_old_events() -> None:
    parameters = GryphonParameters(ack_expected_ns=0, delay_curiosity_ns=1)
    deadlines: DeadlineQueue[Any] = DeadlineQueue()
    unused: Any = None
    overdue = OverdueAcks(parameters, unused, unused, unused, deadlines)
    overdue.schedule(0)
    assert overdue.check(0) == []
    assert deadlines.earliest() is None


def test_a_broker_acknowledges_for_its_own_cell_only() -> None:
    acks, stream = between()
    with pytest.raises(RemoteProtocolError, match=f"acknowledges for cell {ABOVE}"):
        acks.check(30, Done(ABOVE, ((stream.identity, 1),)))


@pytest.mark.parametrize("through, asked", [(6, []), (7, [7])])
def test_acks_are_requested_of_cells_that_lack_them(through: int, asked: list[int]) -> None:
    acks, stream = between(3)
    stream.note_done(BELOW, 6)
    sent = [each for each in acks.expect(stream, through) if isinstance(each, Send)]
    assert [each.message.through for each in sent] == asked


@pytest.mark.parametrize("through", [6, 7])
def test_an_ack_of_one_cell_that_has_arrived_is_confirmed(through: int) -> None:
    """The answer also names the sender of the stream."""
    acks, stream = between(3)
    stream.note_done(BELOW, 6)
    sent = acks.on_ack_expected(PARENT, stream, AckExpected(stream.identity, through, BELOW))
    confirmed = [each for each in sent if isinstance(each, Send) and each.peer == PARENT]
    assert [each.message for each in confirmed] == [Done(BELOW, ((stream.identity, 6),))] * (
        through == 6
    )
    assert stream.via == PARENT


def test_old_events_of_any_pubend_are_looked_for_again() -> None:
    first, second = (Stream(StreamId(1, each, 0), None, (), GryphonParameters()) for each in (0, 1))
    first.knowledge.accumulate(1, 4, run_at([3]))
    streams: Any = SimpleNamespace(own=lambda: [first, second])
    pubends: Any = SimpleNamespace(tick=lambda _: 0, restored_tick=lambda _: 0)
    deadlines: DeadlineQueue[Any] = DeadlineQueue()
    unused: Any = None
    assert OverdueAcks(GryphonParameters(), streams, pubends, unused, deadlines).check(5) == []
    assert deadlines.earliest() == 5 + GryphonParameters().ack_expected_check_ns
