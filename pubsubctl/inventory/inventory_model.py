"""The content of an inventory: single hosts and gateways, with all values resolved.

Numbered host names have a compact notation: n01 to n16 are `n[01:16]`.
"""

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from brokerd.text import expand_range, is_range, nearest
from brokerd.units import format_size
from pubsubctl.errors import UserError
from pubsubctl.hosts.files import shown
from pubsubctl.inventory.inventory_schema import NO_JUMP, Expect, is_loopback

LOCAL_ADDRESS = "127.0.0.1"
THIS_MACHINE = "localhost"


@dataclass(frozen=True)
class Origin:
    """The origin of a value: file and line, or our default."""

    layer: str
    file: Path | None = None
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.layer})" if self.file else self.layer


@dataclass(frozen=True)
class Gateway:
    """A machine on the route to hosts.

    Attributes:
        address: its IP or DNS name.
        user: the login; None for the controller's user.
        identity: path of a private key; None for the keys in ssh-agent.
        jump: all gateways before this gateway, outermost first.
        more_identities: paths of further keys, which are tried after `identity`.
    """

    name: str
    address: str
    port: int = 22
    user: str | None = None
    identity: str | None = None
    jump: tuple[str, ...] = ()
    more_identities: tuple[str, ...] = ()

    @property
    def identities(self) -> tuple[str, ...]:
        """Return the paths of all private keys, in order."""
        return (self.identity, *self.more_identities) if self.identity else ()


@dataclass(frozen=True)
class SshSettings:
    """Settings of SSH connections.

    Attributes:
        forks: hosts at the same time.
        forks_per_gateway: simultaneous connection attempts through a gateway.
        keepalive_s: the interval between keepalives on an idle connection, in seconds.
        retries: further attempts after a failed connection attempt.
        user_config: the user's own OpenSSH configuration, for values that the inventory leaves
            open; None unless the command line requests the file.
    """

    forks: int = 16
    forks_per_gateway: int = 8
    connect_timeout_s: float = 10.0
    keepalive_s: float = 5.0
    retries: int = 2
    user_config: Path | None = None


