"""Marks that one step of a core decides: a table of marks and predicates.

A mark names the type that it depends on: with `on`, of the event or of the message that arrived;
with `by`, of an effect or of a message that is sent. Its predicate, if any, decides on the step, or
returns a number of events. So a step tests only a few marks of a table. A mark with a `counter` is
counted when that statistic of the core rises. Other marks that depend on earlier steps need an
observer of the protocol, which counts them in the same table.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import (
    Commit,
    Deliver,
    Effect,
    Event,
    MessageReceived,
    Record,
    Send,
)
from brokerd.simulator.checks.marks import Mark
from brokerd.simulator.world.views import BrokerView


class MarkStep:
    """One event of a core, with its effects.

    Attributes:
        message: the message that has arrived; None for another event.
        sent: the messages to all peers, by type.
        acts: the other effects, by type.
    """

    __slots__ = ("acts", "broker", "effects", "event", "message", "sent")

    def __init__(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        self.broker = broker
        self.event: Any = event
        self.effects = effects
        self.message: Any = event.message if type(event) is MessageReceived else None
        self.sent: dict[type, list[Any]] = {}
        self.acts: dict[type, list[Any]] = {}
        for effect in effects:
            if type(effect) is Send:
                found, item = self.sent, effect.message
            else:
                found, item = self.acts, effect
            kind = type(item)
            if kind in found:
                found[kind].append(item)
            else:
                found[kind] = [item]

    @property
    def core(self) -> Any:
        """The core of the broker, without a wrapper."""
        return self.broker.protocol

    def is_own(self, broker: int) -> bool:
        """Return True for the number of this broker."""
        return broker == self.broker.number

    def sends(self, kind: type, when: Callable[[Any], bool]) -> bool:
        """Return True if the step sends a message of this type for which a condition holds."""
        return any(map(when, self.sent.get(kind, ())))

    def count_sent(self, kind: type, when: Callable[[Any], bool]) -> int:
        """Return the number of messages of this type for which a condition holds."""
        return sum(map(when, self.sent.get(kind, ())))

    def replies(self, kind: type) -> bool:
        """Return True if the step sends a message of this type to the peer of its event."""
        if kind not in self.sent:
            return False
        sends = (each for each in self.effects if type(each) is Send)
        return any(type(each.message) is kind and each.peer == self.event.peer for each in sends)

    def count_delivered(self, kind: type) -> int:
        """Return the number of items of this type that the step delivers to clients."""
        return sum(type(each.item) is kind for each in self.acts.get(Deliver, ()))

    def delivers(self, kind: type) -> bool:
        """Return True if the step delivers an item of this type to a client."""
        return any(type(each.item) is kind for each in self.acts.get(Deliver, ()))

    def count_records(self, event: str) -> int:
        """Return the number of lines with this event in the broker's log."""
        return sum(each.event == event for each in self.acts.get(Record, ()))

    def rows(self, table: str) -> Iterator[Any]:
        """Yield the changes of a table that the step commits."""
        for commit in self.acts.get(Commit, ()):
            for change in commit.changes:
                if change.table == table:
                    yield change

    def count_commits(self, table: str) -> int:
        """Return the number of commits with a change of a table."""
        commits = self.acts.get(Commit, ())
        return sum(any(row.table == table for row in each.changes) for each in commits)

    def commits(self, table: str) -> bool:
        """Return True if the step commits a change of a table."""
        return any(True for _ in self.rows(table))


_Row = tuple[str, Callable[[Any], int] | None]
"""Name and condition of a mark."""


class _MarkIndex:
    """The marks of a table by the types that they depend on."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        self._on: dict[type, list[_Row]] = {}
        self._by: dict[type, list[_Row]] = {}
        for mark in marks:
            row = mark.name, mark.when
            for kind in mark.on:
                self._on.setdefault(kind, []).append(row)
            for kind in mark.by:
                self._by.setdefault(kind, []).append(row)

    def find(self, step: MarkStep) -> Iterator[tuple[str, int]]:
        """Yield the marks that a step reaches, with the number of events."""
        on, by = self._on, self._by
        rows = [*on.get(type(step.event), ())]
        if step.message is not None:
            rows += on.get(type(step.message), ())
        for kind in step.acts:
            rows += by.get(kind, ())
        for kind in step.sent:
            rows += by.get(kind, ())
        for name, when in rows:
            count = 1 if when is None else int(when(step))
            if count:
                yield name, count


class RisingNumbers:
    """The last numbers of brokers, for marks that stand for a rise."""

    def __init__(self) -> None:
        self._last: dict[Hashable, int] = {}

    def has_risen(self, key: Hashable, number: int) -> bool:
        """Record a number; return True if the number is higher than the last one."""
        before, self._last[key] = self._last.get(key, 0), number
        return number > before


class MarkTable:
    """The counters of a protocol's marks in one run.

    Attributes:
        counts: number of events by mark.
    """

    def __init__(self, marks: Sequence[Mark]) -> None:
        self.counts = {mark.name: 0 for mark in marks}
        self._find = _MarkIndex(marks).find
        self._counters = tuple((mark.name, mark.counter) for mark in marks if mark.counter)
        self._statistics: dict[BrokerNumber, Mapping[str, int]] = {}

    def count(self, names: Iterable[str]) -> None:
        """Count marks that an observer has found."""
        for name in names:
            self.counts[name] += 1

    def step(self, step: MarkStep) -> None:
        """Count the marks of one step."""
        for name, count in self._find(step):
            self.counts[name] += count

    def count_statistics(self, broker: BrokerView) -> None:
        """Count the marks of statistics that have risen since the last call."""
        statistics, before = broker.core.statistics(), self._statistics.get(broker.number, {})
        if statistics != before:
            self._statistics[broker.number] = statistics
            self.count(
                name
                for name, counter in self._counters
                if statistics[counter] > before.get(counter, 0)
            )
