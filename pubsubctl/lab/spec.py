"""Specification of a lab: all names and addresses, decided before the creation."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown

SCHEMA = "pubsubctl/lab/1"
MOST_HOSTS = 64
MOST_GATEWAYS = 4
NETWORKS = 256
USER = "root"
PORT = 22

# The kernel takes 15 characters for the name of an interface, and ours begin with `psl-`.
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,10}")


@dataclass(frozen=True)
class Leg:
    """A network card of a machine.

    Attributes:
        network: the index of the network in the lab.
        device: its name in the machine.
        port: the name of its other end, in the switch.
        number: the last part of its addresses.
    """

    network: int
    device: str
    port: str
    number: int


@dataclass(frozen=True)
class Machine:
    """A host or a gateway.

    Attributes:
        legs: a host has one; a gateway has one towards the controller and one away from the
            controller.
    """

    name: str
    namespace: str
    legs: tuple[Leg, ...]


@dataclass(frozen=True)
class LabSpec:
    """A whole lab. Equal names, ids, counts and networks result in equal names of all parts.

    The controller is in the first network, the hosts are in the last; between two networks there is
    a gateway, which forwards no packets: only SSH connections pass.

    Attributes:
        name: the value of --name.
        identity: 12 hexadecimal digits, new for every `lab up`.
        networks: N of 10.213.N.0/24, one more than there are gateways.
    """

    name: str
    identity: str
    hosts: int
    gateways: int
    networks: tuple[int, ...]

    def __post_init__(self) -> None:
        assert len(self.networks) == self.gateways + 1, self
        assert re.fullmatch(r"[0-9a-f]{12}", self.identity), self.identity

    @property
    def link(self) -> str:
        """Return the controller's end of the link into the lab, which is outside namespaces."""
        return f"psl-{self.name}"

    @property
    def link_mac(self) -> str:
        """Return the MAC address that distinguishes our link from others of the same name."""
        pairs = [self.identity[at : at + 2] for at in range(0, 10, 2)]
        return ":".join(["02", *pairs])

    @property
    def inventory_name(self) -> str:
        """Return the inventory's name; the prefix `psl-` marks files under this name as ours."""
        return f"psl-{self.name}"

    @property
    def switch(self) -> str:
        """Return the namespace that contains the bridges, one per network, and nothing else."""
        return f"psl-{self.name}-sw"

    @property
    def machines(self) -> tuple[Machine, ...]:
        """Gateways, outermost first, then hosts."""
        gateways = [
            Machine(
                f"gw{turn}",
                f"psl-{self.name}-gw{turn}",
                (
                    Leg(turn - 1, "eth0", f"g{turn}a", 2),
                    Leg(turn, "eth1", f"g{turn}b", 3),
                ),
            )
            for turn in range(1, self.gateways + 1)
        ]
        hosts = [
            Machine(
                f"n{turn:02d}",
                f"psl-{self.name}-{turn:02d}",
                (Leg(self.gateways, "eth0", f"h{turn:02d}", 10 + turn),),
            )
            for turn in range(1, self.hosts + 1)
        ]
        return (*gateways, *hosts)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Return all namespaces, the switch first."""
        return (self.switch, *(machine.namespace for machine in self.machines))

    def machine(self, name: str) -> Machine:
        """Return a machine.

        Raises:
            UserError: no machine has this name.
        """
        for machine in self.machines:
            if machine.name == name:
                return machine
        names = ", ".join(machine.name for machine in self.machines)
        raise UserError(f"lab {self.name} has no machine called {shown(name)}; it has {names}")

    def ipv4(self, network: int, number: int) -> str:
        """Return an address without its prefix length, 24."""
        return f"10.213.{self.networks[network]}.{number}"

    def ipv6(self, network: int, number: int) -> str:
        """Return a unique local address without its prefix length, 64."""
        digits = f"fd{self.identity[:10]}"
        parts = [digits[at : at + 4].lstrip("0") or "0" for at in range(0, 12, 4)]
        return f"{':'.join(parts)}:{network + 1:x}::{number:x}"

    def addresses(self, machine: Machine) -> tuple[str, ...]:
        """Return the addresses on which the machine's SSH server listens."""
        return tuple(
            address
            for leg in machine.legs
            for address in (self.ipv4(leg.network, leg.number), self.ipv6(leg.network, leg.number))
        )

    def address(self, machine: Machine) -> str:
        """Return the address for connections, on the controller's side."""
        leg = machine.legs[0]
        return self.ipv4(leg.network, leg.number)

    def to_mapping(self) -> dict[str, Any]:
        """Return the mapping for the first line of the journal."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "identity": self.identity,
            "hosts": self.hosts,
            "gateways": self.gateways,
            "networks": list(self.networks),
        }

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "LabSpec":
        """Return the spec from the result of `to_mapping`."""
        return cls(
            str(values["name"]),
            str(values["identity"]),
            int(values["hosts"]),
            int(values["gateways"]),
            tuple(int(network) for network in values["networks"]),
        )


def check_name(name: str) -> None:
    """Refuse an invalid name of a lab.

    Raises:
        UserError: the name is invalid; describes valid names.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"--name = {shown(name)}; up to 11 of a-z, 0-9 and -, not beginning with -")
