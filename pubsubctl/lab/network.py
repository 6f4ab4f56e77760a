"""The lab's network, created with `ip`: namespaces, bridges in a namespace, links, addresses.

`check_requirements` checks the requirements of a lab on this machine.
"""

import ipaddress
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pubsubctl.errors import HostError, PreflightFailed
from pubsubctl.lab.spec import NETWORKS, LabSpec, Machine

NAMESPACES = Path("/run/netns")
CONTROLLER = 1

Command = list[str]


def switch_commands(spec: LabSpec) -> Iterator[Command]:
    """Yield commands for the switch: namespace, a bridge per network, the controller's link."""
    yield ["ip", "netns", "add", spec.switch]
    inside = ["ip", "-n", spec.switch]
    for network in range(len(spec.networks)):
        bridge = f"br{network}"
        yield [*inside, "link", "add", bridge, "type", "bridge"]
        yield [*inside, "link", "set", "dev", bridge, "up"]
    other_end = ["peer", "name", "c0", "netns", spec.switch]
    yield ["ip", "link", "add", spec.link, "address", spec.link_mac, "type", "veth", *other_end]
    yield [*inside, "link", "set", "dev", "c0", "master", "br0", "up"]
    yield from _address_commands(["ip"], spec, spec.link, 0, CONTROLLER)


def machine_commands(spec: LabSpec, machine: Machine) -> Iterator[Command]:
    """Yield commands for a machine: namespace, links to the switch."""
    yield ["ip", "netns", "add", machine.namespace]
    inside = ["ip", "-n", machine.namespace]
    yield [*inside, "link", "set", "dev", "lo", "up"]
    for leg in machine.legs:
        ends = ["type", "veth", "peer", "name", leg.device, "netns", machine.namespace]
        yield ["ip", "-n", spec.switch, "link", "add", leg.port, *ends]
        plug = ["master", f"br{leg.network}", "up"]
        yield ["ip", "-n", spec.switch, "link", "set", "dev", leg.port, *plug]
        yield from _address_commands(inside, spec, leg.device, leg.network, leg.number)


def _address_commands(
    ip: Sequence[str], spec: LabSpec, device: str, network: int, number: int
) -> Iterator[Command]:
    yield [*ip, "address", "add", f"{spec.ipv4(network, number)}/24", "dev", device]
    if has_ipv6():
        address = f"{spec.ipv6(network, number)}/64"
        yield [*ip, "address", "add", address, "dev", device, "nodad"]
    yield [*ip, "link", "set", "dev", device, "up"]


def has_ipv6() -> bool:
    """Return True if this machine's kernel enables IPv6 for new interfaces."""
    try:
        setting = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6").read_text("ascii")
    except OSError:
        return False
    return setting.strip() == "0"


def find_existing(spec: LabSpec) -> list[str]:
    """Return the existing namespaces and links of the lab, regardless of the creator."""
    found = [f"namespace {name}" for name in spec.namespaces if (NAMESPACES / name).exists()]
    if _link(spec.link) is not None:
        found.append(f"interface {spec.link}")
    return found


def is_our_link(spec: LabSpec) -> bool:
    """Return True if the interface of that name was created by this lab."""
    link = _link(spec.link)
    return link is not None and link.get("address") == spec.link_mac


def free_networks(count: int, start: int) -> tuple[int, ...]:
    """Return `count` numbers N such that no route of this machine leads into 10.213.N.0/24.

    Raises:
        PreflightFailed: there are not enough free networks.
    """
    taken = _list_used_networks()
    free: list[int] = []
    for turn in range(NETWORKS):
        number = (start + turn) % NETWORKS
        network = ipaddress.ip_network(f"10.213.{number}.0/24")
        if not any(network.overlaps(other) for other in taken):
            free.append(number)
        if len(free) == count:
            return tuple(free)
    raise PreflightFailed(
        f"10.213.0.0/16 is in use on this machine: {len(free)} of the {count} networks that the "
        "lab needs are free (`ip route` shows them)"
    )


def _list_used_networks() -> list[ipaddress.IPv4Network]:
    routes = _json(["ip", "-json", "-4", "route", "show", "table", "all"])
    found = []
    for route in routes:
        if route["dst"] != "default":
            network = ipaddress.IPv4Network(route["dst"], strict=False)
            # A route to all of 10.0.0.0/8, usual in private networks, does not claim our part.
            if network.prefixlen > 8:
                found.append(network)
    return found


def _link(name: str) -> dict[str, Any] | None:
    if not Path("/sys/class/net", name).exists():
        return None
    rows = _json(["ip", "-json", "link", "show", "dev", name])
    return rows[0] if rows else None


def _json(command: Command) -> list[dict[str, Any]]:
    result = subprocess.run(command, capture_output=True, check=False, env=tool_environment())
    if result.returncode != 0:
        output = result.stderr.decode(errors="replace").strip()
        if "does not exist" in output:
            return []
        raise HostError(f"`{' '.join(command)}`: {output}")
    content = json.loads(result.stdout or b"[]")
    assert isinstance(content, list), content
    return content


def tool_environment() -> dict[str, str]:
    """Return the environment for tools: root's paths, and English messages."""
    path = os.environ.get("PATH", "")
    return {"PATH": f"{path}:/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL": "C"}


PACKAGES = {"ip": "iproute2", "sshd": "openssh-server", "nft": "nftables"}
"""Program → the Debian package that contains the program."""

_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}


def list_missing() -> list[str]:
    """Return the missing requirements, one line each, with a remedy; empty if a lab can be made."""
    if sys.platform != "linux":
        return ["test hosts are Linux namespaces, and this is not Linux"]
    problems = []
    if os.geteuid() != 0:
        problems.append("making network namespaces needs root")
    elif lacking := [name for name, bit in _CAPABILITIES.items() if not _effective() >> bit & 1]:
        problems.append(f"root has no {' and '.join(lacking)} here, as in most containers")
    path = tool_environment()["PATH"]
    absent = [program for program in PACKAGES if shutil.which(program, path=path) is None]
    if absent:
        packages = " ".join(PACKAGES[program] for program in absent)
        problems.append(f"{', '.join(absent)} not found (Debian: apt-get install {packages})")
    return problems


def check_requirements() -> None:
    """Check the requirements of a lab.

    Raises:
        PreflightFailed: names missing requirements, with Debian packages.
    """
    if problems := list_missing():
        raise PreflightFailed(*problems)


def _effective() -> int:
    """Return the capabilities of this process, as bits."""
    for line in Path("/proc/self/status").read_text("ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return int(value, 16)
    return 0
