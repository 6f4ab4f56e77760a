"""The events of each stream that subscribers are owed, from the disks of their brokers.

A subscription is owed the matching events behind the ticks where it has begun, independent of
the filters at any broker. A subscription that had ended, and is on an older copy of the disk that
its broker has accepted, is owed no events: other brokers may have released them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.predicate import Predicate
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.state import BEGINS
from brokerd.protocols.interface import Change, Commit, Effect, Event, Persisted, Started
from brokerd.protocols.parts.clients.own_subscriptions import SUBSCRIPTIONS
from brokerd.protocols.parts.records import read_predicate
from brokerd.simulator.checks.protocol_checks import CheckedWorld
from brokerd.simulator.world.views import BrokerView


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
