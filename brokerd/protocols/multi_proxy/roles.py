"""The roles of brokers in the overlay, as one broker sees them, and hashed owners of topics.

Paper: [MP22] §1, §3 (clients, proxies, servers).
"""

from collections.abc import Sequence
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.overlay.bipartite import Bipartite
from brokerd.overlay.topology import Topology
from brokerd.protocols.multi_proxy.messages import Answer, Request
from brokerd.protocols.multi_proxy.topics import owners

KIND: Final = "bipartite"


class Places:
    """Proxies, servers and access brokers.

    Attributes:
        proxies, servers: all of them, in the order of the topology.
        neighbours: the brokers that this broker requires sessions with.
        arbiters: per topic the server that follows from a hash: its arbiter, or its owner.
        servers_by_name: number and name of each server.
        edges: brokers that are access brokers only.
        homes: all brokers, which are access brokers of their clients.
        role: the role of this broker, for display.
    """

    def __init__(self, broker: BrokerNumber, topology: Topology, topics: int) -> None:
        overlay = topology.overlay(KIND)
        assert isinstance(overlay, Bipartite), f"{topology.name} is of kind {topology.kind}"
        self._broker = broker
        self._brokers = len(topology.brokers)
        self.homes = range(self._brokers)
        self.proxies = overlay.proxies
        self.servers = overlay.servers
        self.edges = overlay.edges
        self.role = overlay.role(broker)
        across = [a if b == broker else b for a, b in overlay.links if broker in (a, b)]
        self.neighbours = tuple(sorted(across))
        self.servers_by_name = [(server, topology.brokers[server]) for server in self.servers]
        self.arbiters = owners(topics, self.servers_by_name)

    def arbiter(self, topic: int) -> BrokerNumber | None:
        """Return the server that follows from a topic's hash; None without such a topic."""
        return self.arbiters[topic] if topic < len(self.arbiters) else None

    def proxies_of(self, home: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """Return the proxies in an access broker's order; a proxy uses itself only.

        Access brokers begin with different proxies.
        """
        if home in self.proxies:
            return (home,)
        first = home % len(self.proxies)
        return (*self.proxies[first:], *self.proxies[:first])

    def check_proxy(self, peer: Peer, reached: Sequence[BrokerNumber]) -> None:
        """Check that a report of reachable servers is from a proxy and of servers.

        Raises:
            RemoteProtocolError: the report is not; the fault of the peer.
        """
        if peer not in self.proxies:
            raise RemoteProtocolError(peer, "it reaches servers, and is no proxy")
        if not set(self.servers).issuperset(reached):
            raise RemoteProtocolError(peer, f"not all of {reached} are servers")

    def check_request(self, peer: Peer, message: Request) -> None:
        """Check that a request to this server is from an access broker, over a proxy.

        Raises:
            RemoteProtocolError: the request is not, or is for another server; the fault of the
                peer.
        """
        if peer not in self.proxies:
            raise RemoteProtocolError(peer, "it passes on a request, and is no proxy")
        home = message.home
        if message.server != self._broker or home >= self._brokers:
            raise RemoteProtocolError(peer, f"a request of {home} for {message.server}")
        if home in self.proxies and home != peer:
            raise RemoteProtocolError(peer, f"a request of {home}, which is a proxy itself")

    def check_answer(self, peer: Peer, message: Answer) -> None:
        """Check that an answer is for this access broker, over a proxy.

        Raises:
            RemoteProtocolError: the answer is not; the fault of the peer.
        """
        if peer not in self.proxies:
            raise RemoteProtocolError(peer, "it passes on an answer, and is no proxy")
        if message.home != self._broker:
            raise RemoteProtocolError(peer, f"an answer for {message.home}")
