"""How much all catch-up streams of one pubend may have asked for together, and who waits to ask.

What one of them asks for ends with an answer, whatever its client does; so all come to their turn.
While a pubend cannot be reached there is no answer: nobody waits for what another one is asked.

Paper: [DS03] §4.1 (flow control). Deviates: who waits longest is next, not who is farthest behind,
because the others would wait for that one all the time.
"""

from brokerd.model.identity import StreamId
from brokerd.protocols.durable.hosted_streams import HostedStream
from brokerd.protocols.durable.lanes import Lane


class CatchupWindow:
    """See above.

    Args:
        limit: so many events may be asked for; what is asked for last may exceed it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._asked: dict[Lane, int] = {}
        self._waiting: dict[Lane, HostedStream] = {}
        self._events: dict[StreamId, int] = {}

    def admit(self, lane: Lane, hosted: HostedStream) -> bool:
        """Whether a catch-up stream may ask for more; if not, it waits for its turn."""
        if self._has_room(lane):
            return True
        self._waiting[lane] = hosted
        return False

    def ask(self, lane: Lane, events: int) -> None:
        """A catch-up stream asks for so many events."""
        self._asked[lane] = events
        self._events[lane.stream] = self._events.get(lane.stream, 0) + events

    def answered(self, lane: Lane) -> None:
        """All that it asked for has come, or nobody waits for it any more."""
        asked = self._asked.pop(lane, 0)
        if asked:
            self._events[lane.stream] -= asked

    def leave(self, lane: Lane) -> None:
        """It has ended."""
        self.answered(lane)
        self._waiting.pop(lane, None)

    def next(self) -> tuple[HostedStream, Lane] | None:
        """Who may ask now of those who wait, and waits no more."""
        lane = next((each for each in self._waiting if self._has_room(each)), None)
        return (self._waiting.pop(lane), lane) if lane is not None else None

    def _has_room(self, lane: Lane) -> bool:
        return self._events.get(lane.stream, 0) < self._limit
