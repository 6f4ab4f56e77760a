"""`simulate`: the protocols on a virtual clock and network, seed by seed."""

import os
import re
from typing import Annotated

import typer

from brokerd.config import PROTOCOLS, Mutant
from brokerd.overlay.topology import nearest
from pubsubctl.commands.invocation import invocation
from pubsubctl.console import Result, grouped
from pubsubctl.errors import UserError, VerdictInvalid
from pubsubctl.files import shown


def simulate(
    context: typer.Context,
    what: Annotated[str, typer.Argument(help="swarm")] = "swarm",
    protocol: Annotated[
        str, typer.Option("--protocol", help="delta_tree or best_effort.")
    ] = "delta_tree",
    seeds: Annotated[str, typer.Option("--seeds", metavar="A..B", help="Both included.")] = "1..20",
    mutant: Annotated[
        list[str] | None, typer.Option("--mutant", help="A named bug that every broker has.")
    ] = None,
    processes: Annotated[int, typer.Option("--processes", min=0, help="0 for one per core.")] = 0,
) -> Result:
    """Run random topologies, workloads and faults, and check every rule after every step."""
    from brokerd.simulator.swarm import SwarmOptions, run_swarm, total

    call = invocation(context)
    call.refuse_dry_run("simulate")
    if what != "swarm":
        raise UserError(f"simulate: nothing called {shown(what)}{nearest(what, ['swarm'])}")
    if protocol not in PROTOCOLS:
        raise UserError(f"no protocol called {shown(protocol)}{nearest(protocol, PROTOCOLS)}")
    first, last = _seeds(seeds)
    options = SwarmOptions(mutants=frozenset(_mutant(name) for name in mutant or []))
    count = last - first + 1
    reports = []
    with call.console.progress() as progress:
        progress.phase(f"simulating {protocol}", None)
        for report in run_swarm(
            range(first, last + 1), protocol, processes or os.cpu_count() or 1, options
        ):
            reports.append(report)
            if report.violations and (count == 1 or call.console.verbose):
                progress.say(report.in_words())
            progress.update({"seeds": f"{len(reports)}/{count}"})
    ledger = total(reports)
    wrong = [report for report in reports if report.violations]
    return Result(
        document={
            "schema": "pubsubctl/swarm/1",
            "protocol": protocol,
            "mutants": sorted(options.mutants),
            "seeds": [
                {
                    "seed": report.seed,
                    "history_digest": report.digest,
                    "rule": report.rule,
                    "violations": list(report.violations),
                    "counters": report.counters,
                    "command": report.command,
                }
                for report in reports
            ],
            "total": ledger,
        },
        text=(
            f"{count} seeds, {len(wrong)} with a violation; "
            f"{grouped(ledger.get('deliveries', 0))} deliveries, "
            f"{grouped(ledger.get('at_risk', 0))} at risk, "
            f"{grouped(ledger.get('broker_events', 0))} steps"
        ),
        because=tuple(
            VerdictInvalid(f"seed {row.seed}: {row.rule}; {row.command}") for row in wrong[:20]
        ),
    )


def _seeds(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", text)
    if not found:
        raise UserError(f"--seeds = {shown(text)}; write 7 or 1..500")
    first = int(found[1])
    last = int(found[2]) if found[2] is not None else first
    if last < first:
        raise UserError(f"--seeds = {shown(text)}: runs backwards; {last}..{first}?")
    return first, last


def _mutant(name: str) -> Mutant:
    try:
        return Mutant(name)
    except ValueError:
        known = [str(mutant) for mutant in Mutant]
        raise UserError(f"no mutant called {shown(name)}{nearest(name, known)}") from None
