"""The log of a storage: publications in a single order, with epochs, and publishers' frontiers.

An epoch is a place in a root's log. An epoch is sent only after its publication is durable, so
that no crash gives the epoch to another publication. A storage that takes publications from others
keeps their epochs, and may have read the other log further than to its own last epoch.

A publisher that moves to another broker repeats all publications without an acknowledgement, and
new publications may arrive first. A storage that took the highest number for the frontier would
take the missing publications for duplicates.

Paper: [GES] §4 (epochs; stable storage). Deviates: the paper has no frontiers, and would lose
overtaken publications.
"""

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from brokerd.errors import StorageCorrupt
from brokerd.model.identity import BrokerNumber, SourceId, StreamId
from brokerd.model.losses import (
    has_marker,
    last_lost_position,
    log_marker,
    lost_range,
    marker,
)
from brokerd.model.publication import Buffer, OriginRun, PublicationRun, last_numbers
from brokerd.protocols.ges_reliable.definition import LOG
from brokerd.protocols.ges_reliable.state import FRONTIERS, RELEASED, Event, LogAppend, LogRelease
from brokerd.protocols.interface import Change, Chop, LogEnds, Read, RecordsRead
from brokerd.protocols.parts.records import pack_run, unpack_run

_HEAD: Final = struct.Struct(">QI")
# first epoch, the root that has it from a home
_ONE_BY_ONE: Final = 1 << 31
"""Added to that root's number: all epochs follow, since some are left out."""


class _Logged(NamedTuple):
    """A record of the log."""

    record: int
    last: int
    source: SourceId
    sequence: int


