"""`bench`, `demo`, `sweep`, `limit` and `targets`: load brokers, inject faults, judge the runs."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from pubsubctl.commands import moved, names
from pubsubctl.commands.options.results import CaseFiles, Check, Labels, RunsFolder, labels_of
from pubsubctl.commands.options.runs import (
    Bounds,
    Budget,
    Instances,
    MaxUnavailable,
    NoTeardown,
    Roles,
    Rolling,
    SeriesOptions,
)
from pubsubctl.commands.options.workload import Faults, LoadOptions, SearchedLoadOptions, Workload
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import UserError

if TYPE_CHECKING:
    from bench.spec.spec import ExperimentSpec
    from fault_injection.schedule.schedule import FaultSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run on brokers."""

    instances: Instances = None
    rolling: Rolling = False
    max_unavailable: MaxUnavailable = 1
    roles: Roles = None
    no_teardown: NoTeardown = False
    labels: Labels = None
    check: Check = True
    output: RunsFolder = None


def bench(
    context: typer.Context,
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            help="A path, the bare name of a file in bench/workloads, or a broker of others "
            "(external/NAME).",
            autocompletion=names.workloads,
        ),
    ],
    load: LoadOptions,
    run: RunOptions,
    files: CaseFiles,
    faults: Faults = None,
) -> Result:
    """Run a workload, inject faults, and judge the run.

    Uses the deployment that runs, if it fits the workload. Otherwise deploys brokers for the run
    and takes them down afterwards. The last line is the folder of the run.
    """
    from bench.systems.configuration import is_configuration
    from pubsubctl.runs.plan import plan_experiment

    call = invocation(context)
    is_system = is_configuration(workload)
    others = run.rolling or run.instances is not None or is_system
    if run.roles and (others or moved.is_no_workload(call.project, workload)):
        raise UserError(
            f"{workload}: --role {run.roles[0]} can be used with one run of our brokers only"
        )
    moved.refuse_name(call, "bench", workload)
    files.begin(call, "bench")
    if is_system:
        return files.end("bench", _on_system(call, workload, load, run, faults))
    overrides, labels = load.overrides(), labels_of(run.labels)
    spec, schedule = plan_experiment(call, workload, overrides, faults, labels)
    return files.end("bench", _on_brokers(call, workload, spec, schedule, run))


def demo(
    context: typer.Context,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", help="Run this protocol only.", autocompletion=names.protocols),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Run all protocols of the demo, with one report.")
    ] = False,
    no_teardown: NoTeardown = False,
    labels: Labels = None,
    output: RunsFolder = None,
) -> Result:
    """Kill a broker under load, with two protocols, and compare.

    Runs the usual protocol, which must lose nothing, and a protocol without a promise, which must
    lose something. Deploys, loads, injects faults, takes down, checks, and writes a report.
    """
    from brokerd.protocols.registry import DEFINITIONS
    from brokerd.text import nearest
    from pubsubctl.hosts.files import shown
    from pubsubctl.runs.demo import PROTOCOLS, demonstrable_protocols, run_demo

    if protocol is not None and protocol not in DEFINITIONS:
        raise UserError(f"no protocol called {shown(protocol)}{nearest(protocol, [*DEFINITIONS])}")
    if protocol is not None and every:
        raise UserError(f"--protocol {protocol} and --all: one or the other")
    call = invocation(context)
    call.refuse_dry_run("demo")
    protocols: tuple[str, ...] = PROTOCOLS if protocol is None else (protocol,)
    if every:
        protocols = demonstrable_protocols(call)
    given = labels_of(labels, taken=("demo", "experiment"), by="the demo")
    return run_demo(call, protocols, results=output, teardown=not no_teardown, labels=given)


def sweep(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="FILE|WORKLOAD",
            help="A sweep (a path, or a bare name in bench/sweeps), or a workload for --over.",
            autocompletion=names.sweeps,
        ),
    ],
    load: LoadOptions,
    series: SeriesOptions,
    files: CaseFiles,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="KEY=A,B,…",
            rich_help_panel="Points",
            autocompletion=names.swept_keys,
            help="Run each of these values of a key, as in --set, or of protocol, topology or "
            "faults. Add simulated=false,true for simulated brokers. Repeat for all combinations.",
        ),
    ] = None,
    faults: Faults = None,
    instances: Instances = None,
    budget: Budget = None,
    bounds: Bounds = None,
    output: RunsFolder = None,
) -> Result:
    """Run many points, judge all, and draw their numbers.

    Checks all points before the first run. The same command resumes an interrupted sweep, and
    repeats the runs that failed.
    """
    from pubsubctl.runs.sweep import SweepRequest, run_sweep

    call = invocation(context)
    axes, limits, habits = tuple(over or ()), tuple(bounds or ()), series.habits()
    request = SweepRequest(name, axes, faults, budget, instances, limits, habits)
    files.begin(call, "sweep")
    return files.end("sweep", run_sweep(call, request, load.overrides(), output))


