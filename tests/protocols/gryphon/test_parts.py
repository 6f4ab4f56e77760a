"""Tests of gryphon's parts on objects: gaps, requests, and retained events at their bounds."""

from itertools import pairwise
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import ClientId, StreamId
from brokerd.protocols.gryphon import knowledge as knowledge_module
from brokerd.protocols.gryphon.curiosity import Curiosity, drop_repeated
from brokerd.protocols.gryphon.drains import DRAINS, Drains
from brokerd.protocols.gryphon.knowledge import LAST_TICK, IntervalSet, Knowledge
from brokerd.protocols.gryphon.liveness import GapTable
from brokerd.protocols.gryphon.messages import Nack
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.interface import MessageReceived, Record, Send
from brokerd.protocols.parts.deadlines import DeadlineQueue
from tests.helpers.stream_runs import run_at
from tests.protocols.gryphon.test_gaps import MS, Limits, ticks_in

STREAM, OTHER = StreamId(1, 0, 1), StreamId(2, 0, 1)
PARENT = 9


# ---------------------------------------------------------------- gaps


@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_exactly_the_unknown_ticks_whatever_happens(seed: int) -> None:
    """A small window and short pieces, so that a part of a gap often waits for its request."""
    random = Random(seed)
    limits = Limits(nack_chunk_ticks=3, nack_window=2)
    table, now_ns = GapTable(limits), 0
    unknown = IntervalSet()
    asked_at: dict[int, int] = {}
    for _ in range(60):
        now_ns += random.choice((0, 50, 200, 600)) * MS
        act = random.randrange(4)
        if act == 0:
            start = random.randint(1, 60)
            unknown.add(start, start + random.randint(1, 12))
            table.update([*unknown], now_ns)
        elif act == 1:
            start = random.randint(1, 60)
            unknown.remove(start, start + random.randint(1, 8))
            table.update([*unknown], now_ns)
            asked_at = {tick: at for tick, at in asked_at.items() if tick in unknown}
        elif act == 2:
            table.hurry(random.randint(1, 60), now_ns)
        else:
            for tick in ticks_in(table.due(now_ns)):
                assert now_ns - asked_at.get(tick, -(1 << 60)) >= limits.nack_repetition_ns
                asked_at[tick] = now_ns
        covered = [(piece.start, piece.end) for piece in table.pieces]
        assert [*IntervalSet(covered)] == [*unknown]
        assert sum(end - start for start, end in covered) == len(ticks_in(unknown))
        assert all(before[1] <= after[0] for before, after in pairwise(covered))
        assert {
            tick for each in table.pieces if each.requests for tick in range(each.start, each.end)
        } == {*asked_at}


def test_a_gap_is_requested_whole_although_few_requests_may_be_unanswered() -> None:
    table = GapTable(Limits(nack_chunk_ticks=2, nack_window=1))
    table.update([(1, 4)], 0)
    table.update([(1, 9)], 0)
    asked: set[int] = set()
    unknown = IntervalSet([(1, 9)])
    now_ns = 200 * MS
    while unknown:
        fresh = table.due(now_ns)
        assert fresh, f"nothing is requested of {[*unknown]}"
        asked |= ticks_in(fresh)
        for start, end in fresh:
            unknown.remove(start, end)
        now_ns += MS
        table.update([*unknown], now_ns)
    assert asked == {*range(1, 9)}


def test_only_pieces_that_wait_are_hurried_up_to_the_tick() -> None:
    table = GapTable(Limits())
    table.update([(1, 3)], 0)
    table.update([(1, 3), (5, 12)], 150 * MS)
    table.hurry(8, 250 * MS)
    found = [(piece.start, piece.end, piece.due_ns) for piece in table.pieces]
    assert found == [(1, 3, 200 * MS), (5, 9, 250 * MS), (9, 12, 350 * MS)]
    table.hurry(4, 260 * MS)
    table.hurry(8, 260 * MS)
    assert [(piece.start, piece.end, piece.due_ns) for piece in table.pieces] == found
    table.hurry(11, 260 * MS)
    assert [piece.due_ns for piece in table.pieces] == [200 * MS, 250 * MS, 260 * MS]


# ---------------------------------------------------------------- requests


def nack(*ranges: tuple[int, int], peer: int = 1, session: int = 1, stream: Any = STREAM) -> Any:
    return MessageReceived(peer, session, Nack(stream, ranges))


