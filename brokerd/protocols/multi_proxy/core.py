"""A broker of multi_proxy: home of its clients, and what its place makes it: proxy or server.

Paper: [MP22].
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.model.predicate import DecodeAttributes
from brokerd.protocols.interface import (
    CoreStatus,
    DeadlineReached,
    Instant,
    MessageReceived,
    OpenFailed,
    OpenSession,
    Persisted,
    RecordsRead,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.multi_proxy.clients import Clients
from brokerd.protocols.multi_proxy.gets import Gets
from brokerd.protocols.multi_proxy.messages import (
    Answer,
    Answered,
    Following,
    Messages,
    Request,
    Servers,
    Stored,
)
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.places import Places
from brokerd.protocols.multi_proxy.proxy import Proxy
from brokerd.protocols.multi_proxy.puts import Puts
from brokerd.protocols.multi_proxy.server import WAITING, Server
from brokerd.protocols.multi_proxy.topic_log import LOG
from brokerd.protocols.multi_proxy.topics import Topics
from brokerd.protocols.multi_proxy.ways import UNANSWERED, Ways
from brokerd.protocols.parts.backoff import backed_off_ns
from brokerd.protocols.parts.clients.service import LINGER
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.event_machine import MessageHandler, message_handler
from brokerd.protocols.parts.log_first import LogFirstMachine

RETRY: Final = "retry"
"""Purpose of the deadline at which an unreachable broker is tried again."""

_COUNTERS: Final = (
    "publications_received",
    "publications_forwarded",
    "publications_delivered",
    "messages_ignored",
)


class MultiProxy(LogFirstMachine):
    """See DeliveryProtocol.

    Attributes:
        server: what it does for the topics that it owns; None where it is no server.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        places: Places,
        parameters: MultiProxyParameters,
        decode_attributes: DecodeAttributes,
    ) -> None:
        super().__init__()
        self._broker = broker
        self._places = places
        self._parameters = parameters
        self._counters = dict.fromkeys(_COUNTERS, 0)
        self._sessions: dict[BrokerNumber, int] = {}
        self._waited_ns: dict[BrokerNumber, int] = {}
        self._over: dict[BrokerNumber, BrokerNumber] = {}
        self._deadlines: DeadlineQueue[tuple[str, Any]] = DeadlineQueue()
        self._disk = Durability(self)
        self.server: Server | None = None
        self._proxy: Proxy | None = None
        if broker in places.servers:
            self.server = Server(
                broker,
                self._disk,
                self._deadlines,
                parameters,
                self._counters,
                owned=lambda topic: places.owner(topic) == broker,
                answer=self._answer,
            )
        if broker in places.proxies:
            self._proxy = Proxy(
                broker,
                self,
                places.servers,
                [other for other in places.neighbours if other not in places.proxies],
                self._counters,
                has_session=self._sessions.__contains__,
                take=lambda peer, message: self._from_servers[type(message)](peer, message),
                on_servers=lambda proxy, servers: self._ways.reaches(proxy, servers),
            )
        self._ways = Ways(
            broker,
            self,
            places.proxies_of(broker),
            places.servers,
            self._deadlines,
            parameters,
            pass_on=self._pass_on,
            resend=self._resend,
            waits_for=self._waits_for,
        )
        self._puts = Puts(
            broker,
            places.owners,
            send=self._ways.send,
            on_stored=lambda source: self._clients.tell_stored(source),
            answered=self._ways.answered,
        )
        self._gets = Gets(
            broker,
            places.owners,
            parameters.home_window,
            send=self._ways.send,
            hand_out=lambda run, handed: self._clients.hand_out(run, handed),
            check_run=lambda run, peer: self._clients.check_run(run, peer),
            answered=self._ways.answered,
        )
        self._clients = Clients(
            broker,
            self._disk,
            self._deadlines,
            parameters,
            decode_attributes,
            self._counters,
            topics=Topics(parameters, decode_attributes),
            puts=self._puts,
            gets=self._gets,
        )
        self.dispatch_events(
            {
                Started: self._on_started,
                RecordsRead: self._on_records,
                SessionEstablished: self._on_session_established,
                SessionLost: self._on_session_lost,
                OpenFailed: lambda event: self._retry_later(event.peer),
                MessageReceived: self._on_message,
                Persisted: lambda event: self._disk.on_persisted(event.token),
                DeadlineReached: self._on_deadline,
            }
        )
        self._from_clients = self._clients.handlers()
        self._from_servers: dict[type, MessageHandler] = {
            Stored: self._puts.on_stored,
            Following: self._gets.on_following,
            Messages: self._gets.on_messages,
            Answered: self._gets.on_answered,
        }
        self._from_brokers: dict[type, MessageHandler] = {Servers: self._on_servers}
        if self._proxy is not None:
            self._from_brokers |= self._proxy.handlers()
        else:
            self._from_brokers |= dict.fromkeys(self._from_servers, self._on_answer)
        if self.server is not None:
            self._from_brokers |= {
                kind: partial(self._on_request, handler)
                for kind, handler in self.server.handlers().items()
            }

    def next_deadline(self) -> Instant | None:
        """See DeliveryProtocol."""
        return self._deadlines.earliest()

    def clients_behind(self) -> Collection[ClientId]:
        """See DeliveryProtocol."""
        return self._clients.windows.clients_behind()

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol: whatever a failure has left is under way again."""
        return ()

    def statistics(self) -> Mapping[str, int]:
        """See DeliveryProtocol."""
        return {
            **self._counters,
            "queue_publications": self._queued(),
            "queue_bytes": self.server.retained_bytes() if self.server else 0,
            "subscriptions": self._clients.subscriptions(),
            "matching_hits": self._clients.memo.hits,
            "matching_misses": self._clients.memo.misses,
            "sessions_active": len(self._sessions),
            "sessions_ready": len(self._sessions),
        }

    def status(self) -> CoreStatus[BrokerNumber]:
        """See DeliveryProtocol."""
        neighbours = self._places.neighbours
        subscriptions, queued = self._clients.subscriptions(), self._queued()
        idle_reasons = [f"{subscriptions} subscriptions of its own clients"] * bool(subscriptions)
        if queued:
            idle_reasons.append(f"{queued} publications with which somebody is not done")
        if waiting := self._gets.waiting():
            idle_reasons.append(f"{waiting} servers that do not know what is followed here")
        return CoreStatus(
            state="recovering" if self.is_reading else "running",
            queued=queued,
            subscriptions=subscriptions,
            own_subscriptions=subscriptions,
            wanted=neighbours,
            ready=tuple(peer for peer in neighbours if peer in self._sessions),
            idle_reasons=tuple(idle_reasons),
            detail={"role": self._places.role, "undone": self._gets.undone()},
        )

    def _queued(self) -> int:
        return self._puts.pending() + (self.server.retained() if self.server else 0)

    # ------------------------------------------------------------ start

    def _on_started(self, event: Started) -> None:
        if self.server is not None:
            self.server.recover(event.recovered, event.logs[LOG])
        self.begin_after_log(event, is_read=self._is_read())

    def _on_records(self, event: RecordsRead) -> None:
        assert self.server is not None, f"{self._broker} is no server and read {event.log}"
        self.server.on_records(event)
        if self._is_read():
            self.go_on()

    def _is_read(self) -> bool:
        return self.server is None or self.server.log.is_read

    def _begin(self, event: Started) -> None:
        if self.server is not None:
            self.server.begin()
        self._clients.start(event.incarnation, event.recovered)
        self._clients.recover(event.recovered)
        self._gets.begin(event.incarnation)
        for neighbour in self._places.neighbours:
            self.emit(OpenSession(neighbour))

    # ------------------------------------------------------------ sessions

    def _on_session_established(self, event: SessionEstablished) -> None:
        peer = event.peer
        if isinstance(peer, str):
            self._clients.on_established(peer, event.session)
            return
        assert peer not in self._sessions, f"second session with {peer}"
        self._sessions[peer] = event.session
        self._deadlines.cancel((RETRY, peer))
        self._waited_ns.pop(peer, None)
        if self._proxy is not None:
            self._proxy.met(peer)

    def _on_session_lost(self, event: SessionLost) -> None:
        peer = event.peer
        if isinstance(peer, str):
            self._clients.on_lost(peer, event.session)
            return
        assert self._sessions.get(peer) == event.session, f"no session for {event}"
        del self._sessions[peer]
        if self._proxy is not None:
            self._proxy.lost(peer)
        else:
            self._ways.reaches(peer, ())
        self._retry_later(peer)

    def _retry_later(self, peer: Peer) -> None:
        assert isinstance(peer, int), f"a broker opens no session to {peer!r}"
        if peer in self._sessions:
            return
        wait_ns = backed_off_ns(self._waited_ns.get(peer, 0), self._parameters)
        self._waited_ns[peer] = wait_ns
        self._deadlines.set((RETRY, peer), self.now_ns + wait_ns)

    def _on_message(self, event: MessageReceived) -> None:
        if isinstance(event.peer, int):
            handlers, current = self._from_brokers, self._sessions.get(event.peer)
        else:
            handlers, current = self._from_clients, self._clients.session_of(event.peer)
        if current != event.session:
            self._counters["messages_ignored"] += 1
            return
        message_handler(handlers, event)(event.peer, event.message)

    # ------------------------------------------------------------ what brokers say

    def _on_servers(self, peer: Any, message: Servers) -> None:
        self._places.check_proxy(peer, message.reached)
        self._ways.reaches(peer, message.reached)

    def _pass_on(self, request: Request) -> None:
        """This broker's own clients ask for something, and it is the proxy."""
        assert self._proxy is not None, f"{self._broker} is no proxy and is asked to be"
        self._proxy.pass_on(request)

    def _on_request(self, handler: MessageHandler, peer: Any, message: Any) -> None:
        """A proxy passes on what a home asks; the answer goes back over the same one."""
        self._places.check_request(peer, message)
        self._over[message.home] = peer
        handler(peer, message)

    def _on_answer(self, peer: Any, message: Answer) -> None:
        self._places.check_answer(peer, message)
        self._from_servers[type(message)](peer, message)

    def _answer(self, home: BrokerNumber, answer: Answer) -> None:
        """Answer a home over the proxy it asked over last, or over any that is there."""
        over = home if home in self._places.proxies else self._over.get(home)
        if over not in self._sessions and home not in self._places.proxies:
            over = next((peer for peer in self._places.proxies if peer in self._sessions), None)
        if over is not None and over in self._sessions:
            self.send(over, answer)

    # ------------------------------------------------------------ what is not answered

    def _waits_for(self, server: BrokerNumber) -> int | None:
        timeout_ns = self._parameters.timeout_ns
        if self._puts.unanswered(server) or self._gets.awaits_follow(server):
            return timeout_ns
        if self._gets.awaits_get(server):
            return timeout_ns + self._parameters.get_wait_ns
        return None

    def _resend(self, server: BrokerNumber) -> None:
        self._puts.resend(server)
        self._gets.resend(server)

    # ------------------------------------------------------------ time

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for purpose, whose in self._deadlines.due(self.now_ns):
            if purpose == RETRY:
                self.emit(OpenSession(whose))
            elif purpose == UNANSWERED:
                self._ways.due(whose)
            elif purpose == WAITING:
                assert self.server is not None, f"get of {whose} waits at no server"
                self.server.due(whose)
            else:
                assert purpose == LINGER, f"{purpose!r} of {whose!r}"
                self._clients.linger_over(whose)
