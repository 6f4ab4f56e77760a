"""Deliveries that wait for an application, and the acknowledgement of taken deliveries."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from brokerd.client.application import Callbacks
from brokerd.client.broker_connection import BrokerConnection
from brokerd.client.events import Announced, GapsAnnounced, Received
from brokerd.model.client_messages import Deliveries

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
        taken: list[Deliveries] = []
        first = self._events[0][0]
        while self._events and len(taken) < limit and self._events[0][0] is first:
            line, event = self._events.popleft()
            line.core.progress.record_delivery(event.serial)
            if isinstance(event, Received):
                room = limit - len(taken)
                now, later = event.deliveries[:room], event.deliveries[room:]
                taken.extend(now)
                self.waiting_bytes -= _size_of_runs(now)
                if later:
                    self._events.appendleft((line, replace(event, deliveries=later)))
                    break
            else:
                self.announce(event)
            self._taking = line, event.serial
        return taken

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

    def forget(self, subscription: int) -> None:
        """Remove a subscription from all waiting arrivals."""
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
        self._events.clear()
        self.waiting_bytes = 0

    def announce(self, event: Announced | GapsAnnounced) -> None:
        """Announce a notice or gaps to the application, through its callbacks."""
        if isinstance(event, Announced):
            self._callbacks.on_notice(event.notice)
            return
        for gap in event.gaps:
            self._callbacks.on_gap(gap)


def _size(event: Arrival) -> int:
    return _size_of_runs(event.deliveries) if isinstance(event, Received) else 0


def _size_of_runs(deliveries: Sequence[Deliveries]) -> int:
    return sum(item.run.payload_bytes() + 64 for item in deliveries)
