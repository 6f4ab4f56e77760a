"""Who still hears whom while links stay broken for ever."""

from collections.abc import Sequence

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.bipartite import Bipartite
from brokerd.simulator.checks.reach import Reach


class MultiProxyReach(Reach):
    """See Reach: what is demanded needs a way to every server, because any may own the topic."""

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        """See Reach."""
        return self.starts(source) and self.starts(home)

    def starts(self, home: BrokerNumber) -> bool:
        """See Reach."""
        return all(super(MultiProxyReach, self).reaches(home, each) for each in self._servers())

    def acknowledges(self, source: BrokerNumber, homes: Sequence[BrokerNumber]) -> bool:
        """See Reach: what is on a server's disk is done, whoever is reached."""
        return self.starts(source)

    def _servers(self) -> tuple[BrokerNumber, ...]:
        overlay = self._graph.overlay
        assert isinstance(overlay, Bipartite), f"{overlay} has no servers"
        return overlay.servers
