"""What a broker keeps for one that takes nothing: in proportion to what it is owed."""

import tracemalloc
from typing import Any

import pytest

from brokerd.protocols.delta_tree.messages import PublicationCopy
from brokerd.protocols.interface import MessageReceived
from brokerd.wire.codec import decode
from brokerd.wire.framing import FrameDecoder
from brokerd.wire.gathering import gather
from tests.helpers.raw_peer import words
from tests.protocols.delta_tree.cost import (
    EVERY_BLOB,
    PAYLOAD_BYTES,
    forwarding_broker,
    frames,
)

READ_BYTES = 1 << 16


def as_read(size: int, total: int) -> list[bytes]:
    """Publications in frames of so many, as they come over a connection."""
    stream = b"".join(
        words(PublicationCopy(run, (0, 1))) for run in frames(EVERY_BLOB, size, total)
    )
    return [stream[start : start + READ_BYTES] for start in range(0, len(stream), READ_BYTES)]


def messages(decoder: FrameDecoder, chunk: bytes) -> list[Any]:
    """What a connection hands on of one read."""
    decoder.feed(chunk)
    found = []
    while (frame := decoder.next_frame()) is not None:
        found.append(decode(*frame, 0))
    return gather(found)


@pytest.mark.parametrize(
    "wanted, share, size, total",
    [("true", 1.0, 500, 200_000), ("a = 7", 0.01, 500, 100_000), ("a < 40", 0.4, 50, 50_000)],
)
def test_what_is_kept_for_a_frozen_broker_is_at_most_half_as_large_again(
    wanted: str, share: float, size: int, total: int
) -> None:
    core = forwarding_broker([(2, wanted)])
    decoder = FrameDecoder(1 << 24)
    stream = as_read(size, total)
    tracemalloc.start()
    try:
        while stream:
            # Copied, for the list must not be what keeps it.
            for message in messages(decoder, bytes(bytearray(stream.pop(0)))):
                core.handle(MessageReceived(0, 1, message), 0)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    statistics = core.statistics()
    assert statistics["queue_publications"] == share * total
    owed_bytes = share * total * PAYLOAD_BYTES
    # What a frame costs beside its payload is the same for one publication as for a thousand.
    assert kept_bytes <= 1.5 * owed_bytes + 3_000 * total // size
