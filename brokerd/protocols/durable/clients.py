"""The clients of a broker: sessions, requests, publications and acknowledgements.

Subscriptions stay while their client is away, and continue from their durable matches after a
restart of the broker.

Paper: [DS03] §2 (durable subscribers), §4.1 (latestDelivered and released survive a crash).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Acknowledge,
    CommitConsumed,
    Connect,
    Consume,
    Detach,
    Publish,
    Refused,
    Subscribe,
    Unsubscribe,
)
from brokerd.model.identity import ClientId, SourceId, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.durable.consolidated_stream import ConsolidatedStream
from brokerd.protocols.durable.consumers import ANY, MOST_UNCOMMITTED
from brokerd.protocols.durable.messages import Moved
from brokerd.protocols.durable.state import (
    ACKNOWLEDGED,
    DELIVERED,
    WRITTEN,
    DurableClient,
    DurableSubscription,
    read_subscription,
    ticks_of,
)
from brokerd.protocols.durable.subscriptions import HostingParts, Subscriptions
from brokerd.protocols.gryphon import BEGINS, InFlightEvents
from brokerd.protocols.interface import Change, Commit, RecordsRead, Started, SubscriptionEnded
from brokerd.protocols.parts.clients.own_subscriptions import (
    SUBSCRIPTIONS,
    ClientRequests,
    EndRequest,
)
from brokerd.protocols.parts.clients.table import Admission
from brokerd.protocols.parts.event_machine import MessageHandler

ENDED_BY_OPERATOR: Final = "an operator has ended the subscription"


class DurableClients:
    """See HostedClients.

    Args:
        is_host: whether this broker may have clients.

    Attributes:
        table: the clients.
        own: their subscriptions.
        departing: the clients that leave, with the ticks that catch-up streams deliver before.
    """

    def __init__(
        self,
        parts: HostingParts,
        consolidated: ConsolidatedStream,
        subscriptions: Subscriptions,
        *,
        is_host: bool,
    ) -> None:
        self.table = parts.table
        self.own = parts.own
        self._requests = ClientRequests(parts.table, parts.own)
        self._gryphon = parts.gryphon
        self._disk = parts.gryphon.disk
        self._pubends = parts.gryphon.pubends
        self._hosted = parts.hosted
        self._registered = parts.registered
        self._catchups = parts.catchups
        self._consumers = parts.consumers
        self._arrivals = parts.arrivals
        self._consolidated = consolidated
        self._subscriptions = subscriptions
        self._is_host = is_host
        self.departing: dict[ClientId, Mapping[StreamId, int]] = {}
        self._starts: dict[ClientId, Mapping[StreamId, int]] = {}
        """The ticks at which clients that wait for streams begin at their next brokers."""

    def handlers(self) -> dict[type, MessageHandler]:
        return {
            Connect: self._on_connect,
            Subscribe: self._subscriptions.on_subscribe,
            Consume: self._on_consume,
            CommitConsumed: self._consumers.on_commit,
            Unsubscribe: self._on_unsubscribe,
            Detach: self._on_detach,
            Publish: self._on_publish,
            Acknowledge: self._on_acknowledge,
        }

    def on_first_final(self, stream: StreamId, through: int) -> None:
        """See HostedClients: catch-up streams fetch what the matches lack."""

    def deliver(self, stream: StreamId, run: PublicationRun) -> InFlightEvents | None:
        """Log the matches of events, and deliver to live clients; None without a match."""
        hosted = self._hosted[stream]
        wanted = self._consolidated.write(hosted, run)
        if not any(wanted):
            return None
        # After that: a lane that falls behind now reads up to the end of the run.
        for lane, last in self._consolidated.deliver(run, wanted):
            self._catchups.begin(hosted, lane, last)
        entry = InFlightEvents(stream, run.first)
        hosted.mark_uncommitted(run.last, entry)
        return entry

    # ------------------------------------------------------------ start

    @property
    def is_read(self) -> bool:
        """True once all logs of matches of earlier incarnations are read."""
        return all(hosted.log.is_read for hosted in self._hosted.values())

    def recover_logs(self, event: Started) -> None:
        """Read the matches of an earlier incarnation, and truncate uncommitted ones."""
        delivered = ticks_of(event.recovered, DELIVERED)
        acknowledged = ticks_of(event.recovered, ACKNOWLEDGED)
        written = ticks_of(event.recovered, WRITTEN)
        identities = [row[0] for row in event.recovered.get(SUBSCRIPTIONS, {}).values()]
        for hosted in self._hosted.values():
            key = hosted.key
            hosted.delivered = hosted.delivered_on_disk = delivered.get(key, 0)
            least = [acknowledged.get(f"{each}/{key}", 0) for each in identities]
            chopped = min([hosted.delivered, *least])
            ends = event.logs[hosted.log.name]
            least_next = written.get(key, 1)
            self._gryphon.effects += hosted.log.recover(ends, hosted.delivered, chopped, least_next)

    def on_records(self, event: RecordsRead) -> None:
        """Take a page of a log of matches."""
        hosted = next(each for each in self._hosted.values() if each.log.name == event.log)
        self._gryphon.effects += hosted.log.on_records(event)
        self._catchups.resume(hosted)

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See HostedClients; streams continue from their durable matches."""
        self._arrivals.start(self.table.incarnation)
        self._recover_subscriptions(recovered)
        for name in self.table.clients:
            self.table.linger(name)
        self._arrivals.recover(recovered)
        if self.table.lineage and self._is_host:
            self._arrivals.question_holds()
            for local in self._registered.present.values():
                self._arrivals.doubt(local)
        for local in self._registered.present.values():
            for identity in self._hosted:
                local.lane(identity).given = ANY

    def _recover_subscriptions(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        streams = {each.key: each.identity for each in self._hosted.values()}
        for key, row in recovered.get(SUBSCRIPTIONS, {}).items():
            local = read_subscription(key, row, streams)
            self.table.find(local.client).subscriptions[local.number] = local
            self._subscriptions.recover(local)
        present, stale = self._registered.present, []
        for key in recovered.get(BEGINS, {}):
            if key not in recovered.get(SUBSCRIPTIONS, {}):  # it had not started
                stale.append(Change(BEGINS, key, None))
        for key, tick in recovered.get(ACKNOWLEDGED, {}).items():
            owner, _, stream = key.partition("/")
            if int(owner) in present:
                lane = present[int(owner)].lane(streams[stream])
                lane.acknowledged = lane.committed = tick
            else:
                stale.append(Change(ACKNOWLEDGED, key, None))
        self._registered.forget_all_released()
        for identity, hosted in self._hosted.items():
            # It may have ended between a commit and that.
            self._gryphon.effects += hosted.log.chop(self._registered.released(identity))
            hosted.log.forget_absent(present)
        if stale:
            self._gryphon.emit(Commit(tuple(stale), None))
        for hosted in self._hosted.values():
            if hosted.delivered:
                subend = hosted.stream.subend
                subend.position = max(subend.position, hosted.delivered)

    # ------------------------------------------------------------ sessions

    def _on_connect(self, name: ClientId, message: Connect) -> None:
        if not self._is_host:
            raise RemoteProtocolError(name, "this broker is one of a cell of several: no clients")
        durable = self._durable(message.source)
        admission = self._requests.connect(name, message, durable)
        if admission is not None:
            self._disk.commit(admission.changes, partial(self._admit, admission))

    def _durable(self, source: SourceId | None) -> int | None:
        return self._pubends.durable(source) if source is not None else None

    def _admit(self, admission: Admission[DurableClient]) -> None:
        """Admit a client; a client without memory states no subscription, and resumes all."""
        if not admission.is_current():
            return
        client, message = admission.client, admission.message
        self._resume(client, message)
        if self.table.lineage and message.resume:
            self._subscriptions.end_unstated(client, message)
        lost = self.table.lost_publications(message, self._durable(message.source))
        if lost is not None:
            self._gryphon.publish(lost, lambda: None)
        self._requests.enter(client)

    def _resume(self, client: DurableClient, message: Connect) -> None:
        """Take a client's positions and the generation of its attachment here."""
        client.submitted = client.acknowledged = message.next_sequence - 1
        for number, seen in message.resume:
            if number in client.subscriptions:
                client.subscriptions[number].presented = dict(seen)
        later, client.later = client.later, None
        client.generation = max(message.incarnation, 0 if later is None else later + 1)
        client.brought = {number: dict(seen) for number, seen in message.resume if seen}
        for local in client.subscriptions.values():
            self._consumers.forget(local)

    def on_lost(self, name: ClientId, session: int) -> None:
        client, was_admitted = self.table.close_session(name, session)
        self._gryphon.drains.drop(name)
        self.departing.pop(name, None)
        self._starts.pop(name, None)
        self._subscriptions.take_done(self.own.close(client))
        self._catchups.detach([*client.subscriptions.values()])
        client.brought = {}
        self._subscriptions.drop_pending(client)
        if was_admitted and not client.subscriptions and client.later is None:
            self._requests.forget(name)
        else:
            self.table.keep(client)

    def on_drained(self, name: ClientId) -> None:
        """See HostedClients: a client leaves once its catch-up streams have passed the starts.

        No catch-up stream goes on: it could announce a gap of events which the next broker has.
        """
        self.departing[name] = self._starts.pop(name)

    def linger_over(self, name: ClientId) -> None:
        client = self.table.clients[name]
        self._end(self._requests.unrequested(client))
        if not client.session:
            self._requests.forget(name)

    # ------------------------------------------------------------ subscriptions

    def _on_consume(self, name: ClientId, message: Consume) -> None:
        """Subscribe with a token at this broker."""
        client = self.table.requester(name, "Consume")
        if not 1 <= message.uncommitted <= MOST_UNCOMMITTED:
            raise RemoteProtocolError(name, f"{message.uncommitted} publications uncommitted")
        client.uncommitted = message.uncommitted
        try:
            self._subscriptions.on_subscribe(name, Subscribe(message.number, message.predicate))
        finally:
            client.uncommitted = 0

    def _on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        """End a subscription and its stream at once, without waiting for other brokers."""
        request = self._requests.unsubscribe(name, message)
        self._subscriptions.drop_pending(request.client, message.number)
        self._end(request)

    def _on_detach(self, name: ClientId, message: Detach) -> None:
        client = self.table.check_detach(name)
        if not message.drain:
            self._leave(client, drain=False)
            return
        present = {identity: hosted.position for identity, hosted in self._hosted.items()}
        through = {**present, **dict(message.through)}
        drains = self._gryphon.drains
        self._starts[name] = through
        drains.add(name, ())
        if not self._gryphon.filters.is_on:
            drains.await_stated(name, message.through, self._gryphon.now_ns)
        self._gryphon.look_at_all()

    def settle_departures(self) -> None:
        """Release the departing clients with catch-up streams that have delivered everything."""
        for name, through in list(self.departing.items()):
            client = self.table.clients[name]
            lanes = [
                each for local in client.subscriptions.values() for each in local.lanes.values()
            ]
            # A pubend that joins meanwhile has nothing from before the next start.
            if all(each.has_given(through.get(each.stream, 0)) for each in lanes):
                del self.departing[name]
                self._leave(client, drain=True)

    def _leave(self, client: DurableClient, *, drain: bool) -> None:
        self._subscriptions.drop_pending(client)
        self._end(self._requests.detach(client, drain=drain))

    def _end(self, request: EndRequest[DurableClient, DurableSubscription]) -> None:
        answer = partial(self._requests.answer, request)
        self._subscriptions.end(request.client, request.over, answer, drain=request.drain)

    def depart(self, local: DurableSubscription, message: Moved) -> None:
        """End a subscription that has moved to another broker, and confirm that."""
        client = self.table.clients[local.client]
        self._arrivals.cut(local.client, message.generation)
        self._subscriptions.end(client, [local], partial(self._arrivals.confirm, message))
        if not client.session and not client.subscriptions:
            self._requests.forget(client.name)

    def on_ended(self, event: SubscriptionEnded) -> None:
        """End a subscription by an operator's act; a connected client is notified."""
        client = self.table.clients.get(event.client)
        found = client.subscriptions.get(event.number) if client is not None else None
        if client is None or found is None:
            return
        if client.connected:
            refused = Refused("subscribe", event.number, ENDED_BY_OPERATOR, False)
            self._gryphon.send(client.name, refused)
        self._subscriptions.end(client, [found])
        if not client.session and not client.subscriptions:
            self._requests.forget(client.name)

    # ------------------------------------------------------------ publications

    def _on_publish(self, name: ClientId, message: Publish) -> None:
        client, run = self.table.check_publish(name, message), message.run
        self.own.accept(client, run)
        self.table.record_published(name, run.source, run.last)
        self._gryphon.publish(run, partial(self._acknowledge_durable, name))

    def _acknowledge_durable(self, name: ClientId) -> None:
        """Acknowledge the durable publications of a publisher, if connected."""
        client = self.table.clients.get(name)
        if client is not None and client.source is not None:
            self.own.acknowledge_through(client, self._pubends.durable(client.source))

    def _on_acknowledge(self, name: ClientId, message: Acknowledge) -> None:
        client = self.table.check_acknowledge(name, message)
        self._subscriptions.take_done(self.own.acknowledge(name, message))
        self.settle_departures()
        self.own.answer_detach(client)
