"""`check`, `plot`, `report` and `why`: verdicts, figures, pages and traces of finished runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokerd.text import nearest
from brokerd.units import MILLISECOND_NS
from pubsubctl.commands import names
from pubsubctl.commands.options.results import RUNS_HELP, CaseFiles, Master, Runs, RunsFolder
from pubsubctl.console.console import Console, Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.console.outputs import output_file
from pubsubctl.errors import IntegrityError, UserError
from pubsubctl.hosts.files import shown

if TYPE_CHECKING:
    from results.report.delivery_trace import DeliveryTrace

LEDGER = Path("results", "reliability.json")
"""The file in which `make campaign` keeps the results of the simulator's seeds."""


def check(
    context: typer.Context,
    runs: Runs,
    files: CaseFiles,
    master: Master = None,
    output: RunsFolder = None,
) -> Result:
    """Judge runs from their logs.

    Computes the owed deliveries from publications and subscriptions, and compares. Of a series,
    judges all runs.
    """
    from pubsubctl.runs.run_records import find_member_runs
    from pubsubctl.runs.verdicts import JudgedRun, MissingVerdict, judge_each

    call = invocation(context)
    call.refuse_dry_run("check")
    folders = find_member_runs(call.project, runs, output)
    files.begin(call, "check")
    with call.console.progress() as progress:
        judged = judge_each(folders, progress, call.master(master))
    blocks = [f"{row.paint(call.console)}\n{row.run}" for row in judged]
    result = Result(
        document={"schema": "pubsubctl/check/1", "runs": [row.row() for row in judged]},
        text="\n\n".join(blocks),
        because=tuple(
            error for row in judged if isinstance(row, JudgedRun) for error in row.because
        ),
        failures=tuple(row.error for row in judged if isinstance(row, MissingVerdict)),
    )
    return files.end("check", result)


def plot(
    context: typer.Context,
    figure: Annotated[
        str | None,
        typer.Argument(help="The name of a figure. See --list.", autocompletion=names.figures),
    ] = None,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN...]",
            help=f"{RUNS_HELP} The latest run of the figure if none is named.",
            autocompletion=names.runs,
        ),
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the figures.")] = False,
    formats: Annotated[
        str, typer.Option("--format", metavar="svg,png", help="Write files of these formats.")
    ] = "svg,png",
    master: Master = None,
    output: RunsFolder = None,
) -> Result:
    """Draw a figure of runs.

    Writes SVG, PNG and the numbers as CSV, in the folder of each run. A figure of one run is drawn
    for all runs of a series.
    """
    call = invocation(context)
    call.refuse_dry_run("plot")
    if list_all:
        return _figures(call)
    wanted = _check_formats(figure, formats)
    assert figure is not None
    return _draw(call, figure, runs or [], wanted, call.master(master), output)


def _figures(call: Invocation) -> Result:
    from pubsubctl.runs.paper_experiments import describe_figures
    from results.figures.catalogue import FIGURES

    texts = describe_figures()
    rows = [(name, texts[name]) for name in sorted(FIGURES)]
    document = {"schema": "pubsubctl/figures/1", "figures": [row[0] for row in rows]}
    return Result(document=document, text=call.console.table(("FIGURE", "SHOWS"), rows))


def _check_formats(figure: str | None, formats: str) -> tuple[str, ...]:
    """Return the formats of a known figure."""
    from results.figures.catalogue import FIGURES
    from results.figures.drawing import FORMATS

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
    return wanted


def _draw(
    call: Invocation,
    figure: str,
    runs: list[str],
    formats: tuple[str, ...],
    master: str,
    output: Path | None,
) -> Result:
    from pubsubctl.runs.paper_experiments import check_figure_of
    from pubsubctl.runs.run_records import replace_series
    from pubsubctl.runs.runs import find_runs, latest_of_figure
    from results.checker.spark import spark_session
    from results.figures.catalogue import OF_ONE_RUN, draw
    from results.figures.run_figures import WITHOUT_SPARK

    if runs:
        folders = find_runs(call.project, runs, output)
    else:
        folders = [latest_of_figure(call.project, figure, output)]
    if figure in OF_ONE_RUN:
        folders = replace_series(folders)
    for folder in folders:
        check_figure_of(figure, folder, is_named=bool(runs))
    files: list[str] = []
    if figure in WITHOUT_SPARK:
        for folder in folders:
            files += map(str, draw(figure, None, folder, formats))
    else:
        with call.console.progress() as progress:
            progress.phase("starting Spark")
            with spark_session("pubsubctl plot", master) as spark:
                for folder in folders:
                    progress.phase(f"drawing {figure} of {folder.name}")
                    files += map(str, draw(figure, spark, folder, formats))
    document = {"schema": "pubsubctl/plot/1", "figure": figure, "files": files}
    return Result(document=document, text="\n".join(files))


