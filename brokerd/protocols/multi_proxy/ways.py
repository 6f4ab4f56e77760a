"""Over which proxy a home reaches each server, and when it tries another one.

Paper: [MP22] §3 (a client tries the proxies in order; no answer in time: again, three times).
Deviates: each home begins with another proxy, which shares the load; it goes on for ever, since
what it holds is not done; only the home tries again, for a proxy that does so too multiplies what
an overloaded server gets.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Instant
from brokerd.protocols.multi_proxy.messages import Request
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
    def retry_limit_ns(self) -> int:
        """At most, after failures."""


@dataclass(slots=True)
class Way:
    """To one server.

    Attributes:
        proxy: over which; None: no proxy that is reached says that it reaches the server.
        waited_ns: how long the last answer was waited for in vain; 0: it has come.
    """

    server: BrokerNumber
    proxy: BrokerNumber | None = None
    waited_ns: int = 0


class Ways:
    """From one home to all servers.

    Args:
        proxies: in the order in which this home tries them.
        pass_on: takes a request where the home is the proxy itself.
        resend: sends all that a server has not answered.
        waits_for: for how long, if at all, an answer of a server is waited for; None: for none.
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
        waits_for: Callable[[BrokerNumber], int | None],
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._proxies = tuple(proxies)
        self._deadlines = deadlines
        self._parameters = parameters
        self._pass_on = pass_on
        self._resend = resend
        self._waits_for = waits_for
        self._reached: dict[BrokerNumber, tuple[BrokerNumber, ...]] = {}
        self._ways = {server: Way(server) for server in servers}

    def __iter__(self) -> Iterator[Way]:
        return iter(self._ways.values())

    def send(self, request: Request) -> None:
        """Send a request, where there is a way; else it is sent again as soon as there is one."""
        proxy = self._ways[request.server].proxy
        if proxy is None:
            return
        if proxy == self._broker:
            self._pass_on(request)
        else:
            self._machine.send(proxy, request)
        self.watch(request.server)

    def watch(self, server: BrokerNumber) -> None:
        """Something is to be answered by a server: see to it that this is noticed if it is not."""
        way = self._ways[server]
        due_ns, set_ns = self._due_ns(way), self._deadlines.instant((UNANSWERED, server))
        if due_ns is not None and (set_ns is None or due_ns < set_ns):
            self._deadlines.set((UNANSWERED, server), due_ns)

    def answered(self, server: BrokerNumber) -> None:
        """A server has answered something that was waited for."""
        way = self._ways[server]
        way.waited_ns = 0
        self._set(way)

    def due(self, server: BrokerNumber) -> None:
        """A server has answered nothing in time: try the next proxy."""
        way = self._ways[server]
        if self._waits_for(server) is None or way.proxy is None:
            return
        way.waited_ns = min(
            max(2 * way.waited_ns, self._parameters.timeout_ns),
            max(self._parameters.retry_limit_ns, self._parameters.timeout_ns),
        )
        way.proxy = self._next_proxy(server, way.proxy)
        self._resend(server)
        self._set(way)

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

    def _next_proxy(self, server: BrokerNumber, last: BrokerNumber | None) -> BrokerNumber | None:
        """The first one behind `last` that reaches a server, in their order; `last` at the end."""
        begin = self._proxies.index(last) + 1 if last is not None else 0
        for proxy in (*self._proxies[begin:], *self._proxies[:begin]):
            if server in self._reached.get(proxy, ()):
                return proxy
        return None

    def _set(self, way: Way) -> None:
        due_ns = self._due_ns(way)
        if due_ns is None:
            self._deadlines.cancel((UNANSWERED, way.server))
        else:
            self._deadlines.set((UNANSWERED, way.server), due_ns)

    def _due_ns(self, way: Way) -> Instant | None:
        wait_ns = self._waits_for(way.server)
        return None if wait_ns is None else self._machine.now_ns + wait_ns + way.waited_ns
