"""Sessions of the simulated network: endpoints, the two ends of a session, and attempts."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from brokerd.config import SessionParameters
from brokerd.model.identity import Peer
from brokerd.protocols.interface import LossReason
from brokerd.simulator.world.clock import Lane, Schedule

Direction = tuple[Peer, Peer]
"""The sender and the receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkParameters:
    """Durations and options of the network.

    Attributes:
        latency_lowest_ns, latency_highest_ns: bounds of a session's own one-way latency.
        jitter_ns: maximum extra time of a single message; 0 makes suspicion punctual too.
        lost_on_close: True if a close may overtake, and so destroy, messages in flight.
        early_timeouts: without durations, some attempts may time out although the peer answers.
        keep_old_messages: keep messages for closed sessions, so that a test can pass them to the
            broker as messages of the old session.
        encode: pass every message through the codec of the wire, as between processes, in several
            frames if one frame would exceed the session's limit.
        session: heartbeat and suspicion times, connect timeout.
    """

    latency_lowest_ns: int = 100_000
    latency_highest_ns: int = 2_000_000
    jitter_ns: int = 300_000
    lost_on_close: bool = True
    early_timeouts: bool = True
    keep_old_messages: bool = False
    encode: bool = False
    session: SessionParameters = field(default_factory=SessionParameters)

    def draw_latency(self, random: Random) -> int:
        """Return the one-way latency of a session."""
        low, high = self.latency_lowest_ns, self.latency_highest_ns
        return low if low == high else random.randrange(low, high)


class Endpoint:
    """An endpoint of sessions: a broker or a client. Subclasses react to the methods below.

    Attributes:
        key: number of a broker, name of a client.
        incarnation: announced to the other end of each session.
        alive: True while a process exists.
        frozen: True while the time of the process is stopped.
        absorbing: True while only signs of life leave the process.
        ends: the established sessions, by peer.
        attempts: the attempts to open a session, by peer.
        connected: the ends, established here or not yet, in order of creation.
        deferred: actions that fell due while the process was frozen.
    """

    def __init__(self, key: Peer) -> None:
        self.key = key
        self.incarnation = 0
        self.alive = False
        self.frozen = False
        self.absorbing = False
        self.ends: dict[Peer, SessionEnd] = {}
        self.attempts: dict[Peer, Attempt] = {}
        self.connected: dict[SessionEnd, None] = {}
        self.deferred: list[tuple[Any, tuple[Any, ...]]] = []
        self._sessions = 0

    def next_session(self) -> int:
        """Return a session number that is new in this incarnation."""
        self._sessions += 1
        return self._sessions

    def on_established(self, end: "SessionEnd", incarnation: int) -> None:
        """Handle the establishment of a session at this end."""
        raise NotImplementedError

    def on_lost(self, end: "SessionEnd", reason: LossReason) -> None:
        """Handle the end of a session at this end."""
        raise NotImplementedError

    def open_failed(self, peer: Peer, reason: str) -> None:
        """Handle a failed attempt."""
        raise NotImplementedError

    def message_arrived(self, end: "SessionEnd", message: Any) -> None:
        """Handle a message on an established session."""
        raise NotImplementedError


class SessionEnd:
    """One end of one session instance.

    Attributes:
        lane: messages in flight to this end.
        other: the far end.
        attempt: the attempt that the session answers, at the end that opened the session.
        up: established here and not lost.
        is_over: lost here, or never to be established.
        deaf: a message to this end was lost, so no later message may arrive.
        silence: number of the current period of silence; 0 while the peer is audible.
        withheld_messages: outgoing messages that an absorbing owner has withheld.
    """

    __slots__ = (
        "attempt",
        "deaf",
        "endpoint",
        "incarnation",
        "is_over",
        "lane",
        "latency_ns",
        "number",
        "other",
        "peer",
        "silence",
        "up",
        "watch",
        "withheld_messages",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint, peer: Peer, schedule: Schedule, latency_ns: int) -> None:
        self.endpoint = endpoint
        self.peer = peer
        self.lane = Lane(schedule, f"{peer}>{endpoint.key}")
        self.watch = Lane(schedule, f"{endpoint.key}:suspects:{peer}")
        self.latency_ns = latency_ns
        self.number = 0
        self.incarnation = endpoint.incarnation
        self.other: SessionEnd = self
        self.attempt: Attempt | None = None
        self.up = False
        self.is_over = False
        self.deaf = False
        self.silence = 0
        self.withheld_messages: list[Any] = []


class Attempt:
    """One attempt to open a session, until an answer, a refusal, a close or a timeout.

    Attributes:
        again: made at the end of a wait, and not as a reaction to an event.
    """

    __slots__ = ("again", "endpoint", "is_over", "lane", "peer", "timeout")

    def __init__(self, endpoint: Endpoint, peer: Peer, schedule: Schedule, again: bool) -> None:
        self.again = again
        self.endpoint = endpoint
        self.peer = peer
        self.lane = Lane(schedule, f"{endpoint.key}:dials:{peer}")
        self.timeout = Lane(schedule, f"{endpoint.key}:gives-up:{peer}")
        self.is_over = False


@dataclass(frozen=True, slots=True)
class OldMessage:
    """A message for a session instance that is closed at its receiver."""

    endpoint: Endpoint
    incarnation: int
    peer: Peer
    session: int
    message: Any


class LinkStates:
    """The states of links with faults, per direction.

    Attributes:
        cuts: directions that lose every message, oldest first.
        blackholed: directions that block every message without a loss.
        absorbed: directions that pass only signs of life.
        delays: extra time of each message by direction.
    """

    def __init__(self) -> None:
        self.cuts: dict[Direction, None] = {}
        self.blackholed: dict[Direction, None] = {}
        self.absorbed: dict[Direction, None] = {}
        self.delays: dict[Direction, int] = {}

    def is_blocked(self, way: Direction) -> bool:
        """Return True if no message passes."""
        return way in self.cuts or way in self.blackholed