def report(
    context: typer.Context,
    runs: Runs,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")
    ] = None,
    master: Master = None,
) -> Result:
    """Write a page on runs: verdicts, figures and numbers.

    Takes runs of brokers; or experiments without brokers and series, with claims and the counts of
    the simulator's seeds (results/reliability.json).
    Takes verdicts of this program on the same files as they are; `check` judges again.
    """
    from pubsubctl.runs.runs import find_runs, refuse_archive
    from pubsubctl.runs.verdicts import judge_and_report
    from results.papers.experiment_runs import is_experiment_run
    from results.repetitions.series_runs import is_series
    from results.tables.derived import find_unsealed_derived

    call = invocation(context)
    call.refuse_dry_run("report")
    folders = find_runs(call.project, runs)
    for folder in folders:
        refuse_archive(folder)
    page = output or find_unsealed_derived(folders[0]) / "report.html"
    if output is not None:
        output_file(output)
    experiments = [each for each in folders if is_experiment_run(each) or is_series(each)]
    if experiments:
        if others := [folder for folder in folders if folder not in experiments]:
            raise UserError(
                f"{others[0]} is a run of brokers, {experiments[0]} a series or an experiment "
                "without; one page is on the one or on the other"
            )
        return _on_experiments(call, folders, page, call.master(master))
    with call.console.progress() as progress:
        judged = judge_and_report(folders, page, progress, call.master(master), reuses=True)
    verdicts = {str(row.run): row.verdict for row in judged}
    document = {"schema": "pubsubctl/report/1", "report": str(page), "verdicts": verdicts}
    return Result(document=document, text=str(page))


def _on_experiments(call: Invocation, folders: list[Path], page: Path, master: str) -> Result:
    from pubsubctl.runs.claims import judge, load_claims, measurement
    from pubsubctl.runs.run_changes import refresh_run_index
    from pubsubctl.runs.runs import read_json
    from pubsubctl.runs.verdicts import draw_and_judge
    from results.repetitions.series_runs import is_series, verdict_lines
    from results.report import write_experiment_report
    from results.tables.derived import find_unsealed_derived

    project = call.project
    with call.console.progress() as progress:
        judged = draw_and_judge(folders, progress, call.master(master))
    claims = [
        claim
        for name in project.names("claims")
        for claim in load_claims(project.find("claims", name))
    ]
    drawn = [
        measurement(read_json(path), str(path))
        for folder in folders
        for path in sorted((find_unsealed_derived(folder) / "figures").glob("*.json"))
    ]
    about = {found.figure for found in drawn}
    outcomes = judge([claim for claim in claims if claim.figure in about], drawn)
    ledger = project.folder / LEDGER
    write_experiment_report(
        folders,
        page,
        verdicts={
            **{run: row.document["lines"] for run, row in judged.items()},
            **{folder: verdict_lines(folder) for folder in folders if is_series(folder)},
        },
        claims=[outcome.row() for outcome in outcomes],
        ledger=read_json(ledger) if ledger.is_file() else None,
    )
    refresh_run_index(folders, call.console)
    document = {
        "schema": "pubsubctl/report/1",
        "report": str(page),
        "verdicts": {str(run): row.verdict for run, row in judged.items()},
        "claims": {outcome.claim.name: outcome.state for outcome in outcomes},
    }
    return Result(document=document, text=str(page))


def why(
    context: typer.Context,
    publication: Annotated[
        str,
        typer.Argument(
            metavar="PUBLICATION",
            help="SOURCE:NUMBER or SOURCE:INCARNATION:NUMBER, such as p1/0:310 or p1-pub-1:310.",
        ),
    ],
    subscription: Annotated[
        str, typer.Argument(metavar="SUBSCRIPTION", help="For example s3-sub-1, or s3-sub-1/2.")
    ],
    run: Annotated[
        str, typer.Argument(metavar="RUN", help=RUNS_HELP, autocompletion=names.runs)
    ] = "latest",
    output: RunsFolder = None,
) -> Result:
    """Trace one publication to one subscription.

    Prints the events in the order of time: sending, acknowledgement, arrival, and gaps, with the
    faults and lost sessions on the path. The last line is the outcome, by the rules of the verdict.
    """
    from pubsubctl.runs.runs import find_one_run
    from results.reference.files import FileRefusal, is_sealed
    from results.report.delivery_trace import TraceRefusal, trace_delivery

    call = invocation(context)
    call.refuse_dry_run("why")
    folder = find_one_run(call.project, run, output)
    try:
        is_sealed(folder)
        trace = trace_delivery(folder, publication, subscription)
    except TraceRefusal as error:
        begin = f"{error.wanted.partition('/')[0]}-"
        longer = [name for name in error.known if name.startswith(begin)]
        hint = nearest(error.wanted, error.known) if error.wanted else ""
        hint = f"; did you mean {longer[0]!r}?" if error.wanted and longer else hint
        raise UserError(f"{folder}: {error}{hint}") from None
    except FileRefusal as error:
        raise IntegrityError(str(error)) from None
    return Result(
        document=_document_of(str(folder), trace), text=f"{_text_of(call.console, trace)}\n{folder}"
    )


def _document_of(run: str, trace: "DeliveryTrace") -> dict[str, Any]:
    return {
        "schema": "pubsubctl/why/1",
        "run": run,
        "publication": trace.publication,
        "publisher": trace.publisher,
        "attributes": dict(trace.attributes),
        "subscription": trace.subscription,
        "predicate": trace.predicate,
        "path": [*trace.path],
        "outcome": trace.outcome,
        "because": trace.because,
        "events": [
            {"at_ns": each.at_ns, "place": each.place, "text": each.text} for each in trace.events
        ],
    }


def _text_of(console: Console, trace: "DeliveryTrace") -> str:
    attributes = ", ".join(f"{name} = {value!r}" for name, value in trace.attributes.items())
    rows = [(f"{each.at_ns / MILLISECOND_NS:,.2f}", each.place, each.text) for each in trace.events]
    facts = [
        f"{trace.publication} of {trace.publisher}: {attributes or 'without attributes'}",
        f"to {trace.subscription}: {trace.predicate}",
        *([f"path {' > '.join(trace.path)}"] if trace.path else []),
    ]
    table = console.table(("MS", "AT", "EVENT"), rows)
    return "\n".join([*facts, "", table, "", trace.because])
