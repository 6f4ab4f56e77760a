"""The clients of one broker, with subscriptions that only this broker has.

Paper: [GD02] §2.3 (delivery). Deviates: a publication is final at a client's acknowledgement, not
at its entry into the client's queue, and subscriptions are on disk, so that a restart of the broker
ends none.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from brokerd.errors import RemoteProtocolError
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
from brokerd.protocols.gryphon.drains import Drains
from brokerd.protocols.gryphon.own_filter import OwnFilter
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.pubend import Pubends, Step
from brokerd.protocols.gryphon.routes import Routes
from brokerd.protocols.gryphon.state import BEGINS, NOT_BEGUN, RESTARTED
from brokerd.protocols.gryphon.stream import InFlightEvents, Stream, Streams
from brokerd.protocols.interface import Change, Started
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


class ClientCore(Protocol):
    """The core of a broker, as its clients use it."""

    def publish(self, run: PublicationRun, step: Step) -> None:
        """Publish a run at its pubend; the step follows once all of the run is on disk."""

    def on_client_done(self, entry: InFlightEvents) -> None:
        """Handle the acknowledgement of an entry by all its clients."""

    def look_at_all(self) -> None:
        """Deliver available events of all streams; nothing is wanted without subscriptions."""


class HostedClients(Protocol):
    """The clients of a broker of this protocol, or of a protocol that extends it."""

    @property
    def table(self) -> ClientTable[Any]:
        """The clients."""

    @property
    def own(self) -> OwnSubscriptions[Any, Any]:
        """The subscriptions of the clients."""

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of clients' messages by type."""

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the subscriptions of an earlier incarnation."""

    def on_lost(self, name: ClientId, session: int) -> None:
        """Handle the end of a client's session."""

    def linger_over(self, name: ClientId) -> None:
        """End the subscriptions that a client has not requested in time."""

    def on_drained(self, name: ClientId) -> None:
        """End the subscriptions of a client that `Drains` has released."""

    def deliver(self, stream: StreamId, run: PublicationRun) -> InFlightEvents | None:
        """Deliver events to all matching subscriptions; return None without a match."""

    def on_first_final(self, stream: StreamId, through: int) -> None:
        """Handle the first final tick of a stream in the life of a broker that lost state."""


class SubendHost(Protocol):
    """The core that delivers the streams of a broker: gryphon, or a core that has gryphon."""

    @property
    def is_read(self) -> bool:
        """True once the state of earlier incarnations is complete."""

    def begin(self, event: Started) -> None:
        """Begin with the complete state of earlier incarnations."""

    def look_at(self, stream: Stream) -> None:
        """Handle new knowledge of a stream, or new acks."""

    def resume_answers(self, peer: BrokerNumber) -> None:
        """Handle new room in a neighbour's window of answers."""


