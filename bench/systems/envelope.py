"""The message format through a system under test: one publication with all facts for checks."""

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
    """Return a publication as one message.

    Args:
        place: number of the publication of its source in its topic, from 1.
    """
    head = _HEAD.pack(
        _MARK, source.broker, source.publisher, source.incarnation, sequence, place, len(blob)
    )
    return b"".join((head, blob, payload))


def unpacked(body: bytes) -> tuple[PublicationRun, int]:
    """Return the publication in a message, as a run of length 1, and its place in its topic.

    Raises:
        NotOurs: the message contains no publication.
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
