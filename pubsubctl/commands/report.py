"""`report`: a self-contained page on one or more runs."""

from pathlib import Path
from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.commands.check import RUNS_HELP
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import UserError

LEDGER = Path("results", "reliability.json")
"""The file in which `make campaign` keeps the results of the simulator's seeds."""


def report(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help=RUNS_HELP, autocompletion=names.runs),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")
    ] = None,
    master: Annotated[str | None, typer.Option("--master", help="Where Spark runs.")] = None,
) -> Result:
    """Write a page on runs: verdicts and figures.

    On runs of brokers; or on experiments without and on series of runs: figures, numbers, claims,
    and the simulator's ledger (results/reliability.json) where there is one.
    """
    from pubsubctl.running.judging import judge_and_report
    from pubsubctl.running.runs import find_runs
    from results.papers.experiment_runs import is_experiment_run
    from results.repetitions.series_runs import is_series
    from results.tables.derived import derived_of

    call = invocation(context)
    call.refuse_dry_run("report")
    folders = find_runs(call.project, runs)
    page = output or derived_of(folders[0]) / "report.html"
    experiments = [each for each in folders if is_experiment_run(each) or is_series(each)]
    if experiments:
        if others := [folder for folder in folders if folder not in experiments]:
            raise UserError(
                f"{others[0]} is a run of brokers, {experiments[0]} a series or an experiment "
                "without; one page is on the one or on the other"
            )
        return _on_experiments(call, folders, page, call.master(master))
    with call.console.progress() as progress:
        judged = judge_and_report(folders, page, progress, call.master(master))
    verdicts = {str(row.run): row.verdict for row in judged}
    document = {"schema": "pubsubctl/report/1", "report": str(page), "verdicts": verdicts}
    return Result(document=document, text=str(page))


def _on_experiments(call: Invocation, folders: list[Path], page: Path, master: str) -> Result:
    from pubsubctl.running.claims import judge, load_claims, measurement
    from pubsubctl.running.judging import draw_and_judge
    from pubsubctl.running.runs import read_json
    from results.repetitions.series_runs import is_series, verdict_lines
    from results.report import write_experiment_report
    from results.tables.derived import derived_of

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
        for path in sorted((derived_of(folder) / "figures").glob("*.json"))
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
    document = {
        "schema": "pubsubctl/report/1",
        "report": str(page),
        "verdicts": {str(run): row.verdict for run, row in judged.items()},
        "claims": {outcome.claim.name: outcome.state for outcome in outcomes},
    }
    return Result(document=document, text=str(page))
