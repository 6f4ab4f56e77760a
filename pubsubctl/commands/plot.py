"""`plot`: a figure by name, from existing runs."""

from pathlib import Path
from typing import Annotated

import typer

from brokerd.overlay.topology import nearest
from pubsubctl.commands import names
from pubsubctl.commands.check import RUNS_HELP
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown


def plot(
    context: typer.Context,
    figure: Annotated[
        str | None,
        typer.Argument(help="Its name; see --list.", autocompletion=names.figures),
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN...]",
            help=f"{RUNS_HELP} By default the latest of what the figure shows.",
            autocompletion=names.runs,
        ),
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    formats: Annotated[
        str, typer.Option("--format", metavar="svg,png", help="Which files to write.")
    ] = "svg,png",
    master: Annotated[str | None, typer.Option("--master", help="Where Spark runs.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Where runs are, if not in results/runs."),
    ] = None,
) -> Result:
    """Draw a figure of runs.

    SVG, PNG and the numbers in it as CSV, in the folder of each run.
    """
    from pubsubctl.running.runs import find_runs, latest_of_figure
    from results.checker.spark import spark_session
    from results.figures.by_name import FIGURES, draw
    from results.figures.drawing import FORMATS
    from results.figures.of_runs import WITHOUT_SPARK

    call = invocation(context)
    call.refuse_dry_run("plot")
    if list_all:
        rows = [(name, _first_line(function)) for name, function in sorted(FIGURES.items())]
        document = {"schema": "pubsubctl/figures/1", "figures": [row[0] for row in rows]}
        return Result(document=document, text=call.console.table(("FIGURE", "SHOWS"), rows))
    if figure is None:
        raise UserError("plot: name a figure; `pubsubctl plot --list` lists them")
    if figure not in FIGURES:
        raise UserError(f"no figure called {shown(figure)}{nearest(figure, sorted(FIGURES))}")
    wanted = tuple(name.strip() for name in formats.split(","))
    for name in wanted:
        if name not in FORMATS:
            raise UserError(
                f"--format = {shown(formats)}: no {shown(name)}{nearest(name, FORMATS)}"
            )
    if runs:
        folders = find_runs(call.project, runs, output)
    else:
        folders = [latest_of_figure(call.project, figure, output)]
    files: list[str] = []
    if figure in WITHOUT_SPARK:
        for folder in folders:
            files += map(str, draw(figure, None, folder, wanted))
        document = {"schema": "pubsubctl/plot/1", "figure": figure, "files": files}
        return Result(document=document, text="\n".join(files))
    with call.console.progress() as progress:
        progress.phase("starting Spark")
        with spark_session("pubsubctl plot", call.master(master)) as spark:
            for folder in folders:
                progress.phase(f"drawing {figure} of {folder.name}")
                files += map(str, draw(figure, spark, folder, wanted))
    document = {"schema": "pubsubctl/plot/1", "figure": figure, "files": files}
    return Result(document=document, text="\n".join(files))


def _first_line(function: object) -> str:
    return (getattr(function, "__doc__", None) or "").strip().partition("\n")[0]
