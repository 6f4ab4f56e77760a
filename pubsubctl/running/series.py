"""`bench --instances` and experiments of figures: run every point again and again, then look."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.run.series import Instance, Series, open_series
from bench.spec.deployed_experiment import Point
from brokerd.errors import ConfigError
from brokerd.protocols.registry import definition_of
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.commands.invocation import Invocation
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.interruption import Interruption, run_interruptibly
from pubsubctl.deploying.deploy import take_down
from pubsubctl.errors import PubsubctlError, UserError
from pubsubctl.hosts.hosts import Lab
from pubsubctl.running.experiment import Experiment, carry_out, lab_for, not_waiting
from pubsubctl.running.judging import Judged
from pubsubctl.running.runs import manifest

SCHEMA = "pubsubctl/series/1"
FIGURE = "series.latency"
"""Drawn of every series that is for no other figure."""


def run_series(
    call: Invocation,
    name: str,
    points: Sequence[tuple[Point, FaultSchedule | None]],
    instances: int,
    *,
    figures: Sequence[str] = (FIGURE,),
    results: Path | None = None,
) -> Result:
    """Run every point so often, go on where somebody was interrupted, judge, draw and sum up.

    Raises:
        UserError: a series of this plan was begun with another number of instances.
    """
    lab, folder = lab_for(call), call.project.results_folder(results)
    names = [point.name for point, _ in points]
    try:
        series = open_series(folder, name, _plan(points, figures), names, instances)
    except ConfigError as error:
        raise UserError(str(error)) from None
    by_name = {point.name: Experiment(point.spec, schedule, folder) for point, schedule in points}
    try:
        with call.console.progress() as progress:
            progress.say(f"series {series.path}")

            async def work(interruption: Interruption) -> None:
                await _take_down_interrupted(series, lab, progress, interruption)
                for instance in series.remaining():
                    await _run(
                        series, instance, by_name[instance.point], lab, progress, interruption
                    )

            spec = points[0][0].spec
            run_interruptibly(work, call.console, when_not_waiting=not_waiting(spec))
            summary, because = _judged(series, figures, progress, call.master())
    finally:
        series.directory.leave()
    return _result(call, series, summary, because)


def _plan(
    points: Sequence[tuple[Point, FaultSchedule | None]], figures: Sequence[str]
) -> Mapping[str, Any]:
    """All that decides what is run."""
    return {
        "figure": figures[0],
        "figures": [*figures],
        "protocol": points[0][0].spec.protocol if len(points) == 1 else None,
        "seed": points[0][0].spec.seed,
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
    """Take down what a killed run of an instance had deployed, and nothing else.

    Nobody else runs one now: whoever does so has the lab's lock.
    """
    ours = {_purpose(instance) for instance in series.remaining()}
    async with lab.operated("bench --instances", progress, interruption):
        deployments = [row.deployment for row in await lab.observe() if row.deployment is not None]
        if deployments and all(row.get("purpose") in ours for row in deployments):
            progress.say("taking down what the interrupted run had deployed")
            await take_down(lab, progress, verify=True)


def _purpose(instance: Instance) -> str:
    """What is deployed for: a deployment's record and a lab's lock say so."""
    return f"bench {instance}"


async def _run(
    series: Series,
    instance: Instance,
    experiment: Experiment,
    lab: Lab,
    progress: Progress,
    interruption: Interruption,
) -> None:
    progress.say(f"{instance}:")
    begun = replace(experiment, on_run=lambda run: series.begin(instance, run))
    outcome = await carry_out(begun, lab, progress, interruption, _purpose(instance))
    series.end(instance, outcome.run_directory, outcome.state)


def _judged(
    series: Series, figures: Sequence[str], progress: Progress, master: str
) -> tuple[dict[str, Any], list[PubsubctlError]]:
    """Every verdict, the spreads, the typical run of each point; and the figure."""
    from pubsubctl.running.judging import judge_with
    from results.checker.spark import spark_session
    from results.figures.by_name import draw
    from results.repetitions.comparison import spreads_of
    from results.repetitions.modal import modal
    from results.repetitions.timelines import latencies_by_send_time

    summary: dict[str, Any] = {"schema": SCHEMA, "points": {}}
    because: list[PubsubctlError] = []
    progress.phase("starting Spark")
    with spark_session("pubsubctl series", master) as spark:
        for point, runs in series.runs().items():
            verdicts: dict[str, str] = {}
            for run in runs:
                judged = judge_with(spark, run, progress)
                verdicts[run.name] = judged.verdict
                because += _not_as_promised(judged)
            whole = [run for run in runs if verdicts[run.name] != "UNKNOWN"] or runs
            typical = modal({run.name: latencies_by_send_time(spark, run) for run in whole})
            summary["points"][point] = {
                "runs": verdicts,
                "modal": typical,
                "numbers": {name: each.row() for name, each in spreads_of(whole).items()},
            }
        series.close(summary)
        for figure in figures:
            progress.phase(f"drawing {figure}")
            draw(figure, spark, series.path)
    return summary, because


def _not_as_promised(judged: Judged) -> list[PubsubctlError]:
    """Why a run is not what its protocol promises; nothing where that promises nothing."""
    promises = definition_of(str(manifest(judged.run)["protocol"])).promises
    if judged.verdict == "INVALID" and not promises.exactly_once:
        return []
    return judged.because


def _result(
    call: Invocation, series: Series, summary: Mapping[str, Any], because: list[PubsubctlError]
) -> Result:
    rows = []
    for point, found in summary["points"].items():
        valid = [*found["runs"].values()].count("VALID")
        for name, spread in found["numbers"].items():
            interval = (
                "" if spread["low"] is None else f"{spread['low']:.4g} … {spread['high']:.4g}"
            )
            extremes = f"{spread['smallest']:.4g} … {spread['largest']:.4g}"
            rows.append((point, name, f"{spread['mean']:.4g}", interval, extremes, spread["n"]))
        told = f"{valid} of {len(found['runs'])} VALID, typical {found['modal']}"
        call.console.say(f"{point}: {told}")
    header = ("POINT", "NUMBER", "MEAN", "95 % INTERVAL", "SMALLEST … LARGEST", "RUNS")
    text = f"{call.console.table(header, rows)}\n{series.path}"
    document = {**summary, "run_directory": str(series.path)}
    return Result(document=document, text=text, because=tuple(because))
