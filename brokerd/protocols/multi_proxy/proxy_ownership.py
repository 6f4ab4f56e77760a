"""The paper's own ownership: proxies give topics to servers, and merge double owners.

A proxy that has lost its memory gives a topic that a server owns to another server, until the
servers announce their topics, every `period_ns`; then one of the two loses the topic. Publications
in between are lost to subscribers at the other server. This ownership exists to be measured.

Paper: [MP22] §3 (assignment), §3.1.5 (PERIODIC), §3.1.6 (MERGE), §4 (the loss). Deviates: a server
whose topic is merged keeps publications until its subscribers have fetched them, instead of
sending them with TRANSFER; and it notifies them to subscribe at the other server, where TRANSFER
would have made them subscribers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.multi_proxy.claims import Claims
from brokerd.protocols.multi_proxy.messages import Locate, Located, Merge, Owned, Owner
from brokerd.protocols.multi_proxy.owners import AnswerCallback, Owners
from brokerd.protocols.multi_proxy.server import Server
from brokerd.protocols.multi_proxy.transfer_server import PERIOD
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine


class PaperOwners(Owners):
    """The owners by the proxy of an access broker's route; other proxies may have others.

    Args:
        on_gone: called with topics without an owner any more, and their old owners.
    """

    may_change = True

    def __init__(
        self,
        broker: BrokerNumber,
        arbiters: Sequence[BrokerNumber],
        *,
        send: Callable[[Locate], None],
        on_known: Callable[[Sequence[int]], None],
        answered: AnswerCallback,
        on_gone: Callable[[Mapping[int, BrokerNumber]], Sequence[int]],
    ) -> None:
        super().__init__(broker, arbiters, {}, send=send, on_known=on_known, answered=answered)
        self._on_gone = on_gone
        self._proxy: BrokerNumber | None = None

    def ways_changed(self, first: BrokerNumber | None) -> None:
        """See Owners: the owners are those of the present proxy, and restart with another proxy."""
        if first == self._proxy:
            return
        self._proxy = first
        gone, self._known = self._known, {}
        self._sought.clear()
        self.seek((*self._on_gone(gone), *self.list_awaited()))

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """See Owners: a proxy has merged these topics."""
        if self._from_proxy(peer, owners):
            self._set(owners)

    def on_located(self, peer: Peer, message: Located) -> None:
        """See Owners: the proxy has answered by itself."""
        if self._from_proxy(peer, message.owners):
            before = self.awaits(message.server)
            self._set(message.owners)
            if before:
                self._answered(message.server, Locate, wholly=not self.awaits(message.server))

    def _from_proxy(self, peer: Peer, owners: Sequence[Owner]) -> bool:
        if any(owner.topic >= len(self._arbiters) for owner in owners):
            raise RemoteProtocolError(peer, f"not all of {owners} are topics")
        return peer == self._proxy

    def _set(self, owners: Sequence[Owner]) -> None:
        changed = {
            topic: self._known[topic]
            for topic, server, _ in owners
            if self._known.get(topic, server) != server
        }
        for topic in changed:
            del self._known[topic]
        self._on_gone(changed)
        self._add(owners)


class PaperClaims(Claims):
    """The owners at a proxy that gives topics to servers itself, and detects double owners."""

    def locate(self, message: Locate, peer: Peer) -> Located:
        """Return the owners of topics; a new topic is given to the server with the fewest."""
        claim = self.claim(message, peer)
        self._record(peer, claim.candidates)
        return Located(message.server, message.home, claim.candidates)

    def owners(self) -> tuple[Owner, ...]:
        """See Claims: no owners are announced without a request."""
        return ()

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> tuple[Owner, ...]:
        """See Claims: takes a server's topics, and returns the owners of topics to merge."""
        merged = [self._smaller(peer, owner) for owner in self._conflicts(owners)]
        self._record(peer, [owner for owner in owners if owner.topic not in self._owners])
        return tuple(merged)

    def _conflicts(self, owners: Sequence[Owner]) -> list[Owner]:
        known = self._owners
        return [owner for owner in owners if known.get(owner.topic, owner.server) != owner.server]

    def _smaller(self, peer: Peer, owner: Owner) -> Owner:
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


class Periods:
    """The periodic announcement of a server's topics to all proxies.

    Args:
        proxies: proxies with a session.

    Paper: [MP22] §3.1.5 (PERIODIC), §5.2.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        period_ns: int,
        server: Server,
        proxies: Collection[BrokerNumber],
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._deadlines = deadlines
        self._period_ns = period_ns
        self._server = server
        self._proxies = proxies

    def announce(self) -> None:
        """Send the announcement, and schedule the next."""
        owned = Owned(tuple(Owner(topic, self._broker) for topic in self._server.requested))
        for proxy in self._proxies:
            self._machine.send(proxy, owned)
        due_ns = self._machine.now_ns + self._period_ns
        self._deadlines.set((PERIOD, self._broker), due_ns)
