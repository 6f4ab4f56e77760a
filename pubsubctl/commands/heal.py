"""`heal`: end every fault, whoever began it; safe at any time, and as often as one likes."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokerd.errors import ControlError
from pubsubctl.commands.invocation import invocation
from pubsubctl.console import Result
from pubsubctl.errors import LabDirty, PubsubctlError

if TYPE_CHECKING:
    from pubsubctl.connectors.base import Connector


def heal(
    context: typer.Context,
    verify: Annotated[
        bool, typer.Option("--verify", help="Look again afterwards; 7 if anything is left.")
    ] = False,
) -> Result:
    """End every fault that is in effect, also what brokers were told by others.

    Brokers that were killed stay so; `deploy` starts them again.
    """
    import trio

    from pubsubctl.hosts import Lab, reached
    from pubsubctl.state import lab_state

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    healed: list[dict[str, Any]] = []
    failed: list[PubsubctlError] = []
    verified: list[str] = []

    async def heal_on(connector: "Connector") -> None:
        name = connector.host.name
        try:
            async with connector.open_agent() as agent:
                answer = await agent.fault_heal_all()
                healed.extend({**row, "host": name} for row in answer["healed"])
                left = answer["left"]
                if verify and not left:
                    again = await agent.fault_heal_all()
                    left = [f"{row['fault_id']} came back" for row in again["healed"]]
                    left += again["left"]
        except ControlError as error:
            left = [str(error)]
        failed.extend(LabDirty(f"host {name}: {reason}") for reason in left)
        if not left:
            verified.append(name)

    async def work() -> None:
        state = await lab_state(lab)
        for host, reason in state.unreachable.items():
            # Its watchdogs heal without it; whether they have, only the next agent can say.
            failed.append(LabDirty(f"host {host}: {reason}; faults there end with their lease"))
        if call.dry_run:
            healed.extend(state.faults)
            return
        async with trio.open_nursery() as nursery:
            for connector in lab.connectors:
                if connector.host.name in state.reached:
                    nursery.start_soon(heal_on, connector)

    trio.run(reached, lab, work)
    what = "would heal" if call.dry_run else "healed"
    lines = [f"{what} {row['fault_id']} on {row['host']}" for row in healed]
    lines = lines or ["nothing to heal"]
    if verify and not call.dry_run:
        looked = ", ".join(sorted(verified)) or "no host: nothing is deployed"
        lines.append(f"verified: no fault is left on {looked}" if verified else looked)
    return Result(
        document={
            "schema": "pubsubctl/heal/1",
            "healed": healed,
            "verified": sorted(verified) if verify else [],
        },
        text="\n".join(lines),
        because=tuple(failed),
    )
