"""Access of this program's own clients to the brokers of the deployment."""

import os
from collections.abc import AsyncIterator, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import trio

from brokerd.config import SessionParameters, TlsFiles
from brokerd.overlay.topology import Topology
from brokerd.protocols.registry import RunningProtocol, protocol_on
from brokerd.runtime.streams import Dial, dial_tls
from brokerd.runtime.tls import credentials_of
from brokerd.text import nearest
from pubsubctl.console.console import Console
from pubsubctl.console.invocation import Invocation
from pubsubctl.deployment.certificates import check_authority
from pubsubctl.deployment.deployment import nothing_deployed
from pubsubctl.deployment.newest_record import read_deployment
from pubsubctl.deployment.placement import Placement
from pubsubctl.deployment.plan import list_decommissioned
from pubsubctl.errors import Unreachable, UserError
from pubsubctl.hosts.hosts import Lab, run_reaching
from pubsubctl.inventory.inventory import Inventory
from pubsubctl.inventory.inventory_model import Host
from pubsubctl.project import authority_folder

if TYPE_CHECKING:
    from brokerd.client.client import Client

LONGEST_NAME: Final = 64
SILENCE_S: Final = 3


class FailedAttempts:
    """The attempts of a client to connect, with one warning.

    The warning is printed after an attempt failed at each broker, or after a silence.

    Attributes:
        is_attached: the client has a session with a broker.
    """

    def __init__(self, console: Console, addresses: Sequence[str]) -> None:
        self._console = console
        self._addresses = addresses
        self._left = len(addresses)
        self._failure = ""
        self.is_attached = False

    async def wait_attached(self, client: "Client") -> None:
        """Wait until a broker has accepted the client.

        Raises:
            ClientError: see `Client.wait_attached`.
        """
        with trio.move_on_after(SILENCE_S):
            await client.wait_attached()
            return
        if self._left > 0:
            self._left = 0
            brokers = ", ".join(self._addresses)
            self._console.warn(f"{brokers}: no answer for {SILENCE_S} s; it keeps on trying")
        await client.wait_attached()

    def describe(self) -> str:
        """Return the reason for which there is no session."""
        return self._failure or f"{', '.join(self._addresses)}: no answer"

    def on_session(self, event: str, details: Mapping[str, Any]) -> None:
        """Record the session, and count a failed attempt; see `Callbacks`."""
        self.is_attached = event in ("attached", "moved")
        if event == "failed":
            self._failure = f"{details['address']}: {details['reason']}"
        if event != "failed" or self._left == 0:
            return
        self._left -= 1
        if self._left == 0:
            self._console.warn(f"{details['address']}: {details['reason']}; it keeps on trying")


def check_client_name(name: str) -> None:
    """Refuse a client name that no certificate may have.

    Raises:
        UserError: not 1 to 64 letters, digits, - and _.
    """
    if not 0 < len(name) <= LONGEST_NAME or not name.replace("-", "").replace("_", "").isalnum():
        raise UserError(
            f"client {name[:LONGEST_NAME]!r}: 1 to {LONGEST_NAME} letters, digits, - and _"
        )


