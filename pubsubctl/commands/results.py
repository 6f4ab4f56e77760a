"""`results`: list, describe, label, remove, pack and reproduce finished runs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brokerd.text import counted, size_text
from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import add_command, options_in, verbs
from pubsubctl.commands.options.results import (
    ARCHIVES,
    Author,
    KeepHosts,
    Master,
    Publisher,
    Run,
    Runs,
    RunsFolder,
)
from pubsubctl.commands.reports import check, plot, report
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.console.outputs import create_folder, output_file, output_folder
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

if TYPE_CHECKING:
    from pubsubctl.runs.run_records import RunFilter

_filter_option = options_in("Filter")
_INSPECT = "Find runs"
_JUDGE = "Judge and draw"
_SHARE = "Share"

app = verbs("results", "List, judge, label, remove and share finished runs.")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterOptions:
    """Conditions on runs."""

    experiment: Annotated[
        str | None,
        _filter_option("--experiment", metavar="NAME", help="List runs of this experiment only."),
    ] = None
    protocol: Annotated[
        str | None,
        _filter_option(
            "--protocol",
            metavar="NAME",
            help="List runs of this protocol only.",
            autocompletion=names.protocols,
        ),
    ] = None
    verdict: Annotated[
        str | None,
        _filter_option(
            "--verdict", metavar="valid|invalid|unknown", help="List runs with this verdict only."
        ),
    ] = None
    labels: Annotated[
        list[str] | None,
        _filter_option(
            "--label", metavar="K[=V]", help="List runs with this label only. Repeatable."
        ),
    ] = None
    since: Annotated[
        str | None,
        _filter_option(
            "--since",
            metavar="TIME",
            help="List runs of this age (7d, 12h) or date (2026-11-30) and later.",
        ),
    ] = None

    def conditions(self) -> "RunFilter":
        """Return the conditions; all must hold."""
        from pubsubctl.runs.run_records import RunFilter

        return RunFilter(
            experiment=self.experiment,
            protocol=self.protocol,
            verdict=self.verdict,
            labels=tuple(self.labels or ()),
            since=self.since,
        )


def list_runs(context: typer.Context, filters: FilterOptions, output: RunsFolder = None) -> Result:
    """List runs, the newest last."""
    from pubsubctl.runs.run_records import labels_text, records_in
    from pubsubctl.runs.runs import existing_runs

    call = invocation(context)
    call.refuse_dry_run("results list")
    records = records_in(existing_runs(call.project, output))
    conditions = filters.conditions()
    found = conditions.select(records)
    for problem in conditions.explain_names(records):
        call.console.warn(problem)
    header = ("RUN", "EXPERIMENT", "PROTOCOL", "STATE", "VERDICT", "LABELS")
    rows = [
        (
            *(each.run_id, each.experiment, each.protocol, each.state),
            each.verdict_or_reason(),
            labels_text({key: text for key, text in each.labels.items() if key != "experiment"}),
        )
        for each in found
    ]
    empty = f"no runs of {len(records)} meet these conditions" if records else "no runs"
    text = call.console.table(header, rows) if found else empty
    document = {"schema": "pubsubctl/runs/1", "runs": [each.row() for each in found]}
    return Result(document=document, text=text)


def show(context: typer.Context, run: Run, output: RunsFolder = None) -> Result:
    """Print a run's verdict, machine, program and command."""
    from pubsubctl.runs.run_records import facts_of, record_of
    from pubsubctl.runs.runs import find_run

    call = invocation(context)
    call.refuse_dry_run("results show")
    record = record_of(find_run(call.project, run, output))
    facts = dict(facts_of(record))
    width = max(map(len, facts))
    text = "\n".join(f"{name:{width}}  {value}" for name, value in facts.items())
    document = {"schema": "pubsubctl/run/1", **record.row(), "facts": facts}
    return Result(document=document, text=text)


