"""Selection of a placement: by policy, from a file, or the running placement; with its risks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from pubsubctl.deployment.plan import count_replacements
from pubsubctl.doctor.host_facts import cached_cores
from pubsubctl.errors import PreflightFailed, PubsubctlError, UserError
from pubsubctl.hosts.files import shown
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
    def is_requested(self) -> bool:
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
    delta_safe: bool,
    protocol: str | None,
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
        from pubsubctl.deployment.placement_file import check_cores, read_placement

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
    records = [row.deployment for row in await lab.observe() if row.deployment is not None]
    for record in sorted(records, key=count_replacements, reverse=True):
        if record["protocol"] != protocol:
            continue
        before = Topology.from_mapping(record["topology"], "deployment.json")
        recorded = Placement.from_mapping(record["placement"])
        if not {*recorded.hosts} <= {host.name for host in hosts}:
            continue  # the plan reports the difference
        if before.to_mapping() == topology.to_mapping() and not placing.is_requested:
            return recorded
        if before != topology and topology.follows(before):
            found = extend_placement(recorded, wanted, hosts)
            if placing.is_requested and found != wanted:
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
