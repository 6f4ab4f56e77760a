"""What is put faster than those who follow a topic get it waits, so that no log grows for ever.

Paper: none. [MP22] §4 keeps whatever is put; a publisher that is as fast as its window lets it
would fill the server's disk and memory long before its subscribers have anything of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.protocols.interface import Instant
from brokerd.protocols.multi_proxy.messages import Put
from brokerd.protocols.multi_proxy.topic_log import Topic
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

HELD: Final = "held"
"""Purpose of the deadline at which publishers hear that what they put still waits."""


class RoomParameters(Protocol):
    """How much may be under way, and how long somebody is waited for."""

    @property
    def topic_window(self) -> int:
        """Publications of a topic that a follower may be behind before puts wait for it."""

    @property
    def patience_ns(self) -> int:
        """How long a follower that does not come further is waited for."""

    @property
    def timeout_ns(self) -> int:
        """How long an answer is waited for before it is asked for again."""


@dataclass(slots=True)
class Reader:
    """A home that follows a topic.

    Attributes:
        after: it has what is up to this position.
        moved_ns: when it last had more than before.
    """

    after: int
    moved_ns: Instant


class HeldPuts:
    """The puts of one server for which there is no room, by topic, in the order they came.

    Args:
        append: appends what is put, if it has not been.
        say_held: tells a home that what it has put is here and waits.
    """

    def __init__(
        self,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        parameters: RoomParameters,
        *,
        append: Callable[[Put], None],
        say_held: Callable[[Put], None],
    ) -> None:
        self._machine = machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._append = append
        self._say_held = say_held
        self._readers: dict[int, dict[BrokerNumber, Reader]] = {}
        self._held: dict[int, dict[tuple[SourceId, int], Put]] = {}

    def count(self) -> int:
        """How many publications wait."""
        return sum(len(put.run) for held in self._held.values() for put in held.values())

    def holds(self, message: Put) -> bool:
        """Whether what is put waits."""
        held = self._held.get(message.topic, {})
        return (message.run.source, message.run.last) in held

    def put(self, topic: Topic, message: Put) -> None:
        """Append what is put, or keep it until there is room; nothing overtakes what waits."""
        held = self._held.get(topic.number)
        if held is None and not self._is_full(topic):
            self._append(message)
            return
        if held is None:
            held = self._held[topic.number] = {}
            self._wait(topic)
        held.setdefault((message.run.source, message.run.last), message)
        self._say_held(message)

    def got(self, home: BrokerNumber, topic: Topic, after: int) -> None:
        """A home has what is up to a position."""
        readers = self._readers.setdefault(topic.number, {})
        reader = readers.get(home)
        if reader is None or after > reader.after:
            readers[home] = Reader(after, self._machine.now_ns)
            self._go_on(topic)

    def drop(self, number: int) -> None:
        """A topic is to be another server's, to which what waits is put again."""
        if self._held.pop(number, None) is not None:
            self._deadlines.cancel((HELD, number))
        self._readers.pop(number, None)

    def left(self, home: BrokerNumber, topic: Topic) -> None:
        """A home does not follow a topic any more."""
        self._readers.get(topic.number, {}).pop(home, None)
        self._go_on(topic)

    def due(self, topic: Topic) -> None:
        """Whoever was waited for may not be any more; tell those who wait what is so."""
        self._go_on(topic)
        if topic.number not in self._held:
            return
        sources: dict[SourceId, Put] = {}
        for message in self._held[topic.number].values():
            sources[message.run.source] = message
        for message in sources.values():
            self._say_held(message)
        self._wait(topic)

    def _wait(self, topic: Topic) -> None:
        due_ns = self._machine.now_ns + self._parameters.timeout_ns // 2
        self._deadlines.set((HELD, topic.number), due_ns)

    def _is_full(self, topic: Topic) -> bool:
        since_ns = self._machine.now_ns - self._parameters.patience_ns
        lowest = topic.assigned - self._parameters.topic_window
        readers = self._readers.get(topic.number, {}).values()
        return any(reader.after < lowest and reader.moved_ns > since_ns for reader in readers)

    def _go_on(self, topic: Topic) -> None:
        held = self._held.get(topic.number)
        while held and not self._is_full(topic):
            self._append(held.pop(next(iter(held))))
        if held is not None and not held:
            del self._held[topic.number]
            self._deadlines.cancel((HELD, topic.number))
