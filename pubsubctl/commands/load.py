"""`load`: the tables of runs, from their logs."""

from pathlib import Path
from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.commands.check import RUNS_HELP
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation


def load(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help=RUNS_HELP, autocompletion=names.runs),
    ],
    force: Annotated[
        bool, typer.Option("--force", help="Write them even where they exist.")
    ] = False,
    master: Annotated[str | None, typer.Option("--master", help="Where Spark runs.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Where runs are, if not in results/runs."),
    ] = None,
) -> Result:
    """Write the tables of runs.

    `check` and `plot` do so by themselves. The tables are Parquet, in the folder of each run, or in
    $XDG_CACHE_HOME where nobody may write there.
    """
    from pubsubctl.running.runs import find_runs
    from results.checker.spark import spark_session
    from results.papers.experiment_runs import is_experiment_run, load_experiment_run
    from results.tables.derived import derived_of
    from results.tables.load import load_run

    call = invocation(context)
    call.refuse_dry_run("load")
    folders = find_runs(call.project, runs, output)
    with call.console.progress() as progress:
        progress.phase("starting Spark")
        with spark_session("pubsubctl load", call.master(master)) as spark:
            for folder in folders:
                progress.phase(f"loading {folder.name}")
                if is_experiment_run(folder):
                    load_experiment_run(spark, folder, force=force)
                else:
                    load_run(spark, folder, force=force)
    places = [derived_of(folder) / "tables" for folder in folders]
    tables = {
        str(place): sorted(path.name for path in place.iterdir() if path.is_dir())
        for place in places
    }
    return Result(
        document={"schema": "pubsubctl/load/1", "tables": tables},
        text="\n".join(f"{place}: {' '.join(found)}" for place, found in tables.items()),
    )
