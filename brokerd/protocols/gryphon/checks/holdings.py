"""Checks of owed events by disks of subscribers' brokers, and of retained events.

A subscription is owed the matching events behind the ticks where it has begun, independent of
the filters at any broker. A subscription that had ended, and is on an older copy of the disk that
its broker has accepted, is owed no events: other brokers may have released them.

Paper: [GD02] §2.1 (an ever-growing prefix is final), §2.2 (form of a pubend's stream), §3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.predicate import Predicate
from brokerd.model.publication import PublicationRun
from brokerd.overlay.cells import CellGraph
from brokerd.protocols.gryphon.checks.stream_states import gryphon_of
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.pubend import unpack_logged
from brokerd.protocols.gryphon.state import BEGINS
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.interface import (
    Append,
    Change,
    Chop,
    Commit,
    Effect,
    Event,
    Persisted,
    RecordsRead,
    Started,
)
from brokerd.protocols.parts.clients.own_subscriptions import SUBSCRIPTIONS
from brokerd.protocols.parts.records import read_predicate
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

_Counted = tuple[list[PublicationRun], int, int]
"""A broker's retained runs, with the number of their events and payload bytes."""


class HoldingChecks(ProtocolChecks):
    """See ProtocolChecks; the names of rules stand in the protocol's document.

    - pubend with a gap: at the pubend a stream has no gap up to its end (I4);
    - chopped early: a log keeps every record that a broker may lack (I8);
    - still curious: no request names ticks with knowledge while the window has room (I9);
    - retained: no event is retained that all below have acknowledged, and counts are exact (I16);
    - unsettled: ticks that all have acknowledged are final, at each broker with the acks (I16).
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        cells = world.graph.overlay
        assert isinstance(cells, CellGraph), f"{cells} is none of cells"
        self._hosts = [len(cells.members[cells.cell_of(n)]) == 1 for n in range(len(cells.brokers))]
        self._records: dict[BrokerNumber, dict[int, tuple[StreamId, int]]] = {}
        self._next: dict[BrokerNumber, int] = {}
        self._counted: dict[tuple[BrokerNumber, StreamId], _Counted] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        records = self._records.setdefault(broker.number, {})
        if type(event) is Started:
            records.clear()
            self._next[broker.number] = event.logs[LOG].next
        elif type(event) is RecordsRead and event.log == LOG:
            for index, record in enumerate(event.records, event.first):
                records[index] = _last_of(broker.number, bytes(record))
        for effect in effects:
            if type(effect) is Append and effect.log == LOG:
                for parts in effect.records:
                    index = self._next[broker.number]
                    records[index] = _last_of(broker.number, b"".join(map(bytes, parts)))
                    self._next[broker.number] = index + 1
            elif type(effect) is Chop and effect.log == LOG:
                self._check_chop(broker, effect)
        return ()

    def check_stream(self, broker: BrokerView, core: Gryphon, stream: Stream) -> None:
        """Check the state of one stream at a broker."""
        knowledge, identity = stream.knowledge, stream.identity
        known = knowledge.known
        if stream.upstream is None and len(known) > 1:
            subject = f"{_describe(broker, identity)}: {[*known]}"
            raise InvariantViolated("pubend with a gap", subject[:300])
        self._check_retained(broker, stream)
        done = min(self._list_acks(broker, stream), default=knowledge.final)
        if done > knowledge.final:
            subject = f"{_describe(broker, identity)}: {self._list_acks(broker, stream)}"
            raise InvariantViolated("unsettled", f"{subject}, final is {knowledge.final}")
        for peer, ranges in stream.curious.items():
            if core.flow.answer_room_bytes(peer, stream.identity) <= 0:
                continue
            if stated := [part for each in ranges for part in known.within(*each)]:
                subject = f"{_describe(broker, identity)}: {peer} of {stated}"
                raise InvariantViolated("still curious", subject)

    def _list_acks(self, broker: BrokerView, stream: Stream) -> list[int]:
        """Return the acks of all cells and clients that an event here may concern."""
        done = [*map(stream.acknowledged_by, stream.children)]
        if self._hosts[broker.number]:
            done.append(stream.subend.done)
        if stream.held is not None:
            done.append(stream.held)
        return done

    def _check_retained(self, broker: BrokerView, stream: Stream) -> None:
        """Check the counts of retained runs. Runs never change, so equal runs are counted once."""
        knowledge, events, identity = stream.knowledge, stream.knowledge.events, stream.identity
        runs = [*events]
        counted = self._counted.get((broker.number, identity))
        if counted is None or counted[0] != runs:
            counted = runs, sum(map(len, runs)), sum(run.payload_bytes() for run in runs)
            self._counted[broker.number, identity] = counted
        if runs and runs[0].first <= knowledge.final:
            subject = f"{_describe(broker, identity)}: {runs[0].first}"
            raise InvariantViolated("retained", f"{subject}, final is {knowledge.final}")
        counts = counted[1:]
        if counts != (events.events, events.payload_bytes):
            subject = f"{_describe(broker, identity)}: {counts}"
            raise InvariantViolated("retained", f"{subject} is not what is counted")

    def _check_chop(self, broker: BrokerView, effect: Chop) -> None:
        core, records = gryphon_of(broker.protocol), self._records[broker.number]
        final = {stream.identity: stream.knowledge.final for stream in core.streams}
        for index in [each for each in records if each < effect.first]:
            identity, last = records.pop(index)
            if last > final[identity]:
                subject = f"{broker.name}, record {index} of {tuple(identity)}: {last}"
                raise InvariantViolated("chopped early", f"{subject}, final is {final[identity]}")


def _last_of(broker: BrokerNumber, record: bytes) -> tuple[StreamId, int]:
    pubend, first, run = unpack_logged(record)
    return StreamId(broker, pubend, 0), first + len(run) - 1


def _describe(broker: BrokerView, identity: StreamId) -> str:
    return f"{broker.name}, {tuple(identity)}"


@dataclass(slots=True)
class _Rows:
    """The predicates and beginnings of one broker's subscriptions."""

    predicates: dict[str, Predicate] = field(default_factory=dict)
    begins: dict[str, dict[BrokerNumber, Sequence[int]]] = field(default_factory=dict)

    def take(self, table: str, key: str, value: Any) -> None:
        if value is None:
            self.predicates.pop(key, None)
            self.begins.pop(key, None)
        elif table == SUBSCRIPTIONS:
            # A protocol with this core may have a number before the predicate.
            self.predicates[key] = read_predicate(value[1] if type(value[0]) is int else value)
        else:
            self.begins[key] = {broker: ticks for broker, *ticks in value}


