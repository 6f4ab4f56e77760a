"""Publications of clients here that their storage has not acknowledged.

Paper: [GES] §4 (publications go to the storage of the publisher's unit).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges_reliable.carriage import Carriage
from brokerd.protocols.ges_reliable.messages import Store, Stored
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

PUT: Final = "put"
"""Purpose of the deadline at which unacknowledged publications are sent again."""


@dataclass(slots=True)
class Pending:
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


class Puts:
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
        self._sources: dict[SourceId, Pending] = {}
        self._waited_ns = 0

    def come(self, source: SourceId, published: int) -> None:
        """Add a publisher with earlier publications acknowledged through a number."""
        self._sources[source] = Pending(published)

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
