"""The exchange of filters between brokers, so that every event travels behind its filters.

A broker that sends an event to a neighbour has sent before, in the same session, every filter
that the event's pubend had when the event became visible. So no broker matches an event with
an older filter, and silence of a tick is silence for every subscription that is owed the tick.

Paper: none; [GD02] §2 leaves filters that change to others. Sessions are in order, so no message
carries versions of filters.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.model.predicate import Predicate
from brokerd.protocols.gryphon.filters import FilterTable
from brokerd.protocols.gryphon.messages import (
    Beginning,
    Beginnings,
    FilterChange,
    FilterSet,
    FilterVersion,
    FilterVersions,
    Named,
)
from brokerd.protocols.gryphon.routes import Routes
from brokerd.protocols.interface import Change
from brokerd.protocols.parts.event_machine import Durability, MessageHandler
from brokerd.protocols.parts.leaps import is_leap

FILTERED: Final = "filtered"
"""Per broker, the version of its filter that events here were matched with."""

_TESTS_PER_MESSAGE: Final = 256


class Exchange:
    """The filters of all brokers at one broker, and their announcements to neighbours.

    Args:
        has_session: returns whether a message can be sent to a neighbour now.
        known: returns the last tick of each pubend of this broker that other brokers may have.
        on_beginning: called when pubends match events with a version of this broker's filter.
        on_less: called when fewer events are wanted.

    Attributes:
        outbid: number of statements by others in the name of this broker's filter.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        routes: Routes,
        table: FilterTable,
        disk: Durability,
        *,
        has_session: Callable[[BrokerNumber], bool],
        known: Callable[[], Sequence[int]],
        on_beginning: Callable[[Beginning], None],
        on_less: Callable[[], None],
    ) -> None:
        self.outbid = 0
        self._broker = broker
        self._routes = routes
        self._table = table
        self._disk = disk
        self._machine = disk.machine
        self._has_session = has_session
        self._known = known
        self._on_beginning = on_beginning
        self._on_less = on_less
        self._beginnings: dict[tuple[BrokerNumber, BrokerNumber], Beginning] = {}
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

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of neighbours' messages by type."""
        found: dict[type, MessageHandler] = {
            FilterVersions: self._on_versions,
            FilterSet: self._on_set,
            FilterChange: self._on_change,
            Beginnings: self._on_beginnings,
        }
        return found if self._table.is_on else dict.fromkeys(found, _refuse)

    def begin(self, incarnation: int, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the versions of an earlier incarnation's filters, with unknown contents.

        The broker's own filter starts empty.
        """
        if not self._table.is_on:
            return
        for key, (theirs, number) in recovered.get(FILTERED, {}).items():
            version = FilterVersion(int(key), theirs, number)
            self._table.replace(version, None)
            self._answer(version)
        if self._broker in self._table:
            self._table.replace(FilterVersion(self._broker, incarnation, 1), {})

    # ------------------------------------------------------------ sending

    def on_session(self, peer: BrokerNumber) -> None:
        """Send all versions of filters to a neighbour with a new session, before any event."""
        if not self._table.is_on:
            return
        for key in [key for key in self._parts if key[0] == peer]:
            del self._parts[key]
        self._machine.send(peer, self._versions(self._table.versions()))
        towards = [each for each in self._beginnings.values() if self._is_for(peer, each)]
        if towards:
            self._machine.send(peer, Beginnings(tuple(towards)))

    def change(self, added: Predicate | None, removed: Sequence[int]) -> int:
        """Change the filter of this broker's clients; return the number of the version.

        Args:
            removed: the numbers of the versions that added the removed predicates.
        """
        broker, incarnation, before = self._table.version(self._broker)
        number = before + 1
        version = FilterVersion(broker, incarnation, number)
        named = () if added is None else (Named(number, added),)
        self._table.change(version, dict(named), removed)
        self._send(FilterChange(version, named, tuple(removed)))
        return number

    def _send(self, message: Any, but: BrokerNumber | None = None) -> None:
        for peer in self._routes.neighbours:
            if peer != but and self._has_session(peer):
                self._machine.send(peer, message)

    def _versions(self, versions: Sequence[FilterVersion]) -> FilterVersions:
        lacking = [each.broker for each in versions if not self._has_version(each.broker)]
        return FilterVersions(tuple(versions), tuple(lacking))

    def _has_version(self, broker: BrokerNumber) -> bool:
        return self._table.predicates(broker) is not None

    def _send_set(self, broker: BrokerNumber, peers: Iterable[BrokerNumber]) -> None:
        version, predicates = self._table.version(broker), self._table.predicates(broker)
        assert predicates is not None, f"{version} is missing"
        messages = [
            FilterSet(version, part, is_last)
            for part, is_last in _split([Named(*each) for each in predicates.items()])
        ]
        for peer in peers:
            for message in messages:
                self._machine.send(peer, message)

    # ------------------------------------------------------------ receiving

    def _on_versions(self, peer: BrokerNumber, message: FilterVersions) -> None:
        for version in message.versions:
            self._check(peer, version)
        if any(broker not in self._table for broker in message.lacking):
            raise RemoteProtocolError(peer, f"lacks filters of {message.lacking}"[:300])
        for version in message.versions:
            if self._is_forged(version):
                self._restate(version)
        newer = [each for each in message.versions if each > self._table.version(each.broker)]
        for version in newer:
            self._table.replace(version, None)
        if newer:
            self._send(self._versions(newer), but=peer)
            self._hold_against(newer)
        for version in message.versions:
            is_behind = version < self._table.version(version.broker)
            if self._has_version(version.broker) and (
                is_behind or version.broker in message.lacking
            ):
                self._send_set(version.broker, (peer,))

    def _on_set(self, peer: BrokerNumber, message: FilterSet) -> None:
        version = message.version
        self._check(peer, version)
        if self._is_forged(version):
            self._restate(version)
            return
        key = peer, version.broker
        begun = self._parts.pop(key, None)
        predicates = begun[1] if begun is not None and begun[0] == version else {}
        predicates.update(message.predicates)
        if not message.is_last:
            self._parts[key] = version, predicates
            return
        ours = self._table.version(version.broker)
        if version > ours or (version == ours and not self._has_version(version.broker)):
            self._table.replace(version, predicates)
            others = [each for each in self._routes.neighbours if each != peer]
            self._send_set(version.broker, filter(self._has_session, others))
            if version > ours:
                self._hold_against((version,))
            self._on_less()

    def _on_change(self, peer: BrokerNumber, message: FilterChange) -> None:
        version = message.version
        self._check(peer, version)
        if self._is_forged(version):
            self._restate(version)
            return
        ours = self._table.version(version.broker)
        if version <= ours:
            return
        follows = version == ours._replace(number=ours.number + 1)
        if follows and self._has_version(version.broker):
            known = self._table.predicates(version.broker) or {}
            if any(each.number in known for each in message.added):
                raise RemoteProtocolError(peer, f"adds to {version} what it has"[:300])
            self._table.change(version, dict(message.added), message.removed)
            self._send(message, but=peer)
            if message.removed:
                self._on_less()
            if not message.added:
                return
        else:
            self._table.replace(version, None)
            self._send(self._versions((version,)))
        self._hold_against((version,))

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

    def _restate(self, forged: FilterVersion) -> None:
        """State the own filter under a later version than a forged filter.

        A broker that lost its disk finds versions of earlier incarnations, and replaces these, too.
        """
        self.outbid += 1
        version = forged._replace(number=forged.number + 1)
        self._table.replace(version, dict(self._table.predicates(self._broker) or {}))
        self._send_set(self._broker, filter(self._has_session, self._routes.neighbours))

    # ------------------------------------------------------------ beginnings of added predicates

    def _hold_against(self, versions: Iterable[FilterVersion]) -> None:
        """Match later publications with these versions, durably, and then announce that."""
        if self._broker in self._table:
            self._unwritten.update({each.broker: each for each in versions})
            self._write()

    def _write(self) -> None:
        if self._is_writing or not self._unwritten:
            return
        versions, self._unwritten = [*self._unwritten.values()], {}
        self._is_writing = True

        def written() -> None:
            self._is_writing = False
            for version in versions:
                self._answer(version)
            self._write()

        rows = [Change(FILTERED, str(each.broker), [*each[1:]]) for each in versions]
        self._disk.commit(rows, written)

    def _answer(self, version: FilterVersion) -> None:
        # Not behind ticks with events that a crash may lose: other events may get these ticks.
        self._take(Beginning(self._broker, version, tuple(self._known())))

    def _on_beginnings(self, peer: BrokerNumber, message: Beginnings) -> None:
        for beginning in message.beginnings:
            self._check(peer, beginning.version)
            if self._is_forged(beginning.version):
                raise RemoteProtocolError(peer, f"there is no filter {tuple(beginning.version)}")
            if beginning.broker not in self._table or len(beginning.ticks) != len(self._known()):
                raise RemoteProtocolError(peer, f"no pubends begin with {beginning}"[:300])
        for beginning in message.beginnings:
            self._take(beginning, peer)

    def _take(self, beginning: Beginning, peer: BrokerNumber | None = None) -> None:
        key = beginning.broker, beginning.version.broker
        known = self._beginnings.get(key)
        if known is not None and known.version >= beginning.version:
            return
        self._beginnings[key] = beginning
        ours = self._table.version(self._broker) if self._broker in self._table else None
        if ours is not None and beginning.version[:2] == ours[:2]:
            self._on_beginning(beginning)
        for each in self._routes.neighbours:
            if each != peer and self._has_session(each) and self._is_for(each, beginning):
                self._machine.send(each, Beginnings((beginning,)))

    def _is_for(self, peer: BrokerNumber, beginning: Beginning) -> bool:
        """Return True if a neighbour is at least as near to the filter's broker as this broker."""
        whose = beginning.version.broker
        nearer = (self._routes.cell_towards(whose), self._routes.cell)
        return whose != self._broker and self._routes.cell_of(peer) in nearer


def _refuse(peer: Peer, message: Any) -> None:
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
