"""Over which proxy a home reaches each server, and when it tries another one.

Paper: [MP22] §3 (a client tries the proxies in order; no answer in time: again, three times).
Deviates: each home begins with another proxy, which shares the load; it goes on for ever, since
what it holds is not done; only the home tries again, for a proxy that does so too multiplies what
an overloaded server gets. What has no answer is noticed for each kind of request by itself: a home
whose gets are answered all the time would else never put again what was lost.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Instant
from brokerd.protocols.multi_proxy.messages import Get, Put, Request
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

UNANSWERED: Final = "unanswered"
"""Purpose of the deadline at which a server has left something unanswered for too long."""


class WayParameters(Protocol):
    """How long to wait."""

    @property
    def timeout_ns(self) -> int:
        """Before another proxy is tried."""

    @property
    def get_wait_ns(self) -> int:
        """How much longer a get may be left unanswered."""

    @property
    def retry_limit_ns(self) -> int:
        """At most, after failures."""


@dataclass(slots=True)
class Way:
    """To one server.

    Attributes:
        proxy: over which; None: no proxy that is reached says that it reaches the server.
        waited_ns: how long the last answer was waited for in vain; 0: it has come.
        asked: since when an answer is waited for, by the type of the request; puts are not here.
    """

    server: BrokerNumber
    proxy: BrokerNumber | None = None
    waited_ns: int = 0
    asked: dict[type, Instant] = field(default_factory=dict)


class Ways:
    """From one home to all servers.

    Args:
        proxies: in the order in which this home tries them.
        pass_on: takes a request where the home is the proxy itself.
        resend: sends all that a server has not answered.
        awaits: whether an answer of a server is waited for.
        puts_since: since when a server has stored nothing that it should have; None: there is none.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        proxies: Sequence[BrokerNumber],
        servers: Sequence[BrokerNumber],
        deadlines: DeadlineQueue[Any],
        parameters: WayParameters,
        *,
        pass_on: Callable[[Request], None],
        resend: Callable[[BrokerNumber], None],
        awaits: Callable[[BrokerNumber], bool],
        puts_since: Callable[[BrokerNumber], Instant | None],
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._proxies = tuple(proxies)
        self._deadlines = deadlines
        self._parameters = parameters
        self._pass_on = pass_on
        self._resend = resend
        self._awaits = awaits
        self._puts_since = puts_since
        self._reached: dict[BrokerNumber, tuple[BrokerNumber, ...]] = {}
        self._ways = {server: Way(server) for server in servers}

    def __iter__(self) -> Iterator[Way]:
        return iter(self._ways.values())

    def send(self, request: Request) -> None:
        """Send a request, where there is a way; else it is sent again as soon as there is one."""
        way = self._ways[request.server]
        proxy = way.proxy
        if proxy is None:
            return
        if proxy == self._broker:
            self._pass_on(request)
        else:
            self._machine.send(proxy, request)
        if type(request) is not Put:
            way.asked[type(request)] = self._machine.now_ns
        due_ns = self._machine.now_ns + self._timeout_ns(type(request)) + way.waited_ns
        set_ns = self._deadlines.instant((UNANSWERED, request.server))
        if set_ns is None or due_ns < set_ns:
            self._deadlines.set((UNANSWERED, request.server), due_ns)

    def answered(self, server: BrokerNumber, kind: type, *, wholly: bool = True) -> None:
        """A server has answered a request of one type that was waited for.

        Args:
            wholly: all that was asked in such requests; else it goes on with the rest.
        """
        way = self._ways[server]
        way.waited_ns = 0
        if way.asked.pop(kind, None) is not None and not wholly:
            way.asked[kind] = self._machine.now_ns

    def due(self, server: BrokerNumber) -> None:
        """A server may have left something unanswered for too long: try the next proxy then."""
        way = self._ways[server]
        if not self._awaits(server) or way.proxy is None:
            way.asked.clear()
            return
        due_ns = self._due_ns(way)
        if due_ns > self._machine.now_ns:
            self._deadlines.set((UNANSWERED, server), due_ns)
            return
        way.waited_ns = min(
            max(2 * way.waited_ns, self._parameters.timeout_ns),
            max(self._parameters.retry_limit_ns, self._parameters.timeout_ns),
        )
        way.proxy = self._next_proxy(server, way.proxy)
        way.asked.clear()
        self._resend(server)

    def reaches(self, proxy: BrokerNumber, servers: Sequence[BrokerNumber]) -> None:
        """A proxy is there, and reaches these servers and no others; none: as if it were not.

        One that this home would rather ask is taken as soon as it reaches a server anew.
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
                self._resend(way.server)

    def first(self) -> BrokerNumber | None:
        """The first proxy in their order that reaches any server."""
        return next((proxy for proxy in self._proxies if self._reached.get(proxy)), None)

    def first_server(self) -> BrokerNumber | None:
        """The first server to which there is a way."""
        return next((way.server for way in self if way.proxy is not None), None)

    def _next_proxy(self, server: BrokerNumber, last: BrokerNumber | None) -> BrokerNumber | None:
        """The first one behind `last` that reaches a server, in their order; `last` at the end."""
        begin = self._proxies.index(last) + 1 if last is not None else 0
        for proxy in (*self._proxies[begin:], *self._proxies[:begin]):
            if server in self._reached.get(proxy, ()):
                return proxy
        return None

    def _timeout_ns(self, kind: type) -> int:
        more_ns = self._parameters.get_wait_ns if kind is Get else 0
        return self._parameters.timeout_ns + more_ns

    def _due_ns(self, way: Way) -> Instant:
        """When the first of what is waited for has been waited for long enough."""
        dues = [since_ns + self._timeout_ns(kind) for kind, since_ns in way.asked.items()]
        puts_ns = self._puts_since(way.server)
        if puts_ns is not None:
            dues.append(puts_ns + self._timeout_ns(Put))
        return min(dues, default=self._machine.now_ns) + way.waited_ns
