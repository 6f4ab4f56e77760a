"""Brokers that join and leave a deployment that runs."""

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

import trio

from bench.spec.toml_text import toml_text
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import CoreStatus
from brokerd.runtime.growth import topology_change
from pubsubctl.console.console import Progress
from pubsubctl.deploying.deployment import Deployment
from pubsubctl.errors import HostError
from pubsubctl.hosts.connectors.base import Connector
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
