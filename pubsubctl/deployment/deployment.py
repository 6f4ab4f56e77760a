"""Running deployments: brokers, agents and programs of one, and those of other inventories.

A command holds the deployment for its duration. The programs of agents and brokers are compared
with the present program.
"""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import trio

from brokerd.agent.client import AgentClient
from brokerd.errors import ControlError
from brokerd.runtime.program import UNVERSIONED_WIRE_VERSION, Program, read_own_program
from brokerd.text import nearest
from pubsubctl.deployment.placement import PlacedBroker, Placement
from pubsubctl.deployment.plan import DesiredState, Plan
from pubsubctl.errors import HostError, PreflightFailed, UserError
from pubsubctl.hosts.agents import AgentLine, HeldContext
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.files import shown
from pubsubctl.hosts.hosts import Lab
from pubsubctl.inventory.inventory import Inventory
from pubsubctl.project import xdg_folder

UPGRADE = "`pubsubctl deploy TOPOLOGY --rolling` replaces agents and brokers"
UPGRADE_AT_ONCE = (
    "`pubsubctl deploy TOPOLOGY --rolling --at-once` stops all of them together and starts them "
    "again, with what is durable"
)
EARLIER = "an earlier release, which reports no version"


class Age(StrEnum):
    """The age of a program relative to the present program."""

    SAME = "same"
    OTHER = "other"
    """The program takes the same commands."""
    EARLIER = "earlier"
    LATER = "later"


def age_of(program: Program | None) -> Age:
    """Return the age of a program; None stands for a release without program reports."""
    own = read_own_program()
    if program is None or program.commands_version < own.commands_version:
        return Age.EARLIER
    if program.commands_version > own.commands_version:
        return Age.LATER
    return Age.SAME if program == own else Age.OTHER


def describe(program: Program | None) -> str:
    """Return a program for people."""
    return EARLIER if program is None else str(program)


def wire_version_of(program: Program | None) -> int:
    """Return a broker's wire version."""
    return UNVERSIONED_WIRE_VERSION if program is None else program.wire_version


def agent_note(host: str, program: Program | None) -> str:
    """Return a line for people about an agent of another program; "" for the present program."""
    age = age_of(program)
    if age is Age.SAME:
        return ""
    text = f"host {host}: its agent runs {describe(program)}, this is {read_own_program()}; "
    if age is Age.LATER:
        return f"{text}{_defer(program)}"
    return f"{text}{UPGRADE}"


def broker_note(broker: str, host: str, program: Program | None) -> str:
    """Return a line for people about a broker of another program; "" for the present program."""
    own = read_own_program()
    if program == own:
        return ""
    text = f"broker {broker} on {host} runs {describe(program)}, this is {own}; "
    if program is not None and age_of(program) is Age.LATER:
        return f"{text}{_defer(program)}"
    return f"{text}{UPGRADE if wire_version_of(program) == own.wire_version else UPGRADE_AT_ONCE}"


def check_agents(programs: Mapping[str, Program | None], *, is_upgrade: bool = False) -> None:
    """Check that these agents, by host, take the commands of this program.

    Args:
        is_upgrade: agents of earlier programs are replaced before use.

    Raises:
        PreflightFailed: an agent does not; names each such agent with a remedy.
    """
    refused = [Age.LATER] if is_upgrade else [Age.EARLIER, Age.LATER]
    notes = [agent_note(host, each) for host, each in programs.items() if age_of(each) in refused]
    if notes:
        raise PreflightFailed(*notes)


def check_wire_versions(programs: Mapping[str, Program | None], *, at_once: bool) -> None:
    """Check that brokers, by name, may be replaced one after the other by this program.

    Raises:
        PreflightFailed: old brokers could have no sessions with brokers replaced earlier.
    """
    own = read_own_program().wire_version
    found: dict[int, list[str]] = {}
    for broker, program in programs.items():
        if (version := wire_version_of(program)) != own:
            found.setdefault(version, []).append(broker)
    if found and not at_once:
        rows = [f"wire version {each}: {', '.join(found[each])}" for each in sorted(found)]
        raise PreflightFailed(
            f"this program has wire version {own}, and brokers of two wire versions cannot have "
            "sessions with each other:",
            *rows,
            UPGRADE_AT_ONCE,
        )


def _defer(program: Program | None) -> str:
    release = "" if program is None else f" {program.release}"
    return f"use pubsubctl{release} there, or `pubsubctl down` to stop what runs"


