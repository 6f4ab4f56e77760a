"""The pubends of one broker: publications receive ticks, and are visible once durable.

A pubend assigns silence on request, and in advance from the rate of recent events.

Paper: [GD02] §2.2 (pubends, silence assigned in advance), §4.1 (group commit).
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from brokerd.errors import StorageCorrupt
from brokerd.model.identity import BrokerNumber, SourceId, StreamId
from brokerd.model.losses import is_stream_marker, stream_marker
from brokerd.model.publication import Buffer, OriginRun, PublicationRun
from brokerd.model.record import record
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.flow_control import weight_bytes
from brokerd.protocols.gryphon.knowledge import TICK_NS, ticks_in
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.state import PUBLISHED, RELEASED, RESERVED
from brokerd.protocols.interface import (
    Change,
    Chop,
    Effect,
    Instant,
    LogEnds,
    LogRecord,
    Read,
    RecordsRead,
)
from brokerd.protocols.parts.records import pack_run, unpack_run
from brokerd.units import SECOND_NS


class TickClock:
    """A clock of ticks: microseconds since 1970, from the machine's clock at the start.

    The clock is ahead of every tick of an earlier incarnation, for any present or later change of
    the machine's clock.
    """

    __slots__ = ("_base", "_started_ns")

    def __init__(self) -> None:
        self._base = 1
        self._started_ns: Instant = 0

    def start(self, now_ns: Instant, wall_ns: int) -> None:
        """Start the clock; the machine's clock shows `wall_ns` now."""
        self._base, self._started_ns = max(1, wall_ns // TICK_NS), now_ns

    def advance_past(self, now_ns: Instant, used: int) -> None:
        """Advance the clock behind tick `used`."""
        if self.tick(now_ns) <= used:
            self._base, self._started_ns = used + 1, now_ns

    def tick(self, now_ns: Instant) -> int:
        return self._base + (now_ns - self._started_ns) // TICK_NS


class ExpectedSilence:
    """The duration for which a pubend expects no event.

    The wait between events is estimated like TCP's round trips, with a weight of 1/8 for the last
    wait.
    """

    __slots__ = ("_last_ns", "_parameters", "_wait_ns")

    def __init__(self, parameters: GryphonParameters) -> None:
        self._parameters = parameters
        self._last_ns: Instant | None = None
        self._wait_ns = 0

    def ticks_after(self, events: int, now_ns: Instant) -> int:
        """Return the number of ticks of silence to assign after the arrival of `events` events."""
        percent, limit_ns = self._parameters.silence_percent, self._parameters.silence_limit_ns
        if not percent:
            return 0
        last_ns, self._last_ns = self._last_ns, now_ns
        if last_ns is None:
            return 0
        waited_ns = (now_ns - last_ns) // events
        self._wait_ns = (7 * self._wait_ns + waited_ns) // 8 if self._wait_ns else waited_ns
        return ticks_in(min(self._wait_ns * percent // 100, limit_ns)) - 1


_HEAD: Final = struct.Struct(">IQ")
# pubend, first tick

_LEASE_TICKS: Final = ticks_in(2 * SECOND_NS)
"""The reservation beyond the needed tick, so that few rows are written."""

_AHEAD_TICKS: Final = ticks_in(SECOND_NS)
"""The lead with which a new row is written before it is needed, for silence assigned in advance."""

_LOGGED_RECORDS: Final = 1_024
_LOGGED_TOGETHER: Final = 64
"""Number of records that are chopped together beyond _LOGGED_RECORDS, to save memory per record."""


Step = Callable[[], None]
"""The action that follows when publications are on disk."""


class _LogSpan(NamedTuple):
    """One or more records of the log: the index of the first, and their last tick and number."""

    first: int
    pubend: int
    last: int
    source: SourceId
    sequence: int


class Acceptance(Enum):
    """The result of a publication at its pubend.

    Attributes:
        REPEATED: a part of the publications is on the way to the log.
        STORED: all of the publications are on disk.
        READY: the publications wait for room in the log, which may be there.
        FIRST: the publications wait for their pubend to join total order, and are the first ones.
        WAITING: the publications wait for their pubend, which is joining.
    """

    REPEATED = "repeated"
    STORED = "stored"
    READY = "ready"
    FIRST = "first"
    WAITING = "waiting"


@record
class LogAppend:
    """Publications on their way to the log.

    Attributes:
        entry: the record of the log.
        run: the publications, as a run of their publisher.
        first: the tick of the first publication.
        silent: the tick through which silence follows.
        step: the action after the record is durable.
        lease: the tick that a reservation must include; 0 without one.
    """

    entry: LogRecord
    pubend: int
    run: PublicationRun
    first: int
    silent: int
    step: Step
    lease: int


class Reservation(NamedTuple):
    """A tick through which a restart assigns no event, once the row is durable.

    `Pubends.on_written` follows.
    """

    tick: int

    @property
    def rows(self) -> tuple[Change, ...]:
        return (Change(RESERVED, "tick", self.tick),)


class PermanentSilence(NamedTuple):
    """A stream of this broker that is silent for ever, through a tick, apart from its events."""

    stream: StreamId
    through: int


class LogRelease(NamedTuple):
    """Rows that must be durable before the log is truncated in front of a record.

    `Pubends.on_written` follows.
    """

    rows: tuple[Change, ...]
    first: int


class Pubends:
    """The log of one broker, and the ticks of its publications.

    An event's tick is higher than the ticks of all earlier events at its pubend, even of an earlier
    incarnation. Silence is announced only below a durable event, so no tick is ever both.

    Attributes:
        is_read: the state of earlier incarnations is complete.
        is_reserving: ticks that an older state of this broker may have used are being excluded.
        reserved: no later event gets a tick through this one after a restart.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        parameters: GryphonParameters,
    ) -> None:
        pubends = parameters.pubends
        self.is_read = True
        self.is_reserving = False
        self._broker = broker
        self._streams = [StreamId(broker, pubend, 0) for pubend in range(pubends)]
        self._window_bytes = parameters.send_window_bytes
        self._logging_bytes = 0
        self._held: deque[tuple[int, PublicationRun, Step]] = deque()
        self._has_begun = [not parameters.is_total] * pubends
        self._waiting: dict[int, list[tuple[PublicationRun, Step]]] = {}
        self._pending: list[deque[int]] = [deque() for _ in range(pubends)]
        self._expected = [ExpectedSilence(parameters) for _ in range(pubends)]
        self._promised = [0] * pubends
        self._announced = [0] * pubends
        self._reserving = self.reserved = 0
        self._clock = TickClock()
        self._last = [0] * pubends
        self._released = [0] * pubends
        self._restored = [0] * pubends
        self._marked = [0] * pubends
        self._assigned: dict[SourceId, int] = {}
        self._durable: dict[SourceId, int] = {}
        self._logged: deque[_LogSpan] = deque()
        self._next = 1
        self._is_releasing = False

    def stream(self, pubend: int) -> StreamId:
        return self._streams[pubend]

    def released(self, pubend: int) -> int:
        """Return the released tick of a pubend, as last written to disk or announced."""
        return self._released[pubend]

    def tick(self, now_ns: Instant) -> int:
        """Return the present tick."""
        return self._clock.tick(now_ns)

    # ------------------------------------------------------------ start

    def recover(
        self,
        recovered: Mapping[str, Mapping[str, Any]],
        ends: LogEnds,
        now_ns: Instant,
        wall_ns: int,
    ) -> list[Effect]:
        """Restore the state of an earlier incarnation; the log is read in pages.

        Args:
            wall_ns: the present time of the machine's clock.
        """
        self._clock.start(now_ns, wall_ns)
        for key, tick in recovered.get(RELEASED, {}).items():
            if int(key) < len(self._last):
                self._last[int(key)] = self._released[int(key)] = tick
                self._has_begun[int(key)] = True
        for key, sequence in recovered.get(PUBLISHED, {}).items():
            publisher, incarnation = map(int, key.split("."))
            source = SourceId(self._broker, publisher, incarnation)
            self._assigned[source] = self._durable[source] = sequence
        for tick in recovered.get(RESERVED, {}).values():
            self._reserving = self.reserved = tick
            self._last = [max(last, tick) for last in self._last]
        self._next = ends.next
        self.is_read = ends.first == ends.next
        return [] if self.is_read else [Read(LOG, ends.first, ends.next)]

    def exclude_past(self, now_ns: Instant) -> Reservation:
        """Return a reservation that excludes ticks that lost events may have had.

        Otherwise a neighbour could have more of a stream than its pubend. `on_written` follows
        when the reservation is durable.
        """
        self.is_reserving = True
        self._reserving = max(self.reserved, self._clock.tick(now_ns))
        return Reservation(self._reserving)

    def loss_markers(self, lineage: int) -> list[PublicationRun]:
        """Return a loss marker for each stream, once per accepted loss."""
        return [self._stream_marker(lineage, pubend, 1) for pubend in range(len(self._last))]

    def next_loss_marker(self, lineage: int, pubend: int) -> PublicationRun:
        """Return another loss marker, behind a tick that another broker has acknowledged.

        The clock has gone back, so the earlier markers may lie below that tick and be invisible.
        """
        source = self._stream_marker(lineage, pubend, 1).source
        return self._stream_marker(lineage, pubend, self._assigned.get(source, 0) + 1)

    def _stream_marker(self, lineage: int, pubend: int, number: int) -> PublicationRun:
        return stream_marker(self._broker, lineage, pubend, len(self._last), number)

    def on_records(self, event: RecordsRead) -> Iterator[PublicationRun]:
        """Restore a page of the log; yield the retained events, as runs of their streams.

        Raises:
            StorageCorrupt: a record is not of this broker, or not in order.
        """
        for index, entry in enumerate(event.records, event.first):
            pubend, first, run = unpack_logged(entry)
            if run.source.broker != self._broker or pubend >= len(self._last):
                raise StorageCorrupt(
                    f"log {LOG}, record {index}: of pubend {pubend} of broker {run.source.broker}; "
                    f"this is broker {self._broker}, with {len(self._last)}"
                )
            now = run.source.publisher % len(self._last)
            if now != pubend and first + len(run) - 1 > self._released[pubend]:
                raise StorageCorrupt(
                    f"log {LOG}, record {index}: publisher {run.source.publisher} was at pubend "
                    f"{pubend}, and with pubends = {len(self._last)} it is at {now}: subscribers "
                    "could receive its publications out of order; start with the former `pubends`"
                )
            if first <= self._restored[pubend]:
                raise StorageCorrupt(
                    f"log {LOG}, record {index}: tick {first} of pubend {pubend}, "
                    f"after {self._restored[pubend]}"
                )
            self._restored[pubend] = last = first + len(run) - 1
            self._has_begun[pubend] = True
            self._note_marked(pubend, first, run)
            self._note_logged(_LogSpan(index, pubend, last, run.source, run.last))
            self._last[pubend] = max(self._last[pubend], last)
            self._assigned[run.source] = max(run.last, self._assigned.get(run.source, 0))
            self._durable[run.source] = self._assigned[run.source]
            if last > self._released[pubend]:
                yield _place(self.stream(pubend), first, run)

    def next_page(self, event: RecordsRead) -> list[Effect]:
        """Return the read of the page after this one; set `is_read` after the last page."""
        after = event.first + len(event.records)
        self.is_read = after == self._next
        return [] if self.is_read else [Read(LOG, after, self._next)]

    def begin(self, now_ns: Instant) -> list[LogRelease]:
        """Begin with the complete state of earlier incarnations; return a due truncation."""
        self._clock.advance_past(now_ns, max(self._last))
        self._restored = [*self._last]
        return self._release_log()

    # ------------------------------------------------------------ publishing

    def durable(self, source: SourceId) -> int:
        """Return the last sequence number of a source that is on disk."""
        return self._durable.get(source, 0)

    def sources(self, stream: StreamId) -> Iterator[tuple[SourceId, int]]:
        """Yield all sources of a stream, with their last sequence numbers on disk."""
        for source, sequence in self._durable.items():
            if source.publisher % len(self._last) == stream.publisher:
                yield source, sequence

    def losses(self, stream: StreamId) -> tuple[int, list[tuple[SourceId, int]]]:
        """Return the tick of a stream's last loss marker, and its markers with their numbers.

        Any tick below that is not in the log may have been an event that is lost.
        """
        found = [
            (source, last)
            for source, last in self._assigned.items()
            if is_stream_marker(source) and source.publisher % len(self._last) == stream.publisher
        ]
        return self._marked[stream.publisher], found

    def restored_tick(self, pubend: int) -> int:
        """Return the last tick of an event of an earlier incarnation."""
        return self._restored[pubend]

    def accept(self, run: PublicationRun, step: Step) -> Acceptance:
        """Accept the new part of a run, and the step that follows once the whole run is on disk."""
        rest = run.after(self._assigned.get(run.source, 0))
        if rest is None:
            is_stored = self.durable(run.source) >= run.last
            return Acceptance.STORED if is_stored else Acceptance.REPEATED
        self._assigned[rest.source] = rest.last
        pubend = rest.source.publisher % len(self._last)
        if self._has_begun[pubend]:
            self._held.append((pubend, rest, step))
            return Acceptance.READY
        is_first = pubend not in self._waiting
        self._waiting.setdefault(pubend, []).append((rest, step))
        return Acceptance.FIRST if is_first else Acceptance.WAITING

    def pubend_of(self, source: SourceId) -> int:
        """Return the pubend of a source's publications."""
        return source.publisher % len(self._last)

    def begin_pubend(self, pubend: int) -> None:
        """Begin a pubend, and make waiting publications ready for the log."""
        self._has_begun[pubend] = True
        self._held.extend((pubend, run, step) for run, step in self._waiting.pop(pubend, ()))

    @property
    def can_log(self) -> bool:
        """True if a publication waits, and the log has room.

        At most one window is on the way to the log. Publishers receive no acknowledgement
        meanwhile, and have windows of their own.
        """
        return bool(self._held) and self._logging_bytes < self._window_bytes

    def held(self) -> int:
        """Return the number of publications that wait for room."""
        return sum(len(run) for _, run, _ in self._held)

    def waiting(self) -> int:
        """Return the number of publications that wait for the begin of their pubend."""
        return sum(len(run) for runs in self._waiting.values() for run, _ in runs)

    def log_next(self, now_ns: Instant) -> LogAppend:
        """Assign ticks to the next publications that wait, and return their record."""
        pubend, rest, step = self._held.popleft()
        first = max(self._last[pubend] + 1, self._clock.tick(now_ns))
        last = first + len(rest) - 1
        silent = self._last[pubend] = self._silent_after(pubend, last, len(rest), now_ns)
        self._pending[pubend].append(first)
        self._note_marked(pubend, first, rest)
        self._note_logged(_LogSpan(self._next, pubend, last, rest.source, rest.last))
        self._next += 1
        self._logging_bytes += weight_bytes(rest)
        head, *payload = pack_run(rest)
        entry = (_HEAD.pack(pubend, first) + bytes(head), *payload)
        lease = silent + _AHEAD_TICKS if silent > last else 0
        return LogAppend(entry, pubend, rest, first, silent, step, lease)

    def on_logged(self, logged: LogAppend) -> tuple[PublicationRun, int]:
        """Return durable publications as a run of their stream, and the end of the silence."""
        pubend, rest = logged.pubend, logged.run
        self._durable[rest.source] = rest.last
        self._logging_bytes -= weight_bytes(rest)
        self._pending[pubend].popleft()
        placed = _place(self.stream(pubend), logged.first, rest)
        # Else a restart could give an event one of these ticks.
        return placed, logged.silent if logged.silent <= self.reserved else placed.last

    def _note_marked(self, pubend: int, tick: int, run: PublicationRun) -> None:
        if is_stream_marker(run.source):
            self._marked[pubend] = tick

    def _note_logged(self, record: _LogSpan) -> None:
        """Record the place of a record; in a long list, adjacent records share an entry.

        Released and unreleased records share none: after a crash before a chop, rows of released
        records would decrease.
        """
        before = self._logged[-1] if len(self._logged) > _LOGGED_RECORDS else None
        if (
            before is not None
            and (before.pubend, before.source) == (record.pubend, record.source)
            and not before.last <= self._released[record.pubend] < record.last
            and record.first - before.first < _LOGGED_TOGETHER
        ):
            record = _LogSpan(before.first, *record[1:])
            self._logged.pop()
        self._logged.append(record)

    # ------------------------------------------------------------ silence

    def is_assigned(self, pubend: int, through: int) -> bool:
        """Return True if silence was assigned through a tick."""
        return through <= self._promised[pubend]

    def assign_silence(
        self, pubend: int, through: int, now_ns: Instant
    ) -> list[Reservation | PermanentSilence]:
        """Assign silence through a tick; return what follows, nothing for assigned silence.

        No later event gets one of the ticks. The silence is permanent when the events with lower
        ticks are durable, and the reservation is durable that keeps a restart from reusing the
        ticks: see `permanent_silence`.

        Paper: [GD02] §2.2 (silence assigned in advance).
        """
        if self.is_assigned(pubend, through):
            return []
        self._promised[pubend] = through
        self._last[pubend] = max(self._last[pubend], through)
        self._clock.advance_past(now_ns, through)
        return [*self.reserve(through), *self.permanent_silence(pubend)]

    def _silent_after(self, pubend: int, last: int, events: int, now_ns: Instant) -> int:
        """Return the tick through which silence follows the last of `events` events.

        The silence begins now, so that ticks never run far ahead of the clock.
        """
        expected = self._expected[pubend].ticks_after(events, now_ns)
        silent = self._clock.tick(now_ns) + expected
        return silent if expected and silent > last else last

    def reserve(self, through: int) -> list[Reservation]:
        """Return a new reservation, unless an earlier one includes this tick."""
        if through <= self._reserving:
            return []
        self._reserving = through + _LEASE_TICKS
        return [Reservation(self._reserving)]

    def _on_reserved(self, tick: int) -> list[PermanentSilence]:
        """Record a durable reservation; assign no excluded tick; return permanent silence."""
        self.reserved = max(self.reserved, tick)
        if self.is_reserving:
            self.is_reserving = False
            self._last = [max(last, tick) for last in self._last]
        return [
            silence
            for pubend in range(len(self._last))
            for silence in self.permanent_silence(pubend)
        ]

    def permanent_silence(self, pubend: int) -> Sequence[PermanentSilence]:
        """Return assigned silence that is permanent now, once."""
        through, pending = self._promised[pubend], self._pending[pubend]
        is_free = not pending or pending[0] > through
        if self._announced[pubend] < through <= self.reserved and is_free:
            self._announced[pubend] = through
            return (PermanentSilence(self._streams[pubend], through),)
        return ()

    # ------------------------------------------------------------ releasing

    def release(self, pubend: int, through: int) -> list[LogRelease]:
        """Release the events of a pubend through a tick; return a due truncation."""
        self._released[pubend] = through
        return self._release_log()

    def _release_log(self) -> list[LogRelease]:
        """Return the next truncation of the log, but one at a time."""
        logged = self._logged
        if self._is_releasing or not logged:
            return []
        changes: dict[tuple[str, str], int] = {}
        while logged and logged[0].last <= self._released[logged[0].pubend]:
            dropped = logged.popleft()
            source = f"{dropped.source.publisher}.{dropped.source.incarnation}"
            changes[PUBLISHED, source] = dropped.sequence
            changes[RELEASED, str(dropped.pubend)] = dropped.last
        if not changes:
            return []
        self._is_releasing = True
        first = logged[0].first if logged else self._next
        rows = tuple(Change(table, key, value) for (table, key), value in changes.items())
        return [LogRelease(rows, first)]

    def on_written(self, fact: LogRelease | Reservation, _now_ns: Instant) -> list[Any]:
        """Return the permanent silence, or the log truncations, that durable rows permit."""
        if isinstance(fact, Reservation):
            return self._on_reserved(fact.tick)
        self._is_releasing = False
        return [Chop(LOG, fact.first), *self._release_log()]


def unpack_logged(record: Buffer) -> tuple[int, int, PublicationRun]:
    """Return the pubend, the first tick and the publisher's run in a record of the log."""
    pubend, first = _HEAD.unpack_from(record)
    return pubend, first, unpack_run(record, _HEAD.size)


def _place(stream: StreamId, first: int, run: PublicationRun) -> PublicationRun:
    """Return a publisher's run as a run of the stream, with consecutive ticks."""
    return PublicationRun(
        stream,
        range(first, first + len(run)),
        run.attribute_table,
        run.attribute_index,
        run.payload_lengths,
        run.payload,
        (OriginRun(run.source, run.sequences),),
    )
