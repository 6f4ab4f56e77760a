"""The catch-up streams of a broker: missed ticks from the log of matches, then the events.

Every request ends with an answer, whatever its client does; so all streams have their turn. While
a pubend is unreachable there is no answer: no stream waits for another pubend's answers.

A token that a client presents may be ahead of its broker, which may have crashed after the
delivery. A token is never ahead of its pubend, so the pubend decides; a token of a tick that was
never published is refused, because its client would not receive that tick later.

Paper: [DS03] §2 (checkpoint tokens), §4.1 (catch-up stream, switch-over, flow control). Deviates:
the stream that waits longest is next, not the one that is farthest behind, because the others would
always wait for that stream.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from brokerd.matching.memo import MatchMemo
from brokerd.model.client_messages import Gap, Refused
from brokerd.model.identity import StreamId
from brokerd.model.losses import STATE_LOST
from brokerd.model.publication import PublicationRun
from brokerd.protocols.durable.catchup import Batch, BatchReader, Catchup, LostPart, LostRange
from brokerd.protocols.durable.consolidated_stream import (
    DurableWindows,
    HostedStream,
    SubscriptionTable,
)
from brokerd.protocols.durable.fetching import Answer, Fetching, find_loss
from brokerd.protocols.durable.messages import LOST, Beyond, Deferred, Fetched, NothingFetched
from brokerd.protocols.durable.state import DurableSubscription, Lane, Mode
from brokerd.protocols.gryphon import TICK_NS, Range
from brokerd.protocols.interface import Instant, Record
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.protocols.parts.selection import match_run
from brokerd.units import MILLISECOND_NS


class CatchupWindow:
    """A window of requested events, per pubend.

    Args:
        limit: the most requested events; the last request may exceed it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._requested: dict[Lane, int] = {}
        self._waiting: dict[Lane, HostedStream] = {}
        self._events: dict[StreamId, int] = {}

    def admit(self, lane: Lane, hosted: HostedStream) -> bool:
        """Return True if a catch-up stream may request more; else queue it."""
        if self._has_room(lane):
            return True
        self._waiting[lane] = hosted
        return False

    def request(self, lane: Lane, events: int) -> None:
        """Record a request for a number of events."""
        self._requested[lane] = events
        self._events[lane.stream] = self._events.get(lane.stream, 0) + events

    def on_answer(self, lane: Lane) -> None:
        """Record that a request was answered or dropped."""
        requested = self._requested.pop(lane, 0)
        if requested:
            self._events[lane.stream] -= requested

    def leave(self, lane: Lane) -> None:
        """Remove an ended stream."""
        self.on_answer(lane)
        self._waiting.pop(lane, None)

    def next(self) -> tuple[HostedStream, Lane] | None:
        """Return the waiting stream that may continue, and remove it from the queue."""
        lane = next((each for each in self._waiting if self._has_room(each)), None)
        return (self._waiting.pop(lane), lane) if lane is not None else None

    def _has_room(self, lane: Lane) -> bool:
        return self._events.get(lane.stream, 0) < self._limit


CATCHUP_WATCH: Final = "catch-up watch"


class CatchupWatch:
    """All catch-up streams of a broker, with their distances at the last look.

    Args:
        interval_ns: the time in which a stream must approach.
        counters: `catchups_diverging` counts streams that have not.
    """

    def __init__(
        self,
        machine: EventMachine,
        timers: DeadlineQueue[Any],
        interval_ns: Instant,
        counters: dict[str, int],
    ) -> None:
        self._machine = machine
        self._timers = timers
        self._interval_ns = interval_ns
        self._counters = counters
        self._behind: dict[Lane, tuple[HostedStream, int]] = {}

    def __len__(self) -> int:
        """Return the number of catch-up streams."""
        return len(self._behind)

    def begin(self, hosted: HostedStream, lane: Lane, had: int) -> None:
        """Add a lane that catches up from a position."""
        self._behind[lane] = hosted, hosted.position - had
        self._look_later()

    def leave(self, lane: Lane) -> None:
        self._behind.pop(lane, None)

    def due(self) -> None:
        """Look at all catch-up streams, and record those that diverge."""
        for lane, (hosted, before) in self._behind.items():
            assert lane.catchup is not None, f"{lane.subscription} does not catch up"
            behind = hosted.position - lane.catchup.given
            self._behind[lane] = hosted, behind
            if behind >= before:
                self._counters["catchups_diverging"] += 1
                self._machine.emit(Record("catchup_diverging", _details(lane, behind)))
        if self._behind:
            self._look_later()

    def _look_later(self) -> None:
        if (CATCHUP_WATCH, None) not in self._timers:
            self._timers.set((CATCHUP_WATCH, None), self._machine.now_ns + self._interval_ns)


