"""Series: repeated runs of some points, then verdicts, spreads and figures."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from bench.run.series import (
    DrawnOrder,
    Instance,
    Order,
    Series,
    describe_other_commits,
    keep_order,
    open_series,
)
from bench.run.testbed import RunFailed
from bench.spec.experiment import Point
from bench.spec.spec import ExperimentSpec
from bench.spec.sweep import Axis
from brokerd.errors import ConfigError, ControlError
from brokerd.protocols.registry import definition_of
from brokerd.text import counted, format_number
from brokerd.units import SECOND_NS, format_duration
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.interruption import Interruption, resumable, run_interruptibly
from pubsubctl.console.invocation import Invocation
from pubsubctl.console.waits import RunTime, describe_s, describe_series
from pubsubctl.deployment.deploy import take_down
from pubsubctl.errors import HostError, PubsubctlError, UserError, VerdictUnknown
from pubsubctl.hosts.hosts import Lab
from pubsubctl.runs.experiment import Experiment, carry_out, describe_abandoned, lab_for
from pubsubctl.runs.outputs import bytes_of, check_results
from pubsubctl.runs.plan import expect_time
from pubsubctl.runs.revisions import Program
from pubsubctl.runs.run_changes import note_plain_verdict, refresh_run_index
from pubsubctl.runs.runs import manifest
from pubsubctl.runs.series import Habits, check_deployment, merge_equal, verdict_table
from pubsubctl.runs.verdicts import JudgedRun, announce_verdicts

SCHEMA = "pubsubctl/series/1"
FIGURE = "series.latency"
"""Drawn of every series that is for no other figure."""
_FAILS_ALONE: Final = (RunFailed, ControlError, HostError)
"""Errors that may affect a run without affecting the next."""


class RunMaker(Protocol):
    """A maker of runs of a point."""

    async def run(
        self, results: Path, progress: Progress, interruption: Interruption
    ) -> tuple[Path, str]:
        """Make a run; return folder and state."""


@dataclass(frozen=True, slots=True)
class SimulatedRuns:
    """A maker of simulated runs of a point.

    Attributes:
        schedule: the faults; None for none.
    """

    spec: ExperimentSpec
    schedule: FaultSchedule | None

    async def run(
        self, results: Path, progress: Progress, interruption: Interruption
    ) -> tuple[Path, str]:
        """Make a run; return folder and state.

        Raises:
            Interrupted, Terminated: a signal arrived; the partial records stay.
            SpecError, ScheduleError: the run cannot be simulated; with the reason.
        """
        from bench.run.run_directory import RunDirectory, new_run_directory
        from bench.run.simulated_run import simulate_experiment

        directory = RunDirectory(new_run_directory(results, self.spec.name))
        progress.phase(f"simulating {self.spec.name}")
        simulate = partial(simulate_experiment, self.spec, self.schedule, directory=directory)
        with interruption.stoppable():
            # The simulation never waits, so only a thread lets signals through.
            await trio.to_thread.run_sync(simulate, abandon_on_cancel=True)
        progress.print(f"run {directory.path}")
        return directory.path, str(directory.manifest["state"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The design of a series: repetitions, order and purpose.

    Attributes:
        figures: drawn after all runs.
        order: the order of points within repetitions.
        budget_ns: a time from the beginning; no run begins that would end later.
        axes: the varied keys, for figures; the figures' own axis first.
        keys: the varied keys and values of a point, by the point's name.
        makers: the maker of a point's runs, by the point's name; this program on brokers if none.
        bounds: the bound of a point's mean, by number.
        habits: labels, and what happens after runs.
    """

    instances: int
    figures: Sequence[str] = (FIGURE,)
    order: Order = keep_order
    budget_ns: int | None = None
    axes: Sequence[Axis] = ()
    keys: Mapping[str, Mapping[str, Any]] | None = None
    makers: Mapping[str, RunMaker] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)
    habits: Habits = field(default_factory=Habits)


