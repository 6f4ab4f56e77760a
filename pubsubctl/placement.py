"""Which broker runs where: topology and inventory become hosts, ports and cores.

Pure: the same topology and hosts give the same placement on every machine. Whether the ports are
free is asked later, of the hosts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brokerd.overlay.topology import Topology
from pubsubctl.errors import PreflightFailed, UserError
from pubsubctl.inventory import Host

LOOPBACK = "127.0.0.1"
BROKERS_GROUP = "brokers"
CLIENTS_GROUP = "clients"


@dataclass(frozen=True)
class PlacedBroker:
    """Where one broker runs; `core` is the CPU it is pinned to, or -1."""

    broker: str
    host: str
    port: int
    core: int = -1

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{LOOPBACK}:{self.port}"


@dataclass(frozen=True)
class Placement:
    """Where everything runs.

    Attributes:
        brokers: in topology order.
        clients_host: the host whose agent starts the load generators.
    """

    brokers: tuple[PlacedBroker, ...]
    clients_host: str

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that get something to run, in the order they first do."""
        return tuple(dict.fromkeys([*(row.host for row in self.brokers), self.clients_host]))

    def on(self, host: str) -> tuple[PlacedBroker, ...]:
        """The brokers of one host."""
        return tuple(row for row in self.brokers if row.host == host)

    def to_mapping(self) -> dict[str, Any]:
        """The content of placement.json."""
        return {
            "schema": "pubsubctl/placement/1",
            "clients_host": self.clients_host,
            "brokers": [
                {"broker": row.broker, "host": row.host, "port": row.port, "core": row.core}
                for row in self.brokers
            ],
        }

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Placement":
        """What `to_mapping` said."""
        return cls(
            tuple(
                PlacedBroker(row["broker"], row["host"], row["port"], row["core"])
                for row in values["brokers"]
            ),
            values["clients_host"],
        )


def place(
    topology: Topology, hosts: Sequence[Host], cores: Mapping[str, Sequence[int]]
) -> Placement:
    """Deal the brokers out to the hosts in turn, ports and cores counted up on each.

    Args:
        hosts: those that may be used; brokers go to the ones in group `brokers`, load
            generators to the first in group `clients`; without such a group, to all.
        cores: host → CPUs that brokers may be pinned to, for hosts with cores = "own". Logical
            hosts of one machine name the same CPUs; each is given out once.

    Raises:
        UserError: a host has fewer ports than brokers.
        PreflightFailed: fewer cores than brokers that want one of their own.
    """
    for_brokers = [host for host in hosts if BROKERS_GROUP in host.groups] or list(hosts)
    for_clients = [host for host in hosts if CLIENTS_GROUP in host.groups] or list(hosts)
    count = len(for_brokers)
    wanting_cores = 0
    given: set[int] = set()
    placed: list[PlacedBroker] = []
    for number, broker in enumerate(topology.brokers):
        host, turn = for_brokers[number % count], number // count
        if turn >= len(host.ports):
            needed = -(-len(topology.brokers) // count)
            raise UserError(
                f"host {host.name}: ports = {host.ports.start}-{host.ports.stop - 1}: "
                f"{len(host.ports)} ports, but topology {topology.name} puts up to {needed} "
                "brokers there"
            )
        core = -1
        if host.cores == "own" and broker not in topology.left:
            wanting_cores += 1
            free = [
                cpu
                for cpu in cores.get(host.name, ())
                if cpu not in given and cpu not in host.cores_reserved
            ]
            core = free[0] if free else -1
            given.add(core)
        if broker not in topology.left:
            placed.append(PlacedBroker(broker, host.name, host.ports.start + turn, core))
    without = [row.broker for row in placed if row.core < 0]
    if wanting_cores and len(without) > len(placed) - wanting_cores:
        raise PreflightFailed(
            f"cores = 'own', but only {len(placed) - len(without)} cores for {wanting_cores} "
            "brokers; take cores = 'share', fewer brokers, or a larger machine"
        )
    return Placement(tuple(placed), for_clients[0].name)
