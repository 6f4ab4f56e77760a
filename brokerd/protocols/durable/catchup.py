"""The catch-up stream of a subscription, until it reaches all others: batches of missed ticks.

Paper: [DS03] §4.1 (catch-up stream and switch-over), §4.2 (batch read).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from brokerd.model.losses import is_stream_marker
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.durable.filtering_subsystem import NO_RECORD, FilterLog
from brokerd.protocols.durable.messages import Origins
from brokerd.protocols.gryphon import IntervalSet, Range, part_of
from brokerd.protocols.interface import LogEffect


@dataclass(frozen=True, slots=True)
class Batch:
    """The ticks after `after`, through `upto`, that are for a subscription.

    Attributes:
        unknown_through: the truncated part of the log, in which nothing is determined, ends here;
            `after` without one.
        ticks: the later ticks for the subscription, lowest first; all others through `upto` are
            not.
    """

    after: int
    unknown_through: int
    ticks: tuple[int, ...]
    upto: int


class BatchReader:
    """A reader for a subscription, one batch at a time.

    Reading goes back from the newest record, and finds the oldest last; a small batch is a small
    part of a long walk. So batch ends are marked during the walk, and the next batch begins at the
    lowest mark that has a whole batch below: a backlog is walked three times at most, not once per
    batch.

    Args:
        most: the most ticks in a batch.

    Attributes:
        visited: the number of records visited.
    """

    def __init__(self, log: FilterLog, subscription: int, most: int) -> None:
        assert most > 0, f"batches of {most}"
        self.visited = 0
        self._log = log
        self._subscription = subscription
        self._most = most
        self._marks: list[tuple[int, int]] = []
        self._after = self._limit = self._upto = 0
        self._index = NO_RECORD
        self._walked = 0
        self._found: deque[int] = deque()

    def begin(self, after: int, through: int, position: int) -> None:
        """Begin to read the subscription's ticks after `after`, through `through`.

        Args:
            position: the tick through which everything was written; at least the last written
                tick.
        """
        log = self._log
        self._after, self._limit = after, max(after, log.chopped_tick)
        self._upto = min(through, max(position, log.last_tick))
        self._index, self._walked = log.newest(self._subscription), 0
        self._found = deque()
        while self._marks and self._marks[-1][0] <= self._limit:
            self._marks.pop()
        if len(self._marks) > 1:
            tick, self._index = self._marks[-2]
            self._upto = min(self._upto, tick)

    def step(self) -> tuple[Batch | None, list[LogEffect]]:
        """Continue as far as records are in memory.

        Returns:
            The batch once complete; until then the reads to do before the next step.
        """
        log = self._log
        while log.has(self._index):
            record = log.record(self._index)
            if record is None:
                return None, log.read(self._index)
            self.visited += 1
            if record.tick <= self._limit:
                break
            if record.tick <= self._upto:
                self._take(record.tick)
            self._index = record.before(self._subscription)
        limit = max(self._limit, log.chopped_tick)
        ticks = tuple(tick for tick in self._found if tick > limit)
        return Batch(self._after, limit, ticks, max(self._upto, limit)), []

    def _take(self, tick: int) -> None:
        self._found.appendleft(tick)
        self._walked += 1
        if self._walked % self._most == 0 and (not self._marks or tick < self._marks[-1][0]):
            self._marks.append((tick, self._index))
        if len(self._found) > self._most:
            self._upto = self._found.pop() - 1


class LostRange(NamedTuple):
    """Ticks that a subscription does not receive any more, from its first to its last.

    Attributes:
        origins: per source, the number through which something may be missing.
    """

    first: int
    last: int
    origins: Origins


class LostPart(NamedTuple):
    """The lost part of a stream.

    Attributes:
        through: everything through this tick, except for events that arrive all the same.
        origins: the corresponding numbers of sources.
    """

    through: int
    origins: Origins

    @property
    def has_marker(self) -> bool:
        """True if the pubend itself has lost an unknown part of the stream."""
        return any(is_stream_marker(source) for source, _ in self.origins)


NOTHING_LOST: Final = LostPart(0, ())


@dataclass(slots=True, eq=False)
class Catchup:
    """The catch-up of a subscription in a stream.

    Attributes:
        reader: reads the subscription's ticks.
        given: the tick through which everything was delivered.
        unknown_through: the tick through which no matches were logged; all events are fetched and
            matched again.
        upto: the last tick of the batch under way; `given` without a batch.
        open: requested ranges that have not arrived.
        is_reading: True while the next batch is read.
        is_busy: True while the caller fetches and continues itself.
        lost: the loss that the pubend has announced; lost ticks are not requested again.
    """

    reader: BatchReader
    given: int
    unknown_through: int
    upto: int
    open: IntervalSet = field(default_factory=IntervalSet)
    is_reading: bool = False
    is_busy: bool = False
    lost: LostPart = NOTHING_LOST
    _found: list[tuple[Range, PublicationRun | None]] = field(default_factory=list)
    _begun: Range | None = None

    @property
    def has_batch(self) -> bool:
        """True while a batch is under way."""
        return self.upto > self.given

    def next_batch(self, batch: Batch) -> list[Range]:
        """Begin a batch, and return the ticks of the required events."""
        self.is_reading = False
        self.upto = batch.upto
        ranges = ranges_of(batch.ticks)
        if batch.unknown_through > batch.after:
            ranges.insert(0, (batch.after + 1, batch.unknown_through + 1))
        needed = []
        # Below a loss marker, any tick may have an event all the same.
        known = NOTHING_LOST if self.lost.has_marker else self.lost
        for start, end in ranges:
            if (behind := self._take_lost(known, start, end)) < end:
                self.open.add(behind, end)
                needed.append((behind, end))
        return needed

    def take(self, lost: LostPart, ranges: Sequence[Range], run: PublicationRun | None) -> None:
        """Take arrived ranges; ticks through `lost` in them are lost."""
        if lost.origins and lost.through > self.lost.through:
            self.lost = lost
        for low, high in ranges:
            for start, end in self.open.within(low, high):
                self._take_one(lost, start, end, run)
                self.open.remove(start, end)

    def defer(self, ranges: Sequence[Range]) -> bool:
        """Cut the batch before postponed ranges; return True if it had any."""
        theirs = [each for low, high in ranges for each in self.open.within(low, high)]
        if not theirs:
            return False
        start = min(theirs)[0]
        self.open.remove(start, self.upto + 1)
        self._found = [each for each in self._found if each[0][0] < start]
        self.upto = start - 1
        return True

    def _take_one(self, lost: LostPart, start: int, end: int, run: PublicationRun | None) -> None:
        part = part_of(run, start, end) if run is not None else None
        if part is not None:
            self._found.append(((part.first, part.last), part))
            self._take_lost(lost, part.last + 1, end)
            end = part.first
        self._take_lost(lost, start, end)

    def _take_lost(self, lost: LostPart, start: int, end: int) -> int:
        """Record the lost part of [start, end), and return the beginning of the rest."""
        behind = max(start, min(lost.through + 1, end))
        if start < behind and lost.origins:
            self._found.append(((start, behind - 1), None))
        return behind

    def finish(self) -> Iterator[LostRange | PublicationRun]:
        """Yield the events and lost ranges of a complete batch, in order.

        Lost ranges with no retained event between them are joined, also across batches.
        """
        assert not self.open, f"{list(self.open)} did not arrive"
        found, self._found = sorted(self._found, key=lambda item: item[0]), []
        self.given = self.upto
        runs = [part for _, part in found if part is not None]
        for is_lost, group in groupby(found, key=lambda item: item[1] is None):
            items = list(group)
            if is_lost:
                first, last = items[0][0][0], items[-1][0][1]
                self._begun = (self._begun[0] if self._begun else first), last
            else:
                yield from self._end(runs)
                del runs[: len(items)]
                yield merge_runs([part for _, part in items if part is not None])
        if self.given >= self.lost.through:
            yield from self._end(runs)

    def rest(self) -> list[LostRange]:
        """Return the lost range that was not reported yet, at the end of the catch-up."""
        return [*self._end([])]

    def _end(self, runs: Sequence[PublicationRun]) -> Iterator[LostRange]:
        """Yield the lost range that ends before some runs."""
        if self._begun is None:
            return
        behind = {
            source: sequences[0]
            for run in reversed(runs)
            for source, sequences in reversed(run.origins)
            if not is_stream_marker(source)
        }
        through = tuple(
            (source, min(last, behind.get(source, last + 1) - 1))
            for source, last in self.lost.origins
        )
        if origins := tuple(each for each in through if each[1]):
            yield LostRange(*self._begun, origins)  # else there was no publication yet
        self._begun = None


def ranges_of(ticks: Sequence[int]) -> list[Range]:
    """Return ticks, lowest first, as ranges."""
    found: list[Range] = []
    for tick in ticks:
        if found and found[-1][1] == tick:
            found[-1] = (found[-1][0], tick + 1)
        else:
            found.append((tick, tick + 1))
    return found
