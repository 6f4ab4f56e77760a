"""The owners of topics in the memory of a proxy, and the servers that the proxy proposes.

If a server has many more topics than another, the proxy proposes to move one.

Paper: [MP22] §3 (a topic that is not known goes to the server with the fewest). Deviates: unless
proxies decide, a proxy only proposes a server, the topic's arbiter decides.
"""

from collections.abc import Container, Sequence

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.multi_proxy.messages import (
    Claim,
    Locate,
    Located,
    Merge,
    Move,
    Owner,
)
from brokerd.protocols.parts.bounds import check_generation


class Claims:
    """The owners of topics in the memory of a proxy.

    Args:
        topics: the number of topics.
        servers: number and name of each.
        sessions: brokers with a session.
        arbiters: per topic the server that decides on its owner.
        spread: the difference in topics at which a server gives one to another; 0: never.
        decides: the proxy gives topics to servers itself, and detects double owners.

    Attributes:
        merges: messages to servers; the sender empties the list.
    """

    def __init__(
        self,
        topics: int,
        servers: Sequence[tuple[BrokerNumber, str]],
        sessions: Container[BrokerNumber],
        arbiters: Sequence[BrokerNumber] = (),
        spread: int = 0,
        *,
        decides: bool = False,
    ) -> None:
        self._topics = topics
        self._names = dict(servers)
        self._sessions = sessions
        self._decides = decides
        self._owners: dict[int, BrokerNumber] = {}
        self._proposed: dict[int, BrokerNumber] = {}
        self._arbiters = arbiters
        self._spread = spread
        self._generations: dict[int, int] = {}
        self._answered: dict[BrokerNumber, None] = {}
        self._moved: dict[Owner, None] = {}
        self.merges: list[Merge] = []
        self._counts = dict.fromkeys(self._names, 0)

    def owners(self) -> tuple[Owner, ...]:
        """Return all owners in memory; none is announced without a request if proxies decide."""
        if self._decides:
            return ()
        return tuple(
            Owner(topic, server, self._generations.get(topic, 0))
            for topic, server in sorted(self._owners.items())
        )

    def claim(self, message: Locate, peer: Peer) -> Claim:
        """Return an access broker's request, with a candidate for each topic.

        Raises:
            RemoteProtocolError: there is no such topic; the fault of the peer.
        """
        if beyond := [topic for topic in message.topics if topic >= self._topics]:
            raise RemoteProtocolError(peer, f"there is no topic {beyond[0]}")
        return Claim(
            message.server,
            message.home,
            tuple(Owner(topic, self._candidate(topic)) for topic in message.topics),
            message.mark,
        )

    def locate(self, message: Locate, peer: Peer) -> Located | None:
        """Return the answer to a request if this proxy decides; None: an arbiter does.

        A new topic is given to the server with the fewest.
        """
        if not self._decides:
            return None
        claim = self.claim(message, peer)
        self._record(claim.candidates)
        return Located(message.server, message.home, claim.candidates)

    def _candidate(self, topic: int) -> BrokerNumber:
        """Return the owner of a topic, or the reachable server with the fewest topics.

        Equal servers are chosen by name.
        """
        proposed = self._owners.get(topic, self._proposed.get(topic))
        if proposed is not None and (topic in self._owners or proposed in self._sessions):
            return proposed
        if proposed is not None:
            self._counts[proposed] -= 1
        reached = [server for server in self._names if server in self._sessions]
        chosen = min(
            reached or [*self._names], key=lambda each: (self._counts[each], self._names[each])
        )
        self._proposed[topic] = chosen
        self._counts[chosen] += 1
        return chosen

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> tuple[Owner, ...]:
        """Take announced owners, and return those that are new, or merged if proxies decide.

        A server announces a topic in generation 0 that it does not own. Of two owners in the same
        generation neither is remembered: the arbiter has the right one.

        Raises:
            RemoteProtocolError: no such topic or server; the fault of the peer.
        """
        self.check(peer, owners)
        if self._decides:
            merged = [self._merge(owner) for owner in self._list_doubles(owners)]
            self._record([owner for owner in owners if owner.topic not in self._owners])
            return tuple(merged)
        for owner in owners:
            if not owner.generation and owner.server == self._owners.get(owner.topic):
                self._forget(owner.topic)
        return self._record([owner for owner in owners if owner.generation])

    def check(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """Check that topics and servers exist, and that no generation leaps.

        Raises:
            RemoteProtocolError: they do not, or one does; the fault of the peer.
        """
        for topic, server, generation in owners:
            if topic >= self._topics or server not in self._names:
                raise RemoteProtocolError(peer, f"broker {server} owns topic {topic}")
            check_generation(peer, topic, self._generations.get(topic, 0), generation)

    def _list_doubles(self, owners: Sequence[Owner]) -> list[Owner]:
        known = self._owners
        return [owner for owner in owners if known.get(owner.topic, owner.server) != owner.server]

    def _merge(self, owner: Owner) -> Owner:
        """Return the owner with the earlier name of two, which keeps the topic."""
        topic, server, _ = owner
        both = sorted((server, self._owners[topic]), key=self._names.__getitem__)
        self.merges.append(Merge(both[1], (Owner(topic, both[0]),)))
        self._counts[self._owners[topic]] -= 1
        self._owners[topic] = both[0]
        self._counts[both[0]] += 1
        return Owner(topic, both[0])

    def _forget(self, topic: int) -> None:
        self._counts[self._owners.pop(topic)] -= 1
        self._generations.pop(topic, None)

    def _record(self, owners: Sequence[Owner]) -> tuple[Owner, ...]:
        new: list[Owner] = []
        for owner in owners:
            topic, server, generation = owner
            before, known = self._owners.get(topic), self._generations.get(topic, 0)
            if before not in (None, server) and generation == known:
                self._forget(topic)
                continue
            if before == server:
                self._generations[topic] = max(generation, known)
                continue
            if before is not None and generation < known:
                continue
            if before is not None:
                self._counts[before] -= 1
            self._owners[topic], self._generations[topic] = server, generation
            self._counts[server] += 1
            proposed = self._proposed.pop(topic, None)
            if proposed is not None:
                self._counts[proposed] -= 1
            new.append(owner)
        return tuple(new)

    # ------------------------------------------------------------ announcements to access brokers

    def list_urgent(self, owners: Sequence[Owner]) -> tuple[Owner, ...]:
        """Return later owners, and the owners whose arbiter is unreachable.

        Access brokers request other owners from the arbiters.
        """
        return tuple(
            owner
            for owner in owners
            if owner.generation != 1 or self._arbiters[owner.topic] not in self._sessions
        )

    def list_assigned(self, arbiter: BrokerNumber) -> tuple[Owner, ...]:
        """Return the owners in memory that an arbiter has assigned."""
        return tuple(owner for owner in self.owners() if self._arbiters[owner.topic] == arbiter)

    # ------------------------------------------------------------ topics that are to move

    def on_announcement(self, server: BrokerNumber) -> None:
        """Record that a server has announced its topics."""
        self._answered[server] = None

    def lose(self, server: BrokerNumber) -> None:
        """Record that a server is unreachable."""
        self._answered.pop(server, None)
        self._moved.clear()

    def move(self) -> Move | None:
        """Return the proposal to move a topic; None while no server has many more than another.

        A topic is proposed to a server once, until any server becomes unreachable: a past owner
        does not receive the topic.
        """
        answered = [server for server in self._names if server in self._answered]
        if not self._spread or not answered:
            return None
        owned: dict[BrokerNumber, list[int]] = {server: [] for server in answered}
        for topic, server in sorted(self._owners.items()):
            if server in owned:
                owned[server].append(topic)
        least = min(answered, key=lambda each: (len(owned[each]), self._names[each]))
        most = max(answered, key=lambda each: (len(owned[each]), self._names[each]))
        if len(owned[most]) - len(owned[least]) < self._spread:
            return None
        for topic in owned[most]:
            proposed, arbiter = Owner(topic, least), self._arbiters[topic]
            if proposed not in self._moved and arbiter in self._sessions:
                self._moved[proposed] = None
                return Move(arbiter, (proposed,))
        return None
