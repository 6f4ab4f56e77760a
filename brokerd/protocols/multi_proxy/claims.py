"""Which servers own which topics, as one proxy knows it, and whom it would give a new one.

It keeps this in memory only: when it is back, servers say what they own, and their arbiters know
the rest.

Paper: [MP22] §3 (a topic that is not known goes to the server with the fewest), §3.1.5. Deviates:
this proxy only proposes a server, the topic's arbiter decides; and servers say what they own when a
session begins and when it has grown, not every five seconds.
"""

from collections.abc import Callable, Sequence

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.multi_proxy.messages import Claim, Locate, Located, Merge, Owner


class Claims:
    """What one proxy knows of owners.

    Args:
        topics: how many there are.
        servers: number and name of each.
        is_reached: whether there is a session with a server.

    Attributes:
        merges: what servers are to be told; whoever tells them empties it.
    """

    def __init__(
        self,
        topics: int,
        servers: Sequence[tuple[BrokerNumber, str]],
        is_reached: Callable[[BrokerNumber], bool],
    ) -> None:
        self._topics = topics
        self._names = dict(servers)
        self._is_reached = is_reached
        self._known: dict[int, BrokerNumber] = {}
        self._proposed: dict[int, BrokerNumber] = {}
        self.merges: list[Merge] = []
        self._counts = dict.fromkeys(self._names, 0)

    def known(self) -> tuple[Owner, ...]:
        """All owners that this proxy has heard of."""
        return tuple(Owner(*pair) for pair in sorted(self._known.items()))

    def claim(self, message: Locate, peer: Peer) -> Claim:
        """What a home asks, with a server for each topic that may have none.

        Raises:
            RemoteProtocolError: there is no such topic.
        """
        return Claim(
            message.server,
            message.home,
            tuple(Owner(topic, self._candidate(topic, peer)) for topic in message.topics),
        )

    def located(self, message: Locate, peer: Peer) -> Located | None:
        """The answer to what a home asks, where this proxy decides; None: an arbiter does."""
        return None

    def _candidate(self, topic: int, peer: Peer) -> BrokerNumber:
        """The server that owns a topic, or that has fewest of those reached; by name if equal."""
        if topic >= self._topics:
            raise RemoteProtocolError(peer, f"there is no topic {topic}")
        proposed = self._known.get(topic, self._proposed.get(topic))
        if proposed is not None and (topic in self._known or self._is_reached(proposed)):
            return proposed
        if proposed is not None:
            self._counts[proposed] -= 1
        reached = [server for server in self._names if self._is_reached(server)]
        chosen = min(
            reached or [*self._names], key=lambda each: (self._counts[each], self._names[each])
        )
        self._proposed[topic] = chosen
        self._counts[chosen] += 1
        return chosen

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> tuple[Owner, ...]:
        """Somebody says who owns topics; returns what was not known before.

        Raises:
            RemoteProtocolError: no such topic or server, or another one was said to own it.
        """
        new: list[Owner] = []
        for owner in owners:
            topic, server = owner
            if topic >= self._topics or server not in self._names:
                raise RemoteProtocolError(peer, f"broker {server} owns topic {topic}")
            if self._known.get(topic, server) != server:
                told = self._known[topic]
                raise RemoteProtocolError(peer, f"topic {topic} is {told}'s and not {server}'s")
            if topic in self._known:
                continue
            self._known[topic] = server
            self._counts[server] += 1
            proposed = self._proposed.pop(topic, None)
            if proposed is not None:
                self._counts[proposed] -= 1
            new.append(owner)
        return tuple(new)
