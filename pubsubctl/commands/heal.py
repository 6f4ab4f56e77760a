"""`heal`: end every fault of any origin; safe at any time, and repeatable."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from brokerd.errors import ControlError
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import HostError, LabDirty, PubsubctlError, Unreachable

if TYPE_CHECKING:
    from pubsubctl.hosts.connectors.base import Connector
    from pubsubctl.state import LabState


def heal(
    context: typer.Context,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Look again afterwards; exit status 7 if anything is left."),
    ] = False,
) -> Result:
    """End every fault that is in effect, whoever began it.

    Where no agent answers, a new one is started; it reads in the journal what the last one did.
    Brokers that were killed stay down until `deploy` starts them again.
    """
    import trio

    from pubsubctl.hosts.hosts import Lab, reached
    from pubsubctl.state import lab_state

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    if call.dry_run:
        return _would_heal(trio.run(reached, lab, lambda: lab_state(lab)))
    started: list[str] = []
    healed: list[dict[str, Any]] = []
    failed: list[PubsubctlError] = []
    verified: list[str] = []

    async def ask_agent(connector: "Connector") -> list[str]:
        """Return the remaining faults, in words."""
        async with connector.open_agent() as agent:
            answer = await agent.fault_heal_all()
            healed.extend({**row, "host": connector.host.name} for row in answer["healed"])
            left: list[str] = answer["left"]
            if verify and not left:
                again = await agent.fault_heal_all()
                left = [f"{row['fault_id']} came back" for row in again["healed"]]
                left += again["left"]
            return left

    async def heal_on(connector: "Connector") -> None:
        name = connector.host.name
        try:
            record = await connector.read_deployment()
            if record is None:
                return
            try:
                left = await ask_agent(connector)
            except Unreachable:  # the host has just answered, so it is the agent
                await connector.start_agent(record["deployment_id"])
                started.append(name)
                left = await ask_agent(connector)
        except Unreachable as error:
            left = [f"{error}; faults there end with their lease"]
        except (HostError, ControlError) as error:
            left = [str(error)]
        failed.extend(LabDirty(_of_host(name, reason)) for reason in left)
        if not left:
            verified.append(name)

    trio.run(reached, lab, lambda: lab.on_all(heal_on))
    lines = [f"started an agent on {host}: the last one is gone" for host in sorted(started)]
    lines += [f"healed {row['fault_id']} on {row['host']}" for row in healed]
    if not healed:
        lines.append("nothing to heal")
    if verify:
        looked = ", ".join(sorted(verified)) or "no host: nothing is deployed"
        lines.append(f"verified: no fault is left on {looked}" if verified else looked)
    return Result(
        document={
            "schema": "pubsubctl/heal/1",
            "agents_started": sorted(started),
            "healed": healed,
            "verified": sorted(verified) if verify else [],
        },
        text="\n".join(lines),
        because=tuple(failed),
    )


def _of_host(name: str, reason: str) -> str:
    return f"host {name}: {reason.removeprefix('host ').removeprefix(f'{name}: ')}"


def _would_heal(state: "LabState") -> Result:
    lost = {host: why for host, why in state.unreachable.items() if host not in state.agentless}
    lines = [f"would start an agent on {host}: the last one is gone" for host in state.agentless]
    lines += [f"would heal {row['fault_id']} on {row['host']}" for row in state.faults]
    return Result(
        document={
            "schema": "pubsubctl/heal/1",
            "agents_started": state.agentless,
            "healed": state.faults,
            "verified": [],
        },
        text="\n".join(lines or ["nothing to heal"]),
        because=tuple(
            LabDirty(_of_host(host, f"{why}; faults there end with their lease"))
            for host, why in lost.items()
        ),
    )
