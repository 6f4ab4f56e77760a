"""Ownership by which two servers may own a topic and nothing is lost: its homes and proxies.

A proxy gives a topic that it does not know to a server, as the paper's does. A home keeps what it
was told, on disk before it goes by it, and goes to one server per topic; so what it puts is put at
one server only, until that one says that another one has all of it. Where homes have been told of
different servers their proxies find it within a period, and have one give the topic to the other.

Paper: [MP22] §3 (assignment), §3.1.5, §3.1.6. Deviates: the home keeps the answer, so that a proxy
that has forgotten everything parts nobody from a topic that is in use.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.multi_proxy.messages import Locate, Located, Merged, Owner
from brokerd.protocols.multi_proxy.moving_owners import CHOSEN, MovingOwners
from brokerd.protocols.multi_proxy.paper import PaperClaims


class CausalClaims(PaperClaims):
    """What one proxy thinks: it gives topics to servers, and finds out who else has done so."""


class CausalOwners(MovingOwners):
    """The server to which one home goes for each topic; another one only when that one says so.

    Args:
        carrier: a server that is reached, over which a proxy is asked; None: none is.
    """

    def __init__(
        self, *arguments: Any, carrier: Callable[[], BrokerNumber | None], **callbacks: Any
    ) -> None:
        super().__init__(*arguments, **callbacks)
        self._carrier = carrier

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """See Owners."""
        self._known.update((int(key), owner) for key, owner in recovered.get(CHOSEN, {}).items())

    def remember(self, owners: Sequence[Owner]) -> None:
        """See Owners: what subscriptions know says nothing of who has a topic now."""

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """See Owners: nobody is told who owns topics without having asked."""
        raise RemoteProtocolError(peer, f"it says without being asked that {owners} own topics")

    # ------------------------------------------------------------ who is asked for the first time

    def seek(self, topics: Sequence[int]) -> None:
        """See Owners: any proxy says it, over whichever server is reached."""
        asked = {topic for sought in self._sought.values() for topic in sought}
        new = [
            topic
            for topic in dict.fromkeys(topics)
            if topic not in self._known and topic not in self._choosing and topic not in asked
        ]
        carrier = self._carrier()
        if new and carrier is not None:
            self._sought.setdefault(carrier, {}).update(dict.fromkeys(new))
            self._send(Locate(carrier, self._broker, tuple(new)))
        elif new:
            self._sought.setdefault(self._arbiters[new[0]], {}).update(dict.fromkeys(new))

    def ways_changed(self, first: BrokerNumber | None) -> None:
        """See Owners: what could not be asked is asked over another server."""
        carrier = self._carrier()
        if carrier is None or self._sought.get(carrier):
            return
        sought, self._sought = self._sought, {}
        self.seek([topic for topics in sought.values() for topic in topics])

    def on_located(self, peer: Peer, message: Located) -> None:
        """See Owners: a proxy has given topics to servers."""
        self._check(peer, message.owners)
        before = self.awaits(message.server)
        new = [
            owner
            for owner in message.owners
            if owner.topic not in self._known and owner.topic not in self._choosing
        ]
        for owner in message.owners:
            for sought in self._sought.values():
                sought.pop(owner.topic, None)
        if before:
            self._answered(message.server, Locate, wholly=not self.awaits(message.server))
        self._choose(new)

    # ------------------------------------------------------------ what servers say

    def on_merged(self, peer: Peer, message: Merged) -> None:
        """See MovingOwners: a topic goes only to servers whose name comes before."""
        self._check(peer, message.owners)
        self._choose([owner for owner in message.owners if self._is_new(owner.topic)])
        moved = [owner for owner in message.owners if self._is_before(owner)]
        self._hear_again(message.owners)
        self._change(moved)

    def _is_before(self, owner: Owner) -> bool:
        known = self._known.get(owner.topic)
        if known is None or owner.topic in self._choosing:
            return False
        return self._names[owner.server] < self._names[known]
