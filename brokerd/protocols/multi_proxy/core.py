"""A broker of multi_proxy: an access broker, and by its place also a proxy or a server.

Paper: [MP22].
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.model.predicate import DecodeAttributes
from brokerd.protocols.definition import CoreContext
from brokerd.protocols.extensions import Farewell
from brokerd.protocols.interface import (
    BrokerDecommissioned,
    CoreStatus,
    DeadlineReached,
    Instant,
    MessageReceived,
    OpenFailed,
    Persisted,
    RecordsRead,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.multi_proxy.access_broker import WRITE_MARKS, AccessBroker
from brokerd.protocols.multi_proxy.arbiter import GIVING, Arbiter
from brokerd.protocols.multi_proxy.assignments import Assignments
from brokerd.protocols.multi_proxy.claims import Claims
from brokerd.protocols.multi_proxy.fetches import REPORTED
from brokerd.protocols.multi_proxy.messages import (
    Answer,
    Claim,
    Decommissioned,
    Merge,
    Merged,
    Move,
    Owned,
    Owner,
    Servers,
)
from brokerd.protocols.multi_proxy.parameters import ARBITER, CAUSAL, PAPER, MultiProxyParameters
from brokerd.protocols.multi_proxy.proxy import Proxy
from brokerd.protocols.multi_proxy.routes import RETRY, UNANSWERED, Places, Sessions, topics_in
from brokerd.protocols.multi_proxy.server import Server
from brokerd.protocols.multi_proxy.state import COUNTERS, LOG, VolatileState
from brokerd.protocols.multi_proxy.transfer_server import PERIOD, TopicAnnouncements, TransferServer
from brokerd.protocols.parts.clients.progress import WRITE
from brokerd.protocols.parts.clients.table import LINGER
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.decommissioning import NOBODY, DecommissionAuthority, Decommissioning
from brokerd.protocols.parts.event_machine import (
    Durability,
    LogFirstMachine,
    MessageHandler,
    message_handler,
)


class MultiProxy(LogFirstMachine):
    """A broker with clients, with topics as a server, or both.

    Implements `DeliveryProtocol` and `DecommissioningProtocol`.

    Attributes:
        server: the server of this broker; None if the broker is no server.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        places: Places,
        parameters: MultiProxyParameters,
        decode_attributes: DecodeAttributes,
        authority: DecommissionAuthority = NOBODY,
    ) -> None:
        super().__init__()
        self._broker = broker
        self._places = places
        self._parameters = parameters
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._deadlines: DeadlineQueue[tuple[str, Any]] = DeadlineQueue()
        self._neighbours = Sessions(self, places.proxies, self._deadlines, parameters)
        self._sessions = self._neighbours.sessions
        self._disk = Durability(self)
        self._decommissioning = Decommissioning(
            broker,
            self._disk,
            Decommissioned,
            authority,
            places.neighbours,
            has_session=self._sessions.__contains__,
            may_leave=places.edges.__contains__,
            leave=self._continue_without,
        )
        self._announcements: TopicAnnouncements | None = None
        self._proxy: Proxy | None = None
        self._departed = self._decommissioning.decommissioned
        self._assignments: Assignments | None
        self._arbiter: Arbiter | None
        self._assignments, self._arbiter = self._make_arbiter()
        self.server = self._make_server()
        self._access_broker = AccessBroker(
            broker,
            places,
            self._disk,
            self._deadlines,
            parameters,
            decode_attributes,
            self._counters,
        )
        self._clients, self._gets = self._access_broker.clients, self._access_broker.fetches
        self._owners = self._access_broker.owners
        if broker in places.proxies:
            self._proxy = self._access_broker.routes.proxy = self._make_proxy()
        self.dispatch_events(
            {
                Started: self._on_started,
                RecordsRead: self._on_records,
                SessionEstablished: self._on_session_established,
                SessionLost: self._on_session_lost,
                OpenFailed: lambda event: self._retry_later(event.peer),
                MessageReceived: self._on_message,
                Persisted: lambda event: self._disk.on_persisted(event.token),
                BrokerDecommissioned: self._decommissioning.on_event,
                DeadlineReached: self._on_deadline,
            }
        )
        self._from_clients = self._clients.handlers()
        self._from_servers = self._access_broker.handlers
        self._from_brokers: dict[type, MessageHandler] = {
            Servers: self._on_servers,
            Owned: self._on_owned,
            **self._decommissioning.handlers(),
        }
        if self._proxy is not None:
            self._from_brokers |= self._proxy.handlers()
        else:
            self._from_brokers |= dict.fromkeys(self._from_servers, self._on_answer)
        if self.server is not None:
            self._from_brokers |= {
                kind: partial(self._on_request, handler)
                for kind, handler in self.server.handlers().items()
            }
        if self._arbiter is not None:
            self._from_brokers |= self._arbiter.handlers()
            self._from_brokers[Claim] = partial(self._on_request, self._arbiter.on_claim)
            self._from_brokers[Move] = self._on_move
        if parameters.ownership == PAPER and self.server is not None:
            self._announcements = TopicAnnouncements(
                broker, self, self._deadlines, parameters.period_ns, self.server, self._sessions
            )
            self._from_brokers[Merge] = self._on_merge
        if self.server is not None and self.server.transfer_server is not None:
            self._from_brokers |= {
                kind: partial(self._from_proxy, handler)
                for kind, handler in self.server.transfer_server.handlers().items()
            }
        self._due = self._due_handlers()

    def _make_arbiter(self) -> tuple[Assignments, Arbiter] | tuple[None, None]:
        places, sessions = self._places, self._neighbours
        if self._broker not in places.servers or self._parameters.ownership != ARBITER:
            return None, None
        topics = len(places.arbiters)
        assignments = Assignments(self._broker, self._disk, topics, sessions.sessions)
        return assignments, Arbiter(
            self._broker,
            self._disk,
            self._deadlines,
            self._parameters.assign_retry_ns,
            arbiters=places.arbiters,
            servers=places.servers,
            sessions=sessions,
            assignments=assignments,
        )

    def _make_server(self) -> Server | None:
        broker, places, parameters = self._broker, self._places, self._parameters
        if broker not in places.servers:
            return None
        disk, deadlines, sessions = self._disk, self._deadlines, self._neighbours
        server = Server(
            broker,
            disk,
            deadlines,
            parameters,
            self._counters,
            homes=places.homes,
            sessions=sessions,
            assignments=self._assignments,
        )
        if parameters.ownership in (ARBITER, CAUSAL):
            names = dict(places.servers_by_name)
            own = broker, names, disk, deadlines, parameters
            roles = server, sessions, self._arbiter, self._assignments
            server.transfer_server = TransferServer(*own, *roles)
            if self._arbiter is not None:
                self._arbiter.transfer_server = server.transfer_server
        return server

    def _make_proxy(self) -> Proxy:
        places, parameters, sessions = self._places, self._parameters, self._sessions
        claims = Claims(
            len(places.arbiters),
            places.servers_by_name,
            sessions,
            places.arbiters,
            parameters.spread_topics if parameters.ownership == ARBITER else 0,
            decides=parameters.ownership in (CAUSAL, PAPER),
        )
        others = [other for other in places.neighbours if other not in places.proxies]
        return Proxy(
            self._broker,
            self,
            places.servers,
            others,
            self._counters,
            sessions,
            claims,
            self._access_broker,
        )

    def next_deadline(self) -> Instant | None:
        return self._deadlines.earliest()

    def clients_behind(self) -> Collection[ClientId]:
        return self._clients.own.windows.clients_behind()

    def farewell(self, broker: BrokerNumber) -> Farewell:
        if broker in self._decommissioning:
            return Farewell(is_known=True)
        reasons = (
            (broker in self._sessions, "it is up, there is a session with it"),
            (self.is_reading, "this one is starting, and reads its log"),
            (broker not in self._places.edges, "it is no edge, and others need it"),
        )
        kept = self.server.count_retained() if self.server else 0
        losses = (f"{kept} publications are kept until all have acknowledged them",) if kept else ()
        return Farewell(False, tuple(why for holds, why in reasons if holds), losses)

    def _continue_without(self, broker: BrokerNumber) -> None:
        """Release the state of a decommissioned broker, and refuse further messages."""
        self._deadlines.cancel((RETRY, broker))
        if self.server is not None:
            self.server.drop(broker)

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol: everything is under way again after a failure, except owners."""
        return self.server.aftermath() if self.server is not None else ()

    def statistics(self) -> Mapping[str, int]:
        return {
            **self._counters,
            "queue_publications": self._count_queued(),
            "queue_bytes": self.server.retained_bytes() if self.server else 0,
            "subscriptions": self._clients.table.count_subscriptions(),
            "matching_hits": self._clients.own.memo.hits,
            "matching_misses": self._clients.own.memo.misses,
            "sessions_active": len(self._sessions),
            "sessions_ready": len(self._sessions),
        }

    def status(self) -> CoreStatus[BrokerNumber]:
        neighbours = [peer for peer in self._places.neighbours if peer not in self._decommissioning]
        subscriptions, queued = self._clients.table.count_subscriptions(), self._count_queued()
        idle_reasons = [f"{subscriptions} subscriptions of its own clients"] * bool(subscriptions)
        if queued:
            idle_reasons.append(f"{queued} publications that are not acknowledged everywhere")
        if waiting := self._gets.waiting():
            idle_reasons.append(f"{waiting} servers without the current topics of this broker")
        if doubted := len(self._owners.requests.doubted):
            idle_reasons.append(f"{doubted} topics whose server reports that it does not own them")
        return CoreStatus(
            state="recovering" if self.is_reading else "running",
            queued=queued,
            subscriptions=subscriptions,
            own_subscriptions=subscriptions,
            wanted=tuple(neighbours),
            ready=tuple(peer for peer in neighbours if peer in self._sessions),
            idle_reasons=tuple(idle_reasons),
        )

    def detail(self) -> Mapping[str, Any]:
        return self.state().to_mapping()

    def state(self) -> VolatileState:
        server = self.server.state() if self.server is not None else None
        return self._access_broker.state(self._places.role, server)

    def follows(self, topic: int) -> bool:
        """Return True if a client here needs a topic, at any server."""
        return self._gets.follows(topic)

    def _count_queued(self) -> int:
        return self._access_broker.publishes.count_pending() + (
            self.server.count_retained() if self.server else 0
        )

    # ------------------------------------------------------------ start

    def _on_started(self, event: Started) -> None:
        if self.server is not None:
            self.server.recover(event.recovered, event.logs[LOG])
        if self._arbiter is not None and self._assignments is not None:
            self._arbiter.recover(event.recovered)
            self._assignments.recover(event.recovered)
        self.begin_after_log(event, is_read=self._is_read())

    def _on_records(self, event: RecordsRead) -> None:
        assert self.server is not None, f"{self._broker} is no server and read {event.log}"
        self.server.on_records(event)
        if self._is_read():
            self.resume()

    def _is_read(self) -> bool:
        return self.server is None or self.server.log.is_read

    def _begin(self, event: Started) -> None:
        if self.server is not None:
            self.server.begin(event.incarnation, event.lineage, event.start)
        if self._arbiter is not None and self._assignments is not None:
            self._assignments.begin(event.lineage)
            self._arbiter.begin(event.lineage)
        if self._announcements is not None:
            self._announcements.announce(self._broker)
        self._access_broker.recover(event.recovered)
        self._owners.recover(event.recovered)
        self._clients.table.start(event.incarnation, event.recovered, event.lineage)
        self._clients.recover(event.recovered)
        self._gets.begin(event.incarnation)
        self._decommissioning.recover(event.recovered)
        for neighbour in self._places.neighbours:
            if neighbour not in self._decommissioning:
                self._neighbours.open(neighbour)

    # ------------------------------------------------------------ sessions

    def _on_session_established(self, event: SessionEstablished) -> None:
        peer = event.peer
        if isinstance(peer, str):
            self._clients.table.open_session(peer, event.session)
            return
        assert isinstance(peer, int), f"a session with {peer!r}"
        self._neighbours.on_session(peer, event)
        self._decommissioning.on_session(peer)
        if peer in self._decommissioning:
            return
        if self._proxy is not None:
            self._proxy.on_session(peer)
        if self._assignments is not None and self.server is not None:
            self._assignments.announce_to(peer, self.server.requested)
        if self.server is not None and peer in self._places.proxies:
            self.server.request_restatement()
        if self.server is not None and self.server.transfer_server is not None:
            self.server.transfer_server.announce_to(peer)

    def _on_session_lost(self, event: SessionLost) -> None:
        peer = event.peer
        if isinstance(peer, str):
            self._clients.on_lost(peer, event.session)
            return
        assert isinstance(peer, int), f"a session with {peer!r}"
        self._neighbours.on_session_lost(peer, event)
        if self._proxy is not None:
            self._proxy.on_session_lost(peer)
        else:
            self._access_broker.on_servers(peer, ())
        if peer not in self._decommissioning:
            self._neighbours.retry_lost(peer, event)

    def _retry_later(self, peer: Peer) -> None:
        if peer not in self._decommissioning:
            self._neighbours.retry_later(peer)

    def _on_message(self, event: MessageReceived) -> None:
        if isinstance(event.peer, int):
            handlers, current = self._from_brokers, self._sessions.get(event.peer)
        else:
            handlers, current = self._from_clients, self._clients.table.session_of(event.peer)
        if current != event.session or event.peer in self._departed:
            self._counters["messages_ignored"] += 1
            return
        message_handler(handlers, event)(event.peer, event.message)

    # ------------------------------------------------------------ brokers' messages

    def _on_servers(self, peer: Any, message: Servers) -> None:
        self._places.check_proxy(peer, message.reached)
        self._access_broker.on_servers(peer, message.reached)

    def _on_owned(self, peer: Any, message: Owned) -> None:
        self._places.check_proxy(peer, [owner.server for owner in message.owners])
        self._owners.learn(peer, message.owners)

    def _is_owned(self, topic: int) -> bool:
        if self._assignments is not None:
            generations = self._assignments.generations
            return bool(generations.get(topic)) or self._assignments.adopts(topic)
        if self._parameters.ownership in (CAUSAL, PAPER):
            return topic < len(self._places.arbiters)
        return self._places.arbiter(topic) == self._broker

    def _on_merge(self, peer: Any, message: Merge) -> None:
        assert self.server is not None, f"{self._broker} is no server and owns nothing"
        self._places.check_proxy(peer, [owner.server for owner in message.owners])
        self.server.merge(message.owners)

    def _on_move(self, peer: Any, message: Move) -> None:
        assert self._arbiter is not None, f"{self._broker} is no arbiter"
        self._places.check_proxy(peer, [owner.server for owner in message.owners])
        self._arbiter.on_move(peer, message)

    def _from_proxy(self, handler: MessageHandler, peer: Any, message: Any) -> None:
        """Handle a message of a proxy, or of another server over a proxy."""
        self._places.check_proxy(peer, ())
        handler(peer, message)

    def _on_request(self, handler: MessageHandler, peer: Any, message: Any) -> None:
        """Handle a request over a proxy; the answer returns over the same proxy."""
        self._places.check_request(peer, message)
        if message.home in self._departed:
            self._counters["messages_ignored"] += 1
            return
        self._neighbours.record_proxy(peer, message.home)
        lacked = [topic for topic in topics_in(message) if not self._is_owned(topic)]
        self._check_lacked(peer, message.home, lacked)
        if self.server is not None and not self.server.serves(message):
            return
        if lacked:
            self._deny(message.home, lacked)
        else:
            handler(peer, message)

    def _check_lacked(self, peer: Peer, home: BrokerNumber, topics: Sequence[int]) -> None:
        """Check that requested topics, which are not this server's, may be denied.

        Raises:
            RemoteProtocolError: a topic does not exist, or owners follow from a hash; the fault of
                the peer.
        """
        is_wrong = max(topics, default=0) >= len(self._places.arbiters)
        if topics and (self._assignments is None or is_wrong):
            raise RemoteProtocolError(peer, f"broker {home} asks for topics {topics} here")

    def _deny(self, home: BrokerNumber, topics: Sequence[int]) -> None:
        """Deny ownership of topics: an access broker queries their arbiters again."""
        denied = tuple(Owner(topic, self._broker) for topic in topics)
        self._neighbours.answer(home, Merged(home, denied))
        for proxy in self._sessions:
            if proxy in self._places.proxies:
                self.send(proxy, Owned(denied))

    def _on_answer(self, peer: Any, message: Answer) -> None:
        self._places.check_answer(peer, message)
        self._from_servers[type(message)](peer, message)

    # ------------------------------------------------------------ time

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for purpose, owner in self._deadlines.due(self.now_ns):
            self._due[purpose](owner)

    def _due_handlers(self) -> dict[str, Callable[[Any], None]]:
        """Return the handlers of deadlines by their purposes, for the roles of this broker."""
        access = self._access_broker
        handlers: dict[str, Callable[[Any], None]] = {
            RETRY: self._neighbours.open,
            UNANSWERED: access.on_unanswered,
            REPORTED: access.fetches.report,
            LINGER: access.clients.linger_over,
            WRITE: access.clients.table.write_progress,
            WRITE_MARKS: lambda _broker: access.write_marks(),
        }
        if self.server is not None:
            handlers |= self.server.due_handlers()
        if self._arbiter is not None:
            handlers[GIVING] = self._arbiter.on_due
        if self._announcements is not None:
            handlers[PERIOD] = self._announcements.announce
        return handlers


def make_core(context: CoreContext) -> MultiProxy:
    parameters: MultiProxyParameters = context.parameters
    places = Places(context.broker, context.topology, parameters.topics)
    authority = DecommissionAuthority.of(context)
    return MultiProxy(context.broker, places, parameters, context.decode_attributes, authority)
