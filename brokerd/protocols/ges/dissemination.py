"""The dissemination of statements about connections by one broker.

Paper: [GES] §3 (dissemination of connections).
"""

from collections.abc import Iterable

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Hierarchy
from brokerd.overlay.routes import Link
from brokerd.protocols.ges.connectivity_graph import GraphView
from brokerd.protocols.ges.messages import DOWN, GraphStated, Statement
from brokerd.protocols.ges.state import CostChange, Neighbours
from brokerd.protocols.ges.units import Unit, is_inside
from brokerd.protocols.interface import Send
from brokerd.protocols.parts.bounds import is_leap

UP = 1
DEAREST = 8
"""The largest factor of a connection's cost; `UP` is the smallest."""


class Dissemination:
    """The statements of a broker about its connections, and those forwarded for others."""

    def __init__(self, view: GraphView, neighbours: Neighbours) -> None:
        self._view = view
        self._neighbours = neighbours
        self._place = neighbours.place
        self.counters = {"statements_outbid": 0}
        self._links: dict[Link, None] = {}
        self._only_outside: dict[tuple[Link, BrokerNumber], Statement] = {}

    def start(self, incarnation: int) -> None:
        """Start without a connection; statements of earlier incarnations are replaced."""
        self._view.start(incarnation)
        self.restart()

    def restart(self) -> None:
        """Restart at another address, without any statement of other brokers."""
        self._only_outside.clear()
        self._view.forget()
        for peer, address in self._neighbours.addresses.items():
            self._view.state(peer, address, DOWN)

    def on_up(self, peer: BrokerNumber) -> list[Send]:
        """State a connection to all neighbours, and send all statements to the new neighbour."""
        made = self._view.state(peer, self._neighbours.addresses[peer], self.factor(peer))
        return [*self._send(peer, self._view.statements()), *self._flood((made,), peer)]

    def on_down(self, peer: BrokerNumber) -> list[Send]:
        """State that the connection to a neighbour is down."""
        made = self._view.state(peer, self._neighbours.addresses[peer], DOWN)
        return self._flood((made,), peer)

    def factor(self, peer: BrokerNumber) -> int:
        """Return the factor that this broker states for the cost of a connection that is up."""
        return self._neighbours.factors.get(peer, UP)

    def on_cost_changed(self, change: CostChange) -> list[Send]:
        """State another factor for the cost of the connection to a neighbour with a session."""
        address = self._neighbours.addresses[change.peer]
        made = self._view.state(change.peer, address, change.factor)
        return self._flood((made,), None)

    def on_stated(self, peer: BrokerNumber, message: GraphStated) -> list[Send]:
        """Take statements from a neighbour, forward new ones, and correct those about this broker.

        Raises:
            RemoteProtocolError: a statement is malformed, about no link of the topology, or of a
                version that leaps; the fault of the neighbour.
        """
        for statement in message.statements:
            self._check(peer, statement)
        sends: list[Send] = []
        for statement in message.statements:
            if self._view.is_forged(statement):
                sends += self._restate(statement)
        statements = [self._view.precise(each) for each in message.statements]
        self._note_only_outside(message.statements)
        changes = [each for each in statements if self._view.learn(each)]
        sends += self._flood(changes, peer)
        refuted = [
            each
            for each in message.statements
            if self._view.is_refuted(each) and _opposite_end(each) in self._neighbours.addresses
        ]
        for each in refuted:
            self._view.raise_version(each.version)
        sends += self._flood([self._correct_statement(each) for each in refuted], None)
        later = [self._view.find_substitute(each) for each in message.statements]
        sends += self._send(peer, [each for each in later if each is not None])
        return sends

    def speak_for(self, unit: Unit) -> list[Send]:
        """State in the place of a broker or unit that it has no connection any more."""
        return self._flood(self._view.state_for(unit), None)

    def speak_for_broker(self, broker: BrokerNumber) -> list[Send]:
        """State the same in the place of one broker, at any address."""
        return self._flood(self._view.state_for_broker(broker), None)

    def find_outside_only(self) -> Iterable[BrokerNumber]:
        """Return brokers of an own unit that are connected by statements from outside only."""
        self._only_outside = {
            about: statement
            for about, statement in self._only_outside.items()
            if self._view.is_only_outside(statement)
        }
        return tuple(
            {statement.by: None for statement in self._only_outside.values() if statement.factor}
        )

    def speak_for_unknown(self, broker: BrokerNumber) -> list[Send]:
        """State in the place of a broker of `find_outside_only` that it has no connection.

        A live broker refutes the statement.
        """
        found = [each for each in self._only_outside.values() if each.by == broker and each.factor]
        return self._flood([self._view.state_for_unknown(each) for each in found], None)

    def _restate(self, forged: Statement) -> list[Send]:
        """State a connection correctly, under a version later than a forged one."""
        self.counters["statements_outbid"] += 1
        self._view.raise_version(forged.version)
        peer = _opposite_end(forged)
        if peer in self._neighbours.addresses:
            return self._flood([self._correct_statement(forged)], None)
        return self._flood([self._view.deny(forged)], None)

    def use(self, hierarchy: Hierarchy) -> None:
        """Take the links of a topology; statements about other connections are refused."""
        links = (*hierarchy.links, *hierarchy.links_of_left)
        self._links = dict.fromkeys((min(link), max(link)) for link in links)

    def _note_only_outside(self, statements: Iterable[Statement]) -> None:
        for each in statements:
            if self._view.is_only_outside(each):
                about = (each.low, each.high), each.by
                noted = self._only_outside.get(about, each)
                self._only_outside[about] = max(
                    noted, each, key=lambda statement: statement.version
                )

    def _correct_statement(self, refuted: Statement) -> Statement:
        """Return the correct statement in place of others' statement about this broker."""
        peer = _opposite_end(refuted)
        factor = self.factor(peer) if peer in self._neighbours.linked else DOWN
        return self._view.state(peer, self._neighbours.addresses[peer], factor)

    def _flood(self, statements: Iterable[Statement], origin: BrokerNumber | None) -> list[Send]:
        """Return the messages to all linked neighbours but one."""
        sends: list[Send] = []
        flooded = tuple(statements)
        for peer in self._neighbours.addresses:
            if peer != origin and peer in self._neighbours.linked:
                sends += self._send(peer, flooded)
        return sends

    def _send(self, peer: BrokerNumber, statements: Iterable[Statement]) -> list[Send]:
        """Return the message with the relevant statements, as a neighbour sees them, if any."""
        address = self._neighbours.addresses[peer]
        seen = [self._view.statement_for_peer(each, peer, address) for each in statements]
        relevant = tuple(each for each in seen if each is not None)
        return [Send(peer, GraphStated(relevant))] if relevant else []

    def _check(self, peer: BrokerNumber, statement: Statement) -> None:
        ends = statement.low_end, statement.high_end
        deepest = len(self._place.address)
        if (
            not statement.low < statement.high
            or statement.by not in (statement.low, statement.high)
            or not all(0 < len(end) <= deepest for end in ends)
            or is_inside(*ends)
            or is_inside(*reversed(ends))
            or not DOWN <= statement.factor <= DEAREST
        ):
            raise RemoteProtocolError(peer, f"no connection can be so: {statement}"[:300])
        if (statement.low, statement.high) not in self._links:
            raise RemoteProtocolError(peer, f"no such link in the topology: {statement}"[:300])
        known = self._view.latest(statement)
        if known is not None and is_leap(known.version, statement.version):
            raise RemoteProtocolError(
                peer, f"its version leaps from {known.version}: {statement}"[:300]
            )


def _opposite_end(statement: Statement) -> BrokerNumber:
    """Return the broker at the other end of the connection from the statement's author."""
    return statement.high if statement.by == statement.low else statement.low
