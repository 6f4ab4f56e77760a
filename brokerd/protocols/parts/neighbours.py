"""The sessions of a broker with its neighbours, and the retries of lost sessions.

The wait before an unreachable peer is dialled again doubles up to a limit.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import (
    CloseSession,
    CoreStatus,
    Effect,
    Instant,
    LossReason,
    OpenSession,
    SessionEstablished,
    SessionLost,
)
from brokerd.protocols.parts.deadlines import DeadlineQueue


class RetryParameters(Protocol):
    """The bounds of the wait between two attempts."""

    @property
    def retry_first_ns(self) -> int:
        """The wait before the first attempt after a failure."""

    @property
    def retry_limit_ns(self) -> int:
        """The longest wait before a later attempt."""


def next_wait_ns(last_ns: int, parameters: RetryParameters) -> int:
    """Return the next wait after a vain wait of `last_ns`; 0 for no wait so far."""
    return min(max(2 * last_ns, parameters.retry_first_ns), parameters.retry_limit_ns)


def dials_at_once(
    reason: LossReason, established_ns: Instant, now_ns: Instant, parameters: RetryParameters
) -> bool:
    """Return whether a lost session is dialled again without a wait.

    A peer that closed the session is running. So a broker that was stopped for a while dials all
    peers as soon as the broker continues: the peers have closed the sessions in the meantime, and
    wait longer before the next attempt. A short-lived session is not dialled at once: the peer
    might close every session.
    """
    is_settled = now_ns - established_ns >= parameters.retry_limit_ns
    return reason == "closed_by_peer" and is_settled


RETRY: Final = "retry"
"""Purpose of the deadline at which a neighbour is dialled again."""

NO_NEIGHBOUR: Final = "is no neighbour"
"""The reason in a CloseSession."""


class NeighbourSessions:
    """The neighbours of a broker, and the sessions with them.

    Attributes:
        peers: the present neighbours.
        current: the session with each connected neighbour.
        incarnations: of the neighbours at their last sessions.
    """

    def __init__(
        self,
        peers: Sequence[BrokerNumber],
        parameters: RetryParameters,
        deadlines: DeadlineQueue[tuple[str, Peer]],
    ) -> None:
        self.peers = tuple(peers)
        self.current: dict[BrokerNumber, int] = {}
        self.incarnations: dict[BrokerNumber, int] = {}
        self._parameters = parameters
        self._deadlines = deadlines
        self._closing: dict[BrokerNumber, int] = {}
        self._waited_ns: dict[BrokerNumber, int] = {}

    def start(self) -> list[Effect]:
        """Return the requests for sessions with all neighbours."""
        return [OpenSession(peer) for peer in self.peers]

    def change(self, peers: Sequence[BrokerNumber]) -> list[Effect]:
        """Replace the neighbours: dial new neighbours, and close former sessions."""
        before, self.peers = self.peers, tuple(peers)
        effects: list[Effect] = []
        for peer in before:
            if peer not in self.peers:
                self._deadlines.cancel((RETRY, peer))
                self._waited_ns.pop(peer, None)
                session = self.current.pop(peer, None)
                if session is not None:
                    self._closing[peer] = session
                effects.append(CloseSession(peer, NO_NEIGHBOUR))
        effects.extend(OpenSession(peer) for peer in self.peers if peer not in before)
        return effects

    def renew(self) -> list[BrokerNumber]:
        """Return the neighbours that the caller disconnects, and then dials again."""
        ended = [*self.current]
        self._closing |= self.current
        self.current.clear()
        return ended

    def on_established(self, peer: BrokerNumber, event: SessionEstablished) -> CloseSession | None:
        """Record a new session; return a CloseSession if the broker is no neighbour."""
        if peer not in self.peers:
            self._closing[peer] = event.session
            return CloseSession(peer, NO_NEIGHBOUR)
        assert peer not in self.current, f"second session with {peer}"
        self.current[peer] = event.session
        self.incarnations[peer] = event.incarnation
        self._deadlines.cancel((RETRY, peer))
        self._waited_ns.pop(peer, None)
        return None

    def on_lost(self, peer: BrokerNumber, event: SessionLost, now_ns: Instant) -> bool:
        """Record the end of a session; return True if the session was current.

        The caller then handles the loss of the neighbour, and calls `retry_later`.
        """
        if self._closing.get(peer) == event.session:
            del self._closing[peer]
            if peer in self.peers:
                self.retry_later(peer, now_ns)
            return False
        assert self.current.get(peer) == event.session, f"no session for {event}"
        del self.current[peer]
        return True

    def on_open_failed(self, peer: Peer, now_ns: Instant) -> None:
        """Retry a session that could not be opened."""
        assert isinstance(peer, int), f"a broker opens no session to {peer!r}"
        if peer in self.peers and peer not in self.current:
            self.retry_later(peer, now_ns)

    def retry_later(self, peer: BrokerNumber, now_ns: Instant) -> None:
        """Dial a neighbour again after a wait, which doubles with every failure."""
        wait_ns = next_wait_ns(self._waited_ns.get(peer, 0), self._parameters)
        self._waited_ns[peer] = wait_ns
        self._deadlines.set((RETRY, peer), now_ns + wait_ns)

    def status(self, subscriptions: int, own: int) -> CoreStatus[BrokerNumber]:
        """Return the status of a broker that waits for neighbours only.

        Args:
            own: the number of subscriptions of own clients.
        """
        return CoreStatus(
            state="running",
            subscriptions=subscriptions,
            own_subscriptions=own,
            wanted=self.peers,
            ready=tuple(peer for peer in self.peers if peer in self.current),
            idle_reasons=(f"{own} subscriptions of its own clients",) if own else (),
        )

    def statistics(self) -> dict[str, int]:
        return {"sessions_active": len(self.current), "sessions_ready": len(self.current)}
