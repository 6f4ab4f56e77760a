"""The replacement of a broker that never returns: its copies continue it on another host.

The broker keeps its name, its number and its streams. It starts with an empty state folder and
restores its state from its replicas, as a broker does that lost its disk. It needs so many replicas
that no majority is left to a process of the former host. The replicas refuse such a process,
because its incarnation is older.

Paper: none; [GD02] §4 leaves replicated logging disks to others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from brokerd.errors import ControlError
from brokerd.overlay.topology import Topology
from brokerd.protocols.registry import definition_of, parameters_on
from brokerd.text import nearest, toml_text
from pubsubctl.deployment.deployment import find_placement, nothing_deployed
from pubsubctl.deployment.newest_record import read_records
from pubsubctl.deployment.placement import PlacedBroker, Placement
from pubsubctl.deployment.plan import (
    REPLACEMENTS,
    DesiredState,
    count_replacements,
    list_decommissioned,
)
from pubsubctl.errors import PreflightFailed, Unreachable, UserError
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.files import shown
from pubsubctl.hosts.hosts import Lab
from pubsubctl.inventory.inventory import Host

_OF_PLACES: Final = ("placement", REPLACEMENTS)


@dataclass(frozen=True)
class Replacement:
    """A broker that continues on another host.

    Attributes:
        record: the record of the deployment, with the new placement.
        placed: the new place of the broker.
        former: the host that had the broker.
    """

    record: Mapping[str, Any]
    placed: PlacedBroker
    former: str

    @property
    def wanted(self) -> DesiredState:
        """Return the wanted state of the deployment."""
        return DesiredState(
            Topology.from_mapping(self.record["topology"], "deployment.json"),
            self.record["protocol"],
            self.record["digest"],
            Placement.from_mapping(self.record["placement"]),
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return a mapping for --json."""
        return {
            "schema": "pubsubctl/replace/1",
            "broker": self.placed.broker,
            "host": self.placed.host,
            "address": self.placed.address,
        }


def choose_replacement(
    record: Mapping[str, Any], broker: str, on: str, hosts: Sequence[Host]
) -> Replacement:
    """Return the replacement of a broker on one of these hosts.

    A broker that is placed on that host already keeps its place: the replacement is repeated. Load
    generators continue on that host, too, if their host is lost.

    Raises:
        UserError: no such broker or host, the broker's state has no copies, or the host has no port
            left.
    """
    placement = Placement.from_mapping(record["placement"])
    before = find_placement(placement, broker)
    _check_copies(record, broker)
    names = [host.name for host in hosts]
    if on not in names:
        raise UserError(f"--on {shown(on)}: no such host{nearest(on, names)}")
    if placement.clients_host not in names:
        placement = replace(placement, clients_host=on)
        record = {**record, "placement": placement.to_mapping()}
    if before.host == on:
        return Replacement(record, before, before.host)
    host = hosts[names.index(on)]
    taken = {row.port for row in placement.on(on)}
    free = [port for port in host.broker_ports if port not in taken]
    if not free:
        raise UserError(f"host {on}: no port is left for {broker}")
    if not host.bench_address:
        raise UserError(f"host {on}: brokers listen on an IP; give it a bench_address")
    placed = PlacedBroker(broker, on, free[0], ip=host.bench_address)
    rows = tuple(placed if row.broker == broker else row for row in placement.brokers)
    content = {
        **record,
        "placement": replace(placement, brokers=rows).to_mapping(),
        REPLACEMENTS: count_replacements(record) + 1,
    }
    return Replacement(content, placed, before.host)


