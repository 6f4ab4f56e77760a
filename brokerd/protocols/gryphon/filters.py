"""The exchange of filters between brokers.

A broker that sends an event to a neighbour has sent before, in the same session, every filter
that the event's pubend had when the event became visible. So no broker matches an event with
an older filter, and silence of a tick is silence for every subscription that is owed the tick.

Paper: [GD02] §2.1; §2 leaves filters that change to others. Sessions are in order, so no message
carries versions of filters.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.model.predicate import Predicate
from brokerd.protocols.gryphon.filter_routes import BeginningRoutes, ChangeRoutes
from brokerd.protocols.gryphon.filter_table import FilterTable
from brokerd.protocols.gryphon.messages import (
    Beginning,
    Beginnings,
    FilterChange,
    FilterSet,
    FilterVersion,
    FilterVersions,
    Named,
)
from brokerd.protocols.gryphon.routes import Links, Routes
from brokerd.protocols.gryphon.state import FILTERED
from brokerd.protocols.gryphon.stream import PartHandler, Streams, check_ticks
from brokerd.protocols.interface import Change, Effect, Instant, Send
from brokerd.protocols.parts.bounds import is_leap
from brokerd.protocols.parts.deadlines import DeadlineQueue

_TESTS_PER_MESSAGE: Final = 256


class FilterWrite(NamedTuple):
    """Versions of filters that must be durable before `FilterExchange.on_written`."""

    versions: tuple[FilterVersion, ...]

    @property
    def rows(self) -> list[Change]:
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
        """Return changes and beginnings with a route over other neighbours than before."""
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
        known = self._table.predicates(version.broker)
        if known is not None and version == ours._replace(number=ours.number + 1):
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
            check_ticks(peer, beginning.ticks)
        return self._add(message.beginnings, now_ns)

    def _add(self, beginnings: Iterable[Beginning], now_ns: Instant) -> list[Any]:
        """Take beginnings; those of an earlier incarnation's filter mean nothing here."""
        return [
            each
            for each in self._beginning_routes.add(beginnings, now_ns)
            if not isinstance(each, Beginning)
            or each.version[:2] == self._table.version(self._broker)[:2]
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
