"""A proxy: forwards requests to their servers and answers to access brokers; remembers owners.

A proxy is stateless: arbiters and servers have the owners of topics, and access brokers repeat
requests that a crashed proxy has lost, over another proxy. Its memory of owners is volatile: after
a restart, servers announce their topics, and their arbiters have the rest.

Paper: [MP22] §3 (a topic that is not known goes to the server with the fewest), §3.1.5. Deviates:
it does not repeat requests by itself, see `routes.py`; unless proxies decide, it only proposes a
server, the topic's arbiter decides; and servers announce their topics at the beginning of a session
and after additions, not every five seconds. Access brokers request first owners from arbiters; the
proxy announces the owners that a failed arbiter has assigned. If a server has many more topics than
another, the proxy proposes to move one.
"""

from collections.abc import Container, Sequence
from typing import Any, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.multi_proxy.claims import Claims
from brokerd.protocols.multi_proxy.messages import (
    Answer,
    Answered,
    Assign,
    Assigned,
    Carry,
    Follow,
    Following,
    Get,
    Give,
    Locate,
    Located,
    Lost,
    Merged,
    Messages,
    Owned,
    Owner,
    Periodic,
    Put,
    Request,
    Servers,
    Stored,
    Transfer,
    Transferred,
)
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler


class OwnAccess(Protocol):
    """The access broker of a proxy's own clients."""

    def take(self, peer: BrokerNumber, answer: Any) -> None:
        """Take an answer of a server."""

    def on_servers(self, proxy: BrokerNumber, servers: tuple[BrokerNumber, ...]) -> None:
        """Take the reachable servers."""

    def check_owned(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """Check owners before `on_owned`."""

    def on_owned(self, peer: BrokerNumber, owners: tuple[Owner, ...]) -> None:
        """Take owners of topics."""


class Proxy:
    """The role of a broker between access brokers and servers.

    Args:
        sessions: brokers with a session.
        claims: the owners in this proxy's memory.
        access: of this broker's own clients.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        servers: Sequence[BrokerNumber],
        homes: Sequence[BrokerNumber],
        counters: dict[str, int],
        sessions: Container[BrokerNumber],
        claims: Claims,
        access: OwnAccess,
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._servers = tuple(servers)
        self._homes = tuple(homes)
        self._counters = counters
        self._sessions = sessions
        self._claims = claims
        self._access = access

    def handlers(self) -> dict[type, MessageHandler]:
        requests = dict.fromkeys((Put, Follow, Get, Locate), self._on_request)
        answers = dict.fromkeys(
            (Stored, Following, Messages, Lost, Answered, Located, Merged), self._on_answer
        )
        between: dict[type, MessageHandler] = {
            Assign: self._on_assign,
            Assigned: self._on_assigned,
            Give: self._on_give,
            Owned: self._on_owners,
            Periodic: self._on_periodic,
            Carry: self._on_given,
            Transfer: self._on_given,
            Transferred: self._on_transferred,
        }
        return {**requests, **answers, **between}

    def on_session(self, peer: BrokerNumber) -> None:
        """Announce a new server to access brokers, or all servers to a new access broker."""
        if peer in self._servers:
            self._announce_all()
        else:
            self._machine.send(peer, self._reachable_servers())
        if known := self._claims.owners():
            self._machine.send(peer, Owned(known))

    def on_session_lost(self, peer: BrokerNumber) -> None:
        """Record a closed session."""
        if peer in self._servers:
            self._claims.lose(peer)
            self._announce_all()
            self._announce_owners(self._claims.list_assigned(peer))

    def pass_on(self, request: Request) -> None:
        """Forward a request; without a session the access broker repeats the request later."""
        if type(request) is Locate:
            located = self._claims.locate(request, request.home)
            if located is not None:
                self._answer(self._broker, located)
                return
            request = self._claims.claim(request, request.home)
        self._send(request.server, request)

    def _send(self, peer: BrokerNumber, message: Any) -> None:
        if peer in self._sessions:
            self._machine.send(peer, message)
        else:
            self._counters["messages_ignored"] += 1

    def _on_request(self, peer: Peer, message: Request) -> None:
        self._check_server(message.server, peer)
        if message.home != peer:
            raise RemoteProtocolError(peer, f"asks for broker {message.home}")
        if type(message) is Put:
            self._counters["publications_forwarded"] += len(message.run)
        self.pass_on(message)

    def _on_answer(self, peer: Any, message: Answer) -> None:
        self._check_server(peer)
        if type(message) is Messages:
            self._counters["publications_forwarded"] += len(message.run)
        if type(message) is Located:
            self._claims.check(peer, message.owners)
            self._access.check_owned(peer, message.owners)
        self._answer(peer, message)
        if type(message) is Located:
            self._learn(peer, message.owners)

    def _answer(self, peer: BrokerNumber, message: Answer) -> None:
        if message.home == self._broker:
            self._access.take(peer, message)
        else:
            self._send(message.home, message)

    def _on_owners(self, peer: Any, message: Owned) -> None:
        self._check_server(peer)
        self._claims.on_announcement(peer)
        self._learn(peer, message.owners)

    def _learn(self, peer: BrokerNumber, owners: Sequence[Owner]) -> None:
        """Record announced owners, and announce unavailable topics to access brokers."""
        self._access.check_owned(peer, owners)
        new = self._claims.learn(peer, owners)
        self._merge()
        move = self._claims.move()
        if move is not None:
            self._send(move.server, move)
        if new:
            self._announce_owners(self._claims.list_urgent(new))
            self._access.on_owned(self._broker, new)

    def _announce_owners(self, owners: tuple[Owner, ...]) -> None:
        for home in self._homes if owners else ():
            if home in self._sessions:
                self._machine.send(home, Owned(owners))

    def _merge(self) -> None:
        for merge in self._claims.merges:
            self._send(merge.server, merge)
        self._claims.merges.clear()

    def _on_periodic(self, peer: Any, message: Periodic) -> None:
        """Forward a server's announcement to the other servers, and merge double owners."""
        self._check_server(peer)
        if message.server != peer:
            raise RemoteProtocolError(peer, f"answers in place of {message.server}")
        self._claims.learn(peer, [Owner(topic, message.server) for topic in message.topics])
        self._merge()
        for server in self._servers:
            if server != peer:
                self._send(server, message)

    def _on_given(self, peer: Any, message: Carry | Transfer) -> None:
        self._check_server(peer)
        self._check_server(message.server, peer)
        self._send(message.server, message)

    def _on_transferred(self, peer: Any, message: Transferred) -> None:
        self._check_server(peer)
        self._check_server(message.giver, peer)
        self._send(message.giver, message)

    def _on_assign(self, peer: Any, message: Assign) -> None:
        self._check_server(peer)
        self._check_server(message.server, peer)
        self._send(message.server, message)

    def _on_give(self, peer: Any, message: Give) -> None:
        self._check_server(peer)
        for server in (message.server, message.owner, message.arbiter):
            self._check_server(server, peer)
        self._send(message.server, message)

    def _on_assigned(self, peer: Any, message: Assigned) -> None:
        self._check_server(peer)
        self._check_server(message.arbiter, peer)
        self._send(message.arbiter, message)

    def _check_server(self, broker: BrokerNumber, peer: Peer | None = None) -> None:
        if broker not in self._servers:
            raise RemoteProtocolError(broker if peer is None else peer, f"{broker} is no server")

    def _reachable_servers(self) -> Servers:
        return Servers(tuple(server for server in self._servers if server in self._sessions))

    def _announce_all(self) -> None:
        reached = self._reachable_servers()
        for home in self._homes:
            if home in self._sessions:
                self._machine.send(home, reached)
        self._access.on_servers(self._broker, reached.reached)
