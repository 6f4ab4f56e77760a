"""Reachability between brokers while links stay broken for ever."""

from collections.abc import Iterable, Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.routes import Link


class Reach:
    """The demands with these links broken; the base class demands every remaining route.

    Two brokers can have a session if no direction between them is broken.

    Args:
        removed: lost brokers; all other brokers are alive. If only leaves can be lost, no route
            contains a lost broker.

    Attributes:
        lets_nobody_off: brokers that were recovering when the links broke must finish.
    """

    lets_nobody_off = True

    def __init__(
        self,
        graph: OverlayGraph,
        parameters: Any,
        broken: Iterable[Link],
        removed: Iterable[BrokerNumber] = (),
    ) -> None:
        self._graph = graph
        self._removed = frozenset(removed)
        self._parameters = parameters
        self._broken = {(min(pair), max(pair)): None for pair in broken}
        self._known: dict[Link, bool] = {}

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        """Return True if publications of one broker reach another broker."""
        pair = source, home
        found = self._known.get(pair)
        if found is None:
            found = self._known[pair] = self._find(source, home)
        return found

    def starts(self, home: BrokerNumber) -> bool:
        """Return True if a subscription at a broker must start."""
        return True

    def ends(self, home: BrokerNumber) -> bool:
        """Return True if requested ends at a broker must complete, answered anywhere."""
        return True

    def drains(self, home: BrokerNumber) -> bool:
        """Return True if a broker must deliver all earlier publications to a client that moves."""
        return True

    def acknowledges(self, source: BrokerNumber, homes: Sequence[BrokerNumber]) -> bool:
        """Return True if publishers at a broker must receive acknowledgements.

        Args:
            homes: the access brokers of all subscribers.
        """
        return all(self.reaches(source, home) for home in homes)

    def _find(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        return self._graph.is_open(source, home, self._broken)
