"""The sessions of a broker with its neighbours, and the waits before a neighbour is dialled again.

Paper: [GD02] §3 (links between the brokers of neighbouring cells).
"""

from collections.abc import Sequence
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.interface import (
    Effect,
    Instant,
    OpenSession,
    SessionEstablished,
    SessionLost,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.neighbours import dials_at_once, next_wait_ns

RETRY: Final = "retry"
"""Purpose of the deadline at which a neighbour is dialled again."""


class Neighbours:
    """The neighbours of a broker.

    Attributes:
        sessions: the established ones.
        incarnations: of neighbours, at their last sessions.
        retired: the neighbours that are neither dialled nor heeded any more.
    """

    def __init__(
        self,
        peers: Sequence[BrokerNumber],
        parameters: GryphonParameters,
        deadlines: DeadlineQueue[tuple[str, Any]],
    ) -> None:
        self.sessions: dict[BrokerNumber, int] = {}
        self.incarnations: dict[BrokerNumber, int] = {}
        self.retired: dict[BrokerNumber, None] = {}
        self._peers = peers
        self._parameters = parameters
        self._deadlines = deadlines
        self._waited_ns: dict[BrokerNumber, Instant] = {}
        self._established_ns: dict[BrokerNumber, Instant] = {}

    def wanted(self) -> tuple[BrokerNumber, ...]:
        """Return the neighbours, without retired ones."""
        return tuple(each for each in self._peers if each not in self.retired)

    def retire(self, broker: BrokerNumber) -> None:
        """Dial a broker no more, and ignore its messages."""
        self.retired[broker] = None
        self._deadlines.cancel((RETRY, broker))

    def is_restart(self, peer: BrokerNumber, event: SessionEstablished) -> bool:
        """Return True if a session is the first with an incarnation of a neighbour."""
        return self.incarnations.get(peer) != event.incarnation

    def on_established(
        self, peer: BrokerNumber, event: SessionEstablished, now_ns: Instant
    ) -> None:
        """Record a session."""
        assert peer not in self.sessions, f"second session with {peer}"
        self.sessions[peer] = event.session
        self.incarnations[peer] = event.incarnation
        self._established_ns[peer] = now_ns
        self._deadlines.cancel((RETRY, peer))
        self._waited_ns.pop(peer, None)

    def on_lost(self, peer: BrokerNumber, event: SessionLost) -> None:
        """Record the end of a session; the caller then calls `redial`."""
        assert self.sessions.get(peer) == event.session, f"no session for {event}"
        del self.sessions[peer]

    def redial(self, peer: BrokerNumber, event: SessionLost, now_ns: Instant) -> list[Effect]:
        """Dial a neighbour again, at once or later, after the end of a session."""
        if peer in self.retired:
            return []
        established_ns = self._established_ns.pop(peer)
        if dials_at_once(event.reason, established_ns, now_ns, self._parameters):
            return [OpenSession(peer)]
        self.retry_later(peer, now_ns)
        return []

    def retry_later(self, peer: Peer, now_ns: Instant) -> None:
        """Dial a neighbour again after a wait, unless it has a session."""
        assert isinstance(peer, int), f"a broker opens no session to {peer!r}"
        if peer in self.sessions or peer in self.retired:
            return
        wait_ns = next_wait_ns(self._waited_ns.get(peer, 0), self._parameters)
        self._waited_ns[peer] = wait_ns
        self._deadlines.set((RETRY, peer), now_ns + wait_ns)
