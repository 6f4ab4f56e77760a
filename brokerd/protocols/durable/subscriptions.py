"""Durable subscriptions from their first request to their end, at this broker or another one.

A client that presents a position of a subscription that is not here has come from elsewhere. The
subscription continues from there: later events are matched here from now on, and earlier ones are
fetched in batches and matched again. A subscription here with an earlier generation than its
client's has been elsewhere meanwhile.

Paper: [DS03] §1 (item 5, reconnect anywhere; the paper gives no method), §4.1 (a new subscriber's
starting point), §3 (released).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from brokerd.model.client_messages import Connect, Subscribe, Subscribed
from brokerd.model.identity import ClientId, StreamId
from brokerd.model.predicate_text import format_predicate
from brokerd.protocols.durable.catchup_streams import CatchupStreams
from brokerd.protocols.durable.commit_cycle import CommitCycle, Snapshot
from brokerd.protocols.durable.consolidated_stream import (
    DurableWindows,
    HostedStream,
    Silences,
    SubscriptionTable,
)
from brokerd.protocols.durable.consumers import ANY, Consumers
from brokerd.protocols.durable.filtered_starts import FilteredStarts
from brokerd.protocols.durable.migration import Arrivals
from brokerd.protocols.durable.release import Release
from brokerd.protocols.durable.state import (
    ACKNOWLEDGED,
    DELIVERED,
    DurableClient,
    DurableSubscription,
    InFlightDelivery,
    Lane,
    Mode,
    lane_key,
    subscription_row,
)
from brokerd.protocols.extensions import SubscriptionState
from brokerd.protocols.gryphon import InFlightEvents
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.interface import Change, Commit, Instant
from brokerd.protocols.parts.clients.own_subscriptions import SUBSCRIPTIONS, OwnSubscriptions
from brokerd.protocols.parts.clients.restored_subscriptions import revoke_unstated
from brokerd.protocols.parts.clients.table import ClientTable


@dataclass(frozen=True, slots=True)
class HostingParts:
    """The parts of a broker that has durable subscribers.

    Attributes:
        table: the clients.
        windows: deliveries under way to clients.
        own: the clients' subscriptions, which match events.
        hosted: all streams.
        registered: the subscriptions by their numbers in the log of matches.
    """

    gryphon: Gryphon
    table: ClientTable[DurableClient]
    windows: DurableWindows
    own: OwnSubscriptions[DurableSubscription, InFlightEvents]
    hosted: Mapping[StreamId, HostedStream]
    registered: SubscriptionTable
    catchups: CatchupStreams
    silence: Silences
    commits: CommitCycle
    consumers: Consumers
    arrivals: Arrivals
    release: Release
    starts: FilteredStarts


_MODES: Final = {Mode.AWAY: "away", Mode.CATCHING_UP: "catching up"}
"""The modes that state what a subscription lacks, and precede others."""


ENDING: Final = "ending"
"""The mode of a subscription whose end is not durable yet."""


class Subscriptions:
    """The subscriptions of a broker: each stays, and misses nothing, while its client is away."""

    def __init__(self, parts: HostingParts) -> None:
        self._gryphon = parts.gryphon
        self._disk = parts.gryphon.disk
        self._table = parts.table
        self._windows = parts.windows
        self._own = parts.own
        self._hosted = parts.hosted
        self._registered = parts.registered
        self._catchups = parts.catchups
        self._silence = parts.silence
        self._commits = parts.commits
        self._consumers = parts.consumers
        self._arrivals = parts.arrivals
        self._release = parts.release
        self._starts = parts.starts
        self._coming: dict[int, DurableSubscription] = {}

    # ------------------------------------------------------------ requests

    def on_subscribe(self, name: ClientId, message: Subscribe) -> None:
        """Create a subscription, or report its state; the same request again changes nothing.

        Where the token is stored is fixed when a subscription begins.
        """
        client = self._table.requester(name, "Subscribe")
        known = client.subscriptions.get(message.number)
        if known is not None and self._is_replaced(client, known, message):
            self.end(client, [known])
        if not self._consumers.check_keeper(client, message):
            return
        waiting = self._starts.count(name, besides=message.number)
        if not self._table.is_permitted(client, message, waiting):
            return
        known = client.subscriptions.get(message.number)
        if known is not None:
            self._claim(client, known)
        elif self._starts.waits(client, message):
            self._gryphon.send(name, Subscribed(message.number, "pending"))
        else:
            about = name, message.number, message.predicate, client.session
            self._subscribe(client, DurableSubscription(*about))

    def _is_replaced(
        self, client: DurableClient, local: DurableSubscription, message: Subscribe
    ) -> bool:
        """Return True if a client requests another subscription than an older copy has.

        The one of the copy had ended before the client gave its number to another one.
        """
        is_alike = bool(local.uncommitted) == bool(client.uncommitted)
        is_alike = is_alike and local.predicate == message.predicate
        return local.confirmed != self._table.lineage and not is_alike

    def end_unstated(self, client: DurableClient, message: Connect) -> None:
        """End the subscriptions of an older copy that a connecting client does not state.

        No session has claimed a subscription from disk. A subscription that was requested since
        the loss has not ended: a client without memory may request it later.
        """
        lineage = self._table.lineage
        doubtful = [
            local
            for local in client.subscriptions.values()
            if not local.claimed and local.confirmed != lineage
        ]
        if over := revoke_unstated(self._gryphon, client, message, doubtful):
            self.end(client, over)

    def start_ready(self) -> None:
        """Create the waiting subscriptions with predicates at all pubends."""
        for pending in self._starts.take_ready():
            client = self._table.clients[pending.local.client]
            if not self._table.is_permitted(client, pending.message):
                self._starts.cancel(pending.local)
                continue
            client.uncommitted = pending.uncommitted
            try:
                self._subscribe(client, pending.local)
            finally:
                client.uncommitted = 0

    def _subscribe(self, client: DurableClient, local: DurableSubscription) -> None:
        """Begin a subscription after everything delivered; the client is notified once durable.

        A number that a crash took may be given again: the records with that number have earlier
        ticks.

        Paper: [DS03] §4.1 (a new subscriber's starting point).
        """
        others = (*self._registered.present, *self._registered.ending)
        local.identity = max(others, default=0) + 1
        client.subscriptions[local.number] = local
        changes, begun = [], {}
        for identity, hosted in self._hosted.items():
            lane = local.lane(identity)
            lane.acknowledged = lane.committed = hosted.position
            self._place(client, lane)
            if lane.committed:
                changes.append(Change(ACKNOWLEDGED, lane_key(lane), lane.committed))
            if hosted.position and not others:  # earlier events match no subscription
                hosted.delivered = begun[hosted] = hosted.position
                changes.append(Change(DELIVERED, hosted.key, hosted.position))
        self.begin(local)
        changes += self._rows_first(client, local)
        self._gryphon.send(client.name, Subscribed(local.number, "pending"))

        def kept() -> None:
            for hosted, tick in begun.items():
                hosted.delivered_on_disk = max(hosted.delivered_on_disk, tick)
                self._registered.forget_released(hosted.identity)
                self._on_delivered(hosted)
            self._on_kept(client, local)

        self._disk.commit(changes, kept)

    def _place(self, client: DurableClient, lane: Lane) -> None:
        """Place a new lane: after everything delivered here, or at the reported position.

        Matches begin at this broker's position. After an accepted loss, this broker may have had
        the subscription, and have released events in between.
        """
        brought = client.brought.get(lane.subscription.number, {})
        had, position = brought.get(lane.stream), lane.acknowledged
        if had is not None:
            lane.acknowledged = lane.committed = max(0, min(had, position))
            lane.matched_after = position if had < position else 0
            lane.lost_through = lane.matched_after if self._table.lineage else 0
        self._consumers.place(client, lane)

    def _rows_first(self, client: DurableClient, local: DurableSubscription) -> Sequence[Change]:
        """Return the rows that are durable before the client is notified of a new subscription."""
        local.uncommitted, local.generation = client.uncommitted, client.generation
        local.confirmed = self._table.lineage
        rows = (subscription_row(local),)
        brought = client.brought.pop(local.number, None)
        if brought is None:
            return rows
        local.presented = brought
        self._coming[local.identity] = local
        return (*rows, self._arrivals.row(local))

    def recover(self, local: DurableSubscription) -> None:
        """Restore a subscription of an earlier incarnation."""
        self._starts.recover(local)
        self.begin(local)

    def drop_pending(self, client: DurableClient, number: int = 0) -> None:
        """Stop waiting for a subscription of a client that has not started, or for all."""
        for local in self._starts.drop(client, number):
            self._consumers.forget(local)

    def begin(self, local: DurableSubscription) -> None:
        """Match events with a subscription from now on."""
        self._registered.add(local)
        self._own.start(local)

    def _on_kept(self, client: DurableClient, local: DurableSubscription) -> None:
        """Begin a subscription that is now on disk, unless it has ended."""
        if not local.is_over:
            self._begin_one(client, local)
        if self._coming.pop(local.identity, None) is None:
            if self._table.lineage and not local.is_over:
                self._arrivals.doubt(local, is_new=True)
            return
        self._arrivals.begin(local, lacks=True)
        if local.is_over:
            self._arrivals.on_ended(local)

    def _begin_one(self, client: DurableClient, local: DurableSubscription) -> None:
        """Accept a durable subscription; wait for the row of a later generation."""
        if local.unwritten:
            return
        local.accepted = True
        if client.connected and client.session == local.claimed:
            self._attach(local)

    # ------------------------------------------------------------ clients that return

    def _claim(self, client: DurableClient, local: DurableSubscription) -> None:
        """Resume a subscription; a higher limit of uncommitted events is durable first.

        So is the first request since an accepted loss, which confirms the subscription.
        """
        more, session = client.uncommitted, client.session
        lineage = self._table.lineage
        if more:
            self._consumers.adopt(local)
        if local.generation < client.generation:  # it was elsewhere meanwhile
            for lane in local.lanes.values():
                lane.given = ANY

        def claim() -> None:
            if client.session == session and not local.is_over:
                self._claim_kept(client, local)

        if more <= local.uncommitted and local.confirmed == lineage:
            self._consumers.when_committed(local, claim)
            return
        if local.confirmed != lineage:
            local.claimed = session
        local.uncommitted, local.confirmed = max(more, local.uncommitted), lineage
        written = partial(self._consumers.when_committed, local, claim)
        self._disk.commit((subscription_row(local),), written)

    def _claim_kept(self, client: DurableClient, local: DurableSubscription) -> None:
        """Resume a subscription; nothing is lacking here that others could have released.

        A later generation is durable before the client is notified: after a crash the broker would
        otherwise not recall that the subscription was elsewhere, and would not end it there.
        """
        client.brought.pop(local.number, None)
        generation = client.generation
        if local.generation < generation:
            local.generation, local.accepted, local.unwritten = generation, False, True
            rows = (subscription_row(local), self._arrivals.row(local))
            self._disk.commit(rows, lambda: self._on_stay(client, local, generation))
        local.claimed = client.session
        if local.accepted:
            self._attach(local)

    def _on_stay(self, client: DurableClient, local: DurableSubscription, generation: int) -> None:
        """Begin an arrival once its generation is durable, even if the subscription has ended."""
        if local.generation != generation:
            return
        local.unwritten = False
        self._arrivals.begin(local, lacks=False)
        if local.is_over:
            self._arrivals.on_ended(local)
        else:
            self._begin_one(client, local)

    def _attach(self, local: DurableSubscription) -> None:
        """Attach a requested subscription; a consumer is notified of its token first."""
        if local.uncommitted:
            self._consumers.announce(local)
        self._attach_presented(local)
        if local.uncommitted:
            self._consumers.commit_early(local)

    def _attach_presented(self, local: DurableSubscription) -> None:
        """Attach a requested subscription at the position that the client presents.

        A client without a position receives the stored position.
        """
        if not self._catchups.accept(local):
            return
        begins = () if local.presented else local.positions()
        self._gryphon.send(local.client, Subscribed(local.number, "started", begins))
        if local.is_attached:
            return
        local.is_attached = True
        self.take_done(self._own.complete(self._windows.claim(local)))
        for identity, hosted in self._hosted.items():
            lane = local.lane(identity)
            had = local.presented.get(identity, lane.acknowledged)
            self._catchups.begin(hosted, lane, had)
        self._silence.schedule()
        self._catchups.prove(local)

    # ------------------------------------------------------------ ends

    def end(
        self,
        client: DurableClient,
        over: Sequence[DurableSubscription],
        then: Callable[[], None] = lambda: None,
        *,
        drain: bool = False,
    ) -> None:
        """End subscriptions, and release their events once the end is durable."""
        self._catchups.detach(over)

        def both() -> None:
            for local in over:
                del self._registered.ending[local.identity]
                self._starts.release(local)
            self._registered.forget_all_released()
            for hosted in self._hosted.values() if over else ():
                self._release_hosted(hosted)
            then()

        self.take_done(self._own.end(client, over, drain=drain))
        self._on_ended(over)
        ends = [Change(SUBSCRIPTIONS, local.row, None) for local in over]
        self._disk.commit_in_order(ends, both)
        # Behind the row of the subscription: a crash between the two must not bring back one that
        # has acknowledged nothing.
        lanes = [lane for local in over for lane in local.lanes.values()]
        if lanes:
            rows = tuple(Change(ACKNOWLEDGED, lane_key(lane), None) for lane in lanes)
            begins = tuple(row for local in over for row in self._starts.rows_of_end(local))
            self._gryphon.emit(Commit((*rows, *begins), None))

    def _on_ended(self, over: Sequence[DurableSubscription]) -> None:
        for local in over:
            self._starts.on_ended(local)
            self._registered.end(local)
            for lane in local.lanes.values():
                self._commits.forget(lane)
                self._hosted[lane.stream].log.forget(local.identity)
        if not self._own.started:
            self._gryphon.look_at_all()
        self._commits.schedule()
        for local in over:
            if local.identity not in self._coming:
                self._arrivals.on_ended(local)
        for local in over:
            self._consumers.forget(local)

    # ------------------------------------------------------------ lists

    def list_all(self, now_ns: Instant) -> list[SubscriptionState]:
        """Return all subscriptions, for people."""
        released = {each: self._registered.released(each) for each in self._hosted}
        present, ending = (
            [self._state(each, released, now_ns) for each in some.values()]
            for some in (self._registered.present, self._registered.ending)
        )
        return [*present, *(replace(each, mode=ENDING) for each in ending)]

    def _state(
        self, local: DurableSubscription, released: Mapping[StreamId, int], now_ns: Instant
    ) -> SubscriptionState:
        behind: dict[StreamId, int] = {}
        events: dict[StreamId, int | None] = {}
        for identity, lane in local.lanes.items():
            hosted = self._hosted[identity]
            if hosted.position > lane.committed:
                behind[identity] = hosted.position - lane.committed
                is_matched = lane.matched_after <= lane.committed
                owed = hosted.log.owed(local.identity, lane.committed)
                events[identity] = owed if is_matched else None
        modes = {lane.mode for lane in local.lanes.values()} if local.is_attached else {Mode.AWAY}
        mode = next((each for each in _MODES if each in modes), Mode.LIVE)
        return SubscriptionState(
            local.client,
            local.number,
            format_predicate(local.predicate),
            _MODES.get(mode, "live"),
            self._table.away_ns(local.client, now_ns),
            behind,
            tuple(each for each in behind if local.lanes[each].committed == released[each]),
            events,
            {each: local.lanes[each].committed for each in behind},
        )

    def statistics(self) -> Mapping[str, int]:
        """Return what the subscriptions lack, together.

        A subscription holds back a release if no other subscription here has acknowledged less of
        a stream.
        """
        owed = away = 0
        holding: dict[int, None] = {}
        present = self._registered.present
        for local in present.values():
            away += not local.is_attached
        for identity, hosted in self._hosted.items():
            released = self._registered.released(identity)
            for local in present.values():
                committed = local.lane(identity).committed
                if hosted.position > committed:
                    owed += hosted.log.owed(local.identity, committed)
                    if committed == released:
                        holding[local.identity] = None
        return {
            "subscriptions_away": away,
            "subscriptions_holding": len(holding),
            "queue_owed": owed,
        }

    # ------------------------------------------------------------ progress

    def take_done(self, entries: Iterable[InFlightEvents]) -> None:
        """Take deliveries that clients have acknowledged."""
        for entry in entries:
            assert isinstance(entry, InFlightDelivery), f"{entry} was never assigned"
            lane = entry.lane
            if lane.settle():
                self._commits.add(lane)
            if lane.catchup is not None:
                self._catchups.advance(self._hosted[lane.stream], lane)

    def on_progress(self, hosted: HostedStream) -> None:
        """Schedule a commit and silence after progress of a stream."""
        if hosted.position > hosted.seen:
            hosted.seen = hosted.position
            self._commits.schedule()
            if self._registered.present:
                self._silence.schedule()

    def skip_final(self, hosted: HostedStream) -> None:
        """Fetch ticks that are final upstream, and missing here after an accepted loss.

        This broker had acknowledged these ticks before the loss, so brokers above forward no events
        of them. The matches are lost, too.
        """
        stream = hosted.stream
        before = stream.subend.position
        if stream.knowledge.final <= before or not self._registered.present:
            return
        final = stream.subend.position = stream.knowledge.final
        lanes = self._registered.lanes(stream.identity)
        for lane in lanes:
            lane.matched_after = lane.lost_through = final
        rows = tuple(subscription_row(local) for local in self._registered.present.values())
        self._gryphon.emit(Commit(rows, None))
        for lane in lanes:
            self._catchups.skip(hosted, lane, before)

    def commit(self) -> None:
        """Commit the present state."""
        self._commits.due(self._on_committed)

    def _on_committed(self, taken: Snapshot) -> None:
        for hosted, entries in self._commits.advance(taken):
            for entry in entries:
                entry.open -= 1
                self._gryphon.on_client_done(entry)
            self._release_hosted(hosted)
        if self._arrivals.pending:
            self._arrivals.on_progress()
        for hosted in self._commits.take_moved():
            self._release_hosted(hosted)

    def _release_hosted(self, hosted: HostedStream) -> None:
        """Release a stream as far as all subscriptions here have acknowledged."""
        self._gryphon.effects += hosted.log.chop(self._registered.released(hosted.identity))
        self._on_delivered(hosted)

    def _on_delivered(self, hosted: HostedStream) -> None:
        hosted.hold_undelivered()
        self._gryphon.settle(hosted.stream)
        if self._release.settle(hosted.stream):
            self._gryphon.settle(hosted.stream)
