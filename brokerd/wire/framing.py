"""Messages out of a stream of bytes, frame by frame.

A frame is u32 length of the rest, u32 header length, header, payload.

Lengths are checked as soon as they are there, before anything is kept for the frame, so what a
connection can make us hold is one frame of the limit and one chunk.
"""

import struct
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.sessions.messages import Heartbeat
from brokerd.wire.codec import decode

PREFIX: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")

HANDSHAKE_LIMIT_BYTES: Final = 4_096
"""Largest frame before the other end has said who it is."""

Frame = tuple[memoryview, memoryview]
"""Header and payload: slices of what was fed."""


class FrameDecoder:
    """Takes chunks as they come and gives frames, without copying those that came whole.

    Attributes:
        limit_bytes: largest frame taken, prefix included; may be raised between frames.
        is_inside: what was read ends inside a frame; as of the last `read`.
    """

    def __init__(self, limit_bytes: int = HANDSHAKE_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.is_inside = False
        self._chunk = memoryview(b"")
        self._offset = 0
        # One buffer, not a list of pieces: a peer that sends single bytes must not cost more.
        self._held = bytearray()

    @property
    def incomplete(self) -> bool:
        """Whether the bytes fed so far end inside a frame."""
        return bool(self._held) or self._offset < len(self._chunk)

    def read(self, chunk: bytes, peer: object, messages: list[Any]) -> int:
        """Add what the next bytes complete to `messages`; heartbeats have said what they had to.

        Returns how large those were on the wire, but for the prefix of each.

        Raises:
            RemoteProtocolError: a frame is none of ours; what came before it has been added.
        """
        if chunk:
            self.feed(chunk)
        self.is_inside = True
        size_bytes = 0
        while (frame := self.next_frame()) is not None:
            header, payload = frame
            message = decode(header, payload, peer)
            if type(message) is not Heartbeat:
                messages.append(message)
                size_bytes += len(header) + len(payload)
        self.is_inside = self.incomplete
        return size_bytes

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes; call `next_frame` until it gives None before feeding more."""
        assert self._offset == len(self._chunk), "fed before everything was taken"
        self._chunk = memoryview(chunk)
        self._offset = 0

    def next_frame(self) -> Frame | None:
        """The next frame; None when the bytes fed so far do not complete one.

        Raises:
            RemoteProtocolError: a length is over the limit or makes no sense.
        """
        if self._held:
            return self._complete_held()
        chunk, start = self._chunk, self._offset
        available = len(chunk) - start
        if available >= PREFIX.size:
            length, header = PREFIX.unpack_from(chunk, start)
            self._check(length, header)
            if available >= length + 4:
                self._offset = end = start + length + 4
                middle = start + PREFIX.size + header
                return chunk[start + PREFIX.size : middle], chunk[middle:end]
        elif available >= 4:
            self._check(_LENGTH.unpack_from(chunk, start)[0], 0)
        self._hold(available)
        return None

    def _complete_held(self) -> Frame | None:
        """The frame of which earlier chunks had the beginning."""
        held = self._held
        self._hold(PREFIX.size - len(held))
        if len(held) < PREFIX.size:
            if len(held) >= 4:
                self._check(_LENGTH.unpack_from(held)[0], 0)
            return None
        length, header = PREFIX.unpack_from(held)
        self._check(length, header)
        self._hold(length + 4 - len(held))
        if len(held) < length + 4:
            return None
        frame = memoryview(bytes(held))
        self._held = bytearray()
        middle = PREFIX.size + header
        return frame[PREFIX.size : middle], frame[middle:]

    def _hold(self, count: int) -> None:
        """Keep up to `count` more bytes of the chunk for when the rest has come."""
        if count > 0:
            part = self._chunk[self._offset : self._offset + count]
            self._held += part
            self._offset += len(part)

    def _check(self, length: int, header: int) -> None:
        if length + 4 > self.limit_bytes:
            raise RemoteProtocolError(
                "unknown", f"a frame of {length + 4} bytes; at most {self.limit_bytes}"
            )
        if length < 4 or header > length - 4:
            raise RemoteProtocolError(
                "unknown", f"a header of {header} bytes in a frame of {length + 4}"
            )
