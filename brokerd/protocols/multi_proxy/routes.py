"""The roles of brokers, sessions, and the routes of requests and answers over proxies.

An access broker sends a request to a server over one proxy, and tries the next proxy after a
timeout. A server answers a Get over the proxy of that Get, and other requests over the proxy of the
last request.

Paper: [MP22] §1, §3 (clients, proxies, servers; a client tries the proxies in order; no answer in
time: again, three times). Deviates: access brokers begin with different proxies, which shares the
load; retries never end, since their requests are not complete; only the access broker retries,
because a retrying proxy multiplies the load of an overloaded server. Timeouts are per kind of
request: an access broker with prompt answers to gets would otherwise never repeat a lost publish
request.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.overlay.bipartite import Bipartite
from brokerd.overlay.topology import Topology
from brokerd.protocols.interface import Instant, OpenSession, SessionEstablished, SessionLost
from brokerd.protocols.multi_proxy.messages import Answer, Follow, Get, Put, Request
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.state import ServerRoute
from brokerd.protocols.multi_proxy.topics import owners
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.protocols.parts.log_marks import NO_MARK, LogWitness
from brokerd.protocols.parts.neighbours import dials_at_once, next_wait_ns

KIND: Final = "bipartite"


class Places:
    """Proxies, servers and access brokers.

    Attributes:
        proxies, servers: all of them, in the order of the topology.
        neighbours: the brokers that this broker requires sessions with.
        arbiters: per topic the server that follows from a hash: its arbiter, or its owner.
        servers_by_name: number and name of each server.
        edges: brokers that are access brokers only.
        homes: all brokers, which are access brokers of their clients.
        role: the role of this broker, for display.
    """

    def __init__(self, broker: BrokerNumber, topology: Topology, topics: int) -> None:
        overlay = topology.overlay(KIND)
        assert isinstance(overlay, Bipartite), f"{topology.name} is of kind {topology.kind}"
        self._broker = broker
        self._brokers = len(topology.brokers)
        self.homes = range(self._brokers)
        self.proxies = overlay.proxies
        self.servers = overlay.servers
        self.edges = overlay.edges
        self.role = overlay.role(broker)
        across = [a if b == broker else b for a, b in overlay.links if broker in (a, b)]
        self.neighbours = tuple(sorted(across))
        self.servers_by_name = [(server, topology.brokers[server]) for server in self.servers]
        self.arbiters = owners(topics, self.servers_by_name)

    def arbiter(self, topic: int) -> BrokerNumber | None:
        """Return the server that follows from a topic's hash; None without such a topic."""
        return self.arbiters[topic] if topic < len(self.arbiters) else None

    def proxies_of(self, home: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return the proxies in an access broker's order; a proxy uses itself only.

        Access brokers begin with different proxies.
        """
        if home in self.proxies:
            return (home,)
        first = home % len(self.proxies)
        return (*self.proxies[first:], *self.proxies[:first])

    def check_proxy(self, peer: Peer, reached: Sequence[BrokerNumber]) -> None:
        """Check that a report of reachable servers is from a proxy and of servers.

        Raises:
            RemoteProtocolError: the report is not; the fault of the peer.
        """
        if peer not in self.proxies:
            raise RemoteProtocolError(peer, "it reaches servers, and is no proxy")
        if not set(self.servers).issuperset(reached):
            raise RemoteProtocolError(peer, f"not all of {reached} are servers")

    def check_request(self, peer: Peer, message: Request) -> None:
        """Check that a request to this server is from an access broker, over a proxy.

        Raises:
            RemoteProtocolError: the request is not, or is for another server; the fault of the
                peer.
        """
        if peer not in self.proxies:
            raise RemoteProtocolError(peer, "it passes on a request, and is no proxy")
        home = message.home
        if message.server != self._broker or home >= self._brokers:
            raise RemoteProtocolError(peer, f"a request of {home} for {message.server}")
        if home in self.proxies and home != peer:
            raise RemoteProtocolError(peer, f"a request of {home}, which is a proxy itself")

    def check_answer(self, peer: Peer, message: Answer) -> None:
        """Check that an answer is for this access broker, over a proxy.

        Raises:
            RemoteProtocolError: the answer is not; the fault of the peer.
        """
        if peer not in self.proxies:
            raise RemoteProtocolError(peer, "it passes on an answer, and is no proxy")
        if message.home != self._broker:
            raise RemoteProtocolError(peer, f"an answer for {message.home}")


def topics_in(request: Request) -> tuple[int, ...]:
    """Return the topics that a request needs at their server."""
    if isinstance(request, Put):
        return (request.topic,)
    if isinstance(request, Follow):
        return request.topics
    if isinstance(request, Get):
        return tuple(wanted.topic for wanted in request.wanted)
    return ()


RETRY: Final = "retry"
"""Purpose of the deadline at which an unreachable broker is tried again."""


class Sessions:
    """The brokers at the other ends of a broker's links.

    Args:
        proxies: any of these may forward an answer.

    Attributes:
        sessions: established sessions, by broker.
    """

    def __init__(
        self,
        machine: EventMachine,
        proxies: Sequence[BrokerNumber],
        deadlines: DeadlineQueue[Any],
        parameters: MultiProxyParameters,
    ) -> None:
        self.sessions: dict[BrokerNumber, int] = {}
        self._machine = machine
        self._proxies = tuple(proxies)
        self._deadlines = deadlines
        self._parameters = parameters
        self._waited_ns: dict[BrokerNumber, int] = {}
        self._established_ns: dict[BrokerNumber, Instant] = {}
        self._routes: dict[BrokerNumber, BrokerNumber] = {}

    def open(self, peer: BrokerNumber) -> None:
        self._machine.emit(OpenSession(peer))

    def on_session(self, peer: BrokerNumber, event: SessionEstablished) -> None:
        assert peer not in self.sessions, f"second session with {peer}"
        self.sessions[peer] = event.session
        self._established_ns[peer] = self._machine.now_ns
        self._deadlines.cancel((RETRY, peer))
        self._waited_ns.pop(peer, None)

    def on_session_lost(self, peer: BrokerNumber, event: SessionLost) -> None:
        assert self.sessions.get(peer) == event.session, f"no session for {event}"
        del self.sessions[peer]

    def retry_lost(self, peer: BrokerNumber, event: SessionLost) -> None:
        """Dial a broker again after its session was lost: at once, or after a wait."""
        established_ns = self._established_ns.pop(peer)
        if dials_at_once(event.reason, established_ns, self._machine.now_ns, self._parameters):
            self.open(peer)
        else:
            self.retry_later(peer)

    def retry_later(self, peer: Peer) -> None:
        """Dial a broker again after a wait, unless there is a session."""
        assert isinstance(peer, int), f"a broker opens no session to {peer!r}"
        if peer in self.sessions:
            return
        wait_ns = next_wait_ns(self._waited_ns.get(peer, 0), self._parameters)
        self._waited_ns[peer] = wait_ns
        self._deadlines.set((RETRY, peer), self._machine.now_ns + wait_ns)

    def record_proxy(self, proxy: BrokerNumber, home: BrokerNumber) -> None:
        """Record the proxy of an access broker's request, for the answer."""
        self._routes[home] = proxy

    def answer(self, home: BrokerNumber, answer: Answer, over: BrokerNumber | None = None) -> None:
        """Answer an access broker over the proxy of its last request, or over any other.

        Args:
            over: the proxy of the answered request, if others may have followed over other proxies.
        """
        if home in self._proxies:
            over = home
        elif over not in self.sessions:
            over = self._routes.get(home)
        if over not in self.sessions and home not in self._proxies:
            over = next((peer for peer in self._proxies if peer in self.sessions), None)
        if over is not None and over in self.sessions:
            self._machine.send(over, answer)

    def find_proxy(self, home: BrokerNumber, tried: Container[BrokerNumber]) -> BrokerNumber | None:
        """Return another proxy for an answer to an access broker than those that were tried."""
        if home in self._proxies:
            return None
        return next(
            (each for each in self._proxies if each in self.sessions and each not in tried), None
        )


UNANSWERED: Final = "unanswered"
"""Purpose of the deadline at which a server has left a request unanswered for too long."""


class OwnProxy(Protocol):
    """A proxy in the process of its access broker."""

    def pass_on(self, request: Request) -> None:
        """Forward a request of the access broker."""


class ServerRoutes:
    """The routes of an access broker to all servers.

    Args:
        proxies: in the order of this access broker.

    Attributes:
        proxy: the proxy of an access broker that is a proxy itself.
        witness: the newest marks of the servers' logs, which requests return.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        proxies: Sequence[BrokerNumber],
        servers: Sequence[BrokerNumber],
        deadlines: DeadlineQueue[Any],
        parameters: MultiProxyParameters,
    ) -> None:
        self.proxy: OwnProxy | None = None
        self.witness = LogWitness()
        self._broker = broker
        self._machine = machine
        self._proxies = tuple(proxies)
        self._deadlines = deadlines
        self._parameters = parameters
        self._reached: dict[BrokerNumber, tuple[BrokerNumber, ...]] = {}
        self._routes = {server: ServerRoute(server) for server in servers}

    def __iter__(self) -> Iterator[ServerRoute]:
        return iter(self._routes.values())

    def send(self, request: Request) -> None:
        """Send a request, if there is a route; else it is repeated as soon as there is one."""
        way = self._routes[request.server]
        proxy = way.proxy
        if proxy is None:
            return
        mark = self.witness.of(request.server)
        if mark != NO_MARK:
            request = replace(request, mark=mark)
        if proxy == self._broker:
            assert self.proxy is not None, f"{self._broker} is no proxy, but routes as one"
            self.proxy.pass_on(request)
        else:
            self._machine.send(proxy, request)
        if type(request) is Get and not self._parameters.get_wait_ns:
            return  # it waits for publications, and is repeated when the route changes
        if type(request) is not Put:
            way.requested[type(request)] = self._machine.now_ns
        due_ns = self._machine.now_ns + self._timeout_ns(type(request)) + way.waited_ns
        set_ns = self._deadlines.instant((UNANSWERED, request.server))
        if set_ns is None or due_ns < set_ns:
            self._deadlines.set((UNANSWERED, request.server), due_ns)

    def on_answer(self, server: BrokerNumber, kind: type, *, wholly: bool = True) -> None:
        """Record the answer of a server to a request of one type.

        Args:
            wholly: True if all requests of the type are answered; else the wait restarts for the
                rest.
        """
        way = self._routes[server]
        way.waited_ns = 0
        if way.requested.pop(kind, None) is not None and not wholly:
            way.requested[kind] = self._machine.now_ns

    def change_late(
        self, server: BrokerNumber, *, is_awaited: bool, puts_ns: Instant | None
    ) -> bool:
        """Use the next proxy if a server has left a request unanswered for too long.

        Return True if all requests that the server has not answered are to be repeated.

        Args:
            is_awaited: an answer of the server is awaited.
            puts_ns: the time since when the server should have stored something, or None.
        """
        way = self._routes[server]
        if not is_awaited or way.proxy is None:
            way.requested.clear()
            return False
        due_ns = self._due_ns(way, puts_ns)
        if due_ns > self._machine.now_ns:
            self._deadlines.set((UNANSWERED, server), due_ns)
            return False
        way.waited_ns = min(
            max(2 * way.waited_ns, self._parameters.timeout_ns),
            max(self._parameters.retry_limit_ns, self._parameters.timeout_ns),
        )
        way.proxy = self._next_proxy(server, way.proxy)
        way.requested.clear()
        return True

    def adopt(self, server: BrokerNumber, proxy: Peer) -> bool:
        """Use the proxy of a server's answer; return True if that is another route.

        The server sends an answer over another proxy if the route seems to be stalled.
        """
        way = self._routes[server]
        reached = self._reached.get(proxy, ()) if isinstance(proxy, int) else ()
        if self._parameters.get_wait_ns or proxy == way.proxy or server not in reached:
            return False
        assert isinstance(proxy, int), f"{proxy!r} is no proxy"
        way.proxy = proxy
        way.requested.clear()
        return True

    def reaches(
        self, proxy: BrokerNumber, servers: Sequence[BrokerNumber]
    ) -> Iterator[BrokerNumber]:
        """Take the servers that a proxy reaches; without any, the proxy is unreachable.

        Yield the servers with another route, to which unanswered requests are to be repeated. A
        proxy that is earlier in the order is used as soon as it reaches a server again.
        """
        before = self._reached.get(proxy, ())
        self._reached[proxy] = tuple(servers)
        rank = self._proxies.index
        for way in self:
            if way.proxy is None or way.server not in self._reached.get(way.proxy, ()):
                way.proxy = self._next_proxy(way.server, way.proxy)
            elif way.server in before or way.server not in servers or rank(proxy) > rank(way.proxy):
                continue
            else:
                way.proxy = proxy
            if way.proxy is not None:
                yield way.server

    def first(self) -> BrokerNumber | None:
        """Return the first proxy in order that reaches any server."""
        return next((proxy for proxy in self._proxies if self._reached.get(proxy)), None)

    def first_server(self) -> BrokerNumber | None:
        """Return the first server with a route."""
        return next((way.server for way in self if way.proxy is not None), None)

    def _next_proxy(self, server: BrokerNumber, last: BrokerNumber | None) -> BrokerNumber | None:
        """Return the next proxy that reaches a server, in order after `last`.

        At the end, `last`.
        """
        begin = self._proxies.index(last) + 1 if last is not None else 0
        for proxy in (*self._proxies[begin:], *self._proxies[:begin]):
            if server in self._reached.get(proxy, ()):
                return proxy
        return None

    def _timeout_ns(self, kind: type) -> int:
        more_ns = self._parameters.get_wait_ns if kind is Get else 0
        return self._parameters.timeout_ns + more_ns

    def _due_ns(self, way: ServerRoute, puts_ns: Instant | None) -> Instant:
        """Return the time at which the first unanswered request times out."""
        dues = [since_ns + self._timeout_ns(kind) for kind, since_ns in way.requested.items()]
        if puts_ns is not None:
            dues.append(puts_ns + self._timeout_ns(Put))
        return min(dues, default=self._machine.now_ns) + way.waited_ns
