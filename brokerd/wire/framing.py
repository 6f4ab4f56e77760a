"""The decoder that reads messages from a stream of bytes, frame by frame.

A frame is u32 length of the rest, u32 header length, header, payload. Lengths are checked as soon
as they have arrived, before memory is reserved for the frame, so a connection can make this process
hold at most one frame of the limit and one chunk.
"""

import struct
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.sessions.messages import Heartbeat
from brokerd.wire.codec import decode

PREFIX: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")

HANDSHAKE_LIMIT_BYTES: Final = 4_096
"""Largest frame before the other end has identified itself."""

Frame = tuple[memoryview, memoryview]
"""Header and payload: slices of the bytes fed."""


class FrameDecoder:
    """A decoder from chunks to frames; frames that arrived whole are not copied.

    Attributes:
        limit_bytes: largest frame accepted, prefix included; may be raised between frames.
        is_inside: True if the last `read` ended inside a frame.
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
        """Return True if the bytes fed so far end inside a frame."""
        return bool(self._held) or self._offset < len(self._chunk)

    def read(self, chunk: bytes, peer: object, messages: list[Any]) -> int:
        """Add the messages that the next bytes complete to `messages`; heartbeats are dropped.

        Returns the size of the added messages on the wire, without the prefix of each frame.

        Raises:
            RemoteProtocolError: a frame is invalid; earlier messages have been added.
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
        """Take the next bytes; call `next_frame` until it returns None before feeding more."""
        assert self._offset == len(self._chunk), "fed before everything was taken"
        self._chunk = memoryview(chunk)
        self._offset = 0

    def next_frame(self) -> Frame | None:
        """Return the next frame; None if the bytes fed so far do not complete a frame.

        Raises:
            RemoteProtocolError: a length is over the limit or invalid.
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
        """Return the frame that began in earlier chunks, or None if incomplete."""
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
        """Keep up to `count` more bytes of the chunk until the rest arrives."""
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
