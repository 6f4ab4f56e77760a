"""`sweep` and `limit`: run a workload at many points, or find its highest rate."""

from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.commands.options.results import CaseFiles, RunsFolder
from pubsubctl.commands.options.series import Bounds, Budget, Instances, SeriesOptions
from pubsubctl.commands.options.workload import Faults, LoadOptions, Workload
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import UserError


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
    load: LoadOptions,
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
    output: RunsFolder = None,
) -> Result:
    """Find the highest sustainable rate of each publisher.

    At a sustainable rate everything owed arrives, no backlog grows, and p99 keeps its bound. The
    same command resumes an interrupted search.
    """
    from pubsubctl.runs.rate_limit import LimitRequest, find_limit

    if load.rate is not None:
        raise UserError(f"{workload}: `limit` sets the rate; leave out --rate {load.rate}")
    request = LimitRequest(workload, p99, from_rate, to_rate)
    return find_limit(invocation(context), request, load.overrides(), output)
