"""The marks of the δ tree, found in the events and effects of a core.

`PROTOCOL.md` names each of them at the rule that it stands for. A new mark is a row of the table.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Detach,
    Notice,
    Publish,
    Refused,
    Subscribe,
    Unsubscribed,
)
from brokerd.model.identity import BrokerNumber, ClientId, SubscriptionId
from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree.core import DeltaTree
from brokerd.protocols.delta_tree.messages import (
    BranchReply,
    PartitionGone,
    PartitionNew,
    PublicationConfirmation,
    PublicationCopy,
    RecoveryNotifier,
    SubscriptionConfirmation,
    SubscriptionCopy,
    Summary,
    SyncEnd,
    Tag,
    Unsubscription,
    UpstreamCopy,
)
from brokerd.protocols.delta_tree.state import ROUTING, SUBSCRIPTIONS, Phase
from brokerd.protocols.interface import (
    FIRST_INNER_SESSION,
    DeadlineReached,
    Deliver,
    Effect,
    Event,
    MessageReceived,
    Record,
    Send,
    SessionEstablished,
    SessionLost,
    Started,
    TopologyGrown,
    TopologyShrunk,
)
from brokerd.simulator.checks.marks import Mark, MarkStep, MarkTable
from brokerd.simulator.world.views import BrokerView


def _row(step: MarkStep) -> Any:
    """Return the row of the routing table that a message is about; None without one."""
    return step.core._subscriptions.table.rows.get(step.message.subscription)


def _count_removed(step: MarkStep, table: str) -> int:
    return sum(change.value is None for change in step.rows(table))


def _withdrawn_late(step: MarkStep) -> int:
    """Return the number of own partitions that the last confirmed publication ends."""
    if type(step.message) is not PublicationConfirmation:
        return 0
    return step.count_sent(
        PartitionGone,
        lambda each: any(step.is_own(numbers.detector) for numbers in each.withdrawn),
    )


def _count_tagged(step: MarkStep, *, is_beyond: bool) -> int:
    """Return the number of confirmations with a tag of a kind."""
    return step.count_sent(
        SubscriptionConfirmation,
        lambda each: any(bool(tag.beyond) == is_beyond for tag in each.tags),
    )


def _is_first_upstream(step: MarkStep) -> bool:
    if step.replies(Unsubscription):
        return False
    row = _row(step)
    return row is not None and not row.senders


def _has_unstarted(step: MarkStep) -> bool:
    """Return True if an earlier incarnation had a subscription without a start."""
    return any(not row[3] for row in step.event.recovered.get(SUBSCRIPTIONS, {}).values())


def _is_own_settled(step: MarkStep) -> bool:
    """Return True if a notifier meets a confirmed subscription of a client here."""
    row = _row(step)
    return row is not None and row.is_settled and row.local is not None


def _opens_gate(step: MarkStep) -> bool:
    if not step.commits(SUBSCRIPTIONS):
        return False
    if type(step.message) is RecoveryNotifier:
        return _is_own_settled(step)
    row = _row(step)
    if row is None or not row.confirmed or row.local is None:
        return False
    return bool(row.local.phase is Phase.STARTED)


def _finds_gate_open(step: MarkStep) -> bool:
    return _is_own_settled(step) and not step.commits(SUBSCRIPTIONS)


def _is_before_answers(step: MarkStep) -> bool:
    row = _row(step)
    return row is not None and not row.is_settled


def _repeats_notifier(step: MarkStep) -> int:
    """Return the number of sent notifiers that no message and no departure has caused."""
    causes = (RecoveryNotifier, SubscriptionConfirmation)
    if type(step.message) in causes or type(step.event) is TopologyShrunk:
        return 0
    return len(step.sent[RecoveryNotifier])


def _repeats_publications(step: MarkStep) -> int:
    if step.message is None or type(step.message) is Summary:
        return len(step.sent[PublicationCopy])
    return 0


def _brings_publications(step: MarkStep) -> bool:
    return type(step.message) is PublicationCopy


def _confirmed_in_parts(step: MarkStep) -> int:
    """Return the number of sources of which a frame waits for its remainder."""
    sent = step.core._queue.sent.get(step.event.peer, {})
    transfers = (sent.get(source) for source, _, _ in step.message.ranges)
    return sum(bool(each) and each[0].remainder is not None for each in transfers)


def _loses_relayed(step: MarkStep) -> bool:
    return bool(step.event.session >= FIRST_INNER_SESSION)


def _is_replaced(step: MarkStep) -> bool:
    return step.event.reason == "closed_by_us" and step.event.peer in step.broker.ends


MARKS = (
    # sessions and partitions
    Mark("bypass", "a session past an unreachable broker became active", seeds=4),
    Mark(
        "withdrawal-deferred",
        "a partition was withdrawn only after its notifiers were done",
        seeds=5,
        by=(PartitionGone,),
        when=_withdrawn_late,
    ),
    Mark(
        "partition-stale",
        "an ended partition was announced again, and answered",
        seeds=4,
        on=(PartitionNew,),
        when=lambda step: step.replies(PartitionGone),
    ),
    # subscriptions
    Mark("subscription-bypass", "a subscription was sent past an unreachable broker", seeds=4),
    Mark(
        "island-tagged",
        "a confirmation named an unreachable broker that was bypassed",
        seeds=5,
        by=(SubscriptionConfirmation,),
        when=lambda step: _count_tagged(step, is_beyond=False),
    ),
    Mark(
        "barrier-tagged",
        "a confirmation named an unreachable broker that was not bypassed",
        by=(SubscriptionConfirmation,),
        when=lambda step: _count_tagged(step, is_beyond=True),
    ),
    Mark(
        "upstream-copy-first",
        "a broker received a subscription from beyond first",
        seeds=4,
        on=(UpstreamCopy,),
        when=_is_first_upstream,
    ),
    Mark(
        "tombstone-matched",
        "an ended subscription arrived at a broker with its tombstone",
        seeds=15,
        on=(SubscriptionCopy, UpstreamCopy),
        when=lambda step: step.replies(Unsubscription),
    ),
    Mark(
        "subscription-reissued",
        "an access broker restarted with a subscription that had not started",
        seeds=30,
        on=(Started,),
        when=_has_unstarted,
    ),
    Mark(
        "publisher-reconnected",
        "confirmations waited for a publisher to reconnect",
        seeds=30,
        on=(Connect,),
        when=lambda step: SubscriptionConfirmation in step.sent or step.commits(ROUTING),
    ),
    Mark(
        "ended-by-summary",
        "a Summary ended subscriptions of the routing table",
        seeds=10,
        on=(Summary,),
        when=lambda step: _count_removed(step, ROUTING) > 0,
    ),
    # gates
    Mark(
        "gate-opened",
        "an access broker reached more sources than before",
        seeds=10,
        on=(SubscriptionConfirmation, RecoveryNotifier),
        when=_opens_gate,
    ),
    Mark(
        "notifier-found-gate-open",
        "a notifier returned to an open gate",
        seeds=10,
        on=(RecoveryNotifier,),
        when=_finds_gate_open,
    ),
    Mark("notifier-changed-tags", "a notifier changed tags of a broker on its way", seeds=8),
    Mark(
        "notifier-before-confirmation",
        "a notifier met a subscription not yet confirmed there",
        seeds=15,
        on=(RecoveryNotifier,),
        when=_is_before_answers,
    ),
    Mark(
        "notifier-resent",
        "a notifier was sent again on another session",
        seeds=8,
        by=(RecoveryNotifier,),
        when=_repeats_notifier,
    ),
    Mark(
        "audit",
        "an audit asked again",
        seeds=25,
        on=(DeadlineReached,),
        when=lambda step: SubscriptionCopy in step.sent,
    ),
    Mark(
        "withheld",
        "a publication from behind a closed gate was announced",
        seeds=15,
        by=(Deliver,),
        when=lambda step: step.count_delivered(Notice) if _brings_publications(step) else 0,
    ),
    Mark(
        "withheld-unreceived",
        "publications were announced that never reached the access broker",
        seeds=10,
        by=(Deliver,),
        when=lambda step: 0 if _brings_publications(step) else step.count_delivered(Notice),
    ),
    Mark(
        "notice-repeated",
        "a restarted access broker repeated an announcement",
        seeds=60,
        on=(Subscribe,),
        when=lambda step: step.core._state.restarted and step.delivers(Notice),
    ),
    # publications
    Mark(
        "duplicate-deferred", "a duplicate was confirmed only when the first copy was done", seeds=4
    ),
    Mark("partly-duplicate", "a frame was old in its front and new in its back", seeds=5),
    Mark(
        "partly-confirmed",
        "a frame was confirmed in parts",
        seeds=4,
        on=(PublicationConfirmation,),
        when=_confirmed_in_parts,
    ),
    Mark(
        "publications-resent",
        "publications were sent again when sessions changed",
        seeds=4,
        by=(PublicationCopy,),
        when=_repeats_publications,
    ),
    Mark(
        "queue-over-limit",
        "a queue grew over its limit",
        by=(Record,),
        when=lambda step: step.count_records("queue_over_limit"),
    ),
    Mark(
        "window-full",
        "a client's window was full",
        seeds=20,
        on=(Acknowledge,),
        when=lambda step: bool(step.core.clients_behind()),
    ),
    # restarts
    Mark(
        "recovered",
        "a restarted broker was whole again",
        seeds=5,
        by=(Record,),
        when=lambda step: step.count_records("recovered"),
    ),
    Mark(
        "recovered-together",
        "a recovering broker received state from another recovering broker",
        on=(SyncEnd,),
        when=lambda step: step.message.recovering and step.core._state.recovering,
    ),
    Mark(
        "publisher-held",
        "a publisher was held until its broker was whole",
        seeds=15,
        on=(Publish,),
        when=lambda step: step.core._state.recovering,
    ),
    Mark(
        "log-republished",
        "a restarted broker read publications from its log",
        seeds=60,
        on=(Started,),
        when=lambda step: any(ends.first < ends.next for ends in step.event.logs.values()),
    ),
    Mark(
        "cold-start",
        "a component continued alone after a timeout",
        by=(Record,),
        when=lambda step: step.count_records("cold_start"),
    ),
    Mark(
        "branch-complete",
        "a broker without its disk received all subscriptions of a part of the tree",
        on=(BranchReply,),
    ),
    # clients
    Mark(
        "detached-at-once",
        "a client with three subscriptions or more left at once",
        on=(Detach,),
        when=lambda step: _count_removed(step, SUBSCRIPTIONS) >= 3,
    ),
    Mark("drained", "a client received the remaining deliveries before its release"),
    Mark(
        "subscription-refused",
        "a subscription more than a client may have was refused",
        by=(Refused,),
        when=lambda step: step.count_sent(Refused, lambda each: each.request == "subscribe"),
    ),
    Mark(
        "subscription-expired",
        "subscriptions expired whose client did not reconnect",
        by=(Record,),
        when=lambda step: step.count_records("subscriptions_given_up"),
    ),
    Mark("counter-lost", "a publisher reconnected without its counter"),
    # relayed sessions
    Mark(
        "relay-established",
        "a session through a third broker began",
        seeds=5,
        on=(SessionEstablished,),
        when=lambda step: step.event.session >= FIRST_INNER_SESSION,
    ),
    Mark(
        "relay-lost",
        "a relayed session ended with its relay's",
        seeds=8,
        on=(SessionLost,),
        when=lambda step: _loses_relayed(step) and not _is_replaced(step),
    ),
    Mark(
        "relay-replaced",
        "a direct session took the place of a relayed one",
        seeds=5,
        on=(SessionLost,),
        when=lambda step: _loses_relayed(step) and _is_replaced(step),
    ),
    # between core and peers
    Mark("old-session", "a message of an ended session was ignored", seeds=15),
    Mark("frame-split", "a message was sent as several frames"),
    Mark(
        "leaf-joined",
        "a leaf joined",
        on=(TopologyGrown,),
    ),
    Mark(
        "leaf-left",
        "a leaf left",
        on=(TopologyShrunk,),
    ),
)

_HANDLED = (Started, MessageReceived, SessionEstablished, SessionLost, DeadlineReached)
"""The events of which marks count although no effect follows."""


class DeltaTreeMarks:
    """See MarkObserver: the marks of the table, and those that depend on the tree or the past."""

    def __init__(self, tree: PrimaryTree) -> None:
        self._table = MarkTable(MARKS)
        self._tree = tree
        self._tags: dict[tuple[BrokerNumber, SubscriptionId], tuple[Tag, ...]] = {}
        self._duplicates: dict[BrokerNumber, int] = {}
        self._ignored: dict[BrokerNumber, int] = {}
        self._incarnations: dict[ClientId, int] = {}
        self._draining: dict[tuple[BrokerNumber, ClientId], None] = {}

    @property
    def counts(self) -> dict[str, int]:
        return self._table.counts

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        if not isinstance(broker.protocol, DeltaTree):
            return
        if not effects and type(event) not in _HANDLED:
            return
        step = MarkStep(broker, event, effects)
        if type(event) is Started:
            self._forget(broker.number)
        if self._is_of_old_session(step):
            self._table.count(("old-session",))
            return
        self._table.step(step)
        self._table.count(self._find_arrived(step))
        self._table.count(self._find_sent(step))

    def _forget(self, number: BrokerNumber) -> None:
        self._duplicates[number] = self._ignored[number] = 0
        self._tags = {key: tags for key, tags in self._tags.items() if key[0] != number}
        self._draining = {key: None for key in self._draining if key[0] != number}

    def _is_of_old_session(self, step: MarkStep) -> bool:
        """Return True if the broker ignored a message of an ended session."""
        if step.message is None:
            return False
        number, ignored = step.broker.number, step.core._state.counters["messages_ignored"]
        if ignored <= self._ignored[number]:
            return False
        self._ignored[number] = ignored
        return bool(step.broker.session_with(step.event.peer) != step.event.session)

    def _find_arrived(self, step: MarkStep) -> Iterator[str]:
        """Yield the marks of a received message that depend on earlier steps."""
        kind, key = type(step.message), (step.broker.number, str(getattr(step.event, "peer", None)))
        if kind is RecoveryNotifier:
            yield from self._find_crossed(step)
        elif kind is SubscriptionConfirmation:
            row = _row(step)
            if row is not None and row.confirmed:
                self._tags[step.broker.number, step.message.subscription] = row.tags
        elif kind is PublicationCopy:
            yield from self._find_duplicates(step)
        elif kind is Connect:
            name, incarnation = key[1], step.message.incarnation
            if step.message.publishes and self._incarnations.get(name, incarnation) < incarnation:
                yield "counter-lost"
            self._incarnations[name] = incarnation
        elif kind is Detach and step.message.drain:
            self._draining[key] = None

    def _find_crossed(self, step: MarkStep) -> Iterator[str]:
        row = _row(step)
        if row is None or not row.is_settled or row.local is not None:
            return
        key = step.broker.number, step.message.subscription
        before, self._tags[key] = self._tags.get(key, row.tags), row.tags
        if before != row.tags:
            yield "notifier-changed-tags"

    def _find_duplicates(self, step: MarkStep) -> Iterator[str]:
        number, counted = step.broker.number, step.core._state.counters["duplicates_received"]
        again, self._duplicates[number] = counted - self._duplicates[number], counted
        if again and not step.replies(PublicationConfirmation):
            yield "duplicate-deferred"
        if 0 < again < len(step.message.run):
            yield "partly-duplicate"

    def _find_sent(self, step: MarkStep) -> Iterator[str]:
        """Yield the marks of sent messages that depend on their receivers."""
        if not step.sent.keys() & {
            SyncEnd,
            SubscriptionCopy,
            SubscriptionConfirmation,
            Unsubscribed,
        }:
            return
        number = step.broker.number
        for effect in step.effects:
            if type(effect) is not Send:
                continue
            peer, message = effect.peer, effect.message
            if type(message) is SubscriptionConfirmation:
                self._tags[number, message.subscription] = message.tags
            elif type(message) in (SyncEnd, SubscriptionCopy):
                assert isinstance(peer, int), f"{message} for a client"
                if self._tree.distance(number, peer) != 1:
                    yield "bypass" if type(message) is SyncEnd else "subscription-bypass"
            elif type(message) is Unsubscribed and not message.number:
                key = number, str(peer)
                if key in self._draining:
                    del self._draining[key]
                    if type(step.message) is Acknowledge:
                        yield "drained"
