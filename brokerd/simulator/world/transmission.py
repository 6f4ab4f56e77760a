"""Messages and signs of life between two established ends.

Messages are encoded, delayed and lost. Silence of a peer for too long is a suspicion.
"""

from random import Random
from typing import Any

from brokerd.simulator.world.clock import Schedule
from brokerd.simulator.world.sessions import LinkStates, NetworkParameters, OldMessage, SessionEnd
from brokerd.wire.codec import decode, frames

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