def run_series(
    call: Invocation,
    name: str,
    points: Sequence[tuple[Point, FaultSchedule | None]],
    design: Design,
    *,
    results: Path | None,
) -> Result:
    """Run every point `instances` times, resume an interrupted series, judge, draw and sum up.

    A failed run does not block other runs. While runs are missing, because of failures or an
    exhausted budget, nothing is judged; the same command resumes with the missing runs only.

    Raises:
        UserError: a series of this plan was begun with another number of instances, or on other
            hosts.
    """
    lab, folder = lab_for(call), call.project.results_folder(results)
    check_results(folder, max((point.spec for point, _ in points), key=bytes_of))
    names = [point.name for point, _ in points]
    try:
        plan = _plan(points, design)
        series = open_series(
            folder, name, plan, names, design.instances, design.order, hosts=lab.deciding()
        )
    except ConfigError as error:
        raise UserError(str(error)) from None
    times = {point.name: expect_time(call, point.spec) for point, _ in points}
    runner = _Runner(series, points, folder, lab, design, times)
    try:
        with call.console.progress() as progress:
            progress.print(f"series {series.path}")
            if not any(series.runs().values()):
                for sentence in describe_other_commits(series.path):
                    call.console.warn(sentence)

            async def work(interruption: Interruption) -> None:
                await _take_down_interrupted(series, lab, progress, interruption)
                await _check_deployment(points, design, lab, progress, interruption)
                await runner.run(progress, interruption)

            spec = points[0][0].spec
            with resumable(call.console):
                run_interruptibly(work, call.console, when_not_waiting=describe_abandoned(spec))
            if series.remaining():
                return _partial(series)
            if not design.habits.check:
                return _skip_judgement(series)
            summary, because = _judge(series, design, progress, call.master())
    finally:
        series.directory.leave()
    return _result(call, series, summary, because)


class _Runner:
    """A runner for the remaining runs of a series, in sequence."""

    def __init__(
        self,
        series: Series,
        points: Sequence[tuple[Point, FaultSchedule | None]],
        folder: Path,
        lab: Lab,
        design: Design,
        times: Mapping[str, RunTime],
    ) -> None:
        self._series = series
        self._experiments = {
            point.name: Experiment(point.spec, schedule, folder) for point, schedule in points
        }
        self._times = dict(times)
        self._lab = lab
        self._folder = folder
        self._makers = design.makers
        self._budget_ns = design.budget_ns
        self._teardown = design.habits.teardown
        self._is_judged = design.habits.check

    async def run(self, progress: Progress, interruption: Interruption) -> None:
        """Run the remaining runs, as far as the budget allows."""
        series, began_ns = self._series, time.monotonic_ns()
        remaining = series.remaining()
        times = [self._times[instance.point] for instance in remaining]
        progress.print(describe_series(times, check=self._is_judged))
        for place, instance in enumerate(remaining, start=1):
            expected_ns = round(self._times[instance.point].run_s * SECOND_NS)
            end_ns = time.monotonic_ns() - began_ns + expected_ns
            if self._budget_ns is not None and end_ns > self._budget_ns:
                progress.print(f"the budget of {format_duration(self._budget_ns)} is used")
                return
            left_s = sum(each.run_s for each in times[place - 1 :])
            progress.print(
                f"{place} of {len(remaining)}: {instance} (about {describe_s(left_s)} left)"
            )
            teardown = self._teardown or place < len(remaining)
            try:
                await self._run(instance, progress, interruption, teardown=teardown)
            except _FAILS_ALONE as error:
                series.fail(instance, str(error))
                progress.print(f"{instance} failed: {error}")

    async def _run(
        self,
        instance: Instance,
        progress: Progress,
        interruption: Interruption,
        *,
        teardown: bool = True,
    ) -> None:
        if (maker := self._makers.get(instance.point)) is not None:
            run, state = await maker.run(self._folder, progress, interruption)
            self._series.begin(instance, run)
            self._series.end(instance, run, state)
            return
        begun = replace(
            self._experiments[instance.point],
            on_run=lambda run: self._series.begin(instance, run),
            teardown=teardown,
        )
        outcome = await carry_out(begun, self._lab, progress, interruption, _purpose(instance))
        if self._is_judged:
            judged = announce_verdicts([outcome.run_directory], progress)
            for run, judgement in judged.items():
                note_plain_verdict(run, judgement.verdict)
            refresh_run_index(judged, progress)
        self._series.end(instance, outcome.run_directory, outcome.state)


