"""`report`: one page on one or more runs, to be read without anything else."""

from pathlib import Path
from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.commands.check import RUNS_HELP
from pubsubctl.commands.invocation import invocation
from pubsubctl.console import Result


def report(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help=RUNS_HELP, autocompletion=names.runs),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")
    ] = None,
    master: Annotated[
        str, typer.Option("--master", envvar="PUBSUBCTL_MASTER", help="Where Spark runs.")
    ] = "local[*]",
) -> Result:
    """Write a page on runs: verdicts and figures."""
    from pubsubctl.judging import judge_and_report
    from pubsubctl.runs import find_runs

    call = invocation(context)
    call.refuse_dry_run("report")
    folders = find_runs(call.project, runs)
    page = output or folders[0] / "report.html"
    with call.console.progress() as progress:
        judged = judge_and_report(folders, page, progress, master)
    verdicts = {str(row.run): row.verdict for row in judged}
    document = {"schema": "pubsubctl/report/1", "report": str(page), "verdicts": verdicts}
    return Result(document=document, text=str(page))
