"""The marks of multi_proxy, found in the events and effects of a core.

`PROTOCOL.md` names every mark at its rule. A new mark is a row of the table.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from brokerd.model.client_messages import Gap
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.graph import OverlayGraph
from brokerd.protocols.interface import (
    Append,
    Chop,
    Commit,
    DeadlineReached,
    Deliver,
    Effect,
    Event,
    Persisted,
    RecordsRead,
    Send,
    SessionEstablished,
    Shutdown,
    Started,
)
from brokerd.protocols.multi_proxy.messages import (
    Answered,
    Assign,
    Assigned,
    Carry,
    Claim,
    Follow,
    Get,
    Give,
    Located,
    Lost,
    Merge,
    Merged,
    Messages,
    Owned,
    Put,
    Servers,
    Stored,
    Transfer,
    Transferred,
)
from brokerd.protocols.multi_proxy.state import CHOSEN, FOLLOWERS, LOST_ROWS, OWNERS
from brokerd.simulator.checks.marks import Mark, MarkStep, MarkTable
from brokerd.simulator.world.views import BrokerView


def _is_put_here(step: MarkStep) -> bool:
    return step.is_own(step.message.server)


def _is_held(step: MarkStep) -> bool:
    """Return True if a put waits for the followers of its topic."""
    return bool(step.core.server.holds(step.message))


def _is_too_early(step: MarkStep) -> bool:
    """Return True if a put arrived before its predecessor."""
    message = step.message
    is_new = Stored not in step.sent and Append not in step.acts
    if not (_is_put_here(step) and message.previous and is_new) or _is_held(step):
        return False
    put = step.core.server.log.topic(message.topic).put
    return bool(message.previous > put.get(message.run.source, 0))


def _is_known(step: MarkStep) -> bool:
    """Return True if an access broker had all publications that arrived."""
    is_idle = Deliver not in step.acts and not step.sent
    return step.is_own(step.message.home) and is_idle and not step.core.detail()["undone"]


def _releases(step: MarkStep) -> bool:
    return any(row.value is not None for row in step.rows(LOST_ROWS))


def _is_by_age(step: MarkStep) -> bool:
    return bool(step.core.server.retention.bounds.max_retain_ns)


def _has_moved(step: MarkStep) -> bool:
    return any(len(row.value) > 3 for row in step.rows(OWNERS))


def _tells_owners(step: MarkStep) -> bool:
    if Owned not in step.sent or step.core.server is None:
        return False
    return step.sends(Owned, lambda each: bool(each.owners))


def _keeps_for_others(step: MarkStep) -> bool:
    """Return True if another owner retains publications that all access brokers acknowledged."""
    if not step.is_own(step.message.server):
        return False
    server = step.core.server
    if server.transfer_server is None or not server.transfer_server.is_shared:
        return False
    for topic in server.log:
        done = server.followers.done_with(topic)
        if done and topic.released < min(done) and not topic.is_frozen:
            return True
    return False


MARKS = (
    Mark("proxy-changed", "an access broker used another proxy to a server than before", seeds=4),
    Mark(
        "request-unanswered",
        "a server left an access broker without an answer for too long",
        seeds=4,
        on=(DeadlineReached,),
        when=lambda step: any(kind in step.sent for kind in (Put, Get, Follow)),
    ),
    Mark(
        "put-repeated",
        "an access broker repeated an unconfirmed put",
        seeds=4,
        on=(DeadlineReached,),
        when=lambda step: Put in step.sent,
    ),
    Mark(
        "put-stored-before",
        "a server received a put that it had on disk",
        seeds=4,
        on=(Put,),
        when=lambda step: _is_put_here(step) and not _is_held(step) and Stored in step.sent,
    ),
    Mark(
        "put-out-of-order",
        "a put arrived before its predecessor",
        seeds=60,
        on=(Put,),
        when=_is_too_early,
    ),
    Mark(
        "put-deferred",
        "a put waited for the followers of its topic",
        seeds=20,
        on=(Put,),
        when=lambda step: _is_put_here(step) and _is_held(step),
    ),
    Mark(
        "get-timed-out",
        "a get timed out with an empty answer",
        seeds=4,
        on=(DeadlineReached,),
        when=lambda step: Answered in step.sent,
    ),
    Mark(
        "duplicate-received",
        "an access broker received known messages only",
        seeds=20,
        on=(Messages,),
        when=_is_known,
    ),
    Mark("topic-paused", "an access broker paused a topic, as its clients were behind", seeds=20),
    Mark(
        "topics-announced-again",
        "a restarted access broker announced the topics that it follows",
        seeds=8,
    ),
    Mark("topics-added", "an access broker announced further topics", seeds=4),
    Mark("topics-removed", "an access broker announced fewer topics", seeds=8),
    Mark("server-reachable-again", "a proxy announced that a server is reachable again", seeds=4),
    Mark(
        "log-read",
        "a restarted server found publications in its log",
        seeds=12,
        on=(RecordsRead,),
    ),
    Mark(
        "log-truncated",
        "a server truncated publications that all had acknowledged",
        seeds=2,
        by=(Chop,),
    ),
    Mark(
        "publications-expired",
        "a server released publications before an access broker had acknowledged",
        seeds=12,
        by=(Commit,),
        when=lambda step: _releases(step) and _is_by_age(step),
    ),
    Mark(
        "log-full",
        "a server released publications, because its log was full",
        seeds=20,
        by=(Commit,),
        when=lambda step: _releases(step) and not _is_by_age(step),
    ),
    Mark(
        "loss-announced",
        "a server announced released publications to an access broker",
        seeds=20,
        on=(Get,),
        when=lambda step: Lost in step.sent,
    ),
    Mark(
        "gap-announced",
        "an access broker announced a gap to clients",
        seeds=20,
        by=(Deliver,),
        when=lambda step: step.delivers(Gap),
    ),
    Mark(
        "loss-bounds-recovered",
        "a restarted server recovered the bounds of released publications",
        seeds=60,
        on=(Started,),
        when=lambda step: bool(step.event.recovered.get(LOST_ROWS)),
    ),
    Mark(
        "owner-reported",
        "an arbiter received the report that a server has a topic",
        seeds=4,
        on=(Assigned,),
        when=lambda step: step.is_own(step.message.arbiter) and not _has_moved(step),
    ),
    Mark(
        "owner-requested",
        "an arbiter was asked for a known owner",
        seeds=8,
        on=(Claim,),
        when=lambda step: Located in step.sent,
    ),
    Mark(
        "assigned-again",
        "a server was assigned its own topic again",
        seeds=20,
        on=(Assign,),
        when=lambda step: step.is_own(step.message.server) and Commit not in step.acts,
    ),
    Mark(
        "assigned-to-another-server",
        "an arbiter assigned a refused topic to another server",
        seeds=60,
        by=(Assign,),
        when=lambda step: step.sends(Assign, lambda each: each.generations[0].number > 1),
    ),
    Mark(
        "owners-announced",
        "a proxy received the topics of a server as their session began",
        seeds=4,
        on=(SessionEstablished,),
        when=_tells_owners,
    ),
    Mark(
        "owner-changed",
        "an arbiter received the report that a topic is another server's",
        seeds=20,
        on=(Assigned,),
        when=lambda step: step.is_own(step.message.arbiter) and _has_moved(step),
    ),
    Mark(
        "transfer-order-repeated",
        "an arbiter repeated the order to transfer a topic",
        seeds=60,
        on=(DeadlineReached,),
        when=lambda step: Give in step.sent,
    ),
    Mark(
        "topic-merged",
        "a server transferred a topic to another one that owned it too",
        seeds=12,
        on=(Merge,),
        when=lambda step: step.is_own(step.message.server) and bool(step.effects),
    ),
    Mark(
        "topic-copied",
        "publications of a topic were copied to its other owner",
        seeds=20,
        on=(Carry,),
        when=lambda step: step.is_own(step.message.server) and bool(step.effects),
    ),
    Mark(
        "topic-transferred",
        "a server received all of a transferred topic",
        seeds=12,
        on=(Transferred,),
        when=lambda step: step.is_own(step.message.giver) and bool(step.effects),
    ),
    Mark(
        "transfer-part-resent",
        "a server repeated an unconfirmed part of a transfer",
        seeds=40,
        on=(DeadlineReached,),
        when=lambda step: step.sends(Transfer, lambda each: step.is_own(each.giver)),
    ),
    Mark(
        "followed-to-another-server",
        "an access broker followed a topic to another server, as directed",
        seeds=12,
        on=(Merged,),
        when=lambda step: step.is_own(step.message.home) and step.commits(CHOSEN),
    ),
    Mark(
        "decommissioned-broker-released",
        "a server released the state of a decommissioned access broker",
        seeds=120,
        by=(Commit,),
        when=lambda step: any(row.value is None for row in step.rows(FOLLOWERS)),
    ),
    Mark(
        "decommissioned-broker-refused",
        "a decommissioned broker was refused, and ended",
        seeds=120,
        by=(Shutdown,),
    ),
    Mark(
        "kept-for-other-brokers",
        "a server kept publications that all its access brokers had acknowledged",
        seeds=8,
        on=(Get,),
        when=_keeps_for_others,
    ),
)


_SILENT = (DeadlineReached, Persisted)
"""Events without a mark unless the core has effects."""


class MultiProxyMarks:
    """See MarkObserver."""

    def __init__(self, graph: OverlayGraph) -> None:
        self._table = MarkTable(MARKS)
        self._over: dict[tuple[BrokerNumber, BrokerNumber], BrokerNumber] = {}
        self._topics: dict[tuple[BrokerNumber, BrokerNumber], tuple[int, ...]] = {}
        self._reached: dict[BrokerNumber, int] = {}

    @property
    def counts(self) -> dict[str, int]:
        return self._table.counts

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        if not effects and type(event) in _SILENT:
            return
        self._table.step(MarkStep(broker, event, effects))
        for effect in effects:
            if type(effect) is Send and isinstance(effect.peer, int):
                self._table.count(self._find_requests(broker, effect.peer, effect.message))

    def _find_requests(self, broker: BrokerView, peer: BrokerNumber, message: Any) -> Iterator[str]:
        if type(message) is Servers:
            before = self._reached.get(broker.number, 0)
            self._reached[broker.number] = len(message.reached)
            if before and len(message.reached) > before:
                yield "server-reachable-again"
        if type(message) not in (Put, Get, Follow) or message.home != broker.number:
            return
        way = broker.number, message.server
        if self._over.setdefault(way, peer) != peer:
            self._over[way] = peer
            yield "proxy-changed"
        if type(message) is Get and not all(wanted.most for wanted in message.wanted):
            yield "topic-paused"
        if type(message) is Follow:
            topics, self._topics[way] = self._topics.get(way, ()), message.topics
            if message.number == 1 and message.incarnation > 1 and message.topics:
                yield "topics-announced-again"
            elif topics and len(message.topics) > len(topics):
                yield "topics-added"
            elif len(message.topics) < len(topics):
                yield "topics-removed"
