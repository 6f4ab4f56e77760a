"""The access broker: the part of a broker for its own clients, as a client of all servers.

Paper: [MP22] §2. Deviates: the paper's client is one user; an access broker serves all its
clients.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, Peer
from brokerd.model.predicate import DecodeAttributes
from brokerd.protocols.interface import Commit
from brokerd.protocols.multi_proxy.clients import Clients
from brokerd.protocols.multi_proxy.fetches import Fetches
from brokerd.protocols.multi_proxy.messages import (
    Answered,
    Following,
    Located,
    Lost,
    Merged,
    Messages,
    Owner,
    Stored,
)
from brokerd.protocols.multi_proxy.ownership import make_owners, make_table
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.publishes import Publishes
from brokerd.protocols.multi_proxy.routes import Places, ServerRoutes
from brokerd.protocols.multi_proxy.state import ServerState, VolatileState
from brokerd.protocols.multi_proxy.topics import Topics
from brokerd.protocols.parts.clients.progress import WRITE_INTERVAL_NS
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import Durability, MessageHandler
from brokerd.protocols.parts.log_marks import LogMark

WRITE_MARKS: Final = "write marks"
"""Purpose of the deadline at which new marks of servers' logs are written."""


class AccessBroker:
    """The parts of an access broker, and their connections.

    Attributes:
        handlers: of servers' answers.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        places: Places,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: MultiProxyParameters,
        decode_attributes: DecodeAttributes,
        counters: dict[str, int],
    ) -> None:
        table = make_table(places, parameters.ownership)
        self._broker = broker
        self._machine = machine = disk.machine
        self._deadlines = deadlines
        servers = places.servers
        self.routes = routes = ServerRoutes(
            broker, machine, places.proxies_of(broker), servers, deadlines, parameters
        )
        self.publishes = Publishes(broker, machine, table, routes)
        self.fetches = Fetches(broker, machine, servers, table, routes, deadlines, parameters)
        parts = table, routes, self.publishes, self.fetches
        self.owners = make_owners(broker, places, parameters.ownership, disk, *parts)
        self.clients = Clients(
            broker,
            disk,
            deadlines,
            parameters,
            decode_attributes,
            counters,
            topics=Topics(parameters, decode_attributes),
            owners=self.owners,
            puts=self.publishes,
            gets=self.fetches,
        )

        self.handlers: dict[type, MessageHandler] = {
            Stored: self._on_stored,
            Following: self._on_following,
            Messages: self._on_messages,
            Lost: self._on_lost,
            Answered: self._on_answered,
            Located: self._on_located,
            Merged: self._on_merged,
        }

    def take(self, peer: BrokerNumber, answer: Any) -> None:
        """Take an answer that this broker forwards itself."""
        self.handlers[type(answer)](peer, answer)

    def state(self, role: str, server: ServerState | None) -> VolatileState:
        """Return the state in memory, for people."""
        requests = self.owners.requests
        return VolatileState(
            role=role,
            undone=self.fetches.undone(),
            unstored=self.publishes.count_pending(),
            owners=dict(self.owners.table.known),
            doubted=tuple(requests.doubted),
            sought=tuple(topic for topics in requests.sought.values() for topic in topics),
            followed={
                route.server: self.fetches.state(route.server, route.proxy) for route in self.routes
            },
            server=server,
        )

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the marks of servers' logs."""
        self.routes.witness.recover(recovered)

    def write_marks(self) -> None:
        """Write new marks of servers' logs, lazily."""
        self._machine.emit(Commit(tuple(self.routes.witness.take_changes()), None))

    # ------------------------------------------------------------ servers' answers

    def _take_mark(self, server: BrokerNumber, mark: LogMark) -> None:
        """Keep a newer mark of a server's log; write the first mark of each start at once."""
        key = WRITE_MARKS, self._broker
        if self.routes.witness.take(server, mark):
            self._deadlines.cancel(key)
            self.write_marks()
        elif self.routes.witness.has_unwritten and key not in self._deadlines:
            self._deadlines.set(key, self._machine.now_ns + WRITE_INTERVAL_NS)

    def _on_stored(self, peer: Any, message: Stored) -> None:
        for source in self.publishes.on_stored(peer, message):
            self.clients.report_stored(source)
        self._take_mark(message.server, message.mark)

    def _on_following(self, peer: Any, message: Following) -> None:
        for beginning in self.fetches.on_following(peer, message):
            self.clients.begin(beginning)
        self.clients.settle_departures()
        self._take_mark(message.server, message.mark)

    def _on_messages(self, peer: Any, message: Messages) -> None:
        """Deliver publications of a topic; drop duplicates, and publications behind a gap."""
        self.clients.own.check_run(message.run, peer)
        arrival = self.fetches.on_messages(peer, message)
        if arrival is not None:
            run, delivery = arrival
            self.clients.own.hand_out(run, delivery)
            self.fetches.complete(delivery)
            self.clients.settle_departures()

    def _on_lost(self, peer: Any, message: Lost) -> None:
        """Deliver a gap of publications that the server has released without acknowledgement."""
        delivery = self.fetches.on_lost(peer, message)
        if delivery is not None:
            self.clients.deliver_gaps(message, delivery)
            self.fetches.complete(delivery)
            self.clients.settle_departures()

    def _on_answered(self, peer: Any, message: Answered) -> None:
        """Take the end of an answer; over another proxy, repeat all requests over that one."""
        is_current = self.fetches.is_answer(peer, message)
        self._take_mark(message.server, message.mark)
        if is_current and self.routes.adopt(message.server, peer):
            self._resend(message.server)
        elif is_current:
            self.fetches.on_answered(message)

    def _on_located(self, peer: Any, message: Located) -> None:
        self.owners.on_located(peer, message)

    def _on_merged(self, peer: Any, message: Merged) -> None:
        """Take other owners of topics; without any, a server lost which topics are followed."""
        if not message.owners:
            self.fetches.restate()
        else:
            self.owners.on_merged(peer, message)

    # ------------------------------------------------------------ routes

    def check_owned(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """Check announced owners before `on_owned`.

        Raises:
            RemoteProtocolError: an owner is impossible; the fault of the peer.
        """
        self.owners.check(peer, owners)

    def on_owned(self, peer: BrokerNumber, owners: tuple[Owner, ...]) -> None:
        """Take announced owners."""
        self.owners.learn(peer, owners)

    def on_servers(self, proxy: BrokerNumber, servers: tuple[BrokerNumber, ...]) -> None:
        """Take the servers that a proxy reaches, and repeat requests over new routes."""
        for server in self.routes.reaches(proxy, servers):
            self._resend(server)
            self.fetches.prove(server)
        self.owners.on_routes(self.routes.first())

    def on_unanswered(self, server: BrokerNumber) -> None:
        """Repeat unanswered requests over another proxy if their wait is over."""
        puts_ns = self.publishes.waits_since(server)
        if self.routes.change_late(server, is_awaited=self._awaits(server), puts_ns=puts_ns):
            self._resend(server)

    def _awaits(self, server: BrokerNumber) -> bool:
        return (
            self.publishes.unanswered(server)
            or self.fetches.awaits_follow(server)
            or self.fetches.awaits_get(server)
            or self.owners.requests.awaits(server)
        )

    def _resend(self, server: BrokerNumber) -> None:
        self.owners.requests.resend(server)
        self.publishes.resend(server)
        self.fetches.resend(server)
