"""The plan of an experiment: its specification, its fault schedule, and predicted verdicts."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bench.spec.predictions import DEPLOYED, Prediction, Stage, predictions_of
from bench.spec.spec import ExperimentSpec
from brokerd.text import counted
from brokerd.units import SECOND_NS
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.console.waits import RunTime, describe_series
from pubsubctl.errors import PreflightFailed, UserError
from pubsubctl.runs.outputs import explain_obstacle

if TYPE_CHECKING:
    from bench.spec.experiment import Point
    from bench.spec.spec import ExperimentSpec
    from brokerd.overlay.topology import Topology
    from fault_injection.schedule.schedule import FaultSchedule

_Point = TypeVar("_Point", bound="Point")


def plan_experiment(
    call: Invocation,
    workload: str,
    overrides: Any,
    faults: str | None,
    labels: dict[str, str],
    *,
    simulated: bool = False,
    skip_unsimulated: bool = False,
) -> "tuple[ExperimentSpec, FaultSchedule | None]":
    """Return the experiment that a command line describes, checked as a whole.

    Prints warnings of its topology, churn and guarantee.

    Args:
        simulated: no hosts take part, so the schedule cannot mean the loss of one.
        skip_unsimulated: leave out the steps that need real processes.

    Raises:
        UserError, SpecError: a value is invalid; names file, key and the nearest valid value.
    """
    from bench.spec.lint import churn_warnings, guarantee_warnings
    from bench.spec.spec import load_experiment
    from pubsubctl.deployment.topologies import warn_of_parameters

    spec = load_experiment(call.project.find("workload", workload), overrides, labels)
    warn_of_parameters(call.console, spec.topology, spec.protocol)
    for warning in (*churn_warnings(spec), *guarantee_warnings(spec)):
        call.console.warn_once(warning)
    return spec, plan_faults(
        call, spec, faults, simulated=simulated, skip_unsimulated=skip_unsimulated
    )


def plan_faults(
    call: Invocation,
    spec: "ExperimentSpec",
    faults: str | None,
    *,
    simulated: bool = False,
    skip_unsimulated: bool = False,
) -> "FaultSchedule | None":
    """Return the fault schedule of an experiment, with drawn targets; None without faults.

    Raises:
        UserError, ScheduleError: the schedule does not fit the experiment.
    """
    from bench.spec.keys import step_keys
    from brokerd.model.fault_verbs import CLIENT_VERBS
    from fault_injection.schedule.plan import describe_draws
    from pubsubctl.deployment.placement_choice import predict_placement
    from pubsubctl.injection.faults import (
        bind_to_load,
        check_schedule,
        schedule_of,
        settle_schedule,
    )

    changes = step_keys(spec.overrides.get("keys", {}))
    if faults is None:
        if changes:
            raise UserError(f"faults.{next(iter(changes))}: there are no --faults")
        return None
    schedule = bind_to_load(schedule_of(call.project, faults, changes), *spec.list_placed_clients())
    if skip_unsimulated:
        schedule = _without_processes(call, schedule, faults, spec.topology)
    if spec.workload.calm:
        raise UserError(
            f"{spec.source}: calm = true excludes faults, but --faults "
            f"{faults} was given; take a workload without it"
        )
    if spec.workload.churn is not None:
        for step in schedule.steps:
            if step.do in CLIENT_VERBS:
                raise UserError(
                    f"{spec.source}: churn disconnects the clients that step {step.id!r} of "
                    f"--faults {faults} is done to ({step.do} {step.on}); add --no-churn"
                )
    placement = None
    if not simulated:
        inventory = call.inventory()
        placement = predict_placement(spec.topology, inventory, call.hosts(inventory))
    seed = spec.overrides.get("seed")
    schedule = settle_schedule(schedule, spec.topology, seed, placement, spec.protocol)
    measure_ns = spec.workload.phases.measure
    for warning in check_schedule(
        schedule,
        spec.topology,
        measure_ns=measure_ns,
        placement=placement,
        clients=spec.clients(),
        protocol=spec.protocol,
    ):
        call.console.warn_once(warning)
    for line in describe_draws(schedule):
        call.console.print(line)
    return schedule


def plan_faults_of_points(
    call: Invocation, points: "Iterable[tuple[_Point, str, bool]]"
) -> "list[tuple[_Point, FaultSchedule | None]]":
    """Return points of a series with their fault schedules.

    Args:
        points: each with its faults, "" for none, and True for simulated brokers.

    Raises:
        UserError, ScheduleError: a schedule does not fit a point; names the point.
    """
    planned = []
    for point, faults, simulated in points:
        try:
            schedule = plan_faults(call, point.spec, faults or None, simulated=simulated)
        except UserError as error:
            raise UserError(*(f"{point.name}: {problem}" for problem in error.problems)) from None
        planned.append((point, schedule))
    return planned


def _without_processes(
    call: Invocation, schedule: "FaultSchedule", name: str, topology: "Topology"
) -> "FaultSchedule":
    """Return a schedule without the steps that need real processes, and the steps after them.

    Raises:
        UserError: no step remains.
    """
    skipped: dict[str, str] = {}
    for step in schedule.steps:
        before = step.anchor[0] if step.anchor is not None else ""
        if why := _explain_unsimulated(step.do, step.on, topology):
            skipped[step.id] = why
        elif before in skipped:
            skipped[step.id] = f"follows {before}"
    for step in schedule.steps:
        if step.id in skipped:
            call.console.print(f"skipped: {step.id} ({step.do}) {skipped[step.id]}")
    kept = tuple(step for step in schedule.steps if step.id not in skipped)
    if not kept:
        raise UserError(f"--faults {name}: --skip-unsimulated leaves no step of this schedule")
    return replace(schedule, steps=kept)


def _explain_unsimulated(verb: str, on: str, topology: "Topology") -> str:
    """Return the reason why the simulator cannot carry out a step; "" if the simulator can."""
    from fault_injection.schedule.targets import Target, explain_unsimulated, read_target

    if verb == "crash":
        return ""
    try:
        target = read_target(on, topology, verb)
    except ValueError:  # drawn later, or refused later by name
        target = Target(())
    return explain_unsimulated(verb, target)


def deployment_plan(
    call: Invocation,
    spec: "ExperimentSpec",
    schedule: "FaultSchedule | None",
    predictions: Sequence[Mapping[str, Any]],
) -> Result:
    """Return the plan of a dry run, after an inspection of the hosts.

    Obstacles on the hosts, such as another deployment, are part of the plan, and no error: a dry
    run changes nothing, so that it is useful beside them.

    Args:
        predictions: predictions of the verdict, for the document.
    """
    import trio

    from fault_injection.schedule.plan import expand
    from pubsubctl.deployment.deploy import choose_deployment, plan_deployment
    from pubsubctl.deployment.plan import Plan
    from pubsubctl.hosts.hosts import Lab, run_reaching

    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)

    async def look() -> tuple[Plan | None, Sequence[str]]:
        try:
            wanted = await choose_deployment(lab, spec.topology, spec.protocol)
            return await plan_deployment(lab, wanted), ()
        except PreflightFailed as error:
            return None, error.problems

    plan, obstacles = trio.run(run_reaching, lab, look)
    for obstacle in obstacles:
        call.console.warn(f"a run would be refused now: {obstacle}")
    steps = [str(step) for step in expand(schedule)] if schedule is not None else []
    clients = len(spec.publisher_plans()), len(spec.subscriber_plans())
    phases = spec.workload.phases
    load = (
        f"{counted(clients[0], 'publisher')}, {counted(clients[1], 'subscriber')}, "
        f"warm-up {phases.warmup / 1e9:g} s, "
        f"measure {phases.measure / 1e9:g} s, drain up to {phases.drain / 1e9:g} s"
    )
    return Result(
        document={
            "schema": "pubsubctl/bench-plan/1",
            "deploy": plan.to_mapping()["steps"] if plan else [],
            "obstacles": [*obstacles],
            "workload": spec.workload_mapping(),
            "faults": steps,
            "predictions": [*predictions],
            "expected_s": asdict(expect_time(call, spec)),
        },
        text="\n".join(
            [
                *([plan.text()] if plan else []),
                f"load {load}",
                *(f"fault {step}" for step in steps),
                describe_doubts(predictions),
                expect_time(call, spec).describe(),
            ]
        ),
    )


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a command.

    Attributes:
        name: its name among the runs of the command, "" for the only one.
        schedule: its faults; None for none.
    """

    name: str
    spec: ExperimentSpec
    schedule: FaultSchedule | None
    stage: Stage = DEPLOYED


