"""A named log without a disk, which carries out effects at once, within bounds."""

from collections.abc import Iterable

from brokerd.protocols.interface import (
    Append,
    Chop,
    LogEffect,
    LogEnds,
    Read,
    RecordsRead,
    Truncate,
)
from brokerd.protocols.parts.bounds import LogBounds


class MemoryLog:
    """A log that appends, chops and truncates at once; reads are answered later, in order.

    Args:
        page: maximum number of records in an answer.

    Attributes:
        reads: number of reads.
    """

    def __init__(self, name: str, page: int = 1_000) -> None:
        self.reads = 0
        self._name = name
        self._page = page
        self._first = 1
        self._records: list[bytes] = []
        self._bounds = LogBounds({name: LogEnds()})
        self._answers: list[RecordsRead] = []

    @property
    def ends(self) -> LogEnds:
        return LogEnds(self._first, self._first + len(self._records))

    @property
    def records(self) -> list[bytes]:
        return self._records

    def do(self, effects: Iterable[LogEffect]) -> None:
        """Carry out effects as a driver does; ignore effects of other parts."""
        for effect in effects:
            if isinstance(effect, Append):
                self._bounds.append(effect)
                self._records += [b"".join(map(bytes, record)) for record in effect.records]
            elif isinstance(effect, Read):
                self._bounds.read(effect)
                self.reads += 1
                end = min(effect.end, effect.first + self._page)
                found = self._records[effect.first - self._first : end - self._first]
                self._answers.append(RecordsRead(self._name, effect.first, tuple(found)))
            elif isinstance(effect, Chop):
                if self._bounds.chop(effect):
                    del self._records[: effect.first - self._first]
                    self._first = effect.first
            else:
                assert isinstance(effect, Truncate), f"{effect}"
                if self._bounds.truncate(effect):
                    del self._records[effect.next - self._first :]

    def answers(self) -> list[RecordsRead]:
        """Return the results of reads since the previous call."""
        found, self._answers = self._answers, []
        return found
