"""Sessions of the simulated network: endpoints, attempts, messages and signs of life.

Messages are encoded, delayed and lost. Silence of a peer for too long is a suspicion.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from brokerd.config import SessionParameters
from brokerd.model.identity import Peer
from brokerd.protocols.interface import LossReason
from brokerd.simulator.world.clock import Lane, Schedule
from brokerd.wire.codec import decode, frames

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
        raise NotImplementedError

    def on_lost(self, end: "SessionEnd", reason: LossReason) -> None:
        raise NotImplementedError

    def open_failed(self, peer: Peer, reason: str) -> None:
        raise NotImplementedError

    def message_arrived(self, end: "SessionEnd", message: Any) -> None:
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


_PREFIX_BYTES = 8
_RECEIVED = 4_096
"""Number of frames whose messages are kept."""


def transmit(
    message: Any, limit_bytes: int, received: dict[bytes, Any] | None = None
) -> list[tuple[Any, int]]:
    """Return the received form of a message: one or several messages, each with its frame's size.

    Several messages are returned if one frame would exceed `limit_bytes`, as in the session layer.

    Args:
        received: the messages of earlier frames; an equal frame is not decoded again.
    """
    received = {} if received is None else received
    parts = []
    for pieces, size in frames(message, limit_bytes):
        frame = b"".join(pieces)
        if frame not in received:
            header_end = _PREFIX_BYTES + int.from_bytes(frame[4:_PREFIX_BYTES])
            assert int.from_bytes(frame[:4]) == len(frame) - 4 == size - 4, (
                f"a frame of {len(frame)} bytes has another length in its header: {message}"
            )
            payload = memoryview(frame)[header_end:]
            if len(received) >= _RECEIVED:
                received.clear()
            received[frame] = decode(frame[_PREFIX_BYTES:header_end], payload)
        parts.append((received[frame], len(frame)))
    return parts


class Transmission:
    """The carrier of messages on sessions.

    Attributes:
        counters: numbers of carried, lost and broken items of the whole network.
        bytes_between_brokers: bytes of frames from the codec, if `encode` is set.
        old_messages: see NetworkParameters.keep_old_messages.
    """

    def __init__(
        self,
        schedule: Schedule,
        random: Random,
        parameters: NetworkParameters,
        links: LinkStates,
        counters: dict[str, int],
    ) -> None:
        self.schedule = schedule
        self._random = random
        self._parameters = parameters
        self._links = links
        self.counters = counters
        self.bytes_between_brokers = 0
        self.old_messages: list[OldMessage] = []
        self._received: dict[bytes, Any] = {}

    def put(self, end: SessionEnd, message: Any) -> None:
        """Put a message on a session, in one or several frames; a deaf end loses the message."""
        target = end.other
        if target.deaf:
            self.counters["messages_lost"] += 1
            return
        if not self._parameters.encode:
            self.post(target, message)
            return
        parts = transmit(message, self._parameters.session.frame_limit_bytes, self._received)
        self.counters["frames_split"] += len(parts) > 1
        for part, frame_bytes in parts:
            if isinstance(end.peer, int) and isinstance(end.endpoint.key, int):
                self.bytes_between_brokers += frame_bytes
            self.post(target, part)

    def post(self, target: SessionEnd, message: Any) -> None:
        """Schedule the arrival of a frame at an end."""
        end = target.other
        self.counters["messages_sent"] += 1
        delay_ns = end.latency_ns
        if self._parameters.jitter_ns:
            delay_ns += int(self._random.random() * self._parameters.jitter_ns)
        if self._links.delays:
            delay_ns += self._links.delays.get((end.endpoint.key, end.peer), 0)
        self.schedule.post(target.lane, delay_ns, self.arrives, target, message)

    def arrives(self, end: SessionEnd, message: Any) -> None:
        """Pass a message to its endpoint; a closed session loses the message."""
        if end.up:
            end.endpoint.message_arrived(end, message)
        else:
            self.counters["messages_lost"] += 1
            self.keep_old(end, message)

    def keep_old(self, end: SessionEnd, message: Any) -> None:
        """Keep a message of a closed session, if tests use such messages."""
        if self._parameters.keep_old_messages and end.number and end.endpoint.alive:
            self.old_messages.append(
                OldMessage(end.endpoint, end.incarnation, end.peer, end.number, message)
            )


class SilenceDetector:
    """The failure detector of all sessions, with a number for each period of silence."""

    def __init__(self, random: Random, parameters: NetworkParameters, links: LinkStates) -> None:
        self._random = random
        self._parameters = parameters
        self._links = links
        self._periods = 0

    def update(self, end: SessionEnd) -> int | None:
        """Begin or end the silence at an established end.

        Returns:
            The time from the beginning of a new period to the suspicion; otherwise None.
        """
        if not end.up:
            return None
        silent = (
            end.deaf
            or end.other.endpoint.frozen
            or (end.peer, end.endpoint.key) in self._links.blackholed
        )
        if not silent:
            end.silence = 0
            return None
        if end.silence:
            return None
        self._periods += 1
        end.silence = self._periods
        session = self._parameters.session
        delay_ns = session.suspicion_ns
        if self._parameters.jitter_ns:  # the last sign of life was up to a heartbeat ago
            delay_ns -= int(self._random.random() * session.heartbeat_ns)
        return delay_ns

    def is_suspicion(self, end: SessionEnd, period: int) -> bool:
        """Return True if the silence of a period lasts, and the owner of the end can suspect."""
        if not end.up or end.silence != period:
            return False
        if end.endpoint.frozen:
            end.silence = 0  # measured again after the thaw
            return False
        return True
