"""The access broker: the clients of a broker whose state is at storages.

A client that returns, to this broker or to another, is found at its storage, at the point that the
client has reached. `RoamingClients` connects the parts of an access broker: it takes the messages
and facts that a part returns, in order, and routes each fact to the part that it concerns.

Paper: [GES] §1 (any broker serves any client), §4 (reconnecting clients).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from brokerd.model.client_messages import (
    Acknowledge,
    CommitConsumed,
    Connect,
    Consume,
    Detach,
    Gap,
    Publish,
    Refused,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.losses import STATE_LOST, is_behind_loss
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun
from brokerd.protocols.ges_reliable.fetches import (
    FETCH,
    RECEIPT,
    DeliveredRun,
    EpochFetches,
    stream_of,
)
from brokerd.protocols.ges_reliable.handover import ROOT_QUERY, Handovers, HandoverStep
from brokerd.protocols.ges_reliable.messages import (
    Changed,
    Events,
    Fetched,
    Forwarding,
    Key,
    LossProof,
    RequestAnswer,
    Sequences,
    Stored,
    SubscriptionRequest,
)
from brokerd.protocols.ges_reliable.parameters import GesReliableParameters
from brokerd.protocols.ges_reliable.reconnection import StorageSearches
from brokerd.protocols.ges_reliable.requests import (
    CHANGE,
    PUT,
    PublishRequests,
    SubscriptionRequests,
)
from brokerd.protocols.ges_reliable.state import (
    Answer,
    Delivery,
    Displacement,
    EndConfirmation,
    EndReport,
    EndStep,
    FetchStart,
    FetchStop,
    LastReceipt,
    PendingEnd,
    ReceiptWait,
    Request,
    RoamingClient,
    StorageLoss,
    StoredSubscription,
    SubscriptionStart,
)
from brokerd.protocols.interface import CloseSession
from brokerd.protocols.parts.clients.lost_state import gaps_of_older_copy, older_copy
from brokerd.protocols.parts.clients.own_subscriptions import OwnSubscriptions
from brokerd.protocols.parts.clients.table import Admission, ClientTable
from brokerd.protocols.parts.clients.windows import DeliveryWindows
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler
from brokerd.protocols.parts.selection import RunSelection, match_run

MOVED = "the client has attached to another broker since"
"""The reason in a CloseSession."""

DEADLINES = (FETCH, RECEIPT, CHANGE, ROOT_QUERY, PUT)
"""The purposes of the deadlines of an access broker."""


class RestatedStep(NamedTuple):
    """The step after a storage that lost state has answered for a subscription.

    Attributes:
        delivered: the epoch through which everything was delivered here.
        had: the epoch through which the client has acknowledged.
    """

    local: StoredSubscription
    delivered: int
    had: int


class RoamingClients:
    """The clients of a broker.

    Args:
        names: names of brokers, by number; brokers that joined later have none.
        forwarding: the routes of messages to storages.

    Attributes:
        table: the clients.
        own: their subscriptions.
        requests, publishes: requests that storages have not answered.
        fetches: the storages that this broker follows.
        handovers: subscriptions on their way to successor storages.
        searches: subscriptions whose storage is not known yet.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        *,
        names: Sequence[str],
        forwarding: Forwarding,
        requests: SubscriptionRequests,
        publishes: PublishRequests,
        fetches: EpochFetches,
        handovers: Handovers,
        searches: StorageSearches,
    ) -> None:
        self.table: ClientTable[RoamingClient] = ClientTable(
            broker, machine, deadlines, parameters, RoamingClient, takes_sources=True
        )
        windows: DeliveryWindows[DeliveredRun, StoredSubscription] = DeliveryWindows(
            machine, parameters.client_window, counters
        )
        self.own = OwnSubscriptions(machine, windows, decode_attributes, self.table.clients)
        self._machine = machine
        self._names = names
        self._forwarding = forwarding
        self.requests = requests
        self.publishes = publishes
        self.fetches = fetches
        self.handovers = handovers
        self.searches = searches

    # ------------------------------------------------------------ facts

    def take(self, outcomes: Iterable[Any]) -> None:
        """Send messages to storages, and route facts to their parts, in order."""
        now_ns = self._machine.now_ns
        for each in outcomes:
            kind = type(each)
            if kind is Delivery:
                self._hand_out(each.run, each.delivered)
            elif kind is Request:
                self.take(self.requests.add(each.storage, each.request, each.step, now_ns))
            elif kind is Answer:
                self._on_answer(each.step, each.answer)
            elif kind is FetchStart:
                fetch = self.fetches.begin(
                    each.local, each.after, now_ns, announced=each.reported_epoch
                )
                self._forwarding.send(fetch)
            elif kind is FetchStop:
                self.fetches.stop(each.local)
            elif kind is ReceiptWait:
                self.take(self.fetches.leave(each.local))
            elif kind is LastReceipt:
                self.take(self.handovers.on_last_receipt(each.local))
            elif kind is SubscriptionStart:
                self._on_begun(each.client, each.local, each.answer)
            elif kind is StorageLoss:
                self._restate(each.locals)
            elif kind is Displacement:
                self._machine.emit(CloseSession(each.client, MOVED))
            elif kind is EndConfirmation:
                self._confirm(each.end)
            else:
                self._forwarding.send(each)

    def _on_answer(self, step: Any, answer: RequestAnswer) -> None:
        """Take the step that follows the answer of a storage.

        A session ends if a storage ignores a step of its subscription: the client of an earlier
        attachment has left, or is a new process, which exceeds the later generation on its return.
        """
        kind = type(step)
        is_ignored = kind in (RestatedStep, HandoverStep) and answer.later_generation is not None
        if is_ignored and not step.local.is_over:
            self.take((Displacement(step.local.client),))
        if kind is PendingEnd:
            if answer.later_generation is None or not self._displace(step.report):
                self._confirm(step)
        elif kind is EndStep:
            self._on_end_answer(step, answer)
        elif kind is RestatedStep:
            self._on_restated(step, answer)
        elif kind is HandoverStep:
            self.take(self.handovers.on_answer(step, answer, self._machine.now_ns))
        else:
            self.take(self.searches.on_answer(step, answer))

    def _request(
        self, storage: BrokerNumber, request: SubscriptionRequest, step: Any = None
    ) -> None:
        self.take(self.requests.add(storage, request, step, self._machine.now_ns))

    def _take_done(self, entries: Iterable[DeliveredRun]) -> None:
        """Report publications that all clients have acknowledged to their storages."""
        for entry in entries:
            self.take(self.fetches.done(entry, self._machine.now_ns))

    # ------------------------------------------------------------ messages and deadlines

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of clients' messages by type, but of Connect."""
        return {
            Subscribe: self.on_subscribe,
            Consume: self.table.on_consume,
            CommitConsumed: self.table.on_commit_consumed,
            Unsubscribe: self.on_unsubscribe,
            Detach: self._on_detach,
            Publish: self._on_publish,
            Acknowledge: self.on_acknowledge,
        }

    def message_handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of storages' answers."""
        return {
            Changed: self._on_changed,
            Stored: self._on_stored,
            LossProof: self._on_loss_proof,
            Events: self._on_events,
            Fetched: self._on_fetched,
        }

    def _on_changed(self, peer: Peer, message: Changed) -> None:
        self.take(self.requests.on_changed(peer, message, self._machine.now_ns))

    def _on_stored(self, _peer: Peer, message: Stored) -> None:
        highest = self.publishes.refuse_older_copy(message)
        if highest is not None:
            self._refuse_older_copy(message, highest)
            return
        self.take(self.publishes.on_probed(message.source, self._machine.now_ns))
        lost = self.publishes.find_lost(message)
        if lost is not None:
            self.take((lost,))
        elif self.publishes.on_stored(message, self._machine.now_ns):
            self._report_stored(message.source)

    def _on_loss_proof(self, _peer: Peer, message: LossProof) -> None:
        if not self.publishes.refuse_loss(message):
            return
        storage = self._name_of(message.storage)
        self._refuse_publisher(
            message.source,
            f"publications {message.through + 1} to {message.acknowledged} were acknowledged, and "
            f"are missing at the storage {storage}: an older copy of its state folder was put back",
        )

    def _on_events(self, _peer: Peer, message: Events) -> None:
        self.take(self.fetches.on_events(message))

    def _on_fetched(self, _peer: Peer, message: Fetched) -> None:
        self.take(self.fetches.on_fetched(message, self._machine.now_ns))

    def due(self, purpose: str, storage: BrokerNumber) -> None:
        """Take a deadline of `DEADLINES`."""
        now_ns = self._machine.now_ns
        if purpose == FETCH:
            self.take(self.fetches.due(storage, now_ns))
        elif purpose == RECEIPT:
            self.take(self.fetches.receipt_due(storage, now_ns))
        elif purpose == CHANGE:
            self.take(self.requests.due(storage, now_ns))
        elif purpose == ROOT_QUERY:
            self.take(self.handovers.trees.query_again(storage))
        else:
            assert purpose == PUT, f"{purpose!r} of broker {storage}"
            self.take(self.publishes.due(now_ns))

    # ------------------------------------------------------------ subscriptions

    def on_subscribe(self, name: ClientId, message: Subscribe) -> None:
        """Begin a subscription at its storage; the same request again reports its state."""
        client = self.table.requester(name, "Subscribe")
        if not self.table.is_permitted(client, message):
            return
        known = client.subscriptions.get(message.number)
        if known is not None:
            self._claim(client, known)
        else:
            self._subscribe(client, message)

    def _claim(self, client: RoamingClient, local: StoredSubscription) -> None:
        local.claimed = client.session
        if local.started:
            gaps = [*self.table.gaps_of_lost(client, local.number, local.begins_after)]
            self._take_done(self.own.claim(client, local, local.begins_after.items(), gaps))

    def _subscribe(self, client: RoamingClient, message: Subscribe) -> None:
        brought = client.brought.get(message.number, {})
        found = self.searches.stored_at(brought)
        if found is None and brought:
            names = ", ".join(self._name_of(stream.broker) for stream in brought)
            reason = f"{client.name} was stored for at broker {names}, which is no storage any more"
            self._machine.send(client.name, Refused("subscribe", message.number, reason, False))
            return
        local = StoredSubscription(client.name, message.number, message.predicate, client.session)
        local.generation = client.generation
        local.reported_positions = {stream.broker: had for stream, had in brought.items()}
        client.subscriptions[local.number] = local
        self.handovers.drop_pending_end(local.key)
        self._machine.send(client.name, Subscribed(local.number, "pending"))
        if found is not None:
            storages = self.searches.storages
            local.earlier = [stream.broker for stream in brought if stream.broker in storages]
            self.take(self.searches.begin_at(client, local, *found))
        else:
            self.take(self.searches.claim_anywhere(client, local))

    def _on_begun(
        self, client: RoamingClient, local: StoredSubscription, answer: RequestAnswer
    ) -> None:
        """Begin a subscription at its storage, or query the successor storage."""
        if local.is_over:
            self.take(self.handovers.on_end_answer(local, answer))
            return
        after, successor = answer.after, answer.successor
        if after is None and successor is not None:
            had = self.handovers.position_at(successor, local.reported_positions)
            self.take(self.searches.begin_at(client, local, successor, had, claims=had is None))
            return
        if after is None:
            del client.subscriptions[local.number]
            local.is_over = True
            is_behind = client.raise_generation(answer.later_generation)
            reason = f"{client.name} has attached to another broker since"
            self._machine.send(client.name, Refused("subscribe", local.number, reason, is_behind))
            return
        assert local.storage is not None, f"{local} begins nowhere"
        local.begins_after = {stream_of(local.storage): after}
        local.received_of = answer.received_of
        stream = stream_of(local.storage)
        had = client.brought.get(local.number, {}).get(stream, after)
        if is_behind_loss(had, after):
            client.lost_positions[local.number] = {stream: had}
        else:
            self._recall_forgotten(local, answer.acknowledged)
        self.own.start(local)
        if client.connected and client.session == local.claimed:
            self._claim(client, local)
        self.take((FetchStart(local, after),))
        self.take(self.handovers.hand_over(local, successor, answer.until))

    def _recall_forgotten(self, local: StoredSubscription, acknowledged: int) -> None:
        """Recall acknowledged positions that a client does not state, for a gap."""
        assert local.storage is not None, f"{local} begins nowhere"
        had = self.handovers.position_at(local.storage, local.reported_positions)
        if had is not None:
            stream = stream_of(local.storage)
            known = {stream: acknowledged}
            local.forgotten = gaps_of_older_copy(local.number, known, ((stream, had),))

    # ------------------------------------------------------------ lost state of a storage

    def _restate(self, lost: Sequence[StoredSubscription]) -> None:
        """State subscriptions again to a storage that lost state."""
        for local in lost:
            assert local.storage is not None, f"{local} is stored nowhere"
            had = self.fetches.position(local)
            self.fetches.stop(local)
            request = SubscriptionRequest(local.key, local.generation, local.predicate, had)
            self._request(local.storage, request, RestatedStep(local, local.delivered_epoch, had))

    def _on_restated(self, step: RestatedStep, answer: RequestAnswer) -> None:
        """Continue a subscription at its storage, behind a gap if the storage has lost it."""
        local, delivered = step.local, step.delivered
        if local.is_over or answer.after is None:
            return
        if answer.after > delivered:
            assert local.storage is not None, f"{local} is stored nowhere"
            stream, last = stream_of(local.storage), answer.after
            gap = Gap((local.number,), stream, delivered + 1, last, STATE_LOST)
            run = PublicationRun(stream, range(last, last + 1), (b"",), b"\0", 0, ())
            entry = self.fetches.lose_range(local, last)
            self.own.windows.deliver(local.client, run, (local,), (entry,), gap)
        self.take((FetchStart(local, max(delivered, answer.after), step.had),))

    def change(
        self, storages: Sequence[BrokerNumber], roots: Mapping[BrokerNumber, BrokerNumber]
    ) -> None:
        """Take new storages and roots.

        Another storage may serve this broker's unit from now on.
        """
        self.searches.storages = storages
        self.take(self.handovers.change(storages[0], roots))
        for client in self.table.clients.values():
            for local in client.subscriptions.values():
                if local.started and local.successor is None:
                    self.take(self.handovers.hand_over(local))

    # ------------------------------------------------------------ deliveries

    def _hand_out(self, run: PublicationRun, entry: DeliveredRun) -> None:
        """Deliver publications that were not delivered before to all matching subscriptions."""
        wanted = match_run(self.own.memo, run, run.source.broker)
        for those, part in RunSelection(run).stretches(wanted):
            by_client: dict[tuple[ClientId, int, int, Sequences], list[StoredSubscription]] = {}
            for local in those:
                if local.storage == run.source.broker:
                    had = local.delivered_epoch if local.delivered_epoch >= part.first else 0
                    last = part.last if local.until is None else min(local.until, part.last)
                    about = local.client, had, last, local.received_of
                    by_client.setdefault(about, []).append(local)
            for (name, had, last, had_of), locals_ in by_client.items():
                lacked = part.after(had) if had else part
                lacked = lacked.select_through(last) if lacked is not None else None
                lacked = beyond(lacked, dict(had_of)) if lacked is not None else None
                if lacked is not None:
                    entry.open += 1
                    for local in locals_:
                        local.unacknowledged.append(lacked.last)
                    self.own.windows.deliver(name, lacked, tuple(locals_), (entry,))

    def on_acknowledge(self, name: ClientId, message: Acknowledge) -> None:
        client = self.table.check_acknowledge(name, message)
        self._take_done(self.own.acknowledge(name, message))
        self.own.answer_detach(client)

    # ------------------------------------------------------------ ends

    def linger_over(self, name: ClientId) -> None:
        """End the subscriptions that a client has not requested in time."""
        client = self.table.clients[name]
        self._end(client, self.own.unrequested(client), None)
        if not client.session:
            self._forget(name)

    def on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        """End a subscription; any storage may have one that this broker has not."""
        client = self.table.check_unsubscribe(name, message)
        found = client.subscriptions.get(message.number)
        report = EndReport(client, client.session, message.number)
        if found is not None:
            self._end(client, [found], report)
        else:
            self._end_everywhere(client, message.number, report, is_new=client.is_new)

    def _on_detach(self, name: ClientId, message: Detach) -> None:
        """End the client's subscriptions at all storages."""
        client = self.table.check_detach(name)
        over, is_new = [*client.subscriptions.values()], client.is_new
        for local in over:
            self.fetches.stop(local)
            if local.storage is None:
                self.handovers.add_pending_end(local)
        self._take_done(self.own.end(client, over, drain=message.drain))
        self._end_everywhere(client, 0, EndReport(client, client.session, 0), is_new=is_new)

    def _end_everywhere(
        self, client: RoamingClient, number: int, then: EndReport | PendingEnd, *, is_new: bool
    ) -> None:
        """End a subscription, or with 0 all of a client, at all storages."""
        session, ended = client.session, PendingEnd(len(self.searches.storages), then)
        for storage in self.searches.storages:
            self._request_end(EndStep(client, session, storage, number, is_new, ended))

    def _request_end(self, step: EndStep) -> None:
        key, generation = Key(step.client.name, step.number), step.client.generation
        self._request(step.storage, SubscriptionRequest(key, generation, None), step)

    def _on_end_answer(self, step: EndStep, answer: RequestAnswer) -> None:
        """Take a storage's answer to an end; request the end again after a later attachment.

        A client without a started subscription here is a new process of one that was at another
        broker. No other broker would end its subscriptions.
        """
        client = step.client
        is_here = client.session == step.session and client.connected
        if step.is_new and is_here and client.raise_generation(answer.later_generation):
            self._request_end(step)
        elif answer.later_generation is None or not self._displace(step.ended.report):
            self._confirm(step.ended)

    def _displace(self, report: EndReport | None) -> bool:
        """End the session of a client with an end that a storage ignores; False without a session.

        The client has not received the end, so it requests the end again on its return. A client
        that has departed does not return.
        """
        if report is None or report.session != report.client.session:
            return False
        if report.client.connected:
            self.take((Displacement(report.client.name),))
        return report.client.connected

    def _end(
        self, client: RoamingClient, over: Sequence[StoredSubscription], then: EndReport | None
    ) -> None:
        """End subscriptions at their storages, and report the durable end."""
        is_new = client.is_new
        for local in over:
            self.fetches.stop(local)
        self._take_done(self.own.end(client, over))
        if not over:
            return
        ended = PendingEnd(len(over), then)
        for local in over:
            if not local.started:
                self.handovers.add_pending_end(local)
            if local.storage is None:
                self._end_everywhere(client, local.number, ended, is_new=is_new)
                continue
            local.pending_end = ended
            if local.started:
                self.take(self.handovers.end(local, RequestAnswer(local.key, 0, local.successor)))

    def _confirm(self, end: PendingEnd) -> None:
        """Take an answer that an end awaited, and report the end after the last one."""
        end.missing -= 1
        if end.missing or end.then is None:
            return
        if isinstance(end.then, PendingEnd):
            self._confirm(end.then)
            return
        client, session, number = end.then
        if number:
            self.table.report_end(client, session, number)
        else:
            client.drains = client.session == session
            self.own.answer_detach(client)

    # ------------------------------------------------------------ sessions

    def on_connect(self, name: ClientId, message: Connect) -> Admission[RoamingClient] | None:
        """Return the admission of a client; None if it is refused."""
        client = self.table.check_connect(name, message)
        if client is None:
            return None
        client.continues = message.source is not None
        return self.table.assign_source(client, message)

    def enter(self, admission: Admission[RoamingClient]) -> bool:
        """Admit a client with the positions that it reports; return False if it has left."""
        if not admission.is_current():
            return False
        client, message = admission.client, admission.message
        self.own.resume(client, message)
        client.generation = message.incarnation
        client.brought = {number: dict(seen) for number, seen in message.resume if seen}
        if client.source is not None:
            numbers = message.next_sequence - 1, message.highest_sequence
            source, now_ns, continues = client.source, self._machine.now_ns, client.continues
            self.take(self.publishes.add_source(source, *numbers, now_ns, continues=continues))
        self.table.enter(client)
        return True

    def on_lost(self, name: ClientId, session: int) -> bool:
        """Drop a client's state, which its storages have; return True if it was admitted."""
        client, was_admitted = self.table.close_session(name, session)
        for local in client.subscriptions.values():
            self.fetches.stop(local)
        self.own.drop(client)
        self._take_done(self.own.close(client))
        if client.source is not None:
            self.publishes.remove_source(client.source)
        return self._forget(name) if was_admitted else self.table.keep(client)

    def _forget(self, name: ClientId) -> bool:
        was_here = self.table.forget(name)
        self.own.windows.forget(name)
        return was_here

    # ------------------------------------------------------------ publications

    def _on_publish(self, name: ClientId, message: Publish) -> None:
        client, run = self.table.check_publish(name, message), message.run
        self.own.accept(client, run)
        self.table.record_published(name, run.source, run.last)
        self.take(self.publishes.add(run, self._machine.now_ns))
        self.own.acknowledge_through(client, self.publishes.done(run.source))

    def _refuse_older_copy(self, message: Stored, highest: int) -> None:
        """Refuse a publisher with an older copy of its store: the storage has later numbers."""
        for client in self.table.clients.values():
            if client.source == message.source and client.connected:
                reason = older_copy(client.name, highest, message.through)
                self._machine.send(client.name, Refused("connect", 0, reason, False))

    def _name_of(self, broker: BrokerNumber) -> str:
        """Return the name of a broker, or its number if a later topology has the name."""
        return self._names[broker] if broker < len(self._names) else str(broker)

    def _refuse_publisher(self, source: SourceId, reason: str) -> None:
        for client in self.table.clients.values():
            if client.source == source and client.connected:
                self._machine.send(client.name, Refused("connect", 0, reason, False))

    def _report_stored(self, source: SourceId) -> None:
        """Report the stored publications to a publisher at this broker."""
        for client in self.table.clients.values():
            if client.source == source:
                self.own.acknowledge_through(client, self.publishes.done(source))


def beyond(run: PublicationRun, had_of: Mapping[SourceId, int]) -> PublicationRun | None:
    """Return the publications of a stream's run above these numbers of their sources."""
    if not had_of:
        return run
    origins = ((each.source, number) for each in run.origins for number in each.sequences)
    found = [
        place for place, (source, number) in enumerate(origins) if number > had_of.get(source, 0)
    ]
    return run.select(found) if found else None
