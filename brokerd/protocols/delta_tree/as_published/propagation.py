"""Which publications have to wait although there is a hop: for legitimacy, and while draining.

A hop for which something waits is *blocked*: everything behind it in the queue waits too, or
the order would be lost, and with it publications, which would be taken for old.

Paper: [DFT11] §VII lines 693-700 (legitimate propagation). Deviates: the paper does not say what
becomes of the publications behind one that may not be forwarded.
"""

from collections.abc import Iterable, Iterator, Sequence

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.delta_tree.broker.state import State
from brokerd.protocols.delta_tree.messages import SequenceVector
from brokerd.protocols.delta_tree.publications.duplicates import window
from brokerd.protocols.delta_tree.publications.entries import (
    FRAME_PAYLOAD_BYTES,
    Entry,
    Route,
    Transfer,
)
from brokerd.protocols.delta_tree.sessions.sessions import Sessions


class Propagation:
    """Says for each entry and hop whether it may go now, and with which vector.

    Attributes:
        careful: whether anything may ever have to wait.
    """

    def __init__(self, state: State, sessions: Sessions) -> None:
        self._state = state
        self._sessions = sessions
        self._window = window(state)
        self._holds = state.parameters.legitimacy == "hold"
        self._drains = state.parameters.switch == "drain"
        self._blocked: dict[BrokerNumber, None] = {}
        self.careful = self._holds or self._drains

    @property
    def blocks(self) -> bool:
        """Whether anything waits for a hop that there is."""
        return bool(self._blocked)

    # ------------------------------------------------------------ waiting

    def riding(self, routes: Iterable[Route]) -> dict[BrokerNumber, int]:
        """Hop → session on which what was sent there may stay."""
        found = {route.hop: route.session for route in routes}
        if self._drains:
            for node in self._sessions.nodes.values():
                if node.session:
                    found[node.broker] = node.session
        return found

    def stays(self, transfer: Transfer, riding: dict[BrokerNumber, int]) -> bool:
        """Whether a transfer goes on where it is.

        A session is an instance: a new one with the same peer has none of what rode the old.
        """
        return riding.get(transfer.hop) == transfer.session

    def begin(self, entries: Iterable[Entry], routes: Sequence[Route]) -> None:
        """Forget what was blocked; block hops whose publications still ride another way."""
        self._blocked.clear()
        if not self._drains:
            return
        for entry in entries:
            for transfer in entry.transfers.values():
                for route in routes:
                    if route.hop != transfer.hop and route.destinations & transfer.destinations:
                        self._blocked[route.hop] = None

    def may_go(self, entry: Entry, route: Route) -> bool:
        """Whether the entry may go to the hop now; if not, nothing behind it may.

        Asked in queue order.
        """
        if route.hop in self._blocked:
            return False
        if not self._holds or entry.notifier is not None:
            return True
        assert entry.vector is not None, f"{entry} has no vector"
        onward = self._onward(entry.vector, route.hop)
        if onward.stamps.count(None) <= self._state.parameters.delta:
            return True
        self._state.counters["legitimacy_held"] += entry.publications
        self._blocked[route.hop] = None
        return False

    # ------------------------------------------------------------ sending

    def vector_for(
        self, vector: SequenceVector | None, hop: BrokerNumber, publications: int
    ) -> SequenceVector | None:
        """The vector that publications carry to a hop."""
        if vector is None:
            return None
        onward = self._onward(vector, hop)
        if onward.stamps.count(None) > self._state.parameters.delta:
            self._state.counters["legitimacy_violating"] += publications
        return onward

    def _onward(self, vector: SequenceVector, hop: BrokerNumber) -> SequenceVector:
        passed = len(self._state.neighbourhood.paths[hop]) - 2
        if not passed:
            return vector
        return SequenceVector(vector.sequence, ((None,) * passed + vector.stamps)[: self._window])


def pack_stamped(transfers: Iterable[Transfer]) -> Iterator[list[Transfer]]:
    """Transfers in queue order, packed into frames whose publications have one vector.

    Entries of one received frame stay together; frames of one source that follow one another
    in every queue they have been in are joined.
    """
    frame: list[Transfer] = []
    size = last = 0
    for transfer in transfers:
        entry = transfer.entry
        run_bytes = entry.run().payload_bytes()
        if frame and entry.vector is not frame[-1].entry.vector:
            too_large = size + run_bytes > FRAME_PAYLOAD_BYTES
            if too_large or entry.frame_first <= last or not _follows(entry, frame[-1].entry):
                yield frame
                frame, size, last = [], 0, 0
        frame.append(transfer)
        size += run_bytes
        last = max(last, entry.last)
    if frame:
        yield frame


def _follows(entry: Entry, before: Entry) -> bool:
    """Whether each broker's stamps go on as the sequences do."""
    if (entry.source, entry.path) != (before.source, before.path) or entry.notifier is not None:
        return False
    assert entry.vector is not None, f"{entry} has no vector"
    assert before.vector is not None, f"{before} has no vector"
    between = entry.vector.sequence - before.vector.sequence
    if between < 0 or len(entry.vector.stamps) != len(before.vector.stamps):
        return False
    return all(
        mine is theirs is None
        or (mine and theirs and mine == (theirs.incarnation, theirs.number + between))
        for mine, theirs in zip(entry.vector.stamps, before.vector.stamps, strict=True)
    )
