"""Publications of one publisher, until the system acknowledges."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from bench.systems.boundary import NotAcknowledged, SystemClient
from bench.systems.envelope import packed
from brokerd.model.identity import SourceId
from brokerd.model.publication import PublicationRun

PAUSE_S: Final = 0.05
"""Pause before all open publications are repeated on a connection that is still up."""


class Outgoing:
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
                bodies[topic] = packed(self._source, sequence, place, blob, one)
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

    async def until_lost(self, lost: "asyncio.Future[str]") -> str:
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
