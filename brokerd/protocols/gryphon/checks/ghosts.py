"""Checks of brokers' knowledge and messages against the disks of all pubends.

Paper: [GD02] §2.1 (the lattice's error value: a tick that is an event is nowhere known as
silent), §2.2 (logged is published).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from brokerd.model.client_messages import Connected, PublishAcknowledged
from brokerd.model.identity import BrokerNumber, Peer, SourceId, StreamId
from brokerd.model.losses import has_marker, is_stream_marker
from brokerd.model.publication import Buffer, PublicationRun
from brokerd.overlay.cells import CellGraph
from brokerd.protocols.gryphon.checks.holdings import GhostFilters
from brokerd.protocols.gryphon.checks.stream_states import gryphon_of
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.knowledge import IntervalSet, Range
from brokerd.protocols.gryphon.messages import Done, Events, Silent
from brokerd.protocols.gryphon.pubend import unpack_logged
from brokerd.protocols.gryphon.state import RESERVED
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.interface import (
    Append,
    Commit,
    Effect,
    Event,
    Persisted,
    RecordsRead,
    Send,
    Started,
)
from brokerd.simulator.checks.losses import Stretch
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

_Ghost = tuple[SourceId, int, bytes, bytes]
"""The source, sequence number, attributes and payload of a publication."""


@dataclass(slots=True)
class _Log:
    """The events of a stream that were ever on disk, by tick, and their ticks in order."""

    events: dict[int, _Ghost] = field(default_factory=dict)
    ticks: list[int] = field(default_factory=list)

    def add(self, run: PublicationRun, first: int) -> None:
        for tick, (sequence, blob, payload) in enumerate(run.publications(), first):
            ghost = (run.source, sequence, blob, bytes(payload))
            known = self.events.setdefault(tick, ghost)
            if known is not ghost and known != ghost:
                raise InvariantViolated("tick reused", f"{tick}: {known[:2]} and {ghost[:2]}")
            if known is ghost:
                if self.ticks and tick <= self.ticks[-1]:
                    raise InvariantViolated("tick order", f"{tick} after {self.ticks[-1]}")
                self.ticks.append(tick)

    def within(self, start: int, end: int) -> list[int]:
        return self.ticks[bisect_left(self.ticks, start) : bisect_left(self.ticks, end)]

    @property
    def last(self) -> int:
        return self.ticks[-1] if self.ticks else 0


_NOTHING = _Log()


@dataclass(slots=True)
class _Seen:
    """The last compared state of one stream at one broker.

    Attributes:
        state: the final tick, the number of events on disk, and the changes of filters.
        known: the known ranges.
        runs: the retained runs; holding the objects proves that equal ones are the same.
    """

    state: tuple[int, int, int] = (0, 0, 0)
    known: list[Range] = field(default_factory=list)
    runs: list[PublicationRun] = field(default_factory=list)


@dataclass(slots=True)
class _StableFacts:
    """Facts that stay true until a filter changes: acks only grow, and disks lose nothing.

    Attributes:
        changes: of filters until now.
        final: per broker and stream, the tick through which its clients have acknowledged.
        unneeded: per broker and stream, events that no subscription there or below is owed.
    """

    changes: int = 0
    final: dict[tuple[BrokerNumber, StreamId], int] = field(default_factory=dict)
    unneeded: dict[tuple[BrokerNumber, StreamId], set[int]] = field(default_factory=dict)


class GhostChecks(ProtocolChecks):
    """See ProtocolChecks; the names of rules stand in the protocol's document.

    - silent event: no broker has or sends silence at the tick of an event that a subscription below
      wants and has not acknowledged (I1);
    - other event: an event is equal everywhere to the event on disk (I2);
    - unassigned tick: no broker has knowledge behind a pubend's last event on disk (I3);
    - tick order, tick reused: a pubend's ticks increase, through restarts (I4);
    - final early: no broker makes an event final before all cells below have acknowledged (I6);
    - acknowledged early: only durable publications are acknowledged to a publisher (I12);
    - curiosity, ranges: no request names ticks with knowledge; ranges are canonical (I9, I13).
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        self._logs: dict[StreamId, _Log] = {}
        self._durable: dict[SourceId, int] = {}
        self._sources: dict[tuple[int, str], SourceId] = {}
        self._appended: dict[tuple[int, int, int], list[bytes]] = {}
        self._done: dict[tuple[BrokerNumber, StreamId], int] = {}
        self._reserved: dict[BrokerNumber, int] = {}
        self._reserving: dict[tuple[int, int, int], int] = {}
        self._wants = GhostFilters(world)
        self._stepped: dict[BrokerNumber, BrokerView] = {}
        self._seen: dict[tuple[BrokerNumber, StreamId], _Seen] = {}
        self._settled = _StableFacts()
        self._below: dict[tuple[BrokerNumber, BrokerNumber], tuple[BrokerNumber, ...]] = {}
        self._lossy: dict[BrokerNumber, None] = {}
        self._disk_changes = 0
        self._markers: dict[StreamId, list[int]] = {}
        self._lost: dict[StreamId, int] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        self._stepped[broker.number] = broker
        if type(event) is Started and event.lineage:
            self._lossy[broker.number] = None  # lost events are silent from now on, and announced
            for identity, log in self._logs.items():
                if identity.broker == broker.number:
                    self._lost[identity] = log.last
        self._take_durable(broker, event)
        self._wants.step(broker, event, effects)
        if self._settled.changes != self._wants.changes:
            self._settled = _StableFacts(self._wants.changes)
        for effect in effects:
            if type(effect) is Append and effect.log == LOG:
                assert effect.token is not None, f"{effect} is not waited for"
                records = [b"".join(map(bytes, record)) for record in effect.records]
                self._appended[broker.number, broker.incarnation, effect.token] = records
            elif type(effect) is Commit:
                for change in effect.changes:
                    if change.table == RESERVED and effect.token is not None:
                        key = broker.number, broker.incarnation, effect.token
                        self._reserving[key] = change.value
                self._note_done(broker)  # released acks are lost in a restart
            elif type(effect) is Send:
                if type(effect.message) is Done:
                    for identity, through in effect.message.through:
                        self._note(broker.number, identity, through)
                self._check_stated(broker, effect.peer, effect.message)
        return ()

    def check_stream(self, broker: BrokerView, stream: Stream) -> None:
        """Check the state of one stream at a broker."""
        self._look_at(broker, stream)
        self._check_final(broker, stream)

    def facts_of(self, identity: StreamId) -> tuple[int, int, int]:
        """Return the facts outside of a broker that `check_stream` depends on.

        The number of events on the pubend's disk, the last reserved tick, and changes of filters.
        """
        ticks = self._logs.get(identity, _NOTHING).ticks
        return len(ticks), self._reserved.get(identity.broker, 0), self._settled.changes

    def logged_events(
        self, identity: StreamId, after: int, through: int
    ) -> list[tuple[int, bytes]]:
        """Return the events of a stream behind `after` through `through`, with their attributes."""
        log = self._logs.get(identity, _NOTHING) if identity.broker not in self._lossy else _NOTHING
        return [(tick, log.events[tick][2]) for tick in log.within(after + 1, through + 1)]

    def markers(self, identity: StreamId) -> Sequence[int]:
        """Return the ticks of all loss markers that were on disk in a stream, in order."""
        return self._markers.get(identity, ())

    def is_in_gap(
        self, gap: Stretch, source: SourceId, sequence: int, *, is_lost_there: bool
    ) -> bool:
        """See ProtocolChecks: a marker stands for events of its stream that its broker has lost."""
        if source.publisher % self.world.parameters.pubends != gap.stream.publisher:
            return False
        log = self._logs.get(gap.stream, _NOTHING)
        last, *_ = log.events.get(gap.last, (source,))
        if is_lost_there and is_stream_marker(last):
            return True
        ticks = log.within(gap.first, gap.last + 1)
        return any(log.events[tick][:2] == (source, sequence) for tick in ticks)

    def check_events(self, subject: str, identity: StreamId, run: PublicationRun) -> None:
        """Check that a run of events equals the events on disk."""
        _check_events(subject, self._logs.get(identity, _NOTHING), run)

    @property
    def changes(self) -> tuple[int, int]:
        """The number of changes of pubends' disks, and of changes of filters."""
        return self._disk_changes, self._wants.changes

    # ------------------------------------------------------------ acks

    def note_acknowledgements(self) -> None:
        """Record the acks of all brokers that have handled events since the last call."""
        for each in self._stepped.values():
            self._note_done(each)
        self._stepped.clear()

    def _note_done(self, broker: BrokerView) -> None:
        """Record the acks of a broker's clients, which survive the broker's crash."""
        core = gryphon_of(broker.protocol)
        number, done = broker.number, self._done
        for stream in core.streams:
            if (through := stream.subend.done) > done.get(key := (number, stream.identity), 0):
                done[key] = through

    def _note(self, broker: BrokerNumber, identity: StreamId, through: int) -> None:
        key = broker, identity
        if through > self._done.get(key, 0):
            self._done[key] = through

    def _check_final(self, broker: BrokerView, stream: Stream) -> None:
        identity, final = stream.identity, stream.knowledge.final
        log, key = self._logs.get(identity, _NOTHING), (broker.number, identity)
        # More events may follow the last one on disk.
        before = max(self._settled.final.get(key, 0), self._lost.get(identity, 0))
        through = min(final, log.last)
        if through <= before:
            return
        for number in self._hosts_below(broker.number, identity.broker):
            done = max(before, self._done.get((number, identity), 0))
            for tick in log.within(done + 1, through + 1):
                if self._wants.wants(number, identity, tick, log.events[tick][2]):
                    subject = f"{broker.name}, {tuple(identity)}: {final}"
                    raise InvariantViolated("final early", f"{subject}, and {number} lacks {tick}")
        self._settled.final[key] = through

    def _hosts_below(self, broker: BrokerNumber, origin: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return the remaining brokers with clients that receive a stream through a cell."""
        found = self._below.get((broker, origin))
        if found is None:
            graph = self.world.graph
            cells = graph.overlay
            assert isinstance(cells, CellGraph), f"{cells} is none of cells"
            here = cells.cell_of(broker)
            found = tuple(
                number
                for number in range(len(cells.brokers))
                if len(cells.members[cells.cell_of(number)]) == 1
                and here in cells.cells_between(cells.cell_of(origin), cells.cell_of(number))
            )
            self._below[broker, origin] = found
        return tuple(each for each in found if not self.world.is_gone(each))

    # ------------------------------------------------------------ the ghosts

    def _take_durable(self, broker: BrokerView, event: Event) -> None:
        if type(event) is Persisted:
            key = broker.number, broker.incarnation, event.token
            self._log(broker, self._appended.pop(key, ()))
            reserved = max(self._reserving.pop(key, 0), self._reserved.get(broker.number, 0))
            if reserved != self._reserved.get(broker.number):
                self._reserved[broker.number] = reserved
                self._disk_changes += 1
        elif type(event) is RecordsRead and event.log == LOG:
            self._log(broker, event.records)
        elif type(event) is Started:
            self._appended = {k: v for k, v in self._appended.items() if k[0] != broker.number}
            rows = event.recovered.get(RESERVED, {}).values()
            lost = self._reserved.get(broker.number, 0) if event.lineage else 0
            self._reserved[broker.number] = max([lost, *rows])
            self._disk_changes += 1

    def _log(self, broker: BrokerView, records: Sequence[Buffer]) -> None:
        self._disk_changes += len(records)
        for record in records:
            pubend, first, run = unpack_logged(record)
            log = self._logs.setdefault(StreamId(broker.number, pubend, 0), _Log())
            log.add(run, first)
            if has_marker(run):
                self._markers.setdefault(StreamId(broker.number, pubend, 0), []).append(first)
            self._durable[run.source] = max(run.last, self._durable.get(run.source, 0))

    # ------------------------------------------------------------ knowledge and messages

    def _look_at(self, broker: BrokerView, stream: Stream) -> None:
        knowledge, identity = stream.knowledge, stream.identity
        log = self._logs.get(identity, _NOTHING)
        if not self._is_born(log, identity, knowledge.highest):
            raise self._unborn(_describe(broker, identity), identity, knowledge.highest)
        state = knowledge.final, len(log.ticks), self._settled.changes
        known, runs = [*knowledge.known], [*knowledge.events]
        seen = self._seen.setdefault((broker.number, identity), _Seen())
        if state != seen.state or known != seen.known or runs != seen.runs:
            self._look_anew(broker, stream, log, seen.runs)
            seen.state, seen.known, seen.runs = state, known, runs
        for child, ranges in stream.curious.items() if stream.curious else ():
            _check_canonical(broker, identity, f"curious of {child}", ranges)
        if stream.requested:
            _check_canonical(broker, identity, "requested", stream.requested)
            if any(knowledge.known.within(*each) for each in stream.requested):
                subject = f"{_describe(broker, identity)} waits for known ticks"
                raise InvariantViolated("curiosity", subject)

    def _look_anew(
        self, broker: BrokerView, stream: Stream, log: _Log, seen: Sequence[PublicationRun]
    ) -> None:
        """Check a changed stream, except for runs that were compared before."""
        knowledge, identity = stream.knowledge, stream.identity
        subject = _describe(broker, identity)
        for start, end in knowledge.known:
            low = max(start, knowledge.final + 1)
            if low < end:
                stated = knowledge.events.ticks(low, end)
                self._check_silent(subject, identity, broker.number, log.within(low, end), stated)
        compared = {run.first: run for run in seen}
        for run in knowledge.events:
            if compared.get(run.first) is not run:
                _check_events(subject, log, run)
        _check_canonical(broker, identity, "known", knowledge.known)

    def _is_born(self, log: _Log, identity: StreamId, tick: int) -> bool:
        """Return True if a tick has an event on disk, or can never have one."""
        return tick <= log.last or tick <= self._reserved.get(identity.broker, 0)

    def _unborn(self, subject: str, identity: StreamId, tick: int) -> InvariantViolated:
        last = max(self._logs.get(identity, _NOTHING).last, self._reserved.get(identity.broker, 0))
        return InvariantViolated("unassigned tick", f"{subject} has {tick}, after {last}")

    def _check_stated(self, broker: BrokerView, peer: Peer, message: object) -> None:
        if type(message) is Events and isinstance(peer, int):
            identity, subject = message.run.source, f"{broker.name} to {peer}"
            log = self._logs.get(identity, _NOTHING)
            if not self._is_born(log, identity, message.end - 1):
                raise self._unborn(subject, identity, message.end - 1)
            low = max(message.start, message.final + 1)
            if low < message.end:
                run = message.run.after(low - 1)
                stated, there = run.sequences if run else (), log.within(low, message.end)
                self._check_silent(subject, identity, peer, there, stated)
                if run is not None:
                    _check_events(subject, log, run)
        elif type(message) is Silent and isinstance(peer, int):
            log = self._logs.get(message.stream, _NOTHING)
            for start, end in message.ranges:
                there = log.within(max(start, message.final + 1), end)
                self._check_silent(f"{broker.name} to {peer}", message.stream, peer, there, ())
        elif type(message) is PublishAcknowledged:
            source = self._sources.get((broker.number, str(peer)))
            if source is not None and message.last > self._durable.get(source, 0):
                subject = f"{broker.name} to {peer}: {message}"
                raise InvariantViolated("acknowledged early", subject)
        elif type(message) is Connected and message.source is not None:
            self._sources[broker.number, str(peer)] = message.source

    def _check_silent(
        self,
        subject: str,
        identity: StreamId,
        host: BrokerNumber,
        there: Sequence[int],
        stated: Sequence[int],
    ) -> None:
        """Check that a broker has, or receives, all events on disk that it needs."""
        if not there or there == [*stated] or identity.broker in self._lossy:
            return
        stated_ticks, log = {*stated}, self._logs.get(identity, _NOTHING)
        unneeded = self._settled.unneeded.setdefault((host, identity), set())
        for tick in there:
            if tick in stated_ticks or tick in unneeded:
                continue
            if self._is_needed(host, identity, tick, log.events[tick][2]):
                raise InvariantViolated("silent event", f"{subject}: {tick} {log.events[tick][:2]}")
            unneeded.add(tick)

    def _is_needed(self, host: BrokerNumber, identity: StreamId, tick: int, blob: bytes) -> bool:
        """Return True if a subscription at a broker or below is owed an event."""
        if host == identity.broker:
            return True
        return any(
            self._done.get((number, identity), 0) < tick
            and self._wants.wants(number, identity, tick, blob)
            for number in self._hosts_below(host, identity.broker)
        )


def _describe(broker: BrokerView, identity: StreamId) -> str:
    return f"{broker.name}, {tuple(identity)}"


def _check_events(subject: str, log: _Log, run: PublicationRun) -> None:
    """Check that a run of events equals the events on disk."""
    events = log.events
    origins = ((each.source, number) for each in run.origins for number in each.sequences)
    for (tick, blob, payload), (source, number) in zip(run.publications(), origins, strict=True):
        ghost = source, number, blob, bytes(payload)
        if events.get(tick) != ghost:
            kept = events.get(tick, ("nothing",))[:2]
            raise InvariantViolated("other event", f"{subject}: {tick} {ghost[:2]} is {kept}")


def _check_canonical(
    broker: BrokerView, identity: StreamId, name: str, ranges: IntervalSet
) -> None:
    before = -1
    for start, end in ranges:
        if not before < start < end:
            subject = f"{_describe(broker, identity)}, {name}: [{start}, {end}) after {before}"
            raise InvariantViolated("ranges", subject)
        before = end
