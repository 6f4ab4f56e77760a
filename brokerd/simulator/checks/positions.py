"""Durable rows with positions that never decrease.

Peers forget the state that such a row covers. A broker that commits a smaller position requests
released state, reuses a number, or holds released publications, but only after a crash. So every
commit is compared with the commits before, with or without a crash.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Commit, Effect, Event, Started
from brokerd.simulator.checks.oracle import InvariantViolated
from brokerd.simulator.world.views import BrokerView


@dataclass(frozen=True, slots=True)
class Position:
    """The rows of one table with positions.

    Attributes:
        table: table of the meta store.
        read: returns the part of a row that never decreases; None if the row has none.
        ends: rows may be deleted, and a key may restart after the deletion.
    """

    table: str
    read: Callable[[Any], Any] = lambda row: row
    ends: bool = False


PUBLISHERS = Position("publishers", lambda row: row[1])
"""Incarnations of publishing clients, in the table that all protocols have."""

_Place = tuple[int, str]
"""The index of a position in the protocol, and the key of a row."""


class PositionChecks:
    """The rule of positions for all brokers of one cluster.

    A restart begins with the rows on disk, which an accepted loss may have replaced by older rows.

    Attributes:
        advanced: number of rows that were replaced by a greater value.
        advanced_again: number of these rows that an earlier incarnation had written.
    """

    def __init__(self, positions: Iterable[Position]) -> None:
        self._positions = (PUBLISHERS, *positions)
        self._by_table: dict[str, list[int]] = {}
        for number, position in enumerate(self._positions):
            self._by_table.setdefault(position.table, []).append(number)
        self._rows: dict[BrokerNumber, dict[_Place, Any]] = {}
        self._recovered: dict[BrokerNumber, dict[_Place, None]] = {}
        self.advanced = self.advanced_again = 0

    def step(self, broker: BrokerView, event: Event, effects: Iterable[Effect]) -> None:
        """Check the commits after an event that a core has handled.

        Raises:
            InvariantViolated: a commit has a smaller position than an earlier commit.
        """
        if type(event) is Started:
            self._rows[broker.number] = rows = self._read(event.recovered)
            self._recovered[broker.number] = dict.fromkeys(rows)
        for effect in effects:
            if type(effect) is Commit:
                for change in effect.changes:
                    for number in self._by_table.get(change.table, ()):
                        self._change(broker, number, change.key, change.value)

    def _read(self, recovered: Mapping[str, Mapping[str, Any]]) -> dict[_Place, Any]:
        found: dict[_Place, Any] = {}
        for number, position in enumerate(self._positions):
            for key, row in recovered.get(position.table, {}).items():
                value = position.read(row)
                if value is not None:
                    found[number, key] = _comparable(value)
        return found

    def _change(self, broker: BrokerView, number: int, key: str, row: Any) -> None:
        position, rows = self._positions[number], self._rows[broker.number]
        before = rows.get((number, key))
        what = f"{broker.name} commits {row!r} in {position.table} for {key!r}, after {before}"
        if row is None:
            if not position.ends:
                raise InvariantViolated("position lost", what)
            rows.pop((number, key), None)
            return
        value = position.read(row)
        if value is None:
            return
        value = _comparable(value)
        if before is not None and value < before:
            raise InvariantViolated("position back", what)
        if before is not None and value > before:
            self.advanced += 1
            self.advanced_again += (number, key) in self._recovered[broker.number]
        rows[number, key] = value


def _comparable(value: Any) -> Any:
    """Return a part of a row with its lists as tuples: rows return from disk with lists."""
    return tuple(map(_comparable, value)) if isinstance(value, list | tuple) else value
