"""Marks: named events of interest, so that a swarm can report its coverage.

A rule of a protocol that no seed has exercised is untested. Each rule names a mark in the
protocol's document. Every seed counts its marks, and a campaign with too few seeds at a mark
returns UNKNOWN.

Compound faults are moves that meet at one broker, or between the same two units. Most draws choose
each target independently, so compounds are rare without draws of their own; see
`search/planning/compounds`.

A mark names the type that it depends on: with `on`, of the event or of the message that arrived;
with `by`, of an effect or of a message that is sent. Its predicate, if any, decides on the step, or
returns a number of events. So a step tests only a few marks of a table. A mark with a `counter` is
counted when that statistic of the core rises. Other marks that depend on earlier steps need an
observer of the protocol, which counts them in the same table.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Hierarchy
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import (
    Commit,
    Deliver,
    Effect,
    Event,
    MessageReceived,
    Record,
    Send,
)
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
    """An observer of every step of every broker that counts marks."""

    @property
    def counts(self) -> dict[str, int]:
        """The number of events by mark."""
        ...

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


class MarkStep:
    """One event of a core, with its effects.

    Attributes:
        message: the message that has arrived; None for another event.
        sent: the messages to all peers, by type.
        acts: the other effects, by type.
    """

    __slots__ = ("acts", "broker", "effects", "event", "message", "sent")

    def __init__(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        self.broker = broker
        self.event: Any = event
        self.effects = effects
        self.message: Any = event.message if type(event) is MessageReceived else None
        self.sent: dict[type, list[Any]] = {}
        self.acts: dict[type, list[Any]] = {}
        for effect in effects:
            if type(effect) is Send:
                found, item = self.sent, effect.message
            else:
                found, item = self.acts, effect
            kind = type(item)
            if kind in found:
                found[kind].append(item)
            else:
                found[kind] = [item]

    @property
    def core(self) -> Any:
        """The core of the broker, without a wrapper."""
        return self.broker.protocol

    def is_own(self, broker: int) -> bool:
        """Return True for the number of this broker."""
        return broker == self.broker.number

    def sends(self, kind: type, when: Callable[[Any], bool]) -> bool:
        """Return True if the step sends a message of this type for which a condition holds."""
        return any(map(when, self.sent.get(kind, ())))

    def count_sent(self, kind: type, when: Callable[[Any], bool]) -> int:
        """Return the number of messages of this type for which a condition holds."""
        return sum(map(when, self.sent.get(kind, ())))

    def replies(self, kind: type) -> bool:
        """Return True if the step sends a message of this type to the peer of its event."""
        if kind not in self.sent:
            return False
        sends = (each for each in self.effects if type(each) is Send)
        return any(type(each.message) is kind and each.peer == self.event.peer for each in sends)

    def count_delivered(self, kind: type) -> int:
        """Return the number of items of this type that the step delivers to clients."""
        return sum(type(each.item) is kind for each in self.acts.get(Deliver, ()))

    def delivers(self, kind: type) -> bool:
        """Return True if the step delivers an item of this type to a client."""
        return any(type(each.item) is kind for each in self.acts.get(Deliver, ()))

    def count_records(self, event: str) -> int:
        """Return the number of lines with this event in the broker's log."""
        return sum(each.event == event for each in self.acts.get(Record, ()))

    def rows(self, table: str) -> Iterator[Any]:
        """Yield the changes of a table that the step commits."""
        for commit in self.acts.get(Commit, ()):
            for change in commit.changes:
                if change.table == table:
                    yield change

    def count_commits(self, table: str) -> int:
        """Return the number of commits with a change of a table."""
        commits = self.acts.get(Commit, ())
        return sum(any(row.table == table for row in each.changes) for each in commits)

    def commits(self, table: str) -> bool:
        """Return True if the step commits a change of a table."""
        return any(True for _ in self.rows(table))


_Row = tuple[str, Callable[[Any], int] | None]
"""Name and condition of a mark."""


class _MarkIndex:
    """The marks of a table by the types that they depend on."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        self._on: dict[type, list[_Row]] = {}
        self._by: dict[type, list[_Row]] = {}
        for mark in marks:
            row = mark.name, mark.when
            for kind in mark.on:
                self._on.setdefault(kind, []).append(row)
            for kind in mark.by:
                self._by.setdefault(kind, []).append(row)

    def find(self, step: MarkStep) -> Iterator[tuple[str, int]]:
        """Yield the marks that a step reaches, with the number of events."""
        on, by = self._on, self._by
        rows = [*on.get(type(step.event), ())]
        if step.message is not None:
            rows += on.get(type(step.message), ())
        for kind in step.acts:
            rows += by.get(kind, ())
        for kind in step.sent:
            rows += by.get(kind, ())
        for name, when in rows:
            count = 1 if when is None else int(when(step))
            if count:
                yield name, count


class RisingNumbers:
    """The last numbers of brokers, for marks that stand for a rise."""

    def __init__(self) -> None:
        self._last: dict[Hashable, int] = {}

    def has_risen(self, key: Hashable, number: int) -> bool:
        """Record a number; return True if the number is higher than the last one."""
        before, self._last[key] = self._last.get(key, 0), number
        return number > before


class MarkTable:
    """The counters of a protocol's marks in one run.

    Attributes:
        counts: number of events by mark.
    """

    def __init__(self, marks: Sequence[Mark]) -> None:
        self.counts = {mark.name: 0 for mark in marks}
        self._find = _MarkIndex(marks).find
        self._counters = tuple((mark.name, mark.counter) for mark in marks if mark.counter)
        self._statistics: dict[BrokerNumber, Mapping[str, int]] = {}

    def count(self, names: Iterable[str]) -> None:
        """Count marks that an observer has found."""
        for name in names:
            self.counts[name] += 1

    def step(self, step: MarkStep) -> None:
        for name, count in self._find(step):
            self.counts[name] += count

    def count_statistics(self, broker: BrokerView) -> None:
        """Count the marks of statistics that have risen since the last call."""
        statistics, before = broker.core.statistics(), self._statistics.get(broker.number, {})
        if statistics != before:
            self._statistics[broker.number] = statistics
            self.count(
                name
                for name, counter in self._counters
                if statistics[counter] > before.get(counter, 0)
            )
