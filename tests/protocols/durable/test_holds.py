"""Every hold ends within a lease after the last request, so no pubend waits for ever."""

import sys
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.model.identity import StreamId
from brokerd.protocols.durable.holds import ALL_HOLDS, DOUBT_OF_HOLD, LEASE, Holds
from brokerd.protocols.durable.messages import Held, Hold, Moved
from brokerd.protocols.durable.migration import Arrivals, Holder
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.interface import Commit
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, EventMachine

LEASE_NS = 1_000
HERE = 0
STREAMS = (StreamId(HERE, 0, 0), StreamId(HERE, 1, 0))


class Keeper:
    """The broker of a pubend with a disk that keeps written data in a crash."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.now_ns = 0
        self.requested: dict[tuple[str, int, int], int] = {}
        self.start()

    def start(self, *, is_doubtful: bool = False) -> None:
        self.machine = EventMachine()
        self.machine.now_ns = self.now_ns
        self.disk = Durability(self.machine)
        self.deadlines: DeadlineQueue[Any] = DeadlineQueue()
        self.told: list[Any] = []
        events = SimpleNamespace(last_up_to=lambda tick: tick)
        knowledge = SimpleNamespace(events=events, highest=9)
        self.holds = Holds(
            self.disk,
            self.deadlines,
            LEASE_NS,
            SimpleNamespace(get=lambda _: SimpleNamespace(knowledge=knowledge)),  # type: ignore[arg-type]
            SimpleNamespace(send=self.told.append),  # type: ignore[arg-type]
        )
        self.holds.recover({"holds": self.rows}, 100, is_doubtful=is_doubtful)
        self.requested = {
            key: self.now_ns for key in self.requested if self._row_of(key) in self.rows
        }

    @staticmethod
    def _row_of(key: tuple[str, int, int]) -> str:
        return "/".join(map(str, key))

    def hold(self, key: tuple[str, int, int], generation: int, tick: int | None) -> None:
        client, number, at = key
        behind = () if tick is None else tuple((stream, tick) for stream in STREAMS)
        self.holds.on_hold(Hold(HERE, at, client, number, generation, behind, 1))
        self.requested[key] = self.now_ns

    def write(self) -> None:
        for effect in [each for each in self.machine.effects if isinstance(each, Commit)]:
            self.machine.effects.remove(effect)
            for change in effect.changes:
                if change.value is None:
                    self.rows.pop(change.key, None)
                else:
                    self.rows[change.key] = change.value
            if effect.token is not None:
                self.disk.on_persisted(effect.token)

    def advance(self, by_ns: int) -> None:
        end_ns = self.now_ns + by_ns
        while (due_ns := self.deadlines.earliest()) is not None and due_ns <= end_ns:
            self.machine.now_ns = due_ns
            for purpose, key in self.deadlines.due(due_ns):
                assert purpose in (LEASE, DOUBT_OF_HOLD)
                (self.holds.expire if purpose == LEASE else self.holds.request)(key)
        self.now_ns = self.machine.now_ns = end_ns

    def held(self) -> set[tuple[str, int, int]]:
        return {key[:3] for stream in STREAMS for key in self.holds.of(stream)}


@pytest.mark.parametrize("seed", range(100))
def test_a_hold_expires_a_lease_after_the_last_request(seed: int) -> None:
    random, keeper = Random(seed), Keeper()
    keys = [(client, number, at) for client in "cd" for number in (1, 2) for at in (4, 5)]
    for _ in range(80):
        match random.randrange(7):
            case 0 | 1 | 2:
                tick = random.choice((None, 1, 2, 3, 3))
                keeper.hold(random.choice(keys), random.randrange(1, 4), tick)
            case 3 | 4:
                keeper.write()
            case 5:
                keeper.advance(random.choice((1, LEASE_NS // 3, LEASE_NS - 1, LEASE_NS)))
            case 6:
                keeper.start()
        for key in keeper.held():
            assert keeper.now_ns - keeper.requested[key] < LEASE_NS, "nobody has asked for it since"
    keeper.write()
    keeper.advance(LEASE_NS)
    keeper.write()
    assert keeper.held() == set()
    assert keeper.rows == {}
    assert keeper.deadlines.earliest() is None
    assert all(keeper.holds.bound(stream) is None for stream in STREAMS)


@pytest.mark.parametrize("crashes", [1, 2, 3])
def test_a_hold_that_was_read_from_disk_expires_without_a_request(crashes: int) -> None:
    keeper = Keeper()
    keeper.hold(("c", 1, 4), 1, 3)
    keeper.write()
    for _ in range(crashes):
        keeper.advance(LEASE_NS - 1)
        keeper.start()
    assert keeper.held() == {("c", 1, 4)}
    keeper.advance(LEASE_NS)
    keeper.write()
    assert (keeper.held(), keeper.rows) == (set(), {})


def test_a_hold_on_a_restored_disk_is_questioned_until_an_answer() -> None:
    keeper = Keeper()
    keeper.hold(("c", 1, 4), 2, 3)
    keeper.write()
    keeper.start(is_doubtful=True)
    keeper.advance(350)
    assert keeper.told == [Held(4, HERE, "c", 1, 2, (), 0)] * 3
    keeper.hold(("c", 1, 4), 2, None)
    keeper.write()
    assert keeper.held() == set()
    keeper.advance(100)
    assert len([each for each in keeper.told if not each.requested_in]) == 3


def test_an_answer_that_requires_a_restored_hold_ends_its_questions() -> None:
    keeper = Keeper()
    keeper.hold(("c", 1, 4), 2, 3)
    keeper.write()
    keeper.start(is_doubtful=True)
    keeper.hold(("c", 1, 4), 2, 3)
    keeper.write()
    keeper.advance(LEASE_NS // 2)
    assert keeper.held() == {("c", 1, 4)}
    assert all(each.requested_in for each in keeper.told)


def test_a_broker_without_its_state_has_the_holds_for_it_questioned() -> None:
    keeper = Keeper()
    for at in (4, 5):
        keeper.hold(("c", 1, at), 2, 3)
    keeper.write()
    keeper.told.clear()
    keeper.holds.on_hold(Hold(HERE, 4, *ALL_HOLDS, 0, (), 7))
    keeper.advance(150)
    assert keeper.told == [Held(4, HERE, *ALL_HOLDS, 0, (), 7), Held(4, HERE, "c", 1, 2, (), 0)]
    assert keeper.held() == {("c", 1, 4), ("c", 1, 5)}


# ---------------------------------------------------------------- a table of holds

Ticks = dict[StreamId, int]


def less_of(before: Ticks, after: Ticks) -> set[StreamId]:
    """Return the streams of which less is held after than before."""
    return {each for each in before if each not in after or after[each] > before[each]}


def row_of(generation: int, behind: Ticks) -> list[Any]:
    """Return the row of a hold."""
    return [generation, [[list(stream), tick] for stream, tick in behind.items()]]


@pytest.mark.parametrize("seed", range(30))
def test_the_bound_of_a_stream_is_the_least_of_its_present_holds(seed: int) -> None:
    """The twin is a table; nothing is answered before a restart would have it."""
    random, keeper = Random(seed), Keeper()
    keeper.holds._streams = SimpleNamespace(  # type: ignore[assignment]
        get=lambda stream: SimpleNamespace(
            identity=stream,
            knowledge=SimpleNamespace(highest=9, events=SimpleNamespace(last_up_to=lambda t: t)),
        )
    )
    keys = [(client, number, at) for client in "cd" for number in (1, 2) for at in (4, 5)]
    twin: dict[tuple[str, int, int], tuple[int, Ticks]] = {}
    for stay in range(60):
        key, generation = random.choice(keys), random.randrange(1, 4)
        ticks = {each: random.randrange(1, 4) for each in STREAMS if random.random() < 0.7}
        client, number, at = key
        message = Hold(HERE, at, client, number, generation, tuple(ticks.items()), 1, stay)
        known = twin.get(key)
        was_on_disk = known is not None and keeper.rows.get(Keeper._row_of(key)) == row_of(*known)
        released = [each.identity for each in keeper.holds.on_hold(message)]
        if known is None or known[0] <= generation:
            before = known[1] if known is not None else {}
            if was_on_disk and not less_of(ticks, before):
                assert {*released} >= less_of(before, ticks)
            twin[key] = generation, ticks
            if not ticks:
                assert {*released} == {*before}
                del twin[key]
            if [each for each in keeper.told if each.stay == stay]:
                row = keeper.rows.get(Keeper._row_of(key))
                is_more = not known or less_of(ticks, known[1])
                assert not ticks or not is_more or row == row_of(generation, ticks)
        else:
            assert released == []
            assert not [each for each in keeper.told if each.stay == stay]
        for stream in STREAMS:
            held = [behind[stream] for _, behind in twin.values() if stream in behind]
            assert keeper.holds.bound(stream) == min(held, default=None)
            assert keeper.holds.of(stream) == {
                (*each, generation): behind[stream]
                for each, (generation, behind) in twin.items()
                if stream in behind
            }
        if random.random() < 0.4:
            keeper.write()
            is_answered = stay in [each.stay for each in keeper.told]
            assert is_answered == (known is None or known[0] <= generation)
    keeper.write()
    assert keeper.rows == {Keeper._row_of(key): row_of(*value) for key, value in twin.items()}


def test_a_reduced_hold_releases_the_streams_that_it_leaves_out() -> None:
    keeper = Keeper()
    one, other = STREAMS
    keeper.holds._streams = SimpleNamespace(get=lambda stream: stream)  # type: ignore[assignment]
    keeper.holds._answer = lambda _: None  # type: ignore[method-assign]

    def hold(*behind: tuple[StreamId, int]) -> list[Any]:
        return keeper.holds.on_hold(Hold(HERE, 4, "c", 1, 1, behind, 1))

    assert hold((one, 3), (other, 3)) == []
    keeper.write()
    assert {*hold((one, 5))} == {one, other}
    assert hold((one, 4)) == [], "more is held"
    keeper.write()
    assert hold((one, 4), (other, 9)) == [], "another stream is held"
    keeper.write()
    assert {*hold()} == {one, other}


def test_any_number_of_requests_waits_for_the_row_of_a_hold() -> None:
    """Without a majority of its replicas a broker has no durable row, and requests are repeated."""
    keeper, repeated = Keeper(), 2 * sys.getrecursionlimit()
    for _ in range(repeated):
        keeper.hold(("c", 1, 2), 1, 5)
    assert keeper.told == []
    keeper.write()
    assert len(keeper.told) == repeated


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_renewed_hold_requires_no_more_than_the_first_one(times: int) -> None:
    """Otherwise a subscription would never pass the end of a stream that goes on."""
    holder = Holder()
    for turn in range(times):
        holder.requested_ns = turn * LEASE_NS // 2
        holder.take([(STREAMS[0], 7 + turn)], LEASE_NS)
        assert holder.last == {STREAMS[0]: 7}
        assert holder.until_ns == turn * LEASE_NS // 2 + LEASE_NS


class Mover:
    """A broker with a subscription that has moved here; no other broker answers its requests."""

    def __init__(self) -> None:
        self.machine = EventMachine()
        self.deadlines: DeadlineQueue[Any] = DeadlineQueue()
        self.sent: list[Any] = []
        lane = SimpleNamespace(committed=3)
        self.local: Any = SimpleNamespace(
            client="c", number=1, generation=1, is_over=False, lane=lambda _: lane
        )
        client: Any = SimpleNamespace(subscriptions={1: self.local})
        self.arrivals = Arrivals(
            HERE + 1,
            Durability(self.machine),
            self.deadlines,
            DurableParameters(),
            STREAMS,
            SimpleNamespace(send=self.sent.append),  # type: ignore[arg-type]
            SimpleNamespace(clients={"c": client}),  # type: ignore[arg-type]
        )
        self.arrivals.start(1)
        self.arrivals.begin(self.local, lacks=True)

    def waits(self, count: int) -> list[int]:
        """Return the next `count` waits between requests without an answer."""
        found = []
        for _ in range(count):
            due_ns = self.deadlines.earliest()
            assert due_ns is not None
            found.append(due_ns - self.machine.now_ns)
            self.machine.now_ns = due_ns
            ((_, key),) = self.deadlines.due(due_ns)
            self.arrivals.due(key)
        return found


@pytest.mark.parametrize("silences", [1, 3, 6])
@pytest.mark.parametrize("event", ["answered", "ended", "moved on"])
def test_a_request_after_an_event_is_repeated_like_a_first_one(silences: int, event: str) -> None:
    first = Mover().waits(6)
    mover = Mover()
    mover.waits(silences)
    if event == "answered":
        arrival = mover.arrivals.pending["c", 1]
        mover.arrivals.on_held(Held(HERE + 1, HERE, "c", 1, 1, (), 1, arrival.stay))
    elif event == "ended":
        mover.arrivals.on_ended(mover.local)
    else:
        mover.arrivals.on_moved(Moved(HERE + 1, HERE, "c", 1, 2))
    assert mover.waits(6) == first
