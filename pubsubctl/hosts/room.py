"""Disks of hosts that are full: brokers there acknowledge nothing, and do not begin."""

from pubsubctl.errors import PreflightFailed
from pubsubctl.hosts.connectors.base import Connector
from pubsubctl.hosts.hosts import Lab

LEAST_FREE_BYTES = 1 << 20
"""Below this, the durable files of a broker may not grow any more."""


async def lack_of_room(connector: Connector) -> str:
    """Return a complaint about the disk for a host's durable files; "" while there is room."""
    room = await connector.data_room()
    if room is None or room[1] >= LEAST_FREE_BYTES:
        return ""
    folder, free_bytes = room
    return f"{free_bytes:,} bytes free in {folder}: brokers there wait until there is room"


async def check_room(lab: Lab) -> None:
    """Check that the disks for durable files have free space on every host.

    Raises:
        PreflightFailed: a disk is full; names hosts and folders.
    """
    full: dict[str, str] = {}

    async def look(connector: Connector) -> None:
        if text := await lack_of_room(connector):
            full[connector.host.name] = f"host {connector.host.name}: {text}"

    await lab.on_all(look)
    if full:
        problems = [full[name] for name in sorted(full)]
        raise PreflightFailed(*problems, "free some, or name another data_dir in the inventory")
