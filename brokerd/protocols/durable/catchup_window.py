"""The window of requests of all catch-up streams to a pubend, and streams that wait for a place.

Every request ends with an answer, whatever its client does; so all streams have their turn. While
a pubend is unreachable there is no answer: no stream waits for another pubend's answers.

Paper: [DS03] §4.1 (flow control). Deviates: the stream that waits longest is next, not the one
that is farthest behind, because the others would always wait for that stream.
"""

from brokerd.model.identity import StreamId
from brokerd.protocols.durable.hosted_streams import HostedStream
from brokerd.protocols.durable.lanes import Lane


class CatchupWindow:
    """A window of requested events, per pubend.

    Args:
        limit: the most requested events; the last request may exceed it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._asked: dict[Lane, int] = {}
        self._waiting: dict[Lane, HostedStream] = {}
        self._events: dict[StreamId, int] = {}

    def admit(self, lane: Lane, hosted: HostedStream) -> bool:
        """Return True if a catch-up stream may request more; else queue it."""
        if self._has_room(lane):
            return True
        self._waiting[lane] = hosted
        return False

    def ask(self, lane: Lane, events: int) -> None:
        """Record a request for a number of events."""
        self._asked[lane] = events
        self._events[lane.stream] = self._events.get(lane.stream, 0) + events

    def on_answer(self, lane: Lane) -> None:
        """Record that a request was answered or dropped."""
        asked = self._asked.pop(lane, 0)
        if asked:
            self._events[lane.stream] -= asked

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
