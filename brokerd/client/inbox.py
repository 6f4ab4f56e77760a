"""Deliveries that wait for an application, and the acknowledgement of taken deliveries."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from brokerd.client.application import Callbacks, Publication, publications_of
from brokerd.client.broker_connection import BrokerConnection
from brokerd.client.commitment import ArrivalPart
from brokerd.client.events import Announced, GapsAnnounced, Received
from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import SourceId

INBOX_LIMIT_BYTES: Final = 32 << 20

Arrival = Received | Announced | GapsAnnounced
"""A delivery or announcement for the application, in the order of arrival."""


class Inbox:
    """Arrivals of all lines, in order, until the application takes them.

    Taking does not acknowledge: only the next request acknowledges the deliveries before, for good.
    Notices and gaps are passed to the callbacks when all earlier arrivals are taken.

    Attributes:
        waiting_bytes: size of all arrivals that are not taken.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._events: deque[tuple[BrokerConnection, Arrival]] = deque()
        self.waiting_bytes = 0
        self._taking: tuple[BrokerConnection, int] | None = None
        self._parts: list[tuple[BrokerConnection, ArrivalPart]] = []
        self._open: Iterator[Publication] | None = None
        self._returned = self._recorded = 0
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._events)

    @property
    def is_full(self) -> bool:
        """Return True if no more may be read until the application takes deliveries."""
        return self.waiting_bytes >= INBOX_LIMIT_BYTES

    def put(self, line: BrokerConnection, event: Arrival) -> None:
        """Add an arrival from a line, behind all others."""
        if self._closed:
            return
        self._events.append((line, event))
        self.waiting_bytes += _size(event)

    def take(self, limit: int) -> list[Deliveries]:
        """Return the next runs of one line, up to `limit`; the inbox must not be empty.

        An arrival of several runs counts as taken when its last run is.
        """
        self._close_run()
        taken: list[Deliveries] = []
        first = self._events[0][0]
        while self._events and len(taken) < limit and self._events[0][0] is first:
            line, event = self._events[0]
            if isinstance(event, Received):
                runs = event.deliveries[: limit - len(taken)]
                taken.extend(runs)
                self._take_runs(line, event, runs)
            else:
                self._events.popleft()
                line.core.progress.record_delivery(event.serial)
                self._taking, self._parts = (line, event.serial), []
                self.announce(event)
        return taken

    def take_publication(self, at_once: int = 1) -> Publication:
        """Return the next publication; the inbox must not be empty, and begin with a run.

        A run counts as taken when its last publication is.

        Args:
            at_once: number of publications that are recorded as delivered together.
        """
        line, event = self._events[0]
        assert isinstance(event, Received), f"{event} is no run"
        run = event.deliveries[0]
        if self._open is None:
            self._open, self._recorded = publications_of(run), 0
        publication = next(self._open)
        if publication.sequence == run.run.last:
            self._open = None
            self._take_runs(line, event, (run,))
            return publication
        self._returned = publication.sequence
        if self._returned > self._recorded:
            self._recorded = _last_of_next(run, self._returned, at_once)
            part = _part_of(event, run, self._recorded)
            line.core.progress.record_partial_delivery(part)
        return publication

    def _take_runs(
        self, line: BrokerConnection, event: Received, runs: Sequence[Deliveries]
    ) -> None:
        """Remove the first runs of the first arrival."""
        self._events.popleft()
        self.waiting_bytes -= _size_of_runs(runs)
        later = event.deliveries[len(runs) :]
        if not later:
            line.core.progress.record_delivery(event.serial)
            self._taking, self._parts = (line, event.serial), []
            return
        self._events.appendleft((line, replace(event, deliveries=later)))
        for run in runs:
            part = _part_of(event, run, run.run.last)
            line.core.progress.record_partial_delivery(part)
            self._parts.append((line, part))

    def _close_run(self) -> None:
        """Replace the first run by its publications that were not returned."""
        if self._open is None:
            return
        self._add_open_part()
        line, event = self._events.popleft()
        assert isinstance(event, Received), f"{event} is no run"
        run, *later = event.deliveries
        rest = run.run.after(self._returned)
        assert rest is not None, f"{self._returned} ends {run.run.sequences}"
        left = replace(event, deliveries=(type(run)(rest, run.subscriptions), *later))
        self.waiting_bytes += _size(left) - _size(event)
        self._events.appendleft((line, left))
        self._open = None

    def _add_open_part(self) -> None:
        """Add the returned publications of the open run; those behind them are not delivered."""
        line, event = self._events[0]
        assert isinstance(event, Received), f"{event} is no run"
        part = _part_of(event, event.deliveries[0], self._returned)
        line.core.progress.retract_delivery(part)
        self._parts.append((line, part))

    @property
    def first(self) -> Arrival:
        """The next arrival; the inbox must not be empty."""
        return self._events[0][1]

    def pop(self) -> Arrival:
        """Remove and return the next arrival, without any effect on acknowledgements."""
        _, event = self._events.popleft()
        self.waiting_bytes -= _size(event)
        return event

    def put_back(self, line: BrokerConnection, events: Sequence[Arrival]) -> None:
        """Put the last popped arrivals back to the front, in the same order."""
        if self._closed:
            return
        self._events.extendleft((line, event) for event in reversed(events))
        self.waiting_bytes += sum(map(_size, events))

    def announce_leading(self) -> None:
        """Announce the notices and gaps that precede the first waiting publication."""
        while self._events:
            line, leading = self._events[0]
            if not isinstance(leading, Received):
                self.announce(leading)
            elif leading.deliveries:
                return
            self._events.popleft()
            line.core.progress.take(leading.serial)
            line.nudge()

    def acknowledge_taken(self) -> None:
        """Acknowledge the deliveries that were last taken."""
        if self._taking is not None:
            line, serial = self._taking
            self._taking = None
            line.core.progress.take(serial)
            line.acknowledge()

    def is_waiting(self, number: int, source: SourceId, sequence: int) -> bool:
        """Return True if a publication is in the open run, or later, and was not returned."""
        if self._open is None:
            return False
        _, event = self._events[0]
        assert isinstance(event, Received), f"{event} is no run"
        run = event.deliveries[0]
        is_of_run = run.run.source == source and number in run.subscriptions
        return is_of_run and sequence > self._returned

    def commit_parts(self) -> None:
        """Commit the taken parts of the first arrival, before the client leaves."""
        if self._open is not None:
            self._add_open_part()
        parts, self._parts = self._parts, []
        for line, part in parts:
            line.core.progress.take_part(part)
            line.acknowledge()

    def forget(self, subscription: int) -> None:
        """Remove a subscription from all waiting arrivals."""
        self._close_run()
        kept: list[tuple[BrokerConnection, Arrival]] = []
        for line, event in self._events:
            if isinstance(event, Received):
                parts = [
                    type(item)(item.run, others)
                    for item in event.deliveries
                    if (others := tuple(n for n in item.subscriptions if n != subscription))
                ]
                kept.append((line, replace(event, deliveries=tuple(parts))))
            elif isinstance(event, GapsAnnounced):
                gaps = tuple(gap for gap in event.gaps if gap.number != subscription)
                kept.append((line, replace(event, gaps=gaps)))
            elif event.notice.subscription != subscription:
                kept.append((line, event))
        self._events = deque(kept)
        self.waiting_bytes = sum(_size(event) for _, event in kept)

    def close(self) -> None:
        """Drop all waiting arrivals, and all later ones."""
        self._closed = True
        self._open, self._parts = None, []
        self._events.clear()
        self.waiting_bytes = 0

    def announce(self, event: Announced | GapsAnnounced) -> None:
        """Announce a notice or gaps to the application, through its callbacks."""
        if isinstance(event, Announced):
            self._callbacks.on_notice(event.notice)
            return
        for gap in event.gaps:
            self._callbacks.on_gap(gap)


def _part_of(event: Received, run: Deliveries, through: int) -> ArrivalPart:
    return ArrivalPart(event.serial, run.run.source, through, run.subscriptions)


def _last_of_next(run: Deliveries, sequence: int, count: int) -> int:
    """Return the last number of `count` publications of a run, from `sequence` on."""
    if count == 1:
        return sequence
    place = run.run.sequences.index(sequence) + count - 1
    return run.run.sequences[min(place, len(run.run) - 1)]


def _size(event: Arrival) -> int:
    return _size_of_runs(event.deliveries) if isinstance(event, Received) else 0


def _size_of_runs(deliveries: Sequence[Deliveries]) -> int:
    return sum(item.run.payload_bytes() + 64 for item in deliveries)
