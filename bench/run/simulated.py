"""Experiments in virtual time: the same workload and fault files, without processes."""

from collections.abc import Iterator
from fractions import Fraction

from bench.load.content import ContentTables, SourceContent
from bench.run.run_directory import RunDirectory
from bench.run.simulated_run import SimulatedRun
from bench.spec.spec import ExperimentSpec, PublisherPlan, SpecError
from bench.spec.workload import intended_offsets
from brokerd.model.fault_verbs import SIMULATED_VERBS
from brokerd.simulator.experiment import (
    SimulatedPublisher,
    SimulatedStep,
    SimulatedSubscriber,
    SimulatedVerdict,
    simulate_schedule,
)
from brokerd.wire.attributes import encode_attributes
from fault_injection.schedule.plan import PlannedStep, expand
from fault_injection.schedule.schedule import FaultSchedule, Problem, ScheduleError
from fault_injection.schedule.step import END
from fault_injection.schedule.targets import read_target

_FASTEST = Fraction(1_000)


def simulate_experiment(
    spec: ExperimentSpec,
    schedule: FaultSchedule | None,
    *,
    mutants: frozenset[str] = frozenset(),
    directory: RunDirectory | None = None,
) -> SimulatedVerdict:
    """Run a workload with the faults of a schedule on simulated brokers, and judge the run.

    Contents, predicates and intended times equal the deployed experiment with the same seed. A
    publisher without a rate publishes 1,000 times a second, because a simulated broker has no
    highest rate.

    Args:
        mutants: named bugs of every broker.
        directory: folder of a run that can be judged from its records alone.

    Raises:
        ScheduleError, SpecError: see `simulated_steps`.
    """
    simulated = simulated_steps(spec, schedule)
    duration_ns = spec.workload.phases.measure
    steps = expand(schedule, spec.seed) if schedule is not None else ()
    recorder = None
    fence = ""
    if directory is not None:
        recorder = SimulatedRun(spec, schedule, steps, directory)
        fence = f" or fence = '{directory.run_id}'"
    return simulate_schedule(
        spec.topology,
        spec.protocol,
        [_publisher(spec, plan, duration_ns) for plan in spec.publisher_plans()],
        [
            SimulatedSubscriber(
                plan.name,
                plan.broker,
                f"({plan.entry.predicate}){fence}" if fence else plan.entry.predicate,
                plan.subscribes_ns,
            )
            for plan in spec.subscriber_plans()
        ],
        simulated,
        duration_ns=duration_ns,
        seed=spec.seed,
        calm=spec.workload.calm,
        mutants=mutants,
        recorder=recorder,
    )


def simulated_steps(spec: ExperimentSpec, schedule: FaultSchedule | None) -> list[SimulatedStep]:
    """Return the steps on simulated brokers, without a run.

    Raises:
        ScheduleError: the schedule has verbs that simulated brokers do not support.
        SpecError: the workload has churn or failover brokers, which simulated clients do not
            support.
    """
    workload = spec.workload
    if workload.churn is not None:
        raise SpecError(
            f"{spec.source}: [churn]: simulated subscribers stay connected; `pubsubctl bench` "
            "disconnects them, and a swarm's plans do"
        )
    if any(entry.failover for entry in workload.publishers) or any(
        entry.failover for entry in workload.subscribers
    ):
        raise SpecError(
            f"{spec.source}: failover: simulated clients stay at their brokers; those of "
            "`pubsubctl bench` go on elsewhere, and those of a swarm's plans do"
        )
    steps = expand(schedule, spec.seed) if schedule is not None else ()
    return [_step(spec, step) for step in steps]


def _publisher(spec: ExperimentSpec, plan: PublisherPlan, duration_ns: int) -> SimulatedPublisher:
    tables = ContentTables.build(
        spec.seed,
        spec.attribute_sets(),
        plan.entry.size_bytes,
        encode_attributes,
        spec.workload.attributes,
    )
    source = SourceContent(tables, spec.seed, plan.index, incarnation=1)

    def content(sequence: int) -> tuple[bytes, bytes]:
        _, payload = source.choice(sequence)
        return source.blob(sequence), tables.payloads[payload]

    offsets = _offsets(spec, plan, duration_ns)
    return SimulatedPublisher(plan.name, plan.broker, offsets, content)


def _offsets(spec: ExperimentSpec, plan: PublisherPlan, duration_ns: int) -> Iterator[int]:
    rate = plan.entry.rate.per_second or _FASTEST
    for chunk in intended_offsets(
        numerator=rate.numerator,
        denominator=rate.denominator,
        arrivals=plan.entry.arrivals,
        seed=spec.seed,
        index=plan.index,
        duration_ns=duration_ns,
    ):
        yield from chunk


def _step(spec: ExperimentSpec, step: PlannedStep) -> SimulatedStep:
    if step.verb not in SIMULATED_VERBS:
        text = f"needs real processes; simulated are {', '.join(SIMULATED_VERBS)}"
        raise ScheduleError([Problem("faults", step.id, "do", step.verb, text)])
    target = read_target(step.on, spec.topology)
    after = step.after
    if after is not None and after[1] == END:
        after = (after[0], "end")
    return SimulatedStep(
        step.id,
        step.verb,
        target.brokers,
        step.at_ns,
        after,
        step.delay_ns,
        step.duration_ns,
        target.one_way,
        released=not step.ended_by,
    )
