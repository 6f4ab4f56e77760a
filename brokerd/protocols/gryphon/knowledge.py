"""The knowledge of one stream at a broker, by tick.

A tick is unknown (Q), an event (D), silent (S) or final (F): acknowledged by all cells and clients
downstream. A known tick without an event is silent.

Paper: [GD02] §2.1, §3.1 (knowledge streams).
"""

from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.intervals import IntervalSet, Range
from brokerd.protocols.gryphon.retained import RetainedEvents, part_of, sequences_within


class Knowledge:
    """The knowledge of one stream.

    A range costs the same for any number of events. Knowledge is permanent: only becoming final
    changes a tick that is not unknown, and removes the event.

    Attributes:
        final: the last final tick; all earlier ticks are final.
        known: the ticks that are not unknown.
        events: the events that are not final.
    """

    __slots__ = ("events", "final", "known")

    def __init__(self) -> None:
        self.final = 0
        self.known = IntervalSet([(0, 1)])
        self.events = RetainedEvents()

    @property
    def highest(self) -> int:
        """The last tick that is not unknown."""
        return self.known.last

    def horizon(self, after: int) -> int:
        """Return the last tick before the first unknown tick behind `after`.

        Paper: [GD02] §2.3 (doubt horizon; here the tick before the first unknown one).
        """
        run = self.known.run(after + 1)
        return after if run is None else run[1] - 1

    def contradiction(self, start: int, end: int, run: PublicationRun | None) -> int | None:
        """Return the first tick at which a statement about [start, end) differs, if any.

        An event is stated as silent, or a silent tick as an event.
        """
        start = max(start, self.final + 1)
        for low, high in self.known.within(start, end) if start < end else ():
            ours = self.events.ticks(low, high)
            theirs = [*sequences_within(run, low, high)] if run is not None else []
            if ours != theirs:
                return min({*ours} ^ {*theirs})
        return None

    def accumulate(self, start: int, end: int, run: PublicationRun | None) -> list[Range]:
        """Record that [start, end) has these events and is silent otherwise.

        Returns the ranges that were unknown. Other ticks do not change: silence never replaces an
        event.
        """
        fresh = self.known.gaps(start, end)
        for low, high in fresh:
            part = part_of(run, low, high) if run is not None else None
            if part is not None:
                self.events.add(part)
        self.known.add(start, end)
        return fresh

    def condense(self, through: int) -> None:
        """Merge old events through a tick, below the doubt horizon, into fewer runs."""
        if self.events.is_scattered:
            self.events.condense(min(through, self.horizon(self.final)))

    def finish(self, through: int) -> bool:
        """Make everything through a tick final; return True if the final tick advanced."""
        if through <= self.final:
            return False
        self.final = through
        self.known.add(0, through + 1)
        self.events.drop_through(through)
        return True
