"""Changes of subscriptions on their way to storages: a single change at a time per storage.

The next change follows the answer, so that a storage never takes an older change for a newer one,
whatever the routes.

Paper: [GES] §4 (profile changes and their epochs).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.ges_reliable.carriage import Carriage
from brokerd.protocols.ges_reliable.messages import Begun, Change, Changed, Wish
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

CHANGE: Final = "change"
"""Purpose of the deadline at which a change is sent to a storage again."""


Then = Callable[[Begun], None]
"""Receives the answer to a request."""


@dataclass(slots=True)
class Line:
    """The requests to a storage."""

    next: list[tuple[Wish, Then]] = field(default_factory=list)
    asked: list[tuple[Wish, Then]] = field(default_factory=list)
    message: Change | None = None
    number: int = 0
    waited_ns: int = 0


class Changes:
    """All requests of an access broker, or of a storage for its unit.

    Args:
        purpose: of the deadline at which a change is sent again.
        stores: True for requests of a storage.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        carriage: Carriage,
        *,
        purpose: str = CHANGE,
        stores: bool = False,
    ) -> None:
        self._purpose, self._stores = purpose, stores
        self._broker = broker
        self._machine = machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._carriage = carriage
        self._incarnation = 0
        self._lines: dict[BrokerNumber, Line] = {}

    def start(self, incarnation: int) -> None:
        """Start an incarnation; no storage has received anything of it."""
        self._incarnation = incarnation

    def tell(self, storage: BrokerNumber, wish: Wish, then: Then) -> None:
        """Send a request to a storage, and call `then` with the durable answer."""
        line = self._lines.setdefault(storage, Line())
        line.next.append((wish, then))
        self._tell(storage, line)

    def waiting(self) -> int:
        """Return the number of storages that have not answered."""
        return sum(line.message is not None for line in self._lines.values())

    def due(self, storage: BrokerNumber) -> None:
        """Send an unanswered change again."""
        line = self._lines[storage]
        if line.message is not None:
            limit_ns = self._parameters.retry_limit_ns
            self._send(storage, line, line.message, min(2 * line.waited_ns, limit_ns))

    def on_changed(self, peer: Peer, message: Changed) -> None:
        """Take a storage's answer to a change, which is durable there.

        Raises:
            RemoteProtocolError: the answer is to other requests; the fault of the peer.
        """
        line = self._lines.get(message.storage)
        asked = line.message if line is not None else None
        if line is None or asked is None:
            return
        if (message.incarnation, message.number) != (asked.incarnation, asked.number):
            return
        told = line.asked
        if [begun.key for begun in message.begun] != [wish.key for wish, _ in told]:
            raise RemoteProtocolError(peer, f"answers what was not asked: {message.begun}"[:300])
        line.asked, line.message = [], None
        self._deadlines.cancel((self._purpose, message.storage))
        for (_, then), begun in zip(told, message.begun, strict=True):
            then(begun)
        self._tell(message.storage, line)

    def _tell(self, storage: BrokerNumber, line: Line) -> None:
        if line.message is not None or not line.next:
            return
        line.asked, line.next = line.next, []
        line.number += 1
        wishes = tuple(wish for wish, _ in line.asked)
        target = self._carriage.to(storage)
        about = self._broker, self._incarnation, line.number
        change = Change(target, 0, *about, wishes, self._stores)
        self._send(storage, line, change, self._parameters.timeout_ns)

    def _send(self, storage: BrokerNumber, line: Line, change: Change, wait_ns: int) -> None:
        line.message, line.waited_ns = change, wait_ns
        self._deadlines.set((self._purpose, storage), self._machine.now_ns + wait_ns)
        self._carriage.send(change)
