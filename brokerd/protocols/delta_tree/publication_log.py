"""The publication log of a publisher's broker, with acknowledgements.

With the log a publication is acknowledged once durable here; the broker is responsible for
the write, so a delivery waits for no disk. Publications that are done everywhere are chopped; after
a crash the others are published again under the old numbers, before new publications.

A record contains publications of a source, behind the finished numbers at that time of sources
with older records: an unfinished record keeps all later records.

After an accepted loss, a publisher that states more than the log contains proves a further loss. So
such a broker acknowledges only what is on disk, and before it chops a source's last record, the
source's finished number is durable in a row.

Paper: none; in [DFT11] the publisher's broker loses publications that were not forwarded.
"""

import struct
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from brokerd.errors import StorageCorrupt
from brokerd.model.client_messages import PublishAcknowledged
from brokerd.model.identity import BrokerNumber, ClientId, SourceId
from brokerd.model.publication import Buffer, PublicationRun
from brokerd.protocols.delta_tree.definition import LOG
from brokerd.protocols.delta_tree.publication_queue import PublicationQueue
from brokerd.protocols.delta_tree.state import Rows, State
from brokerd.protocols.interface import Change, Chop, LogEnds, LogRecord, Read, RecordsRead
from brokerd.protocols.parts.records import pack_run, unpack_run

_COUNT: Final = struct.Struct(">I")


_DONE: Final = struct.Struct(">QQQQ")  # source, its last publication that is done


FINISHED: Final = "finished_publications"
"""Rows of a broker that accepted a loss: by publisher, its incarnation and last finished number."""


@dataclass(slots=True)
class SourceProgress:
    """The progress of a source. All numbers end a range without gaps from the publisher's first.

    Attributes:
        appended: given to the disk.
        durable: on disk.
        done: everywhere, so that the log may release them.
        client: the publisher during its session, else "".
        offered: received on this session.
        acknowledged: acknowledged on this session.
    """

    appended: int = 0
    durable: int = 0
    done: int = 0
    client: ClientId = ""
    offered: int = 0
    acknowledged: int = 0