def _details(lane: Lane, behind: int) -> dict[str, Any]:
    source, publisher, _ = lane.stream
    return {
        "client": lane.subscription.client,
        "subscription": lane.subscription.number,
        "source": source,
        "stream": publisher,
        "behind_ms": behind * TICK_NS // MILLISECOND_NS,
    }


class CatchupStreams:
    """All catch-up streams of a broker.

    Args:
        memo: matches events to subscriptions.
        most: the most unacknowledged events of a stream before fetching stops.
        window: the most requested events of all streams together.
        fetching: requests ticks of a stream.
        watch: detects streams that do not catch up.
        table: the subscriptions of this broker.
    """

    def __init__(
        self,
        machine: EventMachine,
        windows: DurableWindows,
        memo: MatchMemo[Any, tuple[Any, ...]],
        most: int,
        window: int,
        fetching: Fetching,
        watch: CatchupWatch,
        hosted: Mapping[StreamId, HostedStream],
        table: SubscriptionTable,
    ) -> None:
        self._machine = machine
        self._windows = windows
        self._memo = memo
        self._most = most
        self._fetching = fetching
        self._window = CatchupWindow(window)
        self._watch = watch
        self._hosted = hosted
        self._table = table
        self._is_admitting = False

    def begin(self, hosted: HostedStream, lane: Lane, had: int) -> None:
        """Begin a client after its position: live if nothing is later."""
        lane.floor = had
        if had >= hosted.position:
            lane.mode = Mode.LIVE
            return
        reader = BatchReader(hosted.log, lane.subscription.identity, self._most)
        # Matches of acknowledged events are not retained, even if the client has lost them; and
        # events during its absence at another broker were never matched here.
        unknown_through = max(had, lane.acknowledged, lane.matched_after)
        lane.mode = Mode.CATCHING_UP
        lane.catchup = Catchup(reader, had, unknown_through, had)
        self._watch.begin(hosted, lane, had)
        self.advance(hosted, lane)

    def skip(self, hosted: HostedStream, lane: Lane, before: int) -> None:
        """Fetch all events from a tick through the position, which no broker forwards any more."""
        if lane.mode is Mode.LIVE:
            self.begin(hosted, lane, max(before, lane.floor))
        elif lane.catchup is not None:
            lane.catchup.unknown_through = max(lane.catchup.unknown_through, hosted.position)

    def resume(self, hosted: HostedStream) -> None:
        """Continue after a page of the log of matches was read."""
        waiting, hosted.reading = hosted.reading, {}
        for lane in waiting:
            self.advance(hosted, lane)

    def on_answers(self, answers: Iterable[Answer]) -> None:
        """Take answers to requests of this broker, one by one."""
        for answer in answers:
            match answer:
                case Fetched(ranges=ranges, run=run):
                    self._take(self._hosted[run.source], find_loss(answer), ranges, run)
                case NothingFetched(stream=stream, ranges=ranges):
                    self._take(self._hosted[stream], find_loss(answer), ranges, None)
                case Beyond(stream=stream, highest=highest, ranges=ranges):
                    self._refuse_beyond(stream, highest, ranges)
                case Deferred(stream=stream, ranges=ranges):
                    self._defer(self._hosted[stream], ranges)

    def _take(
        self,
        hosted: HostedStream,
        lost: LostPart,
        ranges: Sequence[Range],
        run: PublicationRun | None,
    ) -> None:
        """Take fetched events for all subscriptions that lack them.

        A loss beyond the position, which has no matches here, may follow an accepted loss of this
        broker: the catch-up then goes on to its end. Else the lost events were withheld, because no
        subscription here wants them.
        """
        is_beyond = lost.through > hosted.position and not lost.has_marker
        is_beyond = is_beyond and self._fetching.has_lost
        for lane in self._table.lanes(hosted.identity):
            catchup = lane.catchup
            if catchup is not None and catchup.open:
                if is_beyond:
                    catchup.unknown_through = max(catchup.unknown_through, lost.through)
                    lane.lost_through = max(lane.lost_through, lost.through)
                catchup.take(lost, ranges, run)
                if not catchup.open:
                    self._window.on_answer(lane)
                if not catchup.is_busy:
                    self.advance(hosted, lane)
        self._admit()

    def _defer(self, hosted: HostedStream, ranges: Sequence[Range]) -> None:
        """Postpone ranges: they are requested again after the present batch."""
        lanes = self._table.lanes(hosted.identity)
        for lane in lanes:
            catchup = lane.catchup
            if catchup is not None and catchup.defer(ranges) and not catchup.open:
                self._window.on_answer(lane)
                if not catchup.is_busy:
                    self.advance(hosted, lane)
        self._admit()
        for lane in lanes:
            if any(start <= lane.floor < end for start, end in ranges):
                self.prove(lane.subscription)

    def leave(self, lanes: Sequence[Lane]) -> None:
        """Stop the lanes of disconnected clients; unacknowledged events are repeated later.

        All leave before others are admitted: no leaving lane may receive more.
        """
        for lane in lanes:
            lane.leave()
            self._window.leave(lane)
            self._watch.leave(lane)
        self._admit()

    def detach(self, locals_: Sequence[DurableSubscription]) -> None:
        """Stop all lanes of the subscriptions of a disconnected client."""
        for local in locals_:
            local.is_attached = False
            local.presented = {}
        self.leave([lane for local in locals_ for lane in local.lanes.values()])

    def _admit(self) -> None:
        """Continue lanes that wait for a place in the window."""
        while not self._is_admitting and (waiting := self._window.next()) is not None:
            self._is_admitting = True
            self.advance(*waiting)
            self._is_admitting = False

    def advance(self, hosted: HostedStream, lane: Lane) -> None:
        """Deliver available events, and request the next batch; live after the position of all."""
        catchup = lane.catchup
        while catchup is not None and catchup is lane.catchup and not catchup.open:
            if catchup.has_batch:
                self._deliver(lane, catchup)
            elif catchup.given >= max(hosted.position, lane.lost_through):
                self._announce_gap(lane, catchup.rest())
                lane.mode, lane.catchup, lane.floor = Mode.LIVE, None, catchup.given
                self._watch.leave(lane)
            elif lane.out_events >= self._most or not self._window.admit(lane, hosted):
                return
            else:
                batch = self._next_batch(hosted, lane, catchup)
                if batch is None:
                    return
                ranges = catchup.next_batch(batch)
                if ranges:
                    catchup.is_busy = True
                    is_known = batch.unknown_through == batch.after
                    self._window.request(lane, len(batch.ticks) if is_known else self._most)
                    self.on_answers(self._fetching.fetch(hosted.identity, ranges))
                    catchup.is_busy = False

    def _next_batch(self, hosted: HostedStream, lane: Lane, catchup: Catchup) -> Batch | None:
        if catchup.given < catchup.unknown_through:
            through = catchup.unknown_through
            return Batch(catchup.given, through, (), through)
        if not catchup.is_reading:
            catchup.reader.begin(catchup.given, hosted.position, hosted.position)
            catchup.is_reading = True
        batch, effects = catchup.reader.step()
        for effect in effects:
            self._machine.emit(effect)
        if batch is None:
            hosted.reading[lane] = None
        return batch

    def _deliver(self, lane: Lane, catchup: Catchup) -> None:
        for each in catchup.finish():
            if isinstance(each, LostRange):
                self._announce_gap(lane, [each])
            elif (wanted := self._wanted(each, lane)) is not None:
                self._windows.queue_events(wanted, [lane])

    def _announce_gap(self, lane: Lane, lost: Sequence[LostRange]) -> None:
        for first, last, through in lost:
            origins = tuple((source, 1, sequence) for source, sequence in through)
            numbers = (lane.subscription.number,)
            reason = STATE_LOST if first <= lane.lost_through else LOST
            gap = Gap(numbers, lane.stream, first, last, reason, origins)
            self._windows.announce_in(lane, last, gap)

    def _wanted(self, run: PublicationRun, lane: Lane) -> PublicationRun | None:
        """Return the events of a run that match a subscription."""
        results = match_run(self._memo, run, run.source.broker)
        is_for = [lane.subscription in those for those in results]
        positions = [n for n, place in enumerate(run.attribute_index) if is_for[place]]
        return run.select(positions) if positions else None

    # ------------------------------------------------------------ presented tokens

    def accept(self, local: DurableSubscription) -> bool:
        """Return True if a token is of existing pubends and ticks; else refuse it."""
        for stream, last in local.presented.items():
            if stream not in self._hosted:
                self._refuse(local, f"its token is of {tuple(stream)}, a pubend that is not there")
                return False
            if last < 0:
                self._refuse(local, f"its token is of tick {last} of {tuple(stream)}")
                return False
        return True

    def prove(self, local: DurableSubscription) -> None:
        """Ask the pubend about token positions ahead of this broker."""
        for lane in [*local.lanes.values()]:
            if local.is_attached and lane.floor > self._hosted[lane.stream].position:
                self.on_answers(self._fetching.fetch(lane.stream, [(lane.floor, lane.floor + 1)]))

    def _refuse_beyond(self, stream: StreamId, highest: int, ranges: Sequence[Range]) -> None:
        """Refuse the subscriptions with tokens of ticks that were never published."""
        refused = []
        for local in self._table.present.values():
            floor = local.lane(stream).floor
            if local.is_attached and any(start <= floor < end for start, end in ranges):
                text = f"its token is of tick {floor} of {tuple(stream)}, which ends at {highest}"
                self._refuse(local, text)
                refused.append(local)
        presented = [local.presented for local in refused]
        self.detach(refused)
        for local, theirs in zip(refused, presented, strict=True):
            local.presented = theirs

    def _refuse(self, local: DurableSubscription, reason: str) -> None:
        self._machine.send(local.client, Refused("subscribe", local.number, reason, False))
