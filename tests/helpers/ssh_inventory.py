"""Inventories of test servers, written and read as files."""

from collections.abc import Mapping
from pathlib import Path

from pubsubctl.inventory.inventory import Inventory, load_inventory
from tests.helpers.ssh_server import KeyPair, Sshd


def write_inventory(
    folder: Path,
    hosts: Mapping[str, Sshd],
    user_key: KeyPair | None,
    *,
    gateways: Mapping[str, Sshd] | None = None,
    jumps: Mapping[str, str] | None = None,
    ssh: str = 'keepalive = "30s"\nconnect_timeout = "2min"\nretries = 0',
    known: bool = True,
) -> Path:
    """Write inventory and known_hosts; `jumps` is by host or gateway.

    No two hosts share a broker port, and no program listens on these ports.
    """
    gateways = gateways or {}
    jumps = jumps or {}
    identity = f'identity = "{user_key.private}"\n' if user_key else ""
    lines = [f'schema = "pubsubctl/inventory/1"\nname = "ssh-test"\n[ssh]\n{ssh}\n']
    for name, server in gateways.items():
        lines.append(
            f'[gateways.{name}]\naddress = "{server.address}"\nport = {server.port}\n{identity}'
            + (f'jump = "{jumps[name]}"\n' if name in jumps else "")
        )
    for number, (name, server) in enumerate(hosts.items()):
        lines.append(
            f'[[hosts]]\nname = "{name}"\nconnector = "ssh"\naddress = "{server.address}"\n'
            f'[hosts.vars]\nport = {server.port}\nroot = "/tmp/nowhere/{name}"\n{identity}'
            f'ports = "{30_000 + 10 * number}-{30_009 + 10 * number}"\n'
            + (f'jump = "{jumps[name]}"\n' if name in jumps else "")
        )
    path = folder / "ssh-test.toml"
    path.write_text("".join(lines))
    if known:
        known_hosts = folder / "known_hosts.ssh-test"
        servers = [*gateways.values(), *hosts.values()]
        known_hosts.write_text("".join(server.known_hosts_line for server in servers))
        known_hosts.chmod(0o600)
    return path


def inventory_of(
    folder: Path, hosts: Mapping[str, Sshd], user_key: KeyPair | None, **rest: object
) -> Inventory:
    """Write an inventory and read the files back."""
    return load_inventory(write_inventory(folder, hosts, user_key, **rest))  # type: ignore[arg-type]
