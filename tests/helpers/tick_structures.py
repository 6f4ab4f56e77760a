"""Interval sets and knowledge against plain dictionaries of ticks, for any number of operations.

`python -m tests.helpers.tick_structures 1000000` compares after so many, and says so.
"""

import sys
from random import Random
from typing import Any

from brokerd.protocols.gryphon.intervals import IntervalSet
from brokerd.protocols.gryphon.knowledge import Knowledge
from tests.helpers.stream_runs import run_at

WORLD = 400
"""Ticks; small, so that ranges meet each other all the time."""


def compare_intervals(operations: int, seed: int) -> None:
    """Put ranges in and take them out, and ask; both answer alike each time."""
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
    """Let what a pubend has said come in any order and again; both know the same each time."""
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
            ours.check(start, end, run)
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


if __name__ == "__main__":
    amount = int(sys.argv[1])
    compare_intervals(amount, 1)
    compare_knowledge(amount, 1)
    sys.stdout.write(f"{amount:,} operations each on interval sets and on knowledge: equal\n")
