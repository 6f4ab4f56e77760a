"""`heal`: end every fault, whoever began it; safe at any time, and as often as one likes."""

from typing import TYPE_CHECKING, Any

import typer

from brokerd.errors import ControlError
from pubsubctl.commands.invocation import invocation
from pubsubctl.console import Result
from pubsubctl.errors import LabDirty, PubsubctlError

if TYPE_CHECKING:
    from pubsubctl.connectors.base import Connector


def heal(context: typer.Context) -> Result:
    """End every fault that is in effect.

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

    async def heal_on(connector: "Connector", faults: list[str]) -> None:
        async with connector.open_agent() as agent:
            for fault_id in faults:
                try:
                    row = await agent.fault_heal(fault_id)
                except ControlError as error:
                    failed.append(LabDirty(f"host {connector.host.name}: {fault_id}: {error}"))
                else:
                    healed.append({**row, "host": connector.host.name})

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
                name = connector.host.name
                faults = [row["fault_id"] for row in state.faults if row["host"] == name]
                if faults:
                    nursery.start_soon(heal_on, connector, faults)

    trio.run(reached, lab, work)
    what = "would heal" if call.dry_run else "healed"
    lines = [f"{what} {row['fault_id']} on {row['host']}" for row in healed]
    return Result(
        document={"schema": "pubsubctl/heal/1", "healed": healed},
        text="\n".join(lines) or "nothing to heal",
        because=tuple(failed),
    )
