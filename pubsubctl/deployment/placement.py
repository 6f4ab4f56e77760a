"""Placement of brokers: topology and inventory result in hosts, ports and cores.

Pure: equal topologies and hosts result in equal placements on every machine. A later check queries
the hosts for free ports. Cores are selected by `smt` and `numa`, and checked in /proc.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from brokerd.agent.host.probe import core_threads, numa_nodes
from brokerd.text import counted
from pubsubctl.deployment.loss_safety import counter_example, loss_units, safe_assignment
from pubsubctl.errors import HostError, PreflightFailed, UserError
from pubsubctl.inventory.inventory import Host

if TYPE_CHECKING:
    from brokerd.overlay.topology import Topology
    from brokerd.protocols.registry import RunningProtocol

LOOPBACK = "127.0.0.1"
Policy = Literal["pack", "spread", "pin"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
BROKERS_GROUP = "brokers"
CLIENTS_GROUP = "clients"


@dataclass(frozen=True)
class PlacedBroker:
    """The place of a broker.

    Attributes:
        core: the CPU of the broker, or -1.
        ip: the address on which the broker listens and is dialled.
    """

    broker: str
    host: str
    port: int
    core: int = -1
    ip: str = LOOPBACK

    @property
    def address(self) -> str:
        """Return the listening address: host and port."""
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


@dataclass(frozen=True)
class Placement:
    """The places of all brokers and clients.

    Attributes:
        brokers: in topology order.
        clients_host: the host whose agent starts the load generators.
    """

    brokers: tuple[PlacedBroker, ...]
    clients_host: str

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts with a broker or load generator, in order of first use."""
        return tuple(dict.fromkeys([*(row.host for row in self.brokers), self.clients_host]))

    def on(self, host: str) -> tuple[PlacedBroker, ...]:
        return tuple(row for row in self.brokers if row.host == host)

    def machines(self) -> dict[str, list[str]]:
        """Return host → brokers."""
        return {host: [row.broker for row in self.on(host)] for host in self.hosts}

    def addresses(self) -> dict[str, str]:
        """Return broker → listening address."""
        return {row.broker: row.address for row in self.brokers}

    def to_mapping(self) -> dict[str, Any]:
        """Return the content of placement.json."""
        return {
            "schema": "pubsubctl/placement/1",
            "clients_host": self.clients_host,
            "brokers": [
                {
                    "broker": row.broker,
                    "host": row.host,
                    "ip": row.ip,
                    "port": row.port,
                    "core": row.core,
                }
                for row in self.brokers
            ],
        }

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "Placement":
        """Return the placement from the result of `to_mapping`."""
        return cls(
            tuple(
                PlacedBroker(
                    row["broker"], row["host"], row["port"], row["core"], row.get("ip", LOOPBACK)
                )
                for row in values["brokers"]
            ),
            values["clients_host"],
        )


def place(
    topology: "Topology",
    hosts: Sequence[Host],
    cores: Mapping[str, Sequence[int]],
    policy: Policy = "spread",
    *,
    tolerance: "RunningProtocol | None" = None,
) -> Placement:
    """Assign a host, a port and, if required, a dedicated core to every broker.

    Args:
        hosts: the available hosts; brokers are placed in group `brokers`, load generators on the
            first host in group `clients`; without such a group, on all hosts.
        cores: host → CPUs for brokers, for hosts with cores = "own" and for policy pin. Logical
            hosts of a machine name the same CPUs; a CPU is assigned only once.
        policy: "spread" assigns brokers to hosts in turn; "pack" fills host after host with nearby
            brokers, as many as the host has cores; "pin" spreads, and assigns a dedicated core
            to each broker regardless of the inventory.
        tolerance: if given, and a machine or failure domain holds too many brokers for the
            protocol to lose, search for a placement without such a unit.

    Raises:
        UserError: a host has fewer ports than brokers, or an address is missing.
        PreflightFailed: fewer cores than brokers that need a dedicated core; with `tolerance`,
            no safe placement was found: names the smallest counter-example.
    """
    for_brokers = brokers_hosts(hosts)
    for_clients = [host for host in hosts if CLIENTS_GROUP in host.groups] or list(hosts)
    assigned = _ASSIGNING[policy](topology, for_brokers, cores)
    if tolerance is not None:
        assigned = _safe(tolerance, for_brokers, cores, policy, assigned)
    seats = _Seats(topology, for_brokers, cores, pinned=policy == "pin")
    return Placement(seats.count_taken(assigned), for_clients[0].name)


