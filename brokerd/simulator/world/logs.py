"""The named logs of one simulated broker: what of them is durable, and what its core may do."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from brokerd.protocols.interface import (
    Append,
    Chop,
    Event,
    LogEffect,
    LogEnds,
    Persisted,
    Read,
    RecordsRead,
    Truncate,
)
from brokerd.protocols.parts.log_bounds import LogBounds


@dataclass(slots=True)
class _Log:
    """Records from index `first` on."""

    first: int = 1
    records: list[bytes] = field(default_factory=list)


class SimulatedLogs:
    """Logs whose changes are taken from a core first, and are durable when they are written.

    A disk says when; it writes them in the order in which it had them taken.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._logs = {name: _Log() for name in names}
        self._bounds = LogBounds(self.ends())

    def ends(self) -> Mapping[str, LogEnds]:
        """Of what is durable."""
        return {
            name: LogEnds(log.first, log.first + len(log.records))
            for name, log in self._logs.items()
        }

    def contents(self) -> list[tuple[str, int, list[bytes]]]:
        """All that is durable: name, first index, records."""
        return [(name, log.first, log.records) for name, log in self._logs.items()]

    def put_back(self, contents: Iterable[tuple[str, int, Iterable[bytes]]]) -> None:
        """Replace all that is durable by what `contents` returned earlier; () for nothing."""
        self._logs = {name: _Log() for name in self._logs}
        for name, first, records in contents:
            self._logs[name] = _Log(first, [*records])
        self._bounds = LogBounds(self.ends())

    def take(self, effect: LogEffect) -> None:
        """See that the core may do this, after all that was taken before."""
        if isinstance(effect, Append):
            self._bounds.append(effect)
        elif isinstance(effect, Read):
            self._bounds.read(effect)
        elif isinstance(effect, Chop):
            self._bounds.chop(effect)
        else:
            self._bounds.truncate(effect)

    def write(self, effect: LogEffect, page: int) -> Event | None:
        """It is durable now, or read: what the core is told, with at most `page` records."""
        log = self._logs[effect.log]
        if isinstance(effect, Append):
            log.records.extend(b"".join(pieces) for pieces in effect.records)
            return Persisted(effect.token) if effect.token is not None else None
        if isinstance(effect, Read):
            start, end = effect.first - log.first, effect.end - log.first
            records = tuple(log.records[start : min(end, start + page)])
            assert records, f"{effect} of a log from {log.first} on"
            return RecordsRead(effect.log, effect.first, records)
        if isinstance(effect, Truncate):
            del log.records[effect.next - log.first :]
        elif effect.first > log.first:
            del log.records[: effect.first - log.first]
            log.first = effect.first
        return None

    def crash(self) -> None:
        """What was taken and not written is gone."""
        self._bounds = LogBounds(self.ends())
