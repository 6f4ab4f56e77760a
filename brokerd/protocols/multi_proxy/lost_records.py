"""What a topic has let go of although some home was not done with it: numbers, no publications.

Paper: none. [MP22] §4 keeps everything until each subscriber has fetched it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.messages import LostRun

LOST_ROWS: Final = "lost"
"""Per topic and last position of a record of the log: whose publications were in it."""


@dataclass(slots=True)
class LostRecord:
    """One record of the log that is not kept.

    Attributes:
        is_written: it is in a row, which has to go when nobody needs it.
    """

    runs: tuple[LostRun, ...]
    is_written: bool = False


@dataclass(slots=True)
class LostRecords:
    """Those of one topic, by their last positions, ascending; told to whoever was not done.

    Attributes:
        suffix: of the keys of its rows, which tells apart positions that several servers gave.
    """

    topic: int
    suffix: str = ""
    _records: dict[int, LostRecord] = field(default_factory=dict)

    def add(self, run: PublicationRun) -> None:
        """A run, as a topic keeps it, is not kept any more."""
        self._records[run.last] = LostRecord(tuple(_lost_runs(run)))

    def carry(self, runs: Sequence[LostRun]) -> Iterator[Change]:
        """Another server had let go of these; returns what that changes on disk."""
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
        """The lowest position; None: nothing is lost that anybody lacks."""
        return next((record.runs[0].position for record in self._records.values()), None)

    def after(self, position: int) -> list[LostRun]:
        """What lies behind a position; its first run may begin before that."""
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
        """What must be on disk before the record that ends there is chopped; None: nothing."""
        record = self._records.get(last)
        if record is None:
            return None
        record.is_written = True
        value = [[run.position, *run.source, run.first, run.last] for run in record.runs]
        return Change(LOST_ROWS, self._key(last), value)

    def forget(self, through: int) -> Iterator[Change]:
        """Nobody lacks what is up to a position; returns what that changes on disk."""
        gone = [last for last in self._records if last <= through]
        written = [last for last in gone if self._records.pop(last).is_written]
        return iter([Change(LOST_ROWS, self._key(last), None) for last in written])

    def _key(self, last: int) -> str:
        return f"{self.topic}.{last}{self.suffix}"

    def recover(self, last: int, row: Sequence[Sequence[Any]]) -> None:
        """Take over a row of an earlier incarnation."""
        runs = [LostRun(place, SourceId(*source), low, high) for place, *source, low, high in row]
        self._records[last] = LostRecord(tuple(runs), is_written=True)
        self._records = dict(sorted(self._records.items()))


def _lost_runs(run: PublicationRun) -> Iterator[LostRun]:
    """Whose publications a run of a topic has, at which positions."""
    position = run.first
    for source, sequences in run.origins:
        for first, last in _stretches(sequences):
            yield LostRun(position, source, first, last)
            position += last - first + 1


def _stretches(sequences: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Rising numbers as stretches of consecutive ones."""
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
