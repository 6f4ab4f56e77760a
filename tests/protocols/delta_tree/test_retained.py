"""The state kept for a stalled receiver is proportional to the data owed."""

import tracemalloc
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.model.client_messages import Connect, Subscribe
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.delta_tree import entry_merge
from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.entry_merge import MergeBounds
from brokerd.protocols.delta_tree.messages import (
    PublicationCopy,
    SubscriptionConfirmation,
    SubscriptionCopy,
)
from brokerd.protocols.interface import (
    Commit,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
)
from brokerd.wire.codec import decode
from brokerd.wire.fast_path import StraightReader
from brokerd.wire.framing import FrameDecoder, gather
from tests.helpers.raw_peer import words
from tests.protocols.delta_tree.cost import (
    EVERY_BLOB,
    PAYLOAD_BYTES,
    forwarding_broker,
    frames,
)

READ_BYTES = 1 << 16


def as_read(size: int, total: int) -> list[bytes]:
    """Return publications in frames of `size`, cut as a connection reads them."""
    stream = b"".join(
        words(PublicationCopy(run, (0, 1))) for run in frames(EVERY_BLOB, size, total)
    )
    return [stream[start : start + READ_BYTES] for start in range(0, len(stream), READ_BYTES)]


def messages(decoder: FrameDecoder, chunk: bytes) -> list[Any]:
    """Return the messages of a single read of a connection."""
    decoder.feed(chunk)
    found = []
    while (frame := decoder.next_frame()) is not None:
        found.append(decode(*frame, 0))
    return gather(found)


@pytest.mark.parametrize("keeps", ["for a frozen broker", "for a client that takes nothing"])
def test_queued_single_publications_occupy_at_most_half_more_than_their_payload(keeps: str) -> None:
    # Checked as often as with ten times as many.
    bounds = MergeBounds(fewest=100, step=16, interval_ns=0, window=64)
    with patch.object(entry_merge, "MergeBounds", lambda: bounds):
        core = forwarding_broker([(2, "true")] if "broker" in keeps else [])
    if "client" in keeps:
        add_quiet_client(core)
    reader = StraightReader(1 << 20)
    stream = [words(PublicationCopy(run, (0, 1))) for run in frames(EVERY_BLOB, 1, 4_000)]
    stream.reverse()
    tracemalloc.start()
    try:
        while stream:
            came: list[Any] = []
            reader.read(bytes(bytearray(stream.pop())), 0, came)
            core.handle(MessageReceived(0, 1, came[0]), 0)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert core.statistics()["queue_publications"] == 4_000
    assert kept_bytes <= 1.5 * 4_000 * PAYLOAD_BYTES


def add_quiet_client(core: DeltaTree) -> None:
    """Add a client with a started subscription to all publications."""
    core.handle(SessionEstablished("s", 9, 1), 0)
    wishes = Connect(False, 1, 1, 0, ()), Subscribe(1, parse_predicate("true"))
    effects = [each for wish in wishes for each in core.handle(MessageReceived("s", 9, wish), 0)]
    for effect in effects:
        if isinstance(effect, Commit) and effect.token is not None:
            effects.extend(core.handle(Persisted(effect.token), 0))
        if isinstance(effect, Send) and isinstance(effect.message, SubscriptionCopy):
            assert isinstance(effect.peer, int)
            answer = SubscriptionConfirmation(effect.message.subscription, (), (), ())
            came = MessageReceived(effect.peer, effect.peer + 1, answer)
            effects.extend(core.handle(came, 0))


@pytest.mark.parametrize(
    "wanted, share, size, total",
    [("true", 1.0, 500, 200_000), ("a = 7", 0.01, 500, 100_000), ("a < 40", 0.4, 50, 50_000)],
)
def test_memory_for_a_frozen_broker_is_at_most_half_more_than_owed(
    wanted: str, share: float, size: int, total: int
) -> None:
    core = forwarding_broker([(2, wanted)])
    decoder = FrameDecoder(1 << 24)
    stream = as_read(size, total)
    tracemalloc.start()
    try:
        while stream:
            # Copied, so that the list holds no reference.
            for message in messages(decoder, bytes(bytearray(stream.pop(0)))):
                core.handle(MessageReceived(0, 1, message), 0)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    statistics = core.statistics()
    assert statistics["queue_publications"] == share * total
    owed_bytes = share * total * PAYLOAD_BYTES
    # The overhead of a frame is the same for one publication as for a thousand.
    assert kept_bytes <= 1.5 * owed_bytes + 3_000 * total // size
