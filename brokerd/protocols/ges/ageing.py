"""What becomes of brokers and units that do not come back: those who miss them speak for them.

Who has seen no way to a broker or unit for long says in its place that its connections are gone
and that nobody there wants anything. All who miss it say the same under the same version, so that
it goes around once; a broker that lives and hears that says how things are, under a later one.

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
"""So often somebody is missed, in all the time that is waited, before the look that decides."""
MOST_LOOKS = 32
"""The same of one that has said again and again that it lives."""


class Ageing:
    """Whom one broker misses.

    Attributes:
        spoken_for: how often it has spoken for a broker or unit.
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
        """Nobody is missing who is not missed from here."""
        self._missed.clear()
        self._unknown.clear()

    def look(self) -> bool:
        """Speak for those who were missing at each of the last looks; True: look again."""
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
        """Brokers of own units of whom outsiders know more than anybody here."""
        return *self._graph.only_outside(), *self._propagation.only_outside()

    def _look_for_unknown(self) -> bool:
        """Those of own units of whom only outsiders know: all who knew them here have restarted.

        One that lives, in a part of the unit that is apart, says so, and is left alone for longer.
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
