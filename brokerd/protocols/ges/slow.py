"""The end of a slow broker, detected by the costs that its neighbours state for their links.

Both ends of a connection state its cost, and statements are flooded. Both ends of a slow link
state a high cost. All neighbours of a slow broker do, including those that find other links cheap.
The broker's own statements prove nothing: a slow broker finds all links slow.

Paper: [GES] §1, §6 (brokers that are slow are purged); our design (A2.10) defines the queue.
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
"""The least number of neighbours that find it slow and some other link cheap."""


class SlowParameters(Protocol):
    """The parameters of slow brokers."""

    @property
    def slow_broker_ns(self) -> int:
        """The time after which a broker ends that all its neighbours find slow; 0: never."""


class SlowBroker:
    """The detection that this broker is slow.

    Args:
        neighbours: returns the neighbours that have sessions.
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
        """Check the statements of neighbours after a change of statements or sessions."""
        if not self._slow_ns:
            return
        deadline = SLOW, self._broker
        if not self._is_slow():
            self._deadlines.cancel(deadline)
        elif deadline not in self._deadlines:
            self._deadlines.set(deadline, self._machine.now_ns + self._slow_ns)

    def waited(self) -> None:
        """Shut down, as this broker has been slow for long."""
        seconds = self._slow_ns / 1e9
        reason = f"all neighbours have found this broker slow for {seconds:g} s (slow_broker_ns)"
        self._machine.emit(Shutdown(reason))

    def _is_slow(self) -> bool:
        near = [*self._neighbours()]
        if any(self._said_by(peer) < DEAREST for peer in near):
            return False
        return sum(map(self._finds_another_cheap, near)) >= WITNESSES

    def _said_by(self, peer: BrokerNumber) -> int:
        """Return the factor that a neighbour states for the cost of its link to this broker."""
        statement = self._view.said_by(peer, self._broker)
        return DOWN if statement is None else statement.factor

    def _finds_another_cheap(self, peer: BrokerNumber) -> bool:
        return any(
            statement.by == peer and UP <= statement.factor < DEAREST
            for statement in self._view.known()
        )
