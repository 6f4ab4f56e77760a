"""What a load client of any system does: attach, subscribe, publish, deliver, acknowledge.

Clients do no input or output, so that tests feed them recorded bytes. They write batches that
they have encoded before and count what comes by whole buffers where they can, because a load
client that is slower than the system would be what is measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class ServerRefused(Exception):
    """A server answered what no working server would; says what."""


class Deliveries(NamedTuple):
    """So many publications in one buffer: the payload of the k-th begins at start + k · step."""

    start: int
    size: int
    step: int
    number: int


@dataclass(slots=True)
class Came:
    """What some received bytes brought.

    Attributes:
        buffer, deliveries: publications, as places in the buffer.
        acknowledged: how many publications of ours the server took responsibility for.
        answer: what is to be sent back.
    """

    buffer: bytes
    deliveries: list[Deliveries] = field(default_factory=list)
    acknowledged: int = 0
    answer: bytes = b""

    @property
    def delivered(self) -> int:
        """How many publications came."""
        return sum(each.number for each in self.deliveries)

    def payloads(self) -> Iterator[bytes]:
        """Each publication's payload, in order."""
        for start, size, step, count in self.deliveries:
            for place in range(start, start + count * step, step):
                yield self.buffer[place : place + size]


class Client(Protocol):
    """One connection of a publisher or a subscriber.

    Attributes:
        is_attached: what `attach` began is done; a subscriber's subscription is there.
        awaits_acknowledgements: publications are answered with acknowledgements.
    """

    is_attached: bool
    awaits_acknowledgements: bool

    def attach(self) -> bytes:
        """What a new connection begins with."""

    def publish(self, payload: bytes, count: int) -> bytes:
        """A payload as so many publications; the same one again costs next to nothing."""

    def feed(self, data: bytes) -> Came:
        """What was received.

        Raises:
            ServerRefused: the server says no, or what came is not of its protocol.
        """
