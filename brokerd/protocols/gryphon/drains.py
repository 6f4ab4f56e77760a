"""The departures of clients that are owed all earlier publications first.

A client that moves has begun at its new broker, and then asks its old broker for the rest. Each
stream continues at the new broker behind some tick. The last subscription at the old broker, which
the client makes for that purpose, begins later in each stream, and all that precedes its beginning
is delivered before the subscriptions end. Without filters its beginnings are known in the streams
of this broker only.

A beginning may arrive before the events in front of it: they may wait for a window or for the
streams that they are merged with, or arrive over another broker of a cell.

Paper: none; [GD02] §2 leaves subscriptions that come and go to others.
"""

from collections.abc import Iterable, Iterator, Mapping

from brokerd.model.identity import ClientId, StreamId
from brokerd.protocols.gryphon.stream import Streams


class Drains:
    """The clients of a broker that leave once streams have passed certain ticks.

    Attributes:
        waiting: per client, the ticks that streams have to pass.
    """

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
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

    def drop(self, client: ClientId) -> None:
        """Remove a client after the end of its session."""
        self.waiting.pop(client, None)

    def settle(self) -> Iterator[ClientId]:
        """Yield the clients with streams that have passed their ticks, and wait for them no more.

        A client may leave while an earlier one is handled.
        """
        for client, through in list(self.waiting.items()):
            if client in self.waiting and self._has_passed(through):
                del self.waiting[client]
                yield client

    def _has_passed(self, through: Mapping[StreamId, int]) -> bool:
        for identity, tick in through.items():
            stream = self._streams.get(identity)
            if stream.subend.passed(stream.knowledge) < tick:
                return False
        return True