DISCONNECT_TIMEOUT_S = 5.0
HOLD_TIMEOUT_S = 5.0
REPLACEMENT_TIMEOUT_S = 90.0
REPLACEMENT_LEASE_MS = 120_000
"""The extended lease for the time in which a host has no agent that could renew a lease."""


@dataclass
class Deployment:
    """Running brokers and their agents.

    Attributes:
        identity: the deployment id, the same on all hosts and in every Hello.
        plan: the executed plan; without steps if the deployment ran already.
        lease_ms: the lease that `keep` renews; 0 for none.
        programs: host → the program of its agent; None for a release without program reports.
        outdated: hosts that ran another program than the present program.
    """

    identity: str
    wanted: DesiredState
    lab: Lab
    plan: Plan
    agents: dict[str, AgentClient] = field(default_factory=dict)
    lease_ms: int = 0
    programs: dict[str, Program | None] = field(default_factory=dict)
    outdated: list[str] = field(default_factory=list)
    _held_at_s: float = field(default=-math.inf, init=False)
    _lines: dict[str, AgentLine] = field(default_factory=dict, init=False)

    @property
    def brokers(self) -> tuple[PlacedBroker, ...]:
        """Return the brokers that should run: all placed brokers except decommissioned brokers."""
        decommissioned = self.plan.decommissioned
        return tuple(
            row for row in self.wanted.placement.brokers if row.broker not in decommissioned
        )

    async def connect(self) -> None:
        """Reach the agents of all hosts that are used."""
        hosts = self.wanted.placement.hosts

        async def reach(connector: Connector) -> None:
            host = connector.host.name
            self._lines[host] = line = await AgentLine.to(lambda: self.lab.hold_agent(host))
            self.programs[host] = await line.client.hello()

        rows = [self.lab.connector(host) for host in hosts]
        await self.lab.on_all(reach, rows, only_together=True)
        self.agents.update((host, self._lines[host].client) for host in hosts)

    async def set_metrics(self) -> None:
        """Enable or disable metrics export of each host's agent, as the inventory requires.

        Raises:
            ControlError: `busy`: another process has the port.
        """
        for name, agent in self.agents.items():
            await agent.metrics(self.lab.connector(name).host.metrics_port)

    async def replace_agent(self, host: str) -> None:
        """Replace the agent of a host; the new agent adopts all processes, unnoticed by users."""
        line, connector = self._lines[host], self.lab.connector(host)
        if self.lease_ms:
            await self.agents[host].hold(self.lease_ms + REPLACEMENT_LEASE_MS)
        await line.begin_replacement()
        connection: HeldContext[AgentClient] | None = None
        try:
            # Without an agent, leases would expire, and no process could be stopped.
            with trio.CancelScope(shield=True), trio.fail_after(REPLACEMENT_TIMEOUT_S):
                await connector.stop_agent()
                await connector.start_agent(self.identity)
                connection = await self.lab.hold_agent(host)
        except trio.TooSlowError:
            raise HostError(
                f"host {host}: no new agent within {REPLACEMENT_TIMEOUT_S:g} s; its brokers "
                "still run; `pubsubctl deploy` starts one"
            ) from None
        finally:
            line.end_replacement(connection)
        self.programs[host] = await self.agents[host].hello()

    async def broker_programs(self) -> dict[str, Program | None]:
        """Return the programs of all brokers that answer; None of a release that reports none."""
        found: dict[str, Program | None] = {}
        for row in self.brokers:
            try:
                status = await self.broker(row.broker, "status")
            except ControlError as error:
                if error.kind == "closed":
                    raise
                continue
            found[row.broker] = Program.from_mapping(status.get("program"))
        return found

    async def disconnect(self) -> None:
        """Leave all agents."""
        with trio.CancelScope(shield=True), trio.move_on_after(DISCONNECT_TIMEOUT_S):
            for line in self._lines.values():
                await line.leave()

    async def broker(self, name: str, command: str, **arguments: Any) -> dict[str, Any]:
        """Return a broker's answer to a control command."""
        placed = find_placement(self.wanted.placement, name)
        return await self.agents[placed.host].broker(name, command, arguments)

    async def hold(self, lease_ms: int) -> None:
        """Renew the lease on every host; 0 for none.

        Raises:
            ExceptionGroup: of ControlErrors and TooSlowErrors, after all hosts were tried.
        """
        failures: list[Exception] = []

        async def hold_on(agent: AgentClient) -> None:
            try:
                with trio.fail_after(max(HOLD_TIMEOUT_S, lease_ms / 4000)):
                    await agent.hold(lease_ms)
            except (ControlError, trio.TooSlowError) as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for host, agent in list(self.agents.items()):
                if not self._lines[host].is_replaced:  # its lease was extended before
                    nursery.start_soon(hold_on, agent)
        if failures:
            raise ExceptionGroup("leases", failures)

    async def keep(self) -> None:
        """Renew the lease after a third of its time; called repeatedly while brokers start."""
        if self.lease_ms and trio.current_time() - self._held_at_s > self.lease_ms / 3000:
            self._held_at_s = trio.current_time()
            try:
                await self.hold(self.lease_ms)
            except* (ControlError, trio.TooSlowError):
                pass  # tried again before the lease is over


