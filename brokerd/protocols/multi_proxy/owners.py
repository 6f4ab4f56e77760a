"""The owners of topics at an access broker, and requests that wait for an owner.

With `rendezvous` owners follow from a hash: all are present from the start, and none is requested.
With `arbiter` an owner stays valid until a server has a topic in a higher generation. With `causal`
an access broker uses the server that it received first, until a server names another one. With
`paper` the owners are those of the present proxy.

A later owner is durable before its use, so that this broker never returns to a server that has
given a topic away: the new owner would drop what this broker follows.

Paper: [MP22] §3, §3.1.7. Deviates: the access broker asks, through a proxy, and keeps the answer;
the paper's proxies keep it, and guess missing owners.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.fetches import Fetches
from brokerd.protocols.multi_proxy.messages import Locate, Located, Merged, Owner
from brokerd.protocols.multi_proxy.owner_table import OwnerTable
from brokerd.protocols.multi_proxy.parameters import CAUSAL, PAPER, RENDEZVOUS
from brokerd.protocols.multi_proxy.proxy_routes import ServerRoutes
from brokerd.protocols.multi_proxy.publishes import Publishes
from brokerd.protocols.multi_proxy.roles import Places
from brokerd.protocols.parts.event_machine import Durability
from brokerd.protocols.parts.version_bounds import check_generation

CHOSEN: Final = "chosen"
"""Per topic the server that an access broker uses, and any generation."""


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
        doubted: topics whose owner an arbiter is asked to confirm.
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
            self.ask(arbiter, new)

    def ask(self, server: BrokerNumber, topics: Sequence[int]) -> None:
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
        sought = {topic for asked in self.sought.values() for topic in asked}
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
            self.ask(self._arbiters[topic], (topic,))


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
        """Check that topics and servers exist.

        Raises:
            RemoteProtocolError: they do not; the fault of the peer.
        """
        for topic, server, _ in owners:
            if topic >= self._topics or server not in self._names:
                raise RemoteProtocolError(peer, f"broker {server} owns topic {topic}")

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
                self._fetches.ask_again(topic, server)


class HashedOwners:
    """The owners that follow from a hash (`rendezvous`); none ever changes.

    Attributes:
        table: the owners.
        requests: the requests for owners; there is none.
    """

    def __init__(self, table: OwnerTable, requests: OwnerRequests, fetches: Fetches) -> None:
        self.table = table
        self.requests = requests
        self._fetches = fetches

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the owners of an earlier incarnation."""

    def seek(self, topics: Sequence[int]) -> None:
        """Request the owners of topics, unless present or requested."""
        self.requests.seek(topics)

    def on_routes(self, first: BrokerNumber | None) -> None:
        """Take a change of routes, with the first proxy in this broker's order."""

    def remember(self, owners: Sequence[Owner]) -> None:
        """Take owners from before a crash."""
        self.requests.remember(owners)

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """Take announced owners.

        Raises:
            RemoteProtocolError: the owner of a topic is another one, or there is no such topic; the
                fault of the peer.
        """
        for topic, server, _ in owners:
            if self.table.of(topic) != server:
                raise RemoteProtocolError(peer, f"topic {topic} is not {server}'s")

    def on_located(self, peer: Peer, message: Located) -> None:
        """Take the answer to a request for owners."""
        self.learn(peer, message.owners)

    def on_merged(self, peer: Peer, message: Merged) -> None:
        """Take other owners of topics."""
        self._fetches.on_merged(peer, message)


