"""Selection of a placement: by policy, from a file, or the running placement; with its risks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brokerd.overlay.topology import Topology
from brokerd.protocols.registry import RunningProtocol, protocol_on
from brokerd.text import counted, nearest
from pubsubctl.deployment.loss_safety import (
    CounterExample,
    LossUnit,
    brokers_lost_with,
    counter_example,
    loss_units,
)
from pubsubctl.deployment.placement import (
    POLICIES,
    PlacedBroker,
    Placement,
    Policy,
    brokers_hosts,
    place,
)
from pubsubctl.doctor.host_facts import cached_cores
from pubsubctl.errors import PreflightFailed, PubsubctlError, UserError
from pubsubctl.hosts.files import LARGEST_FILE_BYTES, shown
from pubsubctl.hosts.hosts import Lab
from pubsubctl.inventory.inventory import Host, Inventory
from pubsubctl.inventory.inventory_model import THIS_MACHINE


@dataclass(frozen=True)
class PlacementChoice:
    """The requested placement of brokers.

    Attributes:
        policy: a policy of `place`; None for the default, or for the running placement.
        file: a placement written by `topology place -o`; takes precedence over the policy.
    """

    policy: str | None = None
    delta_safe: bool = False
    file: Path | None = None

    @property
    def is_asked_for(self) -> bool:
        """Return True if the user requested a specific placement."""
        return self.policy is not None or self.delta_safe or self.file is not None


@dataclass(frozen=True)
class AssessedPlacement:
    """A placement with the effect of losing each unit.

    Attributes:
        lost: unit → the brokers that are lost with it.
        counter_example: a loss that is not tolerated; None if there is none.
        links_between_hosts: the number of links between different hosts.
        one_machine: True if several of its hosts are processes of this machine.
    """

    placement: Placement
    tolerance: RunningProtocol
    lost: Mapping[LossUnit, tuple[str, ...]]
    counter_example: CounterExample | None
    links_between_hosts: int
    one_machine: bool

    def document(self) -> dict[str, Any]:
        """Return a mapping for --json."""
        example = self.counter_example
        return {
            "tolerance": self.tolerance.description,
            "links_between_hosts": self.links_between_hosts,
            "losses": [
                {
                    "kind": unit.kind,
                    "name": unit.name,
                    "hosts": list(unit.hosts),
                    "brokers": list(lost_brokers),
                }
                for unit, lost_brokers in self.lost.items()
            ],
            "delta_safe": example is None,
            "counter_example": None if example is None else str(example),
        }

    def text(self) -> str:
        """Return a text for people."""
        used = len({row.host for row in self.placement.brokers})
        links = len(self.tolerance.topology.overlay().links)
        lines = [
            f"{counted(len(self.placement.brokers), 'broker')} on {counted(used, 'host')}, "
            f"{self.links_between_hosts:,} of {counted(links, 'link')} between hosts"
        ]
        if self.counter_example is not None:
            lines.append(f"not safe with {self.tolerance.description}: {self.counter_example}")
        else:
            lines.append(
                f"safe with {self.tolerance.description}: it tolerates the loss of any one machine "
                "or failure domain"
            )
        if self.one_machine:
            lines.append("hosts of connector local stand for machines here; they share this one")
        return "\n".join(lines)


def judge_placement(
    topology: Topology,
    inventory: Inventory,
    hosts: Sequence[Host],
    policy: str,
    *,
    delta_safe: bool = False,
    protocol: str | None = None,
) -> AssessedPlacement:
    """Return a judged placement on hosts of an inventory; opens no connections.

    Args:
        protocol: the protocol whose tolerance applies; None for the topology's default.

    Raises:
        UserError: no such policy; or as `place`.
        PreflightFailed: as `place`.
    """
    cores = cached_cores(inventory, hosts)
    tolerance = protocol_on(topology, protocol)
    wanted = tolerance if delta_safe else None
    placement = place(tolerance.topology, hosts, cores, find_policy(policy), tolerance=wanted)
    return judge_losses(tolerance, hosts, placement)


def predict_placement(
    topology: Topology, inventory: Inventory, hosts: Sequence[Host]
) -> Placement | None:
    """Return the placement that `deploy` would choose, from cached facts about hosts.

    None if `deploy` would refuse.
    """
    try:
        return place(topology, hosts, cached_cores(inventory, hosts))
    except PubsubctlError:
        return None


def find_policy(policy: str) -> Policy:
    """Return the policy of that name; UserError if there is none."""
    for known in POLICIES:
        if known == policy:
            return known
    raise UserError(f"--policy {shown(policy)}: no such policy{nearest(policy, POLICIES)}")


async def choose_placement(
    lab: Lab, topology: Topology, protocol: str, placing: PlacementChoice
) -> Placement:
    """Return the placement of a topology's brokers on a lab.

    Running brokers keep their place, and only joining brokers are placed, unless another placement
    was requested: then the plan reports the difference.

    Raises:
        UserError: as `place` and `read_placement`.
        PreflightFailed: as `place`.
    """
    hosts = [connector.host for connector in lab.connectors]
    policy = find_policy(placing.policy or "spread")
    if placing.file is not None:
        wanted = read_placement(placing.file, topology, hosts)
        cores = await lab.cores({row.host for row in wanted.brokers if row.core >= 0})
        check_cores(wanted, cores, placing.file)
    else:
        pinned = {host.name for host in hosts if policy == "pin" or host.cores == "own"}
        cores = await lab.cores(pinned)
        tolerance = protocol_on(topology, protocol)
        wanted = place(
            tolerance.topology,
            hosts,
            cores,
            policy,
            tolerance=tolerance if placing.delta_safe else None,
        )
    for row in await lab.observe():
        record = row.deployment
        if record is None or record["protocol"] != protocol:
            continue
        before = Topology.from_mapping(record["topology"], "deployment.json")
        recorded = Placement.from_mapping(record["placement"])
        if not {*recorded.hosts} <= {host.name for host in hosts}:
            continue  # the plan reports the difference
        if before.to_mapping() == topology.to_mapping() and not placing.is_asked_for:
            return recorded
        if before != topology and topology.follows(before):
            found = extend_placement(recorded, wanted, hosts)
            if placing.is_asked_for and found != wanted:
                raise PreflightFailed(
                    "the deployment has another placement; `pubsubctl down` first"
                )
            return found
    return wanted


def extend_placement(running: Placement, wanted: Placement, hosts: Sequence[Host]) -> Placement:
    """Return the running placement with joining brokers added, each on the next free port.

    Raises:
        UserError: a host has no port left.
    """
    ports = {host.name: host.broker_ports for host in hosts}
    there = {row.broker: row for row in running.brokers}
    taken = {(row.ip, row.port) for row in running.brokers}
    rows: list[PlacedBroker] = []
    for row in wanted.brokers:
        if row.broker in there:
            rows.append(there[row.broker])
            continue
        free = [port for port in ports[row.host] if (row.ip, port) not in taken]
        if not free:
            raise UserError(f"host {row.host}: no port is left for {row.broker}")
        port = row.port if row.port in free else free[0]
        taken.add((row.ip, port))
        rows.append(replace(row, port=port))
    return Placement(tuple(rows), running.clients_host)


class _PlacedRow(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    broker: str
    host: str
    ip: str
    port: int
    core: int


class _PlacementFile(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    schema_: Literal["pubsubctl/placement/1"] = Field(alias="schema")
    clients_host: str
    brokers: list[_PlacedRow]


def read_placement(path: Path, topology: Topology, hosts: Sequence[Host]) -> Placement:
    """Return the placement in a file written by `topology place -o` or by hand.

    Raises:
        UserError: no valid placement of this topology on these hosts; names every problem.
    """
    try:
        with path.open("rb") as source:
            file = _PlacementFile.model_validate_json(source.read(LARGEST_FILE_BYTES))
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: no placement: {where}: {first['msg']}") from None
    problems = [f"{path}: {text}" for text in _wrong_in(file, topology, hosts)]
    if problems:
        raise UserError(*problems)
    by_name = {row.broker: row for row in file.brokers}
    rows = [by_name[name] for name in topology.present()]
    return Placement(
        tuple(PlacedBroker(row.broker, row.host, row.port, row.core, row.ip) for row in rows),
        file.clients_host,
    )


def check_cores(placement: Placement, cores: Mapping[str, Sequence[int]], path: Path) -> None:
    """Check that the cores in a placement file exist.

    Args:
        cores: host → cores for brokers.

    Raises:
        UserError: names brokers and missing cores.
    """
    problems = [
        f"{path}: broker {row.broker}: {row.host} has no core {row.core} for us, but "
        f"{', '.join(map(str, cores[row.host])) or 'none'}"
        for row in placement.brokers
        if row.core >= 0 and row.core not in cores[row.host]
    ]
    if problems:
        raise UserError(*problems)


def _wrong_in(file: _PlacementFile, topology: Topology, hosts: Sequence[Host]) -> Iterator[str]:
    known = {host.name: host for host in hosts}
    names = [row.broker for row in file.brokers]
    missing = [name for name in topology.present() if name not in names]
    if missing:
        yield f"brokers of {topology.name} are missing: {', '.join(missing[:8])}"
    if file.clients_host not in known:
        hint = nearest(file.clients_host, [*known])
        yield f"clients_host {shown(file.clients_host)}: no host has this name{hint}"
    taken: dict[tuple[str, int], str] = {}
    for row in file.brokers:
        place = f"broker {shown(row.broker)}"
        if row.broker not in topology.present():
            yield f"{place}: not one of {topology.name}{nearest(row.broker, topology.present())}"
            continue
        if names.count(row.broker) > 1:
            yield f"{place} is placed twice"
        if row.host not in known:
            yield f"{place}: no host called {shown(row.host)}{nearest(row.host, [*known])}"
            continue
        host = known[row.host]
        if row.port not in host.broker_ports:
            yield f"{place}: port {row.port} is not one of {host.name}'s ports"
        if row.ip != host.bench_address:
            yield f"{place}: {shown(row.ip)} is not {host.name}'s bench_address"
        if row.core < -1 or row.core in host.cores_reserved:
            yield f"{place}: core {row.core} is not for brokers"
        if (other := taken.setdefault((row.ip, row.port), row.broker)) != row.broker:
            yield f"{place}: {other} has port {row.port} of {host.name}"


def judge_losses(
    tolerance: RunningProtocol, hosts: Sequence[Host], placement: Placement
) -> AssessedPlacement:
    """Judge the effect of losses on a placement."""
    topology = tolerance.topology
    host_of = {row.broker: row.host for row in placement.brokers}
    units = loss_units(brokers_hosts(hosts))
    lost = {}
    for unit in units:
        if lost_brokers := brokers_lost_with(unit, tolerance, host_of):
            lost[unit] = tuple(topology.brokers[number] for number in lost_brokers)
    between = sum(
        host_of[topology.brokers[a]] != host_of[topology.brokers[b]]
        for a, b in topology.overlay().links
        if topology.brokers[a] in host_of and topology.brokers[b] in host_of
    )
    used = {row.host for row in placement.brokers}
    here = [host for host in hosts if host.name in used and host.machine == THIS_MACHINE]
    return AssessedPlacement(
        placement,
        tolerance,
        lost,
        counter_example(tolerance, host_of, units),
        between,
        len(here) > 1,
    )
