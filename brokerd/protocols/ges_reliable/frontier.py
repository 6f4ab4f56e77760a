"""The frontier of a publisher, and publications that have arrived out of order.

A publisher that moves to another broker repeats all publications without an acknowledgement, and
new publications may arrive first. A storage that took the highest number for the frontier would
take the missing publications for duplicates.

Paper: [GES] §4. Deviates: the paper has no such rule, and would lose overtaken publications.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from brokerd.model.identity import BrokerNumber
from brokerd.model.publication import PublicationRun


class Part(NamedTuple):
    """Publications of a source, and the root that received the run from an access broker."""

    run: PublicationRun
    root: BrokerNumber


@dataclass(slots=True)
class Frontier:
    """The frontier of a source with publications numbered from 1.

    Attributes:
        reached: the number through which all have been taken.
        early: runs that arrived out of order, by first number.
    """

    reached: int = 0
    early: dict[int, Part] = field(default_factory=dict)

    def has(self, first: int, last: int) -> bool:
        """Return True if all of these numbers were taken, or wait for earlier ones."""
        missing = max(first, self.reached + 1)
        for number in sorted(self.early):
            run = self.early[number].run
            if run.first <= missing <= run.last:
                missing = run.last + 1
        return missing > last

    def waiting(self) -> int:
        """Return the number of publications that wait for earlier ones."""
        return sum(len(part.run) for part in self.early.values())

    def take(self, run: PublicationRun, limit: int, root: BrokerNumber = 0) -> list[Part]:
        """Return the publications that are next, in order; store at most `limit` out of order."""
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
