"""Actions that wait until a write is durable."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from brokerd.protocols.interface import Append, Change, Commit, LogRecord
from brokerd.protocols.parts.event_machine import EventMachine


@dataclass(slots=True)
class Durability:
    """The actions of a core that wait for durable writes, by token."""

    machine: EventMachine
    _when_durable: dict[int, Callable[[], None]] = field(init=False, default_factory=dict)
    _next_token: int = field(init=False, default=0)
    _last_commit: int = field(init=False, default=0)

    def commit(self, changes: Sequence[Change], then: Callable[[], None]) -> None:
        """Call `then` once the changes are durable: at once without changes."""
        if not changes:
            then()
            return
        self._next_token += 1
        self._last_commit = self._next_token
        self._when_durable[self._next_token] = then
        self.machine.emit(Commit(tuple(changes), self._next_token))

    def when_written(self, then: Callable[[], None]) -> None:
        """Call `then` once all earlier changes are durable: at once if they already are."""
        before = self._when_durable.get(self._last_commit)
        if before is None:
            then()
            return

        def both() -> None:
            before()
            then()

        self._when_durable[self._last_commit] = both

    def append(self, log: str, record: LogRecord, then: Callable[[], None]) -> None:
        """Append a record to a log; call `then` once the record is durable."""
        self._next_token += 1
        self._when_durable[self._next_token] = then
        self.machine.emit(Append(log, (record,), self._next_token))

    def sync(self, log: str, then: Callable[[], None]) -> None:
        """Call `then` once all earlier appends to any log are durable."""
        self._next_token += 1
        self._when_durable[self._next_token] = then
        self.machine.emit(Append(log, (), self._next_token))

    def on_persisted(self, token: int) -> None:
        """Run the action that waits for this token."""
        self._when_durable.pop(token)()
