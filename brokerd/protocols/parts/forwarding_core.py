"""A core with neighbours and clients: sessions and retries.

A protocol derives from `ForwardingCore`, and defines the handling of new and lost neighbours and
of its messages. A protocol that stores state of clients also provides their service.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.protocols.interface import (
    CloseSession,
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
from brokerd.protocols.parts.backoff import RetryParameters, next_wait_ns
from brokerd.protocols.parts.clients.service import LINGER, ClientParameters, ClientService
from brokerd.protocols.parts.clients.unkept import Forwarding, UnkeptClients
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import (
    Durability,
    EventMachine,
    MessageHandler,
    message_handler,
)

RETRY: Final = "retry"
"""Purpose of the deadline at which a neighbour is dialled again."""

NO_NEIGHBOUR: Final = "is no neighbour"
"""The reason in a CloseSession."""


class ForwardingParameters(ClientParameters, RetryParameters, Protocol):
    """A protocol's parameters of clients and of retries."""


class ForwardingCore(EventMachine):
    """A broker with neighbours and clients; without stored state of clients by default."""

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: Sequence[BrokerNumber],
        parameters: ForwardingParameters,
    ) -> None:
        super().__init__()
        self._broker = broker
        self._neighbours = tuple(neighbours)
        self._parameters = parameters
        self._sessions: dict[BrokerNumber, int] = {}
        self._closing: dict[BrokerNumber, int] = {}
        self._incarnations: dict[BrokerNumber, int] = {}
        self._waited_ns: dict[BrokerNumber, int] = {}
        self._ignored = 0
        self._deadlines: DeadlineQueue[tuple[str, Peer]] = DeadlineQueue()
        self._disk = Durability(self)
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

    def begin(self, routes: Forwarding[Any], handlers: dict[type, MessageHandler]) -> None:
        """Serve clients with the subscriptions in `routes`, and handle neighbours' messages."""
        clients: UnkeptClients[Any] = UnkeptClients(
            self._broker, self._disk, self._deadlines, self._parameters, routes
        )
        self.serve(clients, handlers)

    def serve(self, clients: ClientService[Any, Any], handlers: dict[type, MessageHandler]) -> None:
        """Set the service of clients, and the handlers of neighbours' messages."""
        self._clients = clients
        self._from_clients = clients.handlers()
        self._from_brokers = handlers

    def change_neighbours(self, neighbours: Sequence[BrokerNumber]) -> None:
        """Replace the neighbours: dial new neighbours, and close sessions with former neighbours.

        `neighbour_went` is not called for former neighbours.
        """
        before, self._neighbours = self._neighbours, tuple(neighbours)
        for peer in before:
            if peer not in self._neighbours:
                self._deadlines.cancel((RETRY, peer))
                self._waited_ns.pop(peer, None)
                session = self._sessions.pop(peer, None)
                if session is not None:
                    self._closing[peer] = session
                self.emit(CloseSession(peer, NO_NEIGHBOUR))
        for peer in self._neighbours:
            if peer not in before:
                self.emit(OpenSession(peer))

    def renew_sessions(self, why: str) -> None:
        """Close and redial all sessions with neighbours; call `neighbour_went` for every one."""
        ended, self._sessions = self._sessions, {}
        for peer, session in ended.items():
            self._closing[peer] = session
            self.emit(CloseSession(peer, why))
        for peer in ended:
            self.neighbour_went(peer)

    # ------------------------------------------------------------ overrides of a protocol

    @abstractmethod
    def count_routing(self) -> Mapping[str, int]:
        """Return the protocol's statistics, with the number of `subscriptions`."""

    def start_routing(self, incarnation: int) -> None:
        """Start the protocol's routing in this incarnation."""

    @abstractmethod
    def neighbour_came(self, peer: BrokerNumber) -> None:
        """Handle a new session with a neighbour."""

    def neighbour_went(self, peer: BrokerNumber) -> None:
        """Handle the end of a neighbour's session."""

    def deadline_reached(self, purpose: str, peer: BrokerNumber) -> None:
        """Handle a deadline that the protocol has set for a neighbour."""
        raise AssertionError(f"{purpose!r} of broker {peer}")

    # ------------------------------------------------------------ for the driver

    def next_deadline(self) -> Instant | None:
        """See DeliveryProtocol."""
        return self._deadlines.earliest()

    def clients_behind(self) -> Collection[ClientId]:
        """See DeliveryProtocol: no delivery waits for a client's acknowledgement here."""
        return ()

    def statistics(self) -> Mapping[str, int]:
        """See DeliveryProtocol."""
        return {
            **self.count_routing(),
            "messages_ignored": self._ignored,
            "queue_publications": 0,
            "queue_bytes": 0,
            "sessions_active": len(self._sessions),
            "sessions_ready": len(self._sessions),
        }

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol. Failures leave nothing behind: lost publications stay lost."""
        return ()

    def status(self) -> CoreStatus[BrokerNumber]:
        """See DeliveryProtocol."""
        own = self._clients.subscriptions()
        return CoreStatus(
            state="running",
            subscriptions=self.count_routing()["subscriptions"],
            own_subscriptions=own,
            wanted=self._neighbours,
            ready=tuple(peer for peer in self._neighbours if peer in self._sessions),
            idle_reasons=(f"{own} subscriptions of its own clients",) if own else (),
        )

    def reaches(self, peer: Peer) -> bool:
        """Return whether a neighbour has a session, or a client is connected."""
        return peer in self._sessions if isinstance(peer, int) else self._clients.is_connected(peer)

    def incarnation_of(self, peer: BrokerNumber) -> int:
        """Return the incarnation of a neighbour at its last session."""
        return self._incarnations[peer]

    # ------------------------------------------------------------ events

    def _on_started(self, event: Started) -> None:
        self._clients.start(event.incarnation, event.recovered, event.lineage)
        self.start_routing(event.incarnation)
        for neighbour in self._neighbours:
            self.emit(OpenSession(neighbour))

    def _on_session_established(self, event: SessionEstablished) -> None:
        peer = event.peer
        if isinstance(peer, str):
            self._clients.on_established(peer, event.session)
            return
        if peer not in self._neighbours:
            self._closing[peer] = event.session
            self.emit(CloseSession(peer, NO_NEIGHBOUR))
            return
        assert peer not in self._sessions, f"second session with {peer}"
        self._sessions[peer] = event.session
        self._incarnations[peer] = event.incarnation
        self._deadlines.cancel((RETRY, peer))
        self._waited_ns.pop(peer, None)
        self.neighbour_came(peer)

    def _on_session_lost(self, event: SessionLost) -> None:
        if isinstance(event.peer, str):
            self._clients.on_lost(event.peer, event.session)
            return
        if self._closing.get(event.peer) == event.session:
            del self._closing[event.peer]
            if event.peer in self._neighbours:
                self._retry_later(event.peer)
            return
        assert self._sessions.get(event.peer) == event.session, f"no session for {event}"
        del self._sessions[event.peer]
        self.neighbour_went(event.peer)
        self._retry_later(event.peer)

    def _on_open_failed(self, event: OpenFailed) -> None:
        assert isinstance(event.peer, int), f"a broker opens no session to {event.peer!r}"
        if event.peer in self._neighbours and event.peer not in self._sessions:
            self._retry_later(event.peer)

    def _retry_later(self, peer: BrokerNumber) -> None:
        wait_ns = next_wait_ns(self._waited_ns.get(peer, 0), self._parameters)
        self._waited_ns[peer] = wait_ns
        self._deadlines.set((RETRY, peer), self.now_ns + wait_ns)

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for purpose, peer in self._deadlines.due(self.now_ns):
            if isinstance(peer, str):
                assert purpose == LINGER, f"{purpose!r} of client {peer!r}"
                self._clients.linger_over(peer)
            elif purpose == RETRY:
                self.emit(OpenSession(peer))
            else:
                self.deadline_reached(purpose, peer)

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