@dataclass(frozen=True)
class Host:
    """A (logical) machine.

    Attributes:
        name: unique in the inventory.
        connector: "local" or "ssh".
        groups: sorted.
        ports: the TCP ports for the host's brokers; see `broker_ports`.
        cores: "share" lets the kernel place brokers, "own" assigns a core to each broker.
        cores_reserved: cores that no broker gets.
        broker_nice: nice value of brokers relative to agent and load generators, 0 to 19.
        root: the folder of all files of ours; None for the connector's default.
        origins: variable → the origin of the value.
        address: IP or DNS name for connections; "" for local.
        port: of the ssh server.
        user: the login; None for the controller's user.
        identity: path of a private key; None for the keys in ssh-agent.
        jump: all gateways on the route, outermost first; () for none.
        python: the program that creates the environment on the host.
        bench_address: the IP on which brokers listen and are dialled; "" if the inventory does
            not contain an IP (`address` is a DNS name).
        failure_domain: hosts with the same value fail together; the host's name by default.
        data_dir: the folder of durable broker state; None for a folder below root.
        smt: "avoid" leaves out all but the first thread of each core.
        numa: the order of core assignment: "fill" node after node, "interleave" in turn,
            "pin:N" only the cores of node N; "" by number.
        mem_per_broker_bytes: the memory limit of a broker; 0 for no limit.
        bench_nic: the network interface that has `bench_address`; "" if unspecified.
        fsync: "off" skips waiting for the disk: brokers survive a kill, but not a power loss of
            the machine.
        metrics: "on" lets the host's agent export metrics to a collector, at `metrics_port`.
        more_identities: paths of further keys, which are tried after `identity`.
    """

    name: str
    connector: str
    groups: tuple[str, ...]
    ports: range
    cores: Literal["share", "own"]
    cores_reserved: tuple[int, ...]
    root: str | None
    origins: Mapping[str, Origin] = field(compare=False)
    address: str = ""
    port: int = 22
    user: str | None = None
    identity: str | None = None
    jump: tuple[str, ...] = ()
    python: str = "python3"
    bench_address: str = LOCAL_ADDRESS
    failure_domain: str = ""
    data_dir: str | None = None
    smt: Literal["avoid", "allow"] = "allow"
    numa: str = ""
    mem_per_broker_bytes: int = 0
    broker_nice: int = 0
    bench_nic: str = ""
    fsync: Literal["real", "off"] = "real"
    metrics: Literal["on", "off"] = "off"
    more_identities: tuple[str, ...] = ()

    @property
    def identities(self) -> tuple[str, ...]:
        """Return the paths of all private keys, in order."""
        return (self.identity, *self.more_identities) if self.identity else ()

    @property
    def broker_ports(self) -> range:
        """The ports that brokers may listen on."""
        return self.ports[:-1] if self.metrics_port else self.ports

    @property
    def metrics_port(self) -> int:
        """Return the last port of the host if metrics are on, else 0."""
        return self.ports[-1] if self.metrics == "on" else 0

    @property
    def machine(self) -> str:
        """Return the machine of the host, as far as the inventory shows.

        Logical hosts may share a machine.
        """
        return machine_of(self.connector, self.address, self.jump)

    def variables(self) -> dict[str, Any]:
        """Return name → value, in the form that `inventory show` prints."""
        values: dict[str, Any] = {"connector": self.connector}
        if self.connector == "ssh":
            values |= {
                "address": self.address,
                "port": self.port,
                "user": self.user,
                "identity": list(self.identities) if len(self.identities) > 1 else self.identity,
                "jump": ",".join(self.jump) or NO_JUMP,
                "python": self.python,
            }
        return {
            **values,
            "bench_address": self.bench_address or None,
            "failure_domain": self.failure_domain,
            "cores": self.cores,
            "cores_reserved": list(self.cores_reserved),
            "broker_nice": self.broker_nice,
            "ports": f"{self.ports.start}-{self.ports.stop - 1}",
            "root": self.root,
            "data_dir": self.data_dir,
            "smt": self.smt,
            "numa": self.numa or None,
            "mem_per_broker": (
                format_size(self.mem_per_broker_bytes) if self.mem_per_broker_bytes else None
            ),
            "bench_nic": self.bench_nic or None,
            "fsync": self.fsync,
            "metrics": self.metrics,
        }


def machine_of(connector: str, address: str, jump: Sequence[str]) -> str:
    """Return a name of the machine behind an address; equal addresses are the same machine."""
    if connector == "local" or (not jump and is_loopback(address)):
        return THIS_MACHINE
    return "/".join((*jump, address))


_DECIDES_NOTHING = (
    *("port", "user", "identity", "jump"),  # the route to the host
    *("ports", "metrics"),
)


