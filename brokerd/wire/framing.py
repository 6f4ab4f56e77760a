"""Messages of a stream of bytes: frame by frame, and adjacent messages joined into one."""

import struct
from collections.abc import Iterable
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.message_kind import JOINED_BYTES, Joining
from brokerd.sessions.messages import Heartbeat
from brokerd.wire.codec import KINDS, decode

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
            raise RemoteProtocolError("unknown", self._describe_excess(length))
        if length < 4 or header > length - 4:
            raise RemoteProtocolError(
                "unknown", f"a header of {header} bytes in a frame of {length + 4}"
            )

    def _describe_excess(self, length: int) -> str:
        """Return the reason to refuse a frame that is too large; text is of another program."""
        beginning = _LENGTH.pack(length)
        if beginning.isascii() and beginning.decode().isprintable():
            return f"{beginning.decode()!r} in place of a frame: another program is there"
        return f"a frame of {length + 4} bytes; at most {self.limit_bytes}"


def gather(messages: Iterable[Any], most_bytes: int = JOINED_BYTES) -> list[Any]:
    """Return the messages of one session in order, neighbours joined where the meaning is the same.

    Publications keep their order, and nothing moves past a message of another kind, unless that
    kind may follow.

    Args:
        most_bytes: approximate bound on the size of a joined message.
    """
    gathered: list[Any] = []
    group = _Group(most_bytes)
    for message in messages:
        if not group.takes(message):
            gathered.extend(group.join())
            group = _Group(most_bytes)
            group.takes(message)
    gathered.extend(group.join())
    return gathered


class _Group:
    """Adjacent messages that can be joined into one message."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._messages: list[Any] = []
        self._following: list[Any] = []
        self._joining: Joining | None = None
        self._size_bytes = 0
        self._items = 0

    def takes(self, message: Any) -> bool:
        """Add the message if the group can join it; return False if not."""
        joining = self._joining
        if not self._messages:
            self._joining = joining = KINDS[type(message)].joining
        elif joining is None:
            return False
        elif type(message) is not type(self._messages[-1]):
            if KINDS[type(message)].may_follow:
                self._following.append(message)
                return True
            return False
        if joining is not None:
            size_bytes = self._size_bytes + joining.size_bytes(message)
            items = self._items + joining.items(message)
            if self._messages and (
                size_bytes > self._most_bytes
                or items > joining.most
                or not joining.continues(self._messages[-1], message)
            ):
                return False
            self._size_bytes, self._items = size_bytes, items
        self._messages.append(message)
        return True

    def join(self) -> list[Any]:
        """Return the messages of the group as one, and the following messages.

        Empty for an empty group.
        """
        if len(self._messages) < 2:
            return self._messages + self._following
        assert self._joining is not None, f"{type(self._messages[0]).__name__} is never joined"
        return [self._joining.join(self._messages), *self._following]
