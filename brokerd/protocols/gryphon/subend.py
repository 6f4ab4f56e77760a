"""What the clients of one broker have had of one stream, and what they still wait for.

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
class Delivered:
    """Events that were handed to clients; `open` parts of it are not acknowledged yet."""

    stream: StreamId
    first: int
    open: int = 1


class Subend:
    """One stream's end at one broker.

    Where nobody subscribes nothing is wanted, and everything counts as had; a subscription
    begins behind that.

    Attributes:
        position: everything up to here was handed to clients, or is silent.
        expected: there is something up to here, as others say.
        gaps: what is unknown behind it, although something later is known or expected.
    """

    __slots__ = ("_doubted", "_open", "expected", "gaps", "position")

    def __init__(self, parameters: GapParameters) -> None:
        self.position = 0
        self.gaps = GapTable(parameters)
        self.expected = 0
        self._doubted = 0
        self._open: deque[Delivered] = deque()

    @property
    def done(self) -> int:
        """Every client that is here is done with what is up to this tick."""
        return self._open[0].first - 1 if self._open else self.position

    def done_with(self, knowledge: Knowledge) -> int:
        """The same, and the silence behind it, whatever it waits for in total order."""
        if self._open:
            return self.done
        through = knowledge.horizon(self.position)
        event = knowledge.events.after(self.position)
        return through if event is None else min(through, event - 1)

    def expect(self, through: int) -> None:
        """There is something up to this tick; what of it is unknown is asked for at once."""
        self.expected = max(self.expected, through)

    def doubt(self, through: int) -> bool:
        """Something else waits for what is unknown up to here; whether that is news.

        Paper: [GD02] §3.2 (DCT).
        """
        is_news = through > self._doubted
        self._doubted = max(self._doubted, through)
        return is_news

    def skip(self, knowledge: Knowledge) -> None:
        """Nobody wants what there is."""
        self.position = max(self.position, knowledge.highest, self.expected)
        self._doubted = 0

    def next_range(self, knowledge: Knowledge) -> Range | None:
        """What can be handed to clients now, from the position to the doubt horizon."""
        position = self.position = max(self.position, knowledge.final)
        horizon = knowledge.horizon(position)
        return (position + 1, horizon + 1) if horizon > position else None

    def see_gaps(self, knowledge: Knowledge, now_ns: Instant) -> None:
        """See what is missing up to the last tick that is known or expected."""
        asked = max(self.expected, self._doubted)
        start, end = self.position + 1, max(knowledge.highest, asked) + 1
        self.gaps.update(knowledge.known.gaps(start, end) if start < end else (), now_ns)
        if self.gaps:
            self.gaps.hurry(asked, now_ns)

    def opened(self, entry: Delivered) -> None:
        """Wait until clients are done with these events, the latest ones."""
        self._open.append(entry)

    def closed(self) -> None:
        """Some may be done with what they had."""
        while self._open and not self._open[0].open:
            self._open.popleft()
