"""Tests of durable's parts on objects: retention, stored events, deferred ranges, token commits."""

import sys
from collections import deque
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.model.identity import StreamId
from brokerd.model.losses import STATE_LOST
from brokerd.protocols.durable.catchup import (
    Batch,
    BatchReader,
    Catchup,
    LostPart,
    LostRange,
)
from brokerd.protocols.durable.catchup_streams import LOST, CatchupStreams, CatchupWatch
from brokerd.protocols.durable.commit_cycle import (
    CommitCycle,
    Snapshot,
    TokenCommits,
    TokenRequest,
)
from brokerd.protocols.durable.filtering_subsystem import FilterLog
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.passed_events import PassedEvents
from brokerd.protocols.durable.retention import RETAINED, Retention
from brokerd.protocols.durable.state import COUNTERS, Mode
from brokerd.protocols.gryphon import Stream
from brokerd.protocols.gryphon.flow_control import EVENT_BYTES
from brokerd.protocols.gryphon.knowledge import TICK_NS
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.units import SECOND_NS
from tests.helpers.stream_runs import run_at

STREAM = StreamId(0, 0, 0)
TICK_S = TICK_NS / SECOND_NS
RETAIN_NS, GRACE_NS = 100 * SECOND_NS, 5 * SECOND_NS


# ---------------------------------------------------------------- retention


class Retained:
    """A broker that has just started, with a stream of its own and events from before."""

    def __init__(self, *ticks_s: int, retain_ns: int = RETAIN_NS) -> None:
        self.deadlines: DeadlineQueue[Any] = DeadlineQueue()
        parameters = DurableParameters(max_retain_ns=retain_ns, release_grace_ns=GRACE_NS)
        self.stream = Stream(STREAM, None, (), parameters)
        for at_s in ticks_s:
            tick = at_s * SECOND_NS // TICK_NS + 1
            start = self.stream.knowledge.highest + 1
            self.stream.knowledge.accumulate(start, tick + 1, run_at([tick]))
        self.gryphon: Any = SimpleNamespace(
            now_ns=0,
            deadlines=self.deadlines,
            streams=SimpleNamespace(own=lambda: [self.stream]),
            pubends=SimpleNamespace(
                released=lambda _: 7, tick=lambda now_ns: 1 + now_ns // TICK_NS
            ),
        )
        self.retention = Retention(self.gryphon, parameters)

    def at(self, at_s: int) -> None:
        self.gryphon.now_ns = at_s * SECOND_NS

    def due_s(self) -> float | None:
        due_ns = self.deadlines.earliest()
        return None if due_ns is None else due_ns / SECOND_NS


def test_events_from_before_a_start_expire_without_any_new_event() -> None:
    broker = Retained(1, 20)
    broker.retention.begin({}, is_restart=False)
    assert broker.stream.held == 7
    assert broker.due_s() == 101 + TICK_S
    broker.at(102)
    assert broker.deadlines.due(102 * SECOND_NS) == [(RETAINED, None)]
    assert [*broker.retention.expire()] == [broker.stream]
    assert broker.stream.held == 2 * SECOND_NS // TICK_NS
    assert broker.due_s() == 120 + TICK_S
    broker.at(121)
    assert broker.deadlines.due(121 * SECOND_NS) == [(RETAINED, None)]
    assert [*broker.retention.expire()] == [broker.stream]
    assert broker.stream.held == 21 * SECOND_NS // TICK_NS


def test_an_expiry_that_is_scheduled_is_not_put_off() -> None:
    broker = Retained(1)
    broker.retention.begin({}, is_restart=False)
    first_s = broker.due_s()
    for at_s in (50, 90, 100):
        broker.at(at_s)
        broker.retention.schedule()
        assert broker.due_s() == first_s


def test_without_a_limit_of_retention_nothing_expires() -> None:
    broker = Retained(1, retain_ns=0)
    broker.retention.begin({}, is_restart=False)
    broker.retention.schedule()
    broker.at(10_000)
    assert (broker.due_s(), broker.retention.expired_tick(broker.stream)) == (None, 0)


