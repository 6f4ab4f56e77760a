"""The subscriptions of a broker's own clients: requests, starts, deliveries and positions.

A subscription starts once all brokers have confirmed it, at the cut that is then on disk.
Publications from behind a tagged broker are withheld, and announced by notices.

Paper: [DFT11] §VI lines 663-675 (safety check). Deviates: the announcements and the positions are
ours.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from brokerd.model.client_messages import Gap, Notice, Publish, Subscribe, Subscribed
from brokerd.model.identity import PartitionId, SourceId, SubscriptionId
from brokerd.model.losses import STATE_LOST, is_stream_marker
from brokerd.model.publication import PublicationRun
from brokerd.protocols.delta_tree.publication_queue import PublicationQueue
from brokerd.protocols.delta_tree.queue_entries import Entry
from brokerd.protocols.delta_tree.regions import Cut, Region, region
from brokerd.protocols.delta_tree.routing_table import RoutingTable
from brokerd.protocols.delta_tree.state import (
    FORMER,
    POSITIONS,
    SUBSCRIPTIONS,
    LocalSubscription,
    Opened,
    Phase,
    State,
    Withheld,
    position_key,
    subscription_change,
)
from brokerd.protocols.delta_tree.unsubscriptions import Unsubscriptions
from brokerd.protocols.interface import Change, CloseSession, Commit
from brokerd.protocols.parts.clients.outlets import Delivery
from brokerd.protocols.parts.clients.table import ClientTable, HostedClient
from brokerd.protocols.parts.clients.windows import DeliveryWindows

FLUSH_POSITIONS = "flush positions"


FLUSH_INTERVAL_NS = 100_000_000


@dataclass(slots=True, eq=False)
class Client(HostedClient[LocalSubscription]):
    """A client that has a session here, or had a session and may return.

    Attributes:
        done_before: publications below this number were done when the client connected.
        held: requests that wait for the end of the recovery, in order.
        draining: the client's departure is on disk, and not answered.
    """

    done_before: int = 1
    held: list[Publish | Subscribe] = field(default_factory=list)
    draining: bool = False


def _do_nothing() -> None:
    """Do nothing."""


class WithholdingWindows(DeliveryWindows[Entry, LocalSubscription]):
    """The deliveries of all clients of a broker."""

    def __init__(self, state: State) -> None:
        super().__init__(state.machine, state.parameters.client_window, state.counters)
        self._state = state
        self._positions: dict[tuple[LocalSubscription, SourceId], int] = {}

    def withhold(
        self,
        local: LocalSubscription,
        run: PublicationRun,
        partition: PartitionId,
        entries: tuple[Entry, ...],
    ) -> None:
        """Queue a notice that the run and all earlier publications are withheld.

        A notice from before a restart may be repeated. The repetition covers the whole range, so
        that the client's answer covers the range; the client ignores the repeated part.
        """
        fresh = local.withhold(run.source, run.last, partition)
        first = run.first if fresh is None else min(run.first, fresh[0])
        item = _announce_withheld(local, run.source, first, run.last, partition)
        self.deliver(local.client, run, (local,), entries, item)

    def queue_notice(self, local: LocalSubscription, source: SourceId, withheld: Withheld) -> None:
        """Queue a notice of publications that need not have arrived here."""
        first, last, partition = withheld
        item = _announce_withheld(local, source, first, last, partition)
        self.announce(local.client, (local,), source, last, item)

    def flush_positions(self) -> None:
        """Commit the positions since the last call, lazily."""
        changes = [
            Change(POSITIONS, position_key(local.client, local.number, source), last)
            for (local, source), last in self._positions.items()
            if not local.is_over
        ]
        self._positions.clear()
        if changes:
            self._state.machine.emit(Commit(tuple(changes), None))

    def _advance(self, finished: Iterable[Delivery[Entry, LocalSubscription]]) -> None:
        for delivery in finished:
            source, last = delivery.remainder.source, delivery.remainder.last
            for local in delivery.subscriptions:
                if local.advance(source, last):
                    self._positions[local, source] = last
        key = (FLUSH_POSITIONS, -1)
        if key not in self._state.deadlines:
            self._state.deadlines.set(key, self._state.machine.now_ns + FLUSH_INTERVAL_NS)


class HomeSubscriptions:
    """The subscriptions of own clients: requests, starts, and newly opened sources.

    Attributes:
        clients: the clients.
        windows: the deliveries of the clients.
        pending: subscriptions from before a restart that had not started.
    """

    def __init__(
        self,
        state: State,
        clients: ClientTable[Client],
        windows: WithholdingWindows,
        queue: PublicationQueue,
        table: RoutingTable,
        unsubscriptions: Unsubscriptions,
    ) -> None:
        self._state = state
        self.clients = clients
        self.windows = windows
        self.pending: list[LocalSubscription] = []
        self._queue = queue
        self._table = table
        self._sequences = state.sequences
        self._unsubscriptions = unsubscriptions
        self._next_number = 0

    def claim(self, client: Client, subscription: LocalSubscription) -> None:
        """Handle the request for an existing subscription on its client's session.

        The client receives gaps before the deliveries that have waited for the request.
        """
        subscription.claimed = True
        is_started = subscription.phase is Phase.STARTED
        if subscription.is_restarted and is_started and subscription.number not in client.stated:
            # Its client has not received the start, so no earlier publication is owed.
            subscription.is_restarted = False
            self._state.commit([subscription_change(subscription, started=True)], lambda: None)
        self.report_state(subscription)
        gaps, subscription.forgotten = [*subscription.forgotten], ()
        if is_started:
            gaps += self.clients.gaps_of_lost(client, subscription.number, subscription.start_cut)
        for gap in reversed(gaps):
            self.windows.announce_first(subscription, gap)
        self._queue.finish_deliveries(self.windows.claim(subscription))

    def start(self, local: LocalSubscription, cut: Cut, tags: Region) -> None:
        """Start a confirmed subscription: fix and store the beginnings of its streams.

        Its publications are queued from now on, and sent when the start is durable: a broker
        that crashed in between would otherwise begin the streams elsewhere.
        """
        local.phase = Phase.STARTING
        local.begins_after = cut
        local.tags = tags
        local.start_cut = dict(cut)
        local.is_restarted |= local.number in self.clients.clients[local.client].lost_positions
        self.windows.hold(local.client)
        self._announce_forgotten(local)
        self._state.commit(
            [subscription_change(local, started=True)], lambda: self._finish_start(local)
        )

    def _announce_forgotten(self, local: LocalSubscription) -> None:
        """Announce the publications of a restarted subscription that its client lacks."""
        client = self.clients.clients[local.client]
        cut, number = local.start_cut, local.number
        for gap in self.clients.gaps_of_lost(client, number, cut):
            self.windows.announce(client.name, (local,), gap.stream, gap.last, gap)

    def open_sources(
        self, local: LocalSubscription, opened: Opened, done: Callable[[], None]
    ) -> None:
        """Deliver from newly opened sources once the change is durable.

        A broker that crashed in between would otherwise close the opened sources again.
        Publications before the beginnings of the opened streams are announced as withheld first:
        brokers without the subscription may have let such publications pass, so most never arrived
        here.
        """
        windows = self.windows
        windows.hold(local.client)
        for source, partition in opened.items():
            withheld = local.withhold(source, local.begins_after[source], partition)
            if withheld is not None:
                windows.queue_notice(local, source, withheld)

        def is_on_disk() -> None:
            windows.release(local.client)
            done()

        self._state.commit([subscription_change(local, started=True)], is_on_disk)

    def _finish_start(self, local: LocalSubscription) -> None:
        if local.phase is Phase.STARTING:
            local.phase = Phase.STARTED
            self._state.machine.record(
                "subscription_started", client=local.client, number=local.number
            )
            self.report_state(local)
        self.windows.release(local.client)

    def report_state(self, local: LocalSubscription) -> None:
        """Report the state of a subscription to its client, if the client has requested it."""
        client = self.clients.clients.get(local.client)
        ended = local.phase is Phase.ENDED
        if client is not None and client.connected and local.claimed and not ended:
            started = local.phase is Phase.STARTED
            message = Subscribed(local.number, "started" if started else "pending")
            self._state.machine.send(local.client, message)

    # ------------------------------------------------------------ ends

    def open_for_departed(self, local: LocalSubscription) -> None:
        """Remove the tags of leaves that left while this broker was down."""
        remaining = region(tag for tag in local.tags if not self._state.has_left(tag.node))
        if remaining != local.tags:
            local.tags = remaining
            row = subscription_change(local, started=True)
            self._state.machine.emit(Commit((row,), None))

    def list_live(self) -> list[SubscriptionId]:
        """Return the ids of started local subscriptions; pending ones get new ids."""
        return [
            local.subscription
            for client in self.clients.clients.values()
            for local in client.subscriptions.values()
            if local.phase is Phase.STARTED
        ]

    def end(
        self,
        client: Client,
        ended: Sequence[LocalSubscription],
        then: Callable[[], None] = _do_nothing,
        drain: bool = False,
    ) -> None:
        """End subscriptions: here at once, elsewhere and in the answer once that is durable.

        An earlier announcement could let a crash restore here a subscription that ended elsewhere.
        With `drain` the client still receives the deliveries of claimed subscriptions.
        """
        changes: list[Change] = []
        announced: list[SubscriptionId] = []
        for local in ended:
            if local in self.pending:
                self.pending.remove(local)  # its id had ended when this broker restarted
            else:
                self._table.remove(self._table.rows[local.subscription])
                announced.append(local.subscription)
            local.phase = Phase.ENDED
            del client.subscriptions[local.number]
            if not (drain and local.claimed):
                self._queue.finish_deliveries(self.windows.discard_unsent(local))
            tables = (SUBSCRIPTIONS, FORMER) if local.former else (SUBSCRIPTIONS,)
            row = f"{client.name}/{local.number}"
            changes.extend(Change(table, row, None) for table in tables)
            known = {**local.begins_after, **local.former, **local.acknowledged}
            sources = {**self._sequences.last, **known}
            changes.extend(
                Change(POSITIONS, position_key(client.name, local.number, source), None)
                for source in sources
            )

        def on_disk() -> None:
            self._unsubscriptions.end(announced)
            then()

        if changes:
            self._state.commit(changes, on_disk)
        else:  # earlier ends may not be on disk yet
            self._state.when_written(then)

    def revoke(self, ended: Sequence[SubscriptionId]) -> None:
        """End subscriptions that an older copy of the state folder has restored.

        A client with such a subscription reconnects, so that its request makes a new subscription
        behind a gap.
        """
        for client in [*self.clients.clients.values()]:
            found = [each for each in client.subscriptions.values() if each.subscription in ended]
            if not found:
                continue
            self._state.machine.record(
                "subscriptions_revoked", client=client.name, subscriptions=len(found)
            )
            self.end(client, found)
            if client.session:
                reason = "a subscription had ended before this broker lost state"
                self._state.machine.emit(CloseSession(client.name, reason))

    def new_id(self) -> SubscriptionId:
        self._next_number += 1
        here, incarnation = self._state.broker, self._state.incarnation
        subscription = SubscriptionId(here, incarnation, self._next_number)
        self._unsubscriptions.on_issued(subscription)
        return subscription


def _announce_withheld(
    local: LocalSubscription, source: SourceId, first: int, last: int, partition: PartitionId
) -> Notice | Gap:
    """Return the notice of withheld publications; a withheld loss marker is a gap anyway."""
    if is_stream_marker(source):
        return Gap((local.number,), source, first, last, STATE_LOST)
    return Notice(local.number, source, ((first, last),), partition)