def _check_copies(record: Mapping[str, Any], broker: str) -> None:
    """Check that other brokers have the state of a broker.

    Raises:
        UserError: no broker has; names the reason.
    """
    if broker in list_decommissioned(record):
        raise UserError(f"{broker} was decommissioned: the others continue without it")
    protocol = record["protocol"]
    topology = Topology.from_mapping(record["topology"], "deployment.json")
    parameters = parameters_on(topology, protocol)
    if definition_of(protocol).restores(topology, parameters, topology.number_of(broker)):
        return
    if not hasattr(parameters, "replicas"):
        raise UserError(f"{protocol} has no replicas, so no broker has the state of {broker}")
    if parameters.replicas == 1:
        raise UserError(f"replicas = 1: no other broker has the state of {broker}; use 2 or more")
    raise UserError(f"{broker} has no clients, so it has no replicas")


async def find_replacement(
    lab: Lab, broker: str, on: str, lost: Sequence[Unreachable] = ()
) -> Replacement:
    """Return the replacement of a broker of the deployment that runs.

    Args:
        lost: the reasons of the hosts that cannot be reached, and are not in `lab`.

    Raises:
        PreflightFailed: nothing is deployed, or several deployments are; the broker runs on another
            host with an agent that answers; hosts without one have other brokers, too; or the new
            host cannot be reached.
        UserError: as `choose_replacement`.
    """
    records = await read_records(lab)
    records.check_complete()
    record = records.newest
    if record is None:
        raise nothing_deployed(lab.inventory)
    identities = {name: str(each["deployment_id"]) for name, each in records.by_host.items()}
    if len({*identities.values()}) > 1:
        each_host = ", ".join(f"{identity} on {name}" for name, identity in identities.items())
        raise PreflightFailed(f"several deployments: {each_host}; `pubsubctl down` stops them all")
    hosts = [connector.host for connector in lab.connectors]
    if lost and on not in [host.name for host in hosts]:
        problems = [problem for error in lost for problem in error.problems]
        raise PreflightFailed(f"--on {shown(on)}: no such host can be reached", *problems)
    found = choose_replacement(record, broker, on, hosts)
    running, answering = await _list_running(lab, broker)
    silent = [
        f"host {row.host} has {row.broker} and does not answer"
        for row in found.wanted.placement.brokers
        if row.broker != broker and row.host not in answering
    ]
    if silent:
        raise PreflightFailed(*silent, f"to replace {broker}, all other brokers must be up")
    if found.former != on and running:
        raise PreflightFailed(
            f"{broker} runs on host {running[0]}; end it first: `pubsubctl inject kill {broker}`"
        )
    return found


async def record_replacement(lab: Lab, found: Replacement) -> None:
    """Record the new place on all hosts, and stop the broker's process on others.

    A state folder of the broker that is on the new host already is from an earlier stay there. With
    it the other brokers would refuse the broker, so it is renamed first.
    """
    if found.former != found.placed.host:
        await lab.connector(found.placed.host).set_state_aside(found.placed.broker)
    records = await read_records(lab)
    records.check_complete()
    topology = toml_text(found.wanted.topology.to_mapping())
    running, _ = await _list_running(lab, found.placed.broker)

    async def write(connector: Connector) -> None:
        name = connector.host.name
        content = dict(records.by_host.get(name, {}))
        if not content and name == found.placed.host:
            program = await connector.transport.program()
            content = {**found.record, "host": name, "program": program}
        if content:
            content |= {key: found.record[key] for key in _OF_PLACES if key in found.record}
            await connector.write_deployment(content, topology)
        if name != found.placed.host and name in running:
            async with connector.open_agent() as agent:
                await agent.stop(found.placed.broker)

    await lab.on_all(write)


async def _list_running(lab: Lab, broker: str) -> tuple[list[str], list[str]]:
    """Return the hosts with a running process of the broker, and all with an agent that answers."""
    running: list[str] = []
    answering: list[str] = []

    async def look(connector: Connector) -> None:
        try:
            async with connector.open_agent() as agent:
                processes = (await agent.status())["processes"]
        except (ControlError, Unreachable):
            return
        answering.append(connector.host.name)
        if processes.get(broker, {}).get("state") == "running":
            running.append(connector.host.name)

    await lab.on_all(look)
    return sorted(running), sorted(answering)
