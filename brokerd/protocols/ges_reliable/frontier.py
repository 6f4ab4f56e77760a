"""How far a publisher has come without a gap, and what has come too early.

A publisher that goes to another broker sends again what it was not told to be stored, and what it
publishes next may come first. Whoever took the highest number for how far it has come would take
what is still missing for a duplicate.

Paper: [GES] §4. Deviates: it has no such rule, and would lose what is overtaken.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.model.identity import BrokerNumber
from brokerd.model.publication import PublicationRun


class Part(NamedTuple):
    """Publications of one source, and the root that was sent them by a home."""

    run: PublicationRun
    root: BrokerNumber


@dataclass(slots=True)
class Frontier:
    """Of one source, whose publications are numbered from 1.

    Attributes:
        reached: all up to this number have been taken.
        early: what has come while something before it is missing, by first number.
    """

    reached: int = 0
    early: dict[int, Part] = field(default_factory=dict)

    def has(self, first: int, last: int) -> bool:
        """Whether each of these numbers was taken, or waits for its turn."""
        missing = max(first, self.reached + 1)
        for number in sorted(self.early):
            run = self.early[number].run
            if run.first <= missing <= run.last:
                missing = run.last + 1
        return missing > last

    def waiting(self) -> int:
        """How many publications wait for their turn."""
        return sum(len(part.run) for part in self.early.values())

    def take(self, run: PublicationRun, limit: int, root: BrokerNumber = 0) -> list[Part]:
        """What is next now, in order; what is not is kept, if that is no more than `limit`."""
        if run.first > self.reached + 1:
            longest = self.early.get(run.first)
            if longest is None or longest.run.last < run.last:
                self.early[run.first] = Part(run, root)
                while self.waiting() > limit:
                    del self.early[max(self.early)]
            return []
        found: list[Part] = []
        while True:
            rest = run.after(self.reached)
            if rest is not None:
                found.append(Part(rest, root))
                self.reached = rest.last
            following = min(self.early, default=None)
            if following is None or following > self.reached + 1:
                return found
            run, root = self.early.pop(following)