# ---------------------------------------------------------------- stored events


@pytest.mark.parametrize("events, kept", [(16, 16), (17, 15), (18, 16), (19, 15)])
def test_a_full_store_drops_the_oldest_sixteenth(events: int, kept: int) -> None:
    weight = EVENT_BYTES + 4
    store, stream = PassedEvents(16 * weight), Stream(STREAM, 0, (), DurableParameters())
    for tick in range(1, events + 1):
        stream.knowledge.accumulate(tick, tick + 1, run_at([tick]))
        store.pass_on(stream, 0)
    stored = [tick for _, runs in store.runs() for run in runs for tick in run.sequences]
    assert stored == [*range(events - kept + 1, events + 1)]
    assert store.stored_bytes == kept * weight


# ---------------------------------------------------------------- deferred ranges


def catching_up(*ticks: int) -> Catchup:
    """Return a catch-up stream that lacks these ticks."""
    catchup = Catchup(BatchReader(FilterLog("log"), 1, 100), 0, 0, 0)
    assert catchup.next_batch(Batch(0, 0, ticks, ticks[-1]))
    return catchup


@pytest.mark.parametrize(
    "deferred, upto, open_",
    [
        ([(4, 5), (8, 9)], 3, [(2, 3)]),
        ([(8, 9), (4, 5)], 3, [(2, 3)]),
        ([(3, 4), (8, 20)], 7, [(2, 3), (4, 5), (6, 7)]),
        ([(1, 9)], 1, []),
        ([(3, 4), (5, 6)], 8, [(2, 3), (4, 5), (6, 7), (8, 9)]),
    ],
)
def test_a_batch_ends_before_the_first_deferred_range(
    deferred: list[tuple[int, int]], upto: int, open_: list[tuple[int, int]]
) -> None:
    catchup = catching_up(2, 4, 6, 8)
    assert catchup.defer(deferred) == (upto != 8)
    assert (catchup.upto, [*catchup.open]) == (upto, open_)


def test_arrived_events_behind_a_deferred_range_are_requested_again() -> None:
    catchup = catching_up(2, 4, 6, 8)
    for tick in (2, 8):
        catchup.take(SimpleNamespace(through=0, origins=()), [(tick, tick + 1)], run_at([tick]))  # type: ignore[arg-type]
    assert catchup.defer([(6, 7)])
    assert [*catchup.open] == [(4, 5)]
    catchup.take(SimpleNamespace(through=0, origins=()), [(4, 5)], run_at([4]))  # type: ignore[arg-type]
    assert [n for run in catchup.finish() for n in run.sequences] == [2, 4]  # type: ignore[union-attr]


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("is_busy", [True, False])
@pytest.mark.parametrize("floor, is_proved", [(2, False), (3, True), (4, True), (5, False)])
def test_deferred_ranges_end_a_batch_and_prove_the_place_of_each_lane(
    is_open: bool, is_busy: bool, floor: int, is_proved: bool
) -> None:
    """A lane whose batch is complete without the ranges continues, unless its caller does that."""
    calls: list[Any] = []
    catchup = SimpleNamespace(defer=lambda _: True, open=is_open, is_busy=is_busy)
    lanes = [
        SimpleNamespace(catchup=catchup, floor=floor, subscription="a"),
        SimpleNamespace(catchup=None, floor=9, subscription="b"),
        SimpleNamespace(
            catchup=SimpleNamespace(defer=lambda _: False, open=False, is_busy=False),
            floor=9,
            subscription="c",
        ),
    ]
    streams: Any = SimpleNamespace(
        _table=SimpleNamespace(lanes=lambda _: lanes),
        _window=SimpleNamespace(on_answer=lambda lane: calls.append(("answer", lane.subscription))),
        advance=lambda _, lane: calls.append(("advance", lane.subscription)),
        _admit=lambda: calls.append("admit"),
        prove=lambda subscription: calls.append(("prove", subscription)),
    )
    hosted: Any = SimpleNamespace(identity=STREAM)
    CatchupStreams._defer(streams, hosted, [(3, 5), (20, 30)])
    answered = [] if is_open else [("answer", "a"), *([] if is_busy else [("advance", "a")])]
    assert calls == [*answered, "admit", *([("prove", "a")] if is_proved else [])]