def label(
    context: typer.Context,
    run: Run,
    labels: Annotated[
        list[str],
        typer.Argument(metavar="K=V...", help="Labels to set. An empty value removes a label."),
    ],
    output: RunsFolder = None,
) -> Result:
    """Label a run, for `results list --label`."""
    from pubsubctl.runs.run_changes import label_runs, refresh_run_index
    from pubsubctl.runs.run_records import labels_text, record_of
    from pubsubctl.runs.runs import find_run

    call = invocation(context)
    call.refuse_dry_run("results label")
    folder = find_run(call.project, run, output)
    label_runs([folder], labels)
    refresh_run_index([folder], call.console)
    record = record_of(folder)
    document = {"schema": "pubsubctl/run/1", **record.row()}
    return Result(document=document, text=f"{folder}: {labels_text(record.labels) or 'no labels'}")


def remove(
    context: typer.Context,
    runs: Runs,
    force: Annotated[
        bool, typer.Option("--force", help="Remove runs without an end, too.")
    ] = False,
    output: RunsFolder = None,
) -> Result:
    """Remove run folders.

    Without --yes, prints the runs and their size, and removes nothing. Refuses a run that a
    remaining series needs.
    """
    from pubsubctl.runs.run_changes import refresh_run_index, removal_of, remove
    from pubsubctl.runs.runs import find_runs

    call = invocation(context)
    results = call.project.results_folder(output)
    folders = find_runs(call.project, runs, output)
    removal = removal_of(results, folders, force=force)
    size = size_text(removal.size_bytes)
    is_done = call.yes and not call.dry_run
    if is_done:
        remove(removal)
        refresh_run_index(folders, call.console)
    verb = "removed" if is_done else "would remove"
    lines = [f"{verb} {record.folder}" for record in removal.records]
    is_refused = not call.yes and not call.dry_run
    document = {
        "schema": "pubsubctl/runs-removed/1",
        "removed": is_done,
        "runs": [record.row() for record in removal.records],
        "size_bytes": removal.size_bytes,
    }
    return Result(
        document=document,
        text="\n".join([*lines, f"{counted(len(lines), 'run')}, {size}"]),
        because=(UserError("nothing was removed; add --yes"),) if is_refused else (),
    )


def size(context: typer.Context, output: RunsFolder = None) -> Result:
    """Print the size of runs by experiment, the largest last."""
    from pubsubctl.runs.run_records import records_in
    from pubsubctl.runs.runs import existing_runs, size_bytes_of

    call = invocation(context)
    call.refuse_dry_run("results size")
    found: dict[str, list[int]] = {}
    for record in records_in(existing_runs(call.project, output)):
        found.setdefault(record.folder.parent.name, []).append(size_bytes_of(record.folder))
    rows = sorted(found.items(), key=lambda row: sum(row[1]))
    total = sum(map(sum, found.values()))
    lines = [(name, str(len(sizes)), size_text(sum(sizes))) for name, sizes in rows]
    lines.append(("all", str(sum(map(len, found.values()))), size_text(total)))
    document = {
        "schema": "pubsubctl/runs-size/1",
        "experiments": {name: sum(sizes) for name, sizes in rows},
        "total_bytes": total,
    }
    return Result(document=document, text=call.console.table(("EXPERIMENT", "RUNS", "SIZE"), lines))


def index(context: typer.Context, output: RunsFolder = None) -> Result:
    """Write a page over all runs: verdicts, numbers and links.

    The page is index.html in the folder of runs. The end of each run writes the page again.
    """
    from pubsubctl.runs.run_changes import write_run_index
    from pubsubctl.runs.runs import existing_runs

    call = invocation(context)
    call.refuse_dry_run("results index")
    results = existing_runs(call.project, output)
    if not results.is_dir():
        raise UserError(f"{results}: no such folder; there are no runs yet")
    page, runs = write_run_index(results)
    document = {"schema": "pubsubctl/runs-index/1", "page": str(page), "runs": runs}
    return Result(document=document, text=str(page))


