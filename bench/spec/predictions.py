"""Predictions of doubts: reasons known before a run for which its verdict will be UNKNOWN.

Contents and schedules follow from the seed, so the number of publications that a subscriber is owed
by a publisher is known before the run. The numbers assume that no publication is withheld, and that
publishers are new to their brokers. A publisher at the rate `max`, or a subscriber that subscribes
late, has no prediction.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

from bench.load.content import choice_base
from bench.load.pacing import intended_offsets
from bench.load.splitmix import splitmix64_series
from bench.spec.spec import ExperimentSpec, PublisherPlan, SubscriberPlan
from brokerd.model.predicate_text import parse_predicate
from brokerd.units import SECOND_NS, format_duration
from fault_injection.schedule.schedule import FaultSchedule
from fault_injection.schedule.targets import read_target

FIRST_INCARNATION: Final = 1
FIRST_OF_DATA: Final = 2
"""The number of the first publication behind the opening fence."""
MOST_COUNTED: Final = 2_000_000
"""The greatest number of publications that are counted one by one; more are estimated."""
MOST_TESTS: Final = 2_000_000
"""The greatest number of tests of attribute sets with predicates."""
TRIED: Final = 6
"""The least number of deliveries of a pair with which the checker can be tried."""
SHOWN: Final = 4
_ROUND_NS: Final = 60 * SECOND_NS


@dataclass(frozen=True, slots=True)
class Pair:
    """The publications of a publisher that a subscriber is owed.

    Attributes:
        owed: their number; an estimate for very many publications.
        published: number of publications of the publisher, warm-up included.
        matches: False if the filter matches no attribute set, so no publication ever.
    """

    subscriber: str
    publisher: str
    owed: int
    published: int
    matches: bool

    def row(self) -> dict[str, Any]:
        """Return a mapping for JSON."""
        return {
            "subscriber": self.subscriber, "publisher": self.publisher, "owed": self.owed,
            "published": self.published, "matches": self.matches,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prediction:
    """A statement about a run before the run.

    Attributes:
        kind: "doubt" if the verdict will be UNKNOWN, "note" for a fact that leaves it open.
        text: one sentence, with a remedy for a doubt.
    """

    kind: Literal["doubt", "note"]
    text: str
    pairs: tuple[Pair, ...] = ()

    def row(self) -> dict[str, Any]:
        """Return a mapping for JSON."""
        return {
            "kind": self.kind,
            "text": self.text,
            **({"pairs": [pair.row() for pair in self.pairs]} if self.pairs else {}),
        }


def predictions_of(spec: ExperimentSpec, schedule: FaultSchedule | None) -> list[Prediction]:
    """Return all predictions of a run, doubts first."""
    pairs = find_owed_pairs(spec)
    found = [*_predict_risk(spec, schedule, pairs)]
    if pairs is not None:
        found += _predict_pairs(spec, pairs)
    return sorted(found, key=lambda each: each.kind)


def find_owed_pairs(spec: ExperimentSpec) -> list[Pair] | None:
    """Return all pairs that can be predicted; None if they are too many to count."""
    subscribers = [plan for plan in spec.subscriber_plans() if plan.subscribes_ns is None]
    predicates = [*dict.fromkeys(plan.entry.predicate for plan in subscribers)]
    publishers = [plan for plan in spec.publisher_plans() if plan.entry.rate.per_second is not None]
    sets = spec.attribute_sets()
    if max(len(sets), len(publishers)) * len(predicates) > MOST_TESTS:
        return None
    matching = {
        text: [
            place
            for place, attributes in enumerate(sets)
            if parse_predicate(text).matches(attributes)
        ]
        for text in predicates
    }
    duration_ns = spec.workload.phases.warmup + spec.workload.phases.measure
    expected = sum(_expect_deliveries(plan, duration_ns) for plan in publishers)
    found = []
    for publisher in publishers:
        chosen: Mapping[int, float]
        if expected > MOST_COUNTED:
            published = round(_expect_deliveries(publisher, duration_ns))
            chosen = dict.fromkeys(range(len(sets)), published / len(sets))
        else:
            published = _expect_published(spec, publisher, duration_ns)
            chosen = _count_by_set(spec, publisher, published, len(sets))
        owed = {
            text: round(sum(chosen.get(place, 0) for place in places))
            for text, places in matching.items()
        }
        found += [
            Pair(
                plan.name, publisher.name, owed[plan.entry.predicate], published,
                bool(matching[plan.entry.predicate]),
            )
            for plan in subscribers
        ]  # fmt: skip
    return found


def _expect_deliveries(plan: PublisherPlan, duration_ns: int) -> float:
    numerator, denominator = plan.entry.rate.as_pair()
    return duration_ns * numerator / denominator / SECOND_NS


def _expect_published(spec: ExperimentSpec, plan: PublisherPlan, duration_ns: int) -> int:
    numerator, denominator = plan.entry.rate.as_pair()
    chunks = intended_offsets(
        numerator=numerator,
        denominator=denominator,
        arrivals=plan.entry.arrivals,
        seed=spec.seed,
        index=plan.index,
        duration_ns=duration_ns,
    )
    return sum(map(len, chunks))


def _count_by_set(
    spec: ExperimentSpec, plan: PublisherPlan, published: int, sets: int
) -> Mapping[int, float]:
    """Return the number of publications with each attribute set."""
    base = choice_base(spec.seed, plan.index, FIRST_INCARNATION) + FIRST_OF_DATA
    found: Counter[int] = Counter()
    for first in range(0, published, 1024):
        count = min(1024, published - first)
        found.update(mixed % sets for mixed in splitmix64_series(base + first, count))
    return found


def _predict_pairs(spec: ExperimentSpec, pairs: Sequence[Pair]) -> Iterator[Prediction]:
    """Yield predictions about pairs that are owed too little."""
    is_whole = len(pairs) == len(spec.subscriber_plans()) * len(spec.publisher_plans())
    if is_whole and not any(pair.owed for pair in pairs):
        yield Prediction(
            "doubt",
            "no subscriber is owed any publication, so the verdict is UNKNOWN; measure for longer, "
            "or choose filters that match",
        )
        return
    if is_whole and max(pair.owed for pair in pairs) < TRIED:
        yield Prediction(
            "doubt",
            f"no subscriber is owed {TRIED} publications of one publisher, too few to try the "
            f"checker on; the verdict is UNKNOWN; measure for longer",
        )
    minimum = spec.workload.bars.deliveries_per_pair_min
    few = sorted((pair for pair in pairs if pair.owed < minimum), key=lambda pair: pair.owed)
    if few:
        yield Prediction("doubt", _describe_too_few(spec, few, minimum), tuple(few))
    if none := [pair for pair in pairs if not pair.owed and pair not in few]:
        yield Prediction("note", _describe_nothing(none), tuple(none))


def _describe_too_few(spec: ExperimentSpec, few: Sequence[Pair], minimum: int) -> str:
    worst = few[0]
    others = f", and {len(few) - 1:,} more pairs have too few" if len(few) > 1 else ""
    remedy = "set `[bars] deliveries_per_pair_min`"
    if worst.matches:
        remedy = (
            f"measure for {format_duration(_compute_enough_ns(spec, few, minimum))}, or {remedy}"
        )
    return (
        f"{worst.subscriber} is owed {worst.owed:,} of {worst.published:,} publications of "
        f"{worst.publisher}{others}; below {minimum:,} the verdict is UNKNOWN; {remedy}"
    )


def _compute_enough_ns(spec: ExperimentSpec, few: Sequence[Pair], minimum: int) -> int:
    """Return a measurement in which all pairs have enough, by the shares of the attribute sets."""
    sets = spec.attribute_sets()
    entries = {plan.name: plan.entry.predicate for plan in spec.subscriber_plans()}
    shares: dict[str, float] = defaultdict(float)
    for text in {entries[pair.subscriber] for pair in few}:
        predicate = parse_predicate(text)
        shares[text] = sum(map(predicate.matches, sets)) / len(sets)
    rates = {plan.name: _expect_deliveries(plan, SECOND_NS) for plan in spec.publisher_plans()}
    slowest = min(
        shares[entries[pair.subscriber]] * rates[pair.publisher] for pair in few if pair.matches
    )
    needed_ns = round(1.2 * minimum / slowest * SECOND_NS)
    unit_ns = _ROUND_NS if needed_ns > _ROUND_NS else SECOND_NS
    return -(-needed_ns // unit_ns) * unit_ns


def _describe_nothing(none: Sequence[Pair]) -> str:
    never = dict.fromkeys(pair.subscriber for pair in none if not pair.matches)
    shown = [f"{name} of any publisher (its filter matches no attribute set)" for name in never]
    shown += [
        f"{pair.subscriber} of {pair.publisher} (its filter matches none of {pair.published:,})"
        for pair in none
        if pair.matches
    ]
    more = [f"{len(shown) - SHOWN:,} more"] if len(shown) > SHOWN else []
    return f"owed nothing: {', '.join([*shown[:SHOWN], *more])}"


def _predict_risk(
    spec: ExperimentSpec, schedule: FaultSchedule | None, pairs: Sequence[Pair] | None
) -> Iterator[Prediction]:
    """Yield predictions about runs in which nothing is at risk."""
    if spec.workload.calm:
        return
    if spec.workload.churn is not None:
        if not any(plan.absences for plan in spec.subscriber_plans()):
            yield Prediction(
                "doubt",
                "no subscriber is disconnected in the measurement, so the verdict is UNKNOWN; "
                f"measure for longer than {format_duration(spec.workload.churn.every)}, or add "
                "--no-churn",
            )
        return
    if schedule is None or not schedule.steps:
        yield Prediction(
            "doubt",
            "nothing is at risk without faults, so the verdict is UNKNOWN; add --faults SCHEDULE, "
            "or set calm = true",
        )
        return
    if pairs is None or spec.topology.kind != "tree":
        return
    spared = _find_spared(spec, schedule, pairs)
    if spared is not None and not _find_reached(spec, schedule, pairs):
        yield Prediction(
            "doubt",
            "no publication that is owed to a subscriber passes a target of the faults, so the "
            "verdict is UNKNOWN; choose other targets",
        )
    elif spared:
        yield Prediction(
            "doubt",
            f"nothing is at risk for the subscribers at {', '.join(spared)}, and "
            "exercised.subscribers_on_path asks for it; the verdict is UNKNOWN",
        )


def _find_spared(
    spec: ExperimentSpec, schedule: FaultSchedule, pairs: Sequence[Pair]
) -> list[str] | None:
    """Return required brokers without a pair at risk; None if targets cannot be predicted."""
    if _find_struck(spec, schedule) is None:
        return None
    reached = _find_reached(spec, schedule, pairs)
    return [name for name in schedule.exercised.subscribers_on_path if name not in reached]


def _find_reached(spec: ExperimentSpec, schedule: FaultSchedule, pairs: Sequence[Pair]) -> set[str]:
    """Return the brokers of subscribers with an owed pair through a target."""
    struck = _find_struck(spec, schedule) or set()
    publishers = {plan.name: plan.broker for plan in spec.publisher_plans()}
    subscribers: dict[str, SubscriberPlan] = {plan.name: plan for plan in spec.subscriber_plans()}
    near = _neighbours(spec)
    owed = {
        (publishers[pair.publisher], subscribers[pair.subscriber].broker)
        for pair in pairs
        if pair.owed
    }
    return {home for start, home in owed if _elements(_path(near, start, home)) & struck}


def _find_struck(spec: ExperimentSpec, schedule: FaultSchedule) -> set[frozenset[str]] | None:
    """Return the brokers and links that faults target; None if a target is of another kind."""
    found: set[frozenset[str]] = set()
    for step in schedule.steps:
        try:
            target = read_target(step.on or "", spec.topology, step.do)
        except ValueError:
            return None
        if target.client or target.sets or target.machine:
            return None
        found.add(target.element)
    return found


def _neighbours(spec: ExperimentSpec) -> Mapping[str, list[str]]:
    near: dict[str, list[str]] = defaultdict(list)
    names = spec.topology.brokers
    for one, other in spec.topology.links:
        near[names[one]].append(names[other])
        near[names[other]].append(names[one])
    return near


def _path(near: Mapping[str, list[str]], start: str, end: str) -> tuple[str, ...]:
    stack: list[tuple[str, ...]] = [(start,)]
    while stack:
        path = stack.pop()
        if path[-1] == end:
            return path
        stack += [(*path, name) for name in near[path[-1]] if name not in path[-2:]]
    return ()


def _elements(path: Sequence[str]) -> set[frozenset[str]]:
    return {*(frozenset((name,)) for name in path), *map(frozenset, pairwise(path))}
