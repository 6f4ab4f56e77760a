"""Redirects of clients to other brokers of their cluster, by numbers of clients.

Linked brokers of a cluster exchange the number of their clients when it has changed by a step, and
at most once per look. A broker with more clients than the limit, and enough more than a neighbour,
redirects the last arrived clients to that neighbour. A received number lags behind the true
number: no client is sent to a broker that may have as many, and a redirected client counts at its
destination.

Paper: [GES] §1, §6 (induced roaming; the paper's prototype does not have it).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, ClientId, Peer
from brokerd.protocols.ges.messages import ClientsCounted
from brokerd.protocols.ges.parameters import HintParameters
from brokerd.protocols.interface import Instant, RedirectClient
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler

HINT: Final = "hint"
"""Purpose of the deadline at which a broker checks for too many clients."""

LOOKS_TO_GO: Final = 4
"""Looks for which a redirected client counts as departed; after that, as staying by choice."""
LOOKS_TO_STAY: Final = 32
"""Looks for which a client is not redirected again."""
STEPS: Final = 8
"""Numbers are sent after changes by the limit divided by this, or by one."""


@dataclass(frozen=True, slots=True)
class _Told:
    """The redirect of a client: its time, and the broker to go to."""

    at_ns: Instant
    to: BrokerNumber


class RoamingHints:
    """The redirects of a broker.

    Args:
        is_near: returns True if a broker is in the cluster of this broker.
        around: returns the neighbours in the cluster that have a session.
        clients: returns the clients of this broker, in order of arrival.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: HintParameters,
        is_near: Callable[[BrokerNumber], bool],
        around: Callable[[], Sequence[BrokerNumber]],
        clients: Callable[[], Sequence[ClientId]],
    ) -> None:
        self.counters = {"clients_redirected": 0, "client_counts_told": 0}
        self._machine = machine
        self._deadlines = deadlines
        self._deadline = HINT, broker
        self._limit = parameters.roam_clients_above
        self._check_ns = parameters.roam_check_ns
        self._step = max(1, self._limit // STEPS)
        self._is_near = is_near
        self._around = around
        self._clients = clients
        self._said = 0
        self._heard: dict[BrokerNumber, int] = {}
        self._told: dict[ClientId, _Told] = {}

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of messages about numbers of clients."""
        return {ClientsCounted: self._on_counted}

    def changed(self) -> None:
        """Schedule a look after the number of clients here or at a neighbour has changed."""
        if self._limit and self._deadline not in self._deadlines:
            self._deadlines.set(self._deadline, self._machine.now_ns + self._check_ns)

    def came(self, peer: BrokerNumber) -> None:
        """Send the number of clients to a neighbour with a new session."""
        if self._limit and self._is_near(peer):
            self._tell(peer)

    def went(self, peer: BrokerNumber) -> None:
        """Forget the number of a neighbour without a session; no client is sent there."""
        self._heard.pop(peer, None)

    def _on_counted(self, peer: BrokerNumber, message: ClientsCounted) -> None:
        """Record the approximate number of clients of a neighbour.

        Raises:
            RemoteProtocolError: the neighbour is of another cluster, or the number is negative;
                the fault of the neighbour.
        """
        if not self._is_near(peer) or message.clients < 0:
            raise RemoteProtocolError(peer, f"{message} of another cluster, or of less than nobody")
        self._heard[peer] = message.clients
        self.changed()

    def look(self) -> None:
        """Send the number of clients if it has changed by a step, and redirect clients."""
        here = self._clients()
        if abs(len(here) - self._said) >= self._step:
            self._said = len(here)
            for peer in self._around():
                self._tell(peer)
        oldest_ns = self._machine.now_ns - LOOKS_TO_STAY * self._check_ns
        self._told = {name: told for name, told in self._told.items() if told.at_ns > oldest_ns}
        self._redirect(here)
        if self._going():
            self.changed()

    def _redirect(self, here: Sequence[ClientId]) -> None:
        """Redirect the last arrived clients, to the broker with the fewest clients.

        No broker is made worse than this broker. A neighbour may by now have almost a step more
        clients than reported.
        """
        going = self._going()
        staying = [name for name in here if name not in going]
        left, may_have = len(staying), {}
        for peer in self._around():
            if peer in self._heard:
                under_way = sum(told.to == peer for told in going.values())
                may_have[peer] = self._heard[peer] + self._step - 1 + under_way
        for name in reversed(staying):
            better = [peer for peer, number in may_have.items() if number + 2 <= left]
            if left <= self._limit or not better:
                return
            if name not in self._told:
                better.sort(key=lambda peer: (may_have[peer], peer))
                self._told[name] = _Told(self._machine.now_ns, better[0])
                self._machine.emit(RedirectClient(name, tuple(better)))
                self.counters["clients_redirected"] += 1
                may_have[better[0]] += 1
                left -= 1

    def _going(self) -> dict[ClientId, _Told]:
        """Return clients that were redirected a short while ago."""
        since_ns = self._machine.now_ns - LOOKS_TO_GO * self._check_ns
        return {name: told for name, told in self._told.items() if told.at_ns > since_ns}

    def _tell(self, peer: BrokerNumber) -> None:
        self._machine.send(peer, ClientsCounted(self._said))
        self.counters["client_counts_told"] += 1