def collect(context: typer.Context, run: Run, output: RunsFolder = None) -> Result:
    """Fetch the records of a run that this machine had no room for.

    The run then has its end, and `check` judges it. The hosts keep the records until `down`.
    """
    from pubsubctl.runs.late_collection import collect_run
    from pubsubctl.runs.runs import find_one_run

    call = invocation(context)
    call.refuse_dry_run("results collect")
    return collect_run(call, find_one_run(call.project, run, output))


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


def tables(
    context: typer.Context,
    runs: Runs,
    force: Annotated[bool, typer.Option("--force", help="Replace existing tables.")] = False,
    master: Master = None,
    output: RunsFolder = None,
) -> Result:
    """Write the tables of runs as Parquet.

    `check` and `plot` do so, too. The tables are in the folder of each run, or in $XDG_CACHE_HOME
    if that folder is read-only.
    """
    from pubsubctl.runs.run_records import find_member_runs
    from results.checker.spark import spark_session
    from results.papers.experiment_runs import is_experiment_run, load_experiment_run
    from results.tables.derived import find_unsealed_derived
    from results.tables.load import load_run

    call = invocation(context)
    call.refuse_dry_run("results tables")
    folders = find_member_runs(call.project, runs, output)
    with call.console.progress() as progress:
        progress.phase("starting Spark")
        with spark_session("pubsubctl results tables", call.master(master)) as spark:
            for folder in folders:
                progress.phase(f"loading {folder.name}")
                read = load_experiment_run if is_experiment_run(folder) else load_run
                read(spark, folder, force=force)
    places = [find_unsealed_derived(folder) / "tables" for folder in folders]
    found = {
        str(place): sorted(path.name for path in place.iterdir() if path.is_dir())
        for place in places
    }
    return Result(
        document={"schema": "pubsubctl/load/1", "tables": found},
        text="\n".join(f"{place}: {' '.join(each)}" for place, each in found.items()),
    )


def histograms(
    context: typer.Context,
    runs: Runs,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", metavar="DIR", help="Write here, not to the figures of each run."
        ),
    ] = None,
    master: Master = None,
) -> Result:
    """Write the latencies of runs as HdrHistogram logs.

    Writes a log per phase and metric, with an interval per second, in microseconds.
    """
    from pubsubctl.runs.run_records import find_member_runs
    from results.checker.spark import spark_session
    from results.tables.histogram_logs import write_histogram_logs
    from results.tables.load import load_run

    call = invocation(context)
    call.refuse_dry_run("results histograms")
    folders = find_member_runs(call.project, runs)
    if output is not None:
        create_folder(output)
    files: list[str] = []
    with call.console.progress() as progress:
        progress.phase("starting Spark")
        with spark_session("pubsubctl results histograms", call.master(master)) as spark:
            for folder in folders:
                progress.phase(f"counting {folder.name}")
                loaded = load_run(spark, folder)
                own = loaded.run.derived / "figures"
                target = own if output is None else output / folder.name
                files += map(str, write_histogram_logs(spark, loaded, target))
    return Result(
        document={"schema": "pubsubctl/histograms/1", "files": files}, text="\n".join(files)
    )


_COMMANDS: tuple[tuple[str, str, Callable[..., Result]], ...] = (
    ("list", _INSPECT, list_runs),
    ("show", _INSPECT, show),
    ("label", _INSPECT, label),
    ("remove", _INSPECT, remove),
    ("size", _INSPECT, size),
    ("index", _INSPECT, index),
    ("collect", _INSPECT, collect),
    ("check", _JUDGE, check),
    ("plot", _JUDGE, plot),
    ("report", _JUDGE, report),
    ("tables", _JUDGE, tables),
    ("histograms", _JUDGE, histograms),
    ("pack", _SHARE, pack),
    ("archive", _SHARE, archive),
    ("capsule", _SHARE, capsule),
    ("reproduce", _SHARE, reproduce),
)
for _name, _panel, _function in _COMMANDS:
    add_command(app, _name, _function, _panel)
