"""`heal`: end every fault of any origin; safe at any time, and repeatable."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer

from brokerd.errors import ControlError
from pubsubctl.commands.options.runs import Verify
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import invocation
from pubsubctl.errors import HostError, LabDirty, PubsubctlError, Unreachable

if TYPE_CHECKING:
    from pubsubctl.hosts.connectors.base import Connector
    from pubsubctl.state import LabState


def heal(context: typer.Context, verify: Verify = False) -> Result:
    """End every fault in effect, of any origin.

    Starts a new agent if the agent of a host does not answer. The journal has the faults of the
    old agent. Killed brokers stay down until `deploy` starts them again.
    """
    import trio

    from pubsubctl.hosts.hosts import Lab, run_reaching
    from pubsubctl.state import lab_state

    call = invocation(context)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    if call.dry_run:
        return _plan(trio.run(run_reaching, lab, lambda: lab_state(lab)))
    healing = _Healing(verify)
    trio.run(run_reaching, lab, lambda: lab.on_all(healing.heal_host))
    return healing.result()


@dataclass
class _Healing:
    """The ends of faults on all hosts.

    Attributes:
        verify: look again after each heal.
        started: hosts with a new agent.
        healed: faults, with their hosts.
        failed: errors of hosts.
        clean: hosts without a remaining fault.
    """

    verify: bool
    started: list[str] = field(default_factory=list)
    healed: list[dict[str, Any]] = field(default_factory=list)
    failed: list[PubsubctlError] = field(default_factory=list)
    clean: list[str] = field(default_factory=list)

    async def heal_host(self, connector: "Connector") -> None:
        """End all faults on a host; start an agent if none answers."""
        name = connector.host.name
        remaining: Sequence[str]
        try:
            record = await connector.read_deployment()
            if record is None:
                return
            try:
                remaining = await self._heal_with(connector)
            except Unreachable:  # the host has just answered, so it is the agent
                await connector.start_agent(record["deployment_id"])
                self.started.append(name)
                remaining = await self._heal_with(connector)
        except Unreachable as error:
            remaining = [f"{error}; faults there end with their lease"]
        except (HostError, ControlError) as error:
            remaining = [str(error)]
        self.failed += [LabDirty(_heal_host(name, reason)) for reason in remaining]
        if not remaining:
            self.clean.append(name)

    async def _heal_with(self, connector: "Connector") -> list[str]:
        """Return the remaining faults, in words."""
        async with connector.open_agent() as agent:
            answer = await agent.fault_heal_all()
            self.healed += [{**row, "host": connector.host.name} for row in answer["healed"]]
            remaining: list[str] = answer["left"]
            if self.verify and not remaining:
                again = await agent.fault_heal_all()
                remaining = [f"{row['fault_id']} returned" for row in again["healed"]]
                remaining += again["left"]
            return remaining

    def result(self) -> Result:
        """Return the result of the command."""
        started, clean = sorted(self.started), sorted(self.clean)
        lines = [f"started an agent on {host}: no agent answered" for host in started]
        lines += [f"healed {row['fault_id']} on {row['host']}" for row in self.healed]
        if not self.healed:
            lines.append("nothing to heal")
        if self.verify and clean:
            lines.append(f"verified: no fault is left on {', '.join(clean)}")
        elif self.verify:
            lines.append("no host: nothing is deployed")
        return Result(
            document={
                "schema": "pubsubctl/heal/1",
                "agents_started": started,
                "healed": self.healed,
                "verified": clean if self.verify else [],
            },
            text="\n".join(lines),
            because=tuple(self.failed),
        )


def _heal_host(name: str, reason: str) -> str:
    return f"host {name}: {reason.removeprefix('host ').removeprefix(f'{name}: ')}"


def _plan(state: "LabState") -> Result:
    lost = {host: why for host, why in state.unreachable.items() if host not in state.agentless}
    lines = [f"would start an agent on {host}: no agent answered" for host in state.agentless]
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
            LabDirty(_heal_host(host, f"{why}; faults there end with their lease"))
            for host, why in lost.items()
        ),
    )