class EpochLog:
    """The log of a storage.

    Args:
        held_limit: publications of a source that are stored while an earlier one is missing.
        is_root: True for a storage that assigns epochs.

    Attributes:
        is_read: True once the log of earlier incarnations is read.
        assigned: the last epoch that was assigned or taken over, durable or not.
        durable: everything to be stored through this epoch is on disk.
        released: publications through this epoch are not needed.
        lost_through: the epoch through which this storage lost epochs; 0 without a loss.
        retained_bytes: of the payloads after that.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        held_limit: int,
        *,
        is_root: bool = True,
    ) -> None:
        self._is_root = is_root
        self._in_flight = 0
        self.is_read = False
        self.assigned = self.durable = self.released = self.retained_bytes = 0
        self.lost_through = 0
        self.stream = StreamId(broker, 0, 0)
        self._held_limit = held_limit
        self._frontiers: dict[SourceId, Frontier] = {}
        self._stored: dict[SourceId, int] = {}
        self._events: deque[Event] = deque()
        self._logged: deque[_Logged] = deque()
        self._next = 1
        self._is_chopping = False

    # ------------------------------------------------------------ start

    def recover(
        self, recovered: Mapping[str, Mapping[str, Any]], ends: LogEnds
    ) -> Iterator[Read | LogRelease]:
        """Restore the state of an earlier incarnation; the log is read in pages."""
        for epoch in recovered.get(RELEASED, {}).values():
            self.assigned = self.durable = self.released = epoch
        for key, sequence in recovered.get(FRONTIERS, {}).items():
            source = SourceId(*map(int, key.split(".")))
            self._frontiers[source] = Frontier(sequence)
            self._stored[source] = sequence
        self._next = ends.next
        yield from self._read_on(ends.first)

    def on_records(self, event: RecordsRead) -> Iterator[Read | LogRelease]:
        """Take a page of the log, and read the next page.

        Raises:
            StorageCorrupt: epochs do not follow each other; the fault of the disk.
        """
        for index, record in enumerate(event.records, event.first):
            root, numbers, run = read_record(record)
            first, last = numbers[0], numbers[-1]
            if last > self.released:
                is_next = first == self.assigned + 1 or not self._is_root or has_marker(run)
                if first <= self.assigned or not is_next:
                    raise StorageCorrupt(
                        f"log {LOG}, record {index}: epoch {first}, after {self.assigned}"
                    )
                self.assigned = last
                self._retain(Event(self._placed(numbers, run), root))
            frontier = self._frontiers.setdefault(run.source, Frontier())
            frontier.reached = max(run.last, frontier.reached)
            self._stored[run.source] = frontier.reached
            self._logged.append(_Logged(index, last, run.source, frontier.reached))
        self.durable = self.assigned
        yield from self._read_on(event.first + len(event.records))

    def _read_on(self, first: int) -> Iterator[Read | LogRelease]:
        self.is_read = first == self._next
        if self.is_read:
            yield from self._chop()  # a crash may have come between
        else:
            yield Read(LOG, first, self._next)

    def announce_loss(self, lineage: int) -> Iterator[LogAppend]:
        """Continue behind a loss, which a marker in the log announces.

        Epochs behind the last one in the log may have been given to lost publications.
        """
        self.lost_through = last_lost_position(lineage)
        if self.assigned < self.lost_through:
            stream, first = SourceId(*self.stream), self.assigned + 1
            run = log_marker(stream, lineage, first, self.lost_through)
            epochs = range(self.lost_through, self.lost_through + 1)
            yield self._append(epochs, run, self.stream.broker)

    def repeat(self) -> Iterator[LogAppend]:
        """Append the retained publications in front of a loss again, at epochs behind the loss.

        Those that an earlier incarnation has appended, before a crash, are not appended again.
        """
        retained = [*self._events]
        behind = last_numbers(each.run for each in retained if each.run.last > self.lost_through)
        for event in retained:
            if event.run.last <= self.lost_through and not has_marker(event.run):
                for part in event.run.split_by_origin():
                    if part.last <= behind.get(part.source, 0):
                        continue
                    epochs = range(self.assigned + 1, self.assigned + 1 + len(part))
                    yield self._append(epochs, replace(part, place=None), event.root)
                    reached = max(part.last, self.stored(part.source))  # no frontier decreases
                    self._logged[-1] = self._logged[-1]._replace(sequence=reached)

    @property
    def is_announced(self) -> bool:
        """Return True unless a loss is not announced on disk yet."""
        return self.durable >= self.lost_through

    # ------------------------------------------------------------ storing

    def store(self, run: PublicationRun, root: BrokerNumber) -> Iterator[LogAppend]:
        """Assign epochs to the next publications of a source.

        Later publications wait for earlier ones, and stored publications are dropped.
        """
        frontier = self._frontiers.setdefault(run.source, Frontier())
        if has_marker(run):
            parts = frontier.skip(run, root) if self.lost_through else []
        else:
            parts = frontier.take(run, self._held_limit, root)
        for part, origin in parts:
            first = self.assigned + 1
            yield self._append(range(first, first + len(part)), part, origin)

    def keep(self, run: PublicationRun, root: BrokerNumber) -> Iterator[LogAppend]:
        """Store publications of another storage with the epochs assigned there."""
        assert run.first > self.assigned, f"{run.sequences}, behind {self.assigned}"
        for part in run.split_by_origin():
            assert part.place is not None, f"{part.source} is of no storage"
            yield self._append(part.place.positions, replace(part, place=None), root)

    def reach(self, epoch: int) -> None:
        """Record that the other storage has nothing more for this storage through an epoch."""
        self.assigned = max(self.assigned, epoch)
        if not self._in_flight:
            self.durable = self.assigned

    def has(self, source: SourceId, first: int, last: int) -> bool:
        """Return True if all of these publications were taken, or wait for earlier ones."""
        return self._frontiers.setdefault(source, Frontier()).has(first, last)

    def _append(
        self, epochs: range | tuple[int, ...], run: PublicationRun, root: BrokerNumber
    ) -> LogAppend:
        self.assigned = epochs[-1]
        self._in_flight += 1
        event = Event(self._placed(epochs, run), root)
        self._logged.append(_Logged(self._next, event.run.last, run.source, run.last))
        self._next += 1
        head, *payload = pack_run(run)
        return LogAppend((_front(epochs, root) + bytes(head), *payload), event)

    def on_appended(self, event: Event) -> None:
        """Take the durability of a record."""
        (origin,) = event.run.origins
        self._stored[origin.source] = max(origin.sequences[-1], self.stored(origin.source))
        self._retain(event)
        self._in_flight -= 1
        if not self._in_flight:
            self.durable = self.assigned

    def stored(self, source: SourceId) -> int:
        """Return the number through which a source's publications are on disk."""
        return self._stored.get(source, 0)

    def reached(self) -> tuple[tuple[SourceId, int], ...]:
        """Return, per source, the number through which all publications have an epoch.

        The numbers are complete at a root only.
        """
        found = ((source, each.reached) for source, each in self._frontiers.items())
        return tuple(sorted(each for each in found if each[1]))

    def waiting(self) -> int:
        """Return the number of publications that wait for earlier ones."""
        return sum(frontier.waiting() for frontier in self._frontiers.values())

    def _retain(self, event: Event) -> None:
        self.durable = event.run.last
        if event.run.last > self.released:
            self._events.append(event)
            self.retained_bytes += event.run.payload_bytes()

    def _placed(self, epochs: range | tuple[int, ...], run: PublicationRun) -> PublicationRun:
        """Return a publisher's run as a run of this log, with epochs for numbers."""
        return PublicationRun(
            self.stream,
            epochs,
            run.attribute_table,
            run.attribute_index,
            run.payload_lengths,
            run.payload,
            (OriginRun(run.source, run.sequences),),
        )

    # ------------------------------------------------------------ reading and release

    def after(self, epoch: int) -> Iterator[Event]:
        """Yield the publications on disk after an epoch, in order."""
        place = bisect_right(self._events, epoch, key=lambda event: event.run.last)
        for index in range(place, len(self._events)):
            event = self._events[index]
            run = event.run.after(epoch)
            assert run is not None, f"{event.run.sequences} ends at {epoch}"
            yield Event(run, event.root)

    def retained(self) -> int:
        """Return the number of publications that may still be needed."""
        return sum(len(event.run) for event in self._events)

    def release(self, through: int) -> Iterator[LogRelease]:
        """Release publications that are not needed any more.

        Paper: [GES] §4 (a stored event goes when its reference count is 0).
        """
        assert through <= self.durable, f"epoch {through} of {self.durable}"
        self.released = max(self.released, through)
        while self._events and self._events[0].run.last <= self.released:
            self.retained_bytes -= self._events.popleft().run.payload_bytes()
        yield from self._chop()

    def _chop(self) -> Iterator[LogRelease]:
        """Truncate the log, as soon as the facts in the truncated records are durable elsewhere."""
        if self._is_chopping:
            return
        rows: dict[tuple[str, str], int] = {}
        while self._logged and self._logged[0].last <= self.released:
            dropped = self._logged.popleft()
            rows[FRONTIERS, ".".join(map(str, dropped.source))] = dropped.sequence
            rows[RELEASED, ""] = dropped.last
        if not rows:
            return
        self._is_chopping = True
        first = self._logged[0].record if self._logged else self._next
        changes = [Change(table, key, value) for (table, key), value in rows.items()]
        yield LogRelease(changes, first)

    def on_released(self, first: int) -> Iterator[Chop | LogRelease]:
        """Truncate the log in front of a record, after the durability of its rows."""
        self._is_chopping = False
        yield Chop(LOG, first)
        yield from self._chop()


