"""What travels through a system under test: one publication of ours, with all that judges need."""

import struct
from typing import Final

from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun

_HEAD: Final = struct.Struct("!4sHIHQQH")
_MARK: Final = b"pub1"


class NotOurs(Exception):
    """A message that no load generator of this run has published."""


def packed(
    source: SourceId, sequence: int, place: int, blob: bytes, payload: bytes | memoryview
) -> bytes:
    """A publication as one message.

    Args:
        place: the how-manieth of its source in its topic, from 1.
    """
    head = _HEAD.pack(
        _MARK, source.broker, source.publisher, source.incarnation, sequence, place, len(blob)
    )
    return b"".join((head, blob, payload))


def unpacked(body: bytes) -> tuple[PublicationRun, int]:
    """The publication in a message, as a run of one, and its place in its topic.

    Raises:
        NotOurs: it is none.
    """
    if len(body) < _HEAD.size or body[:4] != _MARK:
        raise NotOurs(f"{len(body)} bytes that begin with {body[:8]!r}")
    _, broker, publisher, incarnation, sequence, place, length = _HEAD.unpack_from(body)
    end = _HEAD.size + length
    if end > len(body) or sequence < 1 or place < 1:
        raise NotOurs(f"{len(body)} bytes, of which {length} were to be attributes")
    payload = body[end:]
    run = PublicationRun(
        SourceId(broker, publisher, incarnation), range(sequence, sequence + 1),
        (body[_HEAD.size : end],), b"\0", len(payload), (payload,),
    )  # fmt: skip
    return run, place
