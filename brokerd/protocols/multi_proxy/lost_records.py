"""Records that were released without all acknowledgements: numbers without publications.

Paper: none. [MP22] §4 keeps everything until each subscriber has fetched it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.model.identity import SourceId
from brokerd.model.losses import has_marker, lost_range
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.messages import LostRun

LOST_ROWS: Final = "lost"
"""Per topic and last position of a record of the log: the sources and numbers in the record."""


@dataclass(slots=True)
class LostRecord:
    """A record of the log that is not retained.

    Attributes:
        is_written: True if there is a row, which is removed once no broker needs it.
    """

    runs: tuple[LostRun, ...]
    is_written: bool = False


@dataclass(slots=True)
class LostRecords:
    """The lost records of a topic, by last positions, ascending; reported to followers as gaps.

    Attributes:
        suffix: of the keys of its rows, which separates the positions of several servers.
    """

    topic: int
    suffix: str = ""
    _records: dict[int, LostRecord] = field(default_factory=dict)

    def add(self, run: PublicationRun) -> None:
        """Add a run that is not retained any more."""
        self._records[run.last] = LostRecord(tuple(list_lost_runs(run)))

    def carry(self, runs: Sequence[LostRun]) -> Iterator[Change]:
        """Add another server's lost runs, and return the changes on disk."""
        rows: list[Change] = []
        for run in runs:
            self._records[run.end] = LostRecord((run,))
            row = self.row(run.end)
            rows += [row] if row is not None else []
        return iter(rows)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def first(self) -> int | None:
        """The lowest position; None if nothing is lost that a follower lacks."""
        return next((record.runs[0].position for record in self._records.values()), None)

    def after(self, position: int) -> list[LostRun]:
        """Return the runs after a position; the first run may begin before it."""
        found: list[LostRun] = []
        for last, record in self._records.items():
            for run in record.runs if last > position else ():
                before = found[-1] if found else None
                if before is not None and before.continues_in(run):
                    found[-1] = before._replace(last=run.last)
                else:
                    found.append(run)
        return found

    def row(self, last: int) -> Change | None:
        """Return the row that must be durable before a record is truncated, or None."""
        record = self._records.get(last)
        if record is None:
            return None
        record.is_written = True
        value = [[run.position, *run.source, run.first, run.last] for run in record.runs]
        return Change(LOST_ROWS, self._key(last), value)

    def forget(self, through: int) -> Iterator[Change]:
        """Forget records through a position that no follower lacks; return the changes on disk."""
        gone = [last for last in self._records if last <= through]
        written = [last for last in gone if self._records.pop(last).is_written]
        return iter([Change(LOST_ROWS, self._key(last), None) for last in written])

    def _key(self, last: int) -> str:
        return f"{self.topic}.{last}{self.suffix}"

    def recover(self, last: int, row: Sequence[Sequence[Any]]) -> None:
        """Restore a row of an earlier incarnation."""
        runs = [LostRun(place, SourceId(*source), low, high) for place, *source, low, high in row]
        self._records[last] = LostRecord(tuple(runs), is_written=True)
        self._records = dict(sorted(self._records.items()))


def list_lost_runs(run: PublicationRun) -> Iterator[LostRun]:
    """Yield the sources of a topic's run, with their numbers and positions.

    A loss marker stands for positions, which it names.
    """
    if has_marker(run):
        stream, first, last = lost_range(run)
        yield LostRun(first, stream, first, last)
        return
    position = run.first
    for source, sequences in run.origins:
        for first, last in _stretches(sequences):
            yield LostRun(position, source, first, last)
            position += last - first + 1


def _stretches(sequences: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ascending numbers as ranges of consecutive numbers."""
    if isinstance(sequences, range):
        yield sequences[0], sequences[-1]
        return
    first = last = sequences[0]
    for sequence in sequences[1:]:
        if sequence != last + 1:
            yield first, last
            first = sequence
        last = sequence
    yield first, last
