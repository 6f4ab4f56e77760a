"""The clients of a broker: their subscriptions by topic, and their publications.

Paper: [MP22] §2 (operations), §4. Deviates: clients are pushed to, and a subscription is a
predicate, which is followed in all topics where it may hold.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any

from brokerd.model.client_messages import (
    Acknowledge,
    CommitConsumed,
    Connect,
    Consume,
    Detach,
    Gap,
    Publish,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from brokerd.model.identity import BrokerNumber, ClientId, SourceId, StreamId
from brokerd.model.losses import STATE_LOST
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.fetches import Fetches
from brokerd.protocols.multi_proxy.messages import LOST, Lost, Owner
from brokerd.protocols.multi_proxy.ownership import Owners
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.publishes import Publishes
from brokerd.protocols.multi_proxy.state import (
    BEGINS,
    RESTARTED,
    Heads,
    InFlightDelivery,
    PendingSubscription,
)
from brokerd.protocols.multi_proxy.topics import Topics
from brokerd.protocols.parts.clients.own_subscriptions import (
    SUBSCRIPTIONS,
    ClientRequests,
    EndRequest,
    OwnClient,
    OwnSubscription,
    OwnSubscriptions,
    kept_subscription,
    new_subscription,
    read_subscriptions,
)
from brokerd.protocols.parts.clients.progress import SUBSCRIBER_PROGRESS
from brokerd.protocols.parts.clients.restored_subscriptions import (
    CONFIRMED,
    Confirmation,
    RestoredSubscriptions,
    confirmed_subscription,
)
from brokerd.protocols.parts.clients.table import Admission, ClientTable
from brokerd.protocols.parts.clients.windows import DeliveryWindows
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler

Client = OwnClient[OwnSubscription]


class Clients:
    """The clients of an access broker.

    Attributes:
        table: the clients.
        own: their subscriptions.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: MultiProxyParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        *,
        topics: Topics,
        owners: Owners,
        puts: Publishes,
        gets: Fetches,
    ) -> None:
        machine, kind = disk.machine, Client
        self.table = ClientTable(
            broker, machine, deadlines, parameters, kind, writes_published=True
        )
        windows: DeliveryWindows[InFlightDelivery, OwnSubscription] = DeliveryWindows(
            machine, parameters.client_window, counters
        )
        self.own = OwnSubscriptions(machine, windows, decode_attributes, self.table.clients)
        self._requests = ClientRequests(self.table, self.own)
        self._machine = machine
        self._disk = disk
        self._topics = topics
        self._owners = owners
        self._publishes = puts
        self._fetches = gets
        self._followed: dict[OwnSubscription, tuple[int, ...]] = {}
        self._deferred: dict[OwnSubscription, None] = {}
        self._starting: dict[OwnSubscription, None] = {}
        self._departing: dict[ClientId, Heads] = {}
        self._restored = RestoredSubscriptions(machine)

    def handlers(self) -> dict[type, MessageHandler]:
        return {
            Connect: self._on_connect,
            Subscribe: self._on_subscribe,
            Consume: self.table.on_consume,
            CommitConsumed: self.table.on_commit_consumed,
            Unsubscribe: self._on_unsubscribe,
            Detach: self._on_detach,
            Publish: self._on_publish,
            Acknowledge: self._on_acknowledge,
        }

    def _take_done(self, entries: Iterable[InFlightDelivery]) -> None:
        """Take deliveries that all clients have acknowledged."""
        for entry in entries:
            self._fetches.done(entry)

    # ------------------------------------------------------------ sessions

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the subscriptions of an earlier incarnation.

        A started subscription is followed, and continues. After a loss, the client states if a
        subscription without a start had started before.
        """
        for local in read_subscriptions(recovered):
            client = self.table.find(local.client)
            client.subscriptions[local.number] = local
            self._restored.recover(local, recovered, self.table.lineage)
            row = recovered.get(BEGINS, {}).get(local.row)
            if row is not None:
                local.is_restarted = local.row in recovered.get(RESTARTED, {})
                local.begins_after = {StreamId(*stream): position for *stream, position in row}
                owners = [Owner(each.publisher, each.broker) for each in local.begins_after]
                self._owners.remember(owners)
                self._follow(local, None)
                self.own.start(local)
            elif self.table.lineage:
                self._deferred[local] = None
            else:
                self._begin_to_follow(local)
        for name in self.table.clients:
            self.table.linger(name)

    def _on_connect(self, name: ClientId, message: Connect) -> None:
        admission = self._requests.connect(name, message)
        if admission is not None:
            self._disk.commit(admission.changes, partial(self._admit, admission))

    def _admit(self, admission: Admission[Client]) -> None:
        if not admission.is_current():
            return
        client, message = admission.client, admission.message
        self.table.withdraw(self.own.resume(client, message))
        if client.source is not None:
            self._publishes.add_publisher(client.source, message.next_sequence - 1)
        if over := self._restored.list_unstated(client, message):
            self._end(EndRequest(client, over))
        self.table.recall_lost(client, message, self._restored.list_whole(client))
        self._requests.enter(client)

    def on_lost(self, name: ClientId, session: int) -> None:
        """Handle the end of a session; the subscriptions of its client are kept for a while."""
        client, was_admitted = self.table.close_session(name, session)
        self._departing.pop(name, None)
        self._take_done(self.own.close(client))
        if client.source is not None:
            self._publishes.remove_publisher(client.source)
        if was_admitted and not client.subscriptions:
            self._requests.forget(name)
        else:
            self.table.keep(client)

    def linger_over(self, name: ClientId) -> None:
        """End the subscriptions that a client has not requested in time."""
        client = self.table.clients[name]
        request = self._requests.unrequested(client)
        is_requested = self._restored.is_requested
        over = [local for local in request.over if not is_requested(local, client.session)]
        self._end(EndRequest(client, over))
        if not client.session:
            self._requests.forget(name)

    # ------------------------------------------------------------ subscriptions

    def _on_subscribe(self, name: ClientId, message: Subscribe) -> None:
        """Create a subscription, or report its state; the same request again changes nothing."""
        client = self.table.requester(name, "Subscribe")
        known = client.subscriptions.get(message.number)
        if known is not None and self._restored.is_replaced(known, message):
            self._end(EndRequest(client, [known]))
            known = None
        if not self.table.is_permitted(client, message):
            return
        if known is not None and self._restored.is_doubtful(known):
            self._confirm(client, known)
            return
        if known is not None:
            self._claim(client, known)
            return
        local = new_subscription(client, message)
        self._machine.send(name, Subscribed(local.number, "pending"))
        rows = [kept_subscription(local)]
        if self.table.lineage:
            rows.append(confirmed_subscription(local, self.table.lineage))
        self._disk.commit(rows, partial(self._begin_to_follow, local))

    def _confirm(self, client: Client, local: OwnSubscription) -> None:
        """Continue a subscription of an older copy once its confirmation is on disk."""
        confirmation = self._restored.request(client, local, self.table.lineage)
        self._disk.commit(confirmation.changes, partial(self._on_confirmed, confirmation))

    def _on_confirmed(self, confirmation: Confirmation) -> None:
        if self._restored.confirm(confirmation):
            self._claim(confirmation.client, confirmation.local)

    def _claim(self, client: Client, local: OwnSubscription) -> None:
        local.claimed = client.session
        if self.own.drop_unknown_restart(client, local):
            self._disk.commit((Change(RESTARTED, local.row, None),), lambda: None)
        if local.started and local not in self._starting:
            gaps = [*self.table.gaps_of_lost(client, local.number, local.begins_after)]
            begins_after = [each for each in local.begins_after.items() if each[1]]
            self._take_done(self.own.claim(client, local, begins_after, gaps))
        if local in self._deferred:
            del self._deferred[local]
            self._begin_to_follow(local)

    def _begin_to_follow(self, local: OwnSubscription) -> None:
        """Start a subscription once the servers of all topics have confirmed."""
        if not local.is_over:
            self._follow(local, PendingSubscription(local))

    def _follow(self, local: OwnSubscription, beginning: PendingSubscription | None) -> None:
        topics = self._topics.topics_of_predicate(local.predicate)

        def follow() -> None:
            if local.is_over:
                return
            self._followed[local] = topics
            if self._fetches.follow(topics, beginning) and beginning is not None:
                self.begin(beginning)

        if unknown := self._owners.requests.wait(topics, follow):
            self._owners.seek(unknown)

    def begin(self, beginning: PendingSubscription) -> None:
        """Start a subscription; no later publication is missed.

        A subscription that this broker had lost receives all publications from here on, which wait
        until its start is on disk. Publications that have arrived since the heads are in its gaps.
        """
        local, heads = beginning.local, beginning.heads
        if local.is_over:
            return
        client = self.table.clients[local.client]
        if local.number in client.lost_positions:
            local.is_restarted = True
            heads = {each: max(head, self._fetches.arrived(each)) for each, head in heads.items()}
        key = local.row
        row = [[*stream, position] for stream, position in heads.items()]
        changes = [Change(BEGINS, key, row)]
        self._starting[local] = None
        if local.is_restarted:
            changes.append(Change(RESTARTED, key, True))
            self._begin_after(local, heads)
            self.own.start(local)

        def start() -> None:
            del self._starting[local]
            if local.is_over:
                return
            if not local.is_restarted:
                self._begin_after(local, heads)
                self.own.start(local)
            if client.connected and client.session == local.claimed:
                self._claim(client, local)

        self._disk.commit(changes, start)

    @staticmethod
    def _begin_after(local: OwnSubscription, heads: Heads) -> None:
        for stream, head in heads.items():
            local.begins_after[stream] = max(head, local.begins_after.get(stream, 0))

    def _on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        """End a subscription and its stream at once, without waiting for other brokers."""
        self._end(self._requests.unsubscribe(name, message))

    def _on_detach(self, name: ClientId, message: Detach) -> None:
        client = self.table.check_detach(name)
        if message.drain:
            self._departing[name] = dict(message.through)
            self.settle_departures()
        else:
            self._end(self._requests.detach(client, drain=False))

    def settle_departures(self) -> None:
        """Release the clients that have what precedes their subscriptions at their next brokers.

        Those begin behind the heads of topics, which may not have arrived here. A topic has the
        same parts at both brokers, sooner or later.
        """
        for name, heads in list(self._departing.items()):
            if not self._fetches.lacks(heads):
                del self._departing[name]
                self._end(self._requests.detach(self.table.clients[name], drain=True))

    def _end(self, request: EndRequest[Client, OwnSubscription]) -> None:
        """End subscriptions; answer the client once the end is durable."""
        over = request.over
        self._take_done(self.own.end(request.client, over, drain=request.drain))
        tables: tuple[str, ...] = (SUBSCRIPTIONS, BEGINS, SUBSCRIBER_PROGRESS)
        if self.table.lineage:
            tables = (*tables, RESTARTED, CONFIRMED)
        rows = [Change(table, local.row, None) for local in over for table in tables]
        self._disk.commit_in_order(rows, partial(self._requests.answer, request))
        for local in over:
            self._deferred.pop(local, None)
            self._restored.drop(local)
            if local in self._followed:
                self._fetches.unfollow(self._followed.pop(local))

    # ------------------------------------------------------------ deliveries

    def deliver_gaps(self, message: Lost, delivery: InFlightDelivery) -> None:
        """Deliver gaps to followers of a topic, and count the deliveries.

        A gap names everything lost, because its predicates can no longer be tested.
        """
        stream = StreamId(message.part, message.topic, 0)
        for local, topics in self._followed.items():
            had = max(delivery.first - 1, local.begins_after.get(stream, 0))
            if message.topic not in topics or not local.started:
                continue
            for gap in _list_gaps(local.number, stream, message, had):
                last = gap.last
                run = PublicationRun(stream, range(last, last + 1), (b"",), b"\0", 0, ())
                delivery.open += 1
                self.own.windows.deliver(local.client, run, (local,), (delivery,), gap)

    def _on_acknowledge(self, name: ClientId, message: Acknowledge) -> None:
        client = self.table.check_acknowledge(name, message)
        self._take_done(self.own.acknowledge(name, message))
        self.table.advance(self.own.windows.advanced)
        self.own.answer_detach(client)

    # ------------------------------------------------------------ publications

    def _on_publish(self, name: ClientId, message: Publish) -> None:
        client, run = self.table.check_publish(name, message), message.run
        self.own.accept(client, run)
        parts = list(self._topics.parts(run, name))
        self.table.record_published(name, run.source, run.last)
        for topic in self._publishes.put(run.source, parts):
            self._owners.seek((topic,))
        self.own.acknowledge_through(client, self._publishes.done(run.source))

    def report_stored(self, source: SourceId) -> None:
        """Report the stored publications to a publisher at this broker."""
        client = self.table.clients.get(self.table.publisher_of(source))
        if client is not None and client.source == source:
            self.own.acknowledge_through(client, self._publishes.done(source))


def _list_gaps(number: int, stream: StreamId, message: Lost, had: int) -> Iterator[Gap]:
    """Yield the gaps behind a position: of released publications, and of lost positions.

    A server that lost state names its positions, since it lost the publishers' numbers.
    """
    lost = SourceId(*stream)
    for is_state, runs in groupby(message.runs, key=lambda run: run.source == lost):
        lacked = [rest for each in runs if (rest := each.after(had)) is not None]
        if not lacked:
            continue
        first, last = lacked[0].position, lacked[-1].end
        if is_state:
            yield Gap((number,), stream, first, last, STATE_LOST)
        else:
            origins = tuple((rest.source, rest.first, rest.last) for rest in lacked)
            yield Gap((number,), stream, first, last, LOST, origins)
