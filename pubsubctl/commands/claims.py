"""`claims list|run|explain`: claims of papers, compared with our figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokerd.text import nearest
from pubsubctl.commands import names
from pubsubctl.commands.options.grouping import GroupedCommand, GroupedVerbs
from pubsubctl.commands.options.results import ARCHIVES, Master
from pubsubctl.commands.options.simulation import processes_of
from pubsubctl.console.console import Result, Style
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

if TYPE_CHECKING:
    from pubsubctl.runs.claims import Claim, Outcome, State

app = typer.Typer(
    help="Judge the claims of papers by figures.", cls=GroupedVerbs, invoke_without_command=True
)

FILE_HELP = "Files of claims, or bare names in bench/claims. All if none is named."
RUNS_HELP = "Take this run, or the runs of this folder, not results/runs and the archived runs."
_STYLES: "dict[State, Style]" = {"holds": "good", "fails": "bad", "not run": "dim"}

Files = Annotated[list[str] | None, typer.Argument(metavar="[FILE...]", help=FILE_HELP)]
Runs = Annotated[
    Path | None, typer.Option("--output-dir", "-o", "--runs", metavar="DIR", help=RUNS_HELP)
]


Only = Annotated[
    str | None,
    typer.Option("--only", metavar="holds|fails|not-run", help="List claims of this verdict only."),
]


@app.callback()
def judge_all(context: typer.Context) -> Result | None:
    """Judge the claims of papers by figures.

    Without a command, lists them.
    """
    return None if context.invoked_subcommand else _judge(invocation(context), [], None)


@app.command("list", cls=GroupedCommand)
def list_claims(
    context: typer.Context, files: Files = None, runs: Runs = None, only: Only = None
) -> Result:
    """Judge every claim by drawn figures: holds, fails, not run.

    The repository has an archived run of some figures. It counts until a later run exists.
    """
    return _judge(invocation(context), files or [], runs, only)


@app.command("run", cls=GroupedCommand)
def run_claims(
    context: typer.Context,
    files: Files = None,
    runs: Runs = None,
    only: Only = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate", help="Also run the simulated experiments of claims that were not run."
        ),
    ] = False,
    master: Master = None,
) -> Result:
    """Draw the missing figures of existing runs, then list."""
    from pubsubctl.runs.claims import undrawn

    call = invocation(context)
    call.refuse_dry_run("claims run")
    folder = _folder_of(call, runs)
    if simulate:
        _simulate_missing(call, _claims(call, files or []), runs)
    wanted = undrawn(folder, {claim.figure for claim in _claims(call, files or [])})
    if wanted:
        from results.checker.spark import spark_session
        from results.figures.catalogue import draw

        with call.console.progress() as progress:
            progress.phase("starting Spark")
            with spark_session("pubsubctl claims", call.master(master)) as spark:
                for figure, run in wanted:
                    progress.phase(f"drawing {figure} of {run.name}")
                    draw(figure, spark, run)
    return _judge(call, files or [], runs, only)


def _simulate_missing(call: Invocation, claims: "Sequence[Claim]", runs: Path | None) -> None:
    """Run the simulated experiments behind claims that no figure judges."""
    from pubsubctl.runs.paper_experiments import (
        FigureRequest,
        kind_of_experiment,
        run_without_brokers,
    )

    missing = [each.claim.figure for each in _outcomes(call, claims, runs) if each.ours is None]
    for figure in dict.fromkeys(missing):
        if kind_of_experiment(figure) == "simulated":
            call.console.print(f"simulating {figure}")
            run_without_brokers(
                call,
                FigureRequest(
                    name=figure, full=False, figure=True, processes=processes_of(0), results=runs
                ),
            )


@app.command("explain", cls=GroupedCommand)
def explain(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="CLAIM",
            help="The name of a claim. See `claims list`.",
            autocompletion=names.claims,
        ),
    ],
    files: Files = None,
    runs: Runs = None,
) -> Result:
    """Explain a claim: the paper's result, ours, the command."""
    call = invocation(context)
    claims = _claims(call, files or [])
    found = [claim for claim in claims if claim.name == name]
    if not found:
        known = [claim.name for claim in claims]
        raise UserError(f"no claim called {shown(name)}{nearest(name, known)}")
    [outcome] = _outcomes(call, found, runs)
    row = outcome.row()
    scale = ", ".join(f"{key} = {value}" for key, value in outcome.claim.scale.items())
    again = f"pubsubctl experiment {row['figure']}"
    ours = f"{row['ours'] or 'nothing'}{' (' + row['ci'] + ')' if row['ci'] else ''}"
    lines = [
        f"{row['claim']}: {row['statement']}",
        f"  result of paper  {row['paper_value']}",
        f"  holds when       {row['metric']} of {row['figure']} is {row['tolerance']}",
        f"  it tests         {_TESTED[row['tests']]}",
        f"  and would miss   {row['wrong']}",
        f"  at the scale     {scale}",
        f"  we measured      {ours}",
        f"  so it            {_paint(call, outcome)}: {row['because']}",
        f"  to measure it    {again}",
    ]
    for label, key in (
        ("unlike the paper", "differs"),
        ("set afterwards", "set_after_results"),
        ("tolerance from", "tolerance_from"),
        ("why", "explanation"),
    ):
        if row[key]:
            lines.insert(-1, f"  {label:<17}{row[key]}")
    document = {"schema": "pubsubctl/claim/1", **row, "scale": outcome.claim.scale, "again": again}
    return Result(document=document, text="\n".join(lines))


