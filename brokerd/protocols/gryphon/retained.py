"""The events of a stream that may still be requested, in the runs of their arrival.

Paper: [GD02] §3.1 (D ticks of an istream).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

from brokerd.model.publication import PublicationRun, merge_runs

_SCATTERED: Final = 1_024
"""Number of runs that stay as they arrived; further runs are merged, as many at once."""
_RUN_EVENTS: Final = 64


class RetainedEvents:
    """Runs of one stream with disjoint extents, by tick.

    Payloads are the slices that arrived, and are never decoded. If a receiver is stalled, single
    events become so many that their overhead matters: old events are copied into longer runs.

    Attributes:
        events: number of events.
        payload_bytes: of all events.
    """

    __slots__ = ("_dense", "_firsts", "_runs", "events", "payload_bytes")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[PublicationRun] = []
        self._dense = 0  # so many of the lowest runs are as long as they get
        self.events = 0
        self.payload_bytes = 0

    def __iter__(self) -> Iterator[PublicationRun]:
        """Yield the runs, lowest first."""
        return iter(self._runs)

    def add(self, run: PublicationRun) -> None:
        """Add a run; no event may be retained between its ends."""
        self.events += len(run)
        self.payload_bytes += run.payload_bytes()
        if not self._runs or run.first > self._runs[-1].last:
            self._firsts.append(run.first)
            self._runs.append(run)
            return
        place = bisect_left(self._firsts, run.first)
        assert run.last < self._firsts[place], f"{run.last} of {self._firsts[place]}"
        assert not place or self._runs[place - 1].last < run.first, f"{run.first}"
        self._firsts.insert(place, run.first)
        self._runs.insert(place, run)
        self._dense = min(self._dense, place)

    @property
    def is_scattered(self) -> bool:
        """True if there are many runs that can be merged."""
        return len(self._runs) - self._dense >= 2 * _SCATTERED

    def condense(self, through: int) -> None:
        """Merge old short runs into long runs; no event will be added through this tick."""
        known = max(0, bisect_left(self._firsts, through + 1) - 1)
        end = min(len(self._runs) - _SCATTERED, known)
        found: list[PublicationRun] = []
        group: list[PublicationRun] = []
        events = 0
        for run in self._runs[self._dense : end]:
            if events + len(run) > _RUN_EVENTS:
                found += _dense_run(group)
                group, events = [], 0
            group.append(run)
            events += len(run)
        found += _dense_run(group)
        if end > self._dense:
            self._runs[self._dense : end] = found
            self._firsts[self._dense : end] = [run.first for run in found]
            self._dense += len(found)

    @property
    def last(self) -> int:
        """The tick of the last event; 0 without events."""
        return self._runs[-1].last if self._runs else 0

    def within(self, start: int, end: int) -> PublicationRun | None:
        """Return the events in [start, end) as one run; None without events."""
        first = max(0, bisect_right(self._firsts, start) - 1)
        after = bisect_left(self._firsts, end)
        parts = [
            part
            for run in self._runs[first:after]
            if (part := part_of(run, start, end)) is not None
        ]
        return merge_runs(parts) if parts else None

    def cut(self, start: int, end: int, room_bytes: int, event_bytes: int) -> tuple[int, int]:
        """Return the place in [start, end) at which the events exceed the room; at least one fits.

        Args:
            event_bytes: weight of an event in addition to its payload.

        Returns:
            The tick before which to cut, `end` if all events fit, and the remaining room.
        """
        first = max(0, bisect_right(self._firsts, start) - 1)
        for run in self._runs[first : bisect_left(self._firsts, end)]:
            inside = sequences_within(run, start, end)
            each_bytes = event_bytes + run.payload_bytes() // len(run)
            if len(inside) * each_bytes > room_bytes:
                fitting = max(1, room_bytes // each_bytes)
                return inside[fitting - 1] + 1, 0
            room_bytes -= len(inside) * each_bytes
            if inside and not room_bytes:
                return inside[-1] + 1, 0
        return end, room_bytes

    def ticks(self, start: int, end: int) -> list[int]:
        """Return the ticks of the events in [start, end)."""
        first = max(0, bisect_right(self._firsts, start) - 1)
        found: list[int] = []
        for run in self._runs[first : bisect_left(self._firsts, end)]:
            found.extend(sequences_within(run, start, end))
        return found

    def after(self, tick: int) -> int | None:
        """Return the tick of the first event behind `tick`; None without one."""
        place = max(0, bisect_right(self._firsts, tick) - 1)
        if place < len(self._runs) and self._runs[place].last <= tick:
            place += 1
        if place >= len(self._runs):
            return None
        run = self._runs[place]
        return run.first if run.first > tick else run.sequences[bisect_right(run.sequences, tick)]

    def runs_after(self, tick: int) -> Iterator[PublicationRun]:
        """Yield the runs with events behind `tick`, lowest first."""
        first = max(0, bisect_right(self._firsts, tick) - 1)
        for place in range(first, len(self._runs)):
            if self._runs[place].last > tick:
                yield self._runs[place]

    def runs_before(self, tick: int) -> Iterator[PublicationRun]:
        """Yield the runs with events below `tick`, highest first."""
        for place in range(bisect_left(self._firsts, tick) - 1, -1, -1):
            yield self._runs[place]

    def before(self, tick: int) -> int | None:
        """Return the tick of the last event below `tick`; None without one."""
        place = bisect_left(self._firsts, tick) - 1
        if place < 0:
            return None
        sequences = self._runs[place].sequences
        return sequences[bisect_left(sequences, tick) - 1]

    def last_up_to(self, tick: int) -> int | None:
        """Return the tick of the last event at `tick` or below; None without one."""
        return self.before(tick + 1)

    def drop_through(self, tick: int) -> None:
        """Remove the events through `tick`."""
        runs = self._runs
        gone = 0
        while gone < len(runs) and runs[gone].last <= tick:
            self._count_out(runs[gone])
            gone += 1
        if gone:
            del runs[:gone]
            del self._firsts[:gone]
            self._dense = max(0, self._dense - gone)
        if runs and runs[0].first <= tick:
            self._count_out(runs[0])
            rest = runs[0].after(tick)
            assert rest is not None, f"{runs[0].last} is not behind {tick}"
            self.events += len(rest)
            self.payload_bytes += rest.payload_bytes()
            runs[0], self._firsts[0] = rest, rest.first

    def keep_only(self, ticks: Collection[int]) -> None:
        """Remove all events except at these ticks."""
        old, self._runs, self._firsts, self._dense = self._runs, [], [], 0
        self.events = self.payload_bytes = 0
        for run in old:
            positions = [place for place, tick in enumerate(run.sequences) if tick in ticks]
            if positions:
                self.add(run.select(positions))

    def _count_out(self, run: PublicationRun) -> None:
        self.events -= len(run)
        self.payload_bytes -= run.payload_bytes()


def _dense_run(runs: Sequence[PublicationRun]) -> list[PublicationRun]:
    """Return runs as one run with a single piece of payload; an empty list for none."""
    if len(runs) < 2:
        return [*runs]
    merged = merge_runs(runs)
    return [replace(merged, payload=(b"".join(merged.payload),) if merged.payload else ())]


def sequences_within(run: PublicationRun, start: int, end: int) -> range | tuple[int, ...]:
    """Return the ticks of a run's events in [start, end)."""
    sequences = run.sequences
    return sequences[bisect_left(sequences, start) : bisect_left(sequences, end)]


def part_of(run: PublicationRun, start: int, end: int) -> PublicationRun | None:
    """Return the events of a run in [start, end); None without events."""
    if run.first >= start and run.last < end:
        return run
    sequences = run.sequences
    positions = range(bisect_left(sequences, start), bisect_left(sequences, end))
    return run.select(positions) if positions else None
