"""Knowledge of streams, by tick: sets of ticks, retained events, and the state of each tick.

A tick is unknown (Q), an event (D), silent (S) or final (F): acknowledged by all cells and clients
downstream. A known tick without an event is silent. Ticks are kept as ranges, and events as the
runs in which they arrived.

Paper: [GD02] §2.1, §2.2, §3.1 (knowledge streams), §4.1 (ranges of ticks). Deviates: the pubend's
number is separate from its ticks and not in their low bits, so that a burst's ticks are consecutive
and travel as a range; two pubends' events at the same tick differ by the pubends.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from brokerd.model.publication import PublicationRun, merge_runs

TICK_NS: Final = 1_000
"""The length of a tick: a microsecond."""

LAST_TICK: Final = 1 << 54
"""A bound on ticks, five hundred years ahead of any machine's clock."""

TICK_LIMIT: Final = (1 << 63) - 1
"""A bound on ticks in messages, so that a later tick still has an encoding."""


def ticks_in(duration_ns: int) -> int:
    """Return the number of ticks in a duration, at least one."""
    return max(1, duration_ns // TICK_NS)


Range = tuple[int, int]
"""Ticks from the first one up to, and without, the second one."""


class IntervalSet:
    """A set of ticks as sorted, disjoint, non-adjacent and non-empty ranges.

    An addition at the end takes constant time; other operations take a binary search, and the time
    to move the rest of a list.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._starts)

    def __iter__(self) -> Iterator[Range]:
        """Yield the ranges, lowest first."""
        return iter(zip(self._starts, self._ends, strict=True))

    def __contains__(self, tick: int) -> bool:
        place = bisect_right(self._starts, tick) - 1
        return place >= 0 and tick < self._ends[place]

    @property
    def last(self) -> int:
        """The highest tick."""
        return self._ends[-1] - 1

    def size(self) -> int:
        """Return the number of ticks."""
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> None:
        """Add a range, which may be empty."""
        assert start <= end, f"[{start}, {end})"
        starts, ends = self._starts, self._ends
        if start == end:
            return
        if not ends or start > ends[-1]:
            starts.append(start)
            ends.append(end)
            return
        if start >= starts[-1]:
            ends[-1] = max(ends[-1], end)
            return
        first = bisect_left(ends, start)  # the first range that ends at `start` or behind it
        after = bisect_right(starts, end)  # the first one that begins behind `end`
        if first < after:
            start, end = min(start, starts[first]), max(end, ends[after - 1])
        starts[first:after] = [start]
        ends[first:after] = [end]

    def remove(self, start: int, end: int) -> None:
        """Remove a range, which may be empty."""
        starts, ends = self._starts, self._ends
        first = bisect_right(ends, start)
        after = bisect_left(starts, end)
        if start >= end or first >= after:
            return
        kept = [
            (low, high)
            for low, high in ((starts[first], start), (end, ends[after - 1]))
            if low < high
        ]
        starts[first:after] = [low for low, _ in kept]
        ends[first:after] = [high for _, high in kept]

    def within(self, start: int, end: int) -> list[Range]:
        """Return the ranges inside [start, end), cut at these ticks."""
        starts, ends = self._starts, self._ends
        first, after = bisect_right(ends, start), bisect_left(starts, end)
        return [(max(start, starts[place]), min(end, ends[place])) for place in range(first, after)]

    def gaps(self, start: int, end: int) -> list[Range]:
        """Return the ticks of [start, end) outside the set, as ranges."""
        found: list[Range] = []
        for low, high in self.within(start, end):
            if start < low:
                found.append((start, low))
            start = high
        if start < end:
            found.append((start, end))
        return found

    def run(self, tick: int) -> Range | None:
        """Return the range that contains a tick; None if no range does."""
        place = bisect_right(self._starts, tick) - 1
        if place < 0 or tick >= self._ends[place]:
            return None
        return self._starts[place], self._ends[place]

    def clear(self) -> None:
        """Remove all ticks."""
        self._starts.clear()
        self._ends.clear()


_SCATTERED: Final = 1_024
"""Number of runs that stay as they arrived; further runs are merged, as many at once."""
_RUN_EVENTS: Final = 64


def _first_newest(run: PublicationRun, kept_bytes: int, event_bytes: int) -> int:
    """Return the place of the first of the newest events of this weight in a run."""
    lengths, place = run.payload_lengths, len(run)
    if isinstance(lengths, int):
        return place - -(-kept_bytes // (lengths + event_bytes))
    while kept_bytes > 0:
        place -= 1
        kept_bytes -= lengths[place] + event_bytes
    return place


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
        assert place >= self._dense, f"{run.first} is among {self._dense} merged runs"
        self._firsts.insert(place, run.first)
        self._runs.insert(place, run)

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

    def before_newest(self, kept_bytes: int, event_bytes: int) -> int:
        """Return the tick in front of the newest events of this weight; 0 if all are among them.

        Args:
            event_bytes: weight of an event in addition to its payload.
        """
        if self.payload_bytes + event_bytes * self.events <= kept_bytes:
            return 0
        for run in reversed(self._runs):
            run_bytes = run.payload_bytes() + event_bytes * len(run)
            if run_bytes > kept_bytes:
                place = _first_newest(run, kept_bytes, event_bytes)
                return run.sequences[place] - 1 if place < len(run) else run.last
            kept_bytes -= run_bytes
        return 0

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
        dropped = 0
        while dropped < len(runs) and runs[dropped].last <= tick:
            self._count_out(runs[dropped])
            dropped += 1
        if dropped:
            del runs[:dropped]
            del self._firsts[:dropped]
            self._dense = max(0, self._dense - dropped)
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


class Knowledge:
    """The knowledge of one stream.

    A range costs the same for any number of events. Knowledge is permanent: only becoming final
    changes a tick that is not unknown, and removes the event.

    Attributes:
        final: the last final tick; all earlier ticks are final.
        known: the ticks that are not unknown.
        events: the events that are not final.
    """

    __slots__ = ("events", "final", "known")

    def __init__(self) -> None:
        self.final = 0
        self.known = IntervalSet([(0, 1)])
        self.events = RetainedEvents()

    @property
    def highest(self) -> int:
        """The last tick that is not unknown."""
        return self.known.last

    def horizon(self, after: int) -> int:
        """Return the last tick before the first unknown tick behind `after`.

        Paper: [GD02] §2.3 (doubt horizon; here the tick before the first unknown one).
        """
        run = self.known.run(after + 1)
        return after if run is None else run[1] - 1

    def contradiction(self, start: int, end: int, run: PublicationRun | None) -> int | None:
        """Return the first tick at which a statement about [start, end) differs, if any.

        An event is stated as silent, or a silent tick as an event.
        """
        start = max(start, self.final + 1)
        for low, high in self.known.within(start, end) if start < end else ():
            ours = self.events.ticks(low, high)
            theirs = [*sequences_within(run, low, high)] if run is not None else []
            if ours != theirs:
                return min({*ours} ^ {*theirs})
        return None

    def accumulate(self, start: int, end: int, run: PublicationRun | None) -> list[Range]:
        """Record that [start, end) has these events and is silent otherwise.

        Returns the ranges that were unknown. Other ticks do not change: silence never replaces an
        event.
        """
        fresh = self.known.gaps(start, end)
        for low, high in fresh:
            part = part_of(run, low, high) if run is not None else None
            if part is not None:
                self.events.add(part)
        self.known.add(start, end)
        return fresh

    def condense(self, through: int) -> None:
        """Merge old events through a tick, below the doubt horizon, into fewer runs."""
        if self.events.is_scattered:
            self.events.condense(min(through, self.horizon(self.final)))

    def finish(self, through: int) -> bool:
        """Make everything through a tick final; return True if the final tick advanced."""
        if through <= self.final:
            return False
        self.final = through
        self.known.add(0, through + 1)
        self.events.drop_through(through)
        return True
