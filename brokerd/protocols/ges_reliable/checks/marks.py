"""The marks of ges_reliable, found in the events and effects of a core.

`PROTOCOL.md` names every mark at its rule.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.graph import OverlayGraph
from brokerd.protocols.ges.checks.marks import announced_members
from brokerd.protocols.ges.messages import ClientsCounted
from brokerd.protocols.ges.units import hierarchy_from
from brokerd.protocols.ges_reliable.messages import (
    Change,
    Events,
    Fetch,
    Fetched,
    Key,
    Store,
)
from brokerd.protocols.interface import (
    Chop,
    DeadlineReached,
    Effect,
    Event,
    MessageReceived,
    OverlayChanged,
    RecordsRead,
    RedirectClient,
    Send,
    Started,
)
from brokerd.simulator.checks.marks import Mark
from brokerd.simulator.world.views import BrokerView

MARKS = (
    Mark("carried-on", "a broker forwarded a message for another broker", seeds=4),
    Mark("no-way-to", "no route led to the receiver of a message", seeds=12),
    Mark("stored-again", "a storage received a publication twice", seeds=6),
    Mark("came-too-early", "a publication waited for one before it", seeds=16),
    Mark("sent-again", "an access broker sent an unconfirmed publication again", seeds=4),
    Mark("told-again", "an access broker sent a storage its subscriptions again", seeds=4),
    Mark("overtaken-change", "a change arrived at a storage with a later one", seeds=0),
    Mark("over-a-hole", "an access broker discarded publications behind a gap", seeds=24),
    Mark(
        "fetched-again",
        "an access broker fetched received publications again, for a late starter",
        seeds=4,
    ),
    Mark("goes-on", "a subscription resumed at the position of its client", seeds=8),
    Mark("goes-on-elsewhere", "a subscription resumed at another broker", seeds=8),
    Mark("without-memory", "a subscription resumed at its receipt", seeds=8),
    Mark("earlier-stay", "a message of an earlier attachment of a client was ignored", seeds=40),
    Mark("stored-elsewhere", "a root stored a publication of another root", seeds=4),
    Mark("waits-for-a-root", "a publication of another root waited for its turn", seeds=40),
    Mark("stored-finer", "a finer storage stored publications of its parent", seeds=4),
    Mark("wanted-in-a-unit", "a finer storage requested more from its parent", seeds=4),
    Mark("claimed", "a subscription resumed without a position of its client", seeds=40),
    Mark("handed-over", "a subscription moved to another storage of its tree", seeds=16),
    Mark("asked-its-heir", "a request reached the former storage of a subscription", seeds=100),
    Mark("handed-to-another-root", "two trees agreed on the position of a handover", seeds=16),
    Mark(
        "ahead-of-another-root",
        "a storage delivered beyond the position of its successor's root",
        seeds=150,
    ),
    Mark("behind-another-root", "a root was too far behind for a handover", seeds=60),
    Mark("found-between-roots", "a client attached during a handover between trees", seeds=400),
    Mark("storages-changed", "a storage was added or retired while brokers ran", seeds=8),
    Mark("newcomer-told", "a broker received the announcement of a new neighbour", seeds=8),
    Mark("leaver-told", "a broker received the announcement that a neighbour left", seeds=12),
    Mark("clients-counted", "brokers of a cluster announced their numbers of clients", seeds=8),
    Mark("sent-elsewhere", "a broker redirected a client to another broker", seeds=16),
    Mark("cut-off", "a part of a cluster without its lowest member took no clients", seeds=20),
    Mark("log-read", "a storage read its log after a restart", seeds=12),
    Mark("log-chopped", "a storage truncated acknowledged records", seeds=2),
)


class GesReliableMarks:
    """See MarkObserver."""

    def __init__(self, graph: OverlayGraph) -> None:
        self.counts = {mark.name: 0 for mark in MARKS}
        self._changes: dict[BrokerNumber, int] = {}
        self._lost: dict[BrokerNumber, int] = {}
        self._waited: dict[BrokerNumber, int] = {}
        self._apart: dict[BrokerNumber, int] = {}
        self._homes: dict[Key, BrokerNumber] = {}
        self._after: dict[tuple[BrokerNumber, Any], int] = {}

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        """See MarkObserver."""
        if type(event) is OverlayChanged:
            changes = hierarchy_from(event.overlay).changes
            self.counts["storages-changed"] += len(changes) > self._changes.get(broker.number, 0)
            self._changes[broker.number] = len(changes)
            for name in announced_members(broker, effects):
                self.counts[name] += 1
        for name in (*self._sent(broker, event, effects), *self._received(broker, event)):
            self.counts[name] += 1
        core: Any = broker.core
        lost = core._counters["messages_without_route"]
        if lost > self._lost.get(broker.number, 0):
            self.counts["no-way-to"] += 1
        self._lost[broker.number] = lost

        if type(event) is DeadlineReached:
            apart = core.units.statistics()["came_apart"]
            self.counts["cut-off"] += apart > self._apart.get(broker.number, 0)
            self._apart[broker.number] = apart

        waited = core.waits_for_roots()
        if waited > self._waited.get(broker.number, 0):
            self.counts["behind-another-root"] += 1
        self._waited[broker.number] = waited

    def _sent(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> Iterator[str]:
        is_due = type(event) is DeadlineReached
        for effect in effects:
            if type(effect) is Chop:
                yield "log-chopped"
            elif type(effect) is RedirectClient:
                yield "sent-elsewhere"
            if type(effect) is not Send:
                continue
            message = effect.message
            if type(message) is ClientsCounted:
                yield "clients-counted"
            if is_due and type(message) is Store:
                yield "sent-again"
            elif is_due and type(message) is Change:
                yield "told-again"
            elif type(message) is Fetch and message.follower == broker.number:
                key = broker.number, message.target.unit
                if message.after < self._after.get(key, 0):
                    yield "fetched-again"
                self._after[key] = message.after
            came = event.message if type(event) is MessageReceived else None
            if type(message) is type(came) and getattr(message, "hops", 0) > 1:
                yield "carried-on"

    def _received(self, broker: BrokerView, event: Event) -> Iterator[str]:
        if type(event) is RecordsRead:
            yield "log-read"
        if type(event) is Started:
            for key in [key for key in self._after if key[0] == broker.number]:
                del self._after[key]
        core: Any = broker.core
        if type(event) is not MessageReceived:
            return
        message = event.message
        if getattr(message, "target", None) is None:
            return
        if message.target.unit != core.units.place.address:
            return
        if getattr(message, "stores", False):
            yield from self._among_storages(core, message)
            return
        if type(message) is Store and core.storage.log.is_read:
            log, run = core.storage.log, message.run
            if log.stored(run.source) >= run.last:
                yield "stored-again"
            elif log.waiting():
                yield "came-too-early"
        elif type(message) is Change and core.storage.log.is_read:
            yield from self._find_changes(core, message)
        elif type(message) is Fetched and not core.has_arrived(message.storage, message.after):
            yield "over-a-hole"

    @staticmethod
    def _among_storages(core: Any, message: Any) -> Iterator[str]:
        if type(message) is Events:
            is_root = core.storage.profile is None
            yield "stored-elsewhere" if is_root else "stored-finer"
            if is_root and core.storage.log.waiting():
                yield "waits-for-a-root"
        elif type(message) is Change:
            yield "wanted-in-a-unit"

    def _find_changes(self, core: Any, message: Change) -> Iterator[str]:
        latest = core.storage.latest(message.home)
        if (message.incarnation, message.number) < latest:
            yield "overtaken-change"
            return
        known = core.storage.registrations.subscriptions()
        heirs = core.storage.registrations.successors()
        for wish in message.requests:
            if wish.predicate is None and wish.successor is not None:
                yield "handed-over"
            if wish.had is not None and wish.key in heirs:
                yield "asked-its-heir"
            if wish.until is not None:
                yield "handed-to-another-root"
            if wish.received_of and wish.before is not None:
                yield "ahead-of-another-root"
            if wish.predicate is None or wish.key not in known:
                continue
            found = known[wish.key]
            if found.until is not None and wish.successor is None:
                yield "found-between-roots"
            if wish.claims:
                yield "claimed"
            before = self._homes.get(wish.key)
            if found.generation != wish.generation:
                yield "earlier-stay"
                continue
            if before is not None and wish.had is not None:
                yield "goes-on" if before == found.home else "goes-on-elsewhere"
            elif before is not None:
                yield "without-memory"
            self._homes[wish.key] = found.home
