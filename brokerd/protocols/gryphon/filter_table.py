"""The filters of all brokers at one broker, and the parts of a run that cells want.

The silence of a cell is not stored. An event that no broker behind the cell wants is silence for
the cell, and is matched again for every transmission.

Paper: [GD02] §2.1, §3.1 (ostreams).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.identity import BrokerNumber
from brokerd.model.predicate import EVERYTHING, DecodeAttributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.knowledge import RetainedEvents
from brokerd.protocols.gryphon.messages import EVERYWHERE, FilterVersion
from brokerd.protocols.gryphon.routes import Cell, Routes
from brokerd.protocols.parts.selection import RunSelection

_EVERY_CELL: Final = -1


@dataclass(slots=True)
class _Filter:
    """The filter of the clients of one broker; None: unknown, so every event passes.

    Attributes:
        everything: number of predicates that match everything.
    """

    version: FilterVersion
    predicates: dict[int, Predicate] | None = None
    everything: int = 0


class FilterTable:
    """The filters of all brokers, as one broker has received them.

    The filter of a cell is the OR of the filters of all brokers behind the cell. If one of these
    filters is unknown, everything passes.

    Args:
        is_on: otherwise everything passes everywhere.

    Attributes:
        changes: number of changes of filters so far.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        routes: Routes,
        decode_attributes: DecodeAttributes,
        *,
        is_on: bool,
    ) -> None:
        self.is_on = is_on
        self.changes = 0
        self._broker = broker
        self._towards = {host: routes.cell_towards(host) for host in routes.hosts}
        self._filters = {host: _Filter(FilterVersion(host, 0, 0)) for host in routes.hosts}
        self._index: MatchingIndex[tuple[BrokerNumber, int]] = MatchingIndex()
        self.memo: MatchMemo[tuple[BrokerNumber, int], int] = MatchMemo(
            self._index, decode_attributes, conclude=self._cells_of
        )
        self._open = self._find_open()

    # ------------------------------------------------------------ filters of brokers

    def __contains__(self, broker: BrokerNumber) -> bool:
        """Return True if a broker may have clients."""
        return broker in self._filters

    def versions(self) -> tuple[FilterVersion, ...]:
        """Return the newest version of every filter."""
        return tuple([each.version for each in self._filters.values()])

    def version(self, broker: BrokerNumber) -> FilterVersion:
        """Return the newest version of a broker's filter."""
        return self._filters[broker].version

    def predicates(self, broker: BrokerNumber) -> Mapping[int, Predicate] | None:
        """Return the predicates of a broker's filter by number; None if the filter is unknown."""
        return self._filters[broker].predicates

    def replace(self, version: FilterVersion, predicates: Mapping[int, Predicate] | None) -> None:
        """Replace the filter of a broker; None: the filter is unknown."""
        broker = version.broker
        old = self._filters[broker].predicates or {}
        for number in old:
            self._take_out(broker, number)
        self._filters[broker] = _Filter(version, None if predicates is None else {})
        for number, predicate in (predicates or {}).items():
            self._put_in(broker, number, predicate)
        self._on_change()

    def change(
        self, version: FilterVersion, added: Mapping[int, Predicate], removed: Iterable[int]
    ) -> None:
        """Apply the changes since the previous version of a broker's filter."""
        known = self._filters[version.broker]
        assert known.predicates is not None, f"{version} of a missing filter"
        known.version = version
        for number in removed:
            if number in known.predicates:
                self._take_out(version.broker, number)
                del known.predicates[number]
        for number, predicate in added.items():
            self._put_in(version.broker, number, predicate)
        self._on_change()

    def _put_in(self, broker: BrokerNumber, number: int, predicate: Predicate) -> None:
        known = self._filters[broker]
        assert known.predicates is not None, f"the filter of {broker} is missing"
        known.predicates[number] = predicate
        known.everything += predicate == EVERYTHING
        if broker != self._broker:
            self._index.add((broker, number), predicate)

    def _take_out(self, broker: BrokerNumber, number: int) -> None:
        known = self._filters[broker]
        assert known.predicates is not None, f"the filter of {broker} is missing"
        known.everything -= known.predicates[number] == EVERYTHING
        if broker != self._broker:
            self._index.remove((broker, number))

    def _on_change(self) -> None:
        self.changes += 1
        self.memo.forget()
        self._open = self._find_open()

    def _find_open(self) -> int:
        if not self.is_on:
            return _EVERY_CELL
        found = 0
        for broker, known in self._filters.items():
            wants_all = known.predicates is None or known.everything
            if broker != self._broker and wants_all:
                found |= 1 << self._towards[broker]
        return found

    def _cells_of(self, keys: tuple[tuple[BrokerNumber, int], ...]) -> int:
        found = 0
        for broker, _ in keys:
            found |= 1 << self._towards[broker]
        return found

    # ------------------------------------------------------------ wanted events

    def wants_all(self, cell: Cell) -> bool:
        """Return True if everything passes to a neighbouring cell, or for EVERYWHERE."""
        return cell == EVERYWHERE or bool(self._open >> cell & 1)

    def wants_any(self, cell: Cell) -> bool:
        """Return True if anything passes to a neighbouring cell."""
        return self.wants_all(cell) or any(
            known.predicates
            for broker, known in self._filters.items()
            if self._towards[broker] == cell
        )

    def select(self, run: PublicationRun) -> "Selection":
        """Return a selection of the run's events by cell."""
        return Selection(self, run)

    def first_wanted(self, events: RetainedEvents, cell: Cell, after: int) -> int | None:
        """Return the tick of the first event behind `after` that a cell wants."""
        if self.wants_all(cell):
            return events.after(after)
        for run in events.runs_after(after):
            start = bisect_right(run.sequences, after)
            found = self.select(run).places(cell, range(start, len(run)))
            for place in found:
                return run.sequences[place]
        return None

    def last_wanted(self, events: RetainedEvents, cell: Cell, start: int, end: int) -> int | None:
        """Return the tick of the last event in [start, end) that a cell wants."""
        for run in events.runs_before(end):
            if run.last < start:
                return None
            first, after = (bisect_left(run.sequences, tick) for tick in (start, end))
            for place in self.select(run).places(cell, range(after - 1, first - 1, -1)):
                return run.sequences[place]
        return None


