"""The log of a server's topics: every publication once, until all followers have acknowledged.

Paper: [MP22] §4 (the state is saved before success is reported; a put comes again with the same
counter, and is executed once). Deviates: one log for all topics, of runs, in place of a file for
each message; and the last number of a publisher is in the same record as its publications, so that
no crash separates them.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from brokerd.errors import StorageCorrupt
from brokerd.model.identity import BrokerNumber, SourceId, StreamId
from brokerd.model.losses import (
    has_marker,
    is_behind_loss,
    last_lost_position,
    log_marker,
)
from brokerd.model.publication import Buffer, OriginRun, PublicationRun, last_numbers
from brokerd.protocols.interface import Change, Chop, LogEnds, Read, RecordsRead
from brokerd.protocols.multi_proxy.messages import PutThrough
from brokerd.protocols.multi_proxy.retention import Topic
from brokerd.protocols.multi_proxy.state import LOG, LOST_ROWS, PUT, RELEASED, Part
from brokerd.protocols.parts.event_machine import Durability
from brokerd.protocols.parts.records import pack_run, unpack_run

_HEAD: Final = struct.Struct(">IQ")
# topic, first position

_CARRIED: Final = 1 << 31
# in the topic's place: the number of the server that has assigned the position follows

_PART: Final = struct.Struct(">I")


class _LogRecord(NamedTuple):
    """A record of the log."""

    record: int
    topic: "Topic"
    last: int
    source: SourceId
    size_bytes: int


class PlacedRun(NamedTuple):
    """Publications at their positions in a topic, to be appended to the log.

    Attributes:
        last: the last publication of the publisher; None for a loss marker.
        record: of the log.
    """

    topic: Topic
    run: PublicationRun
    last: PutThrough | None
    record: tuple[Buffer, ...]


class TopicLog:
    """The topics of a server.

    Attributes:
        is_read: True once the log of earlier incarnations is read.
        logged_bytes: of the records that are not truncated, or about to be.
        records: number of records that are durable, of all incarnations.
        lost_through: the position through which this server lost positions; 0 without a loss.
    """

    def __init__(self, broker: BrokerNumber, disk: Durability) -> None:
        self.is_read = True
        self.logged_bytes = self.lost_through = self.records = 0
        self._broker = broker
        self._disk = disk
        self._topics: dict[Part, Topic] = {}
        self._logged: deque[_LogRecord] = deque()
        self._next = 1
        self._is_chopping = False

    def __iter__(self) -> Iterator[Topic]:
        """Yield the topics that ever had a publication."""
        return iter(self._topics.values())

    def topic(self, number: int) -> Topic:
        """Return this server's own part of a topic."""
        return self.part(Part(self._broker, number))

    def part(self, part: Part) -> Topic:
        """Return a server's part of a topic, which is added if new."""
        found = self._topics.get(part)
        if found is None:
            is_own = part.server == self._broker
            suffix = "" if is_own else f".{part.server}"
            found = self._topics[part] = Topic(part, suffix, is_here=is_own)
            if is_own and self.lost_through:
                found.begin_behind(self.lost_through)
        return found

    def holds(self, part: Part) -> bool:
        """Return True if access brokers may follow a part here."""
        return part in self._topics and self._topics[part].is_here

    def announced(self, part: Part) -> int:
        """Return the last position of a part that a broker may have received.

        Lost positions were announced before the loss, although their marker may not be durable.
        """
        lost = self.lost_through if part.server == self._broker else 0
        return max(self.part(part).durable, lost)

    def parts(self, number: int) -> list[Topic]:
        """Return all parts of a topic to follow here, this server's own part first.

        Earlier owners' parts follow, the latest first.
        """
        parts = (part for part in self._topics if part.topic == number)
        others = [self._topics[part] for part in parts if part.server != self._broker]
        here = sorted((each for each in others if each.is_here), key=lambda each: each.age)
        return [self.topic(number), *here]

    def everything(self, number: int) -> list[Topic]:
        """Return all parts of a topic, including those that may not be followed here."""
        return [topic for part, topic in self._topics.items() if part.topic == number]

    # ------------------------------------------------------------ start

    def recover(self, recovered: Mapping[str, Mapping[str, Any]], ends: LogEnds) -> None:
        """Restore the state of an earlier incarnation; the log is read in pages."""
        for key, position in recovered.get(RELEASED, {}).items():
            self._make_key(key).begin_behind(position)
        for key, sequence in recovered.get(PUT, {}).items():
            number, *source = map(int, key.split("."))
            topic = self.topic(number)
            topic.put[SourceId(*source)] = topic.stored[SourceId(*source)] = sequence
        for key, runs in recovered.get(LOST_ROWS, {}).items():
            number, last, *server = map(int, key.split("."))
            self._make_key(".".join(map(str, (number, *server)))).lost.recover(last, runs)
        self._next = ends.next
        self.records = ends.next - 1
        self.is_read = ends.first == ends.next
        if not self.is_read:
            self._disk.machine.emit(Read(LOG, ends.first, ends.next))

    def _make_key(self, key: str) -> Topic:
        number, *server = map(int, key.split("."))
        return self.part(Part(server[0] if server else self._broker, number))

    def on_records(self, event: RecordsRead) -> None:
        """Take a page of the log, and read the next page.

        Raises:
            StorageCorrupt: positions do not follow each other; the fault of the disk.
        """
        for index, record in enumerate(event.records, event.first):
            number, first = _HEAD.unpack_from(record)
            topic, begins = self.topic(number & ~_CARRIED), _HEAD.size
            own = topic
            if number & _CARRIED:
                (server,) = _PART.unpack_from(record, _HEAD.size)
                topic, begins = self.part(Part(server, own.number)), begins + _PART.size
                if not topic.runs and first > topic.assigned:
                    topic.begin_behind(first - 1)
            run = unpack_run(record, begins)
            last = first + len(run) - 1
            if last > topic.released:
                if first != topic.assigned + 1 and is_behind_loss(topic.assigned, first):
                    self._skip_loss(topic, first, run)
                elif first != topic.assigned + 1:
                    raise StorageCorrupt(
                        f"log {LOG}, record {index}: position {first} of topic {topic.key}, "
                        f"after {topic.assigned}"
                    )
                topic.assigned = last
                now_ns = self._disk.machine.now_ns
                topic.retain(_place(topic.part, first, run), now_ns)
            own.on_durable(run.source, run.last)
            self._logged.append(_LogRecord(index, topic, last, run.source, len(record)))
            self.logged_bytes += len(record)
        after = event.first + len(event.records)
        self.is_read = after == self._next
        if self.is_read:
            self._chop()  # a crash may have kept what was let go of
        else:
            self._disk.machine.emit(Read(LOG, after, self._next))

    def announce_loss(self, lineage: int) -> Iterator[PlacedRun]:
        """Continue all topics of this server behind a loss; yield the markers to append.

        Positions behind the last one in the log may have been given to lost publications.
        """
        self.lost_through = last_lost_position(lineage)
        for topic in [*self]:
            if topic.part.server == self._broker and topic.assigned < self.lost_through:
                yield self._place_marker(topic, lineage)

    def _place_marker(self, topic: Topic, lineage: int) -> PlacedRun:
        stream, first = SourceId(*topic.part, 0), topic.assigned + 1
        run = log_marker(stream, lineage, first, self.lost_through)
        topic.assigned = self.lost_through
        placed = _place(topic.part, topic.assigned, run)
        head, *payload = pack_run(run)
        record = (_HEAD.pack(topic.number, topic.assigned) + bytes(head), *payload)
        self._log(topic, placed.last, run.source, record)
        return PlacedRun(topic, placed, None, record)

    def repeat(self) -> Iterator[PlacedRun]:
        """Place the retained publications of this server behind a loss; yield them to append.

        Those that an earlier incarnation has placed there, before a crash, are not placed again.
        """
        for topic in [*self]:
            retained = [run for run in topic.runs if topic.part.server == self._broker]
            behind = last_numbers(run for run in retained if run.last > self.lost_through)
            for run in retained:
                if run.last <= self.lost_through and not has_marker(run):
                    yield from self._place_again(topic, run, behind)

    def _place_again(
        self, topic: Topic, run: PublicationRun, behind: Mapping[SourceId, int]
    ) -> Iterator[PlacedRun]:
        for _, published in _split_by_publisher(run):
            if published.last <= behind.get(published.source, 0):
                continue
            first = topic.assigned + 1
            topic.assigned += len(published)
            placed = _place(topic.part, first, published)
            head, *payload = pack_run(published)
            record = (_HEAD.pack(topic.number, first) + bytes(head), *payload)
            self._log(topic, placed.last, published.source, record)
            yield PlacedRun(topic, placed, None, record)

    @staticmethod
    def _skip_loss(topic: Topic, first: int, run: PublicationRun) -> None:
        """Continue behind a loss; a topic without a marker there had no publication before."""
        if not has_marker(run):
            topic.begin_behind(first - 1)

    # ------------------------------------------------------------ put

    def put(self, number: int, previous: int, run: PublicationRun) -> PlacedRun | int | None:
        """Return the new publications of a run to append; the caller calls `store` once durable.

        Return the last durable number of the source if it has all of the run. Without the previous
        publication nothing happens: that request is repeated, and then this one.
        """
        topic = self.topic(number)
        had = topic.put.get(run.source, 0)
        if previous > had:
            return None
        rest = run.after(had)
        if rest is None:
            stored = topic.stored.get(run.source, 0)
            return stored if stored >= run.last else None
        first = topic.assigned + 1
        topic.assigned += len(rest)
        topic.put[rest.source] = rest.last
        placed = _place(topic.part, first, rest)
        head, *payload = pack_run(rest)
        record = (_HEAD.pack(number, first) + bytes(head), *payload)
        self._log(topic, placed.last, rest.source, record)
        return PlacedRun(topic, placed, PutThrough(rest.source, rest.last), record)

    def store(self, placed: PlacedRun) -> None:
        """Add publications of this server after their record is durable."""
        self.records += 1
        placed.topic.retain(placed.run, self._disk.machine.now_ns)
        if placed.last is not None:
            source, through = placed.last
            stored = placed.topic.stored
            stored[source] = max(through, stored.get(source, 0))

    def carry(self, part: Part, released: int, run: PublicationRun) -> None:
        """Append the next publications of another server's part.

        Publications through `released` do not arrive.
        """
        topic = self.part(part)
        if not topic.assigned:
            topic.begin_behind(released)
        rest = run.after(topic.assigned)
        if rest is not None and rest.first == topic.assigned + 1:
            for first, published in _split_by_publisher(rest):
                self._carry(topic, first, published)

    def _carry(self, topic: Topic, first: int, published: PublicationRun) -> None:
        topic.assigned += len(published)
        placed = _place(topic.part, first, published)
        head, *payload = pack_run(published)
        place = _HEAD.pack(topic.number | _CARRIED, first) + _PART.pack(topic.part.server)
        record = (place + bytes(head), *payload)
        self._log(topic, placed.last, published.source, record)
        self._disk.append(LOG, record, partial(self._keep, topic, placed))

    def _keep(self, topic: Topic, placed: PublicationRun) -> None:
        self.records += 1
        topic.retain(placed, self._disk.machine.now_ns)

    def settle_at(self, part: Part, last: int) -> tuple[Change, ...]:
        """Complete another server's part at its last position, and return the changes on disk.

        Without any transferred publication, nothing through `last` is needed.
        """
        topic = self.part(part)
        if topic.durable >= last:
            return ()
        topic.begin_behind(last)
        return (Change(RELEASED, topic.key, last),)

    def put_through(self, number: int, sources: Mapping[SourceId, int]) -> tuple[Change, ...]:
        """Set the last numbers of sources at another server, and return the changes on disk."""
        own, rows = self.topic(number), []
        for source, through in sources.items():
            own.put[source] = max(through, own.put.get(source, 0))
            # Own records may be chopped, with a row, while this one is written.
            own.stored[source] = max(through, own.stored.get(source, 0))
            key = ".".join(map(str, source))
            rows.append(Change(PUT, f"{number}.{key}", own.stored[source]))
        return tuple(rows)

    def _log(self, topic: Topic, last: int, source: SourceId, record: Sequence[Buffer]) -> None:
        size_bytes = sum(map(len, record))
        self._logged.append(_LogRecord(self._next, topic, last, source, size_bytes))
        self.logged_bytes += size_bytes
        self._next += 1

    def sync(self, then: Callable[[], None]) -> None:
        """Call `then` once no position assigned so far can be assigned again."""
        self._disk.sync(LOG, then)

    # ------------------------------------------------------------ release

    def release(self, topic: Topic, through: int) -> None:
        """Release a topic through a durable position that all followers have acknowledged."""
        assert through <= topic.durable, f"{through} of topic {topic.number}: {topic.durable}"
        self._disk.commit(tuple(topic.lost.forget(through)), lambda: None)
        topic.release(through)
        self._chop()

    def expire(self, topic: Topic, through: int) -> None:
        """Release a topic through a position that some follower has not acknowledged."""
        assert through <= topic.durable, f"{through} of topic {topic.number}: {topic.durable}"
        topic.expire(through)
        self._chop()

    def beyond(self, most_bytes: int) -> list[tuple[Topic, int]]:
        """Return the topics and positions to release for a smaller log.

        The oldest records are first, as a log is truncated from its beginning; records of a topic
        that moves from or to another server stay, and so do all later records. The newest record
        stays at any size.
        """
        found: list[tuple[Topic, int]] = []
        left_bytes = self.logged_bytes
        for each in self._logged:
            topic = each.topic
            is_free = topic.is_here and not topic.is_frozen and each.last <= topic.durable
            if left_bytes <= most_bytes or not is_free or each.record == self._next - 1:
                break
            left_bytes -= each.size_bytes
            found.append((topic, each.last))
        return found

    def _chop(self) -> None:
        """Truncate the log, as soon as the facts in the truncated records are durable elsewhere."""
        logged = self._logged
        if self._is_chopping:
            return
        changes: dict[tuple[str, str], int] = {}
        lost: list[Change] = []
        while logged and logged[0].last <= logged[0].topic.released:
            dropped = logged.popleft()
            self.logged_bytes -= dropped.size_bytes
            number, source = dropped.topic.number, ".".join(map(str, dropped.source))
            changes[PUT, f"{number}.{source}"] = self.topic(number).stored.get(dropped.source, 0)
            changes[RELEASED, dropped.topic.key] = dropped.last
            row = dropped.topic.lost.row(dropped.last)
            lost += [row] if row is not None else []
        if not changes:
            return
        self._is_chopping = True
        first = logged[0].record if logged else self._next

        def chop() -> None:
            self._is_chopping = False
            self._disk.machine.emit(Chop(LOG, first))
            self._chop()

        rows = tuple(Change(table, key, value) for (table, key), value in changes.items())
        self._disk.commit((*rows, *lost), chop)


def read_placed(broker: BrokerNumber, record: Buffer) -> list[PublicationRun]:
    """Return the run of a server's record at its positions; none if another server assigned them.

    Args:
        broker: the server.
    """
    number, first = _HEAD.unpack_from(record)
    if number & _CARRIED:
        return []
    return [_place(Part(broker, number), first, unpack_run(record, _HEAD.size))]


def _place(part: Part, first: int, run: PublicationRun) -> PublicationRun:
    """Return a publisher's run as a run of a topic, with consecutive positions."""
    return PublicationRun(
        StreamId(*part, 0),
        range(first, first + len(run)),
        run.attribute_table,
        run.attribute_index,
        run.payload_lengths,
        run.payload,
        (OriginRun(run.source, run.sequences),),
    )


def _split_by_publisher(run: PublicationRun) -> Iterator[tuple[int, PublicationRun]]:
    """Yield a topic's run as runs of its publishers, with their first positions."""
    place = 0
    for source, sequences in run.origins:
        part = run.select(range(place, place + len(sequences)))
        yield (
            part.first,
            PublicationRun(
                source,
                sequences,
                part.attribute_table,
                part.attribute_index,
                part.payload_lengths,
                part.payload,
            ),
        )
        place += len(sequences)
