"""`targets`: performance targets of brokers, results, and limits."""

from pathlib import Path
from typing import Annotated

import typer

from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation


def targets(
    context: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID...]", help="Only these; all of the file by default."),
    ] = None,
    file: Annotated[
        str, typer.Option("--file", help="A path, or the bare name of a file in bench/targets.")
    ] = "performance",
    output: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Where runs go, if not to results/runs."),
    ] = None,
) -> Result:
    """Run the workloads that targets are set for, and print target, reached and limit.

    One run each, on brokers deployed for it. Where a load generator was the limit, a rate that was
    not reached says nothing about brokers. Status 1 where a target was missed, 3 where a run cannot
    tell.
    """
    from pubsubctl.running.targets import run_targets

    return run_targets(invocation(context), file, ids or [], output)