def find_placement(placement: Placement, name: str) -> PlacedBroker:
    """Return the placement of a broker.

    Raises:
        UserError: no broker has this name; names the nearest.
    """
    for row in placement.brokers:
        if row.broker == name:
            return row
    known = [row.broker for row in placement.brokers]
    raise UserError(f"no broker called {shown(name)}{nearest(name, known)}")


@dataclass(frozen=True, slots=True)
class OtherDeployment:
    """A deployment of another inventory.

    Attributes:
        inventory: the inventory's name.
        inventory_file: the inventory's path; "" in a record of an earlier release.
    """

    identity: str
    topology: str
    inventory: str
    inventory_file: str = ""

    @classmethod
    def from_mapping(cls, row: Mapping[str, Any]) -> "OtherDeployment":
        """Return the deployment of a record, or of a row of `ports_in_use`."""
        topology = row.get("topology")
        name = topology.get("name") if isinstance(topology, Mapping) else topology
        return cls(
            identity=str(row.get("deployment_id")),
            topology=str(name),
            inventory=str(row.get("inventory")),
            inventory_file=str(row.get("inventory_file") or ""),
        )

    def __str__(self) -> str:
        return f"deployment {self.identity} of {self.topology}, inventory {shown(self.inventory)}"

    def command(self, verb: str) -> str:
        """Return the command line of a verb on this deployment."""
        path = Path(self.inventory_file or self.inventory)
        if path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        return f"`pubsubctl -i {shlex.quote(str(path))} {verb}`"


def find_other_deployments(inventory: str) -> list[OtherDeployment]:
    """Return the deployments that other inventories recorded below our state folder."""
    found: dict[str, OtherDeployment] = {}
    for path in sorted(xdg_folder("state").glob("*/*/deployment.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            other = OtherDeployment.from_mapping(record)
        except (OSError, ValueError, AttributeError, RecursionError):
            continue  # `down` of its own inventory reports the record
        if other.inventory != inventory:
            found.setdefault(other.identity, other)
    return [*found.values()]


def describe_nothing(inventory: Inventory, verb: str = "status", *, is_sure: bool = True) -> str:
    """Return a sentence that nothing is deployed, with the deployments of other inventories."""
    text = f"nothing is deployed by inventory {inventory.name}"
    text += "" if is_sure else " as far as can be seen"
    others = [f"{each}: {each.command(verb)}" for each in find_other_deployments(inventory.name)]
    return "; ".join([text, *others])


def nothing_deployed(inventory: Inventory, verb: str = "status") -> PreflightFailed:
    """Return the error of a command that needs a deployment.

    Args:
        verb: the command line of the verb, for deployments of other inventories.
    """
    text = describe_nothing(inventory, verb)
    if "; " not in text:
        text += "; `pubsubctl deploy` first, or name another --inventory"
    return PreflightFailed(text)


def describe_ports(
    host: str, needed: Mapping[int, str], holders: Mapping[int, OtherDeployment]
) -> list[str]:
    """Return a line for each deployment that holds ports of a host, with the command to end it.

    Args:
        needed: port → the broker that needs it.
        holders: port → the deployment that holds it.
    """
    by_deployment: dict[OtherDeployment, list[int]] = {}
    for port in sorted(holders):
        by_deployment.setdefault(holders[port], []).append(port)
    return [
        f"host {host}: {_ports_in_words(ports)} in use by {other}; "
        f"{', '.join(needed[port] for port in ports)} need{'s' * (len(ports) == 1)} "
        f"{'it' if len(ports) == 1 else 'them'}; {other.command('down')} ends it"
        for other, ports in by_deployment.items()
    ]


def _ports_in_words(ports: Sequence[int]) -> str:
    if len(ports) == 1:
        return f"port {ports[0]} is"
    if ports[-1] - ports[0] == len(ports) - 1:
        return f"ports {ports[0]} to {ports[-1]} are"
    return f"ports {', '.join(map(str, ports))} are"
