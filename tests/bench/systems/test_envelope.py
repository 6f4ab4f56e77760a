"""Tests of the envelope through a system under test, and of its order."""

import asyncio
from collections.abc import Sequence

import pytest

from bench.systems.boundary import NotAcknowledged
from bench.systems.publications import (
    FenceCopies,
    NotOurs,
    OutgoingPublications,
    Places,
    pack,
    unpack,
)
from brokerd.model.identity import SourceId

SOURCE = SourceId(2, 70_000, 3)


def test_a_publication_survives_packing_and_unpacking() -> None:
    run, place = unpack(pack(SOURCE, 1 << 40, 9, b"blob", memoryview(b"payload")))
    assert (run.source, run.sequences) == (SOURCE, range(1 << 40, (1 << 40) + 1))
    assert place == 9
    assert [(blob, bytes(payload)) for _, blob, payload in run.publications()] == [
        (b"blob", b"payload")
    ]


@pytest.mark.parametrize("body", [b"", b"hello", b"x" * 40, pack(SOURCE, 7, 1, b"blob", b"")[:-1]])
def test_a_body_without_an_envelope_is_refused(body: bytes) -> None:
    with pytest.raises(NotOurs):
        unpack(body)


def test_a_fence_is_complete_after_its_last_topic_and_at_later_copies() -> None:
    copies = FenceCopies(["a", "b"])
    came = [copies.is_complete(SOURCE, 1, topic) for topic in ("a", "b", "a")]
    assert came == [False, True, True]
    assert FenceCopies(["a"]).is_complete(SOURCE, 1, "a")


def test_a_place_skipped_in_its_topic_counts_as_missed_until_its_arrival() -> None:
    places, missed = Places(), []
    for topic, place in (("a", 1), ("a", 4), ("b", 2), ("a", 4), ("b", 1), ("a", 3), ("a", 2)):
        places.take(SOURCE, topic, place)
        missed.append(places.holes)
    assert missed == [0, 2, 3, 3, 2, 1, 0]


class Doubtful:
    """A client that receives no reply to its first two attempts from `lost` on."""

    def __init__(self, lost: str) -> None:
        self.lost = lost
        self.sent: list[str] = []

    async def publish(self, topic: str, message_id: str, body: bytes) -> None:
        self.sent.append(message_id)
        is_first = self.sent.count(message_id) == 1
        await asyncio.sleep(0)
        if is_first and message_id == self.lost:
            raise NotAcknowledged
        if is_first and message_id > self.lost:
            await asyncio.Event().wait()


def test_publications_behind_a_lost_publication_are_repeated_in_order() -> None:
    async def story() -> tuple[Sequence[str], list[int]]:
        client, taken = Doubtful("p-2-t"), list[int]()
        outgoing = OutgoingPublications(client, SOURCE, "p", lambda blob: ["t"], taken.append)  # type: ignore[arg-type]
        lost: asyncio.Future[str] = asyncio.Future()
        waiting = asyncio.create_task(outgoing.repeat_until_lost(lost))
        assert outgoing.publish_many_nowait([b"b"], b"\0\0\0", 1, b"xyz") == range(1, 4)
        while outgoing.outstanding:
            await asyncio.sleep(0)
        lost.set_result("over")
        assert await waiting == "over"
        return client.sent, taken

    sent, taken = asyncio.run(story())
    assert sent == ["p-1-t", "p-2-t", "p-3-t", "p-2-t", "p-3-t"]
    assert taken == [1, 2, 3]
