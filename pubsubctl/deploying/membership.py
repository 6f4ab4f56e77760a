"""Brokers that join, leave or change roles while a deployment runs."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import trio

from bench.spec.toml_text import toml_text
from brokerd.errors import ConfigError
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import CoreStatus
from brokerd.protocols.registry import check_runs_on, definition_of
from brokerd.runtime.growth import topology_change
from pubsubctl.console.console import Progress
from pubsubctl.deploying.deploy import write_record
from pubsubctl.deploying.deployment import Deployment
from pubsubctl.deploying.plan import deploy_plan
from pubsubctl.errors import HostError, UserError
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.readiness import wait_ready
from pubsubctl.project import authority_folder

RESTORE_TIMEOUT_S = 10.0
_POLL_S = 0.05


class WriteRecord(Protocol):
    """A writer of the future deployment to the records of hosts, with optional further keys."""

    def __call__(self, **more: Any) -> Awaitable[None]: ...


async def change_members(
    deployment: Deployment, progress: Progress, record: WriteRecord, timeout_s: float
) -> None:
    """Stop drained leaves, and announce all joining and leaving brokers to the others.

    In the meantime the records also contain the topology `before`, so that the next deploy resumes
    an interrupted change. If the first broker refuses, nothing has changed, and the records are
    restored.

    Raises:
        HostError: a leaving broker still has clients or publications; nothing has changed then.
        HostError, ControlError: a broker refuses.
    """
    plan, lab = deployment.plan, deployment.lab
    leaving = {step.subject: step.host for step in plan.of("stop-broker")}
    progress.phase("changing the topology")
    for name in leaving:
        await _wait_until_drained(deployment, name, leaving[name], timeout_s)
    connectors = [lab.connector(step.host) for step in plan.of("change-record")]
    records = await _records(deployment, connectors)
    before = next(iter(records.values()))
    has_changed = False
    try:
        await record(before=before.get("before", before["topology"]))
        for name, host in leaving.items():
            await deployment.agents[host].stop(name)
            has_changed = True
        signature = _signature(deployment)
        for step in plan.of("change-topology"):
            await deployment.broker(step.subject, "reload_topology", signature=signature)
            has_changed = True
    except BaseException:
        if not has_changed:
            with trio.CancelScope(shield=True), trio.move_on_after(RESTORE_TIMEOUT_S):
                await _restore(deployment, connectors, records)
        raise


def _signature(deployment: Deployment) -> str:
    """Return the authority's signature of the topology that brokers are to read again."""
    from pubsubctl.deploying.operator_key import OperatorKey  # slow to import

    act = topology_change(deployment.identity, deployment.wanted.topology)
    return OperatorKey.of(authority_folder(deployment.lab.inventory.name)).sign(act).hex()


async def _records(
    deployment: Deployment, connectors: list[Connector]
) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}

    async def read(connector: Connector) -> None:
        record = await connector.read_deployment()
        assert record is not None, connector.host.name
        found[connector.host.name] = record

    await deployment.lab.on_all(read, connectors)
    return {connector.host.name: found[connector.host.name] for connector in connectors}


async def _restore(
    deployment: Deployment, connectors: list[Connector], records: Mapping[str, Mapping[str, Any]]
) -> None:
    async def write(connector: Connector) -> None:
        record = records[connector.host.name]
        topology = Topology.from_mapping(record["topology"], "deployment.json")
        await connector.write_deployment(record, toml_text(topology.to_mapping()))

    await deployment.lab.on_all(write, connectors)


async def _wait_until_drained(
    deployment: Deployment, name: str, host: str, timeout_s: float
) -> None:
    agent = deployment.agents[host]
    reasons: list[str] = []
    with trio.move_on_after(timeout_s):
        while True:
            status = await agent.broker(name, "status", {})
            reasons = [f"{status['clients']} clients"] if status["clients"] else []
            reasons += CoreStatus.from_mapping(status).idle_reasons
            if not reasons:
                return
            await trio.sleep(_POLL_S)
    raise HostError(f"host {host}: {name} cannot leave: {', '.join(reasons) or 'no answer'}")


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
