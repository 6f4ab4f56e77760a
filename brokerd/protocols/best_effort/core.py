"""The best-effort baseline: forward what matches, remember nothing.

Subscriptions are flooded and confirmed, so that nothing is missed while nothing fails. A
publication is sent on and forgotten: what a link or broker swallows is gone, and a publisher
that resends after an interruption is heard twice.

Paper: [GD02] §4.1 (the system Gryphon is compared with).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from brokerd.errors import RemoteProtocolError
from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.client_messages import (
    Acknowledge,
    Connect,
    Connected,
    Deliveries,
    Detach,
    Publish,
    PublishAcknowledged,
    Refused,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId, SubscriptionId
from brokerd.model.predicate import NOTHING, Attributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.best_effort.messages import (
    ForwardedPublications,
    SubscriptionsOffered,
    SubscriptionsReached,
    SubscriptionsWithdrawn,
)
from brokerd.protocols.best_effort.parameters import BestEffortParameters
from brokerd.protocols.interface import (
    Commit,
    DeadlineReached,
    Deliver,
    Instant,
    MessageReceived,
    OpenFailed,
    OpenSession,
    Persisted,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler, message_handler
from brokerd.protocols.parts.publishers import TABLE as PUBLISHERS
from brokerd.protocols.parts.publishers import PublisherNumbers
from brokerd.protocols.parts.selection import RunSelection, match_run


@dataclass(slots=True)
class _Client:
    """A client as long as it is here, and for a while after."""

    source: SourceId | None = None
    connected: bool = False
    subscriptions: dict[int, SubscriptionId] = field(default_factory=dict)


@dataclass(slots=True)
class _Subscription:
    """A subscription, where it came from, and which sides have not all got it yet."""

    subscription: SubscriptionId
    predicate: Predicate
    origin: Peer
    number: int
    awaited: dict[BrokerNumber, None]


class _Targets(NamedTuple):
    """Where a matching publication goes."""

    brokers: tuple[BrokerNumber, ...]
    clients: dict[ClientId, tuple[int, ...]]


class BestEffort(EventMachine):
    """A broker that forwards matching publications to neighbours and clients, once."""

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: tuple[BrokerNumber, ...],
        parameters: BestEffortParameters,
        decode_attributes: Callable[[bytes], Attributes],
    ) -> None:
        super().__init__()
        self._broker = broker
        self._neighbours = neighbours
        self._parameters = parameters
        self._incarnation = 0
        self._sessions: dict[Peer, int] = {}
        self._backoff_ns: dict[BrokerNumber, int] = {}
        self._deadlines: DeadlineQueue[Peer] = DeadlineQueue()
        self._publishers = PublisherNumbers()
        self._clients: dict[ClientId, _Client] = {}
        self._subscriptions: dict[SubscriptionId, _Subscription] = {}
        self._next_number = 1
        self._next_token = 1
        self._connecting: dict[int, tuple[ClientId, int, Connect]] = {}
        self._index: MatchingIndex[SubscriptionId] = MatchingIndex()
        self._memo: MatchMemo[SubscriptionId, _Targets] = MatchMemo(
            self._index, decode_attributes, conclude=self._targets
        )
        self._counters = dict.fromkeys(
            (
                "publications_received",
                "publications_forwarded",
                "publications_delivered",
                "messages_ignored",
            ),
            0,
        )
        self.dispatch_events(
            {
                Started: self._on_started,
                SessionEstablished: self._on_session_established,
                SessionLost: self._on_session_lost,
                OpenFailed: self._on_open_failed,
                MessageReceived: self._on_message,
                Persisted: self._on_persisted,
                DeadlineReached: self._on_deadline,
            }
        )
        self._from_brokers: dict[type, MessageHandler] = {
            SubscriptionsOffered: self._on_offered,
            SubscriptionsReached: self._on_reached,
            SubscriptionsWithdrawn: self._on_withdrawn,
            ForwardedPublications: self._on_forwarded,
        }
        self._from_clients: dict[type, MessageHandler] = {
            Connect: self._on_connect,
            Subscribe: self._on_subscribe,
            Unsubscribe: self._on_unsubscribe,
            Detach: self._on_detach,
            Publish: self._on_publish,
            Acknowledge: self._on_acknowledge,
        }

    def next_deadline(self) -> Instant | None:
        """See DeliveryProtocol."""
        return self._deadlines.earliest()

    def clients_behind(self) -> Collection[ClientId]:
        """See DeliveryProtocol: nobody waits for a client's acknowledgement here."""
        return ()

    def statistics(self) -> Mapping[str, int]:
        """See DeliveryProtocol."""
        brokers = sum(isinstance(peer, int) for peer in self._sessions)
        return {
            **self._counters,
            "queue_publications": 0,
            "queue_bytes": 0,
            "subscriptions": len(self._subscriptions),
            "matching_hits": self._memo.hits,
            "matching_misses": self._memo.misses,
            "sessions_active": brokers,
            "sessions_ready": brokers,
        }

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol. What a failure took is gone, and nothing waits for it."""
        return ()

    def status(self) -> Mapping[str, Any]:
        """See DeliveryProtocol."""
        ready = [peer for peer in self._neighbours if peer in self._sessions]
        return {
            "state": "running",
            "wanted": list(self._neighbours),
            "ready": ready,
            "pending": [peer for peer in self._neighbours if peer not in self._sessions],
            "subscriptions": len(self._subscriptions),
            "queue": 0,
        }

    # ------------------------------------------------------------ sessions

    def _on_started(self, event: Started) -> None:
        self._incarnation = event.incarnation
        self._publishers.recover(event.recovered.get(PUBLISHERS, {}))
        for neighbour in self._neighbours:
            self.emit(OpenSession(neighbour))

    def _on_session_established(self, event: SessionEstablished) -> None:
        assert event.peer not in self._sessions, f"second session with {event.peer}"
        self._sessions[event.peer] = event.session
        self._deadlines.cancel(event.peer)
        if isinstance(event.peer, str):
            self._clients.setdefault(event.peer, _Client())
            return
        self._backoff_ns.pop(event.peer, None)
        offered = [
            (entry.subscription, entry.predicate)
            for entry in self._subscriptions.values()
            if entry.origin != event.peer
        ]
        self.send(event.peer, SubscriptionsOffered(tuple(offered), complete=True))

    def _on_session_lost(self, event: SessionLost) -> None:
        assert self._sessions.get(event.peer) == event.session, f"no session for {event}"
        del self._sessions[event.peer]
        if isinstance(event.peer, str):
            self._clients[event.peer].connected = False
            self._deadlines.set(event.peer, self.now_ns + self._parameters.client_linger_ns)
        else:
            self._retry_later(event.peer)

    def _on_open_failed(self, event: OpenFailed) -> None:
        assert isinstance(event.peer, int), f"a broker opens no session to {event.peer!r}"
        if event.peer not in self._sessions:
            self._retry_later(event.peer)

    def _retry_later(self, peer: BrokerNumber) -> None:
        wait_ns = self._backoff_ns.get(peer, self._parameters.retry_first_ns)
        self._backoff_ns[peer] = min(2 * wait_ns, self._parameters.retry_limit_ns)
        self._deadlines.set(peer, self.now_ns + wait_ns)

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for peer in self._deadlines.due(self.now_ns):
            if isinstance(peer, int):
                self.emit(OpenSession(peer))
            else:
                self._forget(list(self._clients.pop(peer).subscriptions.values()), origin=peer)

    def _on_message(self, event: MessageReceived) -> None:
        if self._sessions.get(event.peer) != event.session:
            self._counters["messages_ignored"] += 1
            return
        handlers = self._from_brokers if isinstance(event.peer, int) else self._from_clients
        message_handler(handlers, event)(event.peer, event.message)

    # ------------------------------------------------------------ subscriptions

    def _on_offered(self, peer: BrokerNumber, message: SubscriptionsOffered) -> None:
        for subscription, _ in message.subscriptions:
            known = self._subscriptions.get(subscription)
            if subscription.home == self._broker or (known and known.origin != peer):
                raise RemoteProtocolError(peer, f"{subscription} does not come from that side")
        if message.complete:
            offered = {subscription for subscription, _ in message.subscriptions}
            over = [
                entry.subscription
                for entry in self._subscriptions.values()
                if entry.origin == peer and entry.subscription not in offered
            ]
            self._forget(over, origin=peer)
        fresh = [
            _Subscription(subscription, predicate, peer, 0, self._others(peer))
            for subscription, predicate in message.subscriptions
            if subscription not in self._subscriptions
        ]
        self._add(fresh, origin=peer)
        self._tell_reached([subscription for subscription, _ in message.subscriptions])

    def _on_reached(self, peer: BrokerNumber, message: SubscriptionsReached) -> None:
        entries = [self._subscriptions.get(subscription) for subscription in message.subscriptions]
        for entry in entries:
            if entry is not None and entry.origin == peer:
                raise RemoteProtocolError(peer, f"{entry.subscription} did not go to that side")
        awaiting = [entry for entry in entries if entry is not None and peer in entry.awaited]
        for entry in awaiting:
            del entry.awaited[peer]
        self._tell_reached([entry.subscription for entry in awaiting])

    def _on_withdrawn(self, peer: BrokerNumber, message: SubscriptionsWithdrawn) -> None:
        known = [
            subscription
            for subscription in message.subscriptions
            if subscription in self._subscriptions
        ]
        for subscription in known:
            if self._subscriptions[subscription].origin != peer:
                raise RemoteProtocolError(peer, f"{subscription} does not come from that side")
        self._forget(known, origin=peer)

    def _others(self, origin: Peer) -> dict[BrokerNumber, None]:
        return {neighbour: None for neighbour in self._neighbours if neighbour != origin}

    def _add(self, entries: list[_Subscription], origin: Peer) -> None:
        if not entries:
            return
        for entry in entries:
            self._subscriptions[entry.subscription] = entry
            self._index.add(entry.subscription, entry.predicate)
        self._memo.forget()
        offer = SubscriptionsOffered(
            tuple((entry.subscription, entry.predicate) for entry in entries), complete=False
        )
        for neighbour in self._others(origin):
            if neighbour in self._sessions:
                self.send(neighbour, offer)

    def _forget(self, subscriptions: list[SubscriptionId], origin: Peer) -> None:
        if not subscriptions:
            return
        for subscription in subscriptions:
            del self._subscriptions[subscription]
            self._index.remove(subscription)
        self._memo.forget()
        for neighbour in self._others(origin):
            if neighbour in self._sessions:
                self.send(neighbour, SubscriptionsWithdrawn(tuple(subscriptions)))

    def _tell_reached(self, subscriptions: list[SubscriptionId]) -> None:
        """Say of those that all sides have got where that was asked."""
        reached: dict[BrokerNumber, list[SubscriptionId]] = {}
        for subscription in subscriptions:
            entry = self._subscriptions[subscription]
            if entry.awaited:
                continue
            if isinstance(entry.origin, int):
                reached.setdefault(entry.origin, []).append(subscription)
            elif self._clients[entry.origin].connected:
                self.send(entry.origin, Subscribed(entry.number, "started"))
        for neighbour, those in reached.items():
            if neighbour in self._sessions:
                self.send(neighbour, SubscriptionsReached(tuple(those)))

    # ------------------------------------------------------------ clients

    def _on_connect(self, client: ClientId, message: Connect) -> None:
        if self._clients[client].connected:
            raise RemoteProtocolError(client, "a second Connect on one session")
        if message.publishes and self._publishers.get(client) is None:
            token, self._next_token = self._next_token, self._next_token + 1
            self._connecting[token] = (client, self._sessions[client], message)
            self.emit(Commit((self._publishers.give(client),), token))
        else:
            self._connected(client, message)

    def _on_persisted(self, event: Persisted) -> None:
        client, session, message = self._connecting.pop(event.token)
        self._publishers.persisted(client)
        if self._sessions.get(client) == session:
            self._connected(client, message)

    def _connected(self, client: ClientId, message: Connect) -> None:
        state = self._clients[client]
        state.connected = True
        state.source = None
        if message.publishes:
            number = self._publishers.get(client)
            assert number is not None, f"{client} publishes without a number"
            state.source = SourceId(self._broker, number, message.incarnation)
        self.send(client, Connected(state.source, self._incarnation))

    def _on_subscribe(self, client: ClientId, message: Subscribe) -> None:
        state = self._connected_state(client, "Subscribe")
        subscription = state.subscriptions.get(message.number)
        if subscription is not None:
            pending = bool(self._subscriptions[subscription].awaited)
            self.send(client, Subscribed(message.number, "pending" if pending else "started"))
            return
        most = self._parameters.client_subscriptions
        if len(state.subscriptions) >= most + (message.predicate == NOTHING):
            reason = f"a client has at most {most} subscriptions"
            self.send(client, Refused("subscribe", message.number, reason, False))
            return
        subscription = SubscriptionId(self._broker, self._incarnation, self._next_number)
        self._next_number += 1
        state.subscriptions[message.number] = subscription
        entry = _Subscription(
            subscription, message.predicate, client, message.number, self._others(client)
        )
        self._add([entry], origin=client)
        if entry.awaited:
            self.send(client, Subscribed(message.number, "pending"))
        self._tell_reached([subscription])

    def _on_unsubscribe(self, client: ClientId, message: Unsubscribe) -> None:
        state = self._connected_state(client, "Unsubscribe")
        if message.number < 1:
            raise RemoteProtocolError(client, f"there is no subscription {message.number}")
        over = state.subscriptions.pop(message.number, None)
        self._forget([over] if over is not None else [], origin=client)
        self.send(client, Unsubscribed(message.number))

    def _on_detach(self, client: ClientId, _message: Detach) -> None:
        """End all subscriptions; there is nothing to drain, what matched has been sent."""
        state = self._connected_state(client, "Detach")
        over, state.subscriptions = list(state.subscriptions.values()), {}
        self._forget(over, origin=client)
        self.send(client, Unsubscribed(0))

    def _on_acknowledge(self, client: ClientId, _message: Acknowledge) -> None:
        self._connected_state(client, "Acknowledge")

    def _on_publish(self, client: ClientId, message: Publish) -> None:
        state = self._connected_state(client, "Publish")
        if message.run.source != state.source:
            raise RemoteProtocolError(client, f"publishes as {message.run.source}")
        self._forward(message.run, client)
        self.send(client, PublishAcknowledged(message.run.first, message.run.last))

    def _connected_state(self, client: ClientId, request: str) -> _Client:
        state = self._clients[client]
        if not state.connected:
            raise RemoteProtocolError(client, f"{request} before Connected")
        return state

    # ------------------------------------------------------------ publications

    def _on_forwarded(self, peer: BrokerNumber, message: ForwardedPublications) -> None:
        if message.run.source.broker == self._broker:
            raise RemoteProtocolError(peer, f"our own {message.run.source} came back")
        self._forward(message.run, peer)

    def _forward(self, run: PublicationRun, origin: Peer) -> None:
        """Send each publication once to every side and client that wants it."""
        targets = match_run(self._memo, run, origin)
        self._counters["publications_received"] += len(run)
        places_by_broker: dict[BrokerNumber, list[int]] = {}
        places_by_client: dict[ClientId, list[int]] = {}
        for place, target in enumerate(targets):
            for broker in target.brokers:
                if broker != origin and broker in self._sessions:
                    places_by_broker.setdefault(broker, []).append(place)
            for client in target.clients:
                if self._clients[client].connected:
                    places_by_client.setdefault(client, []).append(place)
        selection = RunSelection(run)
        for broker, places in places_by_broker.items():
            part = selection.having(places)
            self._counters["publications_forwarded"] += len(part)
            self.send(broker, ForwardedPublications(part))
        for client, places in places_by_client.items():
            numbers = [target.clients.get(client, ()) for target in targets]
            wanted = [numbers[place] for place in places]
            if len(places) == len(targets) and wanted.count(wanted[0]) == len(wanted):
                self._deliver(client, run, wanted[0])
                continue
            for those, stretch in selection.stretches(numbers):
                if those:
                    self._deliver(client, stretch, those)

    def _deliver(self, client: ClientId, run: PublicationRun, numbers: tuple[int, ...]) -> None:
        self._counters["publications_delivered"] += len(run)
        self.emit(Deliver(client, Deliveries(run, numbers)))

    def _targets(self, subscriptions: tuple[SubscriptionId, ...]) -> _Targets:
        brokers: dict[BrokerNumber, None] = {}
        clients: dict[ClientId, list[int]] = {}
        for subscription in subscriptions:
            entry = self._subscriptions[subscription]
            if isinstance(entry.origin, int):
                brokers[entry.origin] = None
            else:
                clients.setdefault(entry.origin, []).append(entry.number)
        return _Targets(tuple(brokers), {client: tuple(those) for client, those in clients.items()})
