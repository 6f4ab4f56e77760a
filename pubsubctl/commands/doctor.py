"""`doctor`: obstacles to a deployment or a measurement, here and on the hosts."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pubsubctl.commands import names
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation, invocation
from pubsubctl.errors import PreflightFailed, PubsubctlError, Unreachable, UserError

if TYPE_CHECKING:
    from pubsubctl.doctor.health_check import Finding


def doctor(
    context: typer.Context,
    only: Annotated[
        str | None, typer.Option("--only", metavar="ID,...", help="Make only these checks.")
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="WORKLOAD",
            help="Print time, disk space and connections of a workload, too; or check if a broker "
            "of others (external/NAME) can start.",
            autocompletion=names.workloads,
        ),
    ] = None,
) -> Result:
    """Check this machine, and the hosts of the inventory.

    A finding has the id of its check, a severity, and a remedy if one is needed. Similar hosts
    share a line; -v prints a line per host, -q prints problems only.
    """
    from bench.spec.spec import load_experiment
    from bench.systems.configuration import is_configuration
    from pubsubctl.doctor.health_check import Subject, examine

    call = invocation(context)
    if workload is not None and is_configuration(workload):
        from pubsubctl.doctor.health_check import check_system

        return _describe_findings(call, check_system(workload))
    experiment = None
    if workload is not None:
        experiment = load_experiment(call.project.find("workload", workload))
    try:
        inventory = call.inventory()
        hosts = call.hosts(inventory)
        subject = Subject(call.project, inventory, hosts, None, call.forks, experiment)
    except UserError as error:
        subject = Subject(call.project, None, (), error, experiment=experiment)
    chosen = [name.strip() for name in only.split(",")] if only is not None else []
    with call.console.progress() as progress:
        progress.phase("looking at this machine and the hosts")
        findings = examine(subject, chosen)
    return _describe_findings(call, findings)


def _describe_findings(call: Invocation, findings: "Sequence[Finding]") -> Result:
    """Return the findings in lines, with the reasons for a failure."""
    from pubsubctl.doctor.health_check import select_findings, tally

    marks = {"ok": ("ok  ", "good"), "warn": ("warn", "doubtful"), "fail": ("FAIL", "bad")}
    lines = []
    shown = select_findings(findings, verbose=call.console.verbose > 0, quiet=call.console.quiet)
    for row in shown:
        mark, style = marks[row.severity]
        colored = call.console.colorize(mark, style)  # type: ignore[arg-type]
        lines.append(f"{colored}  {row.id:10} {row.text}")
        if row.remedy:
            lines.append(f"      {'':10} → {row.remedy}")
    if not call.console.quiet:
        lines.append(tally(findings))
    failed = [row for row in findings if row.severity == "fail"]
    unreached = [f"{row.id}: {row.text}" for row in failed if row.id in ("reach", "host-key")]
    others = [f"{row.id}: {row.text}" for row in failed if row.id not in ("reach", "host-key")]
    because: list[PubsubctlError] = [Unreachable(*unreached)] if unreached else []
    because += [PreflightFailed(*others)] if others else []
    return Result(
        document={"schema": "pubsubctl/doctor/1", "findings": [asdict(row) for row in findings]},
        text="\n".join(lines),
        because=tuple(because),
    )
