"""`topology place`: a placement, what it costs, and whether a lost machine breaks the promise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brokerd.overlay.topology import Topology, nearest
from pubsubctl.delta_safety import (
    CounterExample,
    LossUnit,
    counter_example,
    longest_lost,
    loss_units,
)
from pubsubctl.errors import UserError
from pubsubctl.facts import known_cores
from pubsubctl.files import shown
from pubsubctl.inventory import Host, Inventory
from pubsubctl.inventory_model import THIS_MACHINE
from pubsubctl.placement import POLICIES, Placement, Policy, brokers_hosts, place


@dataclass(frozen=True)
class Judged:
    """A placement and what the loss of each unit would take.

    Attributes:
        lost: unit → the longest row of consecutive brokers that goes with it.
        counter_example: a loss that delta does not cover; None: there is none.
        links_between_hosts: of all links of the tree.
        one_machine: whether several of its hosts are processes of this one machine.
    """

    placement: Placement
    topology: Topology
    lost: Mapping[LossUnit, tuple[str, ...]]
    counter_example: CounterExample | None
    links_between_hosts: int
    one_machine: bool

    def document(self) -> dict[str, Any]:
        """For --json."""
        example = self.counter_example
        return {
            "delta": self.topology.delta,
            "links_between_hosts": self.links_between_hosts,
            "losses": [
                {"kind": unit.kind, "name": unit.name, "hosts": list(unit.hosts), "row": list(row)}
                for unit, row in self.lost.items()
            ],
            "delta_safe": example is None,
            "counter_example": None if example is None else str(example),
        }

    def text(self) -> str:
        """For people."""
        used = len({row.host for row in self.placement.brokers})
        links = len(self.topology.present()) - 1
        lines = [
            f"{len(self.placement.brokers)} brokers on {used} hosts, "
            f"{self.links_between_hosts} of {links} links between hosts"
        ]
        if self.counter_example is not None:
            lines.append(f"not safe for delta {self.topology.delta}: {self.counter_example}")
        else:
            worst = max(map(len, self.lost.values()), default=0)
            lines.append(
                f"safe for delta {self.topology.delta}: no machine or failure domain takes more "
                f"than {worst} consecutive broker{'' if worst == 1 else 's'} of a primary path"
            )
        if self.one_machine:
            lines.append("hosts of connector local stand for machines here; they share this one")
        return "\n".join(lines)


def placed(
    topology: Topology,
    inventory: Inventory,
    hosts: Sequence[Host],
    policy: str,
    *,
    delta_safe: bool = False,
) -> Judged:
    """A placement on hosts of an inventory, judged; nothing is connected to.

    Raises:
        UserError: no such policy; or as `place`.
        PreflightFailed: as `place`.
    """
    if policy not in POLICIES:
        raise UserError(f"--policy {shown(policy)}: no such policy{nearest(policy, POLICIES)}")
    known: Policy = next(name for name in POLICIES if name == policy)
    placement = place(topology, hosts, known_cores(inventory, hosts), known, delta_safe=delta_safe)
    return judged(topology, hosts, placement)


def judged(topology: Topology, hosts: Sequence[Host], placement: Placement) -> Judged:
    """What a placement means."""
    host_of = {row.broker: row.host for row in placement.brokers}
    units = loss_units(brokers_hosts(hosts))
    lost = {}
    for unit in units:
        gone = [topology.number_of(name) for name, host in host_of.items() if host in unit.hosts]
        row = longest_lost(topology, gone)
        if row:
            lost[unit] = tuple(topology.brokers[number] for number in row)
    between = sum(
        host_of[topology.brokers[a]] != host_of[topology.brokers[b]]
        for a, b in topology.links
        if topology.brokers[a] in host_of and topology.brokers[b] in host_of
    )
    used = {row.host for row in placement.brokers}
    here = [host for host in hosts if host.name in used and host.machine == THIS_MACHINE]
    return Judged(
        placement, topology, lost, counter_example(topology, host_of, units), between, len(here) > 1
    )
