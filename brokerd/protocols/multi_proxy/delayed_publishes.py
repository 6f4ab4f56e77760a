"""Publish requests that wait for followers that are behind, so that no log grows for ever.

Paper: none. [MP22] §4 stores all publish requests; a publisher as fast as its window permits would
fill the server's disk and memory long before its subscribers have received anything.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.protocols.interface import Instant
from brokerd.protocols.multi_proxy.messages import Put
from brokerd.protocols.multi_proxy.topic_log import Topic
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

HELD: Final = "held"
"""Purpose of the deadline at which publishers are notified that their requests still wait."""


class RoomParameters(Protocol):
    """The bounds of requests under way, and of waits for followers."""

    @property
    def topic_window(self) -> int:
        """The distance of a follower, in publications, at which publish requests wait."""

    @property
    def patience_ns(self) -> int:
        """The wait for a follower without progress."""

    @property
    def timeout_ns(self) -> int:
        """The wait for an answer before a request is repeated."""


@dataclass(slots=True)
class Reader:
    """An access broker that follows a topic.

    Attributes:
        after: the position through which it has everything.
        moved_ns: the time of its last progress.
    """

    after: int
    moved_ns: Instant


class DelayedPublishes:
    """The waiting publish requests of a server, by topic, in order of arrival."""

    def __init__(
        self,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        parameters: RoomParameters,
    ) -> None:
        self._machine = machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._readers: dict[int, dict[BrokerNumber, Reader]] = {}
        self._held: dict[int, dict[tuple[SourceId, int], Put]] = {}

    def count(self) -> int:
        """Return the number of waiting publications."""
        return sum(len(put.run) for held in self._held.values() for put in held.values())

    def holds(self, message: Put) -> bool:
        """Return True if a request waits."""
        held = self._held.get(message.topic, {})
        return (message.run.source, message.run.last) in held

    def delays(self, topic: Topic, message: Put) -> bool:
        """Return True if a request waits until there is room; none overtakes a waiting request."""
        held = self._held.get(topic.number)
        if held is None and not self._is_full(topic):
            return False
        if held is None:
            held = self._held[topic.number] = {}
            self._wait(topic)
        held.setdefault((message.run.source, message.run.last), message)
        return True

    def on_progress(self, home: BrokerNumber, topic: Topic, after: int) -> Iterator[Put]:
        """Record the progress of an access broker; yield the requests to append."""
        readers = self._readers.setdefault(topic.number, {})
        reader = readers.get(home)
        if reader is None or after > reader.after:
            readers[home] = Reader(after, self._machine.now_ns)
            yield from self.list_ready(topic)

    def drop(self, number: int) -> None:
        """Drop the waiting requests to a topic that moves to another server.

        They are repeated there.
        """
        if self._held.pop(number, None) is not None:
            self._deadlines.cancel((HELD, number))
        self._readers.pop(number, None)

    def remove_follower(self, home: BrokerNumber, topic: Topic) -> Iterator[Put]:
        """Remove a follower of a topic; yield the requests to append."""
        self._readers.get(topic.number, {}).pop(home, None)
        yield from self.list_ready(topic)

    def list_late(self, topic: Topic) -> list[Put]:
        """Return the last waiting request of each source, and wait again."""
        if topic.number not in self._held:
            return []
        self._wait(topic)
        sources: dict[SourceId, Put] = {}
        for message in self._held[topic.number].values():
            sources[message.run.source] = message
        return [*sources.values()]

    def _wait(self, topic: Topic) -> None:
        due_ns = self._machine.now_ns + self._parameters.timeout_ns // 2
        self._deadlines.set((HELD, topic.number), due_ns)

    def _is_full(self, topic: Topic) -> bool:
        since_ns = self._machine.now_ns - self._parameters.patience_ns
        lowest = topic.assigned - self._parameters.topic_window
        readers = self._readers.get(topic.number, {}).values()
        return any(reader.after < lowest and reader.moved_ns > since_ns for reader in readers)

    def list_ready(self, topic: Topic) -> Iterator[Put]:
        """Yield the requests that wait no longer; each is appended before the next."""
        held = self._held.get(topic.number)
        while held and not self._is_full(topic):
            yield held.pop(next(iter(held)))
        if held is not None and not held:
            del self._held[topic.number]
            self._deadlines.cancel((HELD, topic.number))
