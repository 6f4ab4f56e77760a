"""Marks: events of interest by name, so that a swarm can say what it has been through.

A rule of a protocol that no seed has come to is not tried by any of them. Each rule names a mark
in the protocol's document; every seed counts how often it came to it, and a campaign in which
too few seeds did says UNKNOWN instead of nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from brokerd.protocols.interface import Effect, Event
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.world.views import BrokerView

PREFIX = "mark_"
"""Of a mark's name among the counters of a seed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One event of interest.

    Attributes:
        name: as the protocol's document has it.
        what: has happened, in a sentence.
        seeds: of so many seeds of a plain swarm one at least comes to it; 0 where a plain swarm
            need not.
    """

    name: str
    what: str
    seeds: int = 0


ADVANCED_AGAIN = Mark(
    "advanced-again",
    "a row of how far something has come, which an earlier incarnation left, went further",
    seeds=4,
)
"""Of all protocols with such rows, whose rule is `positions`."""


class MarkObserver(Protocol):
    """Sees every step of every broker, and counts marks.

    Attributes:
        counts: how often each mark was reached.
    """

    counts: dict[str, int]

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        """A core has handled an event."""
        ...


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a number of seeds has come to a mark.

    Attributes:
        seeds: that came to it.
        times: in all.
        required: so many seeds had to.
    """

    mark: Mark
    seeds: int
    times: int
    required: int

    @property
    def is_enough(self) -> bool:
        """Whether as many seeds as had to have come to it."""
        return self.seeds >= self.required


def reached(marks: Iterable[Mark], reports: Sequence[SeedReport]) -> list[Reached]:
    """How often each mark was reached, in the order of the marks."""
    found = []
    for mark in marks:
        counted = [report.counters.get(PREFIX + mark.name, 0) for report in reports]
        required = len(reports) // mark.seeds if mark.seeds else 0
        found.append(Reached(mark, sum(map(bool, counted)), sum(counted), required))
    return found


def as_counters(counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Marks as counters of a seed."""
    for name, count in counts.items():
        yield PREFIX + name, count


def in_words(found: Iterable[Reached]) -> str:
    """What was reached, for people: a line for all, and one for each that lacks seeds."""
    rows = list(found)
    met = sum(bool(row.seeds) for row in rows)
    lines = [f"{met} of {len(rows)} marks reached"]
    lines += [
        f"mark {row.mark.name} in {row.seeds} seeds, {row.required} are required: {row.mark.what}"
        for row in rows
        if not row.is_enough
    ]
    return "\n".join(lines)
