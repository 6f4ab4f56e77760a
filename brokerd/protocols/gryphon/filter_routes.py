"""The routes of changed filters, and of the beginnings of added predicates.

A changed filter takes the route of events: over one broker of each cell, to all brokers with
pubends. The other neighbours are owed the change. They receive it before the next event over their
link, or when the route leads over them, because a session or a link has failed. So a broker that
sends an event has sent every filter before, in the same session.

The pubends' answers, the beginnings, return over one broker of each cell. A broker sends them in
one message once all brokers behind it have answered a version, and otherwise after HOLD_NS.

Paper: [GD02] §3 (one tree of cells per stream), §2 (leaves filters that change to others).
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.gryphon.messages import (
    Beginning,
    Beginnings,
    Events,
    FilterChange,
    FilterVersion,
)
from brokerd.protocols.gryphon.routes import Links, Routes
from brokerd.protocols.interface import Effect, Instant, Send
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.units import MILLISECOND_NS

BEGINNINGS: Final = "beginnings"
"""Purpose of the deadline at which incomplete beginnings are sent on."""
HOLD_NS: Final = 100 * MILLISECOND_NS
MOST_OWED: Final = 64
"""Changes of one filter that a neighbour may be owed; then they are sent."""


class ChangeRoutes:
    """The changes of filters that neighbours are owed.

    Args:
        sessions: the neighbours with a session, as they are at any time.

    Attributes:
        owed: the changes, by neighbour and broker of the filter.
    """

    def __init__(self, routes: Routes, links: Links, sessions: Container[BrokerNumber]) -> None:
        self._routes = routes
        self._links = links
        self._sessions = sessions
        self.owed: dict[BrokerNumber, dict[BrokerNumber, list[FilterChange]]] = {}

    def send(self, change: FilterChange, but: BrokerNumber | None) -> list[Effect]:
        """Send a change over the tree of its broker, and owe it to the other neighbours."""
        origin = change.version.broker
        effects: list[Effect] = []
        for peer in self._routes.neighbours:
            if peer == but or peer not in self._sessions:
                continue
            changes = self.owed.setdefault(peer, {}).setdefault(origin, [])
            changes.append(change)
            if len(changes) >= MOST_OWED:
                effects += self._settle(peer, origin)
        return effects + self._send_over(origin)

    def _send_over(self, origin: BrokerNumber) -> list[Effect]:
        towards = self._routes.cell_towards(origin)
        return [
            effect
            for cell in self._routes.cells
            if cell != towards
            for peer in self._links.cover(cell)
            for effect in self._settle(peer, origin)
        ]

    def _settle(self, peer: BrokerNumber, origin: BrokerNumber) -> list[Effect]:
        owed = self.owed.get(peer, {})
        changes = owed.pop(origin, [])
        if not owed:
            self.owed.pop(peer, None)
        return [Send(peer, change) for change in changes]

    def on_received(self, peer: BrokerNumber, version: FilterVersion) -> None:
        """Owe a neighbour no change that it has sent itself."""
        owed = self.owed.get(peer, {})
        changes = [each for each in owed.get(version.broker, ()) if each.version > version]
        if changes:
            owed[version.broker] = changes
        elif owed.pop(version.broker, None) is not None and not owed:
            del self.owed[peer]

    def on_session_change(self, peer: BrokerNumber) -> None:
        """Owe a neighbour nothing: a new session begins with all versions."""
        self.owed.pop(peer, None)

    def on_links(self) -> list[Effect]:
        """Send owed changes over the present routes."""
        origins = dict.fromkeys(origin for owed in self.owed.values() for origin in owed)
        return [effect for origin in origins for effect in self._send_over(origin)]

    def before_events(self, effects: Iterable[Effect]) -> Iterator[Effect]:
        """Yield effects, with owed changes before the first event for a neighbour."""
        for effect in effects:
            if type(effect) is Send and type(effect.message) is Events:
                peer: Any = effect.peer
                for origin in [*self.owed.get(peer, ())]:
                    yield from self._settle(peer, origin)
            yield effect


class BeginningRoutes:
    """The beginnings of added predicates at all pubends, on their way to the filters' brokers."""

    def __init__(
        self,
        broker: BrokerNumber,
        routes: Routes,
        links: Links,
        deadlines: DeadlineQueue[tuple[str, Any]],
    ) -> None:
        self._broker = broker
        self._routes = routes
        self._links = links
        self._deadlines = deadlines
        self._known: dict[tuple[BrokerNumber, BrokerNumber], Beginning] = {}
        self._pending: dict[BrokerNumber, dict[BrokerNumber, None]] = {}
        self._complete: dict[BrokerNumber, FilterVersion] = {}
        self._next: dict[BrokerNumber, BrokerNumber | None] = {}

    def add(self, beginnings: Iterable[Beginning], now_ns: Instant) -> list[Any]:
        """Record new beginnings; return messages, and the beginnings of this broker's filter."""
        outcomes: list[Any] = []
        changed: dict[BrokerNumber, None] = {}
        for each in beginnings:
            origin = each.version.broker
            known = self._known.get((each.broker, origin))
            if known is not None and known.version >= each.version:
                continue
            self._known[each.broker, origin] = each
            if origin == self._broker:
                outcomes.append(each)
            else:
                self._pending.setdefault(origin, {})[each.broker] = None
                changed[origin] = None
        outcomes += self._send([origin for origin in changed if self._is_complete(origin)])
        if self._pending and (BEGINNINGS, None) not in self._deadlines:
            self._deadlines.set((BEGINNINGS, None), now_ns + HOLD_NS)
        return outcomes

    def due(self) -> list[Effect]:
        """Send the beginnings that have waited for others."""
        return self._send([*self._pending])

    def on_session_change(self, peer: BrokerNumber) -> None:
        """Mark the beginnings over a neighbour for repetition; its session has begun or ended."""
        for origin in [each for each, near in self._next.items() if near == peer]:
            del self._next[origin]

    def on_links(self) -> list[Effect]:
        """Send the beginnings with a changed route."""
        changed = []
        for host, origin in self._known:
            if origin != self._broker and self._next.get(origin) != self._find_next(origin):
                self._pending.setdefault(origin, {})[host] = None
                changed.append(origin)
        return self._send([*dict.fromkeys(changed)])

    def _is_complete(self, origin: BrokerNumber) -> bool:
        """Return True if a later version than before has a beginning at all brokers behind."""
        towards = self._routes.cell_towards(origin)
        behind = [
            self._known.get((host, origin))
            for host in self._routes.hosts
            if self._routes.cell_towards(host) != towards
        ]
        versions = [each.version for each in behind if each is not None]
        if not versions or len(versions) < len(behind):
            return False
        before = self._complete.get(origin)
        if before is not None and min(versions) <= before:
            return False
        self._complete[origin] = min(versions)
        return True

    def _send(self, origins: Sequence[BrokerNumber]) -> list[Effect]:
        found: dict[BrokerNumber, list[Beginning]] = {}
        for origin in origins:
            self._next[origin] = near = self._find_next(origin)
            if near is not None:
                hosts = self._pending.pop(origin, {})
                found.setdefault(near, []).extend(self._known[host, origin] for host in hosts)
        if not self._pending:
            self._deadlines.cancel((BEGINNINGS, None))
        return [Send(near, Beginnings(tuple(each))) for near, each in found.items() if each]

    def _find_next(self, origin: BrokerNumber) -> BrokerNumber | None:
        near = self._links.up(StreamId(origin, 0, 0), None)
        return near[0] if near else None
