"""`inject`: break something that is deployed, by a schedule or by one verb."""

from typing import Annotated, Any

import typer

from pubsubctl.commands import names
from pubsubctl.commands.invocation import Invocation, invocation
from pubsubctl.console import Result
from pubsubctl.errors import UserError


def inject(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCHEDULE | VERB TARGET",
            help="A schedule's file, or one verb.",
            autocompletion=names.faults,
        ),
    ] = None,
    lasts: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long: 2.5s, or 2s..3s.")
    ] = None,
    stall: Annotated[
        str | None, typer.Option("--stall", metavar="TIME", help="Of crash: absorb before.")
    ] = None,
    down: Annotated[
        str | None, typer.Option("--down", metavar="TIME", help="Of crash: restart after.")
    ] = None,
    sig: Annotated[
        str | None, typer.Option("--signal", metavar="NAME", help="Of kill; KILL without.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="What is random is drawn from it.")
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option("--topology", help="Check against this, not against what is deployed."),
    ] = None,
    only_lint: Annotated[bool, typer.Option("--lint", help="Check only; needs no lab.")] = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Print what would happen, with drawn values.")
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List verbs and schedules.")] = False,
) -> Result:
    """Break brokers and links that are deployed.

    Ends when everything is healed and has recovered.
    """
    from fault_injection.schedule import expand
    from pubsubctl import faults

    call = invocation(context)
    if list_all:
        return _listing(call)
    words = what or []
    if len(words) == 1:
        if any(value is not None for value in (lasts, stall, down, sig)):
            raise UserError("--for, --stall, --down and --signal go with VERB TARGET")
        schedule = faults.schedule_of(call.project, words[0])
    elif len(words) == 2:
        options = {"for": lasts, "stall": stall, "down": down, "signal": sig}
        schedule = faults.one_step(words[0], words[1], options)
    else:
        raise UserError("inject: name a SCHEDULE, or a VERB and its TARGET; see --list")
    warnings = faults.checked(schedule, _topology(call, topology))
    for warning in warnings:
        call.console.warn(warning)
    steps = expand(schedule, seed)
    if only_lint or preview or call.dry_run:
        lines = [f"{schedule.source}: ok, {len(steps)} steps"] if only_lint else map(str, steps)
        return Result(
            document={
                "schema": "pubsubctl/inject-preview/1",
                "schedule": schedule.to_mapping(),
                "steps": [str(step) for step in steps],
                "warnings": warnings,
            },
            text="\n".join(lines),
        )
    from pubsubctl.injection import inject_now

    return inject_now(call, schedule, seed)


def _topology(call: Invocation, name: str | None) -> Any:
    """The topology to check against: as named, or of what is deployed."""
    import trio

    from brokerd.overlay.topology import Topology
    from pubsubctl.hosts import Lab, reached
    from pubsubctl.topologies import load_topology

    if name is not None:
        return load_topology(call.project.find("topology", name))
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)

    async def recorded() -> Any:
        for connector in lab.connectors:
            if (record := await connector.read_deployment()) is not None:
                return record
        return None

    if (record := trio.run(reached, lab, recorded)) is not None:
        return Topology.from_mapping(record["topology"], "deployment.json")
    raise UserError("nothing is deployed; name the topology to check against: --topology NAME")


def _listing(call: Invocation) -> Result:
    from fault_injection.schedule import LASTING_VERBS, LINK_VERBS, VERBS

    rows = [
        (
            verb,
            "broker or link" if verb in LINK_VERBS else "broker",
            "--for TIME" if verb in LASTING_VERBS else "",
        )
        for verb in VERBS
    ]
    schedules = call.project.names("schedule")
    return Result(
        document={
            "schema": "pubsubctl/inject-list/1",
            "verbs": [{"verb": row[0], "on": row[1], "lasts": bool(row[2])} for row in rows],
            "schedules": schedules,
        },
        text=f"{call.console.table(('VERB', 'ON', ''), rows)}\n\nschedules: {', '.join(schedules)}",
    )
