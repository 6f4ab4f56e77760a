"""The interface of load clients: attach, subscribe, publish, deliver, acknowledge.

Clients do no input or output, so that tests can feed recorded bytes. They write batches encoded in
advance and count deliveries by whole buffers if possible, because a load client that is slower than
the system would be measured instead.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class ServerRefused(Exception):
    """An answer that no working server would send; the server's fault."""


class Deliveries(NamedTuple):
    """Publications in one buffer: the payload of the k-th begins at start + k · step."""

    start: int
    size: int
    step: int
    number: int


@dataclass(slots=True)
class Came:
    """The content of some received bytes.

    Attributes:
        buffer, deliveries: publications, as places in the buffer.
        acknowledged: number of own publications that the server took responsibility for.
        answer: bytes to send back.
    """

    buffer: bytes
    deliveries: list[Deliveries] = field(default_factory=list)
    acknowledged: int = 0
    answer: bytes = b""

    @property
    def delivered(self) -> int:
        """The number of delivered publications."""
        return sum(each.number for each in self.deliveries)

    def payloads(self) -> Iterator[bytes]:
        """Yield the payload of each publication, in order."""
        for start, size, step, count in self.deliveries:
            for place in range(start, start + count * step, step):
                yield self.buffer[place : place + size]


class Client(Protocol):
    """One connection of a publisher or a subscriber.

    Attributes:
        is_attached: True once the connection, and a subscriber's subscription, is established.
        awaits_acknowledgements: True if the server acknowledges publications.
    """

    is_attached: bool
    awaits_acknowledgements: bool

    def attach(self) -> bytes:
        """Return the first bytes of a new connection."""

    def publish(self, payload: bytes, count: int) -> bytes:
        """Return the bytes of `count` publications; a repeated payload costs next to nothing."""

    def feed(self, data: bytes) -> Came:
        """Decode received bytes.

        Raises:
            ServerRefused: the server refuses, or the bytes do not follow its protocol.
        """
