"""A broker of the ring: stores every publication, then hands it on both ways and to its clients.

Subscriptions stay where they are made. Whatever a broker says it has is on its disk, so two
neighbours need only compare how far each has come, source by source, when they meet.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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
from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.predicate import NOTHING, Attributes, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.protocols.interface import (
    Append,
    Change,
    Commit,
    DeadlineReached,
    Deliver,
    Instant,
    MessageReceived,
    OpenFailed,
    OpenSession,
    Persisted,
    Release,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler, message_handler
from brokerd.protocols.parts.predicate_rows import predicate_row, read_predicate
from brokerd.protocols.parts.publishers import TABLE as PUBLISHERS
from brokerd.protocols.parts.publishers import PublisherNumbers
from brokerd.protocols.parts.selection import RunSelection, match_run
from brokerd.protocols.ring_flood.messages import Flooded, Stored
from brokerd.protocols.ring_flood.parameters import RingFloodParameters

SUBSCRIPTIONS = "subscriptions"
RELEASED = "released"
Positions = dict[SourceId, int]


@dataclass(slots=True, eq=False)
class Client:
    """A client, with a session or without.

    Attributes:
        submitted: how far it has sent what it publishes, since it connected.
        told: how far it was told that this is done.
        subscriptions: by number; False until it is on disk.
        passed: how far each source was looked through for it.
        unacknowledged: what it was given of each source: last numbers, rising.
        leaving: it is to be told that it has left when nothing is unacknowledged.
    """

    name: ClientId
    session: int = 0
    connected: bool = False
    source: SourceId | None = None
    submitted: int = 0
    told: int = 0
    subscriptions: dict[int, bool] = field(default_factory=dict)
    predicates: dict[int, Predicate] = field(default_factory=dict)
    passed: Positions = field(default_factory=dict)
    unacknowledged: dict[SourceId, deque[tuple[int, int]]] = field(default_factory=dict)
    leaving: bool = False

    def needs_after(self, source: SourceId) -> int | None:
        """What comes after this may have to be given again; None: nothing."""
        if waiting := self.unacknowledged.get(source):
            return waiting[0][0] - 1
        return self.passed.get(source, 0) if self.subscriptions else None


class RingFlood(EventMachine):
    """See DeliveryProtocol."""

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: tuple[BrokerNumber, ...],
        parameters: RingFloodParameters,
        decode_attributes: Callable[[bytes], Attributes],
    ) -> None:
        super().__init__()
        self._broker = broker
        self._neighbours = neighbours
        self._parameters = parameters
        self._incarnation = 0
        self._sessions: dict[Peer, int] = {}
        self._deadlines: DeadlineQueue[Peer] = DeadlineQueue()
        self._backoff_ns: dict[BrokerNumber, int] = {}
        self._publishers = PublisherNumbers()
        self._clients: dict[ClientId, Client] = {}
        self._log: dict[SourceId, deque[PublicationRun]] = {}
        self._received: Positions = {}
        self._stored: Positions = {}
        self._released: Positions = {}
        self._held_by: dict[BrokerNumber, Positions] = {peer: {} for peer in neighbours}
        self._sent_to: dict[BrokerNumber, Positions] = {}
        self._token = 0
        self._releasing = False
        self._when_durable: dict[int, Callable[[], None]] = {}
        self._index: MatchingIndex[tuple[ClientId, int]] = MatchingIndex()
        self._memo: MatchMemo[tuple[ClientId, int], dict[ClientId, tuple[int, ...]]] = MatchMemo(
            self._index, decode_attributes, conclude=_by_client
        )
        names = ("publications_received", "publications_forwarded", "publications_delivered")
        self._counters = dict.fromkeys((*names, "duplicates_received", "messages_ignored"), 0)
        self.dispatch_events(
            {
                Started: self._on_started,
                SessionEstablished: self._on_session_established,
                SessionLost: self._on_session_lost,
                OpenFailed: lambda event: self._retry_later(event.peer),
                MessageReceived: self._on_message,
                Persisted: lambda event: self._when_durable.pop(event.token)(),
                DeadlineReached: self._on_deadline,
            }
        )
        self._from_brokers: dict[type, MessageHandler] = {
            Flooded: self._on_flooded,
            Stored: self._on_stored,
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
        """See DeliveryProtocol: a client's own session is all that it holds up."""
        return ()

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol: what is queued is the log, and that empties by itself."""
        return ()

    def statistics(self) -> Mapping[str, int]:
        """See DeliveryProtocol."""
        return {
            **self._counters,
            "queue_publications": self._queued(),
            "queue_bytes": sum(run.payload_bytes() for runs in self._log.values() for run in runs),
            "subscriptions": len(self._index),
            "matching_hits": self._memo.hits,
            "matching_misses": self._memo.misses,
            "sessions_active": len(self._sent_to),
            "sessions_ready": len(self._sent_to),
        }

    def status(self) -> Mapping[str, Any]:
        """See DeliveryProtocol."""
        return {
            "state": "running",
            "wanted": list(self._neighbours),
            "ready": [peer for peer in self._neighbours if peer in self._sent_to],
            "pending": [peer for peer in self._neighbours if peer not in self._sent_to],
            "subscriptions": len(self._index),
            "own_subscriptions": sum(len(each.subscriptions) for each in self._clients.values()),
            "clients": sum(each.connected for each in self._clients.values()),
            "queue": self._queued(),
        }

    def _queued(self) -> int:
        return sum(len(run) for runs in self._log.values() for run in runs)

    # ------------------------------------------------------------ what is on disk

    def _on_started(self, event: Started) -> None:
        self._incarnation = event.incarnation
        self._publishers.recover(event.recovered.get(PUBLISHERS, {}))
        for key, through in event.recovered.get(RELEASED, {}).items():
            source = SourceId(*map(int, key.split(".")))
            self._received[source] = self._stored[source] = self._released[source] = through
        for run in event.logged:
            if rest := run.after(self._stored.get(run.source, 0)):
                self._log.setdefault(run.source, deque()).append(rest)
                self._received[run.source] = self._stored[run.source] = rest.last
        for key, row in event.recovered.get(SUBSCRIPTIONS, {}).items():
            name, _, number = key.rpartition("/")
            client = self._client(name)
            client.passed = dict(self._released)
            self._begin(client, int(number), read_predicate(row))
            client.subscriptions[int(number)] = True
        for name in self._clients:
            self._deadlines.set(name, self.now_ns + self._parameters.client_linger_ns)
        for peer in self._neighbours:
            self.emit(OpenSession(peer))

    def _commit(self, changes: Sequence[Change], then: Callable[[], None]) -> None:
        self._token += 1
        self._when_durable[self._token] = then
        self.emit(Commit(tuple(changes), self._token))

    def _append(self, run: PublicationRun) -> None:
        self._received[run.source] = run.last
        self._counters["publications_received"] += len(run)
        self._token += 1
        self._when_durable[self._token] = partial(self._on_logged, run)
        self.emit(Append(run, self._token))

    def _on_logged(self, run: PublicationRun) -> None:
        source = run.source
        self._log.setdefault(source, deque()).append(run)
        self._stored[source] = run.last
        for peer in self._neighbours:
            if peer in self._sessions:
                self.send(peer, Stored(((source, run.last),)))
            if peer in self._sent_to:
                self._flood(peer, source)
        for client in self._clients.values():
            self._serve(client, source)
        self._settle(source)

    def _settle(self, source: SourceId) -> None:
        """Tell the publisher what is done, and let go what nobody needs any more.

        Where a source had come to is on disk before its publications are no more.
        """
        held = [self._held_by[peer].get(source, 0) for peer in self._neighbours]
        copies = sorted((self._stored.get(source, 0), *held), reverse=True)
        done = copies[min(self._parameters.copies, len(copies)) - 1]
        for client in self._clients.values():
            through = min(done, client.submitted)
            if client.source == source and client.connected and through > client.told:
                self.send(client.name, PublishAcknowledged(client.told + 1, through))
                client.told = through
        needs = [client.needs_after(source) for client in self._clients.values()]
        free = min(self._stored.get(source, 0), *held, *(at for at in needs if at is not None))
        runs = self._log.get(source)
        if runs and free >= runs[0].first and not self._releasing:
            self._log[source] = deque(rest for run in runs if (rest := run.after(free)))
            if not self._log[source]:
                del self._log[source]
            self._released[source] = free
            self._releasing = True
            change = Change(RELEASED, ".".join(map(str, source)), free)
            self._commit((change,), partial(self._on_released, source, free))

    def _on_released(self, source: SourceId, through: int) -> None:
        self.emit(Release(source, through))
        self._releasing = False
        for each in list(self._log):
            self._settle(each)

    # ------------------------------------------------------------ sessions

    def _on_session_established(self, event: SessionEstablished) -> None:
        self._sessions[event.peer] = event.session
        self._deadlines.cancel(event.peer)
        if isinstance(event.peer, int):
            self._backoff_ns.pop(event.peer, None)
            self.send(event.peer, Stored(tuple(self._stored.items())))
        else:
            client = self._client(event.peer)
            client.session, client.connected, client.leaving = event.session, False, False

    def _on_session_lost(self, event: SessionLost) -> None:
        del self._sessions[event.peer]
        if isinstance(event.peer, int):
            self._sent_to.pop(event.peer, None)
            self._retry_later(event.peer)
            return
        client = self._clients[event.peer]
        client.session, client.connected, client.source = 0, False, None
        for source, waiting in client.unacknowledged.items():
            if waiting:
                client.passed[source] = waiting[0][0] - 1
        client.unacknowledged.clear()
        self._deadlines.set(event.peer, self.now_ns + self._parameters.client_linger_ns)
        if not client.subscriptions:
            self._forget(client)

    def _retry_later(self, peer: Peer) -> None:
        assert isinstance(peer, int), f"a broker opens no session to {peer!r}"
        if peer not in self._sessions:
            wait_ns = self._backoff_ns.get(peer, self._parameters.retry_first_ns)
            self._backoff_ns[peer] = min(2 * wait_ns, self._parameters.retry_limit_ns)
            self._deadlines.set(peer, self.now_ns + wait_ns)

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for peer in self._deadlines.due(self.now_ns):
            if isinstance(peer, int):
                self.emit(OpenSession(peer))
            else:
                client = self._clients[peer]
                self._end(client, list(client.subscriptions), lambda: None)
                self._forget(client)

    def _on_message(self, event: MessageReceived) -> None:
        if self._sessions.get(event.peer) != event.session:
            self._counters["messages_ignored"] += 1
            return
        handlers = self._from_brokers if isinstance(event.peer, int) else self._from_clients
        message_handler(handlers, event)(event.peer, event.message)

    # ------------------------------------------------------------ neighbours

    def _on_stored(self, peer: BrokerNumber, message: Stored) -> None:
        for source, last in message.through:
            self._held_by[peer][source] = max(last, self._held_by[peer].get(source, 0))
        if peer not in self._sent_to:  # it says first how far it has come
            self._sent_to[peer] = dict(message.through)
            for source in self._log:
                self._flood(peer, source)
        for source, _ in message.through:
            self._settle(source)

    def _flood(self, peer: BrokerNumber, source: SourceId) -> None:
        """Send what is on disk of a source and a neighbour has not got."""
        had = max(self._sent_to[peer].get(source, 0), self._held_by[peer].get(source, 0))
        for run in self._after(source, had):
            self._counters["publications_forwarded"] += len(run)
            self.send(peer, Flooded(run))
        self._sent_to[peer][source] = max(had, self._stored[source])

    def _after(self, source: SourceId, position: int) -> list[PublicationRun]:
        """What is in the log of a source behind a position; the newest is looked at first."""
        found: list[PublicationRun] = []
        for run in reversed(self._log[source]):
            rest = run.after(position)
            if rest is None:
                break
            found.append(rest)
        return found[::-1]

    def _on_flooded(self, peer: BrokerNumber, message: Flooded) -> None:
        run = message.run
        match_run(self._memo, run, peer)  # malformed attributes are refused before they are kept
        rest = self._unknown(run, peer)
        held = self._held_by[peer]
        held[run.source] = max(run.last, held.get(run.source, 0))
        self._counters["duplicates_received"] += len(run) - (len(rest) if rest else 0)
        if rest:
            self._append(rest)

    def _unknown(self, run: PublicationRun, peer: Peer) -> PublicationRun | None:
        had = self._received.get(run.source, 0)
        if run.first > had + 1 or run.last - run.first + 1 != len(run):
            raise RemoteProtocolError(peer, f"{run.source} {run.first}-{run.last} after {had}")
        return run.after(had)

    # ------------------------------------------------------------ clients

    def _client(self, name: ClientId) -> Client:
        if name not in self._clients:
            self._clients[name] = Client(name)
        return self._clients[name]

    def _forget(self, client: Client) -> None:
        self._deadlines.cancel(client.name)
        del self._clients[client.name]

    def _checked(self, name: ClientId) -> Client:
        client = self._clients[name]
        if not client.connected:
            raise RemoteProtocolError(name, "a request before Connected")
        return client

    def _on_connect(self, name: ClientId, message: Connect) -> None:
        client = self._clients[name]
        if client.connected or message.next_sequence < 1 or message.incarnation < 0:
            raise RemoteProtocolError(name, f"a second or impossible {message}"[:200])
        if message.publishes and self._publishers.get(name) is None:
            then = partial(self._connect, client, client.session, message)
            self._commit((self._publishers.give(name),), then)
        else:
            self._connect(client, client.session, message)

    def _connect(self, client: Client, session: int, message: Connect) -> None:
        if message.publishes:
            self._publishers.persisted(client.name)
        if client.session != session:
            return
        client.connected = True
        client.submitted = client.told = message.next_sequence - 1
        number = self._publishers.get(client.name)
        if message.publishes and number is not None:
            client.source = SourceId(self._broker, number, message.incarnation)
        self.send(client.name, Connected(client.source, self._incarnation))
        for number, is_durable in client.subscriptions.items():
            if is_durable:
                self.send(client.name, Subscribed(number, "started"))
        for source in list(self._log):
            self._serve(client, source)

    def _on_publish(self, name: ClientId, message: Publish) -> None:
        client, run = self._checked(name), message.run
        if run.source != client.source:
            raise RemoteProtocolError(name, f"publishes as {run.source}")
        match_run(self._memo, run, name)
        rest = self._unknown(run, name)
        client.submitted = max(client.submitted, run.last)
        if rest:
            self._append(rest)
        self._settle(run.source)

    def _on_subscribe(self, name: ClientId, message: Subscribe) -> None:
        client, number = self._checked(name), message.number
        most = self._parameters.client_subscriptions + (message.predicate == NOTHING)
        known = client.predicates.get(number)
        if (known or message.predicate) != message.predicate or (
            known is None and len(client.subscriptions) >= most
        ):
            reason = f"{number} is another one, or there are {most} already"
            self.send(name, Refused("subscribe", number, reason, False))
        elif known is None:
            if not client.subscriptions:
                client.passed = dict(self._stored)
            self._begin(client, number, message.predicate)
            change = Change(SUBSCRIPTIONS, f"{name}/{number}", predicate_row(message.predicate))
            self._commit((change,), partial(self._subscribed, client, number, message.predicate))
            self.send(name, Subscribed(number, "pending"))
        elif client.subscriptions[number]:
            self.send(name, Subscribed(number, "started"))

    def _begin(self, client: Client, number: int, predicate: Predicate) -> None:
        client.subscriptions[number] = False
        client.predicates[number] = predicate
        self._index.add((client.name, number), predicate)
        self._memo.forget()

    def _subscribed(self, client: Client, number: int, predicate: Predicate) -> None:
        if client.predicates.get(number) is not predicate:
            return  # it has ended meanwhile
        client.subscriptions[number] = True
        if client.connected:
            self.send(client.name, Subscribed(number, "started"))

    def _end(self, client: Client, numbers: Sequence[int], then: Callable[[], None]) -> None:
        for number in numbers:
            del client.subscriptions[number], client.predicates[number]
            self._index.remove((client.name, number))
        self._memo.forget()
        keys = (f"{client.name}/{number}" for number in numbers)
        self._commit([Change(SUBSCRIPTIONS, key, None) for key in keys], then)
        for source in list(self._log):
            self._settle(source)

    def _on_unsubscribe(self, name: ClientId, message: Unsubscribe) -> None:
        client, number = self._checked(name), message.number
        numbers = [number] if number in client.subscriptions else []
        self._end(client, numbers, partial(self._answer, client, client.session, number))

    def _answer(self, client: Client, session: int, number: int) -> None:
        if client.session == session:
            self.send(client.name, Unsubscribed(number))

    def _on_detach(self, name: ClientId, message: Detach) -> None:
        client, session = self._checked(name), self._clients[name].session
        if not message.drain:
            client.unacknowledged.clear()

        def leave() -> None:
            client.leaving = client.session == session
            self._leave(client)

        self._end(client, list(client.subscriptions), leave)

    def _leave(self, client: Client) -> None:
        if client.leaving and not any(client.unacknowledged.values()):
            client.leaving = False
            self._answer(client, client.session, 0)

    def _on_acknowledge(self, name: ClientId, message: Acknowledge) -> None:
        client = self._checked(name)
        waiting = client.unacknowledged.get(message.source)
        while waiting and waiting[0][1] <= message.last:
            waiting.popleft()
        if not waiting:
            client.unacknowledged.pop(message.source, None)
        self._settle(message.source)
        self._leave(client)

    def _serve(self, client: Client, source: SourceId) -> None:
        """Deliver what a client wants of a source and has not been given since it connected."""
        if not client.connected or not client.subscriptions:
            return
        for rest in self._after(source, client.passed.get(source, 0)):
            wanted = match_run(self._memo, rest, client.name)
            numbers = [self._started(client, each.get(client.name, ())) for each in wanted]
            for those, stretch in RunSelection(rest).stretches(numbers):
                if those:
                    self._counters["publications_delivered"] += len(stretch)
                    self.emit(Deliver(client.name, Deliveries(stretch, those)))
                    waiting = client.unacknowledged.setdefault(source, deque())
                    waiting.append((stretch.first, stretch.last))
            client.passed[source] = rest.last

    def _started(self, client: Client, numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number for number in numbers if client.subscriptions[number])


def _by_client(keys: tuple[tuple[ClientId, int], ...]) -> dict[ClientId, tuple[int, ...]]:
    found: dict[ClientId, tuple[int, ...]] = {}
    for client, number in keys:
        found[client] = (*found.get(client, ()), number)
    return found
