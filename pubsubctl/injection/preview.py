"""`inject --preview`: computes the cut-off pairs of a schedule over time, before any fault.

A step that waits for another begins as early as possible: as if every fault were observed and
recovered at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from brokerd.model.fault_verbs import (
    CLIENT_VERBS,
    FAILING_VERBS,
    HOLDING_VERBS,
    LIMITING_VERBS,
    OFFLINE_VERBS,
    SET_VERBS,
)
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.outage import Outage
from brokerd.overlay.topology import Topology
from brokerd.protocols.registry import RunningProtocol
from brokerd.units import format_duration
from fault_injection.schedule.plan import PlannedStep
from fault_injection.schedule.step import END
from fault_injection.schedule.targets import Target

Pair = tuple[BrokerNumber, BrokerNumber]


@dataclass(frozen=True)
class Effect:
    """The effect of an outage.

    Attributes:
        live: brokers that are not down, in order.
        cut_off: (source, subscriber) pairs of live brokers without deliveries during the outage,
            in order.
        islands: live brokers with mutual reachability, directly or over others; the largest first.
            One island: no broker is cut off permanently.
    """

    live: tuple[BrokerNumber, ...]
    cut_off: tuple[Pair, ...]
    islands: tuple[tuple[BrokerNumber, ...], ...] = field(default=())


def effect_of(known: RunningProtocol, outage: Outage) -> Effect:
    """Return the effect of an outage on a protocol's deliveries."""
    reached = known.find_reached(outage)
    live = outage.live(known.topology)
    cut_off = tuple(
        (source, subscriber)
        for source in live
        for subscriber in live
        if source != subscriber and source not in reached[subscriber]
    )
    return Effect(live, cut_off, _islands(live, reached))


def _islands(
    live: Sequence[BrokerNumber], reached: Mapping[BrokerNumber, AbstractSet[BrokerNumber]]
) -> tuple[tuple[BrokerNumber, ...], ...]:
    islands: list[tuple[BrokerNumber, ...]] = []
    left = dict.fromkeys(live)
    while left:
        first = next(iter(left))
        del left[first]
        island = [first]
        for broker in island:
            both = [
                other for other in left if other in reached[broker] and broker in reached[other]
            ]
            for other in both:
                del left[other]
            island += both
        islands.append(tuple(sorted(island)))
    return tuple(sorted(islands, key=lambda island: (-len(island), island)))


# The effect of a verb on a broker: others route around the broker, or do not notice.
_UNNOTICED = HOLDING_VERBS
_MOST_NAMES = 8


@dataclass(frozen=True)
class Window:
    """A period with the same faults in force.

    Attributes:
        begin_ns: after the origin.
        end_ns: None if no step of the schedule ends the period.
        faults: the steps in force, in user notation.
    """

    begin_ns: int
    end_ns: int | None
    faults: tuple[str, ...]
    effect: Effect
    topology: Topology

    def document(self) -> dict[str, Any]:
        """Return a mapping for --json."""
        names = self.topology.brokers
        return {
            "begin_ns": self.begin_ns,
            "end_ns": self.end_ns,
            "faults": list(self.faults),
            "live": len(self.effect.live),
            "cut_off": [[names[a], names[b]] for a, b in self.effect.cut_off],
            "islands": [[names[number] for number in island] for island in self.effect.islands],
        }

    def text(self) -> str:
        """Return a few lines for people."""
        end = "the end" if self.end_ns is None else format_duration(self.end_ns)
        live = len(self.effect.live)
        pairs = live * (live - 1)
        lines = [f"{format_duration(self.begin_ns)} to {end}: {', '.join(self.faults)}"]
        if not self.effect.cut_off:
            lines.append(
                f"  no pair is cut off: all {pairs} pairs of {live} live brokers communicate"
            )
            return "\n".join(lines)
        lines.append(
            f"  {len(self.effect.cut_off)} of {pairs} pairs (source, subscriber) of {live} live "
            "brokers are cut off while it lasts"
        )
        if len(self.effect.islands) > 1:
            islands = " | ".join(
                self._shorten(island) for island in self.effect.islands[:_MOST_NAMES]
            )
            more = len(self.effect.islands) - _MOST_NAMES
            lines.append(f"  islands: {islands}{f' | {more} more' if more > 0 else ''}")
        rows = _group_rows(self.effect.cut_off)
        for sources, subscribers in rows[:_MOST_NAMES]:
            lines.append(f"  from {self._shorten(sources)} to {self._shorten(subscribers)}")
        if len(rows) > _MOST_NAMES:
            lines.append(f"  and {len(rows) - _MOST_NAMES} more groups; --json has every pair")
        return "\n".join(lines)

    def _shorten(self, numbers: Sequence[int]) -> str:
        names = [self.topology.brokers[number] for number in numbers]
        more = len(names) - _MOST_NAMES
        return ",".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def windows(
    steps: Sequence[PlannedStep],
    targets: Mapping[str, Target],
    known: RunningProtocol,
) -> list[Window]:
    """Return the windows of a schedule with their effects, in order of time.

    Args:
        targets: the target of each step, by step id.
    """
    topology = known.topology
    times = {step.id: span for step, span in zip(steps, _spans(steps), strict=True)}
    bounds = sorted({time for span in times.values() for time in span if time is not None})
    found: list[Window] = []
    for begin_ns, end_ns in zip(bounds, [*bounds[1:], None], strict=True):
        active = [
            step
            for step in steps
            if times[step.id][0] <= begin_ns
            and (times[step.id][1] is None or begin_ns < (times[step.id][1] or 0))
        ]
        if not active:
            continue
        outage = Outage()
        for step in active:
            outage |= outage_of(step.verb, targets[step.id], topology)
        effect = effect_of(known, outage)
        faults = tuple(f"{step.verb} {step.on}" for step in active)
        found.append(Window(begin_ns, end_ns, faults, effect, topology))
    return found


