"""Comparison of interval sets, knowledge and streams with plain lists of ticks.

`python -m tests.helpers.tick_structures 1000000` compares after so many operations, and prints the
result.
"""

import sys
from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from brokerd.protocols.gryphon.knowledge import IntervalSet, Knowledge, Range
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.stream import Stream
from tests.helpers.stream_runs import STREAM, run_at

WORLD = 400
"""Number of ticks; small, so that ranges often meet."""


def compare_intervals(operations: int, seed: int) -> None:
    """Add, remove and query ranges; both structures must agree after each operation."""
    random = Random(f"intervals {seed}")
    ours, naive = IntervalSet(), [False] * WORLD
    for _ in range(operations):
        start = random.randrange(WORLD)
        end = random.randrange(start, min(WORLD, start + random.choice((3, 40))) + 1)
        what = random.randrange(5)
        if what == 0:
            ours.add(start, end)
            naive[start:end] = [True] * (end - start)
        elif what == 1:
            ours.remove(start, end)
            naive[start:end] = [False] * (end - start)
        elif what == 2:
            found = [tick for low, high in ours.within(start, end) for tick in range(low, high)]
            assert found == [tick for tick in range(start, end) if naive[tick]]
        elif what == 3:
            found = [tick for low, high in ours.gaps(start, end) for tick in range(low, high)]
            assert found == [tick for tick in range(start, end) if not naive[tick]]
        else:
            assert (start in ours) == (start < WORLD and naive[start])
    assert ours.size() == sum(naive)


def compare_knowledge(operations: int, seed: int) -> None:
    """Apply a pubend's messages in any order, also twice; both structures must agree."""
    random = Random(f"knowledge {seed}")
    left = operations
    while left > 0:
        truth = {tick for tick in range(1, WORLD) if random.random() < 0.3}
        ours, naive, final = Knowledge(), dict[int, Any](), 0
        for _ in range(min(left, 200)):
            left -= 1
            start = random.randrange(1, WORLD)
            end = random.randrange(start, min(WORLD, start + 30)) + 1
            ticks = [tick for tick in range(start, end) if tick in truth]
            run = run_at(ticks) if ticks else None
            assert ours.contradiction(start, end, run) is None
            ours.accumulate(start, end, run)
            naive |= {tick: tick in truth for tick in range(start, end)}
            if random.random() < 0.05:
                final = max(final, random.randrange(ours.horizon(0) + 1))
                ours.finish(final)
            horizon = next((t - 1 for t in range(1, WORLD + 1) if t not in naive and t > final), 0)
            assert ours.horizon(final) == horizon
            low = max(start, final + 1)
            kept = [t for t in range(low, end) if naive.get(t)] if low < end else []
            assert ours.events.ticks(low, end) == kept if low < end else True


class _PlainStream:
    """A stream as a value per tick, without ranges."""

    def __init__(self, children: Sequence[int]) -> None:
        self.known = [True] + [False] * WORLD
        self.wanted: dict[int, set[int]] = {}
        self.requested: dict[int, int] = {}
        self.done = dict.fromkeys(children, 0)
        self.final = 0

    def asks(self, start: int, end: int, now: int, until: int) -> list[int]:
        self.requested = {tick: due for tick, due in self.requested.items() if due > now}
        fresh = [tick for tick in range(start, end) if tick not in self.requested]
        self.requested |= dict.fromkeys(fresh, until)
        return fresh

    def learns(self, start: int, end: int) -> None:
        for tick in range(start, end):
            self.known[tick] = True
            self.requested.pop(tick, None)

    def settles(self) -> None:
        self.final = max(self.final, min(max(done, self.final) for done in self.done.values()))
        self.learns(0, self.final + 1)
        for peer in list(self.wanted):
            self.tells(peer, 0, self.final + 1)

    def tells(self, peer: int, start: int, end: int) -> None:
        self.wanted[peer] -= {*range(start, end)}
        if not self.wanted[peer]:
            del self.wanted[peer]


def compare_streams(operations: int, seed: int) -> None:
    """Apply requests, knowledge and acknowledgements of neighbours; both structures must agree."""
    random = Random(f"streams {seed}")
    children, peers = (2, 3), (4, 5, 6)
    left = operations
    while left > 0:
        ours = Stream(STREAM, 1, children, GryphonParameters(), has_subend=False)
        naive, now = _PlainStream(children), 0
        for _ in range(min(left, 300)):
            left -= 1
            start = random.randrange(1, WORLD - 1)
            end = random.randrange(start, min(WORLD - 1, start + 40)) + 1
            what, peer = random.randrange(6), random.choice(peers)
            if what == 0:
                unknown = [tick for tick in range(start, end) if not naive.known[tick]]
                gaps = ours.knowledge.known.gaps(start, end)
                assert _ticks(gaps) == unknown
                ours.want(peer, gaps)
                if unknown:
                    naive.wanted.setdefault(peer, set()).update(unknown)
                else:
                    ours.satisfy(peer, 0, 0)
            elif what == 1:
                gaps = ours.knowledge.known.gaps(start, end)
                asked = [tick for gap in gaps for tick in naive.asks(*gap, now, now + 30)]
                assert _ticks(ours.request(gaps, now, now + 30)) == asked
            elif what == 2:
                ours.knowledge.accumulate(start, end, None)
                ours.on_answer(start, end)
                naive.learns(start, end)
                for each in list(naive.wanted):
                    wanted = sorted(naive.wanted[each] & {*range(start, end)})
                    assert _ticks(ours.wanted(each, start, end)) == wanted
                    ours.satisfy(each, start, end)
                    naive.tells(each, start, end)
            elif what == 3:
                child = random.choice(children)
                through = random.randrange(WORLD) // random.choice((1, 4))
                assert ours.note_done(child, through) == (through > naive.done[child])
                naive.done[child] = max(through, naive.done[child])
                ours.settle()
                naive.settles()
            elif what == 4:
                now += random.randrange(20)
                ours.forget_requested(now)
                naive.requested = {tick: due for tick, due in naive.requested.items() if due > now}
            elif random.random() < 0.1:
                ours.forget(peer)
                naive.wanted.pop(peer, None)
            assert ours.knowledge.final == naive.final
            assert _ticks(ours.requested) == sorted(naive.requested)
            assert ours.curious.keys() == naive.wanted.keys()
            for each, ranges in ours.curious.items():
                assert _ticks(ranges) == sorted(naive.wanted[each])


def _ticks(ranges: Iterable[Range]) -> list[int]:
    return [tick for start, end in ranges for tick in range(start, end)]


if __name__ == "__main__":
    amount = int(sys.argv[1])
    for compare in (compare_intervals, compare_knowledge, compare_streams):
        compare(amount, 1)
    sys.stdout.write(f"{amount:,} operations each on interval sets, knowledge and streams: equal\n")