class Clients:
    """The clients of a broker. Implements `HostedClients`.

    Args:
        core: publishes, and takes acknowledged events.
        pubends: of this broker.
        streams: of all pubends.
        drains: the clients that leave once they have received all earlier publications.
        routes: messages for a cell of several brokers arrive at one member only, so that such a
            cell has no clients.
        own_filter: the start of subscriptions in other brokers' streams; None: at the present
            position.

    Attributes:
        table: the clients.
        own: their subscriptions.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: GryphonParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        *,
        core: ClientCore,
        pubends: Pubends,
        streams: Streams,
        drains: Drains,
        routes: Routes,
        own_filter: OwnFilter | None,
    ) -> None:
        machine = disk.machine
        count = parameters.pubends
        self.table = ClientTable(broker, machine, deadlines, parameters, Client, pubends=count)
        windows: DeliveryWindows[InFlightEvents, OwnSubscription] = DeliveryWindows(
            machine, parameters.client_window, counters
        )
        self.own = OwnSubscriptions(machine, windows, decode_attributes, self.table.clients)
        self._requests = ClientRequests(self.table, self.own)
        self._broker = broker
        self._machine = machine
        self._disk = disk
        self._core = core
        self._pubends = pubends
        self._streams = streams
        self._drains = drains
        self._identities = routes.pubend_streams()
        self._is_host = routes.is_host
        all_stated = parameters.is_total or own_filter is None
        self._stated = self._identities if all_stated else ()
        self._own_filter = own_filter
        self._final: dict[StreamId, int] = {}
        self._proofs: dict[OwnSubscription, dict[StreamId, int]] = {}
        self._restarting: dict[OwnSubscription, int] = {}
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

    def deliver(self, stream: StreamId, run: PublicationRun) -> InFlightEvents | None:
        entry = InFlightEvents(stream, run.first)
        self.own.hand_out(run, entry)
        entry.open -= 1
        return entry if entry.open else None

    def on_first_final(self, stream: StreamId, through: int) -> None:
        """Announce final ticks of a stream to subscriptions that have restarted without a filter.

        An earlier life of this broker may have acknowledged them without the subscription. With
        filters, pubends state where a subscription begins.
        """
        if self._own_filter is not None or self._final.get(stream, 0) >= through:
            return
        self._final[stream] = through
        for client in [*self.table.clients.values()]:
            for local in client.subscriptions.values():
                first = local.begins_after.get(stream, 0) + 1
                if not local.is_restarted or first > through:
                    continue
                self._proofs.setdefault(local, dict(local.begins_after))
                local.begins_after[stream] = through
                if local.started and client.connected and local.claimed == client.session:
                    gap = Gap((local.number,), stream, first, through, STATE_LOST)
                    self.own.windows.announce(client.name, (local,), stream, through, gap)

    def _take_done(self, entries: Iterable[InFlightEvents]) -> None:
        """Take entries that all clients have acknowledged."""
        for entry in entries:
            self._core.on_client_done(entry)

    # ------------------------------------------------------------ sessions

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See HostedClients.

        After a loss, a subscription without a start may have started before: its client states
        that.
        """
        for local in read_subscriptions(recovered):
            client = self.table.find(local.client)
            client.subscriptions[local.number] = local
            self._restored.recover(local, recovered, self.table.lineage)
            row = recovered.get(BEGINS, {}).get(local.row)
            ends = recovered.get(RESTARTED, {}).get(local.row)
            if ends is not None:
                local.is_restarted = True
                _begin_after(local, ((StreamId(*stream), end) for *stream, end in ends))
            if self._own_filter is None:
                self._match(local)
            elif row is not None and ends != NOT_BEGUN:
                self._own_filter.recover(local, row)
                self._match(local)
            else:
                if self.table.lineage:
                    self._restart(local)
                self._on_kept(client, local)
        for name in self.table.clients:
            self.table.linger(name)

    def _on_connect(self, name: ClientId, message: Connect) -> None:
        if not self._is_host:
            raise RemoteProtocolError(name, "this broker is one of a cell of several: no clients")
        durable = self._durable(message.source)
        admission = self._requests.connect(name, message, durable)
        if admission is not None:
            self._disk.commit(admission.changes, partial(self._admit, admission))

    def _durable(self, source: SourceId | None) -> int | None:
        return self._pubends.durable(source) if source is not None else None

    def _admit(self, admission: Admission[Client]) -> None:
        if not admission.is_current():
            return
        client, message = admission.client, admission.message
        self._resume(client, message)
        if over := self._restored.list_unstated(client, message):
            self._end(EndRequest(client, over))
        self.table.recall_lost(client, message, self._restored.list_whole(client))
        lost = self.table.lost_publications(message, self._durable(message.source))
        if lost is not None:
            self._core.publish(lost, lambda: None)
        self._requests.enter(client)

    def _resume(self, client: Client, message: Connect) -> None:
        """Take a client's positions; a client behind the beginning has not taken the gap before."""
        for number, seen in message.resume:
            local = client.subscriptions.get(number)
            if local is None or not (local.started and local.is_restarted):
                continue
            had, ends = dict(seen), self._proofs.get(local, local.begins_after)
            if all(had.get(stream, 0) >= end for stream, end in ends.items()):
                local.is_restarted = False
                self._forget_restart(local)
        self.table.withdraw(self.own.resume(client, message))

    def on_lost(self, name: ClientId, session: int) -> None:
        client, was_admitted = self.table.close_session(name, session)
        self._drains.drop(name)
        self._take_done(self.own.close(client))
        if was_admitted and not client.subscriptions:
            self._requests.forget(name)
        else:
            self.table.keep(client)

    def linger_over(self, name: ClientId) -> None:
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
        if local.number in client.lost_positions:
            self._restart(local)
        rows = [kept_subscription(local)]
        if self.table.lineage:
            rows.append(confirmed_subscription(local, self.table.lineage))
        self._disk.commit(rows, partial(self._on_kept, client, local))

    def _confirm(self, client: Client, local: OwnSubscription) -> None:
        """Continue a subscription of an older copy once its confirmation is on disk."""
        confirmation = self._restored.request(client, local, self.table.lineage)
        self._disk.commit(confirmation.changes, partial(self._on_confirmed, confirmation))

    def _on_confirmed(self, confirmation: Confirmation) -> None:
        if self._restored.confirm(confirmation):
            self._claim(confirmation.client, confirmation.local)

    def _restart(self, local: OwnSubscription, *, begins: bool = False) -> None:
        """Announce a gap before the subscription, up to where it starts again.

        No filter decides where streams of own pubends begin. A crash between the rows of the
        beginning and of the gap would shorten the gap, so the row of the gap states whether the
        subscription has begun.
        """
        local.is_restarted = True
        undecided = (
            stream
            for stream in self._identities
            if self._own_filter is None or stream.broker == self._broker
        )
        _begin_after(
            local,
            (
                (stream, max(self._streams.position(stream), self._final.get(stream, 0)))
                for stream in undecided
            ),
        )
        ends = [[*stream, end] for stream, end in local.begins_after.items()]
        has_begun = begins or self._own_filter is None
        row = Change(RESTARTED, local.row, ends if has_begun else NOT_BEGUN)
        self._restarting[local] = self._restarting.get(local, 0) + 1
        self._disk.commit((row,), partial(self._on_restarted, local))

    def _on_restarted(self, local: OwnSubscription) -> None:
        """Announce the gap of a restart, once its row is durable."""
        self._restarting[local] -= 1
        if self._restarting[local]:
            return
        del self._restarting[local]
        client = self.table.clients.get(local.client)
        is_requested = client is not None and client.connected and client.session == local.claimed
        if client is not None and is_requested and not local.is_over:
            self._claim(client, local)

    def _on_kept(self, client: Client, local: OwnSubscription) -> None:
        """Start a subscription on disk once all pubends have announced its ticks."""
        if local.is_over:
            return
        if self._own_filter is None:
            self._start(client, local)
        else:
            self._own_filter.add(local, partial(self._start, client, local))

    def _start(self, client: Client, local: OwnSubscription) -> None:
        self._match(local)
        if client.connected and client.session == local.claimed:
            self._claim(client, local)

    def _match(self, local: OwnSubscription) -> None:
        """Match a subscription from now on."""
        if local.is_restarted:
            self._restart(local, begins=True)
        self.own.start(local)

    def _claim(self, client: Client, local: OwnSubscription) -> None:
        local.claimed = client.session
        if self.own.drop_unknown_restart(client, local):
            self._forget_restart(local)
        if local.started and local not in self._restarting:
            gaps = [*self.table.gaps_of_lost(client, local.number, local.begins_after)]
            positions = self._positions(local)
            self._take_done(self.own.claim(client, local, positions, gaps))

    def _forget_restart(self, local: OwnSubscription) -> None:
        """Write that no gap of a restart is due any more."""
        self._proofs.pop(local, None)
        self._disk.commit((Change(RESTARTED, local.row, None),), lambda: None)

    def _positions(self, local: OwnSubscription) -> list[tuple[StreamId, int]]:
        """Return, in total order or without filters, all positions from which a client continues.

        The client states the positions when reconnecting. After a restart here, events are
        delivered again for other clients, and an event older than received events of another pubend
        is out of order. Without filters, a client that moves states them to its old broker.
        """
        waiting = self.own.windows.first_waiting(local) if self._stated else {}
        found = []
        for stream in self._stated:
            last = max(self._streams.position(stream), local.begins_after.get(stream, 0))
            if stream in waiting:
                last = min(last, waiting[stream] - 1)
            if last:
                found.append((stream, last))
        return found

    def _on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        """End a subscription and its stream at once, without waiting for other brokers."""
        self._end(self._requests.unsubscribe(name, message))

    def _on_detach(self, name: ClientId, message: Detach) -> None:
        client = self.table.check_detach(name)
        if not message.drain:
            self._end(self._requests.detach(client, drain=False))
            return
        begins = [local.begins_after for local in client.subscriptions.values()]
        self._drains.add(name, begins)
        if self._own_filter is None:
            self._drains.await_stated(name, message.through, self._machine.now_ns)
        self._core.look_at_all()

    def on_drained(self, name: ClientId) -> None:
        self._end(self._requests.detach(self.table.clients[name], drain=True))

    def _end(self, request: EndRequest[Client, OwnSubscription]) -> None:
        """End subscriptions; the predicates stay in the filter until the end is durable."""
        over, own_filter = request.over, self._own_filter
        tables: tuple[str, ...] = (SUBSCRIPTIONS, SUBSCRIBER_PROGRESS)
        if own_filter is not None:
            tables = (SUBSCRIPTIONS, SUBSCRIBER_PROGRESS, BEGINS)
            for local in over:
                own_filter.on_ended(local)
        for local in over:
            self._proofs.pop(local, None)
            self._restored.drop(local)
        self._take_done(self.own.end(request.client, over, drain=request.drain))
        if not self.own.started:
            self._core.look_at_all()

        def ended() -> None:
            if own_filter is not None:
                for local in over:
                    own_filter.release(local)
            self._requests.answer(request)

        if self.table.lineage:
            tables = (*tables, RESTARTED, CONFIRMED)
        rows = [Change(table, local.row, None) for local in over for table in tables]
        self._disk.commit_in_order(rows, ended)

    # ------------------------------------------------------------ publications

    def _on_publish(self, name: ClientId, message: Publish) -> None:
        client, run = self.table.check_publish(name, message), message.run
        self.own.accept(client, run)
        self.table.record_published(name, run.source, run.last)
        self._core.publish(run, partial(self._acknowledge_durable, name))

    def _acknowledge_durable(self, name: ClientId) -> None:
        """Acknowledge the durable publications of a publisher, if connected."""
        client = self.table.clients.get(name)
        if client is not None and client.source is not None:
            self.own.acknowledge_through(client, self._pubends.durable(client.source))

    def _on_acknowledge(self, name: ClientId, message: Acknowledge) -> None:
        client = self.table.check_acknowledge(name, message)
        self._take_done(self.own.acknowledge(name, message))
        self.table.advance(self.own.windows.advanced)
        self.own.answer_detach(client)


def _begin_after(local: OwnSubscription, positions: Iterable[tuple[StreamId, int]]) -> None:
    """Begin a subscription behind these positions at the earliest."""
    for stream, position in positions:
        local.begins_after[stream] = max(position, local.begins_after.get(stream, 0))
