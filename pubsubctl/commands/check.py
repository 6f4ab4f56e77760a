"""`check`: judge runs that are there; needs no lab."""

from pathlib import Path
from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation

RUNS_HELP = "Folders, run ids, or `latest`."


def check(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help=RUNS_HELP, autocompletion=names.runs),
    ],
    master: Annotated[str | None, typer.Option("--master", help="Where Spark runs.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Where runs are, if not in results/runs."),
    ] = None,
) -> Result:
    """Judge runs from their logs.

    What was owed to whom is recomputed from what was published and subscribed.
    """
    from pubsubctl.running.judging import Judged, NotJudged, judge_each
    from pubsubctl.running.runs import find_runs

    call = invocation(context)
    call.refuse_dry_run("check")
    folders = find_runs(call.project, runs, output)
    with call.console.progress() as progress:
        judged = judge_each(folders, progress, call.master(master))
    blocks = [f"{row.painted(call.console)}\n{row.run}" for row in judged]
    return Result(
        document={"schema": "pubsubctl/check/1", "runs": [row.row() for row in judged]},
        text="\n\n".join(blocks),
        because=tuple(error for row in judged if isinstance(row, Judged) for error in row.because),
        failures=tuple(row.error for row in judged if isinstance(row, NotJudged)),
    )
