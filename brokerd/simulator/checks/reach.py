"""Who still hears whom while links stay broken for ever."""

from collections.abc import Iterable, Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.graph import OverlayGraph
from brokerd.overlay.routes import Link


class Reach:
    """What is demanded with these links broken: as it stands, whatever has a route left.

    Two brokers can have a session when no direction between them is broken.

    Args:
        gone: brokers that never come back; all others are alive. Where only leaves can be gone,
            no way leads over them.

    Attributes:
        lets_nobody_off: whether brokers that were recovering when the links broke must finish.
    """

    lets_nobody_off = True

    def __init__(
        self,
        graph: OverlayGraph,
        parameters: Any,
        broken: Iterable[Link],
        gone: Iterable[BrokerNumber] = (),
    ) -> None:
        self._graph = graph
        self._gone = frozenset(gone)
        self._parameters = parameters
        self._broken = {(min(pair), max(pair)): None for pair in broken}
        self._known: dict[Link, bool] = {}

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        """Whether publications get from one broker to another."""
        pair = source, home
        found = self._known.get(pair)
        if found is None:
            found = self._known[pair] = self._find(source, home)
        return found

    def starts(self, home: BrokerNumber) -> bool:
        """Whether a subscription at a broker must start."""
        return True

    def ends(self, home: BrokerNumber) -> bool:
        """Whether what clients of a broker end must be over, which may be said elsewhere."""
        return True

    def acknowledges(self, source: BrokerNumber, homes: Sequence[BrokerNumber]) -> bool:
        """Whether publishers at a broker are told that what they publish is done.

        Args:
            homes: of all subscribers.
        """
        return all(self.reaches(source, home) for home in homes)

    def _find(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        return self._graph.is_open(source, home, self._broken)
