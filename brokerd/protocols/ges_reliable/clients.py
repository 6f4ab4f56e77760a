"""The access broker: the clients of a broker whose state is at storages.

A client that returns, to this broker or to another, is found at its storage, at the point that the
client has reached. `RoamingClients` connects the parts of an access broker: it takes the messages
and facts that a part returns, in order, and routes each fact to the part that it concerns.

Paper: [GES] §1 (any broker serves any client), §4 (reconnecting clients).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Connect,
    Detach,
    Gap,
    Publish,
    Refused,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId, StreamId
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
from brokerd.protocols.ges_reliable.handover import CROSSING, Handovers, HandoverStep
from brokerd.protocols.ges_reliable.messages import (
    Begun,
    Changed,
    Events,
    Fetched,
    Forwarding,
    Key,
    Sequences,
    Stored,
    Wish,
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
    EndConfirmation,
    EndReport,
    FetchStart,
    FetchStop,
    LastReceipt,
    PendingEnd,
    ReceiptWait,
    Request,
    StorageLoss,
    StoredSubscription,
    SubscriptionStart,
)
from brokerd.protocols.parts.clients.own_subscriptions import (
    OwnClient,
    OwnSubscription,
    OwnSubscriptions,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler
from brokerd.protocols.parts.selection import RunSelection, match_run

DEADLINES = (FETCH, RECEIPT, CHANGE, CROSSING, PUT)
"""The purposes of the deadlines of an access broker."""


@dataclass(slots=True, eq=False)
class RoamingClient(OwnClient):
    """A client.

    Attributes:
        generation: of the attachment to this broker; increases with every move to another broker.
        brought: the positions that the client reports for its subscriptions.
    """

    generation: int = 0
    brought: dict[int, dict[StreamId, int]] = field(default_factory=dict)


class RestatedStep(NamedTuple):
    """The step after a storage that lost state has answered for a subscription.

    Attributes:
        handed: the epoch through which everything was delivered here.
        had: the epoch through which the client has acknowledged.
    """

    local: StoredSubscription
    handed: int
    had: int


class RoamingClients(OwnSubscriptions[DeliveredRun]):
    """See ClientService.

    Args:
        forwarding: the routes of messages to storages.

    Attributes:
        requests, publishes: requests that storages have not answered.
        fetches: the storages that this broker follows.
        handovers: subscriptions on their way to successor storages.
        searches: subscriptions whose storage is not known yet.
    """

    takes_sources = True

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: GesReliableParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
        *,
        forwarding: Forwarding,
        requests: SubscriptionRequests,
        publishes: PublishRequests,
        fetches: EpochFetches,
        handovers: Handovers,
        searches: StorageSearches,
    ) -> None:
        super().__init__(broker, disk, deadlines, parameters, decode_attributes, counters)
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
                self.hand_out(each.run, each.delivered)
            elif kind is Request:
                self.take(self.requests.add(each.storage, each.wish, each.step, now_ns))
            elif kind is Answer:
                self._on_answer(each.step, each.begun)
            elif kind is FetchStart:
                fetch = self.fetches.begin(each.local, each.after, now_ns, told=each.told)
                self._forwarding.send(fetch)
            elif kind is FetchStop:
                self.fetches.stop(each.local)
            elif kind is ReceiptWait:
                self.take(self.fetches.leave(each.local))
            elif kind is LastReceipt:
                self.take(self.handovers.on_last_receipt(each.local))
            elif kind is SubscriptionStart:
                self._on_begun(each.client, each.local, each.begun)
            elif kind is StorageLoss:
                self._restate(each.locals)
            elif kind is EndConfirmation:
                self._confirm(each.end)
            else:
                self._forwarding.send(each)

    def _on_answer(self, step: Any, begun: Begun) -> None:
        """Take the step that follows the answer of a storage."""
        kind = type(step)
        if kind is PendingEnd:
            self._confirm(step)
        elif kind is RestatedStep:
            self._on_restated(step, begun)
        elif kind is HandoverStep:
            self.take(self.handovers.on_answer(step, begun, self._machine.now_ns))
        else:
            self.take(self.searches.on_answer(step, begun))

    def _request(self, storage: BrokerNumber, wish: Wish, step: Any = None) -> None:
        self.take(self.requests.add(storage, wish, step, self._machine.now_ns))

    # ------------------------------------------------------------ messages and deadlines

    def message_handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of storages' answers."""
        return {
            Changed: self._on_changed,
            Stored: self._on_stored,
            Events: self._on_events,
            Fetched: self._on_fetched,
        }

    def _on_changed(self, peer: Peer, message: Changed) -> None:
        self.take(self.requests.on_changed(peer, message, self._machine.now_ns))

    def _on_stored(self, _peer: Peer, message: Stored) -> None:
        lost = self.publishes.find_lost(message)
        if lost is not None:
            self.take((lost,))
        elif self.publishes.on_stored(message, self._machine.now_ns):
            self._tell_stored(message.source)

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
        elif purpose == CROSSING:
            self.take(self.handovers.trees.due(storage))
        else:
            assert purpose == PUT, f"{purpose!r} of broker {storage}"
            self.take(self.publishes.due(now_ns))

    # ------------------------------------------------------------ subscriptions

    def _subscribe(self, client: OwnClient, message: Subscribe) -> None:
        roaming = _make_roaming(client)
        brought = roaming.brought.get(message.number, {})
        found = self.searches.stored_at(brought)
        if found is None and brought:
            names = ", ".join(str(stream.broker) for stream in brought)
            reason = f"{client.name} was stored for at broker {names}, which is no storage any more"
            self._machine.send(client.name, Refused("subscribe", message.number, reason, False))
            return
        local = StoredSubscription(client.name, message.number, message.predicate, client.session)
        local.generation = roaming.generation
        local.brought = {stream.broker: had for stream, had in brought.items()}
        client.subscriptions[local.number] = local
        self.handovers.drop_pending_end(local.key)
        self._machine.send(client.name, Subscribed(local.number, "pending"))
        if found is not None:
            storages = self.searches.storages
            local.earlier = [stream.broker for stream in brought if stream.broker in storages]
            self.take(self.searches.begin_at(client, local, *found))
        else:
            self.take(self.searches.claim_anywhere(client, local))

    def _on_begun(self, client: OwnClient, local: StoredSubscription, begun: Begun) -> None:
        """Begin a subscription at its storage, or ask the successor storage."""
        if local.is_over:
            self.take(self.handovers.on_begun_over(local, begun))
            return
        after, heir = begun.after, begun.heir
        if after is None and heir is not None:
            had = self.handovers.had_at(heir, local.brought)
            self.take(self.searches.begin_at(client, local, heir, had, claims=had is None))
            return
        if after is None:
            del client.subscriptions[local.number]
            local.is_over = True
            reason = f"{client.name} has attached to another broker since"
            self._machine.send(client.name, Refused("subscribe", local.number, reason, False))
            return
        assert local.storage is not None, f"{local} begins nowhere"
        local.begins_after = {stream_of(local.storage): after}
        local.had_of = begun.had_of
        stream = stream_of(local.storage)
        had = _make_roaming(client).brought.get(local.number, {}).get(stream, after)
        if is_behind_loss(had, after):
            client.forgotten[local.number] = {stream: had}
        self._begin_one(client, local)
        self.take((FetchStart(local, after),))
        self.take(self.handovers.hand_over(local, heir, begun.until))

    # ------------------------------------------------------------ lost state of a storage

    def _restate(self, lost: Sequence[StoredSubscription]) -> None:
        """State subscriptions again to a storage that lost state."""
        for local in lost:
            assert local.storage is not None, f"{local} is stored nowhere"
            had = self.fetches.position(local)
            self.fetches.stop(local)
            wish = Wish(local.key, local.generation, local.predicate, had)
            self._request(local.storage, wish, RestatedStep(local, local.handed, had))

    def _on_restated(self, step: "RestatedStep", begun: Begun) -> None:
        """Continue a subscription at its storage, behind a gap if the storage has lost it."""
        local, handed = step.local, step.handed
        if local.is_over or begun.after is None:
            return
        if begun.after > handed:
            assert local.storage is not None, f"{local} is stored nowhere"
            stream, last = stream_of(local.storage), begun.after
            gap = Gap((local.number,), stream, handed + 1, last, STATE_LOST)
            run = PublicationRun(stream, range(last, last + 1), (b"",), b"\0", 0, ())
            entry = self.fetches.lose_range(local, last)
            self.windows.deliver(local.client, run, (local,), (entry,), gap)
        self.take((FetchStart(local, max(handed, begun.after), step.had),))

    def change(
        self, storages: Sequence[BrokerNumber], roots: Mapping[BrokerNumber, BrokerNumber]
    ) -> None:
        """Take new storages and roots.

        Another storage may serve this broker's unit from now on.
        """
        self.searches.storages = storages
        self.take(self.handovers.change(storages[0], roots))
        for client in self._clients.values():
            for local in map(_stored, client.subscriptions.values()):
                if local.started and local.heir is None:
                    self.take(self.handovers.hand_over(local))

    # ------------------------------------------------------------ deliveries

    def _begins_after(self, local: OwnSubscription) -> tuple[tuple[StreamId, int], ...]:
        return tuple(local.begins_after.items())

    def hand_out(self, run: PublicationRun, entry: DeliveredRun) -> None:
        """See OwnSubscriptions; delivers only publications that were not forwarded before."""
        wanted = match_run(self.memo, run, run.source.broker)
        for those, part in RunSelection(run).stretches(wanted):
            by_client: dict[tuple[ClientId, int, int, Sequences], list[OwnSubscription]] = {}
            for local in map(_stored, those):
                if local.storage == run.source.broker:
                    had = local.handed if local.handed >= part.first else 0
                    last = part.last if local.until is None else min(local.until, part.last)
                    about = local.client, had, last, local.had_of
                    by_client.setdefault(about, []).append(local)
            for (name, had, last, had_of), locals_ in by_client.items():
                lacked = part.after(had) if had else part
                lacked = lacked.select_through(last) if lacked is not None else None
                lacked = beyond(lacked, dict(had_of)) if lacked is not None else None
                if lacked is not None:
                    entry.open += 1
                    self.windows.deliver(name, lacked, tuple(locals_), (entry,))

    def _on_done(self, entry: DeliveredRun) -> None:
        self.take(self.fetches.done(entry, self._machine.now_ns))

    # ------------------------------------------------------------ ends

    def on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        """See ClientService; any storage may have a subscription that this broker has not."""
        client = self._client_of(name, "Unsubscribe")
        number, session = message.number, client.session
        if number < 1:
            raise RemoteProtocolError(name, f"there is no subscription {number}")
        found = client.subscriptions.get(number)
        report = EndReport(client, session, number)
        if found is not None:
            self._end_stored(client, [found], report)
            return
        self._end_everywhere(_make_roaming(client), number, report)

    def on_detach(self, name: ClientId, message: Detach) -> None:
        """See ClientService; ends the client's subscriptions at all storages."""
        client = self._client_of(name, "Detach")
        client.leaving, session = True, client.session
        over = [*client.subscriptions.values()]
        for local in map(_stored, over):
            self.fetches.stop(local)
            if local.storage is None:
                self.handovers.add_pending_end(local)
        super()._end(client, over, lambda: None, drain=message.drain)
        self._end_everywhere(_make_roaming(client), 0, EndReport(client, session, 0))

    def _end_everywhere(
        self, client: RoamingClient, number: int, then: EndReport | PendingEnd
    ) -> None:
        """End a subscription, or with 0 all of a client, at all storages."""
        ended = PendingEnd(len(self.searches.storages), then)
        for storage in self.searches.storages:
            self._request(storage, Wish(Key(client.name, number), client.generation, None), ended)

    def _end(
        self,
        client: OwnClient,
        over: Sequence[OwnSubscription],
        then: Callable[[], None],
        *,
        drain: bool = False,
    ) -> None:
        """See OwnSubscriptions, where nothing follows an end that no client has requested."""
        self._end_stored(client, over, None, drain=drain)

    def _end_stored(
        self,
        client: OwnClient,
        over: Sequence[OwnSubscription],
        then: EndReport | None,
        *,
        drain: bool = False,
    ) -> None:
        """End subscriptions at their storages, and report the durable end."""
        for local in map(_stored, over):
            self.fetches.stop(local)
        super()._end(client, over, lambda: None, drain=drain)
        if not over:
            return
        ended = PendingEnd(len(over), then)
        for local in map(_stored, over):
            if not local.started:
                self.handovers.add_pending_end(local)
            if local.storage is None:
                self._end_everywhere(_make_roaming(client), local.number, ended)
                continue
            local.ended = ended
            if local.started:
                self.take(self.handovers.end(local, Begun(local.key, 0, local.heir)))

    def _confirm(self, end: PendingEnd) -> None:
        """Take an answer that an end awaited, and report the end after the last one."""
        end.left -= 1
        if end.left or end.then is None:
            return
        if isinstance(end.then, PendingEnd):
            self._confirm(end.then)
            return
        client, session, number = end.then
        if number:
            self._answer_ended(client, session, number)
        else:
            client.drains = client.session == session
            self._leave(client)

    def _rows_over(self, key: str) -> Sequence[Any]:
        """See OwnSubscriptions; this broker stores nothing on disk."""
        return ()

    # ------------------------------------------------------------ sessions

    def _new_client(self, name: ClientId) -> OwnClient:
        return RoamingClient(name)

    def _resume(self, client: OwnClient, message: Connect) -> None:
        super()._resume(client, message)
        roaming = _make_roaming(client)
        roaming.generation = message.incarnation
        roaming.brought = {number: dict(seen) for number, seen in message.resume if seen}
        if client.source is not None:
            self.publishes.add_source(client.source, message.next_sequence - 1)

    def _on_gone(self, client: OwnClient) -> None:
        """See ClientService; the storage has everything that the client's return requires."""
        for local in map(_stored, client.subscriptions.values()):
            local.is_over = True
            self.fetches.stop(local)
            if local.started:
                self.started -= 1
                self._index.remove(local)
        self.memo.forget()
        client.subscriptions.clear()
        super()._on_gone(client)
        if client.source is not None:
            self.publishes.remove_source(client.source)

    # ------------------------------------------------------------ publications

    def _publish(self, client: OwnClient, message: Publish) -> None:
        run = message.run
        self.check_run(run, client.name)
        client.submitted = max(client.submitted, run.last)
        self.take(self.publishes.add(run, self._machine.now_ns))
        self.acknowledge_through(client, self.publishes.done(run.source))

    def _tell_stored(self, source: SourceId) -> None:
        """Report the stored publications to a publisher at this broker."""
        for client in self._clients.values():
            if client.source == source:
                self.acknowledge_through(client, self.publishes.done(source))

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See OwnSubscriptions; nothing is stored here."""


def beyond(run: PublicationRun, had_of: Mapping[SourceId, int]) -> PublicationRun | None:
    """Return the publications of a stream's run above these numbers of their sources."""
    if not had_of:
        return run
    origins = ((each.source, number) for each in run.origins for number in each.sequences)
    found = [
        place for place, (source, number) in enumerate(origins) if number > had_of.get(source, 0)
    ]
    return run.select(found) if found else None


def _make_roaming(client: OwnClient) -> RoamingClient:
    assert isinstance(client, RoamingClient), f"{client} keeps no generation"
    return client


def _stored(local: OwnSubscription) -> StoredSubscription:
    assert isinstance(local, StoredSubscription), f"{local} is not stored for"
    return local
