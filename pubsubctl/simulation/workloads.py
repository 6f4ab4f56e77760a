"""Simulated workloads, scenarios and plans, for the command line."""

import difflib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.run.run_directory import RunDirectory, new_run_folder, point_latest
from bench.run.simulated_run import count_simulated_steps, simulate_experiment
from bench.spec.keys import Overrides
from bench.spec.predictions import Stage
from bench.spec.spec import ExperimentSpec
from brokerd.simulator.scenario import ScenarioError, cluster_after, play_scenario
from brokerd.simulator.search.exploration.history_file import is_history
from brokerd.simulator.search.move import PlanError
from brokerd.simulator.search.plan import is_plan, read_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.world.trace import with_all_steps
from brokerd.text import counted
from brokerd.units import format_duration
from fault_injection.schedule.plan import expand
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.console.outputs import write_output
from pubsubctl.errors import PubsubctlError, UserError, VerdictInvalid, VerdictUnknown
from pubsubctl.project import is_plan_file
from pubsubctl.runs.outputs import check_results
from pubsubctl.runs.plan import Run, announce, describe_doubts, plan_experiment
from pubsubctl.runs.verdicts import judge
from pubsubctl.simulation.diagram import Diagram, diagram_of, write_page, write_svg
from pubsubctl.simulation.explorations import draw_history, play_history
from pubsubctl.simulation.swarms import play_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """A simulation of a workload, as the command line describes it.

    Attributes:
        overrides: values that replace those of the workload.
        faults: the name of a schedule; None for no faults.
        skip_unsimulated: leave out the steps that need real processes.
        mutants: named bugs of every broker.
        runs: the folder of runs that gets the record; None for no record.
        check: judge the record with Spark.
        labels: labels of the record.
    """

    workload: str
    overrides: Overrides
    faults: str | None
    skip_unsimulated: bool
    mutants: frozenset[str]
    runs: Path | None
    check: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)


def simulate_workload(call: Invocation, request: SimulationRequest) -> Result:
    """Simulate a workload with its faults, and judge the run.

    Raises:
        UserError, SpecError: an invalid request; names file, key and value.
    """
    spec, schedule = plan_experiment(
        call,
        request.workload,
        request.overrides,
        request.faults,
        dict(request.labels),
        simulated=True,
        skip_unsimulated=request.skip_unsimulated,
    )
    runs = request.runs
    stage = Stage("simulated", is_recorded=runs is not None)
    predictions = announce(call, [Run("", spec, schedule, stage)])
    if call.dry_run:
        return _plan_simulation(spec, schedule, predictions)
    with call.console.progress() as progress:
        progress.phase(f"simulating {spec.name}")
        with _record(runs, spec.name) as directory:
            verdict = simulate_experiment(
                spec, schedule, mutants=request.mutants, directory=directory
            )
        judged = None
        if directory is not None and request.check:
            judged = judge(directory.path, progress, call.master())
    problems: dict[str, tuple[PubsubctlError, ...]] = {
        "INVALID": (VerdictInvalid(f"{spec.name}: promise violated", *verdict.violations),),
        "UNKNOWN": (VerdictUnknown(f"{spec.name}: nothing was at risk, so nothing was shown"),),
        "VALID": (),
    }
    because = [*problems[verdict.value], *(judged.because if judged else ())]
    lines = [verdict.describe()]
    if directory is not None:
        lines += [judged.paint(call.console)] if judged else ["not judged from its records"]
        lines.append(str(directory.path))
    return Result(
        document={
            "schema": "pubsubctl/simulation/1",
            "experiment": spec.name,
            "protocol": spec.protocol,
            "seed": spec.seed,
            "verdict": verdict.value,
            "violations": list(verdict.violations),
            "counters": verdict.counters,
            "history_digest": verdict.digest,
            "story": list(verdict.story),
            "run_directory": str(directory.path) if directory else None,
            "recorded_verdict": judged.verdict if judged else None,
        },
        text="\n".join(lines),
        because=tuple(because),
    )


@contextmanager
def _record(runs: Path | None, experiment: str) -> Iterator[RunDirectory | None]:
    """Yield the folder of a recorded run; a block that fails leaves none.

    Raises:
        PreflightFailed: the folder of runs cannot be written; names it.
    """
    if runs is None:
        yield None
        return
    check_results(runs)
    directory = RunDirectory(new_run_folder(runs, experiment))
    try:
        yield directory
    except BaseException:
        directory.leave()
        shutil.rmtree(directory.path, ignore_errors=True)
        raise
    point_latest(directory.path)


