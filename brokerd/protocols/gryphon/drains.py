"""The departures of clients that are owed all earlier publications first.

A client that moves has begun at its new broker, and then requests the rest from its old broker.
Each stream continues at the new broker behind some tick. The last subscription at the old broker,
which the client makes for that purpose, begins later in each stream, and all that precedes its
beginning is delivered before the subscriptions end. Without filters a subscription begins at once,
and the client states how far the new broker had delivered each stream. A client's word requests no
ticks: the broker requests the ends of the streams (`Doubt`) until the streams have reached the
ticks.

A beginning may arrive before the events in front of it: they may wait for a window or for the
streams that they are merged with, or arrive over another broker of a cell.

Paper: none; [GD02] §2 leaves subscriptions that come and go to others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from brokerd.model.identity import ClientId, StreamId
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.stream import Stream, Streams
from brokerd.protocols.interface import Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue

DRAINS: Final = "drains"
"""Purpose of the deadline at which the ends of awaited streams are requested again."""


class Drains:
    """The clients of a broker that leave once streams have passed certain ticks.

    Args:
        identities: the streams of all pubends.

    Attributes:
        waiting: per client, the ticks that streams have to pass.
    """

    def __init__(
        self,
        streams: Streams,
        identities: Sequence[StreamId],
        deadlines: DeadlineQueue[tuple[str, Any]],
        parameters: GryphonParameters,
    ) -> None:
        self._streams = streams
        self._identities = dict.fromkeys(identities)
        self._deadlines = deadlines
        self._repetition_ns = parameters.nack_repetition_ns
        self.waiting: dict[ClientId, dict[StreamId, int]] = {}

    def add(self, client: ClientId, begins: Iterable[Mapping[StreamId, int]]) -> None:
        """Request all ticks before the beginnings of a client's subscriptions.

        The caller looks at all streams.
        """
        through = {stream.identity: stream.knowledge.highest for stream in self._streams.own()}
        for each in begins:
            for identity, tick in each.items():
                through[identity] = max(tick, through.get(identity, 0))
        for identity, tick in through.items():
            self._streams.get(identity).subend.expect(tick)
        self.waiting[client] = through

    def await_stated(
        self, client: ClientId, stated: Iterable[tuple[StreamId, int]], now_ns: Instant
    ) -> None:
        """Wait for the ticks that a leaving client states, in streams of other brokers, too.

        The caller looks at all streams.
        """
        through = self.waiting[client]
        for identity, tick in stated:
            if identity in self._identities and not self._streams.is_own(identity):
                self._streams.get(identity)
                through[identity] = max(tick, through.get(identity, 0))
        self._deadlines.set((DRAINS, None), now_ns)

    def find_lacking(self, now_ns: Instant) -> list[Stream]:
        """Return the streams with ends to request now; a deadline repeats the request."""
        lacking = {
            identity: self._streams.get(identity)
            for through in self.waiting.values()
            for identity, tick in through.items()
            if self._lacks(identity, tick) and not self._streams.is_own(identity)
        }
        if lacking:
            self._deadlines.set((DRAINS, None), now_ns + self._repetition_ns)
        return [*lacking.values()]

    def drop(self, client: ClientId) -> None:
        """Remove a client after the end of its session."""
        self.waiting.pop(client, None)

    def settle(self) -> Iterator[ClientId]:
        """Remove and yield the clients with streams that have passed their ticks.

        A client may leave while an earlier one is handled.
        """
        for client, through in list(self.waiting.items()):
            if client in self.waiting and self._has_passed(through):
                del self.waiting[client]
                yield client

    def _has_passed(self, through: Mapping[StreamId, int]) -> bool:
        return not any(self._lacks(*each) for each in through.items())

    def _lacks(self, identity: StreamId, tick: int) -> bool:
        stream = self._streams.get(identity)
        return stream.subend.passed(stream.knowledge) < tick