def announce(
    call: Invocation, runs: Iterable[Run], folder: Path | None = None
) -> list[dict[str, Any]]:
    """Print the predictions of all runs, each once, and return them for a JSON document.

    Doubts are warnings. A prediction that holds for some of several runs names them. What cannot be
    predicted is printed by --dry-run and -v. A dry run also warns of results that cannot be
    written, which a run finds before it starts.

    Args:
        folder: the folder of runs; None if nothing is written.
    """
    runs = [*runs]
    found: dict[tuple[str, str], tuple[Prediction, list[str]]] = {}
    for run in runs:
        for each in predictions_of(run.spec, run.schedule, run.stage):
            found.setdefault((each.kind, each.text), (each, []))[1].append(run.name)
    rows = []
    for (kind, text), (each, names) in sorted(found.items(), key=lambda item: item[0][0]):
        line = f"{', '.join(names)}: {text}" if len(names) < len(runs) else text
        if kind == "doubt":
            call.console.warn(line)
        elif kind == "note" or call.dry_run:
            call.console.print(line)
        else:
            call.console.detail(line)
        rows.append({**each.row(), **({"runs": names} if len(runs) > 1 else {})})
    checked = folder if call.dry_run else None
    if checked and (obstacle := explain_obstacle(checked, (run.spec for run in runs))):
        call.console.warn(f"a run would be refused now: {obstacle}")
    return rows


