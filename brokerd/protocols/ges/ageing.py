"""The detection of brokers and units that have failed for ever, and statements in their place.

A broker that has had no path to a broker or unit for long states in its place that its connections
are down and that its profile is empty. All brokers that miss the unit state this under the same
version, so that the statement is flooded once; a live broker that receives the statement about
itself refutes it under a later version.

Paper: [GES] §4 (a broker or unit may fail for ever).
"""

from collections.abc import Sequence

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.ges.graph import Graph
from brokerd.protocols.ges.paths import Paths
from brokerd.protocols.ges.profiles import Profiles
from brokerd.protocols.ges.propagation import Propagation
from brokerd.protocols.ges.units import Place, Unit
from brokerd.protocols.ges.view import GraphView

LOOKS = 2
"""Looks at which a unit is missing, over the whole wait, before the look that decides."""
MOST_LOOKS = 32
"""The same for a broker that has refuted statements in its place again and again."""


class Ageing:
    """The missing brokers and units of a broker.

    Attributes:
        spoken_for: the number of statements made in the place of missing brokers and units.
    """

    def __init__(
        self,
        place: Place,
        view: GraphView,
        paths: Paths,
        profiles: Profiles,
        graph: Graph,
        propagation: Propagation,
    ) -> None:
        self.spoken_for = 0
        self._place = place
        self._view = view
        self._paths = paths
        self._profiles = profiles
        self._graph = graph
        self._propagation = propagation
        self._missed: dict[Unit, int] = {}
        self._unknown: dict[BrokerNumber, int] = {}
        self._patience: dict[BrokerNumber, int] = {}

    def begin_anew(self) -> None:
        """Forget all missing brokers and units."""
        self._missed.clear()
        self._unknown.clear()

    def look(self) -> bool:
        """State the failure of all units that were missing at the last looks.

        Returns:
            True to look again.
        """
        named = dict.fromkeys((*self._view.connected(), *self._profiles.places()))
        missing = [unit for unit in named if not self._is_there(unit)]
        self._missed = {unit: self._missed.get(unit, 0) + 1 for unit in missing}
        for unit in sorted(self._missed):
            if self._missed[unit] > LOOKS:
                del self._missed[unit]
                self.spoken_for += 1
                self._graph.speak_for(unit)
                self._propagation.speak_for(unit)
        return bool(self._missed) | self._look_for_unknown()

    def unknown(self) -> Sequence[BrokerNumber]:
        """Return brokers of own units with later statements outside than inside."""
        return *self._graph.only_outside(), *self._propagation.only_outside()

    def _look_for_unknown(self) -> bool:
        """Count brokers of own units with statements outside only, as all inside have restarted.

        A live broker in a partitioned part of the unit refutes the statement; the wait for that
        broker then doubles.
        """
        self._unknown = {origin: self._unknown.get(origin, 0) + 1 for origin in self.unknown()}
        for origin in sorted(self._unknown):
            if self._unknown[origin] > self._patience.get(origin, LOOKS):
                del self._unknown[origin]
                self._patience[origin] = min(2 * self._patience.get(origin, LOOKS), MOST_LOOKS)
                self.spoken_for += 1
                self._graph.speak_for_unknown(origin)
                self._propagation.speak_for_unknown(origin)
        return bool(self._unknown)

    def _is_there(self, unit: Unit) -> bool:
        return self._place.is_in(unit) or self._paths.best(unit) is not None
