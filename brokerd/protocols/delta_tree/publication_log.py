"""What a publisher's broker has on disk of its publications, and when it says so.

With the log a publication is acknowledged once it is durable here; its broker has taken over
from the publisher to see it delivered, across crashes of both. It is sent on at once, beside
the writing, so a delivery waits for no disk. What is done everywhere is released; after a crash
the rest is published again under its old numbers, before anything new.

Paper: none; [DFT11] has the publisher's broker lose what it had not sent on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from brokerd.model.client_messages import PublishAcknowledged
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.publication_queue import PublicationQueue
from brokerd.protocols.delta_tree.state import State
from brokerd.protocols.interface import Release


@dataclass(slots=True)
class Logged:
    """One source. All numbers are the last of a row without holes from the publisher's first.

    Attributes:
        appended: given to the disk.
        durable: on it.
        released: done everywhere, so that the log may give them up.
        client: its publisher while that has a session, else "".
        offered: received on this session.
        acknowledged: told on this session.
    """

    appended: int = 0
    durable: int = 0
    released: int = 0
    client: ClientId = ""
    offered: int = 0
    acknowledged: int = 0


class PublicationLog:
    """The publications of one broker's own clients, until they are done.

    At most `queue_limit` publications of a source are acknowledged and not done: beyond that
    its publisher's window fills, and it waits.
    """

    def __init__(self, state: State, queue: PublicationQueue) -> None:
        self._state = state
        self._queue = queue
        self._sources: dict[SourceId, Logged] = {}
        self._changed: dict[SourceId, None] = {}
        self._unpublished: list[PublicationRun] = []
        queue.acknowledge_by(self._note)

    def recover(self, logged: Sequence[PublicationRun]) -> None:
        """Take over what an earlier incarnation has left on disk."""
        self._unpublished = list(logged)
        for run in logged:
            row = self._row(run.source)
            if not row.appended:
                row.released = run.first - 1
            row.appended = row.durable = max(row.durable, run.last)

    def durable(self) -> list[tuple[SourceId, int]]:
        """Per source, the last publication on disk."""
        return [(source, row.durable) for source, row in self._sources.items()]

    def take_unpublished(self) -> list[PublicationRun]:
        """What has to be published when the recovery is over, in order; given once."""
        unpublished, self._unpublished = self._unpublished, []
        return unpublished

    def opened(self, source: SourceId, client: ClientId) -> None:
        """The publisher has a session and sends again what it holds."""
        row = self._row(source)
        row.client, row.offered, row.acknowledged = client, 0, 0

    def closed(self, source: SourceId) -> None:
        """The publisher's session is over."""
        self._row(source).client = ""

    def take(self, run: PublicationRun, *, publish_later: bool) -> None:
        """Publications from their publisher: append what is new.

        Args:
            publish_later: nothing is published before the recovery is over. The log keeps it
                until then: once it is acknowledged its publisher has it no longer.
        """
        row = self._row(run.source)
        if not row.offered:
            row.acknowledged = run.first - 1
        if not row.appended:
            row.released = run.first - 1
        row.offered = max(row.offered, run.last)
        fresh = run.after(row.appended)
        if fresh is not None:
            last = row.appended = fresh.last
            if publish_later:
                self._unpublished.append(fresh)
            self._state.append(fresh, lambda: self._on_durable(run.source, last))
        self._note(run.source)

    def acknowledge(self) -> None:
        """Tell publishers what this event has made safe, and the log what it has made done.

        Paper: none.
        """
        if not self._changed:
            return
        for source in self._changed:
            row = self._sources[source]
            done = max(self._queue.done_through(source), row.released)
            if done > row.released:
                row.released = done
                self._state.machine.emit(Release(source, done))
            safe = max(done, min(row.durable, done + self._state.parameters.queue_limit))
            last = min(safe, row.offered)
            if row.client and last > row.acknowledged:
                first, row.acknowledged = row.acknowledged + 1, last
                self._state.machine.send(row.client, PublishAcknowledged(first, last))
        self._changed.clear()

    def _on_durable(self, source: SourceId, last: int) -> None:
        row = self._sources[source]
        row.durable = max(row.durable, last)
        self._note(source)

    def _note(self, source: SourceId) -> None:
        self._changed[source] = None
        self._row(source)

    def _row(self, source: SourceId) -> Logged:
        row = self._sources.get(source)
        if row is None:
            row = self._sources[source] = Logged()
        return row
