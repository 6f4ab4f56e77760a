"""What is on the disks of all pubends, held against what brokers know and say.

Paper: [GD02] §2.1 (the lattice's error value: a tick that is an event is nowhere known as
silent), §2.2 (logged is published).
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from brokerd.model.client_messages import Connected, PublishAcknowledged
from brokerd.model.identity import BrokerNumber, Peer, SourceId, StreamId
from brokerd.model.publication import Buffer, PublicationRun
from brokerd.overlay.cells import CellGraph
from brokerd.protocols.gryphon.checks.ghost_filters import GhostFilters
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.gryphon.intervals import IntervalSet
from brokerd.protocols.gryphon.messages import Done, Events, Silent
from brokerd.protocols.gryphon.pubends import LOG, RESERVED, unpack_logged
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
from brokerd.simulator.checks.oracle import InvariantViolated
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks
from brokerd.simulator.world.views import BrokerView

_Ghost = tuple[SourceId, int, bytes, bytes]
"""Who published it under which number, its attributes and its payload."""


@dataclass(slots=True)
class _Log:
    """A stream's events that are on disk, for ever; by tick, and their ticks in order."""

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


class GhostChecks(ProtocolChecks):
    """See ProtocolChecks; rules are those of the protocol's document.

    - silent event: nobody knows or says that a tick is silent that is an event which somebody
      below wants, and is not done with (I1);
    - other event: an event is everywhere what it is on disk (I2);
    - unborn: nothing is known of ticks behind a pubend's last event on disk (I3);
    - tick order, tick reused: a pubend's ticks increase, through restarts (I4);
    - final early: no broker takes an event for final with which somebody below is not done (I6);
    - acknowledged early: a publisher is told of what is on disk (I12);
    - curiosity, ranges: nobody waits for what is known; ranges are canonical (I9, I13).
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
        self._below: dict[tuple[BrokerNumber, BrokerNumber], tuple[BrokerNumber, ...]] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        """See ProtocolChecks."""
        self._take_durable(broker, event)
        self._wants.step(broker, event, effects)
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
                self._note_done(broker)  # what it releases it does not know after a restart
            elif type(effect) is Send:
                if type(effect.message) is Done:
                    for identity, through in effect.message.through:
                        self._note(broker.number, identity, through)
                self._check_said(broker, effect.peer, effect.message)
        return ()

    def look_into(self, broker: BrokerView, brokers: Sequence[BrokerView]) -> None:
        """See ProtocolChecks."""
        core = broker.core
        assert isinstance(core, Gryphon), f"{core} is no core of gryphon"
        for each in brokers:
            self._note_done(each)
        for stream in core.streams():
            self._look_at(broker, stream)
            self._check_final(broker, stream)

    # ------------------------------------------------------------ who is done

    def _note_done(self, broker: BrokerView) -> None:
        """How far clients have come at a broker, which it forgets in a crash and they do not."""
        core = broker.core
        assert isinstance(core, Gryphon), f"{core} is no core of gryphon"
        for stream in core.streams():
            self._note(broker.number, stream.identity, stream.subend.done)

    def _note(self, broker: BrokerNumber, identity: StreamId, through: int) -> None:
        key = broker, identity
        self._done[key] = max(through, self._done.get(key, 0))

    def _check_final(self, broker: BrokerView, stream: Stream) -> None:
        identity, final = stream.identity, stream.knowledge.final
        log = self._logs.get(identity, _Log())
        for number in self._hosts_below(broker.number, identity.broker):
            done = self._done.get((number, identity), 0)
            for tick in log.within(done + 1, final + 1) if final > done else ():
                if self._wants.wants(number, identity, tick, log.events[tick][2]):
                    what = f"{broker.name}, {tuple(identity)}: {final}"
                    raise InvariantViolated("final early", f"{what}, and {number} lacks {tick}")

    def _hosts_below(self, broker: BrokerNumber, origin: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """The brokers with clients, that stay, to which a stream comes over this one's cell."""
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
            self._reserved[broker.number] = reserved
        elif type(event) is RecordsRead and event.log == LOG:
            self._log(broker, event.records)
        elif type(event) is Started:
            self._appended = {k: v for k, v in self._appended.items() if k[0] != broker.number}
            rows = event.recovered.get(RESERVED, {}).values()
            self._reserved[broker.number] = max([0, *rows])

    def _log(self, broker: BrokerView, records: Sequence[Buffer]) -> None:
        for record in records:
            pubend, first, run = unpack_logged(record)
            log = self._logs.setdefault(StreamId(broker.number, pubend, 0), _Log())
            log.add(run, first)
            self._durable[run.source] = max(run.last, self._durable.get(run.source, 0))

    # ------------------------------------------------------------ what brokers know and say

    def _look_at(self, broker: BrokerView, stream: Stream) -> None:
        knowledge = stream.knowledge
        what = f"{broker.name}, {tuple(stream.identity)}"
        self._check_born(what, stream.identity, knowledge.highest)
        for start, end in knowledge.known:
            low = max(start, knowledge.final + 1)
            if low < end:
                run = knowledge.events.within(low, end)
                self._compare(what, stream.identity, broker.number, low, end, run)
        for name, ranges in _range_sets(stream):
            _check_canonical(f"{what}, {name}", ranges)
        if any(knowledge.known.within(*each) for each in stream.asked):
            raise InvariantViolated("curiosity", f"{what} waits for what it knows")

    def _check_born(self, what: str, identity: StreamId, tick: int) -> None:
        """A tick that is spoken of is below the last event on disk, or no event gets it."""
        log = self._logs.get(identity, _Log())
        last = max(log.ticks[-1] if log.ticks else 0, self._reserved.get(identity.broker, 0))
        if tick > last:
            raise InvariantViolated("unborn", f"{what} knows {tick}, behind {last}")

    def _check_said(self, broker: BrokerView, peer: Peer, message: object) -> None:
        what = f"{broker.name} to {peer}"
        if type(message) is Events and isinstance(peer, int):
            self._check_born(what, message.run.source, message.end - 1)
            low = max(message.start, message.final + 1)
            if low < message.end:
                run = message.run.after(low - 1)
                self._compare(what, message.run.source, peer, low, message.end, run)
        elif type(message) is Silent and isinstance(peer, int):
            for start, end in message.ranges:
                low = max(start, message.final + 1)
                if low < end:
                    self._compare(what, message.stream, peer, low, end, None)
        elif type(message) is PublishAcknowledged:
            source = self._sources.get((broker.number, str(peer)))
            if source is not None and message.last > self._durable.get(source, 0):
                raise InvariantViolated("acknowledged early", f"{what}: {message}")
        elif type(message) is Connected and message.source is not None:
            self._sources[broker.number, str(peer)] = message.source

    def _compare(
        self,
        what: str,
        identity: StreamId,
        whose: BrokerNumber,
        start: int,
        end: int,
        run: PublicationRun | None,
    ) -> None:
        """What a broker knows of [start, end), or is told, is what it needs of what is on disk."""
        told = _ghosts(run) if run is not None else {}
        log = self._logs.get(identity, _Log())
        for tick in log.within(start, end):
            if tick not in told and self._is_needed(whose, identity, tick, log.events[tick][2]):
                raise InvariantViolated("silent event", f"{what}: {tick} {log.events[tick][:2]}")
        for tick, ghost in told.items():
            if log.events.get(tick) != ghost:
                kept = log.events.get(tick, ("nothing",))[:2]
                raise InvariantViolated("other event", f"{what}: {tick} {ghost[:2]} is {kept}")

    def _is_needed(self, whose: BrokerNumber, identity: StreamId, tick: int, blob: bytes) -> bool:
        """Whether somebody at a broker or below it is owed an event."""
        if whose == identity.broker:
            return True
        return any(
            self._done.get((number, identity), 0) < tick
            and self._wants.wants(number, identity, tick, blob)
            for number in self._hosts_below(whose, identity.broker)
        )


def _ghosts(run: PublicationRun) -> Mapping[int, _Ghost]:
    found: dict[int, _Ghost] = {}
    origins = ((each.source, number) for each in run.origins for number in each.sequences)
    for (tick, blob, payload), (source, number) in zip(run.publications(), origins, strict=True):
        found[tick] = (source, number, blob, bytes(payload))
    return found


def _range_sets(stream: Stream) -> Iterator[tuple[str, IntervalSet]]:
    yield "known", stream.knowledge.known
    yield "asked", stream.asked
    for child, ranges in stream.curious.items():
        yield f"curious of {child}", ranges


def _check_canonical(what: str, ranges: IntervalSet) -> None:
    before = -1
    for start, end in ranges:
        if not before < start < end:
            raise InvariantViolated("ranges", f"{what}: [{start}, {end}) after {before}")
        before = end
