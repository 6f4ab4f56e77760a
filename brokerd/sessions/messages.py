"""What the two ends of a connection say to each other before and beside the protocol."""

from dataclasses import dataclass
from typing import Literal

WIRE_VERSION = 28

Role = Literal["broker", "client", "probe"]


@dataclass(frozen=True, slots=True)
class Hello:
    """First message in each direction of a connection: who speaks, and of which deployment.

    Attributes:
        wire_version: WIRE_VERSION of the sender.
        protocol, deployment_id, topology_digest: what both ends must agree on; a client may
            leave any of them empty.
        role: broker; client; or probe, a broker that only wants to know whether a session would
            be possible and closes after the answer.
        name: of the broker in the topology, or of the client.
        number: of the broker in the topology; 0 for a client.
        incarnation: of the sender.
        session: identity of the session that this connection would carry; chosen by the end
            that opens, repeated by the one that accepts.
        newest: the newest session between the two that the sender has had or asked for; 0 when
            there was none in its incarnation.
        recovering: whether the sender recovers from a restart.
        capabilities: names of optional features; none exist yet, unknown ones are ignored.
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


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The sender lives; carries nothing."""


@dataclass(frozen=True, slots=True)
class Farewell:
    """Last message: the sender closes the connection.

    Attributes:
        kind: refused (this Hello is not accepted), crossed (the other end's own attempt is
            kept instead of this one), superseded (a newer connection of the same name took
            over), stopping (the sender ends orderly), fault (the receiver broke the rules).
        reason: text for people.
    """

    kind: Literal["refused", "crossed", "superseded", "stopping", "fault"]
    reason: str
