"""Counters recomputed from the counted state, and durable rows that never decrease."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Commit, Effect, Event, Started
from brokerd.simulator.checks.growth import objects_in
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView


class Holdings:
    """All objects of a core, by class."""

    def __init__(self, core: object) -> None:
        self._objects = list(objects_in(core))
        self._parcels: Counter[int] | None = None
        self._deliveries: Counter[int] | None = None

    def of(self, kind: type | str) -> list[Any]:
        """Return the objects of a class, or of a class with this name, and its subclasses."""
        if isinstance(kind, type):
            return [each for each in self._objects if isinstance(each, kind)]
        return [
            each
            for each in self._objects
            if any(ancestor.__name__ == kind for ancestor in type(each).__mro__)
        ]

    def deliveries_of(self, parcel: Any) -> int:
        """Return the number of deliveries that a parcel waits for."""
        if self._deliveries is None:
            self._deliveries = Counter(
                id(each.parcel) for each in _deliveries(self) if each.subscriptions
            )
        return self._deliveries[id(parcel)]

    def parcels_of(self, entry: object) -> int:
        """Return the number of parcels that an entry waits for."""
        if self._parcels is None:
            parcels = {id(each.parcel): each.parcel for each in _deliveries(self)}
            self._parcels = Counter(
                id(_representative(entry))
                for parcel in parcels.values()
                if parcel.open
                for entry in parcel.entries
            )
        return self._parcels[id(entry)]


@dataclass(frozen=True, slots=True)
class Recount:
    """One counter of all objects of a class.

    Attributes:
        kind: the class, or its name if shared checks must not import the class.
        name: name of the counter, for people.
        kept: returns the counter of an object.
        found: returns the recomputed value.
    """

    kind: type | str
    name: str
    kept: Callable[[Any], Any]
    found: Callable[[Any, Holdings], Any]


def check_recounts(name: str, core: object, recounts: Iterable[Recount]) -> int:
    """Recompute the counters of a broker or client; the cluster must be at rest.

    Returns:
        The number of recomputed counters.

    Raises:
        InvariantViolated: a counter is wrong; names the counter.
    """
    holdings, counted = Holdings(core), 0
    for recount in (*SHARED, *recounts):
        for item in holdings.of(recount.kind):
            kept, found = recount.kept(item), recount.found(item, holdings)
            counted += 1
            if kept != found:
                subject = f"{type(item).__name__}.{recount.name}"
                raise InvariantViolated(
                    "counter", f"{name} counts {kept!r} in {subject}: {found!r}"
                )
    return counted


def _deliveries(holdings: Holdings) -> Iterator[Any]:
    for outlet in holdings.of("Outlet"):
        yield from outlet.parked
        yield from outlet.waiting
        for sent in outlet.sent.values():
            yield from sent


def _representative(entry: Any) -> Any:
    """Return the entry that represents an entry since both were joined."""
    while getattr(entry, "part_of", None) is not None:
        entry = entry.part_of
    return entry


def nonzero(counts: Any) -> dict[Any, int]:
    """Return the counts of a mapping that are not 0."""
    return {key: count for key, count in counts.items() if count}


SHARED = (
    Recount(
        "Outlet",
        "unacknowledged",
        lambda outlet: outlet.unacknowledged,
        lambda outlet, _: sum(
            len(each.remainder) for sent in outlet.sent.values() for each in sent
        ),
    ),
    Recount("Outlet", "holds", lambda outlet: outlet.holds, lambda outlet, _: 0),
    Recount(
        "Parcel",
        "open",
        lambda parcel: parcel.open,
        lambda parcel, holdings: holdings.deliveries_of(parcel),
    ),
    Recount(
        "OwnSubscriptions",
        "started",
        lambda clients: clients.started,
        lambda clients, _: sum(
            local.started
            for client in clients._clients.values()
            for local in client.subscriptions.values()
        ),
    ),
    Recount(
        "Window",
        "publications",
        lambda window: window.publications,
        lambda window, _: sum(map(len, window._runs)),
    ),
)
"""Counters of the parts that all protocols share, and of clients."""


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
        subject = f"{broker.name} commits {row!r} in {position.table} for {key!r}, after {before}"
        if row is None:
            if not position.ends:
                raise InvariantViolated("position lost", subject)
            rows.pop((number, key), None)
            return
        value = position.read(row)
        if value is None:
            return
        value = _comparable(value)
        if before is not None and value < before:
            raise InvariantViolated("position back", subject)
        if before is not None and value > before:
            self.advanced += 1
            self.advanced_again += (number, key) in self._recovered[broker.number]
        rows[number, key] = value


def _comparable(value: Any) -> Any:
    """Return a part of a row with its lists as tuples: rows return from disk with lists."""
    return tuple(map(_comparable, value)) if isinstance(value, list | tuple) else value
