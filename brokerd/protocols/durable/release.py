"""Release: a pubend retains events until all durable subscriptions have acknowledged them.

For each stream the lowest tick is forwarded that all below have acknowledged; a silent broker
below holds everything back. The delivered tick is the core's own ack, and nothing later is
released.

All have acknowledged the core's events that are not released yet, except for subscribers that are
away or catch up. Every broker that such an event has passed keeps it in memory, within a bound in
bytes, so that the publishers' broker need not send it again.

Early release: a pubend releases old events, although disconnected subscribers lack them. A tick may
be lost when all have released it, or when it is beyond a bound and all brokers with subscribers
have acknowledged it. Bounds are an age and the weight of newer events. So live subscribers lack
nothing; subscribers in catch-up receive gaps.

Paper: [DS03] §3 (release protocol: T_r; T_d is the ack of [GD02]; early release, maxRetain), §1.1,
§3 (intermediate brokers cache events).
Deviates: nothing is lost for its age soon after a start, when live subscribers have not had the
time to return.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, ClientId, StreamId
from brokerd.model.losses import has_marker
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.durable.catchup import NOTHING_LOST, LostPart
from brokerd.protocols.durable.consolidated_stream import SubscriptionTable
from brokerd.protocols.durable.holds import Holds
from brokerd.protocols.durable.messages import Origins, Released
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.gryphon import (
    EVENT_BYTES,
    EVERYWHERE,
    TICK_NS,
    AckExpected,
    Cell,
    Done,
    IntervalSet,
    Range,
    RetainedEvents,
    Routes,
    Stream,
    ticks_in,
)
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.interface import Instant, RetainedStream
from brokerd.units import MILLISECOND_NS, SECOND_NS

RETAINED: Final = "retained"
EXCESSIVE: Final = "excessive"

_EXCESS_PAUSE_NS: Final = 20 * MILLISECOND_NS


class Retention:
    """The retention of a broker's pubends, bounded in time and in bytes.

    Attributes:
        most_bytes: the weight of the newest events that are retained in any case; 0 without a
            bound in bytes.
    """

    def __init__(
        self,
        gryphon: Gryphon,
        parameters: DurableParameters,
    ) -> None:
        self._machine = gryphon
        self._deadlines = gryphon.deadlines
        self._pubends = gryphon.pubends
        self._streams = gryphon.streams
        self._max_retain_ns = parameters.max_retain_ns
        self.most_bytes = parameters.max_retain_bytes
        self._grace_ns = parameters.release_grace_ns
        self._from_ns: Instant = 0
        self._released: dict[StreamId, int] = {}
        self._lost: dict[StreamId, tuple[int, Origins]] = {}

    def begin(self) -> None:
        """Continue from the state of an earlier incarnation."""
        # How old the events of an earlier incarnation are, no clock says for sure.
        self._from_ns = self._machine.now_ns + max(self._grace_ns, self._max_retain_ns)
        for stream in self._streams.own():
            self._released[stream.identity] = stream.held = self._pubends.released(
                stream.identity.publisher
            )
        self.schedule()

    def on_released(self, stream: Stream, through: int) -> None:
        """Record the released tick of a stream, which may have to be retained less."""
        self._released[stream.identity] = through
        self._hold(stream)

    def schedule(self) -> None:
        """Schedule the expiry of new events."""
        if self._max_retain_ns and (RETAINED, None) not in self._deadlines:
            due_ns = self._next_ns()
            if due_ns is not None:
                self._deadlines.set((RETAINED, None), due_ns)
        if self.most_bytes and (EXCESSIVE, None) not in self._deadlines:
            streams = self._streams.own()
            if any(self._excess_tick(stream) > (stream.held or 0) for stream in streams):
                due_ns = self._machine.now_ns + _EXCESS_PAUSE_NS
                self._deadlines.set((EXCESSIVE, None), max(due_ns, self._from_ns))

    def expire(self) -> Iterator[Stream]:
        """Release events beyond the bounds; yield streams that may be retained less."""
        for stream in self._streams.own():
            self._hold(stream)
            yield stream
        self.schedule()

    def _hold(self, stream: Stream) -> None:
        bounds = self.expired_tick(), self._excess_tick(stream) if self._is_settled else 0
        stream.held = max(self._released[stream.identity], stream.held or 0, *bounds)

    @property
    def _is_settled(self) -> bool:
        """True unless live subscribers may lack the time to return since the start."""
        return self._machine.now_ns >= self._from_ns

    def _excess_tick(self, stream: Stream) -> int:
        """Return the tick through which newer events have the weight to retain."""
        if not self.most_bytes:
            return 0
        return stream.knowledge.events.before_newest(self.most_bytes, EVENT_BYTES)

    def expired_tick(self) -> int:
        """Return the tick through which events are older than the retention."""
        if not self._max_retain_ns or not self._is_settled:
            return 0
        oldest = self._pubends.tick(self._machine.now_ns) - ticks_in(self._max_retain_ns)
        return max(0, oldest - 1)

    def _next_ns(self) -> Instant | None:
        """Return the expiry of the next event, or later to bound the rate."""
        now_ns = self._machine.now_ns
        firsts = [stream.knowledge.events.after(stream.held or 0) for stream in self._streams.own()]
        waiting = [tick for tick in firsts if tick is not None]
        if not waiting:
            return None
        lacking = min(waiting) + 1 - self._pubends.tick(now_ns)
        old_ns = now_ns + self._max_retain_ns + lacking * TICK_NS
        pause_ns = min(max(self._max_retain_ns // 16, MILLISECOND_NS), SECOND_NS)
        return max(old_ns, self._from_ns, now_ns + pause_ns)

    # ------------------------------------------------------------ losses

    def find_loss(self, stream: Stream, first: int) -> LostPart:
        """Return the loss in an answer about ticks from `first` on.

        Below a loss marker, events may be lost that are neither released nor in the log.
        """
        final, (marked, markers) = stream.knowledge.final, self._pubends.losses(stream.identity)
        if first <= final:
            return LostPart(max(final, marked), self.lost_origins(stream))
        return LostPart(marked, tuple(sorted(markers))) if first <= marked else NOTHING_LOST

    def lost_origins(self, stream: Stream) -> Origins:
        """Return the lost numbers per source: of publications that were on disk and are no more."""
        final = stream.knowledge.final
        known = self._lost.get(stream.identity)
        if known is None or known[0] != final:
            known = self._lost[stream.identity] = final, self._origins(stream)
        return known[1]

    def _origins(self, stream: Stream) -> Origins:
        last = dict(self._pubends.sources(stream.identity))
        kept = {
            source: sequences[0]
            for run in reversed([*stream.knowledge.events])
            for source, sequences in reversed(run.origins)
        }
        lost = {source: kept.get(source, through + 1) - 1 for source, through in last.items()}
        lost |= dict(self._pubends.losses(stream.identity)[1])
        return tuple(sorted((source, through) for source, through in lost.items() if through))


class StoredEvents(RetainedEvents):
    """Stored events of one stream, with their weight.

    Simulations bound these runs by the limit of the store, and all others by what is live.
    """

    __slots__ = ()

    @property
    def stored_bytes(self) -> int:
        """The weight of all events."""
        return self.payload_bytes + EVENT_BYTES * self.events


class PassedEvents:
    """Events that have passed this broker and are not released here and below.

    An event is at its tick for ever, so an event of this store is an answer to a request for that
    tick. The store never states that a tick has no event. An accepted loss of a pubend ends that:
    the loss marker of a stream removes all earlier events.

    Args:
        limit_bytes: the most bytes of payload and overhead of all events; the oldest are removed
            first. 0: no event is stored.

    Attributes:
        stored_bytes: of all events.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.stored_bytes = 0
        self._limit_bytes = limit_bytes
        self._streams: dict[StreamId, StoredEvents] = {}
        self._through: dict[StreamId, int] = {}

    def through(self, identity: StreamId) -> int:
        """Return the tick through which a stream was seen here, and may be stored."""
        return self._through.get(identity, 0)

    def pass_on(self, stream: Stream, released: int) -> None:
        """Store the next events of a stream of another broker, up to the doubt horizon.

        Args:
            released: the tick through which no broker will request events.
        """
        if not self._limit_bytes:
            return
        identity, knowledge = stream.identity, stream.knowledge
        before = max(self._through.get(identity, stream.subend.position), knowledge.final)
        horizon = self._through[identity] = knowledge.horizon(before)
        run = knowledge.events.within(before + 1, horizon + 1) if horizon > before else None
        if run is None:
            return
        if has_marker(run):
            self.drop_through(identity, run.last)
        elif (rest := run.after(released)) is not None:
            self._add(rest)

    def _add(self, run: PublicationRun) -> None:
        events = self._streams.setdefault(run.source, StoredEvents())
        events.add(run)
        self.stored_bytes += run.payload_bytes() + EVENT_BYTES * len(run)
        if events.is_scattered:
            events.condense(run.last)
        if self.stored_bytes > self._limit_bytes:
            self._evict()

    def runs(self) -> Iterator[tuple[StreamId, list[PublicationRun]]]:
        """Yield the stored runs of each stream, lowest first."""
        for identity, events in self._streams.items():
            yield identity, [*events]

    def drop_through(self, identity: StreamId, tick: int) -> None:
        """Remove the events of a stream through a tick, which no broker will request any more."""
        events = self._streams.get(identity)
        if events is None:
            return
        self.stored_bytes -= events.stored_bytes
        events.drop_through(tick)
        self.stored_bytes += events.stored_bytes
        if not events.events:
            del self._streams[identity]

    def cut(self, identity: StreamId, requested: Range, room_bytes: int) -> tuple[int, int]:
        """Return the place in a range at which the events exceed the room, and the rest of it."""
        events = self._streams.get(identity)
        if events is None:
            return requested[1], room_bytes
        return events.cut(*requested, room_bytes, EVENT_BYTES)

    def take(self, identity: StreamId, left: IntervalSet) -> PublicationRun | None:
        """Return stored events in some ranges, and remove their ticks from the ranges.

        Only events at adjacent ticks are taken from a range. A range with silence is a request for
        all that its pubend has, and would fall into a piece for each tick between events.
        """
        events = self._streams.get(identity)
        parts = []
        for start, end in [*left] if events is not None else ():
            part = events.within(start, end) if events is not None else None
            if part is not None and part.last - part.first + 1 == len(part):
                parts.append(part)
                left.remove(part.first, part.last + 1)
        return merge_runs(parts) if parts else None

    def _evict(self) -> None:
        """Remove the oldest events of all streams, and some more, so that the next ones fit."""
        most_bytes = self._limit_bytes - self._limit_bytes // 16
        while self.stored_bytes > most_bytes:
            oldest = min((next(iter(each)) for each in self._streams.values()), key=_first_tick)
            self.drop_through(oldest.source, oldest.last)


def _first_tick(run: PublicationRun) -> int:
    return run.first


def _weigh(events: RetainedEvents, behind: int) -> tuple[int, int]:
    """Return the number and the payload bytes of events behind a tick."""
    parts = [part for run in events.runs_after(behind) if (part := run.after(behind)) is not None]
    return sum(map(len, parts)), sum(part.payload_bytes() for part in parts)


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
                    {tick: _weigh(events, tick) for tick in after.get(stream.identity, ())},
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

        After a loss, the neighbour learns from less than before that this broker lacks the rest.
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
        for identity, through in message.through:
            stream = self._streams.from_downstream(peer, identity, cell)
            if stream.upstream is None and through > stream.knowledge.highest:
                raise RemoteProtocolError(
                    peer, f"releases {through} of {identity}, which has fewer ticks"
                )
            yield stream, through
