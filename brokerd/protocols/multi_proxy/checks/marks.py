"""The marks of multi_proxy, found in the events and effects of a core.

`PROTOCOL.md` names every mark at its rule.
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
    MessageReceived,
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
from brokerd.simulator.checks.marks import Mark
from brokerd.simulator.world.views import BrokerView

MARKS = (
    Mark("other-proxy", "an access broker used another proxy to a server than before", seeds=4),
    Mark("asked-in-vain", "a server left an access broker without an answer for too long", seeds=4),
    Mark("put-again", "an access broker repeated an unconfirmed put", seeds=4),
    Mark("stored-before", "a server received a put that it had on disk", seeds=4),
    Mark("put-too-early", "a put arrived before its predecessor", seeds=60),
    Mark("put-held", "a put waited for the followers of its topic", seeds=20),
    Mark("get-waits", "a get timed out with an empty answer", seeds=4),
    Mark("came-twice", "an access broker received known messages only", seeds=20),
    Mark("room-for-none", "an access broker paused a topic, as its clients were behind", seeds=20),
    Mark(
        "followed-anew", "a restarted access broker announced the topics that it follows", seeds=8
    ),
    Mark("follow-grew", "an access broker announced further topics", seeds=4),
    Mark("follow-shrank", "an access broker announced fewer topics", seeds=8),
    Mark("server-back", "a proxy announced that a server is reachable again", seeds=4),
    Mark("log-read", "a restarted server found publications in its log", seeds=12),
    Mark("log-chopped", "a server truncated publications that all had acknowledged", seeds=2),
    Mark(
        "expired",
        "a server released publications before an access broker had acknowledged",
        seeds=12,
    ),
    Mark("no-room", "a server released publications, because its log was full", seeds=20),
    Mark("lost-told", "a server announced released publications to an access broker", seeds=20),
    Mark("gap-told", "an access broker announced a gap to clients", seeds=20),
    Mark("lost-read", "a restarted server recovered the bounds of released publications", seeds=60),
    Mark("owner-found", "an arbiter received the report that a server has a topic", seeds=4),
    Mark("owner-known", "an arbiter was asked for a known owner", seeds=8),
    Mark("assigned-before", "a server was assigned its own topic again", seeds=20),
    Mark("other-candidate", "an arbiter assigned a refused topic to another server", seeds=60),
    Mark("owners-told", "a proxy received the topics of a server as their session began", seeds=4),
    Mark(
        "topic-moved", "an arbiter received the report that a topic is another server's", seeds=20
    ),
    Mark("give-again", "an arbiter repeated the order to transfer a topic", seeds=60),
    Mark("topic-given", "a server transferred a topic to another one that owned it too", seeds=12),
    Mark("topic-carried", "publications of a topic were copied to its other owner", seeds=20),
    Mark("topic-came", "a server received all of a transferred topic", seeds=12),
    Mark("sent-again", "a server repeated an unconfirmed part of a transfer", seeds=40),
    Mark(
        "home-moved", "an access broker followed a topic to another server, as directed", seeds=12
    ),
    Mark("given-up", "a server released the state of a decommissioned access broker", seeds=120),
    Mark("turned-away", "a decommissioned broker was refused, and ended", seeds=120),
    Mark(
        "kept-for-others",
        "a server kept publications that all its access brokers had acknowledged",
        seeds=8,
    ),
)


_SILENT = (DeadlineReached, Persisted)
"""Events without a mark unless the core has effects."""


class MultiProxyMarks:
    """See MarkObserver."""

    def __init__(self, graph: OverlayGraph) -> None:
        self.counts = {mark.name: 0 for mark in MARKS}
        self._over: dict[tuple[BrokerNumber, BrokerNumber], BrokerNumber] = {}
        self._topics: dict[tuple[BrokerNumber, BrokerNumber], tuple[int, ...]] = {}
        self._reached: dict[BrokerNumber, int] = {}

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        """See MarkObserver."""
        if not effects and type(event) in _SILENT:
            return
        for name in _find_marks(broker, event, effects):
            self.counts[name] += 1
        for effect in effects:
            if type(effect) is Send and isinstance(effect.peer, int):
                for name in self._find_requests(broker, effect.peer, effect.message):
                    self.counts[name] += 1

    def _find_requests(self, broker: BrokerView, peer: BrokerNumber, message: Any) -> Iterator[str]:
        if type(message) is Servers:
            before = self._reached.get(broker.number, 0)
            self._reached[broker.number] = len(message.reached)
            if before and len(message.reached) > before:
                yield "server-back"
        if type(message) not in (Put, Get, Follow) or message.home != broker.number:
            return
        way = broker.number, message.server
        if self._over.setdefault(way, peer) != peer:
            self._over[way] = peer
            yield "other-proxy"
        if type(message) is Get and not all(wanted.most for wanted in message.wanted):
            yield "room-for-none"
        if type(message) is Follow:
            topics, self._topics[way] = self._topics.get(way, ()), message.topics
            if message.number == 1 and message.incarnation > 1 and message.topics:
                yield "followed-anew"
            elif topics and len(message.topics) > len(topics):
                yield "follow-grew"
            elif len(message.topics) < len(topics):
                yield "follow-shrank"


def _find_releases(
    broker: BrokerView, event: Event, said: Sequence[Any], effects: Sequence[Effect]
) -> Iterator[str]:
    """Yield the marks of releases by age or size, or for decommissioned brokers."""
    changes = [change for effect in effects if type(effect) is Commit for change in effect.changes]
    if changes and any(
        change.table == LOST_ROWS and change.value is not None for change in changes
    ):
        core: Any = broker.core
        bounds = core.server.retention.bounds
        yield "expired" if bounds.max_retain_ns else "no-room"
    if changes and any(change.table == FOLLOWERS and change.value is None for change in changes):
        yield "given-up"
    if type(event) is Started and event.recovered.get(LOST_ROWS):
        yield "lost-read"
    is_asked = type(event) is MessageReceived and type(event.message) is Get
    if is_asked and any(type(message) is Lost for message in said):
        yield "lost-told"


def _find_shared(
    broker: BrokerView, event: Event, said: Sequence[Any], effects: Sequence[Effect]
) -> Iterator[str]:
    """Yield the marks of topics with two owners until detection."""
    if type(event) is DeadlineReached and any(
        type(each) is Transfer and each.giver == broker.number for each in said
    ):
        yield "sent-again"
    if type(event) is not MessageReceived:
        return
    message = event.message
    if type(message) is Merge and message.server == broker.number and effects:
        yield "topic-given"
    elif type(message) is Carry and message.server == broker.number and effects:
        yield "topic-carried"
    elif type(message) is Transferred and message.giver == broker.number and effects:
        yield "topic-came"
    elif type(message) is Merged and message.home == broker.number:
        rows = [change for effect in effects if type(effect) is Commit for change in effect.changes]
        if any(row.table == CHOSEN for row in rows):
            yield "home-moved"
    elif type(message) is Get and message.server == broker.number:
        core: Any = broker.core
        sharing, log = core.server.sharing, core.server.log
        if sharing is None or not sharing.is_shared:
            return
        for topic in log:
            done = core.server.followers.done_with(topic)
            if done and topic.released < min(done) and not topic.is_frozen:
                yield "kept-for-others"
                return


def _find_marks(broker: BrokerView, event: Event, effects: Sequence[Effect]) -> Iterator[str]:
    said = [effect.message for effect in effects if type(effect) is Send]
    kinds = {type(message): None for message in said}
    done = {type(effect): None for effect in effects}
    if Assign in kinds and any(
        type(each) is Assign and each.generations[0].number > 1 for each in said
    ):
        yield "other-candidate"
    if type(event) is SessionEstablished and Owned in kinds:
        role = broker.core.status().detail["role"]
        if role == "server" and any(type(each) is Owned and each.owners for each in said):
            yield "owners-told"
    if type(event) is RecordsRead:
        yield "log-read"
    if Chop in done:
        yield "log-chopped"
    if Deliver in done and any(
        type(effect) is Deliver and type(effect.item) is Gap for effect in effects
    ):
        yield "gap-told"
    if Shutdown in done:
        yield "turned-away"
    yield from _find_releases(broker, event, said, effects)
    yield from _find_shared(broker, event, said, effects)
    if type(event) is DeadlineReached:
        if Give in kinds:
            yield "give-again"
        if any(kind in kinds for kind in (Put, Get, Follow)):
            yield "asked-in-vain"
        if Put in kinds:
            yield "put-again"
        if Answered in kinds:
            yield "get-waits"
    if type(event) is not MessageReceived:
        return
    message = event.message
    if type(message) is Assigned and message.arbiter == broker.number:
        rows = [change for effect in effects if type(effect) is Commit for change in effect.changes]
        has_moved = any(row.table == OWNERS and len(row.value) > 3 for row in rows)
        yield "topic-moved" if has_moved else "owner-found"
    elif type(message) is Claim and Located in kinds:
        yield "owner-known"
    elif type(message) is Assign and message.server == broker.number:
        if not any(type(effect) is Commit for effect in effects):
            yield "assigned-before"
    elif type(message) is Put and message.server == broker.number:
        core: Any = broker.core
        if core.server.holds(message):
            yield "put-held"
        elif Stored in kinds:
            yield "stored-before"
        elif message.previous and not any(type(effect) is Append for effect in effects):
            put = core.server.log.topic(message.topic).put
            if message.previous > put.get(message.run.source, 0):
                yield "put-too-early"
    elif type(message) is Messages and message.home == broker.number:
        handed = any(type(effect) is Deliver for effect in effects)
        if not handed and not said and not broker.core.status().detail["undone"]:
            yield "came-twice"
