"""The named logs of one simulated broker: durable records, and permitted effects of the core."""

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
    """Logs with changes that are first accepted from a core, and durable after `write`.

    A disk decides the time of a write. The order of writes is the order of acceptance.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._logs = {name: _Log() for name in names}
        self._bounds = LogBounds(self.ends())

    def ends(self) -> Mapping[str, LogEnds]:
        """Return the ends of the durable logs."""
        return {
            name: LogEnds(log.first, log.first + len(log.records))
            for name, log in self._logs.items()
        }

    def contents(self) -> list[tuple[str, int, list[bytes]]]:
        """Return all durable logs: name, first index, records."""
        return [(name, log.first, log.records) for name, log in self._logs.items()]

    def put_back(self, contents: Iterable[tuple[str, int, Iterable[bytes]]]) -> None:
        """Replace all durable records by an earlier result of `contents`; () for nothing."""
        self._logs = {name: _Log() for name in self._logs}
        for name, first, records in contents:
            self._logs[name] = _Log(first, [*records])
        self._bounds = LogBounds(self.ends())

    def take(self, effect: LogEffect) -> None:
        """Assert that the core may apply an effect after all accepted effects."""
        if isinstance(effect, Append):
            self._bounds.append(effect)
        elif isinstance(effect, Read):
            self._bounds.read(effect)
        elif isinstance(effect, Chop):
            self._bounds.chop(effect)
        else:
            self._bounds.truncate(effect)

    def write(self, effect: LogEffect, page: int) -> Event | None:
        """Make an effect durable, or read up to `page` records; return the event for the core."""
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
        """Drop effects that were accepted and not written."""
        self._bounds = LogBounds(self.ends())
