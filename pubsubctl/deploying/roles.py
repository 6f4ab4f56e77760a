"""Changes of brokers' roles in the overlay of a running deployment, one by one."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import trio

from brokerd.errors import ConfigError
from brokerd.overlay.topology import Topology
from brokerd.protocols.registry import check_runs_on, definition_of
from pubsubctl.console.console import Progress
from pubsubctl.deploying.deploy import write_record
from pubsubctl.deploying.deployment import Deployment
from pubsubctl.deploying.membership import change_members
from pubsubctl.deploying.plan import deploy_plan
from pubsubctl.errors import UserError
from pubsubctl.hosts.readiness import wait_ready

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
        progress.say(f"all brokers confirm that {broker} is {role} now")
