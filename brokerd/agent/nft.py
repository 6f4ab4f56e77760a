"""Faults of links by nftables: loss of traffic below the brokers' own code.

Every fault has a table of its own, `inet pubsubctl_<8 hex>`, made and deleted in transactions that
fail as a whole if the table is not the expected one: a marker in it identifies the owner. Nothing
outside that table is touched. Traffic to the machine itself (SSH) is accepted before all other
rules.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from brokerd.errors import ControlError
from brokerd.model.fault_verbs import MODES, SET_VERBS

SSH_PORT: Final = 22
_TIMEOUT_S: Final = 10.0
_NAME: Final = re.compile(r"pubsubctl_[0-9a-f]{8}")
_OWNER: Final = re.compile(r"owner_[0-9a-f]{16}")
_PATH: Final = f"{os.defpath}:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Place:
    """The listening address of a broker."""

    address: IPv4Address | IPv6Address
    port: int

    @classmethod
    def read(cls, text: object) -> "Place":
        """Return the place in "10.0.0.7:7000" or "[fd00::7]:7000".

        Raises:
            ControlError: `user`: the text is no address with a port.
        """
        host, _, port = str(text).rpartition(":")
        try:
            place = cls(ip_address(host.strip("[]")), int(port))
        except ValueError:
            raise ControlError("user", f"{str(text)[:60]!r} is no address with a port") from None
        if not 0 < place.port < 65_536:
            raise ControlError("user", f"{str(text)[:60]!r}: no such port")
        return place


@dataclass(frozen=True, slots=True)
class Table:
    """One fault's table.

    Attributes:
        name: name of the table, derived from the fault.
        owner: name of the marker; only a table with this marker is ever deleted.
    """

    name: str
    owner: str

    @classmethod
    def of(cls, root: str, fault_id: str) -> "Table":
        """Return the table of a fault of the agent with this root."""
        digest = hashlib.blake2b(f"{root}\0{fault_id}".encode(), digest_size=12).hexdigest()
        return cls(f"pubsubctl_{digest[:8]}", f"owner_{digest[8:]}")

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name
        assert _OWNER.fullmatch(self.owner), self.owner


@dataclass(frozen=True, slots=True)
class Separation:
    """The two sides of a separation.

    Attributes:
        own: listening address of the broker of this machine.
        peers: listening addresses of the brokers on the other side.
        direction: direction of the lost traffic, seen from here: out, in or both.
        resets: True if connections are reset, instead of silence.
        protected: ports that are never touched.
    """

    own: Place
    peers: tuple[Place, ...]
    direction: str
    resets: bool
    protected: tuple[int, ...] = (SSH_PORT,)

    @classmethod
    def read(cls, verb: str, direction: str, parameters: dict[str, Any]) -> "Separation":
        """Return the separation in a fault's parameters `own`, `peers`, `protect` and `mode`.

        Raises:
            ControlError: `user`: parameters are missing or malformed, or a broker listens on a
                protected port.
        """
        peers = parameters.get("peers")
        protect = parameters.get("protect", [])
        if not isinstance(peers, list) or not peers:
            raise ControlError(
                "user", "nft needs `peers`: the listening addresses of the brokers to separate"
            )
        if not isinstance(protect, list) or not all(type(port) is int for port in protect):
            raise ControlError("user", "protect is a list of ports")
        mode = parameters.get("mode", MODES[0]) if verb in SET_VERBS else verb
        if mode not in MODES:
            raise ControlError("user", f"mode {str(mode)[:40]!r}; one of {', '.join(MODES)}")
        own = Place.read(parameters.get("own", ""))
        places = tuple(Place.read(peer) for peer in peers)
        protected = tuple(sorted({SSH_PORT, *_ssh_ports(), *protect}))
        for place in (own, *places):
            if place.port in protected:
                text = f"port {place.port} leads to the machine itself; nft never touches it"
                raise ControlError("user", text)
        return cls(own, places, direction, mode == "cut", protected)

    def rules(self) -> Iterator[tuple[str, str]]:
        """Yield (chain, rule), in order.

        Each connection has one broker's port, in either direction.
        """
        ports = ", ".join(map(str, self.protected))
        for chain in ("outgoing", "incoming"):
            for side in ("sport", "dport"):
                yield chain, f"tcp {side} {{ {ports} }} accept"
            if self.resets:
                # Resets made here arrive as if from the peer; a reset that passes ends the
                # connection as intended.
                yield chain, "tcp flags & rst == rst accept"
        verdict = "reject with tcp reset" if self.resets else "drop"
        for peer in self.peers:
            family = "ip6" if peer.address.version == 6 else "ip"
            ends = (
                ("outgoing", "daddr", "dport", "sport", ("out", "both")),
                ("incoming", "saddr", "sport", "dport", ("in", "both")),
            )
            for chain, address, theirs, ours, directions in ends:
                if self.direction in directions:
                    for match in (f"{theirs} {peer.port}", f"{ours} {self.own.port}"):
                        yield (
                            chain,
                            f"{family} {address} {peer.address} tcp {match} counter {verdict}",
                        )


def make_table(table: Table, separation: Separation) -> None:
    """Apply a separation, as a whole or not at all.

    Raises:
        ControlError: `user`: a table of this name exists already, or nft is missing or not
            permitted.
    """
    if table.name in list_tables():
        raise ControlError(
            "user", f"nft: there is a table inet {table.name} already, and it is not this fault's"
        )
    lines = [
        f"create table inet {table.name}",
        f"add chain inet {table.name} {table.owner}",
    ]
    for chain, hook in (("outgoing", "output"), ("incoming", "input")):
        settings = f"{{ type filter hook {hook} priority -5; policy accept; }}"
        lines.append(f"add chain inet {table.name} {chain} {settings}")
    lines += [f"add rule inet {table.name} {chain} {rule}" for chain, rule in separation.rules()]
    _nft("-f", "-", stdin="\n".join(lines) + "\n")


def delete_table(table: Table) -> bool:
    """Undo `make_table`; return False if there was no such table.

    Raises:
        ControlError: the table lacks this fault's marker and is left alone.
    """
    if table.name not in list_tables():
        return False
    # One transaction: without the marker chain it fails, and nothing is deleted.
    script = f"delete chain inet {table.name} {table.owner}\ndelete table inet {table.name}\n"
    _nft("-f", "-", stdin=script)
    return True


def count_packets(table: Table) -> int | None:
    """Return the number of packets that a table has stopped; None if there is no such table."""
    if table.name not in list_tables():
        return None
    found = json.loads(_nft("-j", "list", "table", "inet", table.name))
    total = 0
    for entry in found["nftables"]:
        for part in entry.get("rule", {}).get("expr", ()):
            total += part.get("counter", {}).get("packets", 0)
    return total


def list_tables() -> tuple[str, ...]:
    """Return the names of the `inet` tables of this network namespace.

    Raises:
        ControlError: `user`: nft is missing or not permitted.
    """
    found = json.loads(_nft("-j", "list", "tables"))
    tables = (entry["table"] for entry in found["nftables"] if "table" in entry)
    return tuple(table["name"] for table in tables if table["family"] == "inet")


def _nft(*arguments: str, stdin: str = "") -> str:
    program = shutil.which("nft", path=_PATH)
    if program is None:
        raise ControlError("user", "nft is not installed here; Debian: apt-get install nftables")
    try:
        done = subprocess.run(
            [program, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ControlError("busy", f"nft did not end within {_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())[:300]
        if "not permitted" in reason:
            reason = "needs root or CAP_NET_ADMIN in this network namespace"
        raise ControlError("user", f"nft: {reason}")
    return done.stdout


def _ssh_ports() -> Sequence[int]:
    """Return the port of the SSH connection that started this agent, if any."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return (int(words[3]),) if len(words) == 4 and words[3].isdecimal() else ()
