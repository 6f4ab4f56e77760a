"""`compare`: runs beside each other, with what repetitions say of the difference."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.commands.invocation import Invocation, invocation
from pubsubctl.console.console import Result
from pubsubctl.errors import UserError

if TYPE_CHECKING:
    from results.repetitions.comparison import Compared, Comparison, Group


def compare(
    context: typer.Context,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...",
            help="Folders or ids of runs, or of series (bench --instances): the others are "
            "compared with the first.",
            autocompletion=names.runs,
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Run brokers of ours and of others first, as bench/comparisons/all.toml says, "
            "under the same load and faults, and write one report.",
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Only this one of --all; repeatable."),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also", metavar="FILE", help="Run a broker of yours, too, with --all; repeatable."
        ),
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", "-d", help="How long to measure with --all: 20s.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output-dir", "-o", help="Where runs are, if not in results/runs."),
    ] = None,
) -> Result:
    """Say what differs between runs, and by how much.

    Means of repetitions with a 95 % interval of their ratio: faster, slower, better, worse, the
    same (within 5 %), or cannot tell. Runs on other hardware, or of another load, scale, fsync
    policy, workload or fault schedule are refused.

    With --all, the runs are made first: one after the other, the same workload and the same faults
    over every protocol and every broker of others that is installed. Status 0 whatever the
    verdicts are, 3 where one of them is UNKNOWN.
    """
    from pubsubctl.running.runs import find_runs
    from results.repetitions.comparable import NotComparable
    from results.repetitions.comparison import compare as compared

    call = invocation(context)
    if everything:
        from pubsubctl.running.comparing import compare_all

        if runs:
            raise UserError(f"compare --all {runs[0]}: --all makes the runs that it compares")
        return compare_all(call, only or [], also or [], duration, output)
    for option, value in (("--only", only), ("--also", also), ("--duration", duration)):
        if value:
            raise UserError(f"compare {option}: goes with --all")
    call.refuse_dry_run("compare")
    named = find_runs(call.project, runs or [], output) if runs else []
    groups = [group for run in named for group in _groups_of(run)]
    if len(groups) < 2:
        raise UserError("compare: name at least two runs, or a series of several points")
    try:
        comparison = compared(groups)
    except NotComparable as error:
        raise UserError(str(error)) from None
    return Result(document=comparison.document(), text=_text(call, comparison))


def _groups_of(run: Path) -> "list[Group]":
    """The points of a series, or one run alone."""
    from bench.run.series import KIND
    from pubsubctl.running.runs import manifest
    from results.repetitions.comparison import Group

    about = manifest(run)
    if about.get("kind") != KIND:
        return [Group(run.name, (run,))]
    if about.get("state") != "complete":
        raise UserError(f"{run}: this series is {about.get('state')}; bench goes on with it")
    return [
        Group(point if len(about["runs"]) > 1 else f"{run.name} {point}",
              tuple(run.parent / run_id for run_id in run_ids))
        for point, run_ids in about["runs"].items()
    ]  # fmt: skip


def _text(call: Invocation, comparison: "Comparison") -> str:
    first = comparison.groups[0]
    lines = [f"compared with {first.name} ({len(first.runs)} runs)"]
    for name, values in comparison.differing.items():
        told = ", ".join(
            f"{group.name}: {value}" for group, value in zip(comparison.groups, values, strict=True)
        )
        lines.append(f"differs: {name}: {told}")
    if not comparison.differing:
        lines.append("differs: nothing but chance")
    header = ("RUNS", "NUMBER", first.name.upper(), "THEIRS", "RATIO", "95 % INTERVAL", "SO")
    lines.append(call.console.table(header, [_row(row) for row in comparison.rows]))
    return "\n".join(lines)


def _row(row: "Compared") -> tuple[str, ...]:
    difference = row.difference
    low, high = difference.low, difference.high
    interval = "" if low is None or high is None else f"{low:.3g} … {high:.3g}"
    if difference.ratio is None and interval:
        interval = f"{interval} (difference)"
    unit = f" {row.number.unit}" if row.number.unit else ""
    return (
        f"{row.group} ({len(row.second.values)})",
        row.number.name,
        f"{row.first.mean:.4g}{unit}",
        f"{row.second.mean:.4g}{unit}",
        "" if difference.ratio is None else f"{difference.ratio:.3g}",
        interval,
        row.verdict,
    )