def test_a_gap_below_a_loss_of_state_has_that_reason() -> None:
    gaps: list[Any] = []
    streams: Any = SimpleNamespace(
        _windows=SimpleNamespace(announce_in=lambda _, last, gap: gaps.append((last, gap.reason)))
    )
    lane: Any = SimpleNamespace(
        subscription=SimpleNamespace(number=1), stream=STREAM, lost_through=5
    )
    CatchupStreams._announce_gap(
        streams, lane, [LostRange(first, first + 2, ()) for first in (4, 5, 6)]
    )
    assert gaps == [(6, STATE_LOST), (7, STATE_LOST), (8, LOST)]


# ---------------------------------------------------------------- catch-up streams


class WatchedLane(SimpleNamespace):
    """A lane that a watch has as a key."""

    __hash__ = object.__hash__


def test_only_a_stream_that_does_not_approach_is_recorded() -> None:
    events: list[Any] = []
    machine: Any = SimpleNamespace(now_ns=0, emit=events.append)
    watch = CatchupWatch(machine, DeadlineQueue(), 1, dict.fromkeys(COUNTERS, 0))
    hosted: Any = SimpleNamespace(position=100)
    lanes: list[Any] = [
        WatchedLane(
            catchup=SimpleNamespace(given=given),
            stream=STREAM,
            subscription=SimpleNamespace(client=str(given), number=1),
        )
        for given in (10, 11)
    ]
    for lane in lanes:
        watch.begin(hosted, lane, 10)
    watch.due()
    assert [event.details["client"] for event in events] == ["10"]


@pytest.mark.parametrize("had, acknowledged, matched_after", [(7, 3, 2), (3, 7, 2), (3, 2, 7)])
def test_nothing_is_matched_before_a_position_ack_or_beginning(
    had: int, acknowledged: int, matched_after: int
) -> None:
    watch = SimpleNamespace(begin=lambda *_: None)
    streams: Any = SimpleNamespace(_most=1, _watch=watch, advance=lambda *_: None)
    hosted: Any = SimpleNamespace(position=9, log=FilterLog("log"))
    lane: Any = SimpleNamespace(
        subscription=SimpleNamespace(identity=1),
        acknowledged=acknowledged,
        matched_after=matched_after,
    )
    CatchupStreams.begin(streams, hosted, lane, had)
    assert (lane.catchup.given, lane.catchup.unknown_through, lane.floor) == (had, 7, had)


@pytest.mark.parametrize("before, after", [(5, 9), (12, 12)])
def test_skipped_events_are_fetched_through_the_position(before: int, after: int) -> None:
    catchup = SimpleNamespace(unknown_through=before)
    lane: Any = SimpleNamespace(mode=Mode.CATCHING_UP, catchup=catchup)
    hosted: Any = SimpleNamespace(position=9)
    CatchupStreams.skip(SimpleNamespace(), hosted, lane, 3)  # type: ignore[arg-type]
    assert catchup.unknown_through == after


@pytest.mark.parametrize("through, is_beyond", [(9, False), (10, True)])
def test_a_loss_beyond_the_position_has_no_matches_here(through: int, is_beyond: bool) -> None:
    """A stream without an open request takes no answer."""
    calls: list[int] = []

    def lane(open_: bool) -> Any:
        catchup = SimpleNamespace(
            open=open_, unknown_through=2, is_busy=False, take=lambda *_: calls.append(open_)
        )
        return SimpleNamespace(catchup=catchup, lost_through=1)

    lanes = [lane(True), lane(False)]
    streams: Any = SimpleNamespace(
        _fetching=SimpleNamespace(has_lost=True),
        _table=SimpleNamespace(lanes=lambda _: lanes),
        advance=lambda *_: None,
        _admit=lambda: None,
    )
    hosted: Any = SimpleNamespace(identity=STREAM, position=9)
    CatchupStreams._take(streams, hosted, LostPart(through, ()), [(1, 2)], None)
    assert calls == [True]
    reached = (through, through) if is_beyond else (2, 1)
    assert (lanes[0].catchup.unknown_through, lanes[0].lost_through) == reached


