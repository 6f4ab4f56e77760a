"""Deployments of other inventories: found by their records on this machine, named in errors."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pubsubctl.errors import PreflightFailed
from pubsubctl.hosts.files import shown
from pubsubctl.inventory.inventory import Inventory
from pubsubctl.project import xdg_folder


@dataclass(frozen=True, slots=True)
class OtherDeployment:
    """A deployment of another inventory.

    Attributes:
        inventory: the inventory's name.
        inventory_file: the inventory's path; "" in a record of an earlier release.
    """

    identity: str
    topology: str
    inventory: str
    inventory_file: str = ""

    @classmethod
    def from_mapping(cls, row: Mapping[str, Any]) -> "OtherDeployment":
        """Return the deployment of a record, or of a row of `ports_in_use`."""
        topology = row.get("topology")
        name = topology.get("name") if isinstance(topology, Mapping) else topology
        return cls(
            identity=str(row.get("deployment_id")),
            topology=str(name),
            inventory=str(row.get("inventory")),
            inventory_file=str(row.get("inventory_file") or ""),
        )

    def __str__(self) -> str:
        return f"deployment {self.identity} of {self.topology}, inventory {shown(self.inventory)}"

    def command(self, verb: str) -> str:
        """Return the command line of a verb on this deployment."""
        path = Path(self.inventory_file or self.inventory)
        if path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        return f"`pubsubctl -i {shlex.quote(str(path))} {verb}`"


def find_other_deployments(inventory: str) -> list[OtherDeployment]:
    """Return the deployments that other inventories recorded below our state folder."""
    found: dict[str, OtherDeployment] = {}
    for path in sorted(xdg_folder("state").glob("*/*/deployment.json")):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            other = OtherDeployment.from_mapping(record)
        except (OSError, ValueError, AttributeError, RecursionError):
            continue  # `down` of its own inventory reports the record
        if other.inventory != inventory:
            found.setdefault(other.identity, other)
    return [*found.values()]


def describe_nothing(inventory: Inventory, verb: str = "status", *, is_sure: bool = True) -> str:
    """Return a sentence that nothing is deployed, with the deployments of other inventories."""
    text = f"nothing is deployed by inventory {inventory.name}"
    text += "" if is_sure else " as far as can be seen"
    others = [f"{each}: {each.command(verb)}" for each in find_other_deployments(inventory.name)]
    return "; ".join([text, *others])


def nothing_deployed(inventory: Inventory, verb: str = "status") -> PreflightFailed:
    """Return the error of a command that needs a deployment.

    Args:
        verb: the command line of the verb, for deployments of other inventories.
    """
    text = describe_nothing(inventory, verb)
    if "; " not in text:
        text += "; `pubsubctl deploy` first, or name another --inventory"
    return PreflightFailed(text)


def describe_ports(
    host: str, needed: Mapping[int, str], holders: Mapping[int, OtherDeployment]
) -> list[str]:
    """Return a line for each deployment that holds ports of a host, with the command to end it.

    Args:
        needed: port → the broker that needs it.
        holders: port → the deployment that holds it.
    """
    by_deployment: dict[OtherDeployment, list[int]] = {}
    for port in sorted(holders):
        by_deployment.setdefault(holders[port], []).append(port)
    return [
        f"host {host}: {_ports_in_words(ports)} in use by {other}; "
        f"{', '.join(needed[port] for port in ports)} need{'s' * (len(ports) == 1)} "
        f"{'it' if len(ports) == 1 else 'them'}; {other.command('down')} ends it"
        for other, ports in by_deployment.items()
    ]


def _ports_in_words(ports: Sequence[int]) -> str:
    if len(ports) == 1:
        return f"port {ports[0]} is"
    if ports[-1] - ports[0] == len(ports) - 1:
        return f"ports {ports[0]} to {ports[-1]} are"
    return f"ports {', '.join(map(str, ports))} are"
