"""The base of every core: dispatch by type, an outbox, and actions that wait for the disk."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import Peer
from brokerd.protocols.interface import (
    Append,
    Change,
    CloseSession,
    Commit,
    Effect,
    Event,
    Instant,
    LogRecord,
    MessageReceived,
    Persisted,
    Record,
    RecordsRead,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
)

EventHandler = Callable[[Any], None]
MessageHandler = Callable[[Any, Any], None]
"""Receives the peer and the message; the session is the peer's current session."""


class EventMachine:
    """A dispatcher that handles events one by one and gathers the handlers' effects.

    A handler that raises RemoteProtocolError must not have changed or emitted anything before.
    An assertion checks that no effect was emitted.

    Attributes:
        now_ns: the instant of the current event.
        effects: the effects of the current event so far.
    """

    def __init__(self) -> None:
        self.now_ns: Instant = 0
        self.effects: list[Effect] = []
        self._event_handlers: Mapping[type, EventHandler] = {}

    def dispatch_events(self, handlers: Mapping[type, EventHandler]) -> None:
        self._event_handlers = handlers

    def handle(self, event: Event, now_ns: Instant) -> list[Effect]:
        self.now_ns = now_ns
        try:
            self._event_handlers[type(event)](event)
        except RemoteProtocolError:
            assert not self.effects, f"emitted before a message was refused: {self.effects}"
            raise
        self.on_event_end()
        effects = self.effects[:]
        self.effects.clear()
        return effects

    def on_event_end(self) -> None:
        """Emit effects that are gathered over one event; empty unless overridden."""

    def emit(self, effect: Effect) -> None:
        """Queue an effect after all earlier effects."""
        self.effects.append(effect)

    def send(self, peer: Peer, message: Any) -> None:
        """Queue a message for a peer."""
        self.effects.append(Send(peer, message))

    def record(self, event: str, **details: Any) -> None:
        """Write a line into the broker's event log."""
        self.effects.append(Record(event, details))


class LogFirstMachine(EventMachine):
    """An EventMachine that queues other events while it reads its log."""

    def __init__(self) -> None:
        super().__init__()
        self._deferred: list[Any] = []

    @property
    def is_reading(self) -> bool:
        """True while events wait for the log."""
        return bool(self._deferred)

    def handle(self, event: Event, now_ns: Instant) -> list[Effect]:
        """See DeliveryProtocol: other events wait until the log is read."""
        if not self._deferred or isinstance(event, RecordsRead | Persisted):
            return super().handle(event, now_ns)
        if isinstance(event, SessionLost):
            # Its messages cannot be answered any more: its next session would receive the answers.
            over = event.peer, event.session
            self._deferred = [each for each in self._deferred if _session_of(each) != over]
        else:
            self._deferred.append(event)
        return []

    def begin_after_log(self, event: Started, *, is_read: bool) -> None:
        """Begin at once, or after `resume` once the log is read."""
        if is_read:
            self._begin(event)
        else:
            self._deferred.append(event)

    def resume(self) -> None:
        """Begin after the log was read, and handle the queued events."""
        (started, *early), self._deferred = self._deferred, []
        self._begin(started)
        for each in early:
            try:
                self._event_handlers[type(each)](each)
            except RemoteProtocolError as error:
                self.emit(CloseSession(each.peer, error.reason))

    @abstractmethod
    def _begin(self, event: Started) -> None:
        """Begin with the complete state of earlier incarnations."""


def _session_of(event: Event) -> tuple[Peer, int] | None:
    """Return the peer and session of an event; None for an event without a session."""
    if isinstance(event, SessionEstablished | MessageReceived):
        return event.peer, event.session
    return None


def message_handler(
    handlers: Mapping[type, MessageHandler], event: MessageReceived
) -> MessageHandler:
    """Return the handler of a received message.

    Raises:
        RemoteProtocolError: this kind of peer may not send such a message.
    """
    handler = handlers.get(type(event.message))
    if handler is None:
        raise RemoteProtocolError(event.peer, f"{type(event.message).__name__} is not for a broker")
    return handler


@dataclass(slots=True)
class Durability:
    """The actions of a core that wait for durable writes, by token."""

    machine: EventMachine
    _when_durable: dict[int, list[Callable[[], None]]] = field(init=False, default_factory=dict)
    _next_token: int = field(init=False, default=0)
    _last_commit: int = field(init=False, default=0)

    def commit(self, changes: Sequence[Change], then: Callable[[], None]) -> None:
        """Call `then` once the changes are durable: at once without changes."""
        if not changes:
            then()
            return
        self._next_token += 1
        self._last_commit = self._next_token
        self._when_durable[self._next_token] = [then]
        self.machine.emit(Commit(tuple(changes), self._next_token))

    def commit_in_order(self, changes: Sequence[Change], then: Callable[[], None]) -> None:
        """Call `then` once the changes, and all earlier changes, are durable.

        An answer to a repeated request has no changes, and waits for those of the first request.
        """
        if changes:
            self.commit(changes, then)
        else:
            self.when_written(then)

    def when_written(self, then: Callable[[], None]) -> None:
        """Call `then` once all earlier changes are durable: at once if they already are.

        Any number of actions may wait, as a commit without a majority of its replicas waits long.
        """
        waiting = self._when_durable.get(self._last_commit)
        if waiting is None:
            then()
        else:
            waiting.append(then)

    def append(self, log: str, record: LogRecord, then: Callable[[], None]) -> None:
        """Append a record to a log; call `then` once the record is durable."""
        self._next_token += 1
        self._when_durable[self._next_token] = [then]
        self.machine.emit(Append(log, (record,), self._next_token))

    def sync(self, log: str, then: Callable[[], None]) -> None:
        """Call `then` once all earlier appends to any log are durable."""
        self._next_token += 1
        self._when_durable[self._next_token] = [then]
        self.machine.emit(Append(log, (), self._next_token))

    def on_persisted(self, token: int) -> None:
        """Run the actions that wait for this token."""
        for then in self._when_durable.pop(token):
            then()
