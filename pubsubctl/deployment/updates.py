"""Updates of a running deployment, broker by broker: program and roles.

To replace the program, first each host gets an agent of the new program, which adopts the processes
of the old agent; then brokers are stopped and restarted with the new program, never more at once
than the protocol tolerates, and the next only after every session is ready again. If the programs
have different wire versions, all brokers are replaced together, which requires an option.

Roles of brokers in the overlay change one by one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import trio

from brokerd.errors import ConfigError
from brokerd.overlay.routes import FailedElements
from brokerd.overlay.topology import Topology
from brokerd.protocols.registry import RunningProtocol, check_runs_on, definition_of, protocol_on
from pubsubctl.console.console import Progress
from pubsubctl.deployment.deployment import Deployment, check_wire_versions, find_placement
from pubsubctl.deployment.membership import change_members
from pubsubctl.deployment.plan import deploy_plan
from pubsubctl.deployment.records import record_program, write_record
from pubsubctl.deployment.start import broker_config
from pubsubctl.errors import UserError
from pubsubctl.hosts.readiness import wait_ready

STOP_TIMEOUT_MS = 20_000


@dataclass
class RollOutcome:
    """The replaced agents and brokers.

    Attributes:
        agents: hosts with a new agent.
        brokers: in order of replacement.
    """

    agents: list[str] = field(default_factory=list)
    brokers: list[str] = field(default_factory=list)


async def roll(
    deployment: Deployment,
    hosts: Sequence[str],
    progress: Progress,
    *,
    max_unavailable: int = 1,
    timeout_s: float = 60.0,
    at_once: bool = False,
    replaces_agents: bool = True,
) -> RollOutcome:
    """Replace agents and brokers of `hosts` with the present program.

    Args:
        at_once: stop all of these brokers, then start them. Between two wire versions there is no
            other way: brokers replaced earlier could have no sessions with the others.
        replaces_agents: False if agents are replaced already, or only brokers are to be replaced.

    After an interruption, replaced processes stay, and the next call begins with the remaining
    hosts, which still have the old program in their record.

    Raises:
        UserError: `max_unavailable` is less than one.
        PreflightFailed: brokers have another wire version, and `at_once` is False.
        HostError: a replaced broker was not ready in time; nothing further was touched.
    """
    known = protocol_on(deployment.wanted.topology, deployment.wanted.protocol)
    if max_unavailable < 1:
        raise UserError(f"--max-unavailable = {max_unavailable}; 1 or more")
    rolled = RollOutcome()
    check_wire_versions(await deployment.broker_programs(), at_once=at_once)
    progress.phase("replacing agents")
    for host in hosts:
        if replaces_agents:
            await deployment.replace_agent(host)
        rolled.agents.append(host)
        progress.update({"agents": f"{len(rolled.agents)}/{len(hosts)}"})
    brokers = [row.broker for row in deployment.brokers if row.host in hosts]
    progress.phase("replacing brokers")
    if not at_once:
        # A broker that is down already could exceed the tolerance.
        await wait_ready(deployment, progress, timeout_s)
    for batch in [brokers] if at_once else batches(known, brokers, max_unavailable):
        progress.print(f"replacing {', '.join(batch)}")
        for act in (_stop, _start):
            async with trio.open_nursery() as nursery:
                for name in batch:
                    nursery.start_soon(act, deployment, name)
        await wait_ready(deployment, progress, timeout_s)
        rolled.brokers += batch
        progress.update({"brokers": f"{len(rolled.brokers)}/{len(brokers)}"})
    await record_program(deployment, hosts)
    return rolled


def batches(known: RunningProtocol, brokers: Sequence[str], most: int) -> Iterator[list[str]]:
    """Yield batches of brokers to replace together: at most `most`, and none too many to lose."""
    left = list(brokers)
    while left:
        batch: list[str] = []
        for name in left:
            away = sorted(map(known.topology.number_of, (*batch, name)))
            if len(batch) < most and known.tolerates(FailedElements(tuple(away))):
                batch.append(name)
        batch = batch or left[:1]  # no broker may be missing
        left = [name for name in left if name not in batch]
        yield batch


async def _stop(deployment: Deployment, name: str) -> None:
    placed = find_placement(deployment.wanted.placement, name)
    await deployment.agents[placed.host].stop(name, timeout_ms=STOP_TIMEOUT_MS)


async def _start(deployment: Deployment, name: str) -> None:
    placed = find_placement(deployment.wanted.placement, name)
    config = await broker_config(deployment, placed)
    await deployment.agents[placed.host].start(name, "broker", config, config["control_socket"])


READY_TIMEOUT_S = 60.0

Role = tuple[str, str]
"""A broker's name and new role, in the notation of a topology file."""


def read_roles(texts: Sequence[str], topology: Topology, protocol: str) -> tuple[Role, ...]:
    """Return the role changes of `BROKER=ROLE` options, in order.

    Raises:
        UserError: malformed, or impossible with this topology and protocol; with the reason.
    """
    roles = [text.partition("=") for text in texts]
    if roles and not definition_of(protocol).promises.roles_may_change:
        raise UserError(f"--role {texts[0]}: with {protocol} no broker changes its role")
    for broker, _, role in roles:
        if not role:
            raise UserError(f"--role {broker}: not BROKER=LEVEL or BROKER=retired")
        try:
            topology = topology.with_role(broker, role, f"--role {broker}={role}")
            check_runs_on(topology, protocol, f"--role {broker}={role}")
        except ConfigError as error:
            raise UserError(str(error)) from None
    return tuple((broker, role) for broker, _, role in roles)


async def change_roles(
    deployment: Deployment,
    roles: Sequence[Role],
    progress: Progress,
    purpose: str,
    *,
    pause_s: float,
) -> None:
    """Announce the changes to all brokers, one after the other, as `deploy` does.

    Args:
        pause_s: the pause before each change, in seconds.

    Raises:
        HostError, ControlError: a broker refuses, or is not ready in time.
    """
    for broker, role in roles:
        await trio.sleep(pause_s)
        topology = deployment.wanted.topology.with_role(broker, role, broker)
        deployment.wanted = replace(deployment.wanted, topology=topology)
        deployment.plan = deploy_plan(deployment.wanted, await deployment.lab.observe())
        record = partial(write_record, deployment, purpose, "change-record")
        await change_members(deployment, progress, record, READY_TIMEOUT_S)
        await record()
        await wait_ready(deployment, progress, READY_TIMEOUT_S)
        progress.print(f"all brokers confirm that {broker} is {role} now")