def _front(epochs: range | tuple[int, ...], root: BrokerNumber) -> bytes:
    """Return the beginning of a record."""
    if isinstance(epochs, range):
        return _HEAD.pack(epochs[0], root)
    count = len(epochs)
    return _HEAD.pack(epochs[0], root | _ONE_BY_ONE) + struct.pack(f">I{count}Q", count, *epochs)


def read_record(record: Buffer) -> tuple[BrokerNumber, range | tuple[int, ...], PublicationRun]:
    """Return the root, the epochs and the publications of a record."""
    first, root = _HEAD.unpack_from(record)
    if not root & _ONE_BY_ONE:
        run = unpack_run(record, _HEAD.size)
        return root, range(first, first + len(run)), run
    (count,) = struct.unpack_from(">I", record, _HEAD.size)
    epochs = struct.unpack_from(f">{count}Q", record, _HEAD.size + 4)
    return root ^ _ONE_BY_ONE, epochs, unpack_run(record, _HEAD.size + 4 + 8 * count)


class Part(NamedTuple):
    """Publications of a source, and the root that received the run from an access broker."""

    run: PublicationRun
    root: BrokerNumber


@dataclass(slots=True)
class Frontier:
    """The frontier of a source with publications numbered from 1.

    Attributes:
        reached: the number through which all have been taken.
        out_of_order: runs that arrived out of order, by first number.
    """

    reached: int = 0
    out_of_order: dict[int, Part] = field(default_factory=dict)

    def has(self, first: int, last: int) -> bool:
        """Return True if all of these numbers were taken, or wait for earlier ones."""
        missing = max(first, self.reached + 1)
        for number in sorted(self.out_of_order):
            run = self.out_of_order[number].run
            if run.first <= missing <= run.last:
                missing = run.last + 1
        return missing > last

    def waiting(self) -> int:
        """Return the number of publications that wait for earlier ones."""
        return sum(len(part.run) for part in self.out_of_order.values())

    def skip(self, run: PublicationRun, root: BrokerNumber) -> list[Part]:
        """Return a marker in place of lost publications, and those that waited for them."""
        source, first, last = lost_range(run)
        if not first - 1 <= self.reached < last:
            return []
        lost = Part(marker(source, self.reached + 1, last), root)
        self.reached = last
        return [lost, *self._take_early()]

    def _take_early(self) -> Iterator[Part]:
        """Yield the publications that have waited and are next, in order."""
        while self.out_of_order and min(self.out_of_order) <= self.reached + 1:
            run, root = self.out_of_order.pop(min(self.out_of_order))
            rest = run.after(self.reached)
            if rest is not None:
                self.reached = rest.last
                yield Part(rest, root)

    def take(self, run: PublicationRun, limit: int, root: BrokerNumber = 0) -> list[Part]:
        """Return the publications that are next, in order; store at most `limit` out of order."""
        if run.first > self.reached + 1:
            longest = self.out_of_order.get(run.first)
            if longest is None or longest.run.last < run.last:
                self.out_of_order[run.first] = Part(run, root)
                while self.waiting() > limit:
                    del self.out_of_order[max(self.out_of_order)]
            return []
        found: list[Part] = []
        rest = run.after(self.reached)
        if rest is not None:
            found.append(Part(rest, root))
            self.reached = rest.last
        return [*found, *self._take_early()]
