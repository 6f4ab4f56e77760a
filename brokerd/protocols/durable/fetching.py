"""The fetching of missed events from their pubend.

An event is requested once for all subscribers that lack it; a broker on the route answers with
events that it still has, and forwards the rest. Only the pubend answers that there is no event:
silence at other brokers may be filtered for those below. Events that have passed a broker are
stored for subscribers that were away, and recently fetched ones for those that return shortly after
the first.

Paper: [DS03] §3 (intermediate brokers cache and consolidate nacks), §4.1, §5 (many reconnect at
once).
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.message_kind import JOINED_BYTES
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.durable.catchup import NOTHING_LOST, LostPart, ranges_of
from brokerd.protocols.durable.messages import (
    Beyond,
    Deferred,
    Fetch,
    Fetched,
    NothingFetched,
    clip_ranges,
)
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.passed_events import PassedEvents
from brokerd.protocols.durable.retention import Retention
from brokerd.protocols.durable.state import Questions
from brokerd.protocols.gryphon import (
    EVENT_BYTES,
    TICK_NS,
    IntervalSet,
    Range,
    Routes,
    Stream,
    check_ticks,
    part_of,
    sequences_within,
    weight_bytes,
)
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.interface import retransmission_requested

RUNS: Final = 64
"""The most cached runs, because every run is searched for every request."""


class FetchedEvents:
    """A first-in, first-out cache of runs.

    Args:
        limit_bytes: the most bytes of payload.

    Attributes:
        runs: the cached runs, the oldest first.
        payload_bytes: of all runs.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.runs: deque[PublicationRun] = deque()
        self.payload_bytes = 0

    def add(self, run: PublicationRun) -> None:
        """Cache a run of any stream."""
        self.runs.append(run)
        self.payload_bytes += run.payload_bytes()
        while self.payload_bytes > self._limit_bytes or len(self.runs) > RUNS:
            self.payload_bytes -= self.runs.popleft().payload_bytes()

    def drop_through(self, identity: StreamId, tick: int) -> None:
        """Drop events of a stream through a tick, which no broker will request any more."""
        if any(run.source == identity and run.last <= tick for run in self.runs):
            kept = [run for run in self.runs if run.source != identity or run.last > tick]
            self.runs = deque(kept)
            self.payload_bytes = sum(run.payload_bytes() for run in kept)

    def take(self, identity: StreamId, left: IntervalSet) -> list[PublicationRun]:
        """Return cached events in some ranges, and remove their ticks from the ranges.

        Returns:
            Parts without common events, in no order.
        """
        found = []
        for run in self.runs if left else ():
            if run.source != identity:
                continue
            ticks = {tick for each in left for tick in sequences_within(run, *each)}
            if ticks:
                places = [place for place, tick in enumerate(run.sequences) if tick in ticks]
                found.append(run.select(places))
                for place in places:
                    left.remove(run.sequences[place], run.sequences[place] + 1)
        return found


FETCHES: Final = "fetches"

ANSWER_WINDOWS: Final = 2
"""The most windows of events in a pubend's answer.

A second window keeps the link busy while the first one is taken.
"""

Answer = Fetched | NothingFetched | Beyond | Deferred
"""An answer to a request of this broker, from here or from a neighbour."""