class PublicationLog:
    """The publications of a broker's own clients, until they are done.

    At most `queue_limit` publications of a source are acknowledged and not done: beyond that
    the publisher's window fills, and the publisher waits.

    Attributes:
        changed: the sources with publications that became safe in this event.
    """

    def __init__(self, state: State, queue: PublicationQueue) -> None:
        self._state = state
        self._queue = queue
        self._sources: dict[SourceId, SourceProgress] = {}
        self._unpublished: list[PublicationRun] = []
        self._ends = LogEnds()
        self._living: deque[tuple[int, SourceId, int]] = deque()  # index, source, last
        self._done_since: dict[SourceId, int] = {}
        self._lineage = 0
        self._found: deque[tuple[int, PublicationRun]] = deque()
        self.changed: dict[SourceId, None] = {}
        queue.finished = self.changed

    def recover(self, ends: LogEnds, recovered: Rows, lineage: int) -> None:
        """Restore finished sources, and read the log of earlier incarnations.

        Args:
            lineage: see Started.
        """
        self._ends = ends
        self._lineage = lineage
        for source, last in _read_finished(self._state.broker, recovered).items():
            self._finish(source, last)
        self._state.log_is_read = ends.first == ends.next
        if not self._state.log_is_read:
            self._state.machine.emit(Read(LOG, ends.first, ends.next))

    def on_records(self, event: RecordsRead) -> None:
        """Restore a page of the log; after the last page the log is complete."""
        for index, record in enumerate(event.records, event.first):
            done, run = _unpack(record)
            self._done_since.update(done)
            self._found.append((index, run))
        after = event.first + len(event.records)
        if after < self._ends.next:
            self._state.machine.emit(Read(LOG, after, self._ends.next))
            return
        self._state.log_is_read = True
        while self._found:
            index, run = self._found.popleft()
            last = max(self._done_since.get(run.source, 0), self._row(run.source).done)
            if run.last > last:
                self._take_over(index, run)
            else:
                self._finish(run.source, run.last)
                self._living.append((index, run.source, run.last))
        self._chop()

    def _finish(self, source: SourceId, last: int) -> None:
        """Restore that all publications of a source up to `last` are done."""
        row = self._row(source)
        row.appended = row.durable = row.done = max(row.done, last)

    def _take_over(self, index: int, run: PublicationRun) -> None:
        row = self._row(run.source)
        if not row.appended:
            row.done = run.first - 1
        row.appended = row.durable = max(row.durable, run.last)
        self._living.append((index, run.source, run.last))
        self._unpublished.append(run)

    def durable(self) -> dict[SourceId, int]:
        """Return the last publication on disk of every source."""
        return {source: row.durable for source, row in self._sources.items()}

    def unfinished(self) -> dict[SourceId, int]:
        """Return the last publication on disk of every source with unfinished publications."""
        return {
            source: row.durable for source, row in self._sources.items() if row.durable > row.done
        }

    def take_unpublished(self) -> list[PublicationRun]:
        """Return the publications to publish after the recovery, in order, and clear them."""
        unpublished, self._unpublished = self._unpublished, []
        return unpublished

    def on_opened(self, source: SourceId, client: ClientId) -> None:
        """Record a publisher's session, on which unacknowledged publications are sent again."""
        row = self._row(source)
        row.client, row.offered, row.acknowledged = client, 0, 0

    def acknowledged(self, run: PublicationRun) -> None:
        """Record that the publisher needs no acknowledgement of a run."""
        row = self._row(run.source)
        row.acknowledged = max(row.acknowledged, run.last)

    def on_closed(self, source: SourceId) -> None:
        """Record the end of a publisher's session."""
        self._row(source).client = ""

    def take(self, run: PublicationRun, *, publish_later: bool) -> None:
        """Append the new publications of a publisher's run.

        Args:
            publish_later: publish after the recovery. The log keeps the run until then: after the
                acknowledgement its publisher no longer has it.
        """
        row = self._row(run.source)
        if not row.offered:
            row.acknowledged = run.first - 1
        if not row.appended:
            row.done = run.first - 1
        row.offered = max(row.offered, run.last)
        fresh = run.after(row.appended)
        if fresh is not None:
            last = row.appended = fresh.last
            if publish_later:
                self._unpublished.append(fresh)
            self._living.append((self._ends.next, run.source, last))
            self._ends = LogEnds(self._ends.first, self._ends.next + 1)
            record = _pack(self._take_done(), fresh)
            self._state.append(LOG, record, lambda: self._on_durable(run.source, last))
        self.changed[run.source] = None

    def acknowledge(self) -> None:
        """Acknowledge publications that became safe in this event, and release finished records.

        Paper: none.
        """
        if not self.changed:
            return
        for source in self.changed:
            row = self._row(source)
            done = max(self._queue.confirmed_through(source), row.done)
            if done > row.done:
                row.done = self._done_since[source] = done
            safe = min(row.durable, done + self._state.parameters.queue_limit)
            if not self._lineage:
                safe = max(done, safe)
            last = min(safe, row.offered)
            if row.client and last > row.acknowledged:
                first, row.acknowledged = row.acknowledged + 1, last
                self._state.machine.send(row.client, PublishAcknowledged(first, last))
        self.changed.clear()
        self._chop()

    def _chop(self) -> None:
        """Release all records before the first unfinished one."""
        living, finished = self._living, dict[SourceId, int]()
        while living and living[0][2] <= (done := self._sources[living[0][1]].done):
            finished[living.popleft()[1]] = done
        first = living[0][0] if living else self._ends.next
        if first > self._ends.first:
            self._ends = LogEnds(first, self._ends.next)
            rows = [_finished_change(*each) for each in finished.items()] if self._lineage else []
            self._state.commit(rows, partial(self._state.machine.emit, Chop(LOG, first)))
        if not living:
            self._done_since.clear()

    def _take_done(self) -> dict[SourceId, int]:
        """Return finished numbers of records behind the first unfinished one, and clear them."""
        self._done_since.pop(self._living[0][1], None)  # its done ones are all before that
        done, self._done_since = self._done_since, {}
        return done

    def _on_durable(self, source: SourceId, last: int) -> None:
        row = self._sources[source]
        row.durable = max(row.durable, last)
        self.changed[source] = None

    def _row(self, source: SourceId) -> SourceProgress:
        row = self._sources.get(source)
        if row is None:
            row = self._sources[source] = SourceProgress()
        return row


def _finished_change(source: SourceId, last: int) -> Change:
    return Change(FINISHED, str(source.publisher), (source.incarnation, last))


def _read_finished(broker: BrokerNumber, recovered: Rows) -> dict[SourceId, int]:
    """Return the last finished publication of each source in the rows.

    Raises:
        StorageCorrupt: a row is not one that this broker writes.
    """
    rows: Mapping[str, Any] = recovered.get(FINISHED, {})
    found: dict[SourceId, int] = {}
    for key, value in rows.items():
        try:
            incarnation, last = value
            found[SourceId(broker, int(key), incarnation)] = last
        except (TypeError, ValueError) as error:
            raise StorageCorrupt(f"table {FINISHED}, row {key!r}: {error}") from error
    return found


def _pack(done: Mapping[SourceId, int], run: PublicationRun) -> LogRecord:
    marks = [_DONE.pack(*source, last) for source, last in done.items()]
    first, *payload = pack_run(run)
    return (_COUNT.pack(len(marks)) + b"".join((*marks, first)), *payload)


def _unpack(record: Buffer) -> tuple[dict[SourceId, int], PublicationRun]:
    (count,) = _COUNT.unpack_from(record)
    end = _COUNT.size + count * _DONE.size
    marks = _DONE.iter_unpack(record[_COUNT.size : end])
    done = {SourceId(*source): last for *source, last in marks}
    return done, unpack_run(record, end)
