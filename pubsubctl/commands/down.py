"""`down`: stop the deployment, and remove everything."""

from typing import Annotated

import typer

from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import HostError, LabDirty, Unreachable


def down(
    context: typer.Context,
    verify: Annotated[
        bool, typer.Option("--verify", help="Prove that no process, port, socket or file is left.")
    ] = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove the folders that held our files.")
    ] = False,
) -> Result:
    """Stop everything of ours, remove its files."""
    import trio

    from pubsubctl.console.interruption import Interruption, run_interruptibly
    from pubsubctl.deploying.deploy import take_down
    from pubsubctl.deploying.plan import Plan, down_plan
    from pubsubctl.hosts.hosts import Lab, reached
    from pubsubctl.inventory.host_ranges import in_ranges

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    if call.dry_run:
        plan = down_plan(trio.run(reached, lab, lab.observe), purge=purge)
        return Result(document=plan.to_mapping(), text=plan.text())

    lost: list[Unreachable] = []

    async def work(interruption: Interruption) -> Plan:
        with call.console.progress() as progress:
            async with lab.opened():
                with interruption.stoppable():
                    lost.extend(await lab.without_unreachable())
                    await lab.installed(only_if_used=True)
                async with lab.locked("down"):
                    return await take_down(lab, progress, purge=purge, verify=verify)

    plan = run_interruptibly(
        work, call.console, when_not_waiting="`pubsubctl down` once more does the rest"
    )
    stopped = sum(step.verb != "remove" for step in plan.steps)
    text = f"stopped {stopped} agents" if stopped else "nothing was running"
    kind = LabDirty if verify else HostError
    if verify:
        hosts = in_ranges(connector.host.name for connector in lab.connectors)
        where = f" on {hosts}" if lost else ""
        text += f"; verified: no process, port, socket or file of what ran is left{where}"
    if lab.connections is not None and not purge:
        text += "; the program stays installed, --purge removes it"
    return Result(
        document={
            "schema": "pubsubctl/down/1",
            "hosts": [connector.host.name for connector in lab.connectors],
            "steps": plan.to_mapping()["steps"],
            "verified": verify and not lost,
            "purged": purge,
        },
        text=text,
        because=tuple(
            kind(*error.problems, "what is there may still run; `pubsubctl down` once more")
            for error in lost
        ),
    )
