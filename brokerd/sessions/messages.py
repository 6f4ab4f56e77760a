"""What the two ends of a connection say to each other before and beside the protocol."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

WIRE_VERSION = 28
START_BYTES: Final = 8
SEAL_BYTES: Final = 16

Role = Literal["broker", "client", "probe"]


class StateMark(NamedTuple):
    """The durable state of a broker at one moment, sealed with the key of its state folder.

    Attributes:
        lineage: time in seconds at which a loss was accepted last; 0 if none was.
        incarnation: of the broker.
        start: random number of the start, START_BYTES.
        commits, groups: durable writes of the state folder so far, of rows and of logs.
        seal: SEAL_BYTES; only the folder's owner can make or check one.
    """

    lineage: int
    incarnation: int
    start: bytes
    commits: int
    groups: int
    seal: bytes


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
        state: durable state of the sender; None for a client, or a broker that keeps none.
        witnessed: the newest such mark of the receiver that the sender has; None if it has none.
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
    """The sender lives; carries nothing."""


@dataclass(frozen=True, slots=True)
class StateAdvanced:
    """Broker → broker: more of the sender's state is durable; sent with heartbeats.

    Attributes:
        mark: of the sender.
        witnessed: the newest mark of the receiver that the sender has; None if it has none.
    """

    mark: StateMark
    witnessed: StateMark | None


@dataclass(frozen=True, slots=True)
class Farewell:
    """Last message: the sender closes the connection.

    Attributes:
        kind: refused (this Hello is not accepted), crossed (the other end's own attempt is
            kept instead of this one), superseded (a newer connection of the same name took
            over), stopping (the sender ends orderly), fault (the receiver broke the rules).
        reason: text for people.
        witnessed: with refused, the mark of the receiver that proves why; else None.
    """

    kind: Literal["refused", "crossed", "superseded", "stopping", "fault"]
    reason: str
    witnessed: StateMark | None = None
