"""A core that reads its log before all other events."""

from abc import abstractmethod
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import Peer
from brokerd.protocols.interface import (
    CloseSession,
    Effect,
    Event,
    Instant,
    MessageReceived,
    Persisted,
    RecordsRead,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.parts.event_machine import EventMachine


class LogFirstMachine(EventMachine):
    """An EventMachine that queues other events while it reads its log."""

    def __init__(self) -> None:
        super().__init__()
        self._early: list[Any] = []

    @property
    def is_reading(self) -> bool:
        """True while events wait for the log."""
        return bool(self._early)

    def handle(self, event: Event, now_ns: Instant) -> list[Effect]:
        """See DeliveryProtocol: other events wait until the log is read."""
        if not self._early or isinstance(event, RecordsRead | Persisted):
            return super().handle(event, now_ns)
        if isinstance(event, SessionLost):
            # What it said cannot be answered any more: an answer would go to its next session.
            over = event.peer, event.session
            self._early = [each for each in self._early if _session_of(each) != over]
        else:
            self._early.append(event)
        return []

    def begin_after_log(self, event: Started, *, is_read: bool) -> None:
        """Begin at once, or when `go_on` reports that the log is read."""
        if is_read:
            self._begin(event)
        else:
            self._early.append(event)

    def resume(self) -> None:
        """Begin after the log was read, and handle the queued events."""
        (started, *early), self._early = self._early, []
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