def _plan_simulation(
    spec: ExperimentSpec,
    schedule: FaultSchedule | None,
    predictions: Sequence[Mapping[str, Any]],
) -> Result:
    """Return the plan of a dry run.

    Raises:
        ScheduleError, SpecError: the run cannot be simulated.
    """
    count_simulated_steps(spec, schedule)
    steps = [str(step) for step in expand(schedule, spec.seed)] if schedule is not None else []
    measure = format_duration(spec.workload.phases.measure)
    publishers = counted(len(spec.publisher_plans()), "publisher")
    subscribers = counted(len(spec.subscriber_plans()), "subscriber")
    load = (
        f"simulate {spec.name} for {measure}: {publishers}, {subscribers}, "
        f"{spec.protocol} on {spec.topology.name}"
    )
    return Result(
        document={
            "schema": "pubsubctl/simulation-plan/1",
            "workload": spec.workload_mapping(),
            "faults": steps,
            "predictions": [*predictions],
        },
        text="\n".join([load, *(f"fault {step}" for step in steps), describe_doubts(predictions)]),
    )


def is_file_to_play(name: str, faults: str | None) -> bool:
    """Return True if a name means a file with a scenario or a plan, and not a workload."""
    path = Path(name)
    if path.suffix == ".toml":
        return is_plan_file(path)
    return faults is None and path.is_file()


def play_file(path: Path) -> Result:
    """Play a scenario, and compare with the text of the file; or run a plan or a history.

    Raises:
        UserError: the file cannot be read, or contains none of them.
    """
    text = _read(path)
    if is_plan(text):
        return play_plan(path, text)
    if is_history(text):
        return play_history(path, text)
    try:
        played = play_scenario(text)
    except ScenarioError as error:
        raise UserError(f"{path}: {_kind_of(text) or error}") from None
    differences: list[str] = []
    if "\n----" in text:
        lines = text.splitlines(), played.splitlines()
        differences = [*difflib.unified_diff(*lines, "expected", "played", lineterm="", n=1)]
    problems = (VerdictInvalid(f"{path}: the result differs:", *differences),)
    return Result(
        document={
            "schema": "pubsubctl/scenario/1",
            "file": str(path),
            "played": played,
            "differences": differences,
        },
        text=played,
        because=problems if differences else (),
    )


def _kind_of(text: str) -> str:
    """Return why a file of another kind cannot be played; "" for a scenario."""
    named = _SCHEMA.search(text)
    return f"a file of {named[1]} is no plan, no scenario and no history" if named else ""


def draw_file(path: Path, target: Path, most_steps: int) -> Result:
    """Run the plan, the scenario or the history in a file, and draw the last steps.

    Args:
        target: the picture, of the kind that the suffix says: .svg or .html.

    Raises:
        UserError: the file cannot be read, or contains none of them; or another suffix.
    """
    if target.suffix not in _PICTURES:
        raise UserError(f"--output {target}: write a name that ends in .svg or .html")
    text = _read(path)
    violations: tuple[str, ...] = ()
    try:
        with with_all_steps():
            if is_plan(text):
                run = PlanRun(read_plan(text))
                violations = run.report(-1, "").violations
                cluster = run.cluster
            elif is_history(text):
                cluster, violations = draw_history(path, text)
            else:
                cluster = cluster_after(text)
    except (PlanError, ScenarioError) as error:
        raise UserError(f"{path}: {_kind_of(text) or error}") from None
    diagram = diagram_of(cluster, path.name, violations, most_steps)
    write_output(target, _PICTURES[target.suffix](diagram))
    document = {
        "schema": "pubsubctl/diagram/1",
        "file": str(path),
        "picture": str(target),
        "lanes": diagram.lanes,
        "rows": len(diagram.times_ns),
        "messages": len(diagram.arrows),
        "lost": sum(each.end_row < 0 for each in diagram.arrows),
        "violations": [*violations],
    }
    return Result(document=document, text="\n".join([*violations, str(target)]))


_SCHEMA: Final = re.compile(r'^schema *= *"(pubsubctl/[^"]+)"', re.MULTILINE)
_PICTURES: Final[Mapping[str, Callable[[Diagram], str]]] = {".svg": write_svg, ".html": write_page}


def _read(path: Path) -> str:
    """Return the text of a file with a scenario or a plan."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: no scenario or plan: byte {error.start} is not UTF-8") from None
