"""Requests that an access broker, or a storage for its unit, repeats until a storage answers.

Changes of subscriptions: a single change at a time per storage. The next change follows the
answer, so that a storage never takes an older change for a newer one, whatever the routes.

Publish requests: publications of clients here that their storage has not acknowledged.

Paper: [GES] §4 (profile changes and their epochs; publications go to the storage of the publisher's
unit).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges_reliable.carriage import Carriage
from brokerd.protocols.ges_reliable.messages import Begun, Change, Changed, Store, Stored, Wish
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

CHANGE: Final = "change"
"""Purpose of the deadline at which a change is sent to a storage again."""


Then = Callable[[Begun], None]
"""Receives the answer to a request."""


@dataclass(slots=True)
class RequestQueue:
    """The requests to a storage."""

    next: list[tuple[Wish, Then]] = field(default_factory=list)
    asked: list[tuple[Wish, Then]] = field(default_factory=list)
    message: Change | None = None
    number: int = 0
    waited_ns: int = 0


class SubscriptionRequests:
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
        self._lines: dict[BrokerNumber, RequestQueue] = {}

    def start(self, incarnation: int) -> None:
        """Start an incarnation; no storage has received anything of it."""
        self._incarnation = incarnation

    def tell(self, storage: BrokerNumber, wish: Wish, then: Then) -> None:
        """Send a request to a storage, and call `then` with the durable answer."""
        line = self._lines.setdefault(storage, RequestQueue())
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

    def _tell(self, storage: BrokerNumber, line: RequestQueue) -> None:
        if line.message is not None or not line.next:
            return
        line.asked, line.next = line.next, []
        line.number += 1
        wishes = tuple(wish for wish, _ in line.asked)
        target = self._carriage.to(storage)
        about = self._broker, self._incarnation, line.number
        change = Change(target, 0, *about, wishes, self._stores)
        self._send(storage, line, change, self._parameters.timeout_ns)

    def _send(
        self, storage: BrokerNumber, line: RequestQueue, change: Change, wait_ns: int
    ) -> None:
        line.message, line.waited_ns = change, wait_ns
        self._deadlines.set((self._purpose, storage), self._machine.now_ns + wait_ns)
        self._carriage.send(change)


PUT: Final = "put"
"""Purpose of the deadline at which unacknowledged publications are sent again."""


@dataclass(slots=True)
class PendingPublications:
    """The publications of a source.

    Attributes:
        submitted: the last number.
        runs: publications without an acknowledgement, in order.
    """

    submitted: int
    runs: deque[PublicationRun] = field(default_factory=deque)

    @property
    def done(self) -> int:
        """The number through which publications are stored."""
        return self.runs[0].first - 1 if self.runs else self.submitted


class PublishRequests:
    """All publish requests of an access broker.

    Args:
        storage: the storage of this broker's publishers.
        on_stored: called with a source that has further stored publications.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        carriage: Carriage,
        storage: BrokerNumber,
        on_stored: Callable[[SourceId], None],
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._carriage = carriage
        self._storage = storage
        self._on_stored = on_stored
        self._sources: dict[SourceId, PendingPublications] = {}
        self._waited_ns = 0

    def come(self, source: SourceId, published: int) -> None:
        """Add a publisher with earlier publications acknowledged through a number."""
        self._sources[source] = PendingPublications(published)

    def gone(self, source: SourceId) -> None:
        """Remove a publisher; the publisher itself repeats unacknowledged publications."""
        del self._sources[source]

    def put(self, run: PublicationRun) -> None:
        """Send the new publications of a run to the storage."""
        pending = self._sources[run.source]
        rest = run.after(pending.submitted)
        if rest is None:
            return
        pending.submitted = rest.last
        pending.runs.append(rest)
        self._send(rest)
        if (PUT, self._storage) not in self._deadlines:
            self._wait(self._parameters.timeout_ns)

    def done(self, source: SourceId) -> int:
        """Return the number through which a source's publications are stored."""
        return self._sources[source].done

    def pending(self) -> int:
        """Return the number of unacknowledged publications."""
        return sum(len(run) for each in self._sources.values() for run in each.runs)

    def due(self) -> None:
        """Send all unacknowledged publications again."""
        runs = [run for pending in self._sources.values() for run in pending.runs]
        if not runs:
            return
        for run in runs:
            self._send(run)
        self._wait(min(2 * self._waited_ns, self._parameters.retry_limit_ns))

    def on_stored(self, peer: Peer, message: Stored) -> None:
        """Take the storage's acknowledgement of a source."""
        pending = self._sources.get(message.source)
        if pending is None or not pending.runs or message.through < pending.runs[0].first:
            return
        while pending.runs and pending.runs[0].last <= message.through:
            pending.runs.popleft()
        if pending.runs:
            rest = pending.runs[0].after(message.through)
            assert rest is not None, f"{pending.runs[0].sequences} ends at {message.through}"
            pending.runs[0] = rest
        self._wait(self._parameters.timeout_ns)
        self._on_stored(message.source)

    def _send(self, run: PublicationRun) -> None:
        self._carriage.send(Store(self._carriage.to(self._storage), 0, self._broker, run))

    def _wait(self, wait_ns: int) -> None:
        self._waited_ns = wait_ns
        if self.pending():
            self._deadlines.set((PUT, self._storage), self._machine.now_ns + wait_ns)
        else:
            self._deadlines.cancel((PUT, self._storage))
