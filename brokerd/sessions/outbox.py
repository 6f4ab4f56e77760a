"""The frames that wait to be written to one peer: whole, in order, within a bound.

A write takes all frames that have gathered. Heartbeats carry nothing and are written first, at the
next frame boundary. A write that was cut short leaves the peer inside a frame, so no frame may
follow.
"""

from collections import deque
from collections.abc import Sequence

from brokerd.model.publication import Buffer


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
