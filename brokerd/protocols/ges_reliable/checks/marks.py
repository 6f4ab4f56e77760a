"""The marks of ges_reliable, found in the events and effects of a core.

`PROTOCOL.md` names every mark at its rule. A new mark is a row of the table.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.graph import OverlayGraph
from brokerd.protocols.ges.checks.marks import MEMBER_MARKS
from brokerd.protocols.ges.messages import ClientsCounted
from brokerd.protocols.ges.units import hierarchy_from
from brokerd.protocols.ges_reliable.messages import Change, Events, Fetch, Fetched, Key, Store
from brokerd.protocols.interface import (
    Chop,
    DeadlineReached,
    Effect,
    Event,
    MessageReceived,
    OverlayChanged,
    RecordsRead,
    RedirectClient,
    Started,
)
from brokerd.simulator.checks.marks import Mark, MarkStep, MarkTable, RisingNumbers
from brokerd.simulator.world.views import BrokerView


def _forwarded(step: MarkStep) -> int:
    """Return the number of messages for another broker that are sent on."""
    return step.count_sent(type(step.message), lambda each: getattr(each, "hops", 0) > 1)


def _is_for_storage(step: MarkStep) -> bool:
    """Return True if a message has arrived at the storage that it names."""
    target = step.message.target
    return target is not None and bool(target.unit == step.core.units.place.address)


def _is_among_storages(step: MarkStep) -> bool:
    """Return True if one storage sent the message to another."""
    return _is_for_storage(step) and bool(step.message.stores)


def _is_root(step: MarkStep) -> bool:
    return step.core.storage.profile is None


def _is_stored(step: MarkStep) -> bool:
    """Return True if the storage had a publication before, or has by now."""
    if not (_is_for_storage(step) and step.core.storage.log.is_read):
        return False
    run = step.message.run
    return bool(step.core.storage.log.stored(run.source) >= run.last)


def _is_early(step: MarkStep) -> bool:
    if not (_is_for_storage(step) and step.core.storage.log.is_read):
        return False
    return not _is_stored(step) and bool(step.core.storage.log.waiting())


def _is_behind_gap(step: MarkStep) -> bool:
    message = step.message
    if not _is_for_storage(step) or message.stores:
        return False
    return not step.core.has_arrived(message.storage, message.after)


def _is_registered(step: MarkStep) -> bool:
    """Return True if an access broker requests subscriptions of a storage that has read its log."""
    if not _is_for_storage(step) or step.message.stores:
        return False
    return bool(step.core.storage.log.is_read)


def _is_overtaken(step: MarkStep) -> bool:
    message = step.message
    latest = step.core.storage.latest(message.home)
    return bool((message.incarnation, message.number) < latest)


def _count_requests(step: MarkStep, when: Callable[[Any], bool]) -> int:
    """Return the number of current requests for which a condition holds."""
    is_current = _is_registered(step) and not _is_overtaken(step)
    return sum(map(when, step.message.requests)) if is_current else 0


def _asked_successor(step: MarkStep) -> int:
    def is_asked(request: Any) -> bool:
        return (
            request.had is not None and request.key in step.core.storage.registrations.successors()
        )

    return _count_requests(step, is_asked)


def known_requests(step: MarkStep) -> Iterator[tuple[Any, Any]]:
    """Yield the current requests for subscriptions of a storage, with the subscriptions."""
    if not _is_registered(step) or _is_overtaken(step):
        return
    known = step.core.storage.registrations.subscriptions()
    for request in step.message.requests:
        if request.predicate is not None and request.key in known:
            yield request, known[request.key]


MARKS = (
    Mark(
        "message-forwarded",
        "a broker forwarded a message for another broker",
        seeds=4,
        on=(MessageReceived,),
        when=_forwarded,
    ),
    Mark("receiver-unreachable", "no route led to the receiver of a message", seeds=12),
    Mark(
        "duplicate-at-storage",
        "a storage received a publication twice",
        seeds=6,
        on=(Store,),
        when=_is_stored,
    ),
    Mark(
        "publication-out-of-order",
        "a publication waited for one before it",
        seeds=16,
        on=(Store,),
        when=_is_early,
    ),
    Mark(
        "publications-resent",
        "an access broker sent an unconfirmed publication again",
        seeds=4,
        on=(DeadlineReached,),
        when=lambda step: len(step.sent.get(Store, ())),
    ),
    Mark(
        "subscriptions-resent",
        "an access broker sent a storage its subscriptions again",
        seeds=4,
        on=(DeadlineReached,),
        when=lambda step: len(step.sent.get(Change, ())),
    ),
    Mark(
        "change-overtaken",
        "a change arrived at a storage with a later one",
        seeds=0,
        on=(Change,),
        when=lambda step: _is_registered(step) and _is_overtaken(step),
    ),
    Mark(
        "discarded-behind-gap",
        "an access broker discarded publications behind a gap",
        seeds=24,
        on=(Fetched,),
        when=_is_behind_gap,
    ),
    Mark(
        "fetched-for-late-start",
        "an access broker fetched received publications again, for a late starter",
        seeds=4,
    ),
    Mark("resumed-at-position", "a subscription resumed at the position of its client", seeds=8),
    Mark("resumed-at-another-broker", "a subscription resumed at another broker", seeds=8),
    Mark("resumed-at-receipt", "a subscription resumed at its receipt", seeds=8),
    Mark(
        "earlier-attachment-ignored",
        "a message of an earlier attachment of a client was ignored",
        seeds=40,
        on=(Change,),
        when=lambda step: sum(
            request.generation != found.generation for request, found in known_requests(step)
        ),
    ),
    Mark(
        "stored-from-another-root",
        "a root stored a publication of another root",
        seeds=4,
        on=(Events,),
        when=lambda step: _is_among_storages(step) and _is_root(step),
    ),
    Mark(
        "deferred-for-a-root",
        "a publication of another root waited for its turn",
        seeds=40,
        on=(Events,),
        when=lambda step: (
            _is_among_storages(step) and _is_root(step) and bool(step.core.storage.log.waiting())
        ),
    ),
    Mark(
        "stored-at-finer-storage",
        "a finer storage stored publications of its parent",
        seeds=4,
        on=(Events,),
        when=lambda step: _is_among_storages(step) and not _is_root(step),
    ),
    Mark(
        "requested-by-finer-storage",
        "a finer storage requested more from its parent",
        seeds=4,
        on=(Change,),
        when=lambda step: _is_among_storages(step),
    ),
    Mark(
        "resumed-without-position",
        "a subscription resumed without a position of its client",
        seeds=40,
        on=(Change,),
        when=lambda step: sum(bool(request.claims) for request, _ in known_requests(step)),
    ),
    Mark(
        "storage-handover",
        "a subscription moved to another storage of its tree",
        seeds=16,
        on=(Change,),
        when=lambda step: _count_requests(
            step, lambda request: request.predicate is None and request.successor is not None
        ),
    ),
    Mark(
        "request-at-former-storage",
        "a request reached the former storage of a subscription",
        seeds=100,
        on=(Change,),
        when=_asked_successor,
    ),
    Mark(
        "tree-handover",
        "two trees agreed on the position of a handover",
        seeds=16,
        on=(Change,),
        when=lambda step: _count_requests(step, lambda request: request.until is not None),
    ),
    Mark(
        "ahead-of-successor-root",
        "a storage delivered beyond the position of its successor's root",
        seeds=150,
        on=(Change,),
        when=lambda step: _count_requests(
            step, lambda request: bool(request.received_of) and request.before is not None
        ),
    ),
    Mark("root-behind-handover", "a root was too far behind for a handover", seeds=60),
    Mark(
        "attached-during-handover",
        "a client attached during a handover between trees",
        seeds=400,
        on=(Change,),
        when=lambda step: sum(
            found.until is not None and request.successor is None
            for request, found in known_requests(step)
        ),
    ),
    Mark("storages-changed", "a storage was added or retired while brokers ran", seeds=8),
    *MEMBER_MARKS,
    Mark(
        "client-counts-announced",
        "brokers of a cluster announced their numbers of clients",
        seeds=8,
        by=(ClientsCounted,),
        when=lambda step: len(step.sent[ClientsCounted]),
    ),
    Mark(
        "client-redirected",
        "a broker redirected a client to another broker",
        seeds=16,
        by=(RedirectClient,),
        when=lambda step: len(step.acts[RedirectClient]),
    ),
    Mark(
        "cluster-part-closed",
        "a part of a cluster without its lowest member took no clients",
        seeds=20,
    ),
    Mark(
        "log-read",
        "a storage read its log after a restart",
        seeds=12,
        on=(RecordsRead,),
    ),
    Mark(
        "log-truncated",
        "a storage truncated acknowledged records",
        seeds=2,
        by=(Chop,),
        when=lambda step: len(step.acts[Chop]),
    ),
)


class GesReliableMarks:
    """See MarkObserver: the marks of the table, and those that depend on earlier steps."""

    def __init__(self, graph: OverlayGraph) -> None:
        self._table = MarkTable(MARKS)
        self._rising = RisingNumbers()
        self._homes: dict[Key, BrokerNumber] = {}
        self._after: dict[tuple[BrokerNumber, Any], int] = {}

    @property
    def counts(self) -> dict[str, int]:
        return self._table.counts

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        step = MarkStep(broker, event, effects)
        self._table.step(step)
        self._table.count(self._find_rises(step))
        self._table.count(self._find_repeated_fetches(step))
        if type(step.message) is Change:
            self._table.count(self._find_resumed(step))

    def _find_rises(self, step: MarkStep) -> Iterator[str]:
        core, event = step.core, step.event
        risen = {
            "receiver-unreachable": core._counters["messages_without_route"],
            "root-behind-handover": core.waits_for_roots(),
        }
        if type(event) is OverlayChanged:
            risen["storages-changed"] = len(hierarchy_from(event.overlay).changes)
        if type(event) is DeadlineReached:
            risen["cluster-part-closed"] = core.units.statistics()["clusters_partitioned"]
        for name, number in risen.items():
            if self._rising.has_risen((step.broker.number, name), number):
                yield name

    def _find_repeated_fetches(self, step: MarkStep) -> Iterator[str]:
        number = step.broker.number
        for fetch in step.sent.get(Fetch, ()):
            if step.is_own(fetch.follower):
                key = number, fetch.target.unit
                if fetch.after < self._after.get(key, 0):
                    yield "fetched-for-late-start"
                self._after[key] = fetch.after
        if type(step.event) is Started:
            self._after = {key: after for key, after in self._after.items() if key[0] != number}

    def _find_resumed(self, step: MarkStep) -> Iterator[str]:
        for request, found in known_requests(step):
            if found.generation != request.generation:
                continue
            before = self._homes.get(request.key)
            if before is not None and request.had is not None:
                yield "resumed-at-position" if before == found.home else "resumed-at-another-broker"
            elif before is not None:
                yield "resumed-at-receipt"
            self._homes[request.key] = found.home