def test_a_stream_that_continues_admits_no_other_meanwhile() -> None:
    waiting, depth = [1, 2, 3], [0]

    def advance(_: Any, __: Any) -> None:
        depth[0] += 1
        assert depth == [1], "the next one follows after this one"
        CatchupStreams._admit(streams)
        depth[0] -= 1

    window = SimpleNamespace(next=lambda: (None, waiting.pop()) if waiting else None)
    streams: Any = SimpleNamespace(_is_admitting=False, _window=window, advance=advance)
    CatchupStreams._admit(streams)
    assert (waiting, streams._is_admitting) == ([], False)


def test_a_batch_is_begun_once_although_pages_are_read() -> None:
    begun: list[int] = []
    reader = SimpleNamespace(begin=lambda *_: begun.append(1), step=lambda: (None, []))
    catchup: Any = SimpleNamespace(given=5, unknown_through=5, is_reading=False, reader=reader)
    hosted: Any = SimpleNamespace(position=9, reading={})
    lanes: Any = SimpleNamespace(_machine=None)
    for _ in range(3):
        assert CatchupStreams._next_batch(lanes, hosted, "lane", catchup) is None  # type: ignore[arg-type]
    assert begun == [1]


@pytest.mark.parametrize(
    "is_attached, floor, is_due", [(True, 10, True), (False, 10, False), (True, 9, False)]
)
def test_only_attached_tokens_ahead_of_the_broker_are_proved_and_refused(
    is_attached: bool, floor: int, is_due: bool
) -> None:
    fetched: list[Any] = []
    refused: list[Any] = []
    lane = SimpleNamespace(stream=STREAM, floor=floor)
    local: Any = SimpleNamespace(
        is_attached=is_attached, lanes={STREAM: lane}, lane=lambda _: lane, presented={}
    )
    streams: Any = SimpleNamespace(
        _hosted={STREAM: SimpleNamespace(position=9)},
        _fetching=SimpleNamespace(fetch=lambda *each: fetched.append(each) or []),
        _table=SimpleNamespace(present={1: local}),
        on_answers=lambda _: None,
        detach=lambda _: None,
        _refuse=lambda each, _: refused.append(each),
    )
    CatchupStreams.prove(streams, local)
    assert bool(fetched) == is_due
    CatchupStreams._refuse_beyond(streams, STREAM, 8, [(2, 3), (10, 11)])
    assert bool(refused) == is_due


# ---------------------------------------------------------------- commits


class Commits:
    """Token commits with a disk that writes on request."""

    def __init__(self, *, lanes: int = 1, most: int = 0) -> None:
        self.counters = dict.fromkeys(("tokens_committed", "token_transactions"), 0)
        self.waiting: deque[Any] = deque()
        self.done: list[int] = []
        disk: Any = SimpleNamespace(commit=lambda _, then: self.waiting.append(then))
        self.commits = TokenCommits(disk, lanes, most, self.counters)

    def request(self, identity: int, number: int, *, is_over: bool = False) -> Any:
        subscription = self.__dict__.setdefault(f"s{identity}", Subscription(identity))
        subscription.is_over = is_over
        self.commits.request(
            TokenRequest(subscription, 1, number, {}),
            lambda taken: self.done.extend(each.number for each in taken),
        )
        return subscription

    def write(self) -> None:
        self.waiting.popleft()()


class Subscription:
    def __init__(self, identity: int) -> None:
        self.identity = identity
        self.is_over = False


