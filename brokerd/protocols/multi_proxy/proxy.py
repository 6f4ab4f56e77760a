"""A proxy: forwards requests to their servers and answers to access brokers; remembers owners.

A proxy is stateless: all brokers have the owners of topics, and access brokers repeat requests
that a crashed proxy has lost, over another proxy. Its memory of owners is volatile: after a
restart, servers announce their topics, and their arbiters have the rest.

Paper: [MP22] §3 (a topic that is not known goes to the server with the fewest), §3.1.5. Deviates:
it does not repeat requests by itself, see `routes.py`; unless proxies decide, it only proposes a
server, the topic's arbiter decides; and servers announce their topics at the beginning of a session
and after additions, not every five seconds. If a server has many more topics than another, the
proxy proposes to move one.
"""

from collections.abc import Container, Sequence
from typing import Any, Protocol

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.multi_proxy.messages import (
    Answer,
    Answered,
    Assign,
    Assigned,
    Carry,
    Claim,
    Follow,
    Following,
    Get,
    Give,
    Locate,
    Located,
    Lost,
    Merge,
    Merged,
    Messages,
    Move,
    Owned,
    Owner,
    Periodic,
    Put,
    Request,
    Servers,
    Stored,
    Transfer,
    Transferred,
)
from brokerd.protocols.parts.event_machine import EventMachine, MessageHandler
from brokerd.protocols.parts.version_bounds import check_generation


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
        return Claim(
            message.server,
            message.home,
            tuple(Owner(topic, self._candidate(topic, peer)) for topic in message.topics),
        )

    def locate(self, message: Locate, peer: Peer) -> Located | None:
        """Return the answer to a request if this proxy decides; None: an arbiter does.

        A new topic is given to the server with the fewest.
        """
        if not self._decides:
            return None
        claim = self.claim(message, peer)
        self._record(peer, claim.candidates)
        return Located(message.server, message.home, claim.candidates)

    def _candidate(self, topic: int, peer: Peer) -> BrokerNumber:
        """Return the owner of a topic, or the reachable server with the fewest topics.

        Equal servers are chosen by name.
        """
        if topic >= self._topics:
            raise RemoteProtocolError(peer, f"there is no topic {topic}")
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
        if self._decides:
            merged = [self._merge(peer, owner) for owner in self._list_doubles(owners)]
            self._record(peer, [owner for owner in owners if owner.topic not in self._owners])
            return tuple(merged)
        for owner in owners:
            if not owner.generation and owner.server == self._owners.get(owner.topic):
                self._forget(owner.topic)
        return self._record(peer, [owner for owner in owners if owner.generation])

    def _list_doubles(self, owners: Sequence[Owner]) -> list[Owner]:
        known = self._owners
        return [owner for owner in owners if known.get(owner.topic, owner.server) != owner.server]

    def _merge(self, peer: Peer, owner: Owner) -> Owner:
        """Return the owner with the earlier name of two, which keeps the topic."""
        topic, server, _ = owner
        if server not in self._names:
            raise RemoteProtocolError(peer, f"broker {server} owns topic {topic}")
        both = sorted((server, self._owners[topic]), key=self._names.__getitem__)
        self.merges.append(Merge(both[1], (Owner(topic, both[0]),)))
        self._counts[self._owners[topic]] -= 1
        self._owners[topic] = both[0]
        self._counts[both[0]] += 1
        return Owner(topic, both[0])

    def _forget(self, topic: int) -> None:
        self._counts[self._owners.pop(topic)] -= 1
        self._generations.pop(topic, None)

    def _record(self, peer: Peer, owners: Sequence[Owner]) -> tuple[Owner, ...]:
        for owner in owners:
            check_generation(peer, owner.topic, self._generations.get(owner.topic, 0), owner[2])
        new: list[Owner] = []
        for owner in owners:
            topic, server, generation = owner
            if topic >= self._topics or server not in self._names:
                raise RemoteProtocolError(peer, f"broker {server} owns topic {topic}")
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


class OwnAccess(Protocol):
    """The access broker of a proxy's own clients."""

    def take(self, peer: BrokerNumber, answer: Any) -> None:
        """Take an answer of a server."""

    def on_servers(self, proxy: BrokerNumber, servers: tuple[BrokerNumber, ...]) -> None:
        """Take the reachable servers."""

    def on_owned(self, peer: BrokerNumber, owners: tuple[Owner, ...]) -> None:
        """Take owners of topics."""


