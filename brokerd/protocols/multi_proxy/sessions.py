"""A broker's sessions with other brokers, and the routes of answers to access brokers."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Instant, OpenSession, SessionEstablished, SessionLost
from brokerd.protocols.multi_proxy.messages import Answer
from brokerd.protocols.parts.backoff import dials_at_once, next_wait_ns
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

RETRY: Final = "retry"
"""Purpose of the deadline at which an unreachable broker is tried again."""


class RetryParameters(Protocol):
    """The wait before an unreachable broker is tried again; doubles up to the limit."""

    @property
    def retry_first_ns(self) -> Instant:
        """The first wait."""

    @property
    def retry_limit_ns(self) -> Instant:
        """The longest wait."""


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
        parameters: RetryParameters,
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
        """Open a session with a broker."""
        self._machine.emit(OpenSession(peer))

    def on_session(self, peer: BrokerNumber, event: SessionEstablished) -> None:
        """Record an established session."""
        assert peer not in self.sessions, f"second session with {peer}"
        self.sessions[peer] = event.session
        self._established_ns[peer] = self._machine.now_ns
        self._deadlines.cancel((RETRY, peer))
        self._waited_ns.pop(peer, None)

    def on_session_lost(self, peer: BrokerNumber, event: SessionLost) -> None:
        """Record that a session is lost."""
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

    def answer(self, home: BrokerNumber, answer: Answer) -> None:
        """Answer an access broker over the proxy of its last request, or over any other."""
        over = home if home in self._proxies else self._routes.get(home)
        if over not in self.sessions and home not in self._proxies:
            over = next((peer for peer in self._proxies if peer in self.sessions), None)
        if over is not None and over in self.sessions:
            self._machine.send(over, answer)