class Selection:
    """The parts of one run that cells want.

    The run is matched once, and only for a cell with a partial filter.
    """

    __slots__ = ("_masks", "_parts", "_run", "_table")

    def __init__(self, table: FilterTable, run: PublicationRun) -> None:
        self._table = table
        self._run = run
        self._parts: RunSelection | None = None
        self._masks: list[int] | None = None

    def wanted(self, cell: Cell) -> PublicationRun | None:
        """Return the part of the run that a cell wants; None if the cell wants no event."""
        if self._table.wants_all(cell):
            return self._run
        contents = self._contents(cell)
        if self._parts is None:
            self._parts = RunSelection(self._run)
        return self._parts.select(contents) if contents else None

    def places(self, cell: Cell, among: range) -> Iterator[int]:
        """Yield the places in `among` with an event that a cell wants."""
        if self._table.wants_all(cell):
            return iter(among)
        contents = self._contents(cell)
        if len(contents) == len(self._run.attribute_table):
            return iter(among)
        index, wanted = self._run.attribute_index, {*contents}
        return (place for place in among if index[place] in wanted) if wanted else iter(())

    def _contents(self, cell: Cell) -> list[int]:
        """Return the places in the run's attribute table that a cell wants."""
        if self._masks is None:
            self._masks = self._table.memo.match_all(self._run.attribute_table)
        return [place for place, mask in enumerate(self._masks) if mask >> cell & 1]
