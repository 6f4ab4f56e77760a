"""Whether this broker is slow, by what its neighbours say of their links to it; then it ends.

Each end of a connection says how dear it finds it, and what it says is told on. A link that is
slow has two ends which say so. A broker that is slow has all its neighbours say so, also those
that find other links cheap. Its own word says nothing: who is slow finds all links slow.

Paper: [GES] §1, §6 (brokers that are slow are purged); our design (A2.10) says by which queue.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.ges.graph import DEAREST, UP
from brokerd.protocols.ges.view import DOWN, GraphView
from brokerd.protocols.interface import Shutdown
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine

SLOW: Final = "slow"
"""Purpose of the deadline at which this broker has been slow for long."""

WITNESSES: Final = 2
"""So many neighbours, at least, find it slow and some other link cheap."""


class SlowParameters(Protocol):
    """What parameters say of it."""

    @property
    def slow_broker_ns(self) -> int:
        """A broker that all its neighbours find slow for so long ends; 0: none does."""


class SlowBroker:
    """One broker's own part in it.

    Args:
        neighbours: those that have sessions.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        deadlines: DeadlineQueue[tuple[str, Peer]],
        parameters: SlowParameters,
        view: GraphView,
        neighbours: Callable[[], Iterable[BrokerNumber]],
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._deadlines = deadlines
        self._slow_ns = parameters.slow_broker_ns
        self._view = view
        self._neighbours = neighbours

    def look(self) -> None:
        """What somebody says of connections may have changed, or who has a session."""
        if not self._slow_ns:
            return
        deadline = SLOW, self._broker
        if not self._is_slow():
            self._deadlines.cancel(deadline)
        elif deadline not in self._deadlines:
            self._deadlines.set(deadline, self._machine.now_ns + self._slow_ns)

    def waited(self) -> None:
        """It has been slow for long: others do better without it."""
        seconds = self._slow_ns / 1e9
        reason = f"all neighbours have found this broker slow for {seconds:g} s (slow_broker_ns)"
        self._machine.emit(Shutdown(reason))

    def _is_slow(self) -> bool:
        near = [*self._neighbours()]
        if any(self._said_by(peer) < DEAREST for peer in near):
            return False
        return sum(map(self._finds_another_cheap, near)) >= WITNESSES

    def _said_by(self, peer: BrokerNumber) -> int:
        """By what a neighbour says that the cost of its link to this broker is multiplied."""
        statement = self._view.said_by(peer, self._broker)
        return DOWN if statement is None else statement.factor

    def _finds_another_cheap(self, peer: BrokerNumber) -> bool:
        return any(
            statement.by == peer and UP <= statement.factor < DEAREST
            for statement in self._view.known()
        )
