"""Predictions of doubts: reasons known before a run for which its verdict will be UNKNOWN.

Contents and schedules follow from the seed, so the number of publications that a subscriber is owed
by a publisher is known before the run. The numbers assume that no publication is withheld, and that
publishers are new to their brokers.

Deployed brokers determine the number of publications at the rate `max`. Then only the share that a
filter matches is known, and with it the number of publications that a verdict needs. Simulated
publishers have a rate always. A late subscription moves the start of the window in which
publications are owed, by a time that only the simulation shows; the numbers are then estimates.
Each fact that cannot be predicted is a prediction of the kind "open", with the reason.
"""

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any, Final, Literal

from bench.load.content import choice_base
from bench.load.pacing import offsets_of
from bench.load.splitmix import splitmix64_series
from bench.spec.spec import ExperimentSpec, PublisherPlan, SubscriberPlan
from bench.spec.values import FASTEST_SIMULATED
from brokerd.model.predicate import Scalar
from brokerd.model.predicate_text import parse_predicate
from brokerd.text import format_number
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
class Stage:
    """The brokers of a run, and the records of the run.

    Attributes:
        brokers: our brokers, simulated brokers, or servers of another system.
        is_recorded: False for a simulation without a run folder, whose verdict counts no pairs.
    """

    brokers: Literal["deployed", "simulated", "external"] = "deployed"
    is_recorded: bool = True

    def duration_ns(self, spec: ExperimentSpec) -> int:
        """Return the time in which publishers publish; simulated runs have no warm-up."""
        phases = spec.workload.phases
        return phases.measure + (0 if self.brokers == "simulated" else phases.warmup)

    def rate_of(self, plan: PublisherPlan) -> Fraction | None:
        """Return the rate of a publisher; None if the brokers determine the rate."""
        rate = plan.entry.rate.per_second
        if rate is None and self.brokers == "simulated":
            return FASTEST_SIMULATED
        return rate


DEPLOYED: Final = Stage()
SIMULATED: Final = Stage("simulated")
EXTERNAL: Final = Stage("external")


