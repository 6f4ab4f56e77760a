"""What a lab consists of: every name and address in it, decided before anything is made."""

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
    """One network card of a machine.

    Attributes:
        network: which of the lab's networks it is in.
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
        legs: a host has one; a gateway has one towards the controller and one away from it.
    """

    name: str
    namespace: str
    legs: tuple[Leg, ...]


@dataclass(frozen=True)
class LabSpec:
    """A whole lab. The same name, id, counts and networks always give the same names.

    The controller is in the first network, the hosts are in the last; between two of them
    there is a gateway, which forwards no packets: only SSH goes through it.

    Attributes:
        name: as given with --name.
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
        """The controller's end of the link into the lab: the one thing outside namespaces."""
        return f"psl-{self.name}"

    @property
    def link_mac(self) -> str:
        """What tells our link from another of that name."""
        pairs = [self.identity[at : at + 2] for at in range(0, 10, 2)]
        return ":".join(["02", *pairs])

    @property
    def inventory_name(self) -> str:
        """What its inventory calls itself; with `psl-`, so that what is kept under it is ours."""
        return f"psl-{self.name}"

    @property
    def switch(self) -> str:
        """The namespace with the bridges, one per network, and nothing else."""
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
        """All of them, the switch first."""
        return (self.switch, *(machine.namespace for machine in self.machines))

    def machine(self, name: str) -> Machine:
        """One machine.

        Raises:
            UserError: there is none called so.
        """
        for machine in self.machines:
            if machine.name == name:
                return machine
        names = ", ".join(machine.name for machine in self.machines)
        raise UserError(f"lab {self.name} has no machine called {shown(name)}; it has {names}")

    def ipv4(self, network: int, number: int) -> str:
        """An address without its prefix length, which is 24."""
        return f"10.213.{self.networks[network]}.{number}"

    def ipv6(self, network: int, number: int) -> str:
        """A unique local address without its prefix length, which is 64."""
        digits = f"fd{self.identity[:10]}"
        parts = [digits[at : at + 4].lstrip("0") or "0" for at in range(0, 12, 4)]
        return f"{':'.join(parts)}:{network + 1:x}::{number:x}"

    def addresses(self, machine: Machine) -> tuple[str, ...]:
        """Where its SSH server listens."""
        return tuple(
            address
            for leg in machine.legs
            for address in (self.ipv4(leg.network, leg.number), self.ipv6(leg.network, leg.number))
        )

    def address(self, machine: Machine) -> str:
        """Where it is dialled: the address on the controller's side."""
        leg = machine.legs[0]
        return self.ipv4(leg.network, leg.number)

    def to_mapping(self) -> dict[str, Any]:
        """What the journal begins with."""
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
        """What `to_mapping` said."""
        return cls(
            str(values["name"]),
            str(values["identity"]),
            int(values["hosts"]),
            int(values["gateways"]),
            tuple(int(network) for network in values["networks"]),
        )


def check_name(name: str) -> None:
    """Refuse what cannot be a lab's name.

    Raises:
        UserError: says what can.
    """
    if not _NAME.fullmatch(name):
        raise UserError(f"--name = {shown(name)}; up to 11 of a-z, 0-9 and -, not beginning with -")
