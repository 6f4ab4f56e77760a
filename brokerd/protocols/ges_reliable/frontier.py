"""How far a publisher has come without a gap, and what has come too early.

A publisher that goes to another broker sends again what it was not told to be stored, and what it
publishes next may come first. Whoever took the highest number for how far it has come would take
what is still missing for a duplicate.

Paper: [GES] §4. Deviates: it has no such rule, and would lose what is overtaken.
"""

from dataclasses import dataclass, field

from brokerd.model.publication import PublicationRun


@dataclass(slots=True)
class Frontier:
    """Of one source, whose publications are numbered from 1.

    Attributes:
        reached: all up to this number have been taken.
        early: what has come while something before it is missing, by first number.
    """

    reached: int = 0
    early: dict[int, PublicationRun] = field(default_factory=dict)

    def take(self, run: PublicationRun, limit: int) -> list[PublicationRun]:
        """What is next now, in order; what is not is kept, if that is no more than `limit`."""
        if run.first > self.reached + 1:
            longest = self.early.get(run.first)
            if longest is None or longest.last < run.last:
                self.early[run.first] = run
                while sum(map(len, self.early.values())) > limit:
                    del self.early[max(self.early)]
            return []
        found: list[PublicationRun] = []
        while True:
            rest = run.after(self.reached)
            if rest is not None:
                found.append(rest)
                self.reached = rest.last
            following = min(self.early, default=None)
            if following is None or following > self.reached + 1:
                return found
            run = self.early.pop(following)