@dataclass(frozen=True, slots=True)
class Pair:
    """The publications of a publisher that a subscriber is owed.

    Attributes:
        owed: their number; an estimate for very many publications; None if the brokers determine
            the number of publications.
        published: number of publications of the publisher, warm-up included; None like `owed`.
        matches: False if the filter matches no attribute set, so no publication ever.
    """

    subscriber: str
    publisher: str
    owed: int | None
    published: int | None
    matches: bool

    @property
    def may_be_owed(self) -> bool:
        """True if the subscriber may be owed a publication."""
        return self.matches if self.owed is None else self.owed > 0

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
        kind: "doubt" if the verdict will be UNKNOWN, "note" for a fact that leaves it open, "open"
            for a fact that cannot be predicted, with the reason.
        text: one sentence, with a remedy for a doubt.
    """

    kind: Literal["doubt", "note", "open"]
    text: str
    pairs: tuple[Pair, ...] = ()

    def row(self) -> dict[str, Any]:
        """Return a mapping for JSON."""
        return {
            "kind": self.kind,
            "text": self.text,
            **({"pairs": [pair.row() for pair in self.pairs]} if self.pairs else {}),
        }


def predictions_of(
    spec: ExperimentSpec, schedule: FaultSchedule | None, stage: Stage = DEPLOYED
) -> list[Prediction]:
    """Return all predictions of a run: doubts, notes, and then unpredictable facts."""
    pairs = find_owed_pairs(spec, stage)
    found = [*_predict_risk(spec, schedule, pairs, stage)]
    if pairs is None:
        sets, filters = len(spec.attribute_sets()), len(_list_filters(spec))
        found.append(
            Prediction(
                "open",
                f"not predicted: the publications that each subscriber is owed; {filters:,} "
                f"filters on {sets:,} attribute sets are too many to test before the run",
            )
        )
    elif stage.is_recorded:
        found += _predict_pairs(spec, pairs, stage)
    return sorted(found, key=lambda each: each.kind)


def find_owed_pairs(spec: ExperimentSpec, stage: Stage = DEPLOYED) -> list[Pair] | None:
    """Return all pairs; None if they are too many to test."""
    subscribers, publishers = spec.subscriber_plans(), spec.publisher_plans()
    predicates = _list_filters(spec)
    sets = spec.attribute_sets()
    if max(len(sets), len(publishers)) * len(predicates) > MOST_TESTS:
        return None
    matching = _find_matching_sets(predicates, sets)
    expected = sum(_expect_deliveries(plan, stage.duration_ns(spec), stage) for plan in publishers)
    found = []
    for publisher in publishers:
        chosen: Mapping[int, float] | None
        published: int | None
        if stage.rate_of(publisher) is None:
            published = chosen = None
        elif expected > MOST_COUNTED:
            number = _expect_deliveries(publisher, stage.duration_ns(spec), stage)
            published = round(number)
            chosen = dict.fromkeys(range(len(sets)), published / len(sets))
        else:
            times_ns = _list_intended_times(spec, publisher, stage)
            earlier = bisect_left(times_ns, _latest_subscription_ns(spec))
            published = len(times_ns)
            chosen = _count_by_set(spec, publisher, published, len(sets), earlier)
        owed = {
            text: None if chosen is None else round(sum(chosen.get(place, 0) for place in places))
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


def _list_filters(spec: ExperimentSpec) -> list[str]:
    return [*dict.fromkeys(plan.entry.predicate for plan in spec.subscriber_plans())]


def _find_matching_sets(
    predicates: Sequence[str], sets: Sequence[Mapping[str, Scalar]]
) -> dict[str, list[int]]:
    found = {}
    for text in predicates:
        predicate = parse_predicate(text)
        found[text] = [
            place for place, attributes in enumerate(sets) if predicate.matches(attributes)
        ]
    return found


def _latest_subscription_ns(spec: ExperimentSpec) -> int:
    """Return the time of the last subscription in the measurement; 0 without late subscribers."""
    return max((plan.subscribes_ns or 0 for plan in spec.subscriber_plans()), default=0)


def _expect_deliveries(plan: PublisherPlan, duration_ns: int, stage: Stage) -> float:
    rate = stage.rate_of(plan)
    return 0.0 if rate is None else float(duration_ns * rate / SECOND_NS)


def _list_intended_times(spec: ExperimentSpec, plan: PublisherPlan, stage: Stage) -> Sequence[int]:
    rate = stage.rate_of(plan)
    assert rate is not None, f"{plan.name} has no schedule"
    lead_ns = stage.duration_ns(spec) - spec.workload.phases.measure
    chunks = offsets_of(
        rate,
        plan.entry.rate.segments(lead_ns, spec.workload.phases.measure),
        arrivals=plan.entry.arrivals,
        seed=spec.seed,
        index=plan.index,
        duration_ns=stage.duration_ns(spec),
    )
    return array("q", chain.from_iterable(chunks))


def _count_by_set(
    spec: ExperimentSpec, plan: PublisherPlan, published: int, sets: int, earlier: int
) -> Mapping[int, float]:
    """Return the number of publications with each attribute set.

    Args:
        earlier: number of publications before the opening fence, which are owed to no subscriber.
    """
    base = choice_base(spec.seed, plan.index, FIRST_INCARNATION) + FIRST_OF_DATA
    found: Counter[int] = Counter()
    for first in range(earlier, published, 1024):
        count = min(1024, published - first)
        found.update(mixed % sets for mixed in splitmix64_series(base + first, count))
    return found


def _predict_pairs(
    spec: ExperimentSpec, pairs: Sequence[Pair], stage: Stage
) -> Iterator[Prediction]:
    """Yield predictions about pairs that are owed too little."""
    if not any(pair.may_be_owed for pair in pairs):
        yield Prediction(
            "doubt",
            "no subscriber is owed any publication, so the verdict is UNKNOWN; measure for longer, "
            "or choose filters that match",
        )
        return
    counted = [(pair.owed, pair) for pair in pairs if pair.owed is not None]
    if len(counted) == len(pairs) and max(owed for owed, _ in counted) < TRIED:
        yield Prediction(
            "doubt",
            f"no subscriber is owed {TRIED} publications of one publisher, too few to try the "
            f"checker on; the verdict is UNKNOWN; measure for longer",
        )
    minimum = spec.workload.bars.deliveries_per_pair_min
    never = [(0, pair) for pair in pairs if pair.owed is None and not pair.matches]
    few = [pair for owed, pair in sorted([*counted, *never], key=itemgetter(0)) if owed < minimum]
    if few:
        yield Prediction("doubt", _describe_too_few(spec, few, minimum, stage), tuple(few))
    if none := [pair for pair in pairs if not pair.may_be_owed and pair not in few]:
        yield Prediction("note", _describe_nothing(none), tuple(none))
    yield from _describe_open_pairs(spec, pairs, minimum)


def _describe_open_pairs(
    spec: ExperimentSpec, pairs: Sequence[Pair], minimum: int
) -> Iterator[Prediction]:
    """Yield the reasons for numbers that are unknown, or estimates."""
    fastest = [*dict.fromkeys(pair.publisher for pair in pairs if pair.owed is None)]
    if fastest:
        least = _find_least_share(spec, pairs)
        needs = ""
        if least is not None and minimum:
            pair, share = least
            needs = (
                f"; {pair.subscriber} is owed {format_number(100 * share, 3)} % of them, "
                f"so the verdict is UNKNOWN below about {round(minimum / share):,} publications "
                f"of {pair.publisher}"
            )
        yield Prediction(
            "open",
            f'not predicted: the publications of {_shorten(fastest)}, because at rate = "max" the '
            f"brokers determine their number{needs}",
        )
    late_ns = _latest_subscription_ns(spec)
    if late_ns:
        late = [plan.name for plan in spec.subscriber_plans() if plan.subscribes_ns is not None]
        yield Prediction(
            "open",
            f"not predicted exactly: publications are owed from the start of the last subscription "
            f"({_shorten(late)}), soon after {format_duration(late_ns)}; only the simulation shows "
            f"the time",
        )


def _find_least_share(spec: ExperimentSpec, pairs: Sequence[Pair]) -> tuple[Pair, float] | None:
    """Return a pair with the least share of matching publications above 0, and the share."""
    sets = spec.attribute_sets()
    entries = {plan.name: plan.entry.predicate for plan in spec.subscriber_plans()}
    places = _find_matching_sets(_list_filters(spec), sets)
    found = [
        (len(places[entries[pair.subscriber]]) / len(sets), pair)
        for pair in pairs
        if pair.owed is None and pair.matches
    ]
    return min(((pair, share) for share, pair in found), key=itemgetter(1), default=None)


def _shorten(names: Sequence[str]) -> str:
    more = [f"{len(names) - SHOWN:,} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])


def _describe_too_few(spec: ExperimentSpec, few: Sequence[Pair], minimum: int, stage: Stage) -> str:
    worst = few[0]
    others = f", and {len(few) - 1:,} more pairs have too few" if len(few) > 1 else ""
    remedy = "set `[bars] deliveries_per_pair_min`"
    if worst.matches:
        enough_ns = _compute_enough_ns(spec, few, minimum, stage)
        remedy = f"measure for {format_duration(enough_ns)}, or {remedy}"
    numbers = "no" if worst.owed is None else f"{worst.owed:,} of {worst.published:,}"
    return (
        f"{worst.subscriber} is owed {numbers} publications of {worst.publisher}{others}; below "
        f"{minimum:,} the verdict is UNKNOWN; {remedy}"
    )


def _compute_enough_ns(
    spec: ExperimentSpec, few: Sequence[Pair], minimum: int, stage: Stage
) -> int:
    """Return a measurement in which all pairs have enough, by the shares of the attribute sets."""
    sets = spec.attribute_sets()
    entries = {plan.name: plan.entry.predicate for plan in spec.subscriber_plans()}
    shares: dict[str, float] = defaultdict(float)
    for text in {entries[pair.subscriber] for pair in few}:
        predicate = parse_predicate(text)
        shares[text] = sum(map(predicate.matches, sets)) / len(sets)
    rates = {
        plan.name: _expect_deliveries(plan, SECOND_NS, stage) for plan in spec.publisher_plans()
    }
    slowest = min(
        shares[entries[pair.subscriber]] * rates[pair.publisher] for pair in few if pair.matches
    )
    needed_ns = round(1.2 * minimum / slowest * SECOND_NS) + _latest_subscription_ns(spec)
    unit_ns = _ROUND_NS if needed_ns > _ROUND_NS else SECOND_NS
    return -(-needed_ns // unit_ns) * unit_ns


def _describe_nothing(none: Sequence[Pair]) -> str:
    never = dict.fromkeys(pair.subscriber for pair in none if not pair.matches)
    shown = [f"{name} of any publisher (its filter matches no attribute set)" for name in never]
    shown += [
        f"{pair.subscriber} of {pair.publisher} (its filter matches none of {pair.published:,})"
        for pair in none
        if pair.matches and pair.published is not None
    ]
    more = [f"{len(shown) - SHOWN:,} more"] if len(shown) > SHOWN else []
    return f"owed nothing: {', '.join([*shown[:SHOWN], *more])}"


def _predict_risk(
    spec: ExperimentSpec,
    schedule: FaultSchedule | None,
    pairs: Sequence[Pair] | None,
    stage: Stage,
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
    if pairs is None:
        return
    struck = _find_struck(spec, schedule)
    if isinstance(struck, str):
        yield Prediction("open", f"not predicted: whether anything is at risk; {struck}")
        return
    reached = _find_reached(spec, struck, pairs, stage)
    spared = [name for name in schedule.exercised.subscribers_on_path if name not in reached]
    if not reached:
        yield Prediction(
            "doubt",
            "no publication that is owed to a subscriber passes a target of the faults, so the "
            "verdict is UNKNOWN; choose other targets",
        )
    elif spared and stage.is_recorded:
        yield Prediction(
            "doubt",
            f"nothing is at risk for the subscribers at {', '.join(spared)}, and "
            "exercised.subscribers_on_path asks for it; the verdict is UNKNOWN",
        )


def _find_reached(
    spec: ExperimentSpec, struck: set[frozenset[str]], pairs: Sequence[Pair], stage: Stage
) -> set[str]:
    """Return the brokers of subscribers with a pair that may be owed through a target."""
    publishers = {plan.name: plan.broker for plan in spec.publisher_plans()}
    subscribers: dict[str, SubscriberPlan] = {plan.name: plan for plan in spec.subscriber_plans()}
    owed = {
        (publishers[pair.publisher], subscribers[pair.subscriber].broker)
        for pair in pairs
        if pair.may_be_owed
    }
    passed = _find_passed(spec, owed, stage)
    return {home for start, home in owed if passed(start, home) & struck}


def _find_passed(
    spec: ExperimentSpec, owed: Collection[tuple[str, str]], stage: Stage
) -> Callable[[str, str], set[frozenset[str]]]:
    """Return a function: the brokers and links that a publication may pass from start to end."""
    near, names = _neighbours(spec), spec.topology.brokers
    if stage.brokers == "external" and len(names) > 1:
        # Systems do not announce the servers that forward a publication.
        anywhere = {*(frozenset((name,)) for name in names)}
        anywhere |= {frozenset((a, b)) for a in names for b in names if a != b}
        return lambda start, end: anywhere
    overlay = None
    if stage.brokers != "external":
        from bench.run.run_directory import overlay_document  # slow to import

        overlay = overlay_document(spec.topology, spec.protocol, [start for start, _ in owed])
    if overlay is None:
        return lambda start, end: _elements(_path(near, start, end))
    over = {
        (route["from"], route["to"]): {frozenset(name.split("->")) for name in route["over"]}
        for route in overlay["routes"]
    }
    return lambda start, end: over[start, end]


def _find_struck(spec: ExperimentSpec, schedule: FaultSchedule) -> set[frozenset[str]] | str:
    """Return the brokers and links that faults target, or the reason against a prediction."""
    found: set[frozenset[str]] = set()
    for step in schedule.steps:
        try:
            target = read_target(step.on or "", spec.topology, step.do)
        except ValueError:
            return f"{step.id} is done to {step.on}, which is chosen during the run"
        if target.client:
            return f"{step.id} is done to a client ({step.on}), which no path contains"
        if target.sets or target.machine:
            return f"{step.id} is done to several brokers or links ({step.on})"
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
