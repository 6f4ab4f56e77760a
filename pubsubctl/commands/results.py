"""`results`: operations on existing runs."""

from pathlib import Path
from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation

app = typer.Typer(
    name="results",
    help="Work with finished runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("pack")
def pack(
    context: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A folder, a run id, or `latest`.", autocompletion=names.runs
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output-dir", "-o", metavar="DIR", help="The new folder.")
    ],
    keep_hosts: Annotated[
        bool, typer.Option("--keep-hosts", help="Keep the names of hosts and users.")
    ] = False,
) -> Result:
    """Copy a run for publication: no names of hosts, users or folders.

    The copy can be checked, plotted and reported on as the run itself.
    """
    from pubsubctl.running.packing import pack_run
    from pubsubctl.running.runs import find_run

    call = invocation(context)
    call.refuse_dry_run("results pack")
    packed = pack_run(find_run(call.project, run), output, keep_hosts=keep_hosts)
    text = f"{packed.folder}: {packed.renamed} names replaced"
    if packed.left_out:
        text += f"; left out: {', '.join(packed.left_out)}"
    return Result(
        document={
            "schema": "pubsubctl/packed/1",
            "folder": str(packed.folder),
            "renamed": packed.renamed,
            "left_out": list(packed.left_out),
        },
        text=text,
    )


@app.command("capsule")
def capsule(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Folders, run ids, or `latest`; of a series, with all its runs.",
            autocompletion=names.runs,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The new file, a .tar.gz.")
    ],
    keep_hosts: Annotated[
        bool, typer.Option("--keep-hosts", help="Keep the names of hosts and users.")
    ] = False,
    master: Annotated[str | None, typer.Option("--master", help="Where Spark runs.")] = None,
) -> Result:
    """Put runs, their verdicts and figures into one file for reviewers.

    Without names of hosts, users or folders. `pubsubctl reproduce` takes it.
    """
    from pubsubctl.running.capsules import make_capsule
    from pubsubctl.running.runs import find_runs
    from results.checker.spark import spark_session

    call = invocation(context)
    call.refuse_dry_run("results capsule")
    folders = find_runs(call.project, runs)
    with call.console.progress() as progress:
        progress.phase("starting Spark")
        with spark_session("pubsubctl capsule", call.master(master)) as spark:
            made = make_capsule(spark, folders, output, progress, keep_hosts=keep_hosts)
    about = made.document["runs"]
    lines = [
        f"{name}: {', '.join([*filter(None, [said.get('verdict')]), *said['figures']])}"
        for name, said in about.items()
    ]
    return Result(
        document={
            "schema": "pubsubctl/capsule-made/1",
            "capsule": str(output),
            "digest": made.digest,
            "runs": about,
        },
        text="\n".join([*lines, f"{output} {made.digest}"]),
    )


@app.command("histograms")
def histograms(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Folders, run ids, or `latest`.", autocompletion=names.runs
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", metavar="DIR", help="Where to, if not to figures of each run."
        ),
    ] = None,
    master: Annotated[str | None, typer.Option("--master", help="Where Spark runs.")] = None,
) -> Result:
    """Write the latencies of runs as HdrHistogram logs.

    One for each phase and metric, with an interval for each second, in microseconds.
    """
    from pubsubctl.running.runs import find_runs
    from results.checker.spark import spark_session
    from results.tables.histogram_logs import write_histogram_logs
    from results.tables.load import load_run
    from results.tables.seals import seal_derived

    call = invocation(context)
    call.refuse_dry_run("results histograms")
    folders = find_runs(call.project, runs)
    files: list[str] = []
    with call.console.progress() as progress:
        progress.phase("starting Spark")
        with spark_session("pubsubctl histograms", call.master(master)) as spark:
            for folder in folders:
                progress.phase(f"counting {folder.name}")
                loaded = load_run(spark, folder)
                own = loaded.run.derived / "figures"
                target = own if output is None else output / folder.name
                files += map(str, write_histogram_logs(spark, loaded, target))
                if output is None and loaded.run.derived == loaded.run.folder:
                    seal_derived(folder)
    return Result(
        document={"schema": "pubsubctl/histograms/1", "files": files}, text="\n".join(files)
    )
