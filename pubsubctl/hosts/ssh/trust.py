"""First contact with a host: an approved host key is added to known_hosts."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pubsubctl.errors import PubsubctlError, UserError
from pubsubctl.hosts.ssh.connections import SshConnections
from pubsubctl.hosts.ssh.errors import ConnectionFailed, UnknownHostKey
from pubsubctl.hosts.ssh.fabric_connection import Hop
from pubsubctl.hosts.ssh.known_hosts import KEY_TYPES, HostKey, Standing
from pubsubctl.inventory.inventory import Gateway, Host, Inventory

Approval = Callable[[Hop, HostKey], Awaitable[bool]]


@dataclass(frozen=True)
class Met:
    """A machine on a route, with the host key.

    Attributes:
        state: "known" before, "added" now, or still "unknown".
    """

    hop: Hop
    key: HostKey
    state: str

    def to_mapping(self) -> dict[str, Any]:
        return {
            "name": self.hop.name,
            "kind": "gateway" if isinstance(self.hop, Gateway) else "host",
            "address": self.hop.address,
            "port": self.hop.port,
            "key_type": self.key.key_type,
            "fingerprint": self.key.fingerprint,
            "state": self.state,
        }


def select_hosts(inventory: Inventory, names: Sequence[str]) -> list[Hop]:
    """Return the gateways and hosts that the names and patterns match.

    Raises:
        UserError: a name matches nothing, or a host that is not reached by ssh.
    """
    found: list[Hop] = [inventory.gateways[name] for name in names if name in inventory.gateways]
    if patterns := [name for name in names if name not in inventory.gateways]:
        found += inventory.select(patterns)
    for hop in found:
        if isinstance(hop, Host) and hop.connector != "ssh":
            raise UserError(f"{inventory.path}: {hop.name} is {hop.connector}, it shows no key")
    return found


async def meet(
    inventory: Inventory,
    hops: Sequence[Hop],
    *,
    fingerprints: Collection[str] = (),
    approve: Approval | None = None,
) -> list[Met]:
    """Look at the keys of hosts and of the gateways on the route, and add approved keys.

    A key is approved by fingerprint, or by `approve`; without both nothing is added, and a host
    behind an unknown gateway is not reached.

    Raises:
        ChangedHostKey: known_hosts has another key of a machine, for which nothing is added.
        UnknownHostKey: a key was not approved. Keys approved before stay.
        ConnectionFailed: a machine does not answer.
    """
    met: dict[tuple[bool, str], Met] = {}
    async with SshConnections(inventory) as connections:
        for destination in hops:
            for hop in connections.route_to(destination):
                identity = isinstance(hop, Gateway), hop.name
                if identity not in met:
                    met[identity] = await _meet_one(connections, hop, fingerprints, approve)
                if met[identity].state == "unknown":
                    break
    return list(met.values())


async def _meet_one(
    connections: SshConnections, hop: Hop, fingerprints: Collection[str], approve: Approval | None
) -> Met:
    key = await connections.host_key(hop)
    standing = connections.judge(hop, key)
    if standing is Standing.TRUSTED:
        return Met(hop, key, "known")
    if standing is not Standing.UNKNOWN:
        raise _refusal(connections, hop, key)
    if fingerprints:
        key = await _with_fingerprint(connections, hop, key, fingerprints)
    elif approve is None:
        return Met(hop, key, "unknown")
    elif not await approve(hop, key):
        raise UnknownHostKey(
            hop.name, f"the key {key.fingerprint} was not approved", "", key.fingerprint
        )
    connections.trust(hop, key)
    return Met(hop, key, "added")


async def _with_fingerprint(
    connections: SshConnections, hop: Hop, first: HostKey, fingerprints: Collection[str]
) -> HostKey:
    """Return the key with one of the fingerprints; a machine has a key of every type."""
    shown = [first]
    for key_type in KEY_TYPES:
        if shown[-1].fingerprint in fingerprints:
            return shown[-1]
        if key_type != first.key_type:
            try:
                shown.append(await connections.host_key(hop, key_type))
            except ConnectionFailed:
                continue  # no key of this type
    if shown[-1].fingerprint in fingerprints:
        return shown[-1]
    raise UnknownHostKey(
        hop.name,
        f"shows {' and '.join(key.fingerprint for key in shown)}, none of which was given",
        "",
        first.fingerprint,
    )


def _refusal(connections: SshConnections, hop: Hop, key: HostKey) -> PubsubctlError:
    refused = connections.refusal(hop, key)
    assert refused is not None, "only a key that is not trusted is refused"
    return refused