def limit(
    context: typer.Context,
    workload: Workload,
    load: SearchedLoadOptions,
    p99: Annotated[
        str,
        typer.Option(
            "--p99",
            metavar="TIME",
            rich_help_panel="Search",
            help="Keep the 99th percentile of latency below this bound.",
        ),
    ] = "50ms",
    from_rate: Annotated[
        str,
        typer.Option(
            "--from-rate", metavar="RATE", rich_help_panel="Search", help="Try this rate first."
        ),
    ] = "100/s",
    to_rate: Annotated[
        str,
        typer.Option(
            "--to-rate", metavar="RATE", rich_help_panel="Search", help="Try no higher rate."
        ),
    ] = "1M/s",
    labels: Labels = None,
    output: RunsFolder = None,
) -> Result:
    """Find the highest sustainable rate of each publisher.

    At a sustainable rate everything owed arrives, no backlog grows, and p99 keeps its bound. The
    same command resumes an interrupted search.
    """
    from pubsubctl.runs.rate_limit import LimitRequest, find_limit

    if load.rate is not None:
        raise UserError(f"{workload}: `limit` sets the rate; leave out --rate {load.rate}")
    request = LimitRequest(workload, p99, from_rate, to_rate, labels_of(labels))
    return find_limit(invocation(context), request, load.overrides(), output)


def targets(
    context: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID...]", help="Targets of the file. All if none is named."),
    ] = None,
    file: Annotated[
        str,
        typer.Option(
            "--file",
            metavar="FILE",
            help="Take the targets of a path, or of a bare name in bench/targets.",
        ),
    ] = "performance",
    *,
    files: CaseFiles,
    labels: Labels = None,
    output: RunsFolder = None,
) -> Result:
    """Run workloads that have performance targets, and compare.

    Runs each workload once, on brokers that are deployed for it. If a load generator was the limit,
    a rate below the target does not count against brokers. Status 1: a target was missed. Status 3:
    a run cannot decide.
    """
    from pubsubctl.runs.targets import run_targets

    call = invocation(context)
    files.begin(call, "targets")
    given = labels_of(labels, taken=("target", "experiment"), by="a target")
    return files.end("targets", run_targets(call, file, ids or [], output, given))


def _on_system(
    call: Invocation, name: str, load: LoadOptions, run: RunOptions, faults: str | None
) -> Result:
    from pubsubctl.runs.external_brokers import bench_system

    if run.rolling or run.instances is not None or run.no_teardown:
        raise UserError(
            f"{name}: --rolling, --instances and --no-teardown are for brokers of ours only"
        )
    labels = labels_of(run.labels)
    return bench_system(call, name, load.overrides(), faults, labels, run.output, check=run.check)


def _on_brokers(
    call: Invocation,
    workload: str,
    spec: "ExperimentSpec",
    schedule: "FaultSchedule | None",
    run: RunOptions,
) -> Result:
    from bench.spec.experiment import Point
    from pubsubctl.deployment.updates import read_roles
    from pubsubctl.runs.experiment import run_and_judge
    from pubsubctl.runs.plan import Run, SeriesPlan, announce, deployment_plan, expect_time
    from pubsubctl.runs.repetitions import Design, run_series
    from pubsubctl.runs.series import Habits

    _refuse_late_subscribers(workload, spec)
    roles = read_roles(run.roles or (), spec.topology, spec.protocol)
    if roles:
        spec = replace(spec, overrides={**spec.overrides, "roles": run.roles})
    predictions = announce(call, [Run("", spec, schedule)], call.project.results_folder(run.output))
    instances = run.instances or 1
    if call.dry_run and instances == 1:
        return deployment_plan(call, spec, schedule, predictions)
    if call.dry_run:
        times = [expect_time(call, spec)] * instances
        return SeriesPlan({spec.protocol: {}}, instances, times, predictions).result()
    if run.instances is not None:
        if run.rolling:
            raise UserError(
                f"{workload}: --rolling can be used with one run only, not with --instances"
            )
        habits = Habits(labels={}, check=run.check, teardown=not run.no_teardown)
        design = Design(instances=run.instances, habits=habits)
        points = [(Point(spec.protocol, spec), schedule)]
        return run_series(call, spec.name, points, design, results=run.output)
    call.console.print(expect_time(call, spec).describe(check=run.check))
    return run_and_judge(
        call,
        spec,
        schedule,
        results=run.output,
        check=run.check,
        teardown=not run.no_teardown,
        rolling=run.max_unavailable if run.rolling else 0,
        roles=roles,
    )


def _refuse_late_subscribers(workload: str, spec: "ExperimentSpec") -> None:
    for plan in spec.subscriber_plans():
        if plan.subscribes_ns is not None:
            raise UserError(
                f"{spec.source}: {plan.name} subscribes while publications flow, which only "
                f"simulated brokers do; `pubsubctl simulate run {workload} --record`"
            )
