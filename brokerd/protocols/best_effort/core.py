"""The best-effort baseline: forward what matches, remember nothing.

Subscriptions are flooded and confirmed, so that nothing is missed while nothing fails. A
publication is sent on and forgotten: what a link or broker swallows is gone, and a publisher
that resends after an interruption is heard twice.

Paper: [GD02] §4.1 (the system Gryphon is compared with).
"""

from collections.abc import Collection, Mapping, Sequence

from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.model.predicate import DecodeAttributes
from brokerd.protocols.best_effort.clients import Clients
from brokerd.protocols.best_effort.parameters import BestEffortParameters
from brokerd.protocols.best_effort.routes import Routes
from brokerd.protocols.interface import (
    CoreStatus,
    DeadlineReached,
    Instant,
    MessageReceived,
    OpenFailed,
    OpenSession,
    Persisted,
    SessionEstablished,
    SessionLost,
    Started,
)
from brokerd.protocols.parts.backoff import backed_off_ns
from brokerd.protocols.parts.clients.service import LINGER
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.event_machine import EventMachine, message_handler

RETRY = "retry"


class BestEffort(EventMachine):
    """A broker that forwards matching publications to neighbours and clients, once."""

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: tuple[BrokerNumber, ...],
        parameters: BestEffortParameters,
        decode_attributes: DecodeAttributes,
    ) -> None:
        super().__init__()
        self._neighbours = neighbours
        self._parameters = parameters
        self._sessions: dict[BrokerNumber, int] = {}
        self._waited_ns: dict[BrokerNumber, int] = {}
        self._ignored = 0
        self._deadlines: DeadlineQueue[tuple[str, Peer]] = DeadlineQueue()
        self._disk = Durability(self)
        self._routes = Routes(self, broker, neighbours, self._reaches, decode_attributes)
        self._clients = Clients(broker, self._disk, self._deadlines, parameters, self._routes)
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
        self._from_brokers = self._routes.handlers()
        self._from_clients = self._clients.handlers()

    def next_deadline(self) -> Instant | None:
        """See DeliveryProtocol."""
        return self._deadlines.earliest()

    def clients_behind(self) -> Collection[ClientId]:
        """See DeliveryProtocol: nobody waits for a client's acknowledgement here."""
        return ()

    def statistics(self) -> Mapping[str, int]:
        """See DeliveryProtocol."""
        return {
            **self._routes.statistics(),
            "messages_ignored": self._ignored,
            "queue_publications": 0,
            "queue_bytes": 0,
            "sessions_active": len(self._sessions),
            "sessions_ready": len(self._sessions),
        }

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol. What a failure took is gone, and nothing waits for it."""
        return ()

    def status(self) -> CoreStatus[BrokerNumber]:
        """See DeliveryProtocol."""
        own = self._clients.subscriptions()
        return CoreStatus(
            state="running",
            subscriptions=self._routes.statistics()["subscriptions"],
            own_subscriptions=own,
            wanted=tuple(self._neighbours),
            ready=tuple(peer for peer in self._neighbours if peer in self._sessions),
            idle_reasons=(f"{own} subscriptions of its own clients",) if own else (),
        )

    def _on_started(self, event: Started) -> None:
        self._clients.start(event.incarnation, event.recovered)
        for neighbour in self._neighbours:
            self.emit(OpenSession(neighbour))

    def _on_session_established(self, event: SessionEstablished) -> None:
        peer = event.peer
        if isinstance(peer, str):
            self._clients.on_established(peer, event.session)
            return
        assert peer not in self._sessions, f"second session with {peer}"
        self._sessions[peer] = event.session
        self._deadlines.cancel((RETRY, peer))
        self._waited_ns.pop(peer, None)
        self._routes.offer_all(peer)

    def _on_session_lost(self, event: SessionLost) -> None:
        if isinstance(event.peer, str):
            self._clients.on_lost(event.peer, event.session)
            return
        assert self._sessions.get(event.peer) == event.session, f"no session for {event}"
        del self._sessions[event.peer]
        self._retry_later(event.peer)

    def _on_open_failed(self, event: OpenFailed) -> None:
        assert isinstance(event.peer, int), f"a broker opens no session to {event.peer!r}"
        if event.peer not in self._sessions:
            self._retry_later(event.peer)

    def _retry_later(self, peer: BrokerNumber) -> None:
        wait_ns = backed_off_ns(self._waited_ns.get(peer, 0), self._parameters)
        self._waited_ns[peer] = wait_ns
        self._deadlines.set((RETRY, peer), self.now_ns + wait_ns)

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for purpose, peer in self._deadlines.due(self.now_ns):
            if isinstance(peer, int):
                assert purpose == RETRY, f"{purpose!r} of broker {peer}"
                self.emit(OpenSession(peer))
            else:
                assert purpose == LINGER, f"{purpose!r} of client {peer!r}"
                self._clients.linger_over(peer)

    def _on_persisted(self, event: Persisted) -> None:
        self._disk.on_persisted(event.token)

    def _on_message(self, event: MessageReceived) -> None:
        if isinstance(event.peer, int):
            handlers, current = self._from_brokers, self._sessions.get(event.peer)
        else:
            handlers, current = self._from_clients, self._clients.session_of(event.peer)
        if current != event.session:
            self._ignored += 1
            return
        message_handler(handlers, event)(event.peer, event.message)

    def _reaches(self, peer: Peer) -> bool:
        return peer in self._sessions if isinstance(peer, int) else self._clients.is_connected(peer)
