"""Brokers that join and leave a deployment that runs.

Decommissions: the losses of continuing without a broker, and the act.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import trio

from brokerd.errors import ConfigError, ControlError
from brokerd.model.operator_acts import DECOMMISSION, OperatorAct
from brokerd.overlay.topology import Topology
from brokerd.protocols.extensions import Farewell
from brokerd.protocols.interface import CoreStatus
from brokerd.protocols.registry import definition_of
from brokerd.runtime.growth import topology_change
from brokerd.text import counted, nearest, toml_text
from pubsubctl.console.console import Progress
from pubsubctl.deployment.deployment import Deployment, nothing_deployed
from pubsubctl.deployment.newest_record import read_deployment
from pubsubctl.deployment.plan import list_decommissioned
from pubsubctl.errors import HostError, PreflightFailed, Unreachable, UserError
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.hosts import Lab
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
    from pubsubctl.deployment.authority import OperatorKey  # slow to import

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
            reasons = [counted(status["clients"], "client")] if status["clients"] else []
            reasons += CoreStatus.from_mapping(status).idle_reasons
            if not reasons:
                return
            await trio.sleep(_POLL_S)
    raise HostError(f"host {host}: {name} cannot leave: {', '.join(reasons) or 'no answer'}")


ON_DISK_TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class DecommissionCandidate:
    """A broker before its decommission, with the reports of the other brokers.

    Attributes:
        deployment_id: the deployment that the broker leaves.
        hosts: broker → host, of the other brokers.
        reports: broker → report.
    """

    deployment_id: str
    broker: str
    hosts: Mapping[str, str]
    reports: Mapping[str, Farewell]

    @property
    def is_over(self) -> bool:
        """Return True if all other brokers have decommissioned the broker already."""
        return all(each.is_known for each in self.reports.values())

    @property
    def refusals(self) -> tuple[str, ...]:
        """Return the reasons against the decommission, per reporting broker."""
        return tuple(
            f"{name}: {why}" for name, each in self.reports.items() for why in each.refusals
        )

    @property
    def losses(self) -> tuple[str, ...]:
        own = f"the subscriptions of clients of {self.broker} that have not moved to another broker"
        kept = (f"{name}: {loss}" for name, each in self.reports.items() for loss in each.losses)
        return (own, *kept)


async def collect_departure_reports(lab: Lab, broker: str) -> DecommissionCandidate:
    """Collect the reports of all other brokers before a decommission.

    Raises:
        UserError: no such broker, or the protocol does not support a decommission.
        PreflightFailed: nothing is deployed, the broker is up, or another broker does not answer.
    """
    record = await read_deployment(lab)
    if record is None:
        raise nothing_deployed(lab.inventory)
    _check(record, broker)
    decommissioned = {*list_decommissioned(record)} - {broker}
    hosts = {
        row["broker"]: row["host"]
        for row in record["placement"]["brokers"]
        if row["broker"] not in decommissioned
    }
    farewells: dict[str, Farewell] = {}
    silent: list[str] = []

    async def query(connector: Connector) -> None:
        names = [name for name, host in hosts.items() if host == connector.host.name]
        try:
            async with connector.open_agent() as agent:
                processes = (await agent.status())["processes"]
                if processes.get(broker, {}).get("state") == "running":
                    silent.append(f"{broker} runs on host {connector.host.name}: end it first")
                for name in [name for name in names if name != broker]:
                    try:
                        answer = await agent.broker(name, "farewell", {"broker": broker})
                    except ControlError as error:
                        silent.append(f"{name} does not answer: {error}")
                        continue
                    farewells[name] = Farewell(
                        answer["is_known"], tuple(answer["refusals"]), tuple(answer["losses"])
                    )
        except Unreachable as error:
            silent.extend(f"{name} does not answer: {error}" for name in names if name != broker)

    await lab.on_all(query)
    if silent:
        raise PreflightFailed(
            *silent, f"{broker} can be decommissioned only when it is down and all others are up"
        )
    del hosts[broker]
    return DecommissionCandidate(
        str(record["deployment_id"]), broker, hosts, {name: farewells[name] for name in hosts}
    )


async def decommission(lab: Lab, leaving: DecommissionCandidate) -> None:
    """Decommission a broker at all others; all have the act on disk when this returns.

    The act is also stored in the records of the deployment, so that `deploy` does not start the
    broker.

    Raises:
        HostError: some brokers could not be notified; notified brokers pass the act on.
        PreflightFailed: this account has not deployed, and has no key to sign the act.
    """
    from pubsubctl.deployment.authority import OperatorKey  # slow to import

    key = OperatorKey.find_in(authority_folder(lab.inventory.name))
    act = OperatorAct(leaving.deployment_id, DECOMMISSION, leaving.broker, 0)
    signature = key.sign(act).hex()
    failed: list[str] = []

    async def announce(connector: Connector) -> None:
        names = [name for name, host in leaving.hosts.items() if host == connector.host.name]
        for name in names:
            try:
                async with connector.open_agent() as agent:
                    arguments = {"broker": leaving.broker, "signature": signature}
                    await agent.broker(name, "decommission", arguments, ON_DISK_TIMEOUT_MS)
            except (ControlError, Unreachable) as error:
                failed.append(f"{name} was not notified: {error}; its neighbours notify it")

    if not leaving.is_over:
        await lab.on_all(announce)
    await lab.on_all(partial(_record, leaving.broker))
    if failed:
        raise HostError(*failed)


async def _record(broker: str, connector: Connector) -> None:
    """Write down on a host that a broker is not to be started any more."""
    record = await connector.read_deployment()
    if record is None or broker in list_decommissioned(record):
        return
    topology = Topology.from_mapping(record["topology"], "deployment.json")
    content = {**record, "decommissioned": [*list_decommissioned(record), broker]}
    await connector.write_deployment(content, toml_text(topology.to_mapping()))


def _check(record: Mapping[str, Any], broker: str) -> None:
    topology = Topology.from_mapping(record["topology"], "deployment.json")
    if broker not in topology.present():
        raise UserError(f"no broker called {broker[:64]!r}{nearest(broker, topology.present())}")
    definition = definition_of(record["protocol"])
    try:
        definition.check_decommissioned(topology, topology.number_of(broker), topology.name)
    except ConfigError as error:
        raise UserError(str(error)) from None
