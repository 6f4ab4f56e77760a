"""Connectivity graphs of all brokers, flooded without sessions or time, for comparisons."""

from collections import deque
from random import Random

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Hierarchy
from brokerd.overlay.routes import Link
from brokerd.overlay.topology import Topology
from brokerd.protocols.ges.connectivity_graph import GraphView
from brokerd.protocols.ges.messages import DOWN, Statement
from brokerd.protocols.ges.units import Place


class Flooded:
    """The graphs of all brokers of a hierarchy, and the statements in flight.

    Statements between the same brokers arrive in order; all other orders are random.

    Attributes:
        section: the hierarchy.
        places, views: place and view by broker.
        up: the present connections, with their factors.
        received: (broker, statement) of all arrivals, in order.
    """

    def __init__(self, topology: Topology, random: Random) -> None:
        section = topology.of_kind("hierarchy").section
        assert isinstance(section, Hierarchy), f"{topology.name} is no hierarchy"
        self.section = section
        self.addresses = section.addresses
        self.places = [Place(address) for address in self.addresses]
        self.views = [GraphView(n, place, 1) for n, place in enumerate(self.places)]
        self.up: dict[Link, int] = {}
        self.received: list[tuple[BrokerNumber, Statement]] = []
        self._random = random
        self._waiting: dict[Link, deque[Statement]] = {}

    def connect(self, a: BrokerNumber, b: BrokerNumber, factor: int = 1) -> None:
        """Connect two brokers: exchange all statements, and flood the connection."""
        self.up[a, b] = factor
        for here, there in ((a, b), (b, a)):
            for statement in self.views[here].known():
                self._send(here, there, statement)
            self._say(here, there, factor)

    def disconnect(self, a: BrokerNumber, b: BrokerNumber) -> None:
        """Disconnect two brokers; statements in flight between them are lost."""
        del self.up[a, b]
        for here, there in ((a, b), (b, a)):
            self._waiting.pop((here, there), None)
            self._say(here, there, DOWN)

    def charge(self, a: BrokerNumber, b: BrokerNumber, factor: int) -> None:
        """Change the cost of a connection."""
        self.up[a, b] = factor
        for here, there in ((a, b), (b, a)):
            self._say(here, there, factor)

    def step(self) -> bool:
        """Let a message arrive; return False without a message."""
        if not self._waiting:
            return False
        here, there = self._random.choice(sorted(self._waiting))
        queue = self._waiting[here, there]
        statement = queue.popleft()
        if not queue:
            del self._waiting[here, there]
        self.received.append((there, statement))
        if self.views[there].learn(statement):
            self._pass_on(there, statement, but=here)
        return True

    def settle(self) -> None:
        """Let all messages arrive."""
        while self.step():
            pass

    def _say(self, here: BrokerNumber, there: BrokerNumber, factor: int) -> None:
        self._pass_on(here, self.views[here].state(there, self.addresses[there], factor), but=None)

    def _pass_on(self, here: BrokerNumber, statement: Statement, but: BrokerNumber | None) -> None:
        for a, b in sorted(self.up):
            if here in (a, b):
                other = a if here == b else b
                if other != but:
                    self._send(here, other, statement)

    def _send(self, here: BrokerNumber, there: BrokerNumber, statement: Statement) -> None:
        told = self.views[here].for_peer(statement, there, self.addresses[there])
        if told is not None:
            self._waiting.setdefault((here, there), deque()).append(told)
