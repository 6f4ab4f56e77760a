"""Passed events: the events of other brokers' pubends that a broker keeps in memory.

All have acknowledged the core's events that are not released yet, except for subscribers that are
away or catch up. Every broker that such an event has passed keeps it in memory, within a bound in
bytes, so that the publishers' broker need not send it again.

Paper: [DS03] §1.1, §3 (intermediate brokers cache events).
"""

from collections.abc import Iterator

from brokerd.model.identity import StreamId
from brokerd.model.losses import has_marker
from brokerd.model.publication import PublicationRun, merge_runs
from brokerd.protocols.gryphon import EVENT_BYTES, IntervalSet, Range, RetainedEvents, Stream


class StoredEvents(RetainedEvents):
    """Stored events of one stream, with their weight.

    Simulations bound these runs by the limit of the store, and other runs by live events.
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


def weigh(events: RetainedEvents, behind: int) -> tuple[int, int]:
    """Return the number and the payload bytes of events behind a tick."""
    parts = [part for run in events.runs_after(behind) if (part := run.after(behind)) is not None]
    return sum(map(len, parts)), sum(part.payload_bytes() for part in parts)
