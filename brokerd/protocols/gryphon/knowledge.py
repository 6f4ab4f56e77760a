"""What a broker knows of one stream, tick by tick.

A tick is unknown (Q), an event (D), silent (S) or final (F): everybody downstream is done with
it. Silent is what is known and is no event.

Paper: [GD02] §2.1, §3.1 (knowledge streams).
"""

from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.intervals import IntervalSet, Range
from brokerd.protocols.gryphon.retained import RetainedEvents, part_of, sequences_within


class Contradiction(ValueError):
    """What is said of a tick is not what was said of it before."""


class Knowledge:
    """What is known of one stream.

    A range that is known costs the same however many events are in it. What is known stays so:
    only becoming final changes a tick again, and takes its event away.

    Attributes:
        final: every tick up to this one is final.
        known: the ticks that are not unknown.
        events: those that are events, and not final.
    """

    __slots__ = ("events", "final", "known")

    def __init__(self) -> None:
        self.final = 0
        self.known = IntervalSet([(0, 1)])
        self.events = RetainedEvents()

    @property
    def highest(self) -> int:
        """The last tick that is known."""
        return self.known.last

    def horizon(self, after: int) -> int:
        """The last tick before which, from `after` on, none is unknown.

        Paper: [GD02] §2.3 (doubt horizon; here the tick before the first unknown one).
        """
        run = self.known.run(after + 1)
        return after if run is None else run[1] - 1

    def check(self, start: int, end: int, run: PublicationRun | None) -> None:
        """Make sure that what is said of [start, end) can be accumulated.

        Raises:
            Contradiction: a tick that is known as an event is said to be silent, or the other way
                round.
        """
        start = max(start, self.final + 1)
        for low, high in self.known.within(start, end) if start < end else ():
            ours = self.events.ticks(low, high)
            theirs = [*sequences_within(run, low, high)] if run is not None else []
            if ours != theirs:
                raise Contradiction(f"{_first_difference(ours, theirs)} is an event and is silent")

    def accumulate(self, start: int, end: int, run: PublicationRun | None) -> list[Range]:
        """Take over that [start, end) holds these events and is silent otherwise.

        Returns what of it was unknown. What was known stays: silence never replaces an event.
        """
        fresh = self.known.gaps(start, end)
        for low, high in fresh:
            part = part_of(run, low, high) if run is not None else None
            if part is not None:
                self.events.add(part)
        self.known.add(start, end)
        return fresh

    def condense(self, through: int) -> None:
        """Make few runs of many: of old events up to a tick, below the first unknown one."""
        if self.events.is_scattered:
            self.events.condense(min(through, self.horizon(self.final)))

    def finish(self, through: int) -> bool:
        """Everything up to a tick is final; whether that was not known."""
        if through <= self.final:
            return False
        self.final = through
        self.known.add(0, through + 1)
        self.events.drop_through(through)
        return True


def _first_difference(ours: list[int], theirs: list[int]) -> int:
    return min({*ours} ^ {*theirs})
