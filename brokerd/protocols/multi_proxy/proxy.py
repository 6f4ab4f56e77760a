"""A proxy: passes requests on to the servers that they are for, and answers to homes.

It keeps nothing: which server owns a topic everybody knows, and what it loses when it dies its
homes send again over another one.

Paper: [MP22] §3. Deviates: it does not try again by itself, see `ways.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.multi_proxy.messages import (
    Answer,
    Answered,
    Follow,
    Following,
    Get,
    Messages,
    Put,
    Request,
    Servers,
    Stored,
)
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler


class Proxy:
    """What a broker does between homes and servers.

    Args:
        has_session: whether it has one with a broker.
        take: takes an answer for this broker's own clients.
        on_servers: told which servers are reached, as this broker's own clients see it.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        servers: Sequence[BrokerNumber],
        homes: Sequence[BrokerNumber],
        counters: dict[str, int],
        *,
        has_session: Callable[[BrokerNumber], bool],
        take: Callable[[BrokerNumber, Any], None],
        on_servers: Callable[[BrokerNumber, Sequence[BrokerNumber]], None],
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._servers = tuple(servers)
        self._homes = tuple(homes)
        self._counters = counters
        self._has_session = has_session
        self._take = take
        self._on_servers = on_servers

    def handlers(self) -> dict[type, MessageHandler]:
        """Who takes which message."""
        requests = dict.fromkeys((Put, Follow, Get), self._on_request)
        answers = dict.fromkeys((Stored, Following, Messages, Answered), self._on_answer)
        return {**requests, **answers}

    def met(self, peer: BrokerNumber) -> None:
        """A session is up: homes hear of a server, a home of the servers."""
        if peer in self._servers:
            self._tell_all()
        else:
            self._machine.send(peer, self._reached())

    def lost(self, peer: BrokerNumber) -> None:
        """A session is over."""
        if peer in self._servers:
            self._tell_all()

    def pass_on(self, request: Request) -> None:
        """Pass a request on; what cannot be is sent again when its server is reached."""
        if self._has_session(request.server):
            self._machine.send(request.server, request)
        else:
            self._counters["messages_ignored"] += 1

    def _on_request(self, peer: Peer, message: Request) -> None:
        if message.server not in self._servers:
            raise RemoteProtocolError(peer, f"broker {message.server} is no server")
        if message.home != peer:
            raise RemoteProtocolError(peer, f"asks for broker {message.home}")
        if type(message) is Put:
            self._counters["publications_forwarded"] += len(message.run)
        self.pass_on(message)

    def _on_answer(self, peer: Any, message: Answer) -> None:
        if peer not in self._servers:
            raise RemoteProtocolError(peer, "it answers, and is no server")
        if type(message) is Messages:
            self._counters["publications_forwarded"] += len(message.run)
        if message.home == self._broker:
            self._take(peer, message)
        elif self._has_session(message.home):
            self._machine.send(message.home, message)
        else:
            self._counters["messages_ignored"] += 1

    def _reached(self) -> Servers:
        return Servers(tuple(server for server in self._servers if self._has_session(server)))

    def _tell_all(self) -> None:
        reached = self._reached()
        for home in self._homes:
            if self._has_session(home):
                self._machine.send(home, reached)
        self._on_servers(self._broker, reached.reached)