@dataclass(frozen=True)
class ClientAccess:
    """Addresses and certificates for clients in this process.

    Attributes:
        identity: the deployment id.
        addresses: broker → "host:port", for each broker that may have clients, in topology order.
        hosts: that address → name of the host.
        brokers: names of all brokers, by number.
    """

    identity: str
    protocol: RunningProtocol
    inventory: Inventory
    addresses: Mapping[str, str]
    hosts: Mapping[str, str] = field(default_factory=dict)
    brokers: tuple[str, ...] = ()

    @classmethod
    async def of(cls, lab: Lab) -> "ClientAccess":
        """Return the access to a lab's deployment.

        Raises:
            PreflightFailed: nothing is deployed, or another account deployed it.
            ExceptionGroup: of Unreachable, if no host with a record can be reached.
        """
        record = await read_deployment(lab)
        if record is None:
            raise nothing_deployed(lab.inventory)
        await check_authority(lab)
        topology = Topology.from_mapping(record["topology"], "deployment.json")
        protocol = protocol_on(topology, record["protocol"])
        placed = Placement.from_mapping(record["placement"]).brokers
        decommissioned = list_decommissioned(record)
        homes = {*protocol.homes()}.difference(decommissioned)
        return cls(
            identity=record["deployment_id"],
            protocol=protocol,
            inventory=lab.inventory,
            addresses={row.broker: row.address for row in placed if row.broker in homes},
            hosts={row.address: row.host for row in placed if row.broker in homes},
            brokers=tuple(topology.brokers),
        )

    @asynccontextmanager
    async def dialling(self, tls: TlsFiles | None) -> AsyncIterator[Dial | None]:
        """Yield a function that dials brokers behind gateways of SSH, also others; None without.

        Raises:
            Unreachable: no gateway can be reached.
        """
        hosts = [self.inventory.host(name) for name in dict.fromkeys(self.hosts.values())]
        lab = Lab.of(self.inventory, hosts, 1)
        connections = lab.connections
        if connections is None or tls is None:
            yield None  # plain TCP, which does not leave this machine
            return
        async with lab.open():
            behind = await _find_behind_gateways(connections, hosts)
            yield self._dial_through(connections, behind, tls) if behind else None

    def _dial_through(self, connections: Any, behind: Container[str], tls: TlsFiles) -> Dial:
        credentials = credentials_of(tls)
        directly = dial_tls(credentials)

        async def dial(address: str) -> trio.abc.Stream:
            host = self.inventory.host(self.hosts[address])
            if host.name not in behind:
                return await directly(address)
            ip, _, port = address.rpartition(":")
            try:
                stream = await connections.tunnel(host, ip.strip("[]"), int(port))
            except Unreachable as error:
                raise ConnectionError(str(error)) from error
            return await credentials.dial(stream)

        return dial

    @property
    def session(self) -> SessionParameters:
        """The session parameters of the deployment's topology."""
        return self.protocol.topology.session_parameters()

    @property
    def topic_attribute(self) -> str:
        """The attribute with a publication's topic: the protocol's, or `topic`."""
        return self.protocol.promises().topic or "topic"

    def addresses_of(self, broker: str | None) -> list[str]:
        """Return the address of a broker, or of all brokers that may have clients.

        Raises:
            UserError: no such broker, or one that has no clients; suggests the nearest name.
        """
        if broker is None:
            return [*self.addresses.values()]
        if broker not in self.addresses:
            known = nearest(broker, [*self.addresses])
            raise UserError(f"--broker {broker}: no broker for clients is called so{known}")
        return [self.addresses[broker]]

    @contextmanager
    def certificate(self, client: str) -> Iterator[TlsFiles | None]:
        """Issue a certificate for a client, and delete its files at the end; None without TLS."""
        if not self.inventory.uses_tls:
            yield None
            return
        with TemporaryDirectory(prefix="pubsubctl-client-") as folder:
            yield issue_certificate(self.inventory, self.identity, Path(folder), client)


async def _find_behind_gateways(connections: Any, hosts: Iterable[Host]) -> set[str]:
    """Return the names of hosts behind gateways, after connections to the gateways.

    Raises:
        Unreachable: no gateway can be reached.
    """
    found: set[str] = set()
    failure: Unreachable | None = None
    is_reached = False
    for host in hosts:
        if host.connector != "ssh":
            continue
        try:
            if await connections.reach_gateway(host):
                is_reached = True
                found.add(host.name)
        except Unreachable as error:
            failure = failure or error
            found.add(host.name)
    if failure is not None and not is_reached:
        raise failure
    return found


def reach_brokers(call: Invocation, client: str) -> ClientAccess:
    """Return the access of a client of this command to the deployment.

    Raises:
        UserError: no broker accepts the client's name, or the inventory is invalid.
        PreflightFailed, ExceptionGroup: see `ClientAccess.of`.
    """
    check_client_name(client)
    inventory = call.inventory()
    lab = Lab.of(inventory, call.hosts(inventory), call.forks)
    return trio.run(run_reaching, lab, lambda: ClientAccess.of(lab))


def issue_certificate(inventory: Inventory, identity: str, folder: Path, name: str) -> TlsFiles:
    """Issue a certificate for a client of a deployment; write its files, for this user only."""
    from pubsubctl.deployment.authority import (
        Authority,  # slow to import, and plaintext need not wait
    )

    authority = Authority.of(authority_folder(inventory.name))
    issued = authority.issue(identity, "client", name)
    contents = {
        "authority": authority.certificate_pem,
        "certificate": issued.certificate_pem,
        "key": issued.key_pem,
    }
    files: dict[str, Any] = {}
    for subject, content in contents.items():
        path = folder / f"{name}-{subject}.pem"
        with open(path, "xb", opener=_private) as file:
            file.write(content)
        files[subject] = str(path)
    return TlsFiles(**files)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