def expect_time(call: Invocation, spec: ExperimentSpec) -> RunTime:
    """Return the expected time of a run, by earlier commands on this machine."""
    phases = spec.workload.phases
    return RunTime.expect(call.console.waits, (phases.warmup + phases.measure) / SECOND_NS)


def describe_doubts(predictions: Collection[Mapping[str, Any]]) -> str:
    """Return the lines of a dry run about the predictions of its verdict."""
    doubts = [str(each["text"]) for each in predictions if each["kind"] == "doubt"]
    if doubts:
        return "\n".join(f"verdict UNKNOWN: {text}" for text in doubts)
    if any(each["kind"] == "open" for each in predictions):
        return "verdict: no doubt is predicted, as far as the verdict can be predicted"
    return "verdict: no doubt is predicted"


@dataclass(frozen=True, slots=True)
class SeriesPlan:
    """The plan of a series: its runs and their time.

    Attributes:
        points: values of the document by name of the point.
        repetitions: runs of each point.
        times: the expected time of every run.
        predictions: predictions of the verdicts.
        schema: the schema of the document.
        kind: the kind of its points; the document has the plural as a key.
    """

    points: Mapping[str, Mapping[str, Any]]
    repetitions: int
    times: Sequence[RunTime]
    predictions: Sequence[Mapping[str, Any]]
    schema: str = "pubsubctl/series-plan/1"
    kind: str = "point"

    def result(self) -> Result:
        """Return the result of a dry run."""
        return Result(
            document={
                "schema": self.schema,
                f"{self.kind}s": {name: dict(values) for name, values in self.points.items()},
                "repetitions": self.repetitions,
                "expected_ns": round(sum(each.run_s for each in self.times) * SECOND_NS),
                "predictions": [*self.predictions],
            },
            text="\n".join(
                [
                    *(f"{self.kind} {name}" for name in self.points),
                    describe_doubts(self.predictions),
                    describe_series(self.times),
                ]
            ),
        )
