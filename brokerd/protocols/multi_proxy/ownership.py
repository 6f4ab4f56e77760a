"""The rules of ownership at an access broker, one class per `ownership`.

With `rendezvous` owners follow from a hash: all are present from the start, and none is requested.
With `arbiter` an owner stays valid until a server has a topic in a higher generation. With `causal`
an access broker uses the server that it received first, until a server names another one. With
`paper` the owners are those of the present proxy.

Paper: [MP22] §3, §3.1.7.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.multi_proxy.fetches import Fetches
from brokerd.protocols.multi_proxy.messages import Located, Merged, Owner
from brokerd.protocols.multi_proxy.owners import OwnerChanges, OwnerRequests
from brokerd.protocols.multi_proxy.parameters import CAUSAL, PAPER, RENDEZVOUS
from brokerd.protocols.multi_proxy.publishes import Publishes
from brokerd.protocols.multi_proxy.routes import Places, ServerRoutes
from brokerd.protocols.multi_proxy.state import CHOSEN, OwnerTable
from brokerd.protocols.parts.bounds import check_generation
from brokerd.protocols.parts.event_machine import Durability


class HashedOwners:
    """The owners that follow from a hash (`rendezvous`); none ever changes.

    The owners of the other modes have the same methods.

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
            RemoteProtocolError: see check.
        """
        self.check(peer, owners)

    def check(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """Check announced owners.

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
        self.requests.seek(topics)

    def on_routes(self, first: BrokerNumber | None) -> None:
        """See HashedOwners: the owners restart with another proxy."""
        if first == self._proxy:
            return
        self._proxy = first
        former, self.table.known = self.table.known, {}
        self.requests.sought.clear()
        topics = self._publishes.forget_owners(former)
        self.requests.seek((*topics, *self.requests.list_awaited()))

    def remember(self, owners: Sequence[Owner]) -> None:
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
        self._fetches.on_merged(peer, message)

    def _is_from_proxy(self, peer: Peer, owners: Sequence[Owner]) -> bool:
        self.check(peer, owners)
        return peer == self._proxy

    def check(self, peer: Peer, owners: Sequence[Owner]) -> None:
        if any(owner.topic >= self._topics for owner in owners):
            raise RemoteProtocolError(peer, f"not all of {owners} are topics")

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
        self.table.known.update(
            (int(key), owner) for key, owner in recovered.get(CHOSEN, {}).items()
        )

    def remember(self, owners: Sequence[Owner]) -> None:
        """See HashedOwners: positions of subscriptions prove no present owner."""

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """See HashedOwners: an unrequested owner is an error of the peer."""
        raise RemoteProtocolError(peer, f"it announces the topics of {owners} without a request")

    def check(self, peer: Peer, owners: Sequence[Owner]) -> None:
        self._changes.check(peer, owners)

    def seek(self, topics: Sequence[int]) -> None:
        """See HashedOwners: any proxy answers, over any reachable server."""
        sought = self.requests.sought
        sought_topics = {
            topic for topics_of_server in sought.values() for topic in topics_of_server
        }
        new = [
            topic
            for topic in dict.fromkeys(topics)
            if self._changes.is_new(topic) and topic not in sought_topics
        ]
        carrier = self._routes.first_server()
        if new and carrier is not None:
            self.requests.request(carrier, new)
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
        for key, (server, generation) in recovered.get(CHOSEN, {}).items():
            self.table.known[int(key)] = server
            self.table.generations[int(key)] = generation

    def seek(self, topics: Sequence[int]) -> None:
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
        self.check(peer, owners)
        for owner in owners:
            is_other = self.table.known.get(owner.topic, owner.server) != owner.server
            if is_other and owner.generation == self._generation(owner):
                self._doubt(owner.topic)
        first = [owner for owner in owners if self._changes.is_new(owner.topic)]
        self._changes.choose([owner for owner in first if owner.generation > 1])
        self._changes.use([owner for owner in first if owner.generation <= 1])
        self._changes.change([owner for owner in owners if self._is_later(owner)])

    def check(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """See HashedOwners: no generation leaps."""
        self._changes.check(peer, owners)
        for owner in owners:
            known, stated = self._generation(owner), owner.generation
            check_generation(peer, owner.topic, known, stated)
            before = self.table.of(owner.topic)
            if before is not None and known and stated >= known + self._servers:
                reason = f"generation {stated} of {owner.topic} leaps from {known}"
                raise RemoteProtocolError(peer, reason)

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

        The generation on disk stays, since it never decreases. A later owner that is not durable
        yet has settled the doubt.
        """
        self._changes.check(peer, message.owners)
        doubted = self.requests.doubted
        before = self.requests.awaits(message.server)
        settled = [owner for owner in dict.fromkeys(message.owners) if owner.topic in doubted]
        self.learn(peer, [owner for owner in message.owners if owner not in settled])
        for owner in settled:
            del doubted[owner.topic]
            self.requests.settle(owner.topic)
        self._changes.change(
            [
                owner._replace(generation=max(owner.generation, self._generation(owner)))
                for owner in settled
                if self.table.of(owner.topic) != owner.server
                and owner.topic not in self._changes.choosing
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