@dataclass(frozen=True)
class Inventory:
    """The hosts of a file, in file order, with their groups.

    Attributes:
        known_hosts: the file with the keys of hosts and gateways; None if all hosts are local.
        gateways: by name.
        transport: "tls" to use TLS although no traffic leaves this machine.
        expect: the required properties of every host, for `doctor`.
    """

    name: str
    path: Path
    hosts: tuple[Host, ...]
    text: str = field(repr=False)
    known_hosts: Path | None = None
    gateways: Mapping[str, Gateway] = field(default_factory=dict)
    ssh: SshSettings = SshSettings()
    transport: Literal["tls"] | None = None
    expect: Expect = field(default_factory=Expect)

    @property
    def uses_tls(self) -> bool:
        """Return True if brokers and clients use TLS certificates.

        Always True beyond this machine.
        """
        addresses = [host.bench_address for host in self.hosts]
        return (
            self.transport == "tls"
            or not self.loopback_only
            or not all(is_loopback(address) for address in addresses)
        )

    @property
    def loopback_only(self) -> bool:
        """Return True if all hosts are local, so no traffic leaves this machine."""
        return all(host.connector == "local" for host in self.hosts)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Return group → names of the group's hosts, groups sorted."""
        names = sorted({group for host in self.hosts for group in host.groups})
        return {
            name: tuple(host.name for host in self.hosts if name in host.groups) for name in names
        }

    def host(self, name: str) -> Host:
        """Return a host.

        Raises:
            UserError: no host has this name; names the nearest.
        """
        for host in self.hosts:
            if host.name == name:
                return host
        raise UserError(
            f"{self.path}: no host called {shown(name)}"
            + nearest(name, [host.name for host in self.hosts])
        )

    def select(self, selectors: Sequence[str]) -> tuple[Host, ...]:
        """Return the hosts that any selector matches, without the hosts of `!selector`.

        Without selectors, return all hosts. A selector is a host, a range in inventory notation, a
        group, `all`, or a pattern with * ? [ ]; or several selectors, separated by commas.

        Raises:
            UserError: a selector matches nothing, or no host is left.
        """
        selectors = [part.strip() for selector in selectors for part in selector.split(",")]
        wanted = [selector for selector in selectors if not selector.startswith("!")]
        chosen = {name for selector in wanted or ["all"] for name in self._match(selector)}
        for selector in selectors:
            if selector.startswith("!"):
                chosen -= set(self._match(selector[1:]))
        if not chosen:
            raise UserError(f"{self.path}: no host is left by --limit {' '.join(selectors)}")
        return tuple(host for host in self.hosts if host.name in chosen)

    def deciding(self, hosts: Sequence[Host]) -> dict[str, dict[str, Any]]:
        """Return the properties of some hosts that affect the numbers of a run, JSON-ready."""
        found: dict[str, dict[str, Any]] = {
            host.name: {
                key: value
                for key, value in host.variables().items()
                if value is not None and key not in _DECIDES_NOTHING
            }
            for host in hosts
        }
        return {"the inventory": {"transport": "tls" if self.uses_tls else "tcp"}, **found}

    def _match(self, selector: str) -> list[str]:
        names = [host.name for host in self.hosts]
        if selector == "all":
            return names
        if is_range(selector):
            return self._range(selector, names)
        found = [
            host.name
            for host in self.hosts
            if fnmatch.fnmatchcase(host.name, selector)
            or any(fnmatch.fnmatchcase(group, selector) for group in host.groups)
        ]
        if not found:
            known = [*names, *self.groups, "all"]
            raise UserError(
                f"{self.path}: no host or group called {shown(selector)}{nearest(selector, known)}"
            )
        return found

    def _range(self, selector: str, names: list[str]) -> list[str]:
        try:
            found = expand_range(selector)
        except ValueError as error:
            raise UserError(f"{self.path}: --limit {shown(selector)}: {error}") from None
        for name in found:
            if name not in names:
                near = nearest(name, names)
                raise UserError(f"{self.path}: no host called {shown(name)}{near}")
        return found


_NUMBERED = re.compile(r"(.*?)(\d{1,6})([^\d]*)")


def format_ranges(names: Iterable[str]) -> str:
    """Return the names in order, three or more consecutive names as a range: `n[01:08], gw`."""
    return ", ".join(_shorten(row) for row in _rows(names))


def _rows(names: Iterable[str]) -> Iterator[list[str]]:
    row: list[str] = []
    for name in names:
        if row and _follows(row[-1], name):
            row.append(name)
            continue
        if row:
            yield row
        row = [name]
    if row:
        yield row


def _follows(one: str, other: str) -> bool:
    """Return True if `other` directly follows `one` in a range."""
    before, after = _NUMBERED.fullmatch(one), _NUMBERED.fullmatch(other)
    if before is None or after is None or before[1] != after[1] or before[3] != after[3]:
        return False
    return after[2] == str(int(before[2]) + 1).zfill(len(before[2]))


def _shorten(row: list[str]) -> str:
    if len(row) < 3:
        return ", ".join(row)
    first, last = _NUMBERED.fullmatch(row[0]), _NUMBERED.fullmatch(row[-1])
    assert first is not None, row
    assert last is not None, row
    return f"{first[1]}[{first[2]}:{last[2]}]{first[3]}"
