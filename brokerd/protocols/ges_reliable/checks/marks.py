"""The marks of ges_reliable, found in the events and effects of a core.

`PROTOCOL.md` names every mark at its rule.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.graph import OverlayGraph
from brokerd.protocols.ges.checks.marks import members_told
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
    Mark("carried-on", "a broker passed on what was for another one", seeds=4),
    Mark("no-way-to", "there was no way to whom something was for", seeds=12),
    Mark("stored-again", "a publication came to its storage again", seeds=6),
    Mark("came-too-early", "a publication waited for one before it", seeds=16),
    Mark("sent-again", "a home sent again what was not known to be stored", seeds=4),
    Mark("told-again", "a home told a storage again of subscriptions", seeds=4),
    Mark("overtaken-change", "a change came to a storage that had a later one", seeds=0),
    Mark("over-a-hole", "a home let go of what lay behind a hole", seeds=24),
    Mark("fetched-again", "a home fetched again what had come, for one that began behind", seeds=4),
    Mark("goes-on", "a subscription went on where its client had come to", seeds=8),
    Mark("goes-on-elsewhere", "one did so at another broker", seeds=8),
    Mark("without-memory", "a subscription went on at its receipt", seeds=8),
    Mark("earlier-stay", "a client was not listened to, since it had gone elsewhere", seeds=40),
    Mark("stored-elsewhere", "a root took what another one stores", seeds=4),
    Mark("waits-for-a-root", "what a root took of another one waited for its turn", seeds=40),
    Mark("stored-finer", "a finer storage took what its parent stores", seeds=4),
    Mark("wanted-in-a-unit", "a finer storage asked its parent for more", seeds=4),
    Mark("claimed", "a subscription went on where its client had not said", seeds=40),
    Mark("handed-over", "a subscription went on at another storage of its tree", seeds=16),
    Mark("asked-its-heir", "one was asked for at the storage that it had left", seeds=100),
    Mark("handed-to-another-root", "two trees agreed on where a subscription goes on", seeds=16),
    Mark("ahead-of-another-root", "what a storage gave its heir's root had not had", seeds=150),
    Mark("behind-another-root", "a root had not come far enough to be left", seeds=60),
    Mark("found-between-roots", "a client came that was on its way between two trees", seeds=400),
    Mark("storages-changed", "a storage came, or retired, while brokers ran", seeds=8),
    Mark("newcomer-told", "a broker heard of a newcomer that it is linked to", seeds=8),
    Mark("leaver-told", "a broker heard that a neighbour has left", seeds=12),
    Mark("clients-counted", "brokers of a cluster said how many clients they have", seeds=8),
    Mark("sent-elsewhere", "a broker told a client to go to another one", seeds=16),
    Mark("cut-off", "a part of a cluster without its lowest member took no clients", seeds=20),
    Mark("log-read", "a storage read its log after a restart", seeds=12),
    Mark("log-chopped", "what all were done with went off the disk", seeds=2),
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
            for name in members_told(broker, effects):
                self.counts[name] += 1
        for name in (*self._said(broker, event, effects), *self._heard(broker, event)):
            self.counts[name] += 1
        core: Any = broker.core
        lost = core.routing_statistics()["messages_without_route"]
        if lost > self._lost.get(broker.number, 0):
            self.counts["no-way-to"] += 1
        self._lost[broker.number] = lost

        if type(event) is DeadlineReached:
            apart = core.routing_statistics()["came_apart"]
            self.counts["cut-off"] += apart > self._apart.get(broker.number, 0)
            self._apart[broker.number] = apart

        waited = core.waits_for_roots()
        if waited > self._waited.get(broker.number, 0):
            self.counts["behind-another-root"] += 1
        self._waited[broker.number] = waited

    def _said(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> Iterator[str]:
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

    def _heard(self, broker: BrokerView, event: Event) -> Iterator[str]:
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
            yield from self._changed(core, message)
        elif type(message) is Fetched and not core.has_come(message.storage, message.after):
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

    def _changed(self, core: Any, message: Change) -> Iterator[str]:
        latest = core.storage.latest(message.home)
        if (message.incarnation, message.number) < latest:
            yield "overtaken-change"
            return
        known = core.storage.registrations.known()
        heirs = core.storage.registrations.heirs()
        for wish in message.wishes:
            if wish.predicate is None and wish.heir is not None:
                yield "handed-over"
            if wish.had is not None and wish.key in heirs:
                yield "asked-its-heir"
            if wish.until is not None:
                yield "handed-to-another-root"
            if wish.had_of and wish.before is not None:
                yield "ahead-of-another-root"
            if wish.predicate is None or wish.key not in known:
                continue
            found = known[wish.key]
            if found.until is not None and wish.heir is None:
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
