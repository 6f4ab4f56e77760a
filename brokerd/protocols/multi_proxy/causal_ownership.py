"""Ownership by which two servers may own a topic without loss: access brokers and proxies.

A proxy without an owner for a topic gives the topic to a server, as the paper's proxy does. An
access broker stores the answer durably before using it, and uses one server per topic; so its
publish requests go to one server only, until that server reports that another server has
everything. If access brokers have different servers for a topic, their proxies detect this within
a period, and have one server give the topic to the other.

Paper: [MP22] §3 (assignment), §3.1.5, §3.1.6. Deviates: the access broker stores the answer, so
that a proxy that has lost its memory separates no broker from a topic in use.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.multi_proxy.messages import Locate, Located, Merged, Owner
from brokerd.protocols.multi_proxy.proxy_ownership import PaperClaims
from brokerd.protocols.multi_proxy.transfer_owners import CHOSEN, MovingOwners


class CausalClaims(PaperClaims):
    """The owners at a proxy that gives topics to servers itself, and detects double owners."""


class CausalOwners(MovingOwners):
    """The server of each topic at an access broker; changes only at the word of that server.

    Args:
        carrier: returns a reachable server, over which a proxy is asked; None without one.
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
        """See Owners: positions of subscriptions prove no present owner."""

    def learn(self, peer: Peer, owners: Sequence[Owner]) -> None:
        """See Owners: an unrequested owner is an error of the peer."""
        raise RemoteProtocolError(peer, f"it announces the topics of {owners} without a request")

    # ------------------------------------------------------------ first requests

    def seek(self, topics: Sequence[int]) -> None:
        """See Owners: any proxy answers, over any reachable server."""
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
        """See Owners: unanswered requests are sent over another server."""
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

    # ------------------------------------------------------------ servers' messages

    def on_merged(self, peer: Peer, message: Merged) -> None:
        """See MovingOwners: a topic moves only to servers with an earlier name."""
        self._check(peer, message.owners)
        self._choose([owner for owner in message.owners if self._is_new(owner.topic)])
        moved = [owner for owner in message.owners if self._is_before(owner)]
        self._follow_again(message.owners)
        self._change(moved)

    def _is_before(self, owner: Owner) -> bool:
        known = self._known.get(owner.topic)
        if known is None or owner.topic in self._choosing:
            return False
        return self._names[owner.server] < self._names[known]