@pytest.mark.parametrize("ranges", [(), ((5, 5),), ((6, 5),), ((1, 2), (5, 5))])
def test_a_malformed_request_that_waits_is_not_dropped_and_repeats_nothing(ranges: Any) -> None:
    malformed = nack(*ranges)
    assert [*drop_repeated([malformed, malformed])] == [malformed, malformed]
    assert [*drop_repeated([malformed, nack((1, 2))])] == [malformed, nack((1, 2))]


def test_a_request_that_waits_is_repeated_for_its_new_ticks_only() -> None:
    other: Any = SimpleNamespace(peer=1)
    waiting = [
        nack((1, 5), (8, 9)), other, nack((2, 4)), nack((3, 9)), nack((1, 5), peer=2),
        nack((1, 5), session=2), nack((1, 5), stream=OTHER), nack((1, 10)),
    ]  # fmt: skip
    assert [*drop_repeated(waiting)] == [
        nack((1, 5), (8, 9)), other, nack((5, 8)), nack((1, 5), peer=2),
        nack((1, 5), session=2), nack((1, 5), stream=OTHER), nack((9, 10)),
    ]  # fmt: skip


def test_each_request_is_counted_as_sent_or_as_consolidated() -> None:
    counters = {"nacks_sent": 0, "nacks_consolidated": 0, "nacks_received": 0}
    links: Any = SimpleNamespace(up=lambda *_, **__: (PARENT,))
    streams: Any = []
    curiosity = Curiosity(GryphonParameters(), streams, links, DeadlineQueue(), counters)
    stream = Stream(STREAM, 0, (), GryphonParameters())
    for pieces, sent, consolidated in (
        ([[(1, 5)]], 1, 0),
        ([[(2, 4)]], 1, 1),
        ([[(3, 7)], [(8, 9)], [(1, 2)]], 3, 2),
    ):
        curiosity.request(stream, pieces, 1, sideways=True)
        assert (counters["nacks_sent"], counters["nacks_consolidated"]) == (sent, consolidated)
    effects = curiosity.request(stream, [[(1, 12)]], 1)
    assert [each.message for each in effects if isinstance(each, Send)] == [
        Nack(STREAM, ((7, 8), (9, 12)))
    ]


def test_a_request_to_all_members_of_a_cell_is_counted_once_per_message() -> None:
    """Verdicts compare the counter with the logged requests, one for each receiver."""
    counters = {"nacks_sent": 0, "nacks_consolidated": 0, "nacks_received": 0}
    links: Any = SimpleNamespace(up=lambda *_, **__: (PARENT, PARENT + 1))
    streams: Any = []
    curiosity = Curiosity(GryphonParameters(), streams, links, DeadlineQueue(), counters)
    stream = Stream(STREAM, 0, (), GryphonParameters())
    effects = curiosity.request(stream, [[(1, 5)], [(2, 4)]], 1)
    logged = [each for each in effects if isinstance(each, Record)]
    assert [each.event for each in logged] == ["retransmission_requested"] * 2
    assert (counters["nacks_sent"], counters["nacks_consolidated"]) == (2, 1)


@pytest.mark.parametrize("is_total", [True, False])
@pytest.mark.parametrize("has_lost", [True, False])
def test_a_future_tick_is_requested_in_total_order_or_after_a_loss(
    is_total: bool, has_lost: bool
) -> None:
    class Known(list[Any]):
        pass

    streams: Any = Known()
    streams.has_lost = has_lost
    links: Any = SimpleNamespace()
    parameters = GryphonParameters(order="total" if is_total else "publisher")
    counters = {"nacks_received": 0}
    curiosity = Curiosity(parameters, streams, links, DeadlineQueue(), counters)
    stream = Stream(STREAM, None, (1,), parameters)
    stream.knowledge.accumulate(1, 5, None)
    assert curiosity.on_nack(PARENT, stream, Nack(STREAM, ((2, 5),))) == ([(2, 5)], [])
    for last in (5, LAST_TICK - 1, LAST_TICK):
        future = Nack(STREAM, ((3, last + 1),))
        if (is_total or has_lost) and last < LAST_TICK:
            assert curiosity.on_nack(PARENT, stream, future) == ([(3, 5)], [(5, last + 1)])
            continue
        with pytest.raises(RemoteProtocolError, match="which ends at 4"):
            curiosity.on_nack(PARENT, stream, future)


# ---------------------------------------------------------------- retained events