def _partial(series: Series) -> Result:
    """Return the result of an unfinished series: missing runs, and reasons."""
    missing = series.remaining()
    failed = [f"{instance} failed: {why}" for instance, why in series.failed.items()]
    text = f"{counted(len(missing), 'run')} of {series.path} missing; the same command resumes"
    document = {
        "schema": SCHEMA,
        "run_directory": str(series.path),
        "missing": [{"point": each.point, "number": each.number} for each in missing],
        "failed": failed,
    }
    because = (VerdictUnknown(text, *failed),)
    return Result(document=document, text=str(series.path), because=because)


def _skip_judgement(series: Series) -> Result:
    """Return the result of a series whose runs are not to be judged: the runs."""
    points = {point: [*map(str, runs)] for point, runs in series.runs().items()}
    document = {"schema": SCHEMA, "run_directory": str(series.path), "not_judged": points}
    lines = [run for runs in points.values() for run in runs]
    lines += ["not judged; the same command without --no-check does that", str(series.path)]
    return Result(document=document, text="\n".join(lines))


def _plan(
    points: Sequence[tuple[Point, FaultSchedule | None]], design: Design
) -> Mapping[str, Any]:
    """Return all settings that affect the runs."""
    order = design.order
    makers = design.makers.items()
    commits = {name: maker.commit for name, maker in makers if isinstance(maker, Program)}
    simulated = [name for name, maker in makers if isinstance(maker, SimulatedRuns)]
    return {
        **({"commits": commits} if commits else {}),
        **({"simulated": simulated} if simulated else {}),
        "figure": design.figures[0],
        "figures": [*design.figures],
        "protocol": points[0][0].spec.protocol if len(points) == 1 else None,
        "seed": order.seed if isinstance(order, DrawnOrder) else points[0][0].spec.seed,
        "axes": [axis.row() for axis in design.axes],
        "points": {
            point.name: {
                "workload": point.spec.workload_mapping(),
                "topology": point.spec.topology_toml(),
                "faults": schedule.to_mapping() if schedule is not None else None,
            }
            for point, schedule in points
        },
    }


async def _take_down_interrupted(
    series: Series, lab: Lab, progress: Progress, interruption: Interruption
) -> None:
    """Take down the remains of a killed run of an instance, and nothing else.

    The lab's lock guarantees that no other process runs an instance now.
    """
    ours = {_purpose(instance) for instance in series.remaining()}
    async with lab.operate("bench --instances", progress, interruption):
        deployments = [row.deployment for row in await lab.observe() if row.deployment is not None]
        if deployments and all(row.get("purpose") in ours for row in deployments):
            progress.print("taking down the deployment of the interrupted run")
            await take_down(lab, progress, verify=True)


async def _check_deployment(
    points: Sequence[tuple[Point, FaultSchedule | None]],
    design: Design,
    lab: Lab,
    progress: Progress,
    interruption: Interruption,
) -> None:
    """Refuse a series if the running deployment fits not all of its points on brokers."""
    on_brokers = [(each.name, each.spec) for each, _ in points if each.name not in design.makers]
    if on_brokers:
        async with lab.operate("bench --instances", progress, interruption):
            await check_deployment(lab, on_brokers)


def _purpose(instance: Instance) -> str:
    """Return the purpose of a deployment, for its record and the lab's lock."""
    return f"bench {instance}"