class Proxy:
    """The role of a broker between access brokers and servers.

    Args:
        sessions: brokers with a session.
        claims: the owners in this proxy's memory.
        access: of this broker's own clients.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        servers: Sequence[BrokerNumber],
        homes: Sequence[BrokerNumber],
        counters: dict[str, int],
        sessions: Container[BrokerNumber],
        claims: Claims,
        access: OwnAccess,
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._servers = tuple(servers)
        self._homes = tuple(homes)
        self._counters = counters
        self._sessions = sessions
        self._claims = claims
        self._access = access

    def handlers(self) -> dict[type, MessageHandler]:
        """Return the handlers of messages."""
        requests = dict.fromkeys((Put, Follow, Get, Locate), self._on_request)
        answers = dict.fromkeys(
            (Stored, Following, Messages, Lost, Answered, Located, Merged), self._on_answer
        )
        between: dict[type, MessageHandler] = {
            Assign: self._on_assign,
            Assigned: self._on_assigned,
            Give: self._on_give,
            Owned: self._on_owners,
            Periodic: self._on_periodic,
            Carry: self._on_given,
            Transfer: self._on_given,
            Transferred: self._on_transferred,
        }
        return {**requests, **answers, **between}

    def on_session(self, peer: BrokerNumber) -> None:
        """Announce a new server to access brokers, or all servers to a new access broker."""
        if peer in self._servers:
            self._announce_all()
        else:
            self._machine.send(peer, self._reachable_servers())
        if known := self._claims.owners():
            self._machine.send(peer, Owned(known))

    def on_session_lost(self, peer: BrokerNumber) -> None:
        """Record a closed session."""
        if peer in self._servers:
            self._claims.lose(peer)
            self._announce_all()

    def pass_on(self, request: Request) -> None:
        """Forward a request; without a session the access broker repeats the request later."""
        if type(request) is Locate:
            located = self._claims.locate(request, request.home)
            if located is not None:
                self._answer(self._broker, located)
                return
            request = self._claims.claim(request, request.home)
        self._send(request.server, request)

    def _send(self, peer: BrokerNumber, message: Any) -> None:
        if peer in self._sessions:
            self._machine.send(peer, message)
        else:
            self._counters["messages_ignored"] += 1

    def _on_request(self, peer: Peer, message: Request) -> None:
        self._check_server(message.server, peer)
        if message.home != peer:
            raise RemoteProtocolError(peer, f"asks for broker {message.home}")
        if type(message) is Put:
            self._counters["publications_forwarded"] += len(message.run)
        self.pass_on(message)

    def _on_answer(self, peer: Any, message: Answer) -> None:
        self._check_server(peer)
        if type(message) is Messages:
            self._counters["publications_forwarded"] += len(message.run)
        self._answer(peer, message)
        if type(message) is Located:
            self._learn(peer, message.owners)

    def _answer(self, peer: BrokerNumber, message: Answer) -> None:
        if message.home == self._broker:
            self._access.take(peer, message)
        else:
            self._send(message.home, message)

    def _on_owners(self, peer: Any, message: Owned) -> None:
        self._check_server(peer)
        self._claims.on_announcement(peer)
        self._learn(peer, message.owners)

    def _learn(self, peer: BrokerNumber, owners: Sequence[Owner]) -> None:
        """Take announced owners, and announce new ones to access brokers."""
        new = self._claims.learn(peer, owners)
        self._merge()
        move = self._claims.move()
        if move is not None:
            self._send(move.server, move)
        if not new:
            return
        for home in self._homes:
            if home in self._sessions:
                self._machine.send(home, Owned(new))
        self._access.on_owned(self._broker, new)

    def _merge(self) -> None:
        for merge in self._claims.merges:
            self._send(merge.server, merge)
        self._claims.merges.clear()

    def _on_periodic(self, peer: Any, message: Periodic) -> None:
        """Forward a server's announcement to the other servers, and merge double owners."""
        self._check_server(peer)
        if message.server != peer:
            raise RemoteProtocolError(peer, f"answers in place of {message.server}")
        self._claims.learn(peer, [Owner(topic, message.server) for topic in message.topics])
        self._merge()
        for server in self._servers:
            if server != peer:
                self._send(server, message)

    def _on_given(self, peer: Any, message: Carry | Transfer) -> None:
        self._check_server(peer)
        self._check_server(message.server, peer)
        self._send(message.server, message)

    def _on_transferred(self, peer: Any, message: Transferred) -> None:
        self._check_server(peer)
        self._check_server(message.giver, peer)
        self._send(message.giver, message)

    def _on_assign(self, peer: Any, message: Assign) -> None:
        self._check_server(peer)
        self._check_server(message.server, peer)
        self._send(message.server, message)

    def _on_give(self, peer: Any, message: Give) -> None:
        self._check_server(peer)
        for server in (message.server, message.owner, message.arbiter):
            self._check_server(server, peer)
        self._send(message.server, message)

    def _on_assigned(self, peer: Any, message: Assigned) -> None:
        self._check_server(peer)
        self._check_server(message.arbiter, peer)
        self._send(message.arbiter, message)

    def _check_server(self, broker: BrokerNumber, peer: Peer | None = None) -> None:
        if broker not in self._servers:
            raise RemoteProtocolError(broker if peer is None else peer, f"{broker} is no server")

    def _reachable_servers(self) -> Servers:
        return Servers(tuple(server for server in self._servers if server in self._sessions))

    def _announce_all(self) -> None:
        reached = self._reachable_servers()
        for home in self._homes:
            if home in self._sessions:
                self._machine.send(home, reached)
        self._access.on_servers(self._broker, reached.reached)
