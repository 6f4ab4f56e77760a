"""The brokers that reach each other while links stay broken for ever."""

from collections.abc import Sequence
from itertools import combinations

from brokerd.model.identity import BrokerNumber
from brokerd.overlay.bipartite import Bipartite
from brokerd.protocols.multi_proxy.parameters import RENDEZVOUS
from brokerd.simulator.checks.protocol_checks import Reach


class MultiProxyReach(Reach):
    """See Reach: demands need a route to every server, because any may own the topic.

    Unless owners follow from names alone, servers assign topics to each other, and transfer them,
    over any proxy that reaches both. Publish requests to a topic in transfer wait at the giving
    server.
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
        """See Reach: publications on a server's disk are acknowledged, whatever the reach."""
        return self.starts(source)

    def _servers(self) -> tuple[BrokerNumber, ...]:
        overlay = self._graph.overlay
        assert isinstance(overlay, Bipartite), f"{overlay} has no servers"
        return overlay.servers
