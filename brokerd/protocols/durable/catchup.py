"""The stream of one subscription that has missed something, until it is as far as all others.

Paper: [DS03] §4.1 (catch-up stream and switch-over).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.durable.batch_read import Batch, BatchReader
from brokerd.protocols.durable.messages import Origins
from brokerd.protocols.gryphon.intervals import IntervalSet, Range
from brokerd.protocols.gryphon.retained import part_of


class LostRange(NamedTuple):
    """Ticks of which a subscription gets nothing any more, from the first to the last for it.

    Attributes:
        origins: of these sources, up to these numbers, something may be missing.
    """

    first: int
    last: int
    origins: Origins


class Lost(NamedTuple):
    """What of a stream nobody keeps any more.

    Attributes:
        through: all that was published up to this tick, but for what comes all the same.
        origins: how far of which sources that is.
    """

    through: int
    origins: Origins


NOTHING_LOST: Final = Lost(0, ())


@dataclass(slots=True, eq=False)
class Catchup:
    """What of a stream one subscription still gets out of turn.

    Attributes:
        reader: of what is for it.
        given: everything up to here was given to its client.
        unknown_through: up to here nobody wrote down what is for it; all of it is fetched, and
            matched again.
        upto: of the batch under way, everything up to here will be known; `given` without one.
        open: what was asked for of it, and has not come.
        is_reading: the next batch is being read.
        is_busy: what comes now has been asked for just now, by whoever goes on then.
        lost: what its pubend has said that it does not keep; it is not asked for again.
    """

    reader: BatchReader
    given: int
    unknown_through: int
    upto: int
    open: IntervalSet = field(default_factory=IntervalSet)
    is_reading: bool = False
    is_busy: bool = False
    lost: Lost = NOTHING_LOST
    _found: list[tuple[Range, PublicationRun | None]] = field(default_factory=list)
    _begun: Range | None = None

    @property
    def has_batch(self) -> bool:
        """Whether a batch is under way."""
        return self.upto > self.given

    def next_batch(self, batch: Batch) -> list[Range]:
        """Take what is to come next; returns the ticks of which the events are needed."""
        self.is_reading = False
        self.upto = batch.upto
        ranges = ranges_of(batch.ticks)
        if batch.unknown_through > batch.after:
            ranges.insert(0, (batch.after + 1, batch.unknown_through + 1))
        needed = []
        for start, end in ranges:
            if (behind := self._take_lost(self.lost, start, end)) < end:
                self.open.add(behind, end)
                needed.append((behind, end))
        return needed

    def take(self, lost: Lost, ranges: Sequence[Range], run: PublicationRun | None) -> None:
        """What is in these ranges has come; what was up to `lost` in them is lost."""
        if lost.origins and lost.through > self.lost.through:
            self.lost = lost
        for low, high in ranges:
            for start, end in self.open.within(low, high):
                self._take_one(lost, start, end, run)
                self.open.remove(start, end)

    def defer(self, ranges: Sequence[Range]) -> bool:
        """What is in these ranges comes later; whether this batch, which ends before, had any."""
        theirs = [each for low, high in ranges for each in self.open.within(low, high)]
        if not theirs:
            return False
        start = min(theirs)[0]
        self.open.remove(start, self.upto + 1)
        self._found = [each for each in self._found if each[0][0] < start]
        self.upto = start - 1
        return True

    def _take_one(self, lost: Lost, start: int, end: int, run: PublicationRun | None) -> None:
        part = part_of(run, start, end) if run is not None else None
        if part is not None:
            self._found.append(((part.first, part.last), part))
            end = part.first  # nothing is lost behind what is kept
        self._take_lost(lost, start, end)

    def _take_lost(self, lost: Lost, start: int, end: int) -> int:
        """What of [start, end) is lost does not come; returns where the rest of it begins."""
        behind = max(start, min(lost.through + 1, end))
        if start < behind and lost.origins:
            self._found.append(((start, behind - 1), None))
        return behind

    def finish(self) -> Iterator[LostRange | PublicationRun]:
        """The batch is whole: what comes in it, in order.

        Ranges that are lost with nothing between them that is kept are one, also those of several
        batches.
        """
        assert not self.open, f"{list(self.open)} has not come"
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
        """What is lost and was not said yet, where nothing more comes."""
        return [*self._end([])]

    def _end(self, runs: Sequence[PublicationRun]) -> Iterator[LostRange]:
        """What is lost goes no further; these runs come behind it."""
        if self._begun is None:
            return
        behind = {
            source: sequences[0]
            for run in reversed(runs)
            for source, sequences in reversed(run.origins)
        }
        through = tuple(
            (source, min(last, behind.get(source, last + 1) - 1))
            for source, last in self.lost.origins
        )
        if origins := tuple(each for each in through if each[1]):
            yield LostRange(*self._begun, origins)  # else nobody had published anything yet
        self._begun = None


def ranges_of(ticks: Sequence[int]) -> list[Range]:
    """These ticks, lowest first, as ranges."""
    found: list[Range] = []
    for tick in ticks:
        if found and found[-1][1] == tick:
            found[-1] = (found[-1][0], tick + 1)
        else:
            found.append((tick, tick + 1))
    return found
