"""The log of a broker of the ring, by source, until every reader has acknowledged."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import Peer, SourceId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Change, Chop, LogEnds, Read, RecordsRead
from brokerd.protocols.parts.event_machine import Durability
from brokerd.protocols.parts.records import pack_run, unpack_run

LOG = "flooded"
RELEASED = "released"
Positions = dict[SourceId, int]


@dataclass(slots=True, eq=False)
class Stored:
    """Publications on disk; `open` counts the clients with missing acknowledgements."""

    run: PublicationRun
    open: int = 0


class Log:
    """The publications of all sources, each without a gap.

    Attributes:
        received: the last received position per source.
        durable: the last position on disk per source.
        is_read: true once the records of earlier incarnations have been read.
    """

    def __init__(self, disk: Durability) -> None:
        self.received: Positions = {}
        self.durable: Positions = {}
        self._disk = disk
        self._stored: dict[SourceId, deque[Stored]] = {}
        self._releasing: dict[SourceId, None] = {}
        self._released: Positions = {}
        self._places: deque[tuple[int, SourceId, int]] = deque()  # index, source, last
        self._next = 1
        self.is_read = True

    def recover(self, released: Mapping[str, int], ends: LogEnds) -> None:
        """Restore the state of an earlier incarnation; the log is read in pages."""
        for key, through in released.items():
            source = SourceId(*map(int, key.split(".")))
            self.received[source] = self.durable[source] = self._released[source] = through
        self._next = ends.next
        self.is_read = ends.first == ends.next
        if not self.is_read:
            self._disk.machine.emit(Read(LOG, ends.first, ends.next))

    def on_records(self, event: RecordsRead) -> None:
        """Process a page of records, and request the next page."""
        for index, record in enumerate(event.records, event.first):
            run = unpack_run(record)
            self._places.append((index, run.source, run.last))
            rest = run.after(self.received.get(run.source, 0))
            if rest is not None:
                self.received[run.source] = rest.last
                self._keep(rest)
        after = event.first + len(event.records)
        self.is_read = after == self._next
        if not self.is_read:
            self._disk.machine.emit(Read(LOG, after, self._next))
        else:
            self._chop()

    def unknown(self, run: PublicationRun, peer: Peer) -> PublicationRun | None:
        """Return the part of a run that has not been received.

        Raises:
            RemoteProtocolError: the run has a gap, or leaves a gap before its start.
        """
        had = self.received.get(run.source, 0)
        if run.first > had + 1 or run.last - run.first + 1 != len(run):
            raise RemoteProtocolError(peer, f"{run.source} {run.first}-{run.last} after {had}")
        return run.after(had)

    def append(self, run: PublicationRun, then: Callable[[Stored], None]) -> None:
        """Store an unknown run; call `then` once the run is on disk."""
        self.received[run.source] = run.last
        self._places.append((self._next, run.source, run.last))
        self._next += 1
        self._disk.append(LOG, pack_run(run), lambda: then(self._keep(run)))

    def sources(self) -> list[SourceId]:
        """Return the sources with stored publications."""
        return list(self._stored)

    def stored(self) -> list[Stored]:
        """Return all stored publications, in the order of each source."""
        return [entry for entries in self._stored.values() for entry in entries]

    def after(self, source: SourceId, position: int) -> list[PublicationRun]:
        """Return the stored publications of a source behind a position; search from the newest."""
        found: list[PublicationRun] = []
        for entry in reversed(self._stored.get(source, ())):
            rest = entry.run.after(position)
            if rest is None:
                break
            found.append(rest)
        return found[::-1]

    def let_go(self, source: SourceId, through: int, then: Callable[[SourceId], None]) -> None:
        """Drop publications through `through` that no client needs.

        The position of the source reaches the disk before its publications are dropped.
        """
        entries = self._stored.get(source)
        last = 0
        while entries and not entries[0].open and entries[0].run.last <= through:
            if source in self._releasing:
                return
            last = entries.popleft().run.last
        if not last:
            return
        if not entries:
            del self._stored[source]
        self._releasing[source] = None

        def release() -> None:
            del self._releasing[source]
            self._released[source] = last
            self._chop()
            then(source)

        self._disk.commit((Change(RELEASED, ".".join(map(str, source)), last),), release)

    def _chop(self) -> None:
        places = self._places
        while places and places[0][2] <= self._released.get(places[0][1], 0):
            places.popleft()
        self._disk.machine.emit(Chop(LOG, places[0][0] if places else self._next))

    def _keep(self, run: PublicationRun) -> Stored:
        entry = Stored(run)
        self._stored.setdefault(run.source, deque()).append(entry)
        self.durable[run.source] = run.last
        return entry