class GhostFilters:
    """The subscriptions of all brokers.

    Attributes:
        changes: number of changes so far.
    """

    def __init__(self, world: CheckedWorld) -> None:
        parameters: GryphonParameters = world.parameters
        self._is_on = parameters.filters
        self._world = world
        self.changes = 0
        self._rows: dict[BrokerNumber, _Rows] = {}
        self._writing: dict[tuple[int, int, int], list[Change]] = {}
        self._lineages: dict[BrokerNumber, int] = {}
        self._ended: dict[BrokerNumber, dict[str, None]] = {}

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        """Record the effects of a core's step."""
        if not self._is_on:
            return
        if type(event) is Persisted:
            key = broker.number, broker.incarnation, event.token
            self._take(broker.number, self._writing.pop(key, ()))
        elif type(event) is Started:
            self._restart(broker.number, event)
        for effect in effects:
            if type(effect) is Commit and effect.token is not None:
                changes = [c for c in effect.changes if c.table in (SUBSCRIPTIONS, BEGINS)]
                if changes:
                    key = broker.number, broker.incarnation, effect.token
                    self._writing.setdefault(key, []).extend(changes)

    def _restart(self, broker: BrokerNumber, event: Started) -> None:
        """Replace the rows of a broker by those on its disk, without ended subscriptions."""
        before = self._rows.pop(broker, None)
        self._writing = {k: v for k, v in self._writing.items() if k[0] != broker}
        ended = self._ended.setdefault(broker, {})
        is_loss = event.lineage != self._lineages.get(broker, 0)
        self._lineages[broker] = event.lineage
        if is_loss and before is not None:
            recovered = event.recovered.get(SUBSCRIPTIONS, {})
            ended.update(dict.fromkeys(key for key in recovered if key not in before.predicates))
        for table in (SUBSCRIPTIONS, BEGINS):
            rows = event.recovered.get(table, {}).items()
            changes = [Change(table, key, value) for key, value in rows if key not in ended]
            self._take(broker, changes)

    def _take(self, broker: BrokerNumber, changes: Sequence[Change]) -> None:
        rows = self._rows.setdefault(broker, _Rows())
        self.changes += len(changes)
        for change in changes:
            if change.table == SUBSCRIPTIONS:
                self._ended.get(broker, {}).pop(change.key, None)
            rows.take(change.table, change.key, change.value)

    def wants(self, host: BrokerNumber, stream: StreamId, tick: int, blob: bytes) -> bool:
        """Return True if a subscription at a broker is owed an event, unless acknowledged."""
        rows = self._rows.get(host) if self._is_on else None
        if rows is None:
            return not self._is_on
        for key, begins in rows.begins.items():
            if stream.broker == host:
                begin = 0
            elif stream.broker in begins:
                begin = begins[stream.broker][stream.publisher]
            else:
                continue
            wanted = rows.predicates.get(key)
            if begin < tick and wanted is not None and self._world.oracle.wants(wanted, blob):
                return True
        return False
