"""Comparison of methods of duplicate detection: tolerated failures, and costs.

Every variant receives the same schedules: trees, workloads and failures drawn from seeds, without
durations. Variants that cannot tolerate the failures are expected to fail.

    pubsubctl experiment dft11.dedupe

Paper: [DFT11] §VII, which compares nothing; it prefers vectors.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from brokerd.overlay.generate import chain
from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.messages import PublicationConfirmation, PublicationCopy
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.protocols.interface import Effect, Event, Send
from brokerd.simulator.search.campaign import Setting
from brokerd.simulator.search.moves import FaultInjection
from brokerd.simulator.search.plan import Plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.planning.draw import draw_plan
from brokerd.simulator.search.workers import map_in_workers
from brokerd.simulator.world.broker import SimulatedBroker
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.faults import BROKER_KINDS
from brokerd.wire.attributes import encode_attributes
from brokerd.wire.codec import encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A method of duplicate detection, with its parameters.

    Attributes:
        bears: True if the variant should tolerate failing links, and True if also failing brokers.
    """

    dedupe: str = "source"
    legitimacy: str = "observe"
    switch: str = "resend"
    mutants: tuple[str, ...] = ()
    bears: tuple[bool, bool] = (False, False)


VARIANTS: dict[str, Variant] = {
    "source": Variant(bears=(True, True)),
    "source, drain": Variant(switch="drain", bears=(True, True)),
    "both, hold": Variant(dedupe="both", legitimacy="hold", bears=(True, True)),
    "vector 2δ+1, hold": Variant(dedupe="vector", legitimacy="hold", bears=(True, False)),
    "vector 2δ+1, no hold": Variant(dedupe="vector"),
    "vector δ+1, hold": Variant(dedupe="vector", legitimacy="hold", mutants=("M19",)),
    "source, hold out of order": Variant(legitimacy="hold", mutants=("hold-out-of-order",)),
    "source, not sent again": Variant(mutants=("M22",)),
}

CLASSES = ("links ≤ δ", "links ≤ 3δ+2", "crashes, links ≤ δ", "crashes, links ≤ 3δ+2")

_KINDS = {
    "delivered again": "DUP",
    "delivered out of order": "ORDER",
    "queue order": "ORDER",
    "gap": "LOSS",
    "confirmed too early": "LOSS",
    "acknowledged too early": "LOSS",
    "liveness": "STALL",
}


@dataclass(frozen=True, slots=True)
class Job:
    """A schedule for a variant."""

    variant: str
    schedule_class: str
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a job.

    Attributes:
        kind: DUP, ORDER, LOSS or STALL; another rule's name, or "" without a violation.
        duplicates: publications that a broker received again.
        wire_bytes: frames of publications and their confirmations between brokers.
    """

    job: Job
    kind: str
    deliveries: int
    duplicates: int
    resent: int
    disagreements: int
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """The results of a detection variant over a class of schedules.

    Attributes:
        kinds: number of schedules by kind of violation.
        deliveries, duplicates, resent, disagreements, wire_bytes: sums over schedules without a
            violation.
    """

    variant: str
    schedule_class: str
    schedules: int
    violated: int
    kinds: dict[str, int]
    deliveries: int
    duplicates: int
    resent: int
    disagreements: int
    wire_bytes: int
    must_hold: bool


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of duplicate detection, measured on real objects and frames.

    Attributes:
        publishers: number of publishers of the received publications.
        state_bytes: state of the last broker of a line.
        header_bytes: bytes added per publication on the wire, by length of run.
    """

    dedupe: str
    delta: int
    publishers: int
    state_bytes: int
    header_bytes: dict[int, float]


# ---------------------------------------------------------------- tolerance


def compare(schedules: int, processes: int = 1) -> Iterator[Outcome]:
    """Return an iterator over the outcomes of every variant, with `schedules` per class."""
    jobs = [
        (Job(variant, schedule_class, seed),)
        for schedule_class in CLASSES
        for seed in _seeds(schedule_class, schedules)
        for variant in VARIANTS
    ]
    return map_in_workers(run_job, jobs, processes, at_once=8)


def number_of_runs(schedules: int) -> int:
    """Return the number of outcomes of `compare`."""
    return len(CLASSES) * len(VARIANTS) * schedules


def tabulate(outcomes: Iterable[Outcome]) -> list[Row]:
    """Return a row for each variant and class, in the order of VARIANTS and CLASSES."""
    cells: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        cells.setdefault((outcome.job.variant, outcome.job.schedule_class), []).append(outcome)
    return [
        _row(variant, schedule_class, cells[variant, schedule_class])
        for variant in VARIANTS
        for schedule_class in CLASSES
        if (variant, schedule_class) in cells
    ]


def run_job(job: Job) -> Outcome:
    variant = VARIANTS[job.variant]
    meter = _Meter()
    report = PlanRun(
        _plan(job.schedule_class, job.seed, variant), check_purity=False, watcher=meter.watch
    ).report(job.seed, "")
    return Outcome(
        job,
        _KINDS.get(report.rule, report.rule),
        report.counters["deliveries"],
        report.counters["duplicates_received"],
        report.counters["resent_publications"],
        report.counters["dedupe_disagreements"],
        meter.wire_bytes,
    )


