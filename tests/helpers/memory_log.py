"""One named log without a disk: it does at once what a core wants done, within its bounds."""

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
from brokerd.protocols.parts.log_bounds import LogBounds


class MemoryLog:
    """What is appended, chopped and truncated; reads are answered later, in order.

    Args:
        page: how many records an answer has at most.

    Attributes:
        reads: how many there were.
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
        """Do this, as a driver would; what is no log's is somebody else's."""
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
        """What was read since the last time."""
        found, self._answers = self._answers, []
        return found