class Fetching:
    """The fetch requests at a broker, and its own requests upstream.

    Args:
        broker: this broker, which requests for its own clients.
        retention: the losses of this broker's pubends.
        recent: a cache of fetched events.
        passed: the events that have passed this broker.
    """

    def __init__(
        self,
        gryphon: Gryphon,
        broker: BrokerNumber,
        routes: Routes,
        parameters: DurableParameters,
        retention: Retention,
        recent: FetchedEvents,
        passed: PassedEvents,
    ) -> None:
        self._machine = gryphon
        self._broker = broker
        self._routes = routes
        self._parameters = parameters
        self._deadlines = gryphon.deadlines
        self._counters = gryphon.counters
        self._streams = gryphon.streams
        self._links = gryphon.links
        self._flow = gryphon.flow
        self._retired = gryphon.neighbours.retired
        self._retention = retention
        self._wanted: dict[StreamId, Questions] = {}
        self._unanswered: dict[BrokerNumber, dict[StreamId, IntervalSet]] = {}
        self._answer_bytes = ANSWER_WINDOWS * parameters.answer_window_bytes
        self._left_bytes: dict[tuple[BrokerNumber, StreamId], int] = {}
        self._recent = recent
        self._passed = passed

    @property
    def has_lost(self) -> bool:
        """True if this broker has lost state, with an accepted loss."""
        return self._streams.has_lost

    def fetch(self, identity: StreamId, ranges: Sequence[Range]) -> Iterator[Answer]:
        """Request ranges, which were announced here, or which a client claims to have.

        Yields the answers from here. The caller takes each one, and so continues the method.
        """
        return self._want(self._broker, identity, ranges)

    def drop(self, broker: BrokerNumber) -> Iterator[Answer]:
        """Remove a decommissioned broker, and answer requests that wait for its streams."""
        for identity, stream in list(self._wanted.items()):
            stream.forget(broker)
            if identity.broker == broker:
                del self._wanted[identity]
                for asker, ranges in list(stream.curious.items()):
                    yield from self._want(asker, identity, list(ranges))
        self.due()

    def on_session(self, peer: BrokerNumber, *, is_new: bool) -> None:
        """Repeat requests to a neighbour with a new session, which may have lost them.

        The neighbour repeats its own requests, too.
        """
        self._unanswered.pop(peer, None)
        for key in [each for each in self._left_bytes if each[0] == peer]:
            del self._left_bytes[key]
        for stream in self._wanted.values():
            if is_new:
                stream.forget(peer)
            if stream.upstream == self._routes.cell_of(peer):
                stream.on_answer(0, _is_behind_all(stream))
        self.due()

    def on_session_lost(self, peer: BrokerNumber) -> None:
        """Repeat requests that a neighbour has not answered over other links, if there are any."""
        if self._routes.is_plain:
            return
        for stream in self._wanted.values():
            if self._routes.cell_of(peer) in (stream.upstream, self._routes.cell):
                stream.on_answer(0, _is_behind_all(stream))
        self.due()

    def due(self) -> None:
        """Repeat requests that have not been answered for long."""
        now_ns = self._machine.now_ns
        for identity, stream in list(self._wanted.items()):
            stream.forget_requested(now_ns)
            if not stream.curious:
                del self._wanted[identity]
                continue
            for asker, curious in list(stream.curious.items()):
                self._request(stream, list(curious), asker)

    # ------------------------------------------------------------ asking

    def _want(
        self, peer: BrokerNumber, identity: StreamId, ranges: Sequence[Range]
    ) -> Iterator[Answer]:
        knowledge = self._streams.get(identity).knowledge
        upstream, children = self._routes.of(identity)
        if upstream is None:
            if peer == self._broker:
                yield from self._answer_in_part(peer, identity, IntervalSet(ranges))
            else:
                yield from self._answer_at_pubend(peer, identity, ranges)
            return
        left = IntervalSet(ranges)
        parts = []
        for start, end in ranges:
            for tick in knowledge.events.ticks(start, end):
                left.remove(tick, tick + 1)
            if (part := knowledge.events.within(start, end)) is not None:
                parts.append(part)
        passed = self._passed.take(identity, left)
        found = [merge_runs(parts)] if parts else []
        found += self._recent.take(identity, left)
        self._counters["fetched_from_memory"] += sum(map(len, found))
        if passed is not None:
            self._counters["fetched_from_store"] += len(passed)
            found.append(passed)
        for run in found:
            yield from self._answer(peer, identity, NOTHING_LOST, ranges_of(run.sequences), run)
        if not left:
            return
        if identity.broker in self._retired and upstream == self._routes.cell_of(identity.broker):
            # It was not decommissioned before all had its publications.
            yield from self._answer(peer, identity, NOTHING_LOST, list(left), None)
            return
        if identity not in self._wanted:
            self._wanted[identity] = Questions(
                identity, upstream, children, self._parameters, has_subend=False
            )
        self._wanted[identity].want(peer, list(left))
        self._request(self._wanted[identity], list(left), peer)

    def _answer_in_part(
        self, peer: BrokerNumber, identity: StreamId, requested: IntervalSet
    ) -> Iterator[Answer]:
        """Answer as much as one answer may contain, and defer the rest."""
        ranges = self._clip_to_room(identity, requested, self._answer_bytes)
        for start, end in ranges:
            requested.remove(start, end)
        yield from self._answer_at_pubend(peer, identity, ranges)
        if requested:
            yield from self._reply(peer, Deferred(identity, tuple(requested)))

    def _answer_at_pubend(
        self, peer: BrokerNumber, identity: StreamId, ranges: Sequence[Range]
    ) -> Iterator[Answer]:
        """Answer with all retained events, and with silence for the rest."""
        stream = self._streams.get(identity)
        highest = stream.knowledge.highest
        if beyond := clip_ranges(ranges, highest + 1, ranges[-1][1]):
            yield from self._reply(peer, Beyond(identity, highest, beyond))
        if not (ranges := clip_ranges(ranges, 0, highest + 1)):
            return
        parts = [
            part
            for start, end in ranges
            if (part := stream.knowledge.events.within(start, end)) is not None
        ]
        self._counters["fetched_from_pubends"] += sum(map(len, parts))
        lost = self._retention.find_loss(stream, ranges[0][0])
        yield from self._answer(peer, identity, lost, ranges, merge_runs(parts) if parts else None)

    def _request(self, stream: Stream, ranges: Sequence[Range], asker: BrokerNumber) -> None:
        """Request ranges for a broker, except ranges with a recent request.

        One broker upstream receives the request: the last sender of the stream, or else the first
        in the rotation of its pubend. Without any, a member of this cell receives it, except for
        the requester.
        """
        identity, is_sideways = stream.identity, asker not in self._routes.peers
        via = self._streams.get(identity).via
        near = self._links.up(identity, via, sideways=is_sideways)
        if not near:
            return
        peer = near[identity.publisher % len(near)]
        now_ns = self._machine.now_ns
        fresh = stream.request(ranges, now_ns, now_ns + self._parameters.nack_repetition_ns)
        if fresh:
            source, publisher, _ = stream.identity
            requested_ns = TICK_NS * sum(end - start for start, end in fresh)
            self._counters["nacks_sent"] += 1
            self._machine.send(peer, Fetch(stream.identity, tuple(fresh)))
            self._machine.emit(
                retransmission_requested(peer, source, publisher, len(fresh), requested_ns)
            )
        if (FETCHES, None) not in self._deadlines:
            self._deadlines.set((FETCHES, None), now_ns + self._parameters.nack_repetition_ns)

    def on_fetch(self, peer: BrokerNumber, message: Fetch) -> None:
        """Answer a neighbour's request."""
        identity, ranges = message.stream, message.ranges
        if self._routes.upstream(peer, identity) == self._routes.cell_of(peer):
            raise RemoteProtocolError(peer, f"{identity} does not go there")
        _check(peer, ranges)
        self._counters["nacks_received"] += 1
        unanswered = self._unanswered.setdefault(peer, {}).setdefault(identity, IntervalSet())
        for start, end in ranges:
            unanswered.add(start, end)
        if self._routes.of(identity)[0] is None:
            self._left_bytes[peer, identity] = self._answer_bytes
        self.answer_more(peer)

    def answer_more(self, peer: BrokerNumber) -> None:
        """Answer a neighbour as far as its window has room; the rest stays requested."""
        unanswered = self._unanswered.get(peer, {})
        for identity in list(unanswered):
            while unanswered[identity]:
                left_bytes = self._left_bytes.get((peer, identity), JOINED_BYTES)
                if left_bytes <= 0:
                    self._machine.send(peer, Deferred(identity, tuple(unanswered[identity])))
                    break
                room_bytes = min(self._flow.answer_room_bytes(peer, identity), JOINED_BYTES)
                if room_bytes <= 0:
                    return
                ranges = self._clip_to_room(identity, unanswered[identity], room_bytes)
                for start, end in ranges:
                    unanswered[identity].remove(start, end)
                own = [*self._want(peer, identity, ranges)]
                assert not own, f"{own} for {peer}"
                if (peer, identity) in self._left_bytes:
                    self._left_bytes[peer, identity] -= self._count_sent_bytes(identity, ranges)
            del unanswered[identity]
            self._left_bytes.pop((peer, identity), None)

    def _count_sent_bytes(self, identity: StreamId, ranges: Sequence[Range]) -> int:
        events = self._streams.get(identity).knowledge.events
        found = [events.within(start, end) for start, end in ranges]
        return sum(weight_bytes(run) for run in found if run is not None)

    def _clip_to_room(
        self, identity: StreamId, requested: IntervalSet, room_bytes: int
    ) -> list[Range]:
        """Return the lowest part of some ranges that has room for its events here."""
        events = self._streams.get(identity).knowledge.events
        found: list[Range] = []
        for start, end in requested:
            cut, left_bytes = events.cut(start, end, room_bytes, EVENT_BYTES)
            stored_cut, stored_bytes = self._passed.cut(identity, (start, end), room_bytes)
            cut, room_bytes = min(cut, stored_cut), min(left_bytes, stored_bytes)
            found.append((start, cut))
            if cut < end or not room_bytes:
                break
        return found

    # ------------------------------------------------------------ answers

    def on_answer(self, peer: BrokerNumber, message: Answer) -> Iterator[Answer]:
        """Forward a neighbour's answer; yield what answers requests of this broker.

        Raises:
            RemoteProtocolError: the answer is malformed; the fault of the peer.
        """
        match message:
            case Fetched(ranges=ranges, run=run):
                check_ticks(peer, (message.lost,))
                inside = [part_of(run, start, end) for start, end in ranges]
                counted = sum(len(part) for part in inside if part is not None)
                if counted != len(run) or not run.origins:
                    raise RemoteProtocolError(peer, f"{run} outside {ranges}"[:300])
                yield from self._found(peer, run.source, find_loss(message), ranges, run)
            case NothingFetched(stream=identity, ranges=ranges):
                check_ticks(peer, (message.lost,))
                yield from self._found(peer, identity, find_loss(message), ranges, None)
            case Beyond(stream=identity, highest=highest, ranges=ranges):
                check_ticks(peer, (highest,))
                for asker, theirs in self._take_requests(peer, identity, ranges):
                    yield from self._reply(asker, Beyond(identity, highest, tuple(theirs)))
            case Deferred(stream=identity, ranges=ranges):
                for asker, theirs in self._take_requests(peer, identity, ranges):
                    yield from self._reply(asker, Deferred(identity, tuple(theirs)))

    def _found(
        self,
        peer: BrokerNumber,
        identity: StreamId,
        lost: LostPart,
        ranges: Sequence[Range],
        run: PublicationRun | None,
    ) -> Iterator[Answer]:
        if run is not None and identity in self._wanted:
            self._recent.add(run)
        for asker, theirs in self._take_requests(peer, identity, ranges):
            parts = [part_of(run, *each) for each in theirs] if run is not None else []
            found = [part for part in parts if part is not None]
            yield from self._answer(
                asker, identity, lost, theirs, merge_runs(found) if found else None
            )

    def _reply(self, peer: BrokerNumber, answer: Answer) -> Iterator[Answer]:
        """Send an answer to a neighbour, or yield the answer to this broker."""
        if peer == self._broker:
            yield answer
        else:
            self._machine.send(peer, answer)

    def _take_requests(
        self, peer: BrokerNumber, identity: StreamId, ranges: Sequence[Range]
    ) -> list[tuple[BrokerNumber, list[Range]]]:
        """Return the open requests for some ranges by broker, and close them.

        Raises:
            RemoteProtocolError: the peer is not upstream of the stream, or the ranges are
                malformed; the fault of the peer.
        """
        upstream = self._routes.upstream(peer, identity)
        if upstream is None or self._routes.cell_of(peer) not in (upstream, self._routes.cell):
            raise RemoteProtocolError(peer, f"{identity} does not arrive from this peer")
        _check(peer, ranges)
        stream = self._wanted.get(identity)
        if stream is None:
            return []
        for start, end in ranges:
            stream.on_answer(start, end)
        waiting = []
        for asker in list(stream.curious):
            theirs = [each for low, high in ranges for each in stream.wanted(asker, low, high)]
            for start, end in theirs:
                stream.satisfy(asker, start, end)
            if theirs:
                waiting.append((asker, theirs))
        if not stream.curious:
            del self._wanted[identity]
        return waiting

    def _answer(
        self,
        peer: BrokerNumber,
        identity: StreamId,
        lost: LostPart,
        ranges: Sequence[Range],
        run: PublicationRun | None,
    ) -> Iterator[Answer]:
        if run is None:
            nothing = NothingFetched(identity, lost.through, tuple(ranges), lost.origins)
            yield from self._reply(peer, nothing)
            return
        yield from self._reply(peer, Fetched(lost.through, tuple(ranges), run, lost.origins))
        if peer != self._broker:
            self._counters["resent_publications"] += len(run)
            probe = self._flow.charge(peer, run, self._machine.now_ns, again=True)
            if probe is not None:
                self._machine.send(peer, probe)


def find_loss(message: Fetched | NothingFetched) -> LostPart:
    return LostPart(message.lost, message.origins)


def _is_behind_all(stream: Stream) -> int:
    return stream.requested.last + 1 if stream.requested else 0


def _check(peer: BrokerNumber, ranges: Sequence[Range]) -> None:
    """Check that ranges are present, in order, and not empty.

    Raises:
        RemoteProtocolError: the ranges are malformed; the fault of the peer.
    """
    flat = [tick for each in ranges for tick in each]
    if not ranges or flat != sorted(flat) or any(start >= end for start, end in ranges):
        raise RemoteProtocolError(peer, f"ranges {ranges}"[:300])
    check_ticks(peer, flat[-1:])
