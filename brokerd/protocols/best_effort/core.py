"""The best-effort baseline: forwards matching publications and stores none.

Subscriptions are flooded and confirmed, so that no publication is missed without a failure. A
publication is forwarded and forgotten. A publication that a failing link or broker absorbs is lost,
and a publisher that resends after an interruption causes duplicates.

Paper: [GD02] §4.1 (the system Gryphon is compared with).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from brokerd.model.client_messages import Connect
from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.model.predicate import DecodeAttributes
from brokerd.overlay.tree import primary_tree
from brokerd.protocols.best_effort.parameters import BestEffortParameters
from brokerd.protocols.best_effort.routes import Route, Routes
from brokerd.protocols.definition import CoreContext
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
from brokerd.protocols.parts.clients.progress import WRITE
from brokerd.protocols.parts.clients.table import LINGER, Admission, ClientTable, HostedClient
from brokerd.protocols.parts.clients.unkept import UnkeptClients
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, EventMachine, message_handler
from brokerd.protocols.parts.neighbours import RETRY, NeighbourSessions


class BestEffort(EventMachine):
    """A broker that forwards matching publications to neighbours and clients, once.

    Implements `DeliveryProtocol`.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: Sequence[BrokerNumber],
        parameters: BestEffortParameters,
        decode_attributes: DecodeAttributes,
    ) -> None:
        super().__init__()
        self._ignored = 0
        self._disk = Durability(self)
        self._deadlines: DeadlineQueue[tuple[str, Peer]] = DeadlineQueue()
        self._neighbours = NeighbourSessions(neighbours, parameters, self._deadlines)
        self._table: ClientTable[HostedClient[Route]] = ClientTable(
            broker, self, self._deadlines, parameters, HostedClient, writes_published=True
        )
        current, here = self._neighbours.current, self._table.here
        self._routes = Routes(
            self, broker, self._neighbours.peers, current, here, decode_attributes
        )
        self._clients = UnkeptClients(broker, self, self._table, self._routes)
        self._from_brokers = self._routes.handlers()
        self._from_clients = {Connect: self._on_connect, **self._clients.handlers()}
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

    # ------------------------------------------------------------ for the driver

    def next_deadline(self) -> Instant | None:
        return self._deadlines.earliest()

    def clients_behind(self) -> Collection[ClientId]:
        """See DeliveryProtocol: no delivery waits for a client's acknowledgement here."""
        return ()

    def statistics(self) -> Mapping[str, int]:
        return {
            **self._routes.statistics(),
            "messages_ignored": self._ignored,
            "queue_publications": 0,
            "queue_bytes": 0,
            **self._neighbours.statistics(),
        }

    def aftermath(self) -> Sequence[str]:
        """See DeliveryProtocol. Failures leave nothing behind: lost publications stay lost."""
        return ()

    def status(self) -> CoreStatus[BrokerNumber]:
        subscriptions = self._routes.statistics()["subscriptions"]
        return self._neighbours.status(subscriptions, self._table.count_subscriptions())

    def detail(self) -> Mapping[str, Any]:
        return {}

    # ------------------------------------------------------------ sessions

    def _on_started(self, event: Started) -> None:
        self._table.start(event.incarnation, event.recovered, event.lineage)
        self.effects.extend(self._neighbours.start())

    def _on_session_established(self, event: SessionEstablished) -> None:
        if isinstance(event.peer, str):
            self._table.open_session(event.peer, event.session)
        elif (refusal := self._neighbours.on_established(event.peer, event)) is not None:
            self.emit(refusal)
        else:
            self._routes.offer_all(event.peer)

    def _on_session_lost(self, event: SessionLost) -> None:
        if isinstance(event.peer, str):
            self._clients.on_lost(event.peer, event.session)
        elif self._neighbours.on_lost(event.peer, event, self.now_ns):
            self._neighbours.retry_later(event.peer, self.now_ns)

    def _on_open_failed(self, event: OpenFailed) -> None:
        self._neighbours.on_open_failed(event.peer, self.now_ns)

    def _on_message(self, event: MessageReceived) -> None:
        if isinstance(event.peer, int):
            handlers, current = self._from_brokers, self._neighbours.current.get(event.peer)
        else:
            handlers, current = self._from_clients, self._table.session_of(event.peer)
        if current != event.session:
            self._ignored += 1
            return
        message_handler(handlers, event)(event.peer, event.message)

    def _on_persisted(self, event: Persisted) -> None:
        self._disk.on_persisted(event.token)

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for purpose, peer in self._deadlines.due(self.now_ns):
            if purpose == WRITE:
                self._table.write_progress()
            elif isinstance(peer, int):
                assert purpose == RETRY, f"{purpose!r} of broker {peer}"
                self.emit(OpenSession(peer))
            else:
                assert purpose == LINGER, f"{purpose!r} of client {peer!r}"
                self._clients.linger_over(peer)

    # ------------------------------------------------------------ clients

    def _on_connect(self, name: ClientId, message: Connect) -> None:
        admission = self._clients.on_connect(name, message)
        if admission is not None:
            self._disk.commit(admission.changes, partial(self._admit, admission))

    def _admit(self, admission: Admission[HostedClient[Route]]) -> None:
        if admission.is_current():
            self._table.enter(admission.client)
            self._table.welcome(admission.client)


def make_core(context: CoreContext) -> BestEffort:
    """Return a broker's core."""
    return BestEffort(
        context.broker,
        primary_tree(context.topology).neighbours(context.broker),
        context.parameters,
        context.decode_attributes,
    )
