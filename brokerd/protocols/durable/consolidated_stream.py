"""The consolidated stream: one stream per pubend feeds all live subscriptions of a broker.

Matches are logged for connected and disconnected clients, and the events are delivered to the live
ones. Unacknowledged deliveries are dropped at a disconnect. Subscribers without events of a stream
receive its position.

Paper: [DS03] §4.1 (consolidated stream, latestDelivered, released, silence messages).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, groupby
from typing import Any, Final

from brokerd.matching.memo import MatchMemo
from brokerd.model.client_messages import Gap, Silence
from brokerd.model.identity import ClientId, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.durable.definition import key_of, log_of
from brokerd.protocols.durable.filtering_subsystem import FilterLog
from brokerd.protocols.durable.state import (
    DurableSubscription,
    HostedState,
    InFlightDelivery,
    Lane,
    Mode,
)
from brokerd.protocols.gryphon import InFlightEvents, Stream, Streams
from brokerd.protocols.interface import Append, Instant
from brokerd.protocols.parts.clients.windows import DeliveryWindows
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.protocols.parts.selection import RunSelection, match_run


class HostedStream:
    """A stream at this broker.

    Attributes:
        key: of the stream in rows.
        log: the matches.
        delivered: the tick through which matches are durable, and the row of it is durable or
            under way.
        delivered_on_disk: the same in a durable row; a restart continues from there.
        seen: the position at the last processing.
        reading: lanes that wait for the log.
    """

    def __init__(self, identity: StreamId, streams: Streams) -> None:
        self.identity = identity
        self.key = key_of(identity)
        self.log = FilterLog(log_of(identity))
        self.delivered = self.delivered_on_disk = self.seen = 0
        self.reading: dict[Lane, None] = {}
        self._streams = streams
        self._stream: Stream | None = None
        self._open: deque[tuple[int, InFlightEvents]] = deque()

    @property
    def stream(self) -> Stream:
        found = self._stream
        if found is None:
            found = self._stream = self._streams.get(self.identity)
        return found

    def hold_undelivered(self) -> None:
        """Leave events unacknowledged that a restart would lack.

        Subscriptions that begin after a restart are matched from the delivered tick on, for which
        the events have to arrive again. The events of own pubends are retained until they are
        released.

        Paper: [DS03] §4.1 (latestDelivered).
        """
        if self.stream.upstream is not None:
            self.stream.held = self.delivered_on_disk

    @property
    def position(self) -> int:
        """The tick through which everything was given to live clients, with written matches."""
        return self.stream.subend.position

    @property
    def is_ahead(self) -> bool:
        """True if there is something to commit."""
        return self.position > self.delivered or bool(self._open)

    def released(self, subscriptions: Iterable[DurableSubscription]) -> int:
        """Return the tick through which all subscriptions have durably acknowledged."""
        committed = [each.lane(self.identity).committed for each in subscriptions]
        return min([self.delivered_on_disk, *committed])

    def state(self, released: int, lanes: Iterable[Lane]) -> HostedState:
        """Return the state, for people.

        Args:
            released: the tick through which all subscriptions here have acknowledged.
            lanes: of all subscriptions in this stream.
        """
        modes = [lane.mode for lane in lanes]
        return HostedState(
            position=self.position,
            delivered=self.delivered_on_disk,
            released=released,
            held=self.stream.held,
            matches=len(self.log),
            live=modes.count(Mode.LIVE),
            catching_up=modes.count(Mode.CATCHING_UP),
            away=modes.count(Mode.AWAY),
        )

    def mark_uncommitted(self, last: int, entry: InFlightEvents) -> None:
        """Record that matches through a tick are not durable yet."""
        self._open.append((last, entry))

    def commit(self, delivered: int) -> list[InFlightEvents]:
        """Record that everything through a tick is durable, and return the completed entries."""
        self.delivered = max(self.delivered, delivered)
        self.delivered_on_disk = max(self.delivered_on_disk, delivered)
        done = []
        while self._open and self._open[0][0] <= delivered:
            done.append(self._open.popleft()[1])
        return done


class SubscriptionTable:
    """The subscriptions of a broker, by their numbers in the log of matches.

    Attributes:
        present: of clients that are connected or not.
        ending: ended ones, until that is durable.
    """

    def __init__(self, hosted: Mapping[StreamId, HostedStream]) -> None:
        self.present: dict[int, DurableSubscription] = {}
        self.ending: dict[int, DurableSubscription] = {}
        self._hosted = hosted
        self._released: dict[StreamId, int] = {}

    def add(self, local: DurableSubscription) -> None:
        """Add a subscription with a number."""
        self.present[local.identity] = local
        self._released.clear()

    def end(self, local: DurableSubscription) -> None:
        """Record the end of a subscription, which holds back releases until that is durable."""
        self.ending[local.identity] = self.present.pop(local.identity)

    def lanes(self, stream: StreamId) -> list[Lane]:
        return [local.lane(stream) for local in self.present.values()]

    # ------------------------------------------------------------ released ticks

    def released(self, stream: StreamId) -> int:
        """Return the tick through which all subscriptions here have durably acknowledged."""
        found = self._released.get(stream)
        if found is None:
            found = self._released[stream] = self._work_out_released(stream)
        return found

    def _work_out_released(self, stream: StreamId) -> int:
        return self._hosted[stream].released((*self.present.values(), *self.ending.values()))

    def recount_released(self) -> Iterator[tuple[StreamId, int, int]]:
        """Yield the cached and the recomputed released tick of streams with a cached value."""
        for stream, kept in self._released.items():
            yield stream, kept, self._work_out_released(stream)

    def forget_released(self, stream: StreamId) -> None:
        """Drop the cached released tick of a stream."""
        self._released.pop(stream, None)

    def forget_all_released(self) -> None:
        """Drop the cached released ticks of all streams."""
        self._released.clear()


class DurableWindows(DeliveryWindows[InFlightEvents, DurableSubscription]):
    """See DeliveryWindows: a client that returns receives dropped events from their source."""

    def close(self, client: ClientId) -> Iterator[InFlightEvents]:
        self._outlets.pop(client, None)
        yield from ()

    def _advance(self, finished: Iterable[Any]) -> None:
        """See DeliveryWindows: a lane has the position that its client has acknowledged."""

    def queue_events(self, run: PublicationRun, lanes: Sequence[Lane]) -> None:
        """Queue events for subscriptions of a client."""
        self._queue(run, lanes, None)

    def announce_in(self, lane: Lane, last: int, instead: Gap | Silence) -> None:
        """Queue a gap or silence that stands for events through `last`."""
        run = PublicationRun(lane.stream, range(last, last + 1), (b"",), b"\0", 0, ())
        self._queue(run, [lane], instead)

    def _queue(
        self, run: PublicationRun, lanes: Sequence[Lane], instead: Gap | Silence | None
    ) -> None:
        entries = []
        for lane in lanes:
            delivery = InFlightDelivery(lane, run.first, run.last, len(run))
            lane.out.append(delivery)
            lane.out_events += delivery.events
            lane.given = max(lane.given, delivery.last)
            entries.append(delivery)
        locals_ = tuple(lane.subscription for lane in lanes)
        self.deliver(locals_[0].client, run, locals_, tuple(entries), instead)


MANY: Final = 8
"""The number of clients from which most receive a small part of a run."""


def parts_by_client(
    run: PublicationRun, wanted: Sequence[Sequence[Lane]]
) -> Iterator[tuple[PublicationRun, Sequence[Lane]]]:
    """Yield parts of a run with lanes of a client that are all owed the part.

    The parts of a client are in order.

    Args:
        wanted: the lanes for each place in the run's attribute table.
    """
    by_client: dict[ClientId, dict[int, list[Lane]]] = {}
    for place, lanes in enumerate(wanted):
        for lane in lanes:
            of_client = by_client.setdefault(lane.subscription.client, {})
            of_client.setdefault(place, []).append(lane)
    selection = RunSelection(run, are_many=len(by_client) >= MANY)
    for places in by_client.values():
        lanes = next(iter(places.values()))
        if all(each == lanes for each in places.values()):
            yield selection.select([*places]), lanes
        else:
            yield from _stretches(run, places)


def _stretches(
    run: PublicationRun, places: Mapping[int, Sequence[Lane]]
) -> Iterator[tuple[PublicationRun, Sequence[Lane]]]:
    """Yield the parts of a run at some places, divided wherever the lanes change."""

    def wanting(position: int) -> list[int]:
        return [lane.subscription.identity for lane in places[run.attribute_index[position]]]

    positions = [n for n, place in enumerate(run.attribute_index) if place in places]
    for _, same in groupby(positions, wanting):
        some = [*same]
        yield run.select(some), places[run.attribute_index[some[0]]]


SILENCE: Final = "silence"


class Silences:
    """The silence messages to live subscribers.

    Args:
        hosted: the streams, a live view.
        subscriptions: all subscriptions here, a live view.
    """

    def __init__(
        self,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        interval_ns: Instant,
        hosted: Mapping[StreamId, HostedStream],
        subscriptions: Mapping[int, DurableSubscription],
        windows: DurableWindows,
    ) -> None:
        self._machine = machine
        self._deadlines = deadlines
        self._interval_ns = interval_ns
        self._hosted = hosted
        self._subscriptions = subscriptions
        self._windows = windows

    def schedule(self) -> None:
        if (SILENCE, None) not in self._deadlines:
            self._deadlines.set((SILENCE, None), self._machine.now_ns + self._interval_ns)

    def announce(self) -> None:
        """Send the positions of streams to clients without events.

        Nothing is sent below a position that a client claims: events below were not given to it.
        """
        is_behind = False
        for local in self._subscriptions.values():
            for lane in local.lanes.values() if local.is_attached else ():
                position = self._hosted[lane.stream].position
                if lane.acknowledged >= position:
                    continue
                is_behind = True
                if lane.mode is Mode.LIVE and not lane.out and lane.floor <= position:
                    first = lane.acknowledged + 1
                    silence = Silence((local.number,), lane.stream, first, position)
                    self._windows.announce_in(lane, position, silence)
        if is_behind:
            self.schedule()


class ConsolidatedStream:
    """The delivery of all streams to the live subscriptions of a broker.

    Args:
        memo: matches events to subscriptions.
        live_limit: the most unacknowledged events of a subscription.
    """

    def __init__(
        self,
        machine: EventMachine,
        windows: DurableWindows,
        memo: MatchMemo[Any, tuple[Any, ...]],
        live_limit: int,
    ) -> None:
        self._machine = machine
        self._windows = windows
        self._memo = memo
        self._live_limit = live_limit

    def write(self, hosted: HostedStream, run: PublicationRun) -> list[list[Lane]]:
        """Log the matches of events; return the lanes per place in the attribute table."""
        results = match_run(self._memo, run, run.source.broker)
        wanted = [[local.lane(hosted.identity) for local in those] for those in results]
        if any(wanted):
            self._write(hosted, run, wanted)
        return wanted

    def deliver(
        self, run: PublicationRun, wanted: Sequence[Sequence[Lane]]
    ) -> Iterator[tuple[Lane, int]]:
        """Deliver events to live clients, after `write`.

        Yields lanes without room for all events, each with the tick from which it catches up.
        """
        for part, lanes in parts_by_client(run, wanted):
            yield from self._deliver_live(part, lanes)

    def _write(
        self, hosted: HostedStream, run: PublicationRun, wanted: Sequence[Sequence[Lane]]
    ) -> None:
        """Log the matches of events, except for acknowledged ones.

        Args:
            wanted: the lanes for each place in the run's attribute table.
        """
        everybody = [tuple(lane.subscription.identity for lane in lanes) for lanes in wanted]
        ticks: Sequence[int] = run.sequences
        subscriptions = list(map(everybody.__getitem__, run.attribute_index))
        if any(lane.acknowledged >= run.first for lanes in wanted for lane in lanes):
            subscriptions = [
                tuple(
                    lane.subscription.identity for lane in wanted[place] if lane.acknowledged < tick
                )
                for tick, place in zip(ticks, run.attribute_index, strict=True)
            ]
        if not all(subscriptions):
            ticks = list(compress(ticks, subscriptions))
            subscriptions = [each for each in subscriptions if each]
        if records := hosted.log.records(ticks, subscriptions):
            self._machine.emit(Append(hosted.log.name, tuple(records), None))

    def _deliver_live(
        self, part: PublicationRun, lanes: Sequence[Lane]
    ) -> Iterator[tuple[Lane, int]]:
        """Deliver events to the live lanes of a client, as far as the lanes have room."""
        groups: dict[tuple[int, int], list[Lane]] = {}
        behind: list[tuple[Lane, int]] = []
        for lane in lanes:
            if lane.mode is not Mode.LIVE:
                continue
            room = self._live_limit - lane.out_events
            last = part.last
            if room < len(part):
                last = part.sequences[room - 1] if room > 0 else part.first - 1
                behind.append((lane, last))
            had = lane.floor if lane.floor >= part.first else 0
            groups.setdefault((had, last), []).append(lane)
        for (had, last), theirs in groups.items():
            rest = part.after(had) if had else part
            if rest is not None and last < rest.last:
                rest = rest.select_through(last)
            if rest is not None:
                self._windows.queue_events(rest, theirs)
        for lane, last in behind:
            yield lane, max(last, lane.floor)
