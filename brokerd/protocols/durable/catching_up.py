"""The catch-up of subscriptions: missed ticks from the log of matches, then the events.

Paper: [DS03] §4.1 (catch-up stream, switch-over).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from brokerd.matching.memo import MatchMemo
from brokerd.model.client_messages import Gap
from brokerd.model.identity import StreamId
from brokerd.model.losses import STATE_LOST
from brokerd.model.publication import PublicationRun
from brokerd.protocols.durable.batch_read import Batch, BatchReader
from brokerd.protocols.durable.catchup import Catchup, LostPart, LostRange
from brokerd.protocols.durable.catchup_watch import CatchupWatch
from brokerd.protocols.durable.catchup_window import CatchupWindow
from brokerd.protocols.durable.hosted_streams import HostedStream
from brokerd.protocols.durable.lanes import Lane, Mode
from brokerd.protocols.durable.messages import LOST
from brokerd.protocols.durable.windows import DurableWindows
from brokerd.protocols.gryphon import Range
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.protocols.parts.selection import match_run

Fetch = Callable[[StreamId, Sequence[Range]], None]


class CatchingUp:
    """All catch-up streams of a broker.

    Args:
        memo: matches events to subscriptions.
        most: the most unacknowledged events of a stream before fetching stops.
        window: the most requested events of all streams together.
        fetch: requests ticks of a stream, and later calls `take`.
        watch: detects streams that do not catch up.
    """

    def __init__(
        self,
        machine: EventMachine,
        windows: DurableWindows,
        memo: MatchMemo[Any, tuple[Any, ...]],
        most: int,
        window: int,
        fetch: Fetch,
        watch: CatchupWatch,
    ) -> None:
        self._machine = machine
        self._windows = windows
        self._memo = memo
        self._most = most
        self._fetch = fetch
        self._window = CatchupWindow(window)
        self._watch = watch
        self._is_going_on = False

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
        """Fetch all events from a tick through the position, which nobody forwards any more."""
        if lane.mode is Mode.LIVE:
            self.begin(hosted, lane, max(before, lane.floor))
        elif lane.catchup is not None:
            lane.catchup.unknown_through = max(lane.catchup.unknown_through, hosted.position)

    def resume(self, hosted: HostedStream) -> None:
        """Continue after a page of the log of matches was read."""
        waiting, hosted.reading = hosted.reading, {}
        for lane in waiting:
            self.advance(hosted, lane)

    def take(
        self,
        hosted: HostedStream,
        lanes: Iterable[Lane],
        lost: LostPart,
        ranges: Sequence[Range],
        run: PublicationRun | None,
    ) -> None:
        """Take fetched events for all subscriptions that lack them.

        A loss beyond the position, which has no matches here, follows an accepted loss of this
        broker: the catch-up then goes on to its end.
        """
        is_beyond = lost.through > hosted.position and not lost.has_marker
        for lane in lanes:
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

    def defer(self, hosted: HostedStream, lanes: Iterable[Lane], ranges: Sequence[Range]) -> None:
        """Postpone ranges: they are requested again after the present batch."""
        for lane in lanes:
            catchup = lane.catchup
            if catchup is not None and catchup.defer(ranges) and not catchup.open:
                self._window.on_answer(lane)
                if not catchup.is_busy:
                    self.advance(hosted, lane)
        self._admit()

    def leave(self, lanes: Sequence[Lane]) -> None:
        """Stop the lanes of disconnected clients; unacknowledged events are repeated later.

        All leave before others are admitted: no leaving lane may receive more.
        """
        for lane in lanes:
            lane.leave()
            self._window.leave(lane)
            self._watch.leave(lane)
        self._admit()

    def _admit(self) -> None:
        """Continue lanes that wait for a place in the window."""
        while not self._is_going_on and (waiting := self._window.next()) is not None:
            self._is_going_on = True
            self.advance(*waiting)
            self._is_going_on = False

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
                    self._window.ask(lane, len(batch.ticks) if is_known else self._most)
                    self._fetch(hosted.identity, ranges)
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
            self._windows.say(lane, last, gap)

    def _wanted(self, run: PublicationRun, lane: Lane) -> PublicationRun | None:
        """Return the events of a run that match a subscription."""
        results = match_run(self._memo, run, run.source.broker)
        is_for = [lane.subscription in those for those in results]
        positions = [n for n, place in enumerate(run.attribute_index) if is_for[place]]
        return run.select(positions) if positions else None