def test_only_events_below_the_first_unknown_tick_are_merged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(knowledge_module, "_SCATTERED", 2)
    knowledge = Knowledge()
    for tick in (*range(1, 9), *range(10, 20)):  # 9 is unknown
        knowledge.accumulate(tick, tick + 1, run_at([tick]))
    knowledge.condense(15)
    assert [len(run) for run in knowledge.events] == [7] + 11 * [1]
    assert knowledge.accumulate(9, 10, run_at([9])) == [(9, 10)]
    knowledge.condense(15)
    assert [(run.first, run.last) for run in knowledge.events][:2] == [(1, 7), (8, 14)]


@pytest.mark.parametrize("step", [1, 3])
def test_merged_events_are_not_merged_again(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(knowledge_module, "_SCATTERED", 2)
    monkeypatch.setattr(knowledge_module, "_RUN_EVENTS", 4)
    merged: list[int] = []
    dense = knowledge_module._dense_run

    def counted(group: Any) -> Any:
        merged.extend(run.first for run in group)
        return dense(group)

    monkeypatch.setattr(knowledge_module, "_dense_run", counted)
    knowledge = Knowledge()
    for tick in range(1, 40):
        knowledge.accumulate(tick, tick + 1, run_at([tick]))
        if tick % step == 0:
            knowledge.condense(tick)
    assert len(merged) == len({*merged}) > 20
    assert knowledge.events.events == 39


# ---------------------------------------------------------------- clients that leave


class TickedStreams:
    """Streams of brokers 1 to 3, of which the first is this broker, with a passed tick each."""

    def __init__(self) -> None:
        self.passed = {StreamId(broker, 0, 0): 5 for broker in (1, 2, 3)}
        self.expected: dict[StreamId, int] = dict.fromkeys(self.passed, 0)

    def get(self, identity: StreamId) -> Any:
        def expect(tick: int) -> None:
            self.expected[identity] = max(tick, self.expected[identity])

        subend = SimpleNamespace(passed=lambda _: self.passed[identity], expect=expect)
        knowledge = SimpleNamespace(highest=self.passed[identity])
        return SimpleNamespace(identity=identity, subend=subend, knowledge=knowledge)

    def own(self) -> list[Any]:
        return [self.get(StreamId(1, 0, 0))]

    def is_own(self, identity: StreamId) -> bool:
        return identity.broker == 1


@pytest.mark.parametrize("seed", range(20))
def test_a_client_leaves_once_each_stream_has_passed_all_its_ticks(seed: int) -> None:
    """A client that returns and leaves again waits like a new one, whatever it states first."""
    random, streams = Random(seed), TickedStreams()
    deadlines: DeadlineQueue[Any] = DeadlineQueue()
    some: Any = streams
    drains = Drains(some, [*streams.passed], deadlines, GryphonParameters(nack_repetition_ns=7))
    waiting: dict[ClientId, dict[StreamId, int]] = {}
    foreign = StreamId(9, 0, 0)
    for now_ns in range(1, 60):
        client = ClientId(random.choice("abc"))
        ticks = {identity: random.randint(1, 40) for identity in streams.passed}
        for identity, tick in random.sample([*ticks.items()], random.randrange(2)):
            streams.passed[identity] = max(tick, streams.passed[identity])
        if random.random() < 0.1:
            drains.drop(client)
            waiting.pop(client, None)
        if client not in waiting:
            begins = [dict(random.sample([*ticks.items()], random.randrange(3))) for _ in "ab"]
            stated = [(identity, random.randint(1, 40)) for identity in (*ticks, foreign)]
            drains.add(client, begins)
            drains.await_stated(client, stated, now_ns)
            own = streams.own()[0]
            asked = [(own.identity, own.knowledge.highest)]
            asked += [each for begin in begins for each in begin.items()]
            for identity, tick in asked:
                assert streams.expected[identity] >= tick
            asked += [each for each in stated if each[0].broker in (2, 3)]
            waiting[client] = {
                identity: max(tick for name, tick in asked if name == identity)
                for identity, _ in asked
            }
        lacking = {
            identity
            for through in waiting.values()
            for identity, tick in through.items()
            if streams.passed[identity] < tick and not streams.is_own(identity)
        }
        deadlines.cancel((DRAINS, None))
        assert {each.identity for each in drains.find_lacking(now_ns)} == lacking
        assert ((DRAINS, None) in deadlines) == bool(lacking)
        ready = [
            name
            for name, through in waiting.items()
            if all(streams.passed[identity] >= tick for identity, tick in through.items())
        ]
        assert [*drains.settle()] == ready
        for name in ready:
            del waiting[name]
        assert drains.waiting == waiting
