"""Marks: named events of interest, so that a swarm can report its coverage.

A rule of a protocol that no seed has exercised is untested. Each rule names a mark in the
protocol's document. Every seed counts its marks, and a campaign with too few seeds at a mark
returns UNKNOWN.

Most draws choose each target independently, so these pairs are rare without draws of their own; see
`search/planning/compounds`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Hierarchy
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import Effect, Event
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.world.views import BrokerView

PREFIX = "mark_"
"""The prefix of marks among the counters of a seed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One event of interest.

    Attributes:
        name: name in the protocol's document.
        event: the event, in a sentence.
        seeds: a plain swarm reaches the mark at least once in this number of seeds; 0 if a plain
            swarm need not reach the mark.
        on: types of events, or of messages that arrive, at which a `MarkTable` counts the mark.
        by: types of effects, or of messages that are sent, at which it counts the mark.
        when: a further condition on the `MarkStep`, or the number of events in the step.
        counter: a statistic of the core that rises with the mark; "" without one.
    """

    name: str
    event: str
    seeds: int = 0
    on: tuple[type, ...] = ()
    by: tuple[type, ...] = ()
    when: Callable[[Any], int] | None = None
    counter: str = ""


ADVANCED_AGAIN = Mark(
    "advanced-again",
    "a stored position of an earlier incarnation advanced",
    seeds=6,
)
"""The mark of all protocols with position rows, for the rule of `positions`."""


class MarkObserver(Protocol):
    """An observer of every step of every broker that counts marks.

    Attributes:
        counts: number of events by mark.
    """

    counts: dict[str, int]

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        """Count the marks of an event that a core has handled."""
        ...


@dataclass(frozen=True, slots=True)
class MarkCoverage:
    """The coverage of a mark by a number of seeds.

    Attributes:
        seeds: number of seeds that reached the mark.
        times: number of events in all seeds.
        required: number of seeds that must reach the mark.
    """

    mark: Mark
    seeds: int
    times: int
    required: int

    @property
    def is_enough(self) -> bool:
        """True if enough seeds have reached the mark."""
        return self.seeds >= self.required


def compute_coverage(marks: Iterable[Mark], reports: Sequence[SeedReport]) -> list[MarkCoverage]:
    """Return the coverage of each mark, in the order of the marks."""
    found = []
    for mark in marks:
        counted = [report.counters.get(PREFIX + mark.name, 0) for report in reports]
        required = len(reports) // mark.seeds if mark.seeds else 0
        found.append(MarkCoverage(mark, sum(map(bool, counted)), sum(counted), required))
    return found


def as_counters(counts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield marks as counters of a seed."""
    for name, count in counts.items():
        yield PREFIX + name, count


def describe_coverage(found: Iterable[MarkCoverage]) -> str:
    """Return the coverage for people: a summary, and a line per mark without enough seeds."""
    rows = list(found)
    met = sum(bool(row.seeds) for row in rows)
    lines = [f"{met} of {len(rows)} marks reached"]
    lines += [
        f"mark {row.mark.name} in {row.seeds} seeds, {row.required} are required: {row.mark.event}"
        for row in rows
        if not row.is_enough
    ]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Novelty:
    """The variety that seeds have shown, in pairs of a mark and a number of its events.

    The number of events of a seed counts by its power of two, so that a third time differs from a
    first. The chance of a new pair is the Good-Turing estimate: the pairs of a single seed, per
    seed.

    Attributes:
        seeds: number of seeds.
        pairs: number of pairs that at least one seed has reached.
        single: number of pairs that exactly one seed has reached.
        late: number of pairs that only the last half of the seeds has reached.
    """

    seeds: int
    pairs: int
    single: int
    late: int

    @property
    def chance(self) -> float:
        """The estimated number of new pairs of the next seed, at most 1."""
        return min(1.0, self.single / self.seeds) if self.seeds else 1.0

    def describe(self) -> str:
        """Return the variety in a sentence."""
        return (
            f"{self.pairs} pairs of mark and times reached, {self.late} of them by the last half "
            "of the seeds alone; the next seed reaches a new pair with a chance of "
            f"{self.chance:.1%}"
        )


def measure_novelty(reports: Sequence[SeedReport]) -> Novelty:
    """Return the variety of the marks of some seeds."""
    seen: dict[tuple[str, int], list[int]] = {}
    for place, report in enumerate(reports):
        for name, count in report.counters.items():
            if name.startswith(PREFIX) and count:
                seen.setdefault((name, count.bit_length()), []).append(place)
    half = len(reports) // 2
    return Novelty(
        len(reports),
        len(seen),
        sum(len(places) == 1 for places in seen.values()),
        sum(places[0] >= half for places in seen.values()),
    )


Units = tuple[tuple[int, ...], tuple[int, ...]]


RESTORED_THEN_REMOVED: Final = "restored-then-removed"
JOINED_FAILED: Final = "joined-failed"
JOINED_BESIDE_REMOVAL: Final = "joined-beside-removal"
ABSENT_CLIENT_REMOVED: Final = "absent-client-removed"
PARALLEL_LINKS_FAILED: Final = "parallel-links-failed"

COMPOUNDS: Final[Mapping[str, str]] = {
    RESTORED_THEN_REMOVED: "a broker with an accepted loss was lost, decommissioned, or departed",
    JOINED_FAILED: "a joined broker failed",
    JOINED_BESIDE_REMOVAL: "a broker joined after a removal, or was present at the removal",
    ABSENT_CLIENT_REMOVED: "a broker was lost or decommissioned in the absence of its client",
    PARALLEL_LINKS_FAILED: "two links between the same two units were down at once",
}
"""The events of compound faults, in a sentence, by mark."""


def make_marks(seeds: Mapping[str, int]) -> tuple[Mark, ...]:
    """Return the marks of compound faults, each reached once in a number of seeds."""
    return tuple(Mark(name, COMPOUNDS[name], number) for name, number in seeds.items())


def units_between(topology: Topology, a: BrokerNumber, b: BrokerNumber) -> Units | None:
    """Return the largest units at both ends of a link, in order; None outside of a hierarchy."""
    if topology.kind != "hierarchy":
        return None
    section = topology.restrict_to_kind("hierarchy").section
    assert isinstance(section, Hierarchy), f"{topology.name} is no hierarchy"
    one, other = sorted((section.addresses[a], section.addresses[b]))
    depth = next((n for n, (x, y) in enumerate(zip(one, other, strict=True), 1) if x != y), 0)
    return (one[:depth], other[:depth])
