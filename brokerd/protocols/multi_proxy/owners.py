"""The owners of topics at an access broker: requests for owners, and durable changes.

A later owner is durable before its use, so that this broker never returns to a server that has
given a topic away: the new owner would drop what this broker follows. `ownership.py` has the rules
by which an owner is believed.

Paper: [MP22] §3, §3.1.7. Deviates: the access broker sends the query, through a proxy, and keeps
the answer; the paper's proxies keep it, and guess missing owners.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.fetches import Fetches
from brokerd.protocols.multi_proxy.messages import Locate, Owner
from brokerd.protocols.multi_proxy.publishes import Publishes
from brokerd.protocols.multi_proxy.routes import ServerRoutes
from brokerd.protocols.multi_proxy.state import CHOSEN, OwnerTable
from brokerd.protocols.parts.event_machine import Durability


@dataclass(slots=True, eq=False)
class _OwnerWait:
    """An action that needs the owners of these topics."""

    topics: tuple[int, ...]
    then: Callable[[], None]


class OwnerRequests:
    """The requests for owners, and the actions that wait for owners.

    Args:
        arbiters: per topic the server that decides on its owner.
        publishes: sends the publications that wait for an owner.

    Attributes:
        sought: the requested topics, by the server that a request names.
        doubted: topics whose owner an arbiter has to confirm.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        arbiters: Sequence[BrokerNumber],
        table: OwnerTable,
        routes: ServerRoutes,
        publishes: Publishes,
    ) -> None:
        self.sought: dict[BrokerNumber, dict[int, None]] = {}
        self.doubted: dict[int, None] = {}
        self._broker = broker
        self._arbiters = arbiters
        self._table = table
        self._routes = routes
        self._publishes = publishes
        self._waiting: list[_OwnerWait] = []

    def wait(self, topics: Sequence[int], then: Callable[[], None]) -> list[int]:
        """Call `then` once all these topics have owners; return the topics without an owner."""
        unknown = [topic for topic in topics if topic not in self._table.known]
        if unknown:
            self._waiting.append(_OwnerWait(tuple(topics), then))
        else:
            then()
        return unknown

    def seek(self, topics: Sequence[int]) -> None:
        """Request the owners of topics from their arbiters, unless present or requested."""
        for arbiter, new in self._group_by_arbiter(topics):
            self.request(arbiter, new)

    def request(self, server: BrokerNumber, topics: Sequence[int]) -> None:
        """Request the owners of topics, in a request to a server."""
        self.sought.setdefault(server, {}).update(dict.fromkeys(topics))
        self._routes.send(Locate(server, self._broker, tuple(topics)))

    def _group_by_arbiter(
        self, topics: Sequence[int]
    ) -> Iterator[tuple[BrokerNumber, tuple[int, ...]]]:
        found: dict[BrokerNumber, list[int]] = {}
        for topic in topics:
            arbiter = self._arbiters[topic]
            if topic not in self._table.known and topic not in self.sought.get(arbiter, ()):
                found.setdefault(arbiter, []).append(topic)
        return iter([(arbiter, tuple(new)) for arbiter, new in found.items()])

    def remember(self, owners: Sequence[Owner]) -> None:
        """Take owners from before a crash; an earlier row may have requested them already."""
        self._table.known.update((owner.topic, owner.server) for owner in owners)
        sought = {topic for topics in self.sought.values() for topic in topics}
        self._found([owner.topic for owner in owners if owner.topic in sought])

    def add(self, owners: Sequence[Owner]) -> None:
        """Use the owners of topics without an owner."""
        known = self._table.known
        new = [owner for owner in owners if owner.topic not in known]
        known.update((owner.topic, owner.server) for owner in new)
        self._found([owner.topic for owner in new])

    def _found(self, topics: Sequence[int]) -> None:
        for topic in topics:
            self.settle(topic)
        if topics:
            self._publishes.on_owners(topics)
            self._call_ready()

    def settle(self, topic: int) -> None:
        """Take the answer to a request for an owner."""
        for sought in self.sought.values():
            sought.pop(topic, None)

    def _call_ready(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if all(topic in self._table.known for topic in each.topics):
                each.then()
            else:
                self._waiting.append(each)

    def list_awaited(self) -> tuple[int, ...]:
        """Return the topics without an owner that an action waits for."""
        return tuple({topic: None for each in self._waiting for topic in each.topics})

    def awaits(self, server: BrokerNumber) -> bool:
        """Return True if a server has not answered a request for owners."""
        return bool(self.sought.get(server))

    def answer(self, server: BrokerNumber, *, was_awaited: bool) -> None:
        """Record an answer of a server, if one was awaited."""
        if was_awaited:
            self._routes.on_answer(server, Locate, wholly=not self.awaits(server))

    def resend(self, server: BrokerNumber) -> None:
        """Repeat unanswered requests for owners to a server."""
        if self.awaits(server):
            self._routes.send(Locate(server, self._broker, tuple(self.sought[server])))

    def doubt(self, topic: int) -> None:
        """Ask the arbiter for the owner of a topic, and use the present owner meanwhile."""
        if topic not in self.doubted:
            self.doubted[topic] = None
            self.request(self._arbiters[topic], (topic,))


class OwnerChanges:
    """The durable changes of owners at an access broker.

    Args:
        names: of all servers.
        fetches: continues a topic at another server.

    Attributes:
        choosing: the servers of topics that are not durable yet.
    """

    def __init__(
        self,
        names: Mapping[BrokerNumber, str],
        topics: int,
        disk: Durability,
        table: OwnerTable,
        requests: OwnerRequests,
        publishes: Publishes,
        fetches: Fetches,
    ) -> None:
        self.choosing: dict[int, BrokerNumber] = {}
        self._names = names
        self._topics = topics
        self._disk = disk
        self._table = table
        self._requests = requests
        self._publishes = publishes
        self._fetches = fetches

    def check(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """Check that topics and servers exist, and that a message names one owner of each topic.

        Raises:
            RemoteProtocolError: they do not, or it names two; the fault of the peer.
        """
        named: dict[int, Owner] = {}
        for owner in owners:
            topic, server, _ = owner
            if topic >= self._topics or server not in self._names:
                raise RemoteProtocolError(peer, f"broker {server} owns topic {topic}")
            if named.setdefault(topic, owner) != owner:
                raise RemoteProtocolError(peer, f"two owners: {named[topic]} and {owner}")

    def is_new(self, topic: int) -> bool:
        """Return True for a topic without an owner, or a server that is about to be one."""
        return topic not in self._table.known and topic not in self.choosing

    def use(self, owners: Sequence[Owner]) -> None:
        """Use servers for topics without an owner from now on."""
        if self._table.are_in_turn:
            self._table.generations.update((each.topic, each.generation) for each in owners)
        self._requests.add(owners)

    def choose(self, owners: Sequence[Owner]) -> None:
        """Use servers for topics without an owner, once durable."""
        self.choosing.update((owner.topic, owner.server) for owner in owners)

        def chosen() -> None:
            for owner in owners:
                self.choosing.pop(owner.topic, None)
            self.use(owners)

        self._disk.commit([self._row(owner) for owner in owners], chosen)

    def change(self, owners: Sequence[Owner]) -> None:
        """Use other servers for topics, once durable."""
        owners = [*dict.fromkeys(owners)]
        self.choosing.update((owner.topic, owner.server) for owner in owners)

        def chosen() -> None:
            for owner in owners:
                self._move(owner)

        self._disk.commit([self._row(owner) for owner in owners], chosen)

    def _row(self, owner: Owner) -> Change:
        in_turn = self._table.are_in_turn
        value = [owner.server, owner.generation] if in_turn else owner.server
        return Change(CHOSEN, str(owner.topic), value)

    def _move(self, owner: Owner) -> None:
        topic, server, generation = owner
        if self._table.are_in_turn:
            self._table.generations[topic] = generation
        del self.choosing[topic]
        before = self._table.known[topic]
        self._publishes.forget_owners({topic: before})
        self._table.known[topic] = server
        self._fetches.move(topic, before, server)
        self._publishes.on_owners((topic,))

    def follow_again(self, owners: Sequence[Owner]) -> None:
        """Repeat the Follow to servers that have more of a topic, or wait for it."""
        for topic, server, _ in owners:
            if self._table.known.get(topic) == server:
                self._fetches.request_again(topic, server)
