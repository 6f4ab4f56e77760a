"""A broker of the ring: stores every publication, then forwards it both ways and to clients.

Subscriptions stay at their brokers. An announced publication is on the broker's disk, so two
neighbours only compare positions per source at the start of a session.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber, ClientId, Peer, SourceId
from brokerd.model.predicate import DecodeAttributes
from brokerd.model.publication import PublicationRun
from brokerd.protocols.definition import CoreContext
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
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import (
    Durability,
    LogFirstMachine,
    MessageHandler,
    message_handler,
)
from brokerd.protocols.parts.neighbours import next_wait_ns
from brokerd.protocols.ring_flood.clients import Clients
from brokerd.protocols.ring_flood.log import LOG, RELEASED, Log, Positions, Stored
from brokerd.protocols.ring_flood.messages import Flooded, StoredThrough
from brokerd.protocols.ring_flood.parameters import RingFloodParameters

RETRY = "retry"


class RingFlood(LogFirstMachine):
    """See DeliveryProtocol.

    A neighbour is served after the report of its positions; `_sent` has the served neighbours.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        neighbours: tuple[BrokerNumber, ...],
        parameters: RingFloodParameters,
        decode_attributes: DecodeAttributes,
    ) -> None:
        super().__init__()
        self._neighbours = neighbours
        self._parameters = parameters
        self._deadlines: DeadlineQueue[tuple[str, Peer]] = DeadlineQueue()
        self._disk = Durability(self)
        self._log = Log(self._disk)
        names = ("publications_received", "publications_forwarded", "publications_delivered")
        self._counters = dict.fromkeys((*names, "duplicates_received", "messages_ignored"), 0)
        self._clients = Clients(
            broker, self._disk, self._deadlines, parameters, decode_attributes, self._counters,
            publish=self._take, on_acknowledged=self._settle,
        )  # fmt: skip
        self._sessions: dict[BrokerNumber, int] = {}
        self._waited_ns: dict[BrokerNumber, int] = {}
        self._held: dict[BrokerNumber, Positions] = {peer: {} for peer in neighbours}
        self._sent: dict[BrokerNumber, Positions] = {}
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
        self._from_brokers: dict[type, MessageHandler] = {
            Flooded: self._on_flooded,
            StoredThrough: self._on_stored_through,
        }
        self._from_clients = self._clients.handlers()

    def next_deadline(self) -> Instant | None:
        """See DeliveryProtocol."""
        return self._deadlines.earliest()

    def clients_behind(self) -> Collection[ClientId]:
        """See DeliveryProtocol."""
        return self._clients.own.windows.clients_behind()

    def aftermath(self) -> Sequence[str]:
        """Return an empty sequence: the queue is the log, which empties without help."""
        return ()

    def statistics(self) -> Mapping[str, int]:
        """See DeliveryProtocol."""
        stored = [entry.run for entry in self._log.stored()]
        return {
            **self._counters,
            "queue_publications": sum(map(len, stored)),
            "queue_bytes": sum(run.payload_bytes() for run in stored),
            "subscriptions": self._clients.table.count_subscriptions(),
            "matching_hits": self._clients.own.memo.hits,
            "matching_misses": self._clients.own.memo.misses,
            "sessions_active": len(self._sessions),
            "sessions_ready": len(self._sent),
        }

    def status(self) -> CoreStatus[BrokerNumber]:
        """See DeliveryProtocol."""
        subscriptions = self._clients.table.count_subscriptions()
        queued = sum(len(entry.run) for entry in self._log.stored())
        return CoreStatus(
            state="running",
            queued=queued,
            subscriptions=subscriptions,
            own_subscriptions=subscriptions,
            wanted=tuple(self._neighbours),
            ready=tuple(peer for peer in self._neighbours if peer in self._sent),
        )

    def detail(self) -> Mapping[str, Any]:
        """See DeliveryProtocol."""
        return {}

    # ------------------------------------------------------------ sessions

    def _on_started(self, event: Started) -> None:
        self._log.recover(event.recovered.get(RELEASED, {}), event.logs[LOG])
        self.begin_after_log(event, is_read=self._log.is_read)

    def _on_records(self, event: RecordsRead) -> None:
        self._log.on_records(event)
        if self._log.is_read:
            self.resume()

    def _begin(self, event: Started) -> None:
        self._clients.table.start(event.incarnation, event.recovered)
        self._clients.recover(event.recovered)
        for entry in self._log.stored():
            self._clients.own.hand_out(entry.run, entry)
        for peer in self._neighbours:
            self.emit(OpenSession(peer))

    def _on_session_established(self, event: SessionEstablished) -> None:
        if isinstance(event.peer, str):
            self._clients.table.open_session(event.peer, event.session)
            return
        self._sessions[event.peer] = event.session
        self._waited_ns.pop(event.peer, None)
        self._deadlines.cancel((RETRY, event.peer))
        self.send(event.peer, StoredThrough(tuple(self._log.durable.items())))

    def _on_session_lost(self, event: SessionLost) -> None:
        if isinstance(event.peer, str):
            self._clients.on_lost(event.peer, event.session)
            return
        del self._sessions[event.peer]
        self._sent.pop(event.peer, None)
        self._retry_later(event.peer)

    def _retry_later(self, peer: Peer) -> None:
        assert isinstance(peer, int), f"a broker opens no session to {peer!r}"
        if peer not in self._sessions:
            wait_ns = next_wait_ns(self._waited_ns.get(peer, 0), self._parameters)
            self._waited_ns[peer] = wait_ns
            self._deadlines.set((RETRY, peer), self.now_ns + wait_ns)

    def _on_deadline(self, _event: DeadlineReached) -> None:
        for _, peer in self._deadlines.due(self.now_ns):
            if isinstance(peer, int):
                self.emit(OpenSession(peer))
            else:
                self._clients.linger_over(peer)

    def _on_message(self, event: MessageReceived) -> None:
        if isinstance(event.peer, str):
            session, handlers = self._clients.table.session_of(event.peer), self._from_clients
        else:
            session, handlers = self._sessions.get(event.peer, 0), self._from_brokers
        if session != event.session:
            self._counters["messages_ignored"] += 1
            return
        message_handler(handlers, event)(event.peer, event.message)

    # ------------------------------------------------------------ publications

    def _take(self, run: PublicationRun, peer: Peer) -> None:
        """Store the new publications of a run from any peer; first refuse malformed attributes."""
        self._clients.own.check_run(run, peer)
        rest = self._log.unknown(run, peer)
        self._counters["publications_received"] += len(run)
        self._counters["duplicates_received"] += len(run) - (len(rest) if rest else 0)
        if rest is not None:
            self._log.append(rest, self._on_stored)

    def _on_stored(self, entry: Stored) -> None:
        """Announce publications that have reached the disk."""
        source = entry.run.source
        for peer in self._sessions:
            self.send(peer, StoredThrough(((source, entry.run.last),)))
            self._flood(peer, source)
        self._clients.own.hand_out(entry.run, entry)
        self._settle(source)

    def _flood(self, peer: BrokerNumber, source: SourceId) -> None:
        """Send a neighbour the missing publications of a source that are on disk."""
        if peer not in self._sent:
            return
        had = max(self._sent[peer].get(source, 0), self._held[peer].get(source, 0))
        for run in self._log.after(source, had):
            self._counters["publications_forwarded"] += len(run)
            self.send(peer, Flooded(run))
            self._sent[peer][source] = run.last

    def _on_flooded(self, peer: BrokerNumber, message: Flooded) -> None:
        self._take(message.run, peer)

    def _on_stored_through(self, peer: BrokerNumber, message: StoredThrough) -> None:
        held = self._held[peer]
        for source, last in message.through:
            held[source] = max(last, held.get(source, 0))
        if peer not in self._sent:  # it says first how far it has come
            self._sent[peer] = {}
            for source in self._log.sources():
                self._flood(peer, source)
        for source, _ in message.through:
            self._settle(source)

    def _settle(self, source: SourceId) -> None:
        """Acknowledge to the publisher, and release publications that no peer needs."""
        held = [self._held[peer].get(source, 0) for peer in self._neighbours]
        copies = sorted((self._log.durable.get(source, 0), *held), reverse=True)
        self._clients.tell_stored(source, copies[min(self._parameters.copies, len(copies)) - 1])
        self._log.let_go(source, min(held), self._settle)


def make_core(context: CoreContext) -> RingFlood:
    """Return a broker's core."""
    links = context.topology.overlay("hierarchy").links
    neighbours = [a if b == context.broker else b for a, b in links if context.broker in (a, b)]
    return RingFlood(
        context.broker, tuple(neighbours), context.parameters, context.decode_attributes
    )