def test_requests_wait_for_the_transaction_under_way_and_share_the_next() -> None:
    commits = Commits()
    for identity, number in ((1, 1), (2, 2), (3, 3), (2, 4)):
        commits.request(identity, number)
    assert len(commits.waiting) == 1
    commits.write()
    assert commits.done == [1]
    commits.write()
    assert sorted(commits.done) == [1, 3, 4], "only the last request of a subscription is answered"
    assert not commits.waiting
    assert commits.counters == {"tokens_committed": 3, "token_transactions": 2}
    commits.request(1, 5)
    commits.write()
    assert commits.counters == {"tokens_committed": 4, "token_transactions": 3}


@pytest.mark.parametrize(
    "lanes, most, transactions", [(1, 0, [1, 5]), (1, 2, [1, 2, 2, 1]), (2, 0, [1, 1, 2, 2])]
)
def test_transactions_have_a_limit_and_lanes_of_their_own(
    lanes: int, most: int, transactions: list[int]
) -> None:
    commits = Commits(lanes=lanes, most=most)
    for identity in range(6):
        commits.request(identity, identity)
    assert len(commits.waiting) == lanes
    found = []
    while commits.waiting:
        before = len(commits.done)
        commits.write()
        found.append(len(commits.done) - before)
    assert found == transactions
    assert sorted(commits.done) == [*range(6)]


def test_any_number_of_repeated_commits_waits_for_a_transaction() -> None:
    """They have no rows, so that each is durable at once; a broker failed at some hundreds."""
    commits = Commits(most=1)
    commits.request(0, 0)
    (write,) = commits.waiting
    commits.waiting = SimpleNamespace(append=lambda then: then())
    for identity in range(1, sys.getrecursionlimit()):
        commits.request(identity, identity)
    write()
    assert len(commits.done) == sys.getrecursionlimit()


def test_an_ended_subscription_commits_no_token() -> None:
    commits = Commits()
    commits.request(1, 1)
    ended = commits.request(2, 2)
    ended.is_over = True
    commits.request(3, 3)
    commits.write()
    commits.write()
    assert commits.done == [1, 3]
    assert commits.counters["tokens_committed"] == 2


class Part(SimpleNamespace):
    """A part with an identity of its own."""

    __hash__ = object.__hash__


@pytest.mark.parametrize("order", [*permutations((5, 7, 9))])
def test_commits_in_any_order_lower_no_committed_tick(order: tuple[int, ...]) -> None:
    """A token may be durable before an earlier acknowledgement that is in an open commit."""
    noted: list[int] = []
    log = SimpleNamespace(name="log", note_acknowledged=lambda _, tick: noted.append(tick))
    hosted: Any = Part(identity=STREAM, log=log, commit=lambda _: [])
    table: Any = SimpleNamespace(forget_released=lambda _: None)
    disk: Any = SimpleNamespace(machine=SimpleNamespace(now_ns=0))
    cycle = CommitCycle(disk, DeadlineQueue(), 10, {STREAM: hosted}, table)
    lane: Any = Part(stream=STREAM, subscription=Subscription(1), committed=0)
    for place, tick in enumerate(order):
        assert [*cycle.advance(Snapshot({}, {}, {lane: tick}))]
        assert lane.committed == noted[-1] == max(order[: place + 1])


def test_a_commit_has_nothing_of_an_ended_subscription() -> None:
    lanes: dict[StreamId, list[Any]] = {STREAM: []}
    table: Any = SimpleNamespace(lanes=lambda stream: lanes[stream])
    disk: Any = SimpleNamespace(machine=SimpleNamespace(now_ns=0))
    cycle = CommitCycle(disk, DeadlineQueue(), 10, {}, table)
    lane: Any = Subscription(1)
    lane.stream = STREAM
    cycle.add(lane)
    assert [*cycle.uncommitted()] == [STREAM]
    cycle.forget(lane)
    cycle.forget(lane)
    assert [*cycle.uncommitted()] == []
