"""Execution of plans: agents and brokers are started, awaited, and removed without a trace.

After a failed start, everything that was started is stopped again before the error is raised. Of
two deploys in a row, the second has no steps.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from secrets import token_hex

import trio

from brokerd.errors import ControlError
from brokerd.overlay.topology import Topology
from brokerd.protocols.registry import DEFINITIONS, parameters_on
from brokerd.text import nearest
from pubsubctl.console.console import Progress
from pubsubctl.console.interruption import Interruption
from pubsubctl.deployment.certificates import check_authority, check_transport
from pubsubctl.deployment.deployment import (
    Deployment,
    OtherDeployment,
    check_agents,
    check_wire_versions,
    describe_ports,
)
from pubsubctl.deployment.membership import change_members
from pubsubctl.deployment.placement import Placement, check_pinning
from pubsubctl.deployment.placement_choice import PlacementChoice, choose_placement
from pubsubctl.deployment.plan import (
    DesiredState,
    ObservedState,
    Plan,
    deploy_plan,
    down_plan,
    is_not_started,
    list_decommissioned,
)
from pubsubctl.deployment.records import find_outdated_hosts, write_record
from pubsubctl.deployment.start import start_agents, start_brokers
from pubsubctl.errors import (
    HostError,
    LabDirty,
    PreflightFailed,
    PubsubctlError,
    Unreachable,
    UserError,
)
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.files import shown
from pubsubctl.hosts.hosts import Lab, check_room
from pubsubctl.hosts.readiness import wait_ready

READY_TIMEOUT_S = 60.0
READY_TIMEOUT_PER_BROKER_S = 0.5
SHUTDOWN_TIMEOUT_MS = 10_000
CLEANUP_TIMEOUT_S = 30.0
LEASE_MS = 15_000


async def choose_deployment(
    lab: Lab, topology: Topology, protocol: str, placing: PlacementChoice | None = None
) -> DesiredState:
    """Return the wanted state of a lab, with every broker placed; running brokers keep their place.

    Raises:
        UserError: an unknown protocol, or more brokers than ports.
        PreflightFailed: fewer cores than brokers that need a dedicated core.
    """
    if protocol not in DEFINITIONS:
        raise UserError(f"no protocol called {shown(protocol)}{nearest(protocol, [*DEFINITIONS])}")
    parameters = asdict(parameters_on(topology, protocol))
    placement = await choose_placement(lab, topology, protocol, placing or PlacementChoice())
    addresses = {row.broker: row.address for row in placement.brokers}
    # Brokers that run already learn from the topology file where the newcomers listen.
    joined = tuple(
        replace(row, address=addresses.get(row.name, row.address)) for row in topology.joined
    )
    topology = replace(topology, joined=joined)
    return DesiredState(topology, protocol, topology.digest(protocol, parameters), placement)


async def plan_deployment(lab: Lab, wanted: DesiredState) -> Plan:
    """Return the plan of `deploy` after an inspection of every host.

    Raises:
        PreflightFailed: another deployment, a stale process or a port in use, with its pid.
    """
    used = [lab.connector(host) for host in wanted.placement.hosts]
    found = await lab.observe()
    plan = deploy_plan(wanted, found)
    taken: list[str] = []
    by_others: list[str] = []
    starting = {step.subject for step in plan.of("start-broker")}
    for connector in used:
        rows = [row for row in wanted.placement.on(connector.host.name) if row.broker in starting]
        by_port = {row.port: row.broker for row in rows}
        ours = {
            stray.pid for row in found if row.host == connector.host.name for stray in row.strays
        }
        occupied = [
            in_use
            for in_use in await connector.ports_in_use(list(by_port))
            if in_use.pid not in ours  # the new agent takes that broker over
        ]
        holders = {
            in_use.port: OtherDeployment.from_mapping(in_use.deployment)
            for in_use in occupied
            if in_use.deployment is not None
        }
        by_others += describe_ports(connector.host.name, by_port, holders)
        taken += [
            f"host {connector.host.name}: {in_use}; broker {by_port[in_use.port]} needs it"
            for in_use in occupied
            if in_use.port not in holders
        ]
    if taken:
        taken.append("stop these processes, or give the host other ports in the inventory")
    if taken or by_others:
        raise PreflightFailed(*by_others, *taken)
    return plan


@asynccontextmanager
async def run_deployment(
    lab: Lab,
    wanted: DesiredState,
    progress: Progress,
    interruption: Interruption,
    *,
    purpose: str,
    timeout_s: float = READY_TIMEOUT_S,
    lease_ms: int = 0,
    may_change: bool = False,
    upgrades: bool = False,
    at_once: bool = False,
) -> AsyncIterator[Deployment]:
    """Make `wanted` run, and yield access; the deployment keeps running after the block.

    Requires `lab.opened` and `lab.locked`. After any failure before the block, Ctrl-C included,
    everything that was started is stopped again.

    Args:
        lease_ms: agents stop the deployment this long after the last renewal; 0 lets the
            deployment run until `down`.
        may_change: True if brokers may join, leave or change role in a running deployment, and
            if decommissioned brokers may be missing.
        upgrades: agents of other programs are replaced first. After a replacement, brokers are
            not awaited: the caller replaces the brokers, and waits.
        at_once: with `upgrades`: the caller replaces all brokers together.

    Raises:
        PreflightFailed: as `planned`; also if an agent's program cannot be operated, if brokers
            have another wire version and are not replaced together, if a change would be
            needed, if a broker was decommissioned, if the certificates are of another
            authority, or if a disk is full.
        HostError: an agent or broker did not start; with the reason.
    """
    with interruption.stoppable():
        plan = await plan_deployment(lab, wanted)
        if not may_change:
            _check_unchanged(wanted, plan)
        _check_accepted(wanted, plan)
        found = await lab.observe()
        check_transport(found, lab.inventory)
        await check_authority(lab)
        await check_room(lab)
        deployment = Deployment(_find_identity(found), wanted, lab, plan)
    try:
        try:
            with interruption.stoppable():
                await start_agents(deployment, progress, purpose, lease_ms)
            # Outside of the stoppable block: a rollback needs the connections.
            await deployment.connect()
            with interruption.stoppable():
                deployment.lease_ms = lease_ms
                check_agents(deployment.programs, is_upgrade=upgrades)
                await deployment.keep()
                deployment.outdated = await find_outdated_hosts(deployment)
                is_replaced = upgrades and bool(deployment.outdated)
                if is_replaced:
                    await _replace_agents(deployment, progress, at_once=at_once)
                await deployment.set_metrics()
                record = partial(write_record, deployment, purpose, "change-record")
                if plan.of("change-record"):
                    await change_members(deployment, progress, record, timeout_s)
                if plan.of("start-broker"):
                    await start_brokers(deployment, progress)
                if not is_replaced:
                    await _wait_pinned_and_ready(deployment, progress, timeout_s)
                if plan.of("change-record"):
                    await record()
        except BaseException:
            if plan.steps:
                with trio.CancelScope(shield=True), trio.move_on_after(CLEANUP_TIMEOUT_S):
                    await _roll_back(deployment, progress)
            raise
        yield deployment
    finally:
        await deployment.disconnect()


def _check_unchanged(wanted: DesiredState, plan: Plan) -> None:
    """Check that a running deployment is the wanted one, with all brokers.

    Raises:
        PreflightFailed: brokers would join, leave or change role, or a broker was decommissioned.
    """
    if plan.of("change-record"):
        changes = [*plan.of("join"), *plan.of("stop-broker")]
        names = ", ".join(step.subject for step in changes) or "its topology"
        raise PreflightFailed(
            f"the running deployment of {wanted.topology.name} differs in {names}; "
            "`pubsubctl deploy` changes it"
        )
    if plan.decommissioned:
        raise PreflightFailed(
            *map(is_not_started, plan.decommissioned),
            "this needs all brokers; `pubsubctl down`, then repeat it",
        )


async def _replace_agents(deployment: Deployment, progress: Progress, *, at_once: bool) -> None:
    """Replace the agents of other programs; their brokers keep running."""
    check_wire_versions(await deployment.broker_programs(), at_once=at_once)
    progress.phase("replacing agents")
    for host in deployment.outdated:
        await deployment.replace_agent(host)


async def _wait_pinned_and_ready(
    deployment: Deployment, progress: Progress, timeout_s: float
) -> None:
    """Wait until all brokers have their sessions, and check their processors."""
    patience_s = timeout_s + len(deployment.brokers) * READY_TIMEOUT_PER_BROKER_S
    await wait_ready(deployment, progress, patience_s)
    running = replace(deployment.wanted.placement, brokers=deployment.brokers)
    await check_pinning(deployment.agents, running)


def _check_accepted(wanted: DesiredState, plan: Plan) -> None:
    """Check that brokers with an accepted loss are started now.

    Raises:
        UserError: a broker does not exist, or runs, so it has lost nothing.
    """
    starting = {step.subject for step in plan.of("start-broker")}
    names = [row.broker for row in wanted.placement.brokers]
    for name in wanted.accept_loss:
        if name not in names:
            raise UserError(f"--accept-loss {shown(name)}: no such broker{nearest(name, names)}")
        if name not in starting:
            raise UserError(
                f"--accept-loss {name}: {name} is running, and a loss is accepted at a start. If "
                f"`pubsubctl status` shows a loss of {name}, stop it first: "
                f"`pubsubctl inject term {name}`"
            )


@asynccontextmanager
async def attached(lab: Lab, wanted: DesiredState) -> AsyncIterator[Deployment]:
    """Yield access to the running deployment; nothing is started or awaited.

    Raises:
        Unreachable: an agent does not answer.
        PreflightFailed: this program cannot operate an agent's program.
    """
    found = await lab.observe()
    records = [row.deployment for row in found if row.deployment is not None]
    decommissioned = dict.fromkeys(
        name for record in records for name in list_decommissioned(record)
    )
    deployment = Deployment(_find_identity(found), wanted, lab, Plan((), (*decommissioned,)))
    try:
        await deployment.connect()
        check_agents(deployment.programs)
        yield deployment
    finally:
        await deployment.disconnect()


async def take_down(
    lab: Lab, progress: Progress, *, purge: bool = False, verify: bool = False
) -> Plan:
    """Stop and remove everything of ours on the lab's hosts; return the plan.

    Requires `lab.opened` and `lab.locked`.

    Raises:
        LabDirty: with `verify`: something is left; names the remains.
        HostError: processes of a host could not be stopped, or files not removed.
    """
    found, ports = await _observe_leniently(lab)
    plan = down_plan(found, purge=purge)
    progress.phase("taking down")
    progress.update({"hosts": f"0/{len(lab.connectors)}"})
    removed = 0

    async def take_host_down(connector: Connector) -> None:
        nonlocal removed
        try:
            async with connector.open_agent() as agent:
                await agent.shutdown(SHUTDOWN_TIMEOUT_MS)
        except Unreachable:
            pass  # the remaining processes are stopped next
        except ControlError as error:
            progress.print(
                f"host {connector.host.name}: {error}; its processes are stopped directly"
            )
        await connector.stop_strays()
        await connector.remove(purge=purge)
        removed += 1
        progress.update({"hosts": f"{removed}/{len(lab.connectors)}"})

    await lab.on_all(take_host_down)
    if verify:
        left: list[str] = []

        async def look(connector: Connector) -> None:
            left.extend(await connector.residue(ports[connector.host.name], purged=purge))

        await lab.on_all(look)
        if left:
            raise LabDirty(*sorted(left))
        progress.print("taken down; no process, port, socket or file of it is left")
    return plan


async def _roll_back(deployment: Deployment, progress: Progress) -> None:
    """Stop everything that this deploy started: whole hosts if new, else only the new brokers."""
    lab, plan = deployment.lab, deployment.plan
    fresh = {step.host for step in plan.of("record")}
    for step in plan.of("start-broker"):
        agent = deployment.agents.get(step.host)
        if step.host not in fresh and agent is not None:
            try:
                await agent.stop(step.subject)
            except ControlError:
                pass  # the broker was never started

    async def clear(connector: Connector) -> None:
        try:
            async with connector.open_agent() as agent:
                await agent.shutdown(SHUTDOWN_TIMEOUT_MS)
        except (Unreachable, ControlError):
            pass  # stopped directly, next
        await connector.stop_strays()
        await connector.remove(purge=False)

    try:
        await lab.on_all(clear, [lab.connector(host) for host in sorted(fresh)])
    except* PubsubctlError as group:  # the cause of the rollback is the error to report
        for error in group.exceptions:
            progress.print(f"{error}; repeat `pubsubctl down`")


async def _observe_leniently(lab: Lab) -> tuple[list[ObservedState], dict[str, list[int]]]:
    """Return the observed state, and host → ports of brokers.

    Unreadable records are tolerated, because `down` must be able to remove such a deployment.
    """
    found: dict[str, ObservedState] = {}
    ports: dict[str, list[int]] = {}

    async def look(connector: Connector) -> None:
        name = connector.host.name
        ports[name] = []
        try:
            found[name] = await connector.observe()
        except HostError:
            found[name] = ObservedState(name, files=True)
        content = found[name].deployment
        if content is not None:
            placement = Placement.from_mapping(content["placement"])
            ports[name] = [row.port for row in placement.on(name)]

    await lab.on_all(look)
    return [found[connector.host.name] for connector in lab.connectors], ports


def _find_identity(found: Sequence[ObservedState]) -> str:
    """Return the identity of the running deployment, or a new identity."""
    for row in found:
        if row.deployment is not None:
            return str(row.deployment["deployment_id"])
    return f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-{token_hex(3)}"
