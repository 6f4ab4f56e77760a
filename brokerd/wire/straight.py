"""The straight lane of reading: a chunk that is one frame like the one before.

At low rates a chunk is one frame with one publication, of the source and with the other fields of
the frame before. Where its bytes say just that, only number, attributes and payload are read from
them. Whatever else comes goes the general way (`framing`, `codec`), which makes the same message of
it; a test puts both side by side.
"""

from dataclasses import fields
from typing import Any, Final

from brokerd.model.identity import SourceId
from brokerd.model.publication import Buffer, PublicationRun
from brokerd.wire.attributes import MAXIMUM_BLOB_BYTES
from brokerd.wire.codec import PREFIX, head_of
from brokerd.wire.framing import FrameDecoder
from brokerd.wire.misfit import INTEGER_LIMIT
from brokerd.wire.runs import ONE, SLICE_SHARE, begin_one

_MANY: Final = 0x18
"""CBOR's lead byte of an integer that needs one byte of its own; then two, four, eight."""
_BYTES: Final = 0x40
_NO_STEPS: Final = b"\x01\xf6"  # one publication, no steps
_NO_INDEX: Final = b"\xf6\x01"  # no index, one attribute blob


class StraightReader(FrameDecoder):
    """A FrameDecoder that remembers the last frames, once two in a row were alike."""

    _like: "_Like | None" = None
    _before: tuple[type, SourceId] | None = None

    def read(self, chunk: bytes, peer: object, messages: list[Any]) -> int:
        """See FrameDecoder."""
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
        if type(run) is not PublicationRun or len(run.sequences) != 1 or run.origins:
            return
        kind = type(message), run.source
        if kind == self._before:
            self._like = _Like(message, run.source)
        self._before = kind


class _Like:
    """Reads frames with the fields and the source of one message."""

    __slots__ = ("_begin", "_kind", "_place", "_source", "_start", "_values")

    def __init__(self, message: Any, source: SourceId) -> None:
        names = [field.name for field in fields(message)]
        self._kind = type(message)
        self._values = [getattr(message, name) for name in names]
        self._place = names.index("run")
        self._source = source
        head = head_of(message)
        self._begin = head + begin_one(source)
        self._start = PREFIX.size + len(head)

    def read(self, chunk: bytes) -> Any:
        """The message, if it is such a frame and nothing else; else None."""
        length, header = PREFIX.unpack_from(chunk)
        end = PREFIX.size + header
        size = len(chunk) - end
        if length + 4 != len(chunk) or size < 0 or not chunk.startswith(self._begin, PREFIX.size):
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
        except IndexError:
            return None
        if (
            place + blob_bytes != end
            or payload_bytes != size
            or not 0 < blob_bytes <= MAXIMUM_BLOB_BYTES
            or first >= INTEGER_LIMIT
        ):
            return None
        pieces: tuple[Buffer, ...] = ()
        if size:
            is_slice = size * SLICE_SHARE >= len(chunk)
            pieces = (memoryview(chunk)[end:] if is_slice else chunk[end:],)
        run = PublicationRun(
            self._source, range(first, first + 1), (chunk[place:end],), ONE, size, pieces
        )
        object.__setattr__(run, "header", chunk[self._start : end])
        values = self._values
        values[self._place] = run
        return self._kind(*values)


def _integer(data: bytes, place: int, kind: int = 0) -> tuple[int, int]:
    """A CBOR integer, or the length of what is of this kind, and where it ends.

    Raises:
        IndexError: there is no such thing.
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
