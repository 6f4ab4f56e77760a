"""The stream of one subscription that has missed something, until it is as far as all others.

Paper: [DS03] §4.1 (catch-up stream and switch-over).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.durable.batch_read import Batch, BatchReader
from brokerd.protocols.gryphon.intervals import IntervalSet, Range
from brokerd.protocols.gryphon.retained import part_of


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
    """

    reader: BatchReader
    given: int
    unknown_through: int
    upto: int
    open: IntervalSet = field(default_factory=IntervalSet)
    is_reading: bool = False
    is_busy: bool = False
    _found: list[tuple[Range, PublicationRun | None]] = field(default_factory=list)

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
        for start, end in ranges:
            self.open.add(start, end)
        return ranges

    def take(self, lost: int, ranges: Sequence[Range], run: PublicationRun | None) -> None:
        """What is in these ranges has come; what was up to `lost` in them is lost."""
        for low, high in ranges:
            for start, end in self.open.within(low, high):
                self._take_one(lost, start, end, run)
                self.open.remove(start, end)

    def _take_one(self, lost: int, start: int, end: int, run: PublicationRun | None) -> None:
        part = part_of(run, start, end) if run is not None else None
        if part is not None:
            self._found.append(((part.first, part.last), part))
            end = part.first  # nothing is lost behind what is kept
        if start <= lost and start < end:
            self._found.append(((start, min(lost, end - 1)), None))

    def finish(self) -> Iterator[Range | PublicationRun]:
        """The batch is whole: what comes in it, in order; a range is lost, from first to last.

        Ranges with nothing between them that is kept are one.
        """
        assert not self.open, f"{list(self.open)} has not come"
        found, self._found = sorted(self._found, key=lambda item: item[0]), []
        self.given = self.upto
        for is_lost, group in groupby(found, key=lambda item: item[1] is None):
            items = list(group)
            if is_lost:
                yield items[0][0][0], items[-1][0][1]
            else:
                yield merge_runs([part for _, part in items if part is not None])


def ranges_of(ticks: Sequence[int]) -> list[Range]:
    """These ticks, lowest first, as ranges."""
    found: list[Range] = []
    for tick in ticks:
        if found and found[-1][1] == tick:
            found[-1] = (found[-1][0], tick + 1)
        else:
            found.append((tick, tick + 1))
    return found