def outage_of(verb: str, target: Target, topology: Topology) -> Outage:
    """Return the outage that a fault causes."""
    numbers = [topology.number_of(name) for name in target.brokers]
    if verb in SET_VERBS:
        return Outage(cut=_separated_pairs(target, topology))
    if verb in (*LIMITING_VERBS, *CLIENT_VERBS, *OFFLINE_VERBS):
        return Outage()
    if target.is_link:
        first, second = numbers
        if verb in _UNNOTICED:
            ways = {(first, second)} if target.one_way else {(first, second), (second, first)}
            return Outage(absorbed=frozenset(ways))
        # A session needs both directions: a link that is deaf in one direction is suspected and
        # closed.
        return Outage(cut=frozenset({(min(numbers), max(numbers))}))
    if verb in _UNNOTICED:
        return Outage(absorbing=frozenset(numbers))
    assert verb in FAILING_VERBS, f"no preview of the pairs that {verb} cuts off"
    return Outage(down=frozenset(numbers))


def _separated_pairs(target: Target, topology: Topology) -> frozenset[Pair]:
    """Return the pairs of brokers that a partition separates."""
    names = topology.brokers
    return frozenset(
        (min(a, topology.number_of(b)), max(a, topology.number_of(b)))
        for a, name in enumerate(names)
        for b in target.separated_from(name, names)
    )


def _spans(steps: Sequence[PlannedStep]) -> list[tuple[int, int | None]]:
    """Return begin and end of each step's fault, after the origin."""
    by_id = {step.id: step for step in steps}

    def begin(step: PlannedStep) -> int:
        if step.after is None:
            return step.at_ns or 0
        anchor, stage = step.after
        earlier = by_id[anchor]
        lasted = (earlier.duration_ns or 0) if stage in (END, "healed", "recovered") else 0
        return begin(earlier) + lasted + step.delay_ns

    def end(step: PlannedStep) -> int | None:
        if step.duration_ns is not None:
            return begin(step) + step.duration_ns
        if step.verb in OFFLINE_VERBS:
            return begin(step)  # over once done
        restarts = [
            begin(other)
            for other in steps
            if other.verb == "restart" and other.on == step.on and begin(other) >= begin(step)
        ]
        return min(restarts, default=None)

    return [(begin(step), end(step)) for step in steps]


def _group_rows(pairs: Iterable[Pair]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return rows (sources, subscribers), with every source cut off from every subscriber."""
    subscribers: dict[int, list[int]] = {}
    for source, subscriber in pairs:
        subscribers.setdefault(source, []).append(subscriber)
    rows: dict[tuple[int, ...], list[int]] = {}
    for source, cut in subscribers.items():
        rows.setdefault(tuple(cut), []).append(source)
    return [(tuple(sources), cut) for cut, sources in rows.items()]
