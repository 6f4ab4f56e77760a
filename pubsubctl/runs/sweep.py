"""Sweeps: runs of a workload with each combination of values of some keys."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.run.series import DrawnOrder
from bench.run.simulated_run import count_simulated_steps
from bench.spec.keys import Overrides, check_keys, value_of
from bench.spec.named_files import resolve_name
from bench.spec.predictions import DEPLOYED, SIMULATED
from bench.spec.spec import read_toml
from bench.spec.sweep import (
    SCHEMA,
    Sweep,
    SweepPoint,
    axes_of,
    is_sweep,
    load_sweep,
    points_of,
)
from bench.spec.validation import validate
from brokerd.errors import ConfigError
from brokerd.text import counted, nearest
from brokerd.units import SECOND_NS, format_duration
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import UserError
from pubsubctl.runs.plan import Run, SeriesPlan, announce, expect_time, plan_faults_of_points
from pubsubctl.runs.repetitions import FIGURE as LATENCY
from pubsubctl.runs.repetitions import Design, SimulatedRuns, run_series
from pubsubctl.runs.series import Habits

FIGURE: Final = "series.sweep"
_Planned = list[tuple[SweepPoint, FaultSchedule | None]]


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """A sweep to run, as the command line describes the sweep.

    Attributes:
        name: of a sweep, or of the workload for `axes`.
        axes: KEY=VALUE,…; replaces the axes of a sweep's file key by key.
        bounds: NUMBER=VALUE; replaces the bounds of a sweep's file number by number.
        faults, budget, instances: replace the file's values; None if not given.
        habits: labels, and what happens after runs.
    """

    name: str
    axes: tuple[str, ...]
    faults: str | None
    budget: str | None
    instances: int | None
    bounds: tuple[str, ...] = ()
    habits: Habits = field(default_factory=Habits)


def run_sweep(
    call: Invocation, request: SweepRequest, overrides: Overrides, results: Path | None
) -> Result:
    """Run every point the requested number of times; judge, draw and sum up.

    Everything is checked before any run.

    Raises:
        UserError, SpecError: an invalid request; names the point, file, key and value.
    """
    sweep, where = _sweep_of(call, request)
    _check_keys_and_bounds(sweep, request, overrides, where)
    planned = _plan_points(call, request, sweep, overrides, where)
    times = [expect_time(call, point.spec) for point, _ in planned] * sweep.repetitions
    predictions = announce(
        call,
        (
            Run(point.name, point.spec, faults, SIMULATED if point.simulated else DEPLOYED)
            for point, faults in planned
        ),
        call.project.results_folder(results),
    )
    if call.dry_run:
        keys = {point.name: point.keys for point, _ in planned}
        schema = "pubsubctl/sweep-plan/1"
        plan = SeriesPlan(keys, sweep.repetitions, times, predictions, schema)
        return plan.result()
    expected = round(sum(each.run_s for each in times) * SECOND_NS)
    budget_ns = _budget_ns(sweep)
    if budget_ns is not None and expected > budget_ns and not call.yes:
        raise UserError(
            f"{where}: about {_minutes(expected)} for {counted(len(times), 'run')}, and the budget "
            f"is {format_duration(budget_ns)}; --yes starts all the same; the same command resumes "
            "later"
        )
    design = _design(sweep, planned, request.habits)
    return run_series(call, sweep.name, planned, design, results=results)


def _check_keys_and_bounds(
    sweep: Sweep, request: SweepRequest, overrides: Overrides, where: str
) -> None:
    from results.repetitions.numbers import check_bounds
    from results.tables.json_files import ResultsError

    try:
        check_keys([*overrides.list_keys(), *sweep.axes])
    except ConfigError as error:
        raise UserError(f"{where}: {error}") from None
    try:
        check_bounds(sweep.bounds)
    except ResultsError as error:
        origin = "--bound" if request.bounds else f"{where}: bounds"
        raise UserError(f"{origin}: {error}") from None


def _plan_points(
    call: Invocation, request: SweepRequest, sweep: Sweep, overrides: Overrides, where: str
) -> _Planned:
    """Return the points with their fault schedules; simulated points must be simulable."""
    workload = call.project.find("workload", sweep.workload, origin=where)
    points = map(request.habits.with_labels, points_of(sweep, workload, overrides, where))
    planned = plan_faults_of_points(
        call, ((point, point.faults, point.simulated) for point in points)
    )
    for point, schedule in planned:
        if point.simulated:
            count_simulated_steps(point.spec, schedule)
    return planned


def _budget_ns(sweep: Sweep) -> int | None:
    return sweep.budget.time if sweep.budget is not None else None


def _design(sweep: Sweep, planned: _Planned, habits: Habits) -> Design:
    axes = axes_of(sweep)
    return Design(
        instances=sweep.repetitions,
        figures=(FIGURE,) if axes and len(planned) > 1 else (LATENCY,),
        order=DrawnOrder(planned[0][0].spec.seed if sweep.seed is None else sweep.seed),
        budget_ns=_budget_ns(sweep),
        axes=axes,
        keys={point.name: point.keys for point, _ in planned},
        makers={
            point.name: SimulatedRuns(point.spec, schedule)
            for point, schedule in planned
            if point.simulated
        },
        bounds=sweep.bounds,
        habits=habits,
    )


def _sweep_of(call: Invocation, request: SweepRequest) -> tuple[Sweep, str]:
    """Return the requested sweep, and its name in errors."""
    path = Path(request.name)
    is_named = request.name in call.project.names("sweep")
    if is_named:
        path = call.project.find("sweep", request.name)
    axes: dict[str, list[Any]] = {}
    for key, listed in map(_axis, request.axes):
        if key in axes:
            raise UserError(f"--over: {key!r} is given twice")
        axes[key] = listed
    bounds: dict[str, float] = {}
    for number, bound in map(_bound, request.bounds):
        if number in bounds:
            raise UserError(f"--bound: {number!r} is given twice")
        bounds[number] = bound
    typed: dict[str, Any] = {
        "faults": request.faults,
        "repetitions": request.instances,
        "budget": None if request.budget is None else {"time": request.budget},
    }
    changes = {key: value for key, value in typed.items() if value is not None}
    values: dict[str, Any]
    if is_sweep(path) or (is_named and not axes):
        sweep = load_sweep(path)
        merged: dict[str, Any] = {
            "axes": {**sweep.axes, **axes},
            "bounds": {**sweep.bounds, **bounds},
        }
        merged["workload"] = resolve_name(sweep.workload, path)
        if sweep.faults:
            merged["faults"] = resolve_name(sweep.faults, path)
        values = {**read_toml(path), **merged, **changes}
        return validate(Sweep, values, str(path)), str(path)
    if not axes and "/" in request.name:
        call.project.find("sweep", request.name)
    if not axes:
        raise UserError(
            f"sweep {request.name}: name a sweep's file, or write --over KEY=A,B"
            f"{nearest(request.name, call.project.names('sweep'))}"
        )
    workload = call.project.find("workload", request.name)
    values = {"schema": SCHEMA, "name": f"{workload.stem}-sweep", "workload": str(workload)}
    typed = {**values, **changes, "axes": axes, "bounds": bounds}
    return validate(Sweep, typed, "--over"), "--over"


def _bound(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        if not equals:
            raise ValueError
        return name, float(value)
    except ValueError:
        raise UserError(f"--bound {text}: write NUMBER=VALUE, such as latency_p99_ms=500") from None


def _axis(text: str) -> tuple[str, list[Any]]:
    key, equals, values = text.partition("=")
    if not key or not equals or not values:
        raise UserError(f"--over {text}: write KEY=VALUE,VALUE,…")
    listed = value_of(values) if values.startswith("[") else None
    if isinstance(listed, list):
        return key, listed
    return key.strip(), [value_of(each.strip()) for each in values.split(",")]


def _minutes(duration_ns: int) -> str:
    return f"{max(1, round(duration_ns / 60e9))} min"
