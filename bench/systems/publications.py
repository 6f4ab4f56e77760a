"""Publications through a system under test: format, fences and acknowledgements.

One message carries one publication with all facts for checks. A publisher keeps a publication
until the system acknowledges it. With topics, a fence has one copy per topic, and a subscriber
accepts the fence with the last copy.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from bench.systems.boundary import NotAcknowledged, SystemClient
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun

_HEAD: Final = struct.Struct("!4sHIHQQH")
_MARK: Final = b"pub1"


class NotOurs(Exception):
    """A message that no load generator of this run has published."""


def pack(
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


def unpack(body: bytes) -> tuple[PublicationRun, int]:
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


class FenceCopies:
    """The copies of each fence that a subscriber has received, one per topic of the subscription.

    A fence is published to every topic, behind all earlier publications of the topic. The fence has
    arrived when all copies have arrived. A repeated copy is a repetition of the fence.
    """

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = frozenset(topics)
        self._seen: dict[tuple[SourceId, int], set[str]] = {}

    def is_complete(self, source: SourceId, sequence: int, topic: str) -> bool:
        """Add a copy. Return True if the fence is complete with this copy."""
        seen = self._seen.setdefault((source, sequence), set())
        if topic in seen:
            return True
        seen.add(topic)
        return seen >= self._topics


class Places:
    """The places of sources in topics that a subscriber has received.

    Without a promised order, publications from before a fence may arrive after the fence.
    """

    def __init__(self) -> None:
        self._first_open: dict[tuple[SourceId, str], int] = {}
        self._ahead: dict[tuple[SourceId, str], set[int]] = {}

    @property
    def holes(self) -> int:
        """The number of missing places before the last received place."""
        return sum(
            max(ahead) - self._first_open[key] + 1 - len(ahead)
            for key, ahead in self._ahead.items()
            if ahead
        )

    def take(self, source: SourceId, topic: str, place: int) -> None:
        """Add a received place, perhaps again."""
        key = (source, topic)
        first_open, ahead = self._first_open.get(key, 1), self._ahead.setdefault(key, set())
        if place >= first_open:
            ahead.add(place)
        while first_open in ahead:
            ahead.remove(first_open)
            first_open += 1
        self._first_open[key] = first_open


PAUSE_S: Final = 0.05
"""Pause before all open publications are repeated on a connection that is still up."""


class OutgoingPublications:
    """A PublishingClient that repeats publications until the system accepts.

    An unacknowledged publication is repeated with all publications behind, in order. Otherwise
    later publications would arrive first.

    Args:
        name: name of the client; prefix of message ids.
        topics_of: returns the topics of a publication with the given attributes.
        acknowledged: receives the number of every accepted publication.

    Attributes:
        attached: True if publications can be sent at once.
        next_sequence: the number of the next publication.
    """

    def __init__(
        self,
        client: SystemClient,
        source: SourceId,
        name: str,
        topics_of: Callable[[bytes], Sequence[str]],
        acknowledged: Callable[[int], None],
    ) -> None:
        self.attached = False
        self.next_sequence = 1
        self._client = client
        self._source = source
        self._name = name
        self._topics_of = topics_of
        self._acknowledged = acknowledged
        self._open: dict[int, dict[str, bytes]] = {}
        self._places: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_in_doubt = asyncio.Event()

    @property
    def outstanding(self) -> int:
        """The number of publications without an outcome."""
        return len(self._open)

    def publish_many_nowait(
        self, attribute_table: Any, attribute_index: Any, payload_lengths: int, payload: Any
    ) -> range:
        """Publish consecutive publications, and return their numbers."""
        first = self.next_sequence
        numbers = range(first, first + len(attribute_index))
        run = PublicationRun(
            self._source, numbers, tuple(attribute_table), attribute_index, payload_lengths,
            (payload,),
        )  # fmt: skip
        for sequence, blob, one in run.publications():
            bodies = self._open[sequence] = {}
            for topic in self._topics_of(blob):
                place = self._places[topic] = self._places.get(topic, 0) + 1
                bodies[topic] = pack(self._source, sequence, place, blob, one)
            self._send(sequence)
        self.next_sequence = numbers.stop
        return numbers

    def send_again(self) -> None:
        """Publish all open publications again, in order."""
        self.stop()
        for sequence in self._open:
            self._send(sequence)

    def stop(self) -> None:
        """Stop waiting for acknowledgements."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._is_in_doubt.clear()

    async def repeat_until_lost(self, lost: "asyncio.Future[str]") -> str:
        """Repeat unacknowledged publications until the connection is lost; return the reason."""
        while True:
            doubt = asyncio.ensure_future(self._is_in_doubt.wait())
            either: set[asyncio.Future[Any]] = {lost, doubt}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            doubt.cancel()
            if lost.done():
                return lost.result()
            await asyncio.sleep(PAUSE_S)
            self.send_again()

    def _send(self, sequence: int) -> None:
        for topic, body in self._open[sequence].items():
            task = asyncio.get_running_loop().create_task(self._publish(sequence, topic, body))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _publish(self, sequence: int, topic: str, body: bytes) -> None:
        try:
            await self._client.publish(topic, f"{self._name}-{sequence}-{topic}", body)
        except NotAcknowledged:
            self._is_in_doubt.set()
            return
        waiting = self._open.get(sequence)
        if waiting is not None and waiting.pop(topic, None) is not None and not waiting:
            del self._open[sequence]
            self._acknowledged(sequence)
