"""`compare`: runs side by side, with the significance of differences over repetitions."""

from pathlib import Path
from typing import Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import UserError


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
    comparison: Annotated[
        str | None,
        typer.Option(
            "--comparison",
            metavar="NAME",
            help="The same as a file says, or one of bench/comparisons: s1, s3, …",
            autocompletion=names.comparisons,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Only this one of the comparison; repeatable."),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also", metavar="FILE", help="Run a broker of yours, too, beside them; repeatable."
        ),
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", "-d", help="How long to measure each: 20s.")
    ] = None,
    selftest: Annotated[
        bool,
        typer.Option(
            "--selftest",
            help="Try on this machine whether two series of the same are said to differ, and "
            "whether a slowdown of 10 % is found: simulated runs, judged by processor time.",
        ),
    ] = False,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials", metavar="N", min=1, help="With --selftest: so many of each kind (20)."
        ),
    ] = None,
    instances: Annotated[
        int | None,
        typer.Option(
            "--instances", metavar="N", min=2, help="With --selftest: runs of each side (10)."
        ),
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
    over every protocol and every broker of others that is installed. --comparison NAME does so as
    another file says; a protocol that does not promise what is tried there has its reason in the
    place of numbers. Status 0 whatever the verdicts are, 3 where one of them is UNKNOWN.

    With --selftest, nothing is read: status 0 where at most one of 20 trials of either kind is
    wrong, else 3.
    """
    from pubsubctl.running.differences import differences
    from pubsubctl.running.runs import find_runs

    call = invocation(context)
    if selftest:
        from pubsubctl.running.comparison_selftest import selftest as selftest_now

        if runs or everything or comparison or only or also or duration:
            raise UserError("compare --selftest makes the runs that it compares; it takes no other")
        call.refuse_dry_run("compare --selftest")
        return selftest_now(call, trials or 20, instances or 10)
    for option, number in (("--trials", trials), ("--instances", instances)):
        if number is not None:
            raise UserError(f"compare {option} {number}: goes with --selftest")
    if everything or comparison is not None:
        from pubsubctl.running.comparing import EVERYTHING, compare_as

        option = "--all" if everything else f"--comparison {comparison}"
        if everything and comparison is not None:
            raise UserError(f"compare --all --comparison {comparison}: one of both")
        if runs:
            raise UserError(f"compare {option} {runs[0]}: {option} makes the runs that it compares")
        return compare_as(call, comparison or EVERYTHING, only or [], also or [], duration, output)
    for option, value in (("--only", only), ("--also", also), ("--duration", duration)):
        if value:
            raise UserError(f"compare {option}: goes with --all or --comparison")
    call.refuse_dry_run("compare")
    named = find_runs(call.project, runs or [], output) if runs else []
    return differences(call, named)
