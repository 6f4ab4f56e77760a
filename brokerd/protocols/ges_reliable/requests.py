"""Requests that an access broker, or a storage for its unit, repeats until a storage answers.

Changes of subscriptions: a single change at a time per storage. The next change follows the
answer, so that a storage never takes an older change for a newer one, whatever the routes.

Publish requests: publications of clients here that their storage has not acknowledged.

Paper: [GES] §4 (profile changes and their epochs; publications go to the storage of the publisher's
unit).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.losses import marker
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges_reliable.messages import (
    Change,
    Changed,
    LossProof,
    Store,
    Stored,
    SubscriptionRequest,
    Targets,
)
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.state import Answer
from brokerd.protocols.interface import Instant
from brokerd.protocols.parts.deadlines import DeadlineQueue

CHANGE: Final = "change"
"""Purpose of the deadline at which a change is sent to a storage again."""
PUT: Final = "put"
"""Purpose of the deadline at which unacknowledged publications are sent again."""


@dataclass(slots=True)
class RequestQueue:
    """The requests to a storage, each with the step that follows the answer.

    Attributes:
        next: requests of the next change.
        in_flight: requests of the change that has no answer.
        message: the change that has no answer, if there is one.
        number: of the last change.
        waited_ns: the wait after which that change is sent again.
    """

    next: list[tuple[SubscriptionRequest, Any]] = field(default_factory=list)
    in_flight: list[tuple[SubscriptionRequest, Any]] = field(default_factory=list)
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
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        targets: Targets,
        *,
        purpose: str = CHANGE,
        stores: bool = False,
    ) -> None:
        self._purpose, self._stores = purpose, stores
        self._broker = broker
        self._deadlines = deadlines
        self._parameters = parameters
        self._targets = targets
        self._incarnation = 0
        self._queues: dict[BrokerNumber, RequestQueue] = {}

    def start(self, incarnation: int) -> None:
        """Start an incarnation; no storage has received anything of it."""
        self._incarnation = incarnation

    def add(
        self, storage: BrokerNumber, request: SubscriptionRequest, step: Any, now_ns: Instant
    ) -> Iterator[Change]:
        """Send a request to a storage; its durable answer is an Answer with `step`."""
        queue = self._queues.setdefault(storage, RequestQueue())
        queue.next.append((request, step))
        yield from self._send_next(storage, queue, now_ns)

    def waiting(self) -> tuple[BrokerNumber, ...]:
        """Return the storages that have not answered."""
        return tuple(
            storage for storage, queue in self._queues.items() if queue.message is not None
        )

    def due(self, storage: BrokerNumber, now_ns: Instant) -> Iterator[Change]:
        """Send an unanswered change again."""
        queue = self._queues[storage]
        if queue.message is not None:
            limit_ns = self._parameters.retry_limit_ns
            wait_ns = min(2 * queue.waited_ns, limit_ns)
            yield self._sent(storage, queue, queue.message, wait_ns, now_ns)

    def on_changed(
        self, peer: Peer, message: Changed, now_ns: Instant
    ) -> Iterator[Answer | Change]:
        """Take a storage's answer to a change, which is durable there.

        Raises:
            RemoteProtocolError: the answer is to other requests; the fault of the peer.
        """
        queue = self._queues.get(message.storage)
        queued = queue.message if queue is not None else None
        if queue is None or queued is None:
            return
        if (message.incarnation, message.number) != (queued.incarnation, queued.number):
            return
        requests = queue.in_flight
        if [answer.key for answer in message.answers] != [request.key for request, _ in requests]:
            raise RemoteProtocolError(peer, f"answers other requests: {message.answers}"[:300])
        queue.in_flight, queue.message = [], None
        self._deadlines.cancel((self._purpose, message.storage))
        for (_, step), answer in zip(requests, message.answers, strict=True):
            if step is not None:
                yield Answer(answer, step)
        yield from self._send_next(message.storage, queue, now_ns)

    def _send_next(
        self, storage: BrokerNumber, queue: RequestQueue, now_ns: Instant
    ) -> Iterator[Change]:
        if queue.message is not None or not queue.next:
            return
        queue.in_flight, queue.next = queue.next, []
        queue.number += 1
        requests = tuple(request for request, _ in queue.in_flight)
        target = self._targets.to(storage)
        about = self._broker, self._incarnation, queue.number
        change = Change(target, 0, *about, requests, self._stores)
        yield self._sent(storage, queue, change, self._parameters.timeout_ns, now_ns)

    def _sent(
        self,
        storage: BrokerNumber,
        queue: RequestQueue,
        change: Change,
        wait_ns: int,
        now_ns: Instant,
    ) -> Change:
        """Return a change to send, which is sent again after a wait without an answer."""
        queue.message, queue.waited_ns = change, wait_ns
        self._deadlines.set((self._purpose, storage), now_ns + wait_ns)
        return change


@dataclass(slots=True)
class PendingPublications:
    """The publications of a source.

    Attributes:
        submitted: the last number.
        highest: the last number at the time when the publisher connected.
        is_probing: True until the storage has reported how much of the source it has. Until then,
            numbers above `highest` wait.
        is_refused: True after the storage has reported more than `highest`.
        runs: publications without an acknowledgement, in order.
    """

    submitted: int
    highest: int = 0
    is_probing: bool = False
    is_refused: bool = False
    runs: deque[PublicationRun] = field(default_factory=deque)

    @property
    def done(self) -> int:
        """The number through which publications are stored."""
        return self.runs[0].first - 1 if self.runs else self.submitted


class PublishRequests:
    """All publish requests of an access broker.

    Args:
        storage: the storage of this broker's publishers.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        targets: Targets,
        storage: BrokerNumber,
    ) -> None:
        self._broker = broker
        self._deadlines = deadlines
        self._parameters = parameters
        self._targets = targets
        self._storage = storage
        self._sources: dict[SourceId, PendingPublications] = {}
        self._waited_ns = 0

    def add_source(
        self, source: SourceId, published: int, highest: int, now_ns: Instant, *, continues: bool
    ) -> Iterator[Store]:
        """Add a publisher with earlier publications acknowledged through a number.

        Args:
            highest: the last number that the publisher has assigned.
            continues: True if the source has been used. The storage may have more of it, if the
                publisher's state is an older copy: further numbers would count as duplicates.
        """
        self._sources[source] = PendingPublications(published, highest, is_probing=continues)
        if continues:
            yield self._request(marker(source, published, published))
            self._wait_first(now_ns)

    def remove_source(self, source: SourceId) -> None:
        """Remove a publisher; the publisher itself repeats unacknowledged publications."""
        del self._sources[source]

    def add(self, run: PublicationRun, now_ns: Instant) -> Iterator[Store]:
        """Send the new publications of a run to the storage."""
        pending = self._sources[run.source]
        rest = run.after(pending.submitted)
        if rest is None or pending.is_refused:
            return
        pending.submitted = rest.last
        pending.runs.append(rest)
        if not pending.is_probing or rest.last <= pending.highest:
            yield self._request(rest)
            self._wait_first(now_ns)

    def done(self, source: SourceId) -> int:
        """Return the number through which a source's publications are stored."""
        return self._sources[source].done

    def pending(self) -> int:
        """Return the number of unacknowledged publications."""
        return sum(len(run) for each in self._sources.values() for run in each.runs)

    def due(self, now_ns: Instant) -> Iterator[Store]:
        """Send all unacknowledged publications again."""
        runs: list[PublicationRun] = []
        for source, pending in self._sources.items():
            if pending.is_probing:
                runs.append(marker(source, pending.done, pending.done))
                runs.extend(run for run in pending.runs if run.last <= pending.highest)
            else:
                runs.extend(pending.runs)
        if not runs:
            return
        yield from map(self._request, runs)
        self._wait(min(2 * self._waited_ns, self._parameters.retry_limit_ns), now_ns)

    def refuse_older_copy(self, message: Stored) -> int | None:
        """Stop a source of which the storage has more than its publisher has sent.

        Another process, with a later state, has published the further numbers.

        Returns:
            The last number of the publisher; None if the source continues.
        """
        pending = self._sources.get(message.source)
        if pending is None or not pending.is_probing or message.through <= pending.highest:
            return None
        pending.is_probing, pending.is_refused = False, True
        pending.runs.clear()
        return pending.highest

    def refuse_loss(self, message: LossProof) -> bool:
        """Stop a source whose storage has lost publications; return False if the source lost none.

        Later publications would wait for the lost ones for ever.
        """
        pending = self._sources.get(message.source)
        if pending is None or pending.is_refused or message.acknowledged > pending.done:
            return False
        pending.is_probing, pending.is_refused = False, True
        pending.runs.clear()
        return True

    def on_probed(self, source: SourceId, now_ns: Instant) -> Iterator[Store]:
        """Send the publications that waited for the report of the storage."""
        pending = self._sources.get(source)
        if pending is None or not pending.is_probing:
            return
        pending.is_probing = False
        for run in pending.runs:
            if run.last > pending.highest:
                yield self._request(run)
        self._wait(self._parameters.timeout_ns, now_ns)

    def find_lost(self, message: Stored) -> Store | None:
        """Return a marker for publications that the storage acknowledged and does not have.

        A storage without a loss has them: its answer was late, and it drops the marker.
        """
        pending = self._sources.get(message.source)
        if pending is None or message.through >= pending.done:
            return None
        return self._request(marker(message.source, message.through + 1, pending.done))

    def on_stored(self, message: Stored, now_ns: Instant) -> bool:
        """Take the storage's acknowledgement of a source; return True for further publications."""
        pending = self._sources.get(message.source)
        if pending is None or not pending.runs or message.through < pending.runs[0].first:
            return False
        while pending.runs and pending.runs[0].last <= message.through:
            pending.runs.popleft()
        if pending.runs:
            rest = pending.runs[0].after(message.through)
            assert rest is not None, f"{pending.runs[0].sequences} ends at {message.through}"
            pending.runs[0] = rest
        self._wait(self._parameters.timeout_ns, now_ns)
        return True

    def _request(self, run: PublicationRun) -> Store:
        return Store(self._targets.to(self._storage), 0, self._broker, run)

    def _wait_first(self, now_ns: Instant) -> None:
        if (PUT, self._storage) not in self._deadlines:
            self._wait(self._parameters.timeout_ns, now_ns)

    def _wait(self, wait_ns: int, now_ns: Instant) -> None:
        self._waited_ns = wait_ns
        if any(each.runs or each.is_probing for each in self._sources.values()):
            self._deadlines.set((PUT, self._storage), now_ns + wait_ns)
        else:
            self._deadlines.cancel((PUT, self._storage))
