"""First transmissions and windows on objects: each tick is stated once, to every neighbour."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.checks.planning import tree_of_cells
from brokerd.protocols.gryphon.filters import _TESTS_PER_MESSAGE, _split
from brokerd.protocols.gryphon.flow_control import EVENT_BYTES, FlowControl
from brokerd.protocols.gryphon.forwarding import Forwarding
from brokerd.protocols.gryphon.messages import Events, Silent, WindowUpdate
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.routes import EVERYWHERE, Routes
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.interface import Send
from brokerd.protocols.parts.deadlines import DeadlineQueue
from tests.helpers.stream_runs import run_at

CELL, BELOW, PEER = 0, 1, 9


class Above:
    """A broker with a stream of its own and a cell below, which wants even ticks only."""

    def __init__(self, *, is_total: bool, wants_all: bool) -> None:
        self.wants_all = wants_all
        self.counters = {"publications_forwarded": 0}
        routes: Any = SimpleNamespace(cell=CELL, cell_by_broker={PEER: BELOW})
        links: Any = SimpleNamespace(receivers={}, down=lambda *_, **__: ((PEER, EVERYWHERE),))
        filters: Any = SimpleNamespace(
            is_on=True,
            wants_any=lambda _: True,
            select=lambda run: SimpleNamespace(wanted=lambda _: self.wanted(run)),
            last_wanted=self.last_wanted,
        )
        flow: Any = SimpleNamespace(full={}, charge=lambda *_, **__: None)
        parameters: Any = SimpleNamespace(is_total=is_total, events_per_message=0)
        streams: Any = None
        self.forwarding = Forwarding(
            routes, parameters, streams, filters, links, flow, streams, self.counters
        )
        self.stream = Stream(run_at([1]).source, None, (BELOW,), GryphonParameters())

    def is_wanted(self, tick: int) -> bool:
        return self.wants_all or tick % 2 == 0

    def wanted(self, run: Any) -> Any:
        places = [place for place, tick in enumerate(run.sequences) if self.is_wanted(tick)]
        return run.select(places) if places else None

    def last_wanted(self, events: Any, _: Any, start: int, end: int) -> int | None:
        found = [tick for tick in events.ticks(start, end) if self.is_wanted(tick)]
        return found[-1] if found else None


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("is_total", [True, False])
@pytest.mark.parametrize("wants_all", [True, False])
def test_every_tick_is_stated_once_and_as_it_is(seed: int, is_total: bool, wants_all: bool) -> None:
    random = Random(seed)
    above = Above(is_total=is_total, wants_all=wants_all)
    stream, stated, done, through = above.stream, dict[int, bool](), 0, 0
    for now_ns in range(40):
        ticks = sorted(random.sample(range(through + 1, through + 9), random.randint(1, 3)))
        silent = ticks[-1] + random.choice((0, 0, 1, 4))
        effects = above.forwarding.publish(stream, run_at(ticks), silent, now_ns)
        for effect in effects:
            assert isinstance(effect, Send)
            message = effect.message
            found = [*message.run.sequences] if isinstance(message, Events) else []
            ranges = (
                message.ranges if isinstance(message, Silent) else ((message.start, message.end),)
            )
            assert message.final == done
            for start, end in ranges:
                assert done < start < end
                for tick in range(start, end):
                    assert tick not in stated, f"tick {tick} is stated twice"
                    stated[tick] = tick in found
        wanted = [tick for tick in ticks if above.is_wanted(tick)]
        assert all(stated.get(tick) for tick in wanted)
        unwanted = (tick for tick in range(through + 1, silent + 1) if tick not in wanted)
        assert not any(stated.get(tick) for tick in unwanted)
        through = silent
        if is_total or wants_all:
            last = silent if is_total or wanted else through
            assert [tick for tick in range(done + 1, last + 1) if tick not in stated] == []
        if random.random() < 0.3:
            done = random.randint(done, through)
            stream.note_done(BELOW, done)
            stream.finish(done)
    assert above.counters["publications_forwarded"] == sum(stated.values())


@pytest.mark.parametrize(
    "final, is_on, counts", [(4, False, 1), (5, False, 0), (6, False, 0), (4, True, 0)]
)
def test_silence_contradicts_an_event_that_is_not_final_at_its_sender(
    final: int, is_on: bool, counts: int
) -> None:
    above = Above(is_total=False, wants_all=True)
    filters: Any = above.forwarding._filters
    filters.is_on = is_on
    above.stream.knowledge.accumulate(1, 9, run_at([5]))
    above.forwarding._compare(above.stream, final, 1, 9, None)
    assert above.forwarding.contradicted == counts
    above.forwarding._compare(above.stream, 0, 1, 9, run_at([5]))
    assert above.forwarding.contradicted == counts
    assert bool(above.forwarding.discrepancies()) == bool(counts)


# ---------------------------------------------------------------- windows

STALL_NS = 1_000


class Middle:
    """A broker with a neighbour on either side, whose windows have room for four events."""

    def __init__(self) -> None:
        topology = tree_of_cells(("b0", "b1", "b2"), [("b0", "b1"), ("b1", "b2")])
        self.routes = Routes(1, topology, 1)
        self.deadlines: DeadlineQueue[Any] = DeadlineQueue()
        parameters = GryphonParameters(
            send_window_bytes=4 * EVENT_BYTES,
            answer_window_bytes=4 * EVENT_BYTES,
            send_stall_ns=STALL_NS,
        )
        self.flow = FlowControl(self.routes, parameters, self.deadlines)
        self.stream = next(each for each in self.routes.pubend_streams() if each[0] == 1)
        for peer in (0, 2):
            self.flow.on_session(peer)

    def fill(self, peer: int, *, again: bool, now_ns: int = 0) -> None:
        for tick in range(1, 5):
            run = PublicationRun(self.stream, range(tick, tick + 1), (b"a",), b"\0", 0, ())
            self.flow.charge(peer, run, now_ns, again=again)


def test_only_full_windows_of_first_transmissions_hold_publications_up() -> None:
    middle = Middle()
    assert not middle.flow.holds_up()
    middle.fill(0, again=True)
    assert middle.flow.full
    assert not middle.flow.holds_up(), "answers hold no publication up"
    middle.fill(2, again=False)
    assert middle.flow.holds_up()


@pytest.mark.parametrize("waited_ns, is_stalled", [(STALL_NS - 1, False), (STALL_NS, True)])
def test_a_neighbour_is_stalled_after_the_whole_wait(waited_ns: int, is_stalled: bool) -> None:
    middle = Middle()
    middle.fill(2, again=False, now_ns=5)
    middle.fill(0, again=False, now_ns=5 + waited_ns)
    middle.flow.due(5 + waited_ns)
    assert [window.is_stalled for window in middle.flow.full.values()] == [is_stalled, False]
    assert middle.flow.holds_up(), "the other neighbour"
    middle.flow.on_session_lost(0)
    assert middle.flow.holds_up() == (not is_stalled)
    middle.flow.on_update(2, WindowUpdate(1, False, EVENT_BYTES), 5 + waited_ns)
    assert not middle.flow.holds_up()


# ---------------------------------------------------------------- filters


@pytest.mark.parametrize(
    "sizes, parts",
    [
        ([], [0]),
        ([1], [1]),
        ([_TESTS_PER_MESSAGE], [1]),
        ([_TESTS_PER_MESSAGE + 5, 1], [1, 1]),
        ([_TESTS_PER_MESSAGE - 1, 1, 1], [2, 1]),
        ([_TESTS_PER_MESSAGE, 1], [1, 1]),
        ([1, _TESTS_PER_MESSAGE], [1, 1]),
        ([1, _TESTS_PER_MESSAGE - 1], [2]),
    ],
)
def test_predicates_of_a_message_have_as_many_tests_as_fit(
    sizes: list[int], parts: list[int]
) -> None:
    test = parse_predicate("price > 3").any_of[0]
    predicates: Any = [
        SimpleNamespace(predicate=SimpleNamespace(any_of=[test] * size)) for size in sizes
    ]
    found = [*_split(predicates)]
    assert [len(part) for part, _ in found] == parts
    assert [is_last for _, is_last in found] == [False] * (len(parts) - 1) + [True]
    assert [each for part, _ in found for each in part] == predicates
