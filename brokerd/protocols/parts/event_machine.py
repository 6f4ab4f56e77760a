"""The base of every core: dispatch by type of event and message, and an outbox."""

from collections.abc import Callable, Mapping
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import Peer
from brokerd.protocols.interface import Effect, Event, Instant, MessageReceived, Record, Send

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
        """Set the handler of each type of event."""
        self._event_handlers = handlers

    def handle(self, event: Event, now_ns: Instant) -> list[Effect]:
        """See DeliveryProtocol.handle."""
        self.now_ns = now_ns
        try:
            self._event_handlers[type(event)](event)
        except RemoteProtocolError:
            assert not self.effects, f"emitted before a message was refused: {self.effects}"
            raise
        self.before_return()
        effects = self.effects[:]
        self.effects.clear()
        return effects

    def before_return(self) -> None:
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
