"""Which servers own which topics, as one proxy knows it, and whom it would give a new one.

It keeps this in memory only: when it is back, servers say what they own, and their arbiters know
the rest.

Paper: [MP22] §3 (a topic that is not known goes to the server with the fewest), §3.1.5. Deviates:
this proxy only proposes a server, the topic's arbiter decides; and servers say what they own when a
session begins and when it has grown, not every five seconds. Where one of them has many more than
another one, it proposes to move a topic.
"""

from collections.abc import Callable, Sequence

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.multi_proxy.messages import Claim, Locate, Located, Merge, Move, Owner
from brokerd.protocols.parts.leaps import check_generation


class Claims:
    """What one proxy knows of owners.

    Args:
        topics: how many there are.
        servers: number and name of each.
        is_reached: whether there is a session with a server.
        arbiters: per topic the server that decides who owns it.
        spread: how many topics a server has more than another one before it is to give one away;
            0: it is never.

    Attributes:
        merges: what servers are to be told; whoever tells them empties it.
    """

    def __init__(
        self,
        topics: int,
        servers: Sequence[tuple[BrokerNumber, str]],
        is_reached: Callable[[BrokerNumber], bool],
        arbiters: Sequence[BrokerNumber] = (),
        spread: int = 0,
    ) -> None:
        self._topics = topics
        self._names = dict(servers)
        self._is_reached = is_reached
        self._known: dict[int, BrokerNumber] = {}
        self._proposed: dict[int, BrokerNumber] = {}
        self._arbiters = arbiters
        self._spread = spread
        self._generations: dict[int, int] = {}
        self._heard: dict[BrokerNumber, None] = {}
        self._moved: dict[Owner, None] = {}
        self.merges: list[Merge] = []
        self._counts = dict.fromkeys(self._names, 0)

    def known(self) -> tuple[Owner, ...]:
        """All owners that this proxy has heard of."""
        return tuple(
            Owner(topic, server, self._generations.get(topic, 0))
            for topic, server in sorted(self._known.items())
        )

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
        for owner in owners:
            check_generation(peer, owner.topic, self._generations.get(owner.topic, 0), owner[2])
        new: list[Owner] = []
        for owner in owners:
            topic, server, generation = owner
            if topic >= self._topics or server not in self._names:
                raise RemoteProtocolError(peer, f"broker {server} owns topic {topic}")
            before = self._known.get(topic)
            if before is not None and not self._is_later(peer, owner, before):
                continue
            if before is not None:
                self._counts[before] -= 1
            self._known[topic], self._generations[topic] = server, generation
            self._counts[server] += 1
            proposed = self._proposed.pop(topic, None)
            if proposed is not None:
                self._counts[proposed] -= 1
            new.append(owner)
        return tuple(new)

    def _is_later(self, peer: Peer, owner: Owner, before: BrokerNumber) -> bool:
        known = self._generations.get(owner.topic, 0)
        if before != owner.server and owner.generation == known:
            reason = f"topic {owner.topic} is {before}'s and not {owner.server}'s"
            raise RemoteProtocolError(peer, reason)
        return before != owner.server and owner.generation > known

    # ------------------------------------------------------------ topics that are to move

    def hear(self, server: BrokerNumber) -> None:
        """A server has said which topics it owns."""
        self._heard[server] = None

    def lose(self, server: BrokerNumber) -> None:
        """A server is not reached any more."""
        self._heard.pop(server, None)
        self._moved.clear()

    def move(self) -> Move | None:
        """What is to be proposed to a topic's arbiter; None: no server has many more than another.

        A topic is proposed to a server once, until any server is lost: one that has had it will
        not get it.
        """
        heard = [server for server in self._names if server in self._heard]
        if not self._spread or not heard:
            return None
        owned: dict[BrokerNumber, list[int]] = {server: [] for server in heard}
        for topic, server in sorted(self._known.items()):
            if server in owned:
                owned[server].append(topic)
        least = min(heard, key=lambda each: (len(owned[each]), self._names[each]))
        most = max(heard, key=lambda each: (len(owned[each]), self._names[each]))
        if len(owned[most]) - len(owned[least]) < self._spread:
            return None
        for topic in owned[most]:
            proposed, arbiter = Owner(topic, least), self._arbiters[topic]
            if proposed not in self._moved and self._is_reached(arbiter):
                self._moved[proposed] = None
                return Move(arbiter, (proposed,))
        return None