def _row(variant: str, schedule_class: str, outcomes: list[Outcome]) -> Row:
    held = [outcome for outcome in outcomes if not outcome.kind]
    kinds = Counter(outcome.kind for outcome in outcomes if outcome.kind)
    return Row(
        variant,
        schedule_class,
        len(outcomes),
        len(outcomes) - len(held),
        dict(sorted(kinds.items())),
        sum(outcome.deliveries for outcome in held),
        sum(outcome.duplicates for outcome in held),
        sum(outcome.resent for outcome in held),
        sum(outcome.disagreements for outcome in held),
        sum(outcome.wire_bytes for outcome in held),
        VARIANTS[variant].bears["crashes" in schedule_class],
    )


def _seeds(schedule_class: str, schedules: int) -> Iterator[int]:
    """Yield the first seeds with plans that have the failures of the class."""
    seed = found = 0
    while found < schedules:
        kinds = [m.kind for m in _plan(schedule_class, seed).moves if type(m) is FaultInjection]
        wanted = any(kind in BROKER_KINDS for kind in kinds) if "crash" in schedule_class else kinds
        if wanted:
            found += 1
            yield seed
        seed += 1


def _plan(schedule_class: str, seed: int, variant: Variant | None = None) -> Plan:
    """Return a plan with both δ and both shapes in turn.

    No element stays broken, because held publications would wait for it.
    """
    delta = 1 + seed % 2
    at_once = delta if schedule_class.endswith(" δ") else 3 * delta + 2
    setting = Setting(
        delta=delta,
        brokers=7 + delta,
        chain=seed % 4 >= 2,
        links_at_once=at_once,
        elements_at_once=at_once if "crash" in schedule_class else 0,
        runs=0,
    )
    plan = draw_plan(seed, "delta_tree", layer="adversarial", setting=setting)
    variant = variant or Variant()
    parameters = replace(
        plan.parameters,
        publication_log=False,
        dedupe=variant.dedupe,
        legitimacy=variant.legitimacy,
        switch=variant.switch,
    )
    return replace(plan, parameters=parameters, mutants=variant.mutants, broken=())


class _Meter:
    """A counter of publications and confirmations between brokers."""

    def __init__(self) -> None:
        self.wire_bytes = 0
        self.copies: list[PublicationCopy] = []

    def watch(self, broker: SimulatedBroker, event: Event, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Send and isinstance(effect.peer, int):
                message = effect.message
                if type(message) in (PublicationCopy, PublicationConfirmation):
                    self.wire_bytes += sum(map(len, encode(message)))
                if type(message) is PublicationCopy:
                    self.copies.append(message)


# ---------------------------------------------------------------- costs

RUN_LENGTHS = (1, 16, 256)
PUBLISHERS = (10, 100, 1_000)


def measure_costs(
    deltas: Iterable[int] = (1, 2, 3), publishers: Iterable[int] = PUBLISHERS
) -> list[Cost]:
    """Return state and wire bytes of both methods, beyond 2δ + 1 brokers from all sources."""
    return [
        _measure(dedupe, delta, count)
        for delta in deltas
        for count in publishers
        for dedupe in ("source", "vector")
    ]


def _measure(dedupe: str, delta: int, publishers: int) -> Cost:
    meter = _Meter()
    cluster = SimulatedCluster(
        chain(2 * delta + 3, delta),
        parameters=DeltaTreeParameters(delta=delta, dedupe=dedupe, assist="off"),
        strict=False,
        trace=False,
        watcher=meter.watch,
    ).start()
    first, last = cluster.topology.brokers[0], cluster.topology.brokers[-1]
    cluster.subscribe(last)
    for number in range(publishers):
        cluster.client(f"p{number}", first, publishes=True)
    cluster.run_until_quiet()
    blob = encode_attributes({"n": 1})
    added: dict[int, float] = {}
    for length in RUN_LENGTHS:
        meter.copies.clear()
        for number in range(publishers if length == RUN_LENGTHS[0] else 1):
            cluster.publish_run(first, [(blob, b"payload.")] * length, f"p{number}")
        cluster.run_until_quiet()
        copy = meter.copies[-1]
        bare = replace(copy, vector=None)
        added[length] = (_frame_bytes(copy) - _frame_bytes(bare)) / length
    core = cluster.brokers[-1].core
    assert isinstance(core, DeltaTree), f"{last} runs {core}"
    publications = core._publications
    state: dict[Any, Any] = publications._sequences.last
    annotations = publications._annotations
    if annotations is not None and annotations._detection is not None:
        state = annotations._detection._seen
    return Cost(dedupe, delta, publishers, table_bytes(state), added)


def _frame_bytes(message: PublicationCopy) -> int:
    return sum(map(len, encode(message)))


def table_bytes(table: dict[Any, Any]) -> int:
    """Return the size of a table with its keys and values, counted as unshared objects."""
    size = sys.getsizeof(table)
    for key, value in table.items():
        for held in (key, value):
            size += sys.getsizeof(held)
            size += sum(map(sys.getsizeof, held)) if isinstance(held, tuple) else 0
    return size


def as_document(rows: Iterable[Row], costs: Iterable[Cost]) -> dict[str, Any]:
    """Return rows and costs as plain values."""
    return {
        "rows": [asdict(row) for row in rows],
        "costs": [
            {**asdict(cost), "header_bytes": {str(k): v for k, v in cost.header_bytes.items()}}
            for cost in costs
        ],
    }
