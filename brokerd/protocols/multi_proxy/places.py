"""Who is what in the overlay, as one broker sees it, and who owns which topic.

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
    """Proxies, servers and homes.

    Attributes:
        proxies, servers: all of them, in the order of the topology.
        neighbours: with whom this broker wants sessions.
        arbiters: per topic the server that follows from a hash: its arbiter, or its owner.
        servers_by_name: number and name of each.
        edges: who is a home and nothing else.
        role: what this broker is, for people.
    """

    def __init__(self, broker: BrokerNumber, topology: Topology, topics: int) -> None:
        overlay = topology.overlay(KIND)
        assert isinstance(overlay, Bipartite), f"{topology.name} is of kind {topology.kind}"
        self._broker = broker
        self._brokers = len(topology.brokers)
        self.proxies = overlay.proxies
        self.servers = overlay.servers
        self.edges = overlay.edges
        self.role = overlay.role(broker)
        across = [a if b == broker else b for a, b in overlay.links if broker in (a, b)]
        self.neighbours = tuple(sorted(across))
        self.servers_by_name = [(server, topology.brokers[server]) for server in self.servers]
        self.arbiters = owners(topics, self.servers_by_name)

    def arbiter(self, topic: int) -> BrokerNumber | None:
        """The server that follows from a topic's hash; None: there is no such topic."""
        return self.arbiters[topic] if topic < len(self.arbiters) else None

    def proxies_of(self, home: BrokerNumber) -> tuple[BrokerNumber, ...]:
        """The proxies in the order in which a home tries them; one that is a proxy needs no other.

        Homes begin with different ones.
        """
        if home in self.proxies:
            return (home,)
        first = home % len(self.proxies)
        return (*self.proxies[first:], *self.proxies[:first])

    def check_proxy(self, peer: Peer, reached: Sequence[BrokerNumber]) -> None:
        """Make sure that a proxy says that it reaches servers.

        Raises:
            RemoteProtocolError: it is none, or they are none.
        """
        if peer not in self.proxies:
            raise RemoteProtocolError(peer, "it reaches servers, and is no proxy")
        if not set(self.servers).issuperset(reached):
            raise RemoteProtocolError(peer, f"not all of {reached} are servers")

    def check_request(self, peer: Peer, message: Request) -> None:
        """Make sure that what came to a server comes from a home, over a proxy.

        Raises:
            RemoteProtocolError: it does not, or is for another server.
        """
        if peer not in self.proxies:
            raise RemoteProtocolError(peer, "it passes on a request, and is no proxy")
        home = message.home
        if message.server != self._broker or home >= self._brokers:
            raise RemoteProtocolError(peer, f"a request of {home} for {message.server}")
        if home in self.proxies and home != peer:
            raise RemoteProtocolError(peer, f"a request of {home}, which is a proxy itself")

    def check_answer(self, peer: Peer, message: Answer) -> None:
        """Make sure that what came to a home is for it and comes over a proxy.

        Raises:
            RemoteProtocolError: it does not.
        """
        if peer not in self.proxies:
            raise RemoteProtocolError(peer, "it passes on an answer, and is no proxy")
        if message.home != self._broker:
            raise RemoteProtocolError(peer, f"an answer for {message.home}")