_TESTED = {"paper": "the result of the paper", "ours": "our own model or protocol"}


def _judge(
    call: Invocation, files: Sequence[str], runs: Path | None, only: str | None = None
) -> Result:
    wanted = (only or "").replace("-", " ")
    if wanted and wanted not in _STYLES:
        known = [state.replace(" ", "-") for state in _STYLES]
        raise UserError(f"--only {shown(only)}{nearest(only, known)}")
    outcomes = _outcomes(call, _claims(call, files), runs)
    rows = [outcome.row() for outcome in outcomes if wanted in ("", outcome.state)]
    counts = {state: sum(row.state == state for row in outcomes) for state in _STYLES}
    table = call.console.table(
        ("CLAIM", "FIGURE", "VERDICT", "TESTS", "OURS", "TOLERANCE", "PAPER", "STATEMENT"),
        [
            [row[key] for key in
             ("claim", "figure", "verdict", "tests", "ours", "tolerance", "paper_value",
              "statement")]
            for row in rows
        ],
    )  # fmt: skip
    total = ", ".join(f"{count} {state}" for state, count in counts.items())
    whys = [f"{row['claim']}: {row['explanation']}" for row in rows if row["explanation"]]
    notes = [
        *_list_notes([r for r in rows if r["verdict"] != "not run"], "because", "by {said}"),
        *_list_notes([r for r in rows if r["verdict"] == "not run"], "because", "not run: {said}"),
        *_list_notes(rows, "differs", "unlike the paper: {said}"),
        *_list_notes(rows, "set_after_results", "set after first results: {said}"),
    ]
    return Result(
        document={"schema": "pubsubctl/claims-judged/1", "claims": rows, "total": counts},
        text="\n".join([table, *whys, *notes, total]),
    )


def _list_notes(rows: Sequence[Mapping[str, Any]], key: str, form: str) -> list[str]:
    """Return a line for each distinct note under a key, with the claims of the note."""
    of: dict[str, list[str]] = {}
    for row in rows:
        if row[key]:
            of.setdefault(row[key], []).append(row["claim"])
    return [f"{form.format(said=said)} ({', '.join(names)})" for said, names in of.items()]


def _claims(call: Invocation, files: Sequence[str]) -> "list[Claim]":
    from pubsubctl.runs.claims import load_claims

    project = call.project
    paths = [project.find("claims", name) for name in files or project.names("claims")]
    claims = [claim for path in paths for claim in load_claims(path)]
    names = [claim.name for claim in claims]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise UserError(f"two claims in {', '.join(map(str, paths))} are called {shown(name)}")
    return claims


def _folder_of(call: Invocation, runs: Path | None) -> Path:
    """Return the folder of runs; a folder named by the user must exist."""
    from pubsubctl.runs.runs import existing_runs

    return existing_runs(call.project, runs)


def _outcomes(call: Invocation, claims: "Sequence[Claim]", runs: Path | None) -> "list[Outcome]":
    from pubsubctl.runs.claims import judge, measurements
    from pubsubctl.runs.figure_archives import archived_measurements

    folder = _folder_of(call, runs)
    figures = [claim.figure for claim in claims]
    found = measurements(folder, figures)
    if runs is None:
        found += archived_measurements(call.project.folder / ARCHIVES, figures)
    return judge(claims, found)


def _paint(call: Invocation, outcome: "Outcome") -> str:
    return call.console.colorize(outcome.state, _STYLES[outcome.state])