def _judge(
    series: Series, design: Design, progress: Progress, master: str
) -> tuple[dict[str, Any], list[PubsubctlError]]:
    """Return all verdicts, the spreads, the typical run of each point; and draw the figure."""
    from pubsubctl.runs.verdicts import judge_with
    from results.checker.spark import spark_session
    from results.figures.catalogue import draw
    from results.repetitions.comparison import spreads_of
    from results.repetitions.numbers import beyond
    from results.repetitions.series_runs import find_typical
    from results.tables.json_files import ResultsError

    axes = [axis.row() for axis in design.axes]
    bounds = dict(design.bounds)
    summary: dict[str, Any] = {"schema": SCHEMA, "axes": axes, "bounds": bounds, "points": {}}
    found: list[tuple[Path, PubsubctlError]] = []
    progress.phase("starting Spark")
    with spark_session("pubsubctl sweep", master) as spark:
        count, place = sum(map(len, series.runs().values())), 0
        for point, runs in series.runs().items():
            verdicts: dict[str, str] = {}
            for run in runs:
                place += 1
                judged = judge_with(spark, run, progress, place=f"{place} of {count}: ")
                verdicts[run.name] = judged.verdict
                found += [(run, error) for error in _explain_broken_promise(judged)]
            whole = [run for run in runs if verdicts[run.name] != "UNKNOWN"] or runs
            typical = find_typical(spark, {run.name: run for run in runs}, verdicts)
            about: dict[str, Any] = {
                "runs": verdicts,
                "modal": typical,
                "keys": dict((design.keys or {}).get(point, {})),
                "numbers": {name: each.row() for name, each in spreads_of(whole).items()},
            }
            summary["points"][point] = {**about, "beyond": [*beyond(about, bounds)]}
        series.close(summary)
        for figure in design.figures:
            progress.phase(f"drawing {figure}")
            try:
                draw(figure, spark, series.path)
            except ResultsError as error:
                if not found:
                    raise
                # Runs without an accepted verdict cannot be drawn; they have a table all the same.
                progress.print(f"{figure} is not drawn: {error}")
    refresh_run_index([series.path], progress)
    return summary, merge_equal(found)


def _explain_broken_promise(judged: JudgedRun) -> list[PubsubctlError]:
    """Return the reasons for which a run breaks its protocol's promise; empty without a promise."""
    promises = definition_of(str(manifest(judged.run)["protocol"])).promises
    if judged.verdict == "INVALID" and not promises.exactly_once:
        return []
    return judged.because


def _range(low: float, high: float) -> str:
    return f"{format_number(low)} … {format_number(high)}"


def _result(
    call: Invocation, series: Series, summary: Mapping[str, Any], because: list[PubsubctlError]
) -> Result:
    groups: dict[str, list[tuple[str, ...]]] = {}
    for point, found in summary["points"].items():
        runs = max((spread["n"] for spread in found["numbers"].values()), default=0)
        rows = groups.setdefault(f"{point}, {counted(runs, 'run')}", [])
        for name, spread in found["numbers"].items():
            interval = "" if spread["low"] is None else _range(spread["low"], spread["high"])
            extremes = _range(spread["smallest"], spread["largest"]) if spread["n"] > 1 else ""
            row = (name, format_number(spread["mean"]), interval, extremes)
            rows.append(row if spread["n"] == runs else (*row[:3], f"{extremes} ({spread['n']})"))
        for reason in found["beyond"] if summary["bounds"] else ():
            call.console.print(f"{point} is in the danger zone: {reason}")
    header = ("NUMBER", "MEAN", "95 % INTERVAL", "SMALLEST … LARGEST")
    numbers = call.console.grouped_table(header, groups)
    tables = [verdict_table(call.console, summary["points"]), "", numbers]
    text = "\n".join([*tables, str(series.path)])
    document = {**summary, "run_directory": str(series.path)}
    return Result(document=document, text=text, because=tuple(because))
