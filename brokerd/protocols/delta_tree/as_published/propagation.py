"""Which publications have to wait although there is a hop: for legitimacy, and while draining.

A hop for which something waits is *blocked*: everything behind it in the queue waits too, or
the order would be lost, and with it publications, which would be taken for old.

Paper: [DFT11] §VII lines 693-700 (legitimate propagation). Deviates: the paper does not say what
becomes of the publications behind one that may not be forwarded.
"""

from collections.abc import Iterable, Sequence

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.as_published.vectors import window
from brokerd.protocols.delta_tree.broker.state import State
from brokerd.protocols.delta_tree.messages import SequenceVector
from brokerd.protocols.delta_tree.publications.entries import Entry, Route
from brokerd.protocols.delta_tree.sessions.sessions import Sessions


class Resending:
    """Publications leave a hop as soon as there is another one (`switch` "resend")."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def staying(self) -> dict[BrokerNumber, int]:
        """Hop → session on which what was sent there may stay, beside those in use."""
        return {}

    def blocked(
        self, entries: Iterable[Entry], routes: Sequence[Route]
    ) -> dict[BrokerNumber, None]:
        """Hops that wait until something is confirmed by another one."""
        return {}


class Draining(Resending):
    """Publications stay where they are while the session lives (`switch` "drain")."""

    def staying(self) -> dict[BrokerNumber, int]:
        """See Resending."""
        nodes = self._sessions.nodes.values()
        return {node.broker: node.session for node in nodes if node.session}

    def blocked(
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
    """What would not propagate legitimately goes on (`legitimacy` "observe")."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._window = window(state)

    def holds(self, vector: SequenceVector | None, hop: BrokerNumber) -> bool:
        """Whether publications with this vector may not go to a hop."""
        return False

    def passed(self, vector: SequenceVector) -> int:
        """How many brokers of the window publications went past."""
        return vector.stamps.count(None)

    def onward(self, vector: SequenceVector, hop: BrokerNumber) -> SequenceVector:
        """The vector with which publications arrive at a hop."""
        passed = len(self._state.neighbourhood.paths[hop]) - 2
        if not passed:
            return vector
        return SequenceVector(vector.sequence, ((None,) * passed + vector.stamps)[: self._window])


class Holding(Observing):
    """What would not propagate legitimately waits (`legitimacy` "hold")."""

    def holds(self, vector: SequenceVector | None, hop: BrokerNumber) -> bool:
        """See Observing."""
        assert vector is not None, "publications without a vector"
        return self.passed(self.onward(vector, hop)) > self._state.parameters.delta


class Propagation:
    """Says for each entry and hop whether it may go now, and with which vector."""

    def __init__(self, state: State, sessions: Sessions) -> None:
        self._state = state
        drains, holds = state.parameters.switch == "drain", state.parameters.legitimacy == "hold"
        self._switch = (Draining if drains else Resending)(sessions)
        self._legitimacy = (Holding if holds else Observing)(state)
        self._blocked: dict[BrokerNumber, None] = {}

    @property
    def blocks(self) -> bool:
        """Whether anything waits for a hop that there is."""
        return bool(self._blocked)

    # ------------------------------------------------------------ waiting

    def staying(self) -> dict[BrokerNumber, int]:
        """Hop → session on which what was sent there may stay, beside those in use."""
        return self._switch.staying()

    def begin(self, entries: Iterable[Entry], routes: Sequence[Route]) -> None:
        """Forget what was blocked; block hops whose publications still ride another way."""
        self._blocked = self._switch.blocked(entries, routes)

    def may_go(self, entry: Entry, vector: SequenceVector | None, route: Route) -> bool:
        """Whether the entry may go to the hop now; if not, nothing behind it may.

        Asked in queue order.
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
        """The vector that publications carry to a hop."""
        onward = self._legitimacy.onward(vector, hop)
        if self._legitimacy.passed(onward) > self._state.parameters.delta:
            self._state.counters["legitimacy_violating"] += publications
        return onward
