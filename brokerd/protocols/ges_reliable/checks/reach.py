"""The brokers that reach each other while links stay broken for ever."""

from collections.abc import Sequence

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.hierarchy import Address
from brokerd.overlay.section_checks import find_unconnected
from brokerd.protocols.ges.units import hierarchy_from
from brokerd.simulator.checks.protocol_checks import Reach


class GesReliableReach(Reach):
    """See Reach: demands need a path to every storage, as any storage may receive requests."""

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        """See Reach."""
        return self.starts(source) and self.starts(home)

    def starts(self, home: BrokerNumber) -> bool:
        """See Reach: partitioned units are not tolerated."""
        if not self._is_whole():
            return False
        storages = [broker for broker, _ in hierarchy_from(self._graph.overlay).all_storages]
        return all(super(GesReliableReach, self).reaches(home, each) for each in storages)

    def ends(self, home: BrokerNumber) -> bool:
        """See Reach: ends are durable at a storage."""
        return self.starts(home)

    def acknowledges(self, source: BrokerNumber, homes: Sequence[BrokerNumber]) -> bool:
        """See Reach: publications on a storage's disk are acknowledged, whatever the reach."""
        return self.starts(source)

    def _is_whole(self) -> bool:
        """Return True if every unit is connected by the remaining links and brokers inside."""
        hierarchy = hierarchy_from(self._graph.overlay)
        left = [link for link in hierarchy.links if (min(link), max(link)) not in self._broken]
        units: dict[Address, list[BrokerNumber]] = {}
        for broker, address in enumerate(hierarchy.addresses):
            if broker in self._removed:
                continue
            for length in range(len(address)):
                units.setdefault(address[:length], []).append(broker)
        return not any(find_unconnected(left, members) for members in units.values())
