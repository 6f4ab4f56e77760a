"""The subend of a stream: deliveries to the clients of one broker, and gaps.

Paper: [GD02] §2.3 (doubt horizon, delivery), §3.2 (liveness of subends).
"""

from collections import deque
from dataclasses import dataclass

from brokerd.model.identity import StreamId
from brokerd.protocols.gryphon.gaps import GapParameters, GapTable
from brokerd.protocols.gryphon.intervals import Range
from brokerd.protocols.gryphon.knowledge import Knowledge
from brokerd.protocols.interface import Instant


@dataclass(slots=True, eq=False)
class InFlightEvents:
    """Events that were delivered to clients; `open` parts have no acknowledgement yet."""

    stream: StreamId
    first: int
    open: int = 1


class Subend:
    """The end of one stream at one broker.

    Without a subscription nothing is wanted, and everything counts as delivered; a subscription
    begins behind that.

    Attributes:
        position: all ticks through this one were delivered to clients, or are silent.
        expected: the last tick that an AckExpected has announced.
        gaps: unknown ticks behind the position, below a later event, silence or expected tick.
    """

    __slots__ = ("_doubted", "_open", "expected", "gaps", "position")

    def __init__(self, parameters: GapParameters) -> None:
        self.position = 0
        self.gaps = GapTable(parameters)
        self.expected = 0
        self._doubted = 0
        self._open: deque[InFlightEvents] = deque()

    @property
    def done(self) -> int:
        """The tick through which all present clients have acknowledged."""
        return self._open[0].first - 1 if self._open else self.position

    def done_with(self, knowledge: Knowledge) -> int:
        """Return the acknowledged tick and the silence behind it, even undelivered silence."""
        if self._open:
            return self.done
        through = knowledge.horizon(self.position)
        event = knowledge.events.after(self.position)
        return through if event is None else min(through, event - 1)

    def expect(self, through: int) -> None:
        """Expect ticks through this one; unknown ticks are requested at once."""
        self.expected = max(self.expected, through)

    def doubt(self, through: int) -> bool:
        """Request ticks that delay another stream's event; return True for a new request.

        Paper: [GD02] §3.2 (DCT).
        """
        is_news = through > self._doubted
        self._doubted = max(self._doubted, through)
        return is_news

    def skip(self, knowledge: Knowledge) -> None:
        """Advance the position to the end of the stream, since no client wants its events."""
        self.position = max(self.position, knowledge.highest, self.expected)
        self._doubted = 0

    def next_range(self, knowledge: Knowledge) -> Range | None:
        """Return the range that can be delivered now, from the position to the doubt horizon."""
        position = self.position = max(self.position, knowledge.final)
        horizon = knowledge.horizon(position)
        return (position + 1, horizon + 1) if horizon > position else None

    def see_gaps(self, knowledge: Knowledge, now_ns: Instant) -> None:
        """Update the gaps up to the last tick with knowledge or expectation."""
        asked = max(self.expected, self._doubted)
        start, end = self.position + 1, max(knowledge.highest, asked) + 1
        self.gaps.update(knowledge.known.gaps(start, end) if start < end else (), now_ns)
        if self.gaps:
            self.gaps.hurry(asked, now_ns)

    def on_delivered(self, entry: InFlightEvents) -> None:
        """Record delivered events, the latest ones, until clients acknowledge them."""
        self._open.append(entry)

    def drop_closed(self) -> None:
        """Remove the first entries without open parts."""
        while self._open and not self._open[0].open:
            self._open.popleft()
