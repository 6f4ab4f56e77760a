"""The fast path of reading: a chunk that is one frame like the frame before.

At low rates a chunk is a frame with one publication, of the same source and origin and with the
same other fields as the frame before, except for integers of the same width. If the bytes match,
only the integers, the number, the attributes and the payload are read; a chunk that is exactly a
heartbeat is dropped. Every other chunk takes the general path (`framing`, `codec`), which decodes
the same messages; a test compares both paths.
"""

from dataclasses import fields
from struct import Struct
from typing import Any, Final

from brokerd.model.identity import SourceId
from brokerd.model.losses import MARKER
from brokerd.model.publication import Buffer, OriginRun, PublicationRun
from brokerd.sessions.messages import Heartbeat
from brokerd.wire.attributes import MAXIMUM_BLOB_BYTES
from brokerd.wire.codec import PREFIX, encode, head_of, integer_fields
from brokerd.wire.framing import FrameDecoder
from brokerd.wire.runs import ONE, SLICE_SHARE, begin_one, one_origin
from brokerd.wire.strict_cbor import INTEGER_LIMIT

_MANY: Final = 0x18
"""CBOR's lead byte of an integer that needs one byte of its own; then two, four, eight."""
_BYTES: Final = 0x40
_NO_STEPS: Final = b"\x01\xf6"  # one publication, no steps
_NO_INDEX: Final = b"\xf6\x01"  # no index, one attribute blob
_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
_LEAST: Final = {1: _MANY, 2: 1 << 8, 4: 1 << 16, 8: 1 << 32}
"""The least integer of so many bytes: a smaller integer must be encoded in fewer bytes."""


_HEARTBEAT: Final = b"".join(encode(Heartbeat()))
"""The whole content of most chunks of a thousand idle clients."""


class StraightReader(FrameDecoder):
    """A FrameDecoder that remembers the last frames, once two in a row were alike."""

    _like: "_Like | None" = None
    _before: tuple[type, SourceId] | None = None

    def read(self, chunk: bytes, peer: object, messages: list[Any]) -> int:
        if chunk == _HEARTBEAT and not self.is_inside:
            return 0
        like, size_bytes = self._like, len(chunk)
        is_whole = PREFIX.size < size_bytes <= self.limit_bytes and not self.is_inside
        if like is not None and is_whole:
            message = like.read(chunk)
            if message is not None:
                messages.append(message)
                return size_bytes - PREFIX.size
        before = len(messages)
        read_bytes = super().read(chunk, peer, messages)
        if len(messages) == before + 1:
            self._remember(messages[-1])
        return read_bytes

    def _remember(self, message: Any) -> None:
        run = getattr(message, "run", None)
        if type(run) is not PublicationRun or len(run.sequences) != 1:
            return
        kind = type(message), run.source
        if kind == self._before:
            self._like = _Like(message, run)
        self._before = kind


