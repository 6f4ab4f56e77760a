"""Release: a pubend retains events until all durable subscriptions have acknowledged them.

For each stream the lowest tick is forwarded that all below have acknowledged; a silent broker
below holds everything back. The delivered tick is the core's own ack, and nothing later is
released.

At the pubend, `Retention` turns the released tick into the bound `Stream.held`. `Gryphon.settle`
advances the final tick of the stream through that bound, and `Pubends.release` truncates the log.

Paper: [DS03] §3 (release protocol: T_r; T_d is the ack of [GD02]).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.protocols.durable.consolidated_stream import SubscriptionTable
from brokerd.protocols.durable.holds import Holds
from brokerd.protocols.durable.messages import Released
from brokerd.protocols.durable.passed_events import PassedEvents, weigh
from brokerd.protocols.durable.retention import Retention
from brokerd.protocols.extensions import RetainedStream
from brokerd.protocols.gryphon import (
    EVERYWHERE,
    AckExpected,
    Cell,
    Done,
    Routes,
    Stream,
    check_ticks,
)
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.interface import Instant

RELEASE: Final = "release"


class Release:
    """The released ticks of streams here and below.

    Args:
        table: the subscriptions of this broker.
        holds: of this broker's pubends.
        retention: of this broker's pubends.
        passed: the stored events of other brokers' pubends.
    """

    def __init__(
        self,
        gryphon: Gryphon,
        routes: Routes,
        interval_ns: Instant,
        table: SubscriptionTable,
        holds: Holds,
        retention: Retention,
        passed: PassedEvents,
    ) -> None:
        self._machine = gryphon
        self._routes = routes
        self._deadlines = gryphon.deadlines
        self._interval_ns = interval_ns
        self._streams = gryphon.streams
        self._sessions = gryphon.neighbours.sessions
        self._table = table
        self._holds = holds
        self._retention = retention
        self._passed = passed
        self._below: dict[tuple[Cell, StreamId], int] = {}
        self._through: dict[StreamId, int] = {}
        self._changes: dict[StreamId, None] = {}
        self._beside: dict[Cell, dict[StreamId, None]] = {}

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
        self._beside.pop(cell, None)

    def settle(self, stream: Stream) -> bool:
        """Announce progress of this broker's subscriptions upstream.

        Returns True if the stream is of a pubend here, which may retain less.
        """
        identity = stream.identity
        through = self._lowest(stream)
        if through <= self.through(identity):
            return False
        self._through[identity] = through
        if stream.upstream is None:
            self._retention.on_released(stream, through)
            return True
        self._passed.drop_through(identity, through)
        self._changes[identity] = None
        self._schedule()
        return False

    def _schedule(self) -> None:
        if (RELEASE, None) not in self._deadlines:
            self._deadlines.set((RELEASE, None), self._machine.now_ns + self._interval_ns)

    def _lowest(self, stream: Stream) -> int:
        """Return the lowest tick; it decreases when a subscription with less arrives.

        A broker without clients, and with no cell below, needs nothing that is final.
        """
        ticks = [self.below(cell, stream) for cell in stream.children]
        if self._routes.is_host:
            ticks.append(self.own(stream.identity))
        return min(ticks, default=stream.knowledge.final)

    def list_retained(self, after: Mapping[StreamId, Sequence[int]]) -> list[RetainedStream]:
        """Return the events that pubends of this broker retain, for people."""
        found = []
        for stream in self._streams.own():
            events = stream.knowledge.events
            brokers, moved = self._holders(stream) if events.events else ((), ())
            found.append(
                RetainedStream(
                    stream.identity,
                    events.events,
                    events.payload_bytes,
                    {tick: weigh(events, tick) for tick in after.get(stream.identity, ())},
                    brokers,
                    moved,
                )
            )
        return found

    def _holders(
        self, stream: Stream
    ) -> tuple[tuple[BrokerNumber, ...], tuple[tuple[ClientId, int], ...]]:
        """Return the brokers, and the subscriptions with holds, with the lowest released tick."""
        identity, lowest = stream.identity, self._lowest(stream)
        brokers = [
            each
            for cell in stream.children
            if self.below(cell, stream) == lowest
            for each in self._routes.linked[cell]
        ]
        if self._routes.is_host and self._table.released(identity) == lowest:
            brokers.append(identity.broker)
        held = self._holds.of(identity).items()
        return tuple(brokers), tuple((key[0], key[1]) for key, tick in held if tick == lowest)

    def own(self, stream: StreamId) -> int:
        """Return the released tick of this broker's subscriptions and holds."""
        own = self._table.released(stream)
        held = self._holds.bound(stream) if self._holds.named else None
        return own if held is None else min(own, held)

    def due(self) -> None:
        """Send news to all members of the cells upstream, and to the members of this cell.

        A member that does not reach the pubend at present may be the first to reach it again.
        """
        changes, self._changes = self._changes, {}
        by_cell: dict[Cell, list[StreamId]] = {}
        for identity in changes:
            upstream = self._streams.get(identity).upstream
            assert upstream is not None, f"{identity} has its pubend here"
            by_cell.setdefault(upstream, []).append(identity)
        for cell, identities in by_cell.items():
            for peer in self._present(cell):
                self._announce(peer, identities)
        beside, self._beside = self._beside, {}
        for cell, streams in beside.items():
            for peer in self._present(self._routes.cell):
                self._announce_below(peer, cell, [*streams])

    def _present(self, cell: Cell) -> list[BrokerNumber]:
        return [each for each in self._routes.linked[cell] if each in self._sessions]

    def on_session(self, peer: BrokerNumber) -> None:
        """Send all ticks to a neighbour with a new session, which may lack them."""
        cell = self._routes.cell_of(peer)
        self._announce(
            peer, [each for each in self._through if self._streams.get(each).upstream == cell]
        )
        if cell == self._routes.cell:
            for below in self._routes.cells:
                theirs = [stream for child, stream in self._below if child == below]
                self._announce_below(peer, below, theirs)

    def expect(self, peer: BrokerNumber) -> None:
        """Have a broker below request missed events at once, as after a failure of that broker.

        It may have acknowledged more than has arrived here, and may have lost that in a restart.

        Paper: [DS03] §5.3 ("the constream nacks the events it missed").
        """
        cell = self._routes.cell_of(peer)
        for stream in self._streams:
            if cell not in stream.children:
                continue
            through = max(
                stream.knowledge.highest, stream.subend.expected, stream.acknowledged_by(cell)
            )
            if self.below(cell, stream) < through:
                self._machine.send(peer, AckExpected(stream.identity, through, EVERYWHERE))

    def offer(self, peer: BrokerNumber) -> None:
        """Acknowledge all streams of a neighbour as far as they are known here, even unknown ones.

        After a loss, less than before shows the neighbour that this broker lacks the rest.
        """
        cell = self._routes.cell_of(peer)
        streams = [each for each in self._streams if each.upstream == cell]
        through = tuple((stream.identity, stream.knowledge.final) for stream in streams)
        if through:
            self._machine.send(peer, Done(self._routes.cell, through))

    def _announce(self, peer: BrokerNumber, identities: list[StreamId]) -> None:
        if not identities:
            return
        for each in identities:  # later ticks are news again
            self._through[each] = self._lowest(self._streams.get(each))
        through = tuple((each, self._through[each]) for each in identities)
        self._machine.send(peer, Released(self._routes.cell, through))

    def _announce_below(self, peer: BrokerNumber, cell: Cell, identities: list[StreamId]) -> None:
        """Forward the ticks of a cell below to a member of this cell."""
        through = tuple((each, self._below[cell, each]) for each in identities)
        if through:
            self._machine.send(peer, Released(cell, through))

    def on_message(self, peer: BrokerNumber, message: Released) -> Iterator[Stream]:
        """Record the released ticks of a cell below; yield streams that may be retained less."""
        cell, theirs = message.cell, self._routes.cell_by_broker[peer]
        checked = list(self._check(peer, cell, message))
        for stream, through in checked:
            key = cell, stream.identity
            if through > self._below.get(key, 0) and cell == theirs and self._routes.peers:
                self._beside.setdefault(cell, {})[stream.identity] = None
                self._schedule()
            self._below[key] = max(through, self._below.get(key, 0))
            if self.settle(stream):
                yield stream

    def _check(
        self, peer: BrokerNumber, cell: Cell, message: Released
    ) -> Iterator[tuple[Stream, int]]:
        """Yield the released ticks of a cell below.

        Raises:
            RemoteProtocolError: the peer may not announce them; the fault of the peer.
        """
        theirs = self._routes.cell_by_broker[peer]
        if cell not in self._routes.cells or theirs not in (cell, self._routes.cell):
            raise RemoteProtocolError(peer, f"releases for cell {cell}")
        check_ticks(peer, (through for _, through in message.through))
        for identity, through in message.through:
            stream = self._streams.from_downstream(peer, identity, cell)
            if stream.upstream is None and through > stream.knowledge.highest:
                raise RemoteProtocolError(
                    peer, f"releases {through} of {identity}, which has fewer ticks"
                )
            yield stream, through
