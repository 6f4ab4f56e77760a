"""What waits to be written to one peer: whole frames, in order, within a bound.

A write takes as many frames as have gathered. Heartbeats carry nothing and go first, at the
next frame boundary. A write that was cut short leaves the peer inside a frame, so nothing may
follow it.
"""

from collections import deque
from collections.abc import Sequence

from brokerd.model.publication import Buffer


class Outbox:
    """The frames for one session.

    Attributes:
        waiting_bytes: of frames that no write has taken.
        waiting_frames: how many those are.
        is_writing: a write is not through; whoever has been given it says when it is.
    """

    def __init__(self, limit_bytes: int, heartbeat: bytes) -> None:
        self.waiting_bytes = 0
        self._limit_bytes = limit_bytes
        self._heartbeat = heartbeat
        self._frames: deque[tuple[Sequence[Buffer], int, int]] = deque()
        self._heartbeats = 0
        self.is_writing = False

    @property
    def waiting_frames(self) -> int:
        """How many frames no write has taken."""
        return len(self._frames)

    def add(self, pieces: Sequence[Buffer], size_bytes: int, due_ns: int = 0) -> bool:
        """Queue a frame, to be written at `due_ns` or later; False when it is one too many."""
        if self.waiting_bytes + size_bytes > self._limit_bytes and self._frames:
            return False
        self._frames.append((pieces, size_bytes, due_ns))
        self.waiting_bytes += size_bytes
        return True

    def beat(self) -> None:
        """A heartbeat is due; one that is waiting is enough."""
        self._heartbeats = 1

    def next_due_ns(self) -> int | None:
        """When the first waiting frame may be written; None when there is none."""
        return self._frames[0][2] if self._frames else None

    def take(self, limit_bytes: int, now_ns: int, heartbeats_only: bool = False) -> bytes:
        """The next write: whole frames, up to the limit or one; empty when there is nothing.

        `is_writing` from then on, until all of it is.
        """
        assert not self.is_writing, "two writes at once"
        pieces: list[Buffer] = [self._heartbeat] * self._heartbeats
        self._heartbeats = 0
        frames = self._frames
        size = 0
        while frames and not heartbeats_only and frames[0][2] <= now_ns:
            if size and size + frames[0][1] > limit_bytes:
                break
            frame, frame_bytes, _ = frames.popleft()
            pieces.extend(frame)
            size += frame_bytes
        self.waiting_bytes -= size
        self.is_writing = bool(pieces)
        return b"".join(pieces)

    def last_words(self, frame: bytes) -> bytes:
        """What may still be written before the connection is closed: `frame`, or nothing.

        Nothing when a write was cut short: the peer would read the words as a part of the
        frame it is still waiting for.
        """
        return b"" if self.is_writing else frame