class PaperOwners:
    """The owners by the proxy of an access broker's route; other proxies may have others.

    Paper: [MP22] §3.
    """

    def __init__(
        self,
        topics: int,
        table: OwnerTable,
        requests: OwnerRequests,
        publishes: Publishes,
        fetches: Fetches,
    ) -> None:
        self.table = table
        self.requests = requests
        self._topics = topics
        self._publishes = publishes
        self._fetches = fetches
        self._proxy: BrokerNumber | None = None

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See HashedOwners: proxies have the owners."""

    def seek(self, topics: Sequence[int]) -> None:
        """See HashedOwners."""
        self.requests.seek(topics)

    def on_routes(self, first: BrokerNumber | None) -> None:
        """See HashedOwners: the owners restart with another proxy."""
        if first == self._proxy:
            return
        self._proxy = first
        gone, self.table.known = self.table.known, {}
        self.requests.sought.clear()
        topics = self._publishes.forget_owners(gone)
        self.requests.seek((*topics, *self.requests.list_awaited()))

    def remember(self, owners: Sequence[Owner]) -> None:
        """See HashedOwners."""
        self.requests.remember(owners)

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """See HashedOwners: a proxy has merged these topics."""
        if self._is_from_proxy(peer, owners):
            self._set(owners)

    def on_located(self, peer: Peer, message: Located) -> None:
        """See HashedOwners: the proxy has answered by itself."""
        if self._is_from_proxy(peer, message.owners):
            before = self.requests.awaits(message.server)
            self._set(message.owners)
            self.requests.answer(message.server, was_awaited=before)

    def on_merged(self, peer: Peer, message: Merged) -> None:
        """See HashedOwners."""
        self._fetches.on_merged(peer, message)

    def _is_from_proxy(self, peer: Peer, owners: Sequence[Owner]) -> bool:
        if any(owner.topic >= self._topics for owner in owners):
            raise RemoteProtocolError(peer, f"not all of {owners} are topics")
        return peer == self._proxy

    def _set(self, owners: Sequence[Owner]) -> None:
        known = self.table.known
        changed = {
            topic: known[topic] for topic, server, _ in owners if known.get(topic, server) != server
        }
        for topic in changed:
            del known[topic]
        self._publishes.forget_owners(changed)
        self.requests.add(owners)


class CausalOwners:
    """The server of each topic, which changes only at the word of a server (`causal`).

    An access broker stores the first answer of a proxy durably before its use. So its publish
    requests go to one server only, until that server reports that another one has everything.

    Paper: [MP22] §3. Deviates: the access broker stores the answer, so that a proxy that has lost
    its memory separates no broker from a topic in use.
    """

    def __init__(
        self,
        arbiters: Sequence[BrokerNumber],
        names: Mapping[BrokerNumber, str],
        table: OwnerTable,
        requests: OwnerRequests,
        changes: OwnerChanges,
        routes: ServerRoutes,
    ) -> None:
        self.table = table
        self.requests = requests
        self._arbiters = arbiters
        self._names = names
        self._changes = changes
        self._routes = routes

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See HashedOwners."""
        self.table.known.update(
            (int(key), owner) for key, owner in recovered.get(CHOSEN, {}).items()
        )

    def remember(self, owners: Sequence[Owner]) -> None:
        """See HashedOwners: positions of subscriptions prove no present owner."""

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """See HashedOwners: an unrequested owner is an error of the peer."""
        raise RemoteProtocolError(peer, f"it announces the topics of {owners} without a request")

    def seek(self, topics: Sequence[int]) -> None:
        """See HashedOwners: any proxy answers, over any reachable server."""
        sought = self.requests.sought
        asked = {topic for topics_of_server in sought.values() for topic in topics_of_server}
        new = [
            topic
            for topic in dict.fromkeys(topics)
            if self._changes.is_new(topic) and topic not in asked
        ]
        carrier = self._routes.first_server()
        if new and carrier is not None:
            self.requests.ask(carrier, new)
        elif new:
            sought.setdefault(self._arbiters[new[0]], {}).update(dict.fromkeys(new))

    def on_routes(self, first: BrokerNumber | None) -> None:
        """See HashedOwners: unanswered requests are sent over another server."""
        carrier = self._routes.first_server()
        if carrier is None or self.requests.sought.get(carrier):
            return
        sought, self.requests.sought = self.requests.sought, {}
        self.seek([topic for topics in sought.values() for topic in topics])

    def on_located(self, peer: Peer, message: Located) -> None:
        """See HashedOwners: a proxy has given topics to servers."""
        self._changes.check(peer, message.owners)
        before = self.requests.awaits(message.server)
        new = [owner for owner in message.owners if self._changes.is_new(owner.topic)]
        for owner in message.owners:
            self.requests.settle(owner.topic)
        self.requests.answer(message.server, was_awaited=before)
        self._changes.choose(new)

    def on_merged(self, peer: Peer, message: Merged) -> None:
        """See HashedOwners: a topic moves only to servers with an earlier name."""
        self._changes.check(peer, message.owners)
        new = [owner for owner in message.owners if self._changes.is_new(owner.topic)]
        self._changes.choose(new)
        moved = [owner for owner in message.owners if self._is_before(owner)]
        self._changes.follow_again(message.owners)
        self._changes.change(moved)

    def _is_before(self, owner: Owner) -> bool:
        known = self.table.of(owner.topic)
        if known is None or owner.topic in self._changes.choosing:
            return False
        return self._names[owner.server] < self._names[known]


