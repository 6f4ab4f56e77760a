"""`results pack|archive|capsule|reproduce`: runs for other people, and runs of other people."""

import re
from pathlib import Path
from typing import Annotated

import typer

from brokerd.text import counted, size_text
from pubsubctl.commands import names
from pubsubctl.commands.options.results import ARCHIVES, Author, KeepHosts, Master, Publisher, Run
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.console.outputs import create_folder, output_file, output_folder
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown


def pack(
    context: typer.Context,
    run: Run,
    output: Annotated[
        Path, typer.Option("--output-dir", "-o", metavar="DIR", help="Create this folder.")
    ],
    keep_hosts: KeepHosts = False,
) -> Result:
    """Copy a run without the names of hosts, users and folders.

    `check`, `plot` and `report` accept the copy like the run itself.
    """
    from pubsubctl.runs.redaction import pack_run
    from pubsubctl.runs.runs import find_one_run

    call = invocation(context)
    call.refuse_dry_run("results pack")
    packed = pack_run(find_one_run(call.project, run), output_folder(output), keep_hosts=keep_hosts)
    text = f"{packed.folder}: {counted(packed.renamed, 'name')} replaced"
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


def archive(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Runs or series with a paper's figure: folders, run ids, or `latest`.",
            autocompletion=names.runs,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output-dir", "-o", metavar="DIR", help="Write into this folder.")
    ] = ARCHIVES,
) -> Result:
    """Archive each run behind a figure in one small file.

    Leaves out pictures, tables, and files above 4 MiB; their digests remain. `claims` judges by the
    archives until there is a later run.
    """
    from pubsubctl.runs.figure_archives import archive_run
    from pubsubctl.runs.runs import find_runs

    call = invocation(context)
    call.refuse_dry_run("results archive")
    folders = find_runs(call.project, runs)
    create_folder(output)
    made = [archive_run(folder, output) for folder in folders]
    lines = [
        f"{each.path}: {', '.join(each.figures)}, {size_text(each.size_bytes)}"
        + (f"; left out: {', '.join(each.left_out)}" if each.left_out else "")
        for each in made
    ]
    rows = [
        {
            "path": str(each.path), "figures": list(each.figures), "size_bytes": each.size_bytes,
            "left_out": list(each.left_out),
        }
        for each in made
    ]  # fmt: skip
    return Result(
        document={"schema": "pubsubctl/archives/1", "archives": rows}, text="\n".join(lines)
    )


def capsule(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Folders, run ids, or `latest`. A series includes all its runs.",
            autocompletion=names.runs,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Write this .tar.gz file.")
    ],
    author: Author = None,
    publisher: Publisher = "",
    keep_hosts: KeepHosts = False,
    master: Master = None,
) -> Result:
    """Pack runs, verdicts and figures into one file for reviewers.

    Replaces the names of hosts, users and folders. `results reproduce` accepts the file.
    """
    from pubsubctl.runs.capsules import make_capsule, refuse_existing
    from pubsubctl.runs.runs import find_runs
    from results.checker.spark import spark_session

    call = invocation(context)
    call.refuse_dry_run("results capsule")
    folders = find_runs(call.project, runs)
    output_file(output)
    refuse_existing(output)
    with call.console.progress() as progress:
        progress.phase("starting Spark")
        with spark_session("pubsubctl results capsule", call.master(master)) as spark:
            made = make_capsule(
                spark,
                folders,
                output,
                progress,
                keep_hosts=keep_hosts,
                authors=author or [],
                publisher=publisher,
            )
    about = made.document["runs"]
    lines = [
        f"{name}: {', '.join([*filter(None, [row.get('verdict')]), *row['figures']])}"
        for name, row in about.items()
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


def reproduce(
    context: typer.Context,
    capsule: Annotated[
        Path, typer.Argument(metavar="CAPSULE", help="A file of `results capsule`.")
    ],
    level: Annotated[
        str,
        typer.Option(
            "--level",
            metavar="figures|check|sim|local",
            help="Draw every figure again; also judge every run again; also repeat runs on "
            "simulated brokers, or on brokers of this machine.",
        ),
    ] = "figures",
    output: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", metavar="DIR", help="Unpack there, and keep the files."),
    ] = None,
    digest: Annotated[
        str,
        typer.Option("--digest", metavar="sha256:…", help="Refuse a capsule with another digest."),
    ] = "",
    master: Master = None,
) -> Result:
    """Repeat a capsule's figures, verdicts and claims.

    Needs the capsule only; --level local also deploys brokers. Figures and simulated runs
    must be equal to the byte; a run of brokers must have the same verdict.

    Status 1: something differs. Status 3: a new run cannot decide. Status 8: the capsule has
    changed.
    """
    from brokerd.text import nearest
    from pubsubctl.runs.reproduction import LEVELS
    from pubsubctl.runs.reproduction import reproduce as reproduced

    call = invocation(context)
    call.refuse_dry_run("results reproduce")
    if level not in LEVELS:
        raise UserError(f"--level = {shown(level)}{nearest(level, LEVELS)}")
    if digest and not re.fullmatch(r"(sha256:)?[0-9a-f]{64}", digest):
        raise UserError(f"--digest = {shown(digest)}: sha256: and 64 hexadecimal digits")
    if output is not None:
        output_folder(output)
    return reproduced(call, capsule, level, output, call.master(master), digest)
