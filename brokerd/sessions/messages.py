"""Messages that the two ends of a connection exchange before and beside the protocol.

The certificate of a peer states its identity, which permits some of its Hellos.
"""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args
from urllib.parse import quote, unquote

WIRE_VERSION = 31
START_BYTES: Final = 8
SEAL_BYTES: Final = 16

Role = Literal["broker", "client", "probe"]

CertifiedRole = Literal["broker", "client", "load"]
CERTIFIED_ROLES: Final[tuple[CertifiedRole, ...]] = get_args(CertifiedRole)

_SCHEME: Final = "urn:pubsub:"


class StateMark(NamedTuple):
    """The durable state of a broker at one moment, sealed with the key of its state folder.

    Attributes:
        lineage: time in seconds at which a loss was accepted last; 0 if none was.
        incarnation: incarnation of the broker.
        start: random number of the start, START_BYTES.
        commits, groups: durable writes of the state folder so far, of rows and of logs.
        seal: SEAL_BYTES; only the folder's owner can make or check a seal.
    """

    lineage: int
    incarnation: int
    start: bytes
    commits: int
    groups: int
    seal: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message in either direction of a connection: identity and deployment of the sender.

    Attributes:
        wire_version: WIRE_VERSION of the sender.
        protocol, deployment_id, topology_digest: values that both ends must agree on; a client may
            leave any of them empty.
        role: broker; client; or probe, a broker that only checks if a session would be possible and
            closes after the answer.
        name: name of the broker in the topology, or of the client.
        number: number of the broker in the topology; 0 for a client.
        incarnation: incarnation of the sender.
        session: identity of the session that this connection would carry; chosen by the end that
            opens, repeated by the end that accepts.
        newest: the newest session between the two ends that the sender has had or requested; 0 if
            there was none in its incarnation.
        recovering: True if the sender recovers from a restart.
        capabilities: names of optional features; none exist yet, unknown names are ignored.
        state: durable state of the sender; None for a client, or a broker without durable state.
            A client keeps it, too.
        witnessed: the newest mark of the receiver that the sender has; None if there is none.
    """

    wire_version: int
    protocol: str
    deployment_id: str
    topology_digest: str
    role: Role
    name: str
    number: int
    incarnation: int
    session: int
    newest: int
    recovering: bool
    capabilities: tuple[str, ...]
    state: StateMark | None = None
    witnessed: StateMark | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Proof that the sender is alive; carries nothing."""


@dataclass(frozen=True, slots=True)
class StateAdvanced:
    """Broker → broker, client: a newer state mark of the sender; sent with heartbeats.

    Attributes:
        mark: mark of the sender.
        witnessed: the newest mark of the receiver that the sender has; None if there is none, and
            to a client.
    """

    mark: StateMark
    witnessed: StateMark | None


@dataclass(frozen=True, slots=True)
class Farewell:
    """The last message: the sender closes the connection.

    Attributes:
        kind: refused (this Hello is not accepted), crossed (the other end's own attempt is kept
            instead of this attempt), superseded (a newer connection of the same name replaced this
            connection), stopping (the sender ends orderly), fault (the receiver broke the rules).
        reason: text for people.
        witnessed: with refused, the mark of the receiver that proves the reason; else None.
    """

    kind: Literal["refused", "crossed", "superseded", "stopping", "fault"]
    reason: str
    witnessed: StateMark | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """One member of a deployment.

    Attributes:
        deployment: the deployment id.
        role: the role that the member may act in.
        name: name of the broker in the topology, name of the client, or suffix of clients' names.
    """

    deployment: str
    role: CertifiedRole
    name: str

    def __str__(self) -> str:
        return f"{self.role} {self.name[:64]!r} of deployment {self.deployment[:64]!r}"

    @property
    def uri(self) -> str:
        """The identity as the certificate contains it."""
        deployment, name = (quote(part, safe="") for part in (self.deployment, self.name))
        return f"{_SCHEME}{deployment}:{self.role}/{name}"

    @classmethod
    def from_uri(cls, uri: str) -> "Identity":
        """Return the identity in a certificate.

        Raises:
            ValueError: the URI names no member of a deployment.
        """
        deployment, _, place = uri.removeprefix(_SCHEME).partition(":")
        role, _, name = place.partition("/")
        for known in CERTIFIED_ROLES:
            if role == known:
                identity = cls(unquote(deployment), known, unquote(name))
                # Each identity has a single spelling, so that equal names are equal identities.
                if deployment and name and identity.uri == uri:
                    return identity
        raise ValueError(f"{uri[:200]!r} names no member of a deployment")

    def refuses(self, role: Role, name: str, deployment: str) -> str | None:
        """Return the reason to refuse a Hello with this role and name; None if permitted."""
        if self.role == "broker":
            fits = role in ("broker", "probe") and name == self.name
        elif self.role == "client":
            fits = role == "client" and name == self.name
        else:
            fits = role == "client" and name.endswith(f".{self.name}")
        if fits and self.deployment == deployment:
            return None
        wanted = f"{role} {name[:64]!r} of deployment {deployment[:64]!r}"
        return f"the certificate is that of {self}, not of {wanted}"