def brokers_hosts(hosts: Sequence[Host]) -> list[Host]:
    return [host for host in hosts if BROKERS_GROUP in host.groups] or list(hosts)


def _spread(
    topology: "Topology", hosts: Sequence[Host], cores: Mapping[str, Sequence[int]]
) -> dict[str, str]:
    # By the number in the file, so that a join or departure moves no other broker.
    return {
        broker: hosts[number % len(hosts)].name for number, broker in enumerate(topology.brokers)
    }


def _pack(
    topology: "Topology", hosts: Sequence[Host], cores: Mapping[str, Sequence[int]]
) -> dict[str, str]:
    """Fill hosts one by one, along the links; distribute brokers beyond all cores evenly."""
    order = _order_along_links(topology)
    room = {host.name: _cores_for_brokers(host, cores) for host in hosts}
    short = len(order) - sum(room.values())
    if short > 0:
        each = -(-short // len(hosts))
        room = {name: count + each for name, count in room.items()}
    places = [host.name for host in hosts for _ in range(room[host.name])]
    packed = dict(zip(order, places, strict=False))
    return {broker: packed[broker] for broker in topology.present()}


_ASSIGNING = {"spread": _spread, "pack": _pack, "pin": _spread}


def _safe(
    tolerance: "RunningProtocol",
    hosts: Sequence[Host],
    cores: Mapping[str, Sequence[int]],
    policy: Policy,
    assigned: dict[str, str],
) -> dict[str, str]:
    here = {broker: assigned[broker] for broker in tolerance.topology.present()}
    found = counter_example(tolerance, here, loss_units(hosts))
    if found is None:
        return assigned
    capacity = {
        host.name: len(list(_usable(host, cores)))
        if policy == "pin" or host.cores == "own"
        else len(host.broker_ports)
        for host in hosts
    }
    safe = safe_assignment(tolerance, hosts, capacity)
    if safe is None:
        raise PreflightFailed(
            f"no placement was found that is safe with {tolerance.description}: {found}",
            "more hosts or failure domains, or a topology that bears more",
        )
    return safe


class _Seats:
    """An assignment of ports and cores of hosts, in the order of brokers."""

    def __init__(
        self,
        topology: "Topology",
        hosts: Sequence[Host],
        cores: Mapping[str, Sequence[int]],
        *,
        pinned: bool,
    ) -> None:
        self._topology = topology
        self._hosts = {host.name: host for host in hosts}
        self._cores = cores
        self._pinned = pinned
        self._given: dict[str, set[int]] = {}

    def count_taken(self, assigned: Mapping[str, str]) -> tuple[PlacedBroker, ...]:
        turns = dict.fromkeys(self._hosts, 0)
        placed: list[PlacedBroker] = []
        wanting = 0
        for broker in self._topology.brokers:
            if broker not in assigned:
                continue
            host = self._hosts[assigned[broker]]
            turn = turns[host.name]
            turns[host.name] += 1
            if turn >= len(host.broker_ports):
                self._refuse_ports(host, assigned)
            if broker in self._topology.left:
                continue  # its port stays reserved, so that no other broker's port changes
            if not host.bench_address:
                raise UserError(
                    f"host {host.name}: its address {host.address} is a name, so the address "
                    "that brokers listen on is unknown; give it a bench_address, an IP"
                )
            core = -1
            if self._pinned or host.cores == "own":
                wanting += 1
                core = self._core(host)
            port = host.broker_ports.start + turn
            placed.append(PlacedBroker(broker, host.name, port, core, host.bench_address))
        without = sum(row.core < 0 for row in placed)
        if wanting and without > len(placed) - wanting:
            unknown = [name for name in self._hosts if not self._cores.get(name)]
            if len(unknown) == len(self._hosts):
                raise PreflightFailed(
                    f"no facts about the cores of {', '.join(unknown[:8])}; "
                    "`pubsubctl inventory facts` queries them"
                )
            raise PreflightFailed(
                f"each broker needs a core, and there are {counted(len(placed) - without, 'core')} "
                f"for {counted(wanting, 'broker')}; let them share cores (cores = 'share', or "
                "--policy spread), or take fewer brokers or a larger machine"
            )
        return tuple(placed)

    def _core(self, host: Host) -> int:
        given = self._given.setdefault(host.machine, set())
        core = next((cpu for cpu in _usable(host, self._cores) if cpu not in given), -1)
        given.add(core)
        return core

    def _refuse_ports(self, host: Host, assigned: Mapping[str, str]) -> None:
        needed = max(list(assigned.values()).count(name) for name in self._hosts)
        raise UserError(
            f"host {host.name}: ports = {host.ports.start}-{host.ports.stop - 1}: "
            f"{counted(len(host.broker_ports), 'port')}, but topology {self._topology.name} puts "
            f"up to {counted(needed, 'broker')} there"
        )


def _usable(host: Host, cores: Mapping[str, Sequence[int]]) -> Iterator[int]:
    return (cpu for cpu in cores.get(host.name, ()) if cpu not in host.cores_reserved)


def _cores_for_brokers(host: Host, cores: Mapping[str, Sequence[int]]) -> int:
    """Return the number of brokers that a host takes before the next host is used."""
    return min(len(list(_usable(host, cores))) or 1, len(host.broker_ports))


def _order_along_links(topology: "Topology") -> list[str]:
    """Return brokers ordered so that neighbours are close: depth first from the first."""
    neighbours = topology.neighbours()
    order: dict[str, None] = {}
    stack = [topology.number_of(name) for name in reversed(topology.present())]
    while stack:
        broker = stack.pop()
        if topology.brokers[broker] not in order:
            order[topology.brokers[broker]] = None
            stack += reversed(neighbours[broker])
    return list(order)


def processors_here() -> dict[str, Any]:
    """Return the CPU facts of this machine for `cores_of`."""
    return {
        "cores": sorted(os.sched_getaffinity(0)),
        "core_threads": core_threads(),
        "numa_nodes": numa_nodes(),
    }


def cores_of(host: Host, processors: Mapping[str, Any]) -> list[int]:
    """Return the CPUs of a host for brokers, in the order of assignment.

    Args:
        processors: `cores`, and the CPU topology in the kernel's notation, if available:
            `core_threads` lists the threads of each core, `numa_nodes` the CPUs of each node.
            Untrusted: a cache may contain anything.
    """
    found = processors.get("cores")
    usable = [number for number in found if _is_cpu(number)] if isinstance(found, list) else []
    if host.smt == "avoid":
        cores = processors.get("core_threads")
        groups = [_cpus(text) for text in cores] if isinstance(cores, list) else []
        second = {thread for threads in groups for thread in threads[1:]}
        usable = [core for core in usable if core not in second]
    stated = processors.get("numa_nodes")
    nodes = {
        int(number): [core for core in _cpus(text) if core in usable]
        for number, text in (stated.items() if isinstance(stated, dict) else ())
        if str(number).isdecimal()
    } or {0: usable}
    if host.numa.startswith("pin:"):
        return nodes.get(int(host.numa.removeprefix("pin:")), [])
    in_order = [nodes[number] for number in sorted(nodes)]
    if host.numa == "fill":
        return [core for there in in_order for core in there]
    if host.numa == "interleave":
        return [core for turn in zip_longest(*in_order) for core in turn if core is not None]
    return usable


def _is_cpu(number: Any) -> bool:
    return type(number) is int and number >= 0


def _cpus(text: Any) -> list[int]:
    """Return the numbers in the kernel's notation "0-2,8"."""
    found: list[int] = []
    for part in str(text).split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal() and (not last or last.isdecimal()):
            found += range(int(first), int(last or first) + 1)
    return found


class Agent(Protocol):
    """The interface of an agent that the check needs."""

    async def status(self) -> dict[str, Any]: ...


async def check_pinning(agents: Mapping[str, Agent], placement: Placement) -> None:
    """Check that every broker with a dedicated core may run there and nowhere else.

    Raises:
        HostError: names brokers on other cores.
    """
    problems: list[str] = []
    for host, agent in agents.items():
        pinned = [row for row in placement.on(host) if row.core >= 0]
        if not pinned:
            continue
        processes = (await agent.status())["processes"]
        for row in pinned:
            cores = processes.get(row.broker, {}).get("cores")
            if cores != [row.core]:
                where = "cores " + ",".join(map(str, cores)) if cores else "unknown cores"
                problems.append(
                    f"host {host}: {row.broker} was given core {row.core}, and runs on {where}"
                )
    if problems:
        raise HostError(*problems)
