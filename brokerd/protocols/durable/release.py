"""Release: a pubend retains events until all durable subscriptions have acknowledged them.

For each stream the lowest tick is forwarded that all below have acknowledged; a silent broker
below holds everything back. The delivered tick is the core's own ack, and nothing later is
released.

Paper: [DS03] §3 (release protocol: T_r; T_d is the ack of [GD02]).
"""

from collections.abc import Callable, Iterator
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.durable.messages import Released
from brokerd.protocols.gryphon import Cell, Links, Routes, Stream
from brokerd.protocols.interface import Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler

RELEASE: Final = "release"


class Release:
    """The released ticks of streams here and below.

    Args:
        own: returns the tick that this broker's own subscriptions have released.
        on_released: called when more of a stream of this broker's pubends is released.
    """

    def __init__(
        self,
        machine: EventMachine,
        routes: Routes,
        deadlines: DeadlineQueue[tuple[str, object]],
        interval_ns: Instant,
        streams: Callable[[StreamId], Stream],
        links: Links,
        own: Callable[[StreamId], int],
        on_released: Callable[[Stream, int], None],
    ) -> None:
        self._machine = machine
        self._routes = routes
        self._deadlines = deadlines
        self._interval_ns = interval_ns
        self._streams = streams
        self._links = links
        self._own = own
        self._on_released = on_released
        self._below: dict[tuple[Cell, StreamId], int] = {}
        self._through: dict[StreamId, int] = {}
        self._news: dict[StreamId, None] = {}

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of neighbours' messages."""
        return {Released: self._on_message}

    def restore(self, stream: Stream, through: int) -> None:
        """Restore the released tick of a stream of this broker."""
        self._through[stream.identity] = through

    def through(self, identity: StreamId) -> int:
        """Return the released tick of a stream here and below."""
        return self._through.get(identity, 0)

    def below(self, cell: Cell, stream: Stream) -> int:
        """Return the released tick of a cell and all below; 0 without a report."""
        return self._below.get((cell, stream.identity), 0)

    def drop(self, cell: Cell) -> None:
        """Remove a decommissioned cell below; nothing is retained for it."""
        self._below = {key: tick for key, tick in self._below.items() if key[0] != cell}

    def settle(self, stream: Stream) -> None:
        """Announce progress of this broker's subscriptions."""
        identity = stream.identity
        through = self._lowest(stream)
        if through <= self.through(identity):
            return
        self._through[identity] = through
        if stream.upstream is None:
            self._on_released(stream, through)
        else:
            self._news[identity] = None
            if (RELEASE, None) not in self._deadlines:
                self._deadlines.set((RELEASE, None), self._machine.now_ns + self._interval_ns)

    def _lowest(self, stream: Stream) -> int:
        """Return the lowest tick; it decreases when a subscription with less arrives."""
        below = [self.below(cell, stream) for cell in stream.children]
        return min([self._own(stream.identity), *below])

    def due(self) -> None:
        """Send news upstream."""
        news, self._news = self._news, {}
        by_peer: dict[BrokerNumber, list[StreamId]] = {}
        for identity in news:
            for peer in self._links.up(identity, None, sideways=False):
                by_peer.setdefault(peer, []).append(identity)
        for peer, identities in by_peer.items():
            self._announce(peer, identities)

    def on_session(self, peer: BrokerNumber) -> None:
        """Send all ticks to a neighbour with a new session, which may lack them."""
        cell = self._routes.cell_of(peer)
        self._announce(
            peer, [each for each in self._through if self._streams(each).upstream == cell]
        )

    def _announce(self, peer: BrokerNumber, identities: list[StreamId]) -> None:
        if not identities:
            return
        for each in identities:  # later ticks are news again
            self._through[each] = self._lowest(self._streams(each))
        self._machine.send(
            peer, Released(tuple((each, self._through[each]) for each in identities))
        )

    def _on_message(self, peer: BrokerNumber, message: Released) -> None:
        cell = self._routes.cell_of(peer)
        told = list(self._check(peer, message))
        for stream, through in told:
            key = cell, stream.identity
            self._below[key] = max(through, self._below.get(key, 0))
            self.settle(stream)

    def _check(self, peer: BrokerNumber, message: Released) -> Iterator[tuple[Stream, int]]:
        for identity, through in message.through:
            if self._routes.upstream(peer, identity) == self._routes.cell_of(peer):
                raise RemoteProtocolError(peer, f"{identity} does not go there")
            stream = self._streams(identity)
            if stream.upstream is None and through > stream.knowledge.highest:
                raise RemoteProtocolError(
                    peer, f"releases {through} of {identity}, which has fewer ticks"
                )
            yield stream, through
