"""The routes of an access broker to servers over proxies, and changes of proxy after timeouts.

Paper: [MP22] §3 (a client tries the proxies in order; no answer in time: again, three times).
Deviates: access brokers begin with different proxies, which shares the load; retries never end,
since their requests are not complete; only the access broker retries, because a retrying proxy
multiplies the load of an overloaded server. Timeouts are per kind of request: an access broker
with prompt answers to gets would otherwise never repeat a lost publish request.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Instant
from brokerd.protocols.multi_proxy.messages import Get, Put, Request
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

UNANSWERED: Final = "unanswered"
"""Purpose of the deadline at which a server has left a request unanswered for too long."""


class WayParameters(Protocol):
    """The timeouts of requests."""

    @property
    def timeout_ns(self) -> int:
        """The wait before another proxy is tried."""

    @property
    def get_wait_ns(self) -> int:
        """The additional wait for a get."""

    @property
    def retry_limit_ns(self) -> int:
        """The longest wait after failures."""


class OwnProxy(Protocol):
    """A proxy in the process of its access broker."""

    def pass_on(self, request: Request) -> None:
        """Forward a request of the access broker."""


@dataclass(slots=True)
class ServerRoute:
    """The route to a server.

    Attributes:
        proxy: the proxy; None: no reachable proxy reaches the server.
        waited_ns: the length of the last wait without an answer; 0 after an answer.
        asked: the time of unanswered requests, by type; without publish requests.
    """

    server: BrokerNumber
    proxy: BrokerNumber | None = None
    waited_ns: int = 0
    asked: dict[type, Instant] = field(default_factory=dict)


class ServerRoutes:
    """The routes of an access broker to all servers.

    Args:
        proxies: in the order of this access broker.

    Attributes:
        proxy: the proxy of an access broker that is a proxy itself.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        proxies: Sequence[BrokerNumber],
        servers: Sequence[BrokerNumber],
        deadlines: DeadlineQueue[Any],
        parameters: WayParameters,
    ) -> None:
        self.proxy: OwnProxy | None = None
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
        if proxy == self._broker:
            assert self.proxy is not None, f"{self._broker} is no proxy and is asked to be"
            self.proxy.pass_on(request)
        else:
            self._machine.send(proxy, request)
        if type(request) is not Put:
            way.asked[type(request)] = self._machine.now_ns
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
        if way.asked.pop(kind, None) is not None and not wholly:
            way.asked[kind] = self._machine.now_ns

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
            way.asked.clear()
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
        way.asked.clear()
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
        dues = [since_ns + self._timeout_ns(kind) for kind, since_ns in way.asked.items()]
        if puts_ns is not None:
            dues.append(puts_ns + self._timeout_ns(Put))
        return min(dues, default=self._machine.now_ns) + way.waited_ns
