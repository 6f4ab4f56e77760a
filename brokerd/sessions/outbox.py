"""The frames that wait to be written to one peer, and the pace of acknowledgements."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.model.publication import Buffer
from brokerd.units import MILLISECOND_NS

SHORTEST_NS: Final = 2 * MILLISECOND_NS
"""Least time between a write and a write that carries nothing but acknowledgements."""
TO_PUBLISHER_NS: Final = MILLISECOND_NS // 2
"""The same if a publisher waits for acknowledgements, unless the publisher sends without pause."""
LONGEST_NS: Final = 10 * MILLISECOND_NS
COMPANY: Final = 32
"""Number of publications for which acknowledgements are sent without further gathering."""


@dataclass(slots=True)
class Pace:
    """The acknowledgements of one connection.

    Attributes:
        is_origin: acknowledgements arise at this end; else this end passes them on.
        to_publisher: acknowledgements end at the other end, which is a client.
        left_ns: time at which all pending acknowledgements were last written.
        held_ns: time at which the first pending acknowledgement was held back; 0 if none is.
    """

    is_origin: bool = False
    to_publisher: bool = False
    left_ns: int = 0
    held_ns: int = 0

    def due_ns(
        self, now_ns: int, publications: int, received_ns: int, in_flood: bool = False
    ) -> int:
        """Return the time at which acknowledgements may be sent.

        A time before `now_ns` means at once. In a flood, which a publisher's window and not its
        application holds up, acknowledgements are worth less than the time that a write takes.

        To be called again at the returned time, and for further publications. If nothing has
        arrived since the first acknowledgement was held back (`received_ns`), the sender may be
        waiting for acknowledgements: its window, which is unknown here, may be exhausted.
        """
        if self.to_publisher and not in_flood:
            return self.left_ns + TO_PUBLISHER_NS
        soonest_ns = self.left_ns + SHORTEST_NS
        if not self.is_origin or publications >= COMPANY:
            return soonest_ns
        latest_ns = self.left_ns + LONGEST_NS
        if not self.held_ns:
            self.held_ns = now_ns
        if received_ns > self.held_ns:
            return latest_ns
        return min(latest_ns, max(soonest_ns, self.held_ns + SHORTEST_NS))


class Outbox:
    """The frames for one session.

    Attributes:
        waiting_bytes: size of the frames that no write has taken.
        waiting_frames: number of the frames that no write has taken.
        is_writing: True while a write is incomplete; the writer resets the flag at the end.
    """

    def __init__(self, limit_bytes: int, heartbeat: bytes) -> None:
        self.waiting_bytes = 0
        self._limit_bytes = limit_bytes
        self._heartbeat = heartbeat
        self._frames: deque[tuple[Sequence[Buffer], int, int]] = deque()
        self._heartbeats = 0
        self._awaits_greeting = False
        self.is_writing = False

    @property
    def waiting_frames(self) -> int:
        """The number of frames that no write has taken."""
        return len(self._frames)

    def add(self, pieces: Sequence[Buffer], size_bytes: int, due_ns: int = 0) -> bool:
        """Queue a frame, to be written at `due_ns` or later; return False if the queue is full."""
        if self.waiting_bytes + size_bytes > self._limit_bytes and self._frames:
            return False
        self._frames.append((pieces, size_bytes, due_ns))
        self.waiting_bytes += size_bytes
        return True

    def greet(self) -> None:
        """Hold heartbeats back until the first frame is taken: a session begins with its Hello."""
        self._awaits_greeting = True

    def beat(self) -> None:
        """Queue a heartbeat, unless a heartbeat waits already."""
        self._heartbeats = 1

    def next_due_ns(self) -> int | None:
        """Return the time at which the first waiting frame may be written.

        None if no frame waits.
        """
        return self._frames[0][2] if self._frames else None

    def take(self, limit_bytes: int, now_ns: int, heartbeats_only: bool = False) -> bytes:
        """Return the next write: whole frames, up to the limit or a single larger frame.

        Returns no bytes if no frame is due. Sets `is_writing` until the whole write is done.
        """
        assert not self.is_writing, "two writes at once"
        pieces: list[Buffer] = []
        if not self._awaits_greeting:
            pieces = [self._heartbeat] * self._heartbeats
            self._heartbeats = 0
        frames = self._frames
        size = 0
        while frames and not heartbeats_only and frames[0][2] <= now_ns:
            if size and size + frames[0][1] > limit_bytes:
                break
            frame, frame_bytes, _ = frames.popleft()
            pieces.extend(frame)
            size += frame_bytes
        if pieces:
            self._awaits_greeting = False
        self.waiting_bytes -= size
        self.is_writing = bool(pieces)
        return b"".join(pieces)

    def last_words(self, frame: bytes) -> bytes:
        """Return the last bytes to write before the connection is closed.

        Returns `frame`, or nothing if a write was cut short: the peer would read the frame as a
        part of the incomplete frame.
        """
        return b"" if self.is_writing else frame