class _Like:
    """A reader of frames like the frame of an earlier message with one publication.

    Integer fields with bytes of their own may have other values of the same width.
    """

    __slots__ = (
        "_begin",
        "_fields",
        "_integers",
        "_kind",
        "_limits",
        "_origin",
        "_place",
        "_plain",
        "_source",
        "_start",
        "_tail",
        "_values",
    )

    def __init__(self, message: Any, run: PublicationRun) -> None:
        names = [field.name for field in fields(message)]
        self._kind = type(message)
        self._values = [getattr(message, name) for name in names]
        self._place = names.index("run")
        self._source = run.source
        self._origin = run.origins[0].source if run.origins else None
        self._tail = one_origin(self._origin) if self._origin is not None else b""
        head = head_of(message)
        self._begin = head + begin_one(run.source, origins=len(run.origins))
        self._start = PREFIX.size + len(head)
        self._find_integers(message, names)

    def _find_integers(self, message: Any, names: list[str]) -> None:
        """Record the places in the header of the integers that may differ."""
        spans: list[int] = []
        codes = ""
        self._fields: list[int] = []
        self._limits: list[int] = []
        place = 0
        for name, start, end in integer_fields(message):
            width = end - start - 1
            if width:
                spans += [start + 1, end]
                codes += f"{start + 1 - place}s{_CODES[width]}"
                place = end
                self._fields.append(names.index(name))
                self._limits.append(_LEAST[width])
        rest = len(self._begin) - place
        self._integers = Struct(f">{codes}{rest}s") if codes else None
        edges = [0, *spans, len(self._begin)]
        self._plain = tuple(
            self._begin[low:high] for low, high in zip(edges[::2], edges[1::2], strict=True)
        )

    def read(self, chunk: bytes) -> Any:
        """Return the message, if the chunk is exactly one frame of this form; else None."""
        length, header = PREFIX.unpack_from(chunk)
        end = PREFIX.size + header
        size = len(chunk) - end
        if length + 4 != len(chunk) or size < 0 or not self._begins(chunk):
            return None
        try:
            first, place = _integer(chunk, PREFIX.size + len(self._begin))
            if not chunk.startswith(_NO_STEPS, place):
                return None
            payload_bytes, place = _integer(chunk, place + len(_NO_STEPS))
            if not chunk.startswith(_NO_INDEX, place):
                return None
            place += len(_NO_INDEX)
            blob_bytes, place = _integer(chunk, place, _BYTES)
            blob = chunk[place : place + blob_bytes]
            place += blob_bytes
            origins: tuple[OriginRun, ...] = ()
            if self._origin is not None:
                if not chunk.startswith(self._tail, place):
                    return None
                number, place = _integer(chunk, place + len(self._tail))
                if not chunk.startswith(_NO_STEPS, place) or number >= INTEGER_LIMIT:
                    return None
                place += len(_NO_STEPS)
                origins = (OriginRun(self._origin, range(number, number + 1)),)
        except IndexError:
            return None
        if (
            place != end
            or payload_bytes != size
            or not 0 < blob_bytes <= MAXIMUM_BLOB_BYTES
            or first >= INTEGER_LIMIT
            or blob == MARKER
        ):
            return None
        pieces: tuple[Buffer, ...] = ()
        if size:
            is_slice = size * SLICE_SHARE >= len(chunk)
            pieces = (memoryview(chunk)[end:] if is_slice else chunk[end:],)
        run = PublicationRun(
            self._source, range(first, first + 1), (blob,), ONE, size, pieces, origins
        )
        object.__setattr__(run, "header", chunk[self._start : end])
        values = self._values
        values[self._place] = run
        return self._kind(*values)

    def _begins(self, chunk: bytes) -> bool:
        """Return True if a frame begins like the remembered frame.

        Record the integers of its fields.
        """
        if self._integers is None:
            return chunk.startswith(self._begin, PREFIX.size)
        if len(chunk) < PREFIX.size + self._integers.size:
            return False
        found = self._integers.unpack_from(chunk, PREFIX.size)
        if found[::2] != self._plain:
            return False
        values, limits = self._values, self._limits
        for number, place in enumerate(self._fields):
            value = found[2 * number + 1]
            if not limits[number] <= value < INTEGER_LIMIT:
                return False
            values[place] = value
        return True


def _integer(data: bytes, place: int, kind: int = 0) -> tuple[int, int]:
    """Return a CBOR integer, or the length of an item of this kind, and the end of the head.

    Raises:
        IndexError: the data contain no such item.
    """
    lead = data[place] - kind
    if 0 <= lead < _MANY:
        return lead, place + 1
    if not _MANY <= lead < _MANY + 4:
        raise IndexError(lead)
    end = place + 1 + (1 << (lead - _MANY))
    if end > len(data):
        raise IndexError(end)
    return int.from_bytes(data[place + 1 : end], "big"), end