class AssignedOwners:
    """The owners in the highest generations received (`arbiter`).

    After a crash, subscriptions or an arbiter have the first owner of a topic; any later owner is
    durable before its use, because an older owner's answers are not valid any more.
    """

    def __init__(
        self, servers: int, table: OwnerTable, requests: OwnerRequests, changes: OwnerChanges
    ) -> None:
        self.table = table
        self.requests = requests
        self._servers = servers
        self._changes = changes

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See HashedOwners."""
        for key, (server, generation) in recovered.get(CHOSEN, {}).items():
            self.table.known[int(key)] = server
            self.table.generations[int(key)] = generation

    def seek(self, topics: Sequence[int]) -> None:
        """See HashedOwners."""
        self.requests.seek(topics)

    def on_routes(self, first: BrokerNumber | None) -> None:
        """See HashedOwners: arbiters decide, over any route."""

    def remember(self, owners: Sequence[Owner]) -> None:
        """See HashedOwners: rows of owners are newer."""
        known = self.table.known
        self.requests.remember([owner for owner in owners if owner.topic not in known])

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """See HashedOwners: the highest generation counts, from any sender.

        Each server has a topic once, so no owner is as many generations later than another as there
        are servers. Of two owners in the same generation one is wrong: the arbiter decides.
        """
        self._changes.check(peer, owners)
        for owner in owners:
            known, stated = self._generation(owner), owner.generation
            check_generation(peer, owner.topic, known, stated)
            before = self.table.of(owner.topic)
            if before is not None and known and stated >= known + self._servers:
                reason = f"generation {stated} of {owner.topic} leaps from {known}"
                raise RemoteProtocolError(peer, reason)
        for owner in owners:
            is_other = self.table.known.get(owner.topic, owner.server) != owner.server
            if is_other and owner.generation == self._generation(owner):
                self._doubt(owner.topic)
        first = [owner for owner in owners if self._changes.is_new(owner.topic)]
        self._changes.choose([owner for owner in first if owner.generation > 1])
        self._changes.use([owner for owner in first if owner.generation <= 1])
        self._changes.change([owner for owner in owners if self._is_later(owner)])

    def _generation(self, owner: Owner) -> int:
        return self.table.generations.get(owner.topic, 0)

    def _is_later(self, owner: Owner) -> bool:
        known = self.table.of(owner.topic)
        if known is None or owner.topic in self._changes.choosing:
            return False
        if known == owner.server:
            self.table.generations[owner.topic] = self._generation(owner) or owner.generation
            return False
        return owner.generation > self._generation(owner)

    def _doubt(self, topic: int) -> None:
        if topic not in self._changes.choosing:
            self.requests.doubt(topic)

    def on_located(self, peer: Peer, message: Located) -> None:
        """See HashedOwners: the arbiter's owner of a topic in doubt counts in any generation.

        The generation on disk stays, since it never decreases.
        """
        self._changes.check(peer, message.owners)
        doubted = self.requests.doubted
        before = self.requests.awaits(message.server)
        settled = [owner for owner in message.owners if owner.topic in doubted]
        self.learn(peer, [owner for owner in message.owners if owner not in settled])
        for owner in settled:
            del doubted[owner.topic]
            self.requests.settle(owner.topic)
        self._changes.change(
            [
                owner._replace(generation=max(owner.generation, self._generation(owner)))
                for owner in settled
                if self.table.of(owner.topic) != owner.server
            ]
        )
        self.requests.answer(message.server, was_awaited=before)

    def on_merged(self, peer: Peer, message: Merged) -> None:
        """See HashedOwners: a server names itself in generation 0 if it does not own a topic."""
        owners = [owner for owner in message.owners if owner.generation]
        self.learn(peer, owners)
        for owner in message.owners:
            if not owner.generation and self.table.of(owner.topic) == owner.server:
                self._doubt(owner.topic)
        self._changes.follow_again(owners)


Owners = HashedOwners | PaperOwners | CausalOwners | AssignedOwners


def make_table(places: Places, ownership: str) -> OwnerTable:
    """Return the table of owners, by the topology's `ownership`."""
    if ownership == RENDEZVOUS:
        return OwnerTable(dict(enumerate(places.arbiters)))
    in_turn = ownership not in (CAUSAL, PAPER)
    return OwnerTable({}, may_change=True, are_in_turn=in_turn)


def make_owners(
    broker: BrokerNumber,
    places: Places,
    ownership: str,
    disk: Durability,
    table: OwnerTable,
    routes: ServerRoutes,
    publishes: Publishes,
    fetches: Fetches,
) -> Owners:
    """Return the owners at an access broker, by the topology's `ownership`."""
    arbiters, names = places.arbiters, dict(places.servers_by_name)
    requests = OwnerRequests(broker, arbiters, table, routes, publishes)
    if ownership == RENDEZVOUS:
        return HashedOwners(table, requests, fetches)
    if ownership == PAPER:
        return PaperOwners(len(arbiters), table, requests, publishes, fetches)
    changes = OwnerChanges(names, len(arbiters), disk, table, requests, publishes, fetches)
    if ownership == CAUSAL:
        return CausalOwners(arbiters, names, table, requests, changes, routes)
    return AssignedOwners(len(names), table, requests, changes)
