"""Who still hears whom while links stay broken for ever."""

from collections.abc import Sequence
from itertools import combinations

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.bipartite import Bipartite
from brokerd.protocols.multi_proxy.parameters import RENDEZVOUS
from brokerd.simulator.checks.reach import Reach


class MultiProxyReach(Reach):
    """See Reach: what is demanded needs a way to every server, because any may own the topic.

    Where topics are not at a server by their names alone, servers assign them to each other, and
    give them away, over any proxy that reaches both. What is put to a topic that is being given
    waits at the server that gives it.
    """

    def reaches(self, source: BrokerNumber, home: BrokerNumber) -> bool:
        """See Reach."""
        return self.starts(source) and self.starts(home)

    def starts(self, home: BrokerNumber) -> bool:
        """See Reach."""
        servers = self._servers()
        pairs = [(home, server) for server in servers]
        if self._parameters.ownership != RENDEZVOUS:
            pairs += combinations(servers, 2)
        return all(super(MultiProxyReach, self).reaches(a, b) for a, b in pairs)

    def acknowledges(self, source: BrokerNumber, homes: Sequence[BrokerNumber]) -> bool:
        """See Reach: what is on a server's disk is done, whoever is reached."""
        return self.starts(source)

    def _servers(self) -> tuple[BrokerNumber, ...]:
        overlay = self._graph.overlay
        assert isinstance(overlay, Bipartite), f"{overlay} has no servers"
        return overlay.servers
