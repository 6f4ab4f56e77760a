"""Publications that wait although a hop exists: for legitimacy, and while draining.

A hop with a waiting publication is *blocked*: all later publications in the queue wait too.
Otherwise the order would be lost, and publications, which would count as old.

Paper: [DFT11] §VII lines 693-700 (legitimate propagation). Deviates: the paper does not define
the handling of publications behind one that may not be forwarded.
"""

from collections.abc import Iterable, Sequence

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.as_published.vectors import window
from brokerd.protocols.delta_tree.broker.state import State
from brokerd.protocols.delta_tree.messages import SequenceVector
from brokerd.protocols.delta_tree.publications.entries import Entry, Route
from brokerd.protocols.delta_tree.sessions.sessions import Sessions


class Resending:
    """Publications leave a hop as soon as another one exists (`switch` "resend")."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def list_staying(self) -> dict[BrokerNumber, int]:
        """Return hop → session for transfers that may stay, in addition to hops in use."""
        return {}

    def list_blocked(
        self, entries: Iterable[Entry], routes: Sequence[Route]
    ) -> dict[BrokerNumber, None]:
        """Return the hops that wait for a confirmation by another hop."""
        return {}


class Draining(Resending):
    """Publications stay at their hop while the session lives (`switch` "drain")."""

    def list_staying(self) -> dict[BrokerNumber, int]:
        """See Resending."""
        nodes = self._sessions.nodes.values()
        return {node.broker: node.session for node in nodes if node.session}

    def list_blocked(
        self, entries: Iterable[Entry], routes: Sequence[Route]
    ) -> dict[BrokerNumber, None]:
        """See Resending."""
        return {
            route.hop: None
            for entry in entries
            for transfer in entry.transfers.values()
            for route in routes
            if route.hop != transfer.hop and route.destinations & transfer.destinations
        }


class Observing:
    """Publications without legitimate propagation continue (`legitimacy` "observe")."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._window = window(state)

    def holds(self, vector: SequenceVector | None, hop: BrokerNumber) -> bool:
        """Return True if publications with this vector may not be sent to a hop."""
        return False

    def count_bypassed(self, vector: SequenceVector) -> int:
        """Return the number of brokers of the window that publications bypassed."""
        return vector.stamps.count(None)

    def next_vector(self, vector: SequenceVector, hop: BrokerNumber) -> SequenceVector:
        """Return the vector of the publications at the hop."""
        passed = len(self._state.neighbourhood.paths[hop]) - 2
        if not passed:
            return vector
        return SequenceVector(vector.sequence, ((None,) * passed + vector.stamps)[: self._window])


class Holding(Observing):
    """Publications without legitimate propagation wait (`legitimacy` "hold")."""

    def holds(self, vector: SequenceVector | None, hop: BrokerNumber) -> bool:
        """See Observing."""
        assert vector is not None, "publications without a vector"
        return self.count_bypassed(self.next_vector(vector, hop)) > self._state.parameters.delta


class Propagation:
    """The decision whether an entry may be sent to a hop now, and its vector."""

    def __init__(self, state: State, sessions: Sessions) -> None:
        self._state = state
        drains, holds = state.parameters.switch == "drain", state.parameters.legitimacy == "hold"
        self._switch = (Draining if drains else Resending)(sessions)
        self._legitimacy = (Holding if holds else Observing)(state)
        self._blocked: dict[BrokerNumber, None] = {}

    @property
    def blocks(self) -> bool:
        """True if a publication waits for an existing hop."""
        return bool(self._blocked)

    # ------------------------------------------------------------ waiting

    def list_staying(self) -> dict[BrokerNumber, int]:
        """Return hop → session for transfers that may stay, in addition to hops in use."""
        return self._switch.list_staying()

    def begin(self, entries: Iterable[Entry], routes: Sequence[Route]) -> None:
        """Clear the blocked hops; block hops with publications still at another hop."""
        self._blocked = self._switch.list_blocked(entries, routes)

    def can_send(self, entry: Entry, vector: SequenceVector | None, route: Route) -> bool:
        """Return True if the entry may be sent to the hop now; otherwise block the hop.

        Called in queue order.
        """
        if route.hop in self._blocked:
            return False
        if entry.notifier is not None or not self._legitimacy.holds(vector, route.hop):
            return True
        self._state.counters["legitimacy_held"] += entry.publications
        self._blocked[route.hop] = None
        return False

    # ------------------------------------------------------------ sending

    def vector_for(
        self, vector: SequenceVector, hop: BrokerNumber, publications: int
    ) -> SequenceVector:
        """Return the vector that publications carry to a hop."""
        onward = self._legitimacy.next_vector(vector, hop)
        if self._legitimacy.count_bypassed(onward) > self._state.parameters.delta:
            self._state.counters["legitimacy_violating"] += publications
        return onward
