"""A broker's part in telling everybody of connections.

Paper: [GES] §3 (dissemination of connections).
"""

from collections.abc import Callable, Iterable, Mapping

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.routes import Link
from brokerd.protocols.ges.messages import GraphStated
from brokerd.protocols.ges.units import Place, Unit, is_inside
from brokerd.protocols.ges.view import DOWN, GraphView, Statement
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.protocols.parts.leaps import is_leap

UP = 1
DEAREST = 8
"""By what the cost of a connection is multiplied, at least and at most."""


class Graph:
    """What a broker says of its connections, and passes on of others.

    Args:
        neighbours: with their addresses.
        reaches: whether a neighbour has a session.
    """

    def __init__(
        self,
        machine: EventMachine,
        place: Place,
        view: GraphView,
        neighbours: Mapping[BrokerNumber, Address],
        reaches: Callable[[BrokerNumber], bool],
    ) -> None:
        self._machine = machine
        self._place = place
        self._view = view
        self._neighbours = neighbours
        self._reaches = reaches
        self.counters = {"statements_outbid": 0}
        self._links: dict[Link, None] = {}
        self._factors: dict[BrokerNumber, int] = {}
        self._only_outside: dict[tuple[Link, BrokerNumber], Statement] = {}

    def start(self, incarnation: int) -> None:
        """This broker begins, without a connection; what it said before is over."""
        self._view.start(incarnation)
        self.begin_anew()

    def begin_anew(self) -> None:
        """The same at another address, where nothing of others is known."""
        self._only_outside.clear()
        self._view.forget()
        for peer, address in self._neighbours.items():
            self._view.state(peer, address, DOWN)

    def on_up(self, peer: BrokerNumber) -> None:
        """There is a session: the neighbour is told all, and all others are told of it."""
        made = self._view.state(peer, self._neighbours[peer], self.factor(peer))
        self._tell(peer, self._view.known())
        self._tell_others((made,), peer)

    def on_down(self, peer: BrokerNumber) -> None:
        """The session is over, and with it what it carried."""
        made = self._view.state(peer, self._neighbours[peer], DOWN)
        self._tell_others((made,), peer)

    def factor(self, peer: BrokerNumber) -> int:
        """By what this broker says that the cost of a connection is multiplied, if there is one."""
        return self._factors.get(peer, UP)

    def charge(self, peer: BrokerNumber, factor: int) -> None:
        """The connection to a neighbour, which has a session, costs something else from now on."""
        self._factors[peer] = factor
        made = self._view.state(peer, self._neighbours[peer], factor)
        self._tell_others((made,), None)

    def on_stated(self, peer: BrokerNumber, message: GraphStated) -> None:
        """A neighbour says what it knows of connections."""
        for statement in message.statements:
            self._check(peer, statement)
        for statement in message.statements:
            if self._view.is_forged(statement):
                self._outbid(statement)
        statements = [self._view.precise(each) for each in message.statements]
        self._note_only_outside(message.statements)
        news = [each for each in statements if self._view.learn(each)]
        self._tell_others(news, peer)
        refuted = [
            each
            for each in message.statements
            if self._view.is_refuted(each) and _other_end(each) in self._neighbours
        ]
        for each in refuted:
            self._view.outbid(each.version)
        self._tell_others([self._state_anew(each) for each in refuted], None)
        later = [self._view.spoken_for_since(each) for each in message.statements]
        self._tell(peer, [each for each in later if each is not None])

    def speak_for(self, unit: Unit) -> None:
        """Say for a broker or unit that it has no connection any more."""
        self._tell_others(self._view.state_for(unit), None)

    def speak_for_broker(self, broker: BrokerNumber) -> None:
        """The same of one broker, wherever it is."""
        self._tell_others(self._view.state_for_broker(broker), None)

    def only_outside(self) -> Iterable[BrokerNumber]:
        """Brokers of an own unit that outsiders know to be connected, and nobody here does."""
        self._only_outside = {
            about: said
            for about, said in self._only_outside.items()
            if self._view.is_only_outside(said)
        }
        return tuple({said.by: None for said in self._only_outside.values() if said.factor})

    def speak_for_unknown(self, broker: BrokerNumber) -> None:
        """Say for such a broker that it has no connection; one that lives says otherwise."""
        found = [each for each in self._only_outside.values() if each.by == broker and each.factor]
        self._tell_others([self._view.state_for_unknown(each) for each in found], None)

    def _outbid(self, forged: Statement) -> None:
        """State a connection as it is, under a version later than a forged one."""
        self.counters["statements_outbid"] += 1
        self._view.outbid(forged.version)
        peer = _other_end(forged)
        if peer in self._neighbours:
            self._tell_others([self._state_anew(forged)], None)
        else:
            self._tell_others([self._view.deny(forged)], None)

    def use(self, hierarchy: Hierarchy) -> None:
        """Take the links of a topology: connections elsewhere are refused."""
        links = (*hierarchy.links, *hierarchy.links_of_left)
        self._links = dict.fromkeys((min(link), max(link)) for link in links)

    def _note_only_outside(self, statements: Iterable[Statement]) -> None:
        for each in statements:
            if self._view.is_only_outside(each):
                about = (each.low, each.high), each.by
                noted = self._only_outside.get(about, each)
                self._only_outside[about] = max(noted, each, key=lambda said: said.version)

    def _state_anew(self, refuted: Statement) -> Statement:
        """How a connection really is of which others have spoken in this broker's place."""
        peer = _other_end(refuted)
        factor = self.factor(peer) if self._reaches(peer) else DOWN
        return self._view.state(peer, self._neighbours[peer], factor)

    def _tell_others(self, statements: Iterable[Statement], origin: BrokerNumber | None) -> None:
        told = tuple(statements)
        for peer in self._neighbours:
            if peer != origin and self._reaches(peer):
                self._tell(peer, told)

    def _tell(self, peer: BrokerNumber, statements: Iterable[Statement]) -> None:
        address = self._neighbours[peer]
        told = [self._view.for_peer(each, peer, address) for each in statements]
        seen = tuple(each for each in told if each is not None)
        if seen:
            self._machine.send(peer, GraphStated(seen))

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


def _other_end(statement: Statement) -> BrokerNumber:
    """Whom the broker that says it is connected with."""
    return statement.high if statement.by == statement.low else statement.low
