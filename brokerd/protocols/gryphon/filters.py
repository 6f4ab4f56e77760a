"""The filters of all brokers with clients, their exchange, and the runs that pass to a cell.

The silence of a cell is not stored. An event that no broker behind the cell wants is silence for
the cell, and is matched again for every transmission.

A broker that sends an event to a neighbour has sent before, in the same session, every filter
that the event's pubend had when the event became visible. So no broker matches an event with
an older filter, and silence of a tick is silence for every subscription that is owed the tick.

Paper: [GD02] §2.1, §3.1 (ostreams); §2 leaves filters that change to others. Sessions are in order,
so no message carries versions of filters.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from brokerd.errors import RemoteProtocolError
from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.model.predicate import EVERYTHING, DecodeAttributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.gryphon.filter_routes import BeginningRoutes, ChangeRoutes
from brokerd.protocols.gryphon.knowledge import RetainedEvents
from brokerd.protocols.gryphon.messages import (
    EVERYWHERE,
    Beginning,
    Beginnings,
    FilterChange,
    FilterSet,
    FilterVersion,
    FilterVersions,
    Named,
)
from brokerd.protocols.gryphon.routes import Cell, Links, Routes
from brokerd.protocols.gryphon.state import FILTERED, PartHandler, Streams
from brokerd.protocols.interface import Change, Effect, Instant, Send
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.selection import RunSelection
from brokerd.protocols.parts.version_bounds import is_leap

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


_TESTS_PER_MESSAGE: Final = 256


class FilterWrite(NamedTuple):
    """Versions of filters that must be durable before `FilterExchange.on_written`."""

    versions: tuple[FilterVersion, ...]

    @property
    def rows(self) -> list[Change]:
        """The rows of the versions."""
        return [Change(FILTERED, str(each.broker), [*each[1:]]) for each in self.versions]


class FilterNarrowed(NamedTuple):
    """Brokers want fewer events than before."""


class FilterExchange:
    """The filters of all brokers at one broker, and their announcements to neighbours.

    Methods return effects and facts, in order: `FilterWrite`, `FilterNarrowed`, and a `Beginning`
    when pubends match events with a version of this broker's filter.

    Args:
        sessions: the neighbours with a session, as they are at any time.

    Attributes:
        change_routes: the routes of changes, and changes that neighbours are owed.
        outbid: number of statements by others in the name of this broker's filter.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        routes: Routes,
        table: FilterTable,
        streams: Streams,
        sessions: Container[BrokerNumber],
        links: Links,
        deadlines: DeadlineQueue[tuple[str, Any]],
    ) -> None:
        self.outbid = 0
        self.change_routes = ChangeRoutes(routes, links, sessions)
        self._beginning_routes = BeginningRoutes(broker, routes, links, deadlines)
        self._broker = broker
        self._routes = routes
        self._table = table
        self._streams = streams
        self._sessions = sessions
        self._parts: dict[
            tuple[BrokerNumber, BrokerNumber], tuple[FilterVersion, dict[int, Predicate]]
        ] = {}
        self._unwritten: dict[BrokerNumber, FilterVersion] = {}
        self._is_writing = False

    def discrepancies(self) -> tuple[str, ...]:
        """Return the statements by others in this broker's name, for people."""
        if not self.outbid:
            return ()
        return (
            f"others have stated filters in its name {self.outbid} times, forged or of a disk that "
            "it lost; it has replaced them",
        )

    def handlers(self) -> dict[type, PartHandler]:
        """Return the handlers of neighbours' messages by type."""
        found: dict[type, PartHandler] = {
            FilterVersions: self._on_versions,
            FilterSet: self._on_set,
            FilterChange: self._on_change,
            Beginnings: self._on_beginnings,
        }
        return found if self._table.is_on else dict.fromkeys(found, _refuse)

    def begin(self, incarnation: int, recovered: Mapping[str, Mapping[str, Any]]) -> list[Any]:
        """Restore the versions of an earlier incarnation's filters, with unknown contents.

        The broker's own filter starts empty.
        """
        outcomes: list[Any] = []
        if not self._table.is_on:
            return outcomes
        for key, (theirs, number) in recovered.get(FILTERED, {}).items():
            version = FilterVersion(int(key), theirs, number)
            self._table.replace(version, None)
            outcomes += self._announce_beginning(version)
        if self._broker in self._table:
            self._table.replace(FilterVersion(self._broker, incarnation, 1), {})
        return outcomes

    # ------------------------------------------------------------ sending

    def on_session(self, peer: BrokerNumber) -> list[Effect]:
        """Return all versions of filters for a neighbour with a new session, before any event."""
        if not self._table.is_on:
            return []
        for key in [key for key in self._parts if key[0] == peer]:
            del self._parts[key]
        self.on_session_lost(peer)
        return [Send(peer, self._versions(self._table.versions()))]

    def on_session_lost(self, peer: BrokerNumber) -> None:
        """Forget the messages that were on their way to a neighbour; `on_links` follows."""
        self.change_routes.on_session_change(peer)
        self._beginning_routes.on_session_change(peer)

    def on_links(self) -> list[Effect]:
        """Return changes and beginnings whose route leads over other neighbours than before."""
        if not self._table.is_on:
            return []
        return [*self.change_routes.on_links(), *self._beginning_routes.on_links()]

    def due(self) -> list[Effect]:
        """Return the beginnings that have waited for those of other brokers."""
        return self._beginning_routes.due()

    def change(self, added: Predicate | None, removed: Sequence[int]) -> tuple[int, list[Effect]]:
        """Change the filter of this broker's clients; return the version's number, and messages.

        Args:
            removed: the numbers of the versions that added the removed predicates.
        """
        broker, incarnation, before = self._table.version(self._broker)
        number = before + 1
        version = FilterVersion(broker, incarnation, number)
        named = () if added is None else (Named(number, added),)
        self._table.change(version, dict(named), removed)
        change = FilterChange(version, named, tuple(removed))
        return number, self.change_routes.send(change, None)

    def _to_all(self, message: Any, but: BrokerNumber | None = None) -> list[Effect]:
        return [Send(peer, message) for peer in self._others(but)]

    def _versions(self, versions: Sequence[FilterVersion]) -> FilterVersions:
        lacking = [each.broker for each in versions if not self._has_version(each.broker)]
        return FilterVersions(tuple(versions), tuple(lacking))

    def _has_version(self, broker: BrokerNumber) -> bool:
        return self._table.predicates(broker) is not None

    def _set_for(self, broker: BrokerNumber, peers: Iterable[BrokerNumber]) -> list[Effect]:
        version, predicates = self._table.version(broker), self._table.predicates(broker)
        assert predicates is not None, f"{version} is missing"
        messages = [
            FilterSet(version, part, is_last)
            for part, is_last in _split([Named(*each) for each in predicates.items()])
        ]
        return [Send(peer, message) for peer in peers for message in messages]

    def _others(self, but: BrokerNumber | None = None) -> list[BrokerNumber]:
        peers = [each for each in self._routes.neighbours if each != but]
        return [each for each in peers if each in self._sessions]

    # ------------------------------------------------------------ receiving

    def _on_versions(
        self, peer: BrokerNumber, message: FilterVersions, _now_ns: Instant
    ) -> list[Any]:
        outcomes: list[Any] = []
        for version in message.versions:
            self._check(peer, version)
        if any(broker not in self._table for broker in message.lacking):
            raise RemoteProtocolError(peer, f"lacks filters of {message.lacking}"[:300])
        for version in message.versions:
            if self._is_forged(version):
                outcomes += self._restate(version)
        newer = [each for each in message.versions if each > self._table.version(each.broker)]
        for version in newer:
            self._table.replace(version, None)
        if newer:
            outcomes += self._to_all(self._versions(newer), but=peer)
            outcomes += self._match_later(newer)
        for version in message.versions:
            is_behind = version < self._table.version(version.broker)
            if self._has_version(version.broker) and (
                is_behind or version.broker in message.lacking
            ):
                outcomes += self._set_for(version.broker, (peer,))
        return outcomes

    def _on_set(self, peer: BrokerNumber, message: FilterSet, _now_ns: Instant) -> list[Any]:
        version = message.version
        self._check(peer, version)
        if self._is_forged(version):
            return self._restate(version)
        key = peer, version.broker
        begun = self._parts.pop(key, None)
        predicates = begun[1] if begun is not None and begun[0] == version else {}
        predicates.update(message.predicates)
        if not message.is_last:
            self._parts[key] = version, predicates
            return []
        ours = self._table.version(version.broker)
        if version < ours or (version == ours and self._has_version(version.broker)):
            return []
        self._table.replace(version, predicates)
        outcomes: list[Any] = [*self._set_for(version.broker, self._others(peer))]
        if version > ours:
            outcomes += self._match_later((version,))
        return [*outcomes, FilterNarrowed()]

    def _on_change(self, peer: BrokerNumber, message: FilterChange, _now_ns: Instant) -> list[Any]:
        version = message.version
        self._check(peer, version)
        if self._is_forged(version):
            return self._restate(version)
        self.change_routes.on_received(peer, version)
        ours = self._table.version(version.broker)
        if version <= ours:
            return []
        outcomes: list[Any] = []
        follows = version == ours._replace(number=ours.number + 1)
        if follows and self._has_version(version.broker):
            known = self._table.predicates(version.broker) or {}
            if any(each.number in known for each in message.added):
                raise RemoteProtocolError(peer, f"adds to {version} what it has"[:300])
            self._table.change(version, dict(message.added), message.removed)
            outcomes += self.change_routes.send(message, peer)
            if message.removed:
                outcomes.append(FilterNarrowed())
            if not message.added:
                return outcomes
        else:
            self._table.replace(version, None)
            outcomes += self._to_all(self._versions((version,)))
        return outcomes + self._match_later((version,))

    def _check(self, peer: BrokerNumber, version: FilterVersion) -> None:
        """Check that a version belongs to a broker with clients, and does not leap.

        Raises:
            RemoteProtocolError: the broker has no filter, or the version leaps from the recorded
                version.
        """
        broker = version.broker
        if broker not in self._table:
            raise RemoteProtocolError(peer, f"there is no filter {tuple(version)}")
        known = self._table.version(broker)
        if is_leap(known[1:], version[1:]):
            raise RemoteProtocolError(peer, f"filter {tuple(version)} leaps from {tuple(known)}")

    def _is_forged(self, version: FilterVersion) -> bool:
        """Return True for a version of this broker's own filter that it has not stated."""
        return version.broker == self._broker and version > self._table.version(self._broker)

    def _restate(self, forged: FilterVersion) -> list[Any]:
        """State the own filter under a later version than a forged filter.

        A broker that lost its disk finds versions of earlier incarnations, and replaces these, too.
        """
        self.outbid += 1
        version = forged._replace(number=forged.number + 1)
        self._table.replace(version, dict(self._table.predicates(self._broker) or {}))
        return [*self._set_for(self._broker, self._others())]

    # ------------------------------------------------------------ beginnings of added predicates

    def _match_later(self, versions: Iterable[FilterVersion]) -> list[Any]:
        """Match later publications with these versions, durably, and then announce that."""
        if self._broker not in self._table:
            return []
        self._unwritten.update({each.broker: each for each in versions})
        return self._write()

    def _write(self) -> list[Any]:
        if self._is_writing or not self._unwritten:
            return []
        versions, self._unwritten = (*self._unwritten.values(),), {}
        self._is_writing = True
        return [FilterWrite(versions)]

    def on_written(self, fact: FilterWrite, now_ns: Instant) -> list[Any]:
        """Announce durable versions, and write later ones."""
        self._is_writing = False
        outcomes = [
            each for version in fact.versions for each in self._announce_beginning(version, now_ns)
        ]
        return outcomes + self._write()

    def _announce_beginning(self, version: FilterVersion, now_ns: Instant = 0) -> list[Any]:
        # Not behind ticks with events that a crash may lose: other events may get these ticks.
        ticks = tuple(self._streams.published_ticks())
        return self._add((Beginning(self._broker, version, ticks),), now_ns)

    def _on_beginnings(self, peer: BrokerNumber, message: Beginnings, now_ns: Instant) -> list[Any]:
        for beginning in message.beginnings:
            self._check(peer, beginning.version)
            if self._is_forged(beginning.version):
                raise RemoteProtocolError(peer, f"there is no filter {tuple(beginning.version)}")
            if beginning.broker not in self._table or len(beginning.ticks) != self._streams.pubends:
                raise RemoteProtocolError(peer, f"no pubends begin with {beginning}"[:300])
        return self._add(message.beginnings, now_ns)

    def _add(self, beginnings: Iterable[Beginning], now_ns: Instant) -> list[Any]:
        """Take beginnings; those of an earlier incarnation's filter mean nothing here."""
        ours = self._table.version(self._broker) if self._broker in self._table else None
        return [
            each
            for each in self._beginning_routes.add(beginnings, now_ns)
            if not isinstance(each, Beginning) or (ours and each.version[:2] == ours[:2])
        ]


def _refuse(peer: Peer, message: Any, _now_ns: Instant) -> list[Any]:
    """Refuse a message about filters where filters are off.

    Raises:
        RemoteProtocolError: always.
    """
    raise RemoteProtocolError(peer, f"filters are off: {message}"[:300])


def _split(predicates: Sequence[Named]) -> Iterator[tuple[tuple[Named, ...], bool]]:
    """Yield predicates in parts that fit into a message, with True for the last part."""
    part: list[Named] = []
    tests = 0
    for each in predicates:
        own = sum(map(len, each.predicate.any_of))
        if part and tests + own > _TESTS_PER_MESSAGE:
            yield tuple(part), False
            part, tests = [], 0
        part.append(each)
        tests += own
    yield tuple(part), True
