"""The owners of topics at an access broker, while topics move between servers.

The last owner is durable before its use, so that this broker never returns to a server that has
given a topic away: the new owner would drop what this broker follows.

Paper: [MP22] §3, §3.1.7. Deviates: access brokers receive owners; the paper's proxies route them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.messages import Locate, Merged, Owner
from brokerd.protocols.multi_proxy.owners import AnswerCallback, Owners
from brokerd.protocols.parts.event_machine import Durability

CHOSEN: Final = "chosen"
"""Per topic the server that an access broker uses, and any generation."""


class MovingOwners(Owners, ABC):
    """The server of each topic at an access broker; changes only by a notification.

    Args:
        names: of all servers.
        on_gone: called with topics of another server, and their old owners.
        on_moved: called with a topic, its old and its new owner.
        on_merged: called with a topic of which its server has more than this broker may have
            received.
    """

    may_change = True

    def __init__(
        self,
        broker: BrokerNumber,
        arbiters: Sequence[BrokerNumber],
        names: Mapping[BrokerNumber, str],
        disk: Durability,
        *,
        send: Callable[[Locate], None],
        on_known: Callable[[Sequence[int]], None],
        answered: AnswerCallback,
        on_gone: Callable[[Mapping[int, BrokerNumber]], object],
        on_moved: Callable[[int, BrokerNumber, BrokerNumber], None],
        on_merged: Callable[[int, BrokerNumber], None],
    ) -> None:
        super().__init__(broker, arbiters, {}, send=send, on_known=on_known, answered=answered)
        self._names = names
        self._disk = disk
        self._on_gone = on_gone
        self._on_moved = on_moved
        self._on_merged = on_merged
        self._choosing: dict[int, BrokerNumber] = {}

    @abstractmethod
    def on_merged(self, peer: Peer, message: Merged) -> None:
        """Take transfers between servers."""

    def _row(self, owner: Owner) -> Change:
        return Change(CHOSEN, str(owner.topic), owner.server)

    def _check(self, peer: Peer, owners: Sequence[Owner]) -> None:
        for topic, server, _ in owners:
            if topic >= len(self._arbiters) or server not in self._names:
                raise RemoteProtocolError(peer, f"broker {server} owns topic {topic}")

    def _is_new(self, topic: int) -> bool:
        return topic not in self._known and topic not in self._choosing

    def _use_owners(self, owners: Sequence[Owner]) -> None:
        """Use servers for topics from now on."""
        self._add(owners)

    def _begin_choosing(self, owners: Sequence[Owner]) -> None:
        self._choosing.update((owner.topic, owner.server) for owner in owners)

    def _choose(self, owners: Sequence[Owner]) -> None:
        """Use servers for topics without an owner, once durable."""
        self._begin_choosing(owners)

        def chosen() -> None:
            for owner in owners:
                self._choosing.pop(owner.topic, None)
            self._use_owners(owners)

        self._disk.commit([self._row(owner) for owner in owners], chosen)

    def _change(self, owners: Sequence[Owner]) -> None:
        """Use other servers for topics, once durable."""
        self._begin_choosing(owners)

        def chosen() -> None:
            for owner in owners:
                self._move(owner)

        self._disk.commit([self._row(owner) for owner in owners], chosen)

    def _follow_again(self, owners: Sequence[Owner]) -> None:
        """Repeat the Follow to servers that have more of a topic, or wait for it."""
        for topic, server, _ in owners:
            if self._known.get(topic) == server:
                self._on_merged(topic, server)

    def _move(self, owner: Owner) -> None:
        topic, server, _ = owner
        del self._choosing[topic]
        gone = {topic: self._known[topic]}
        self._on_gone(gone)
        self._known[topic] = server
        self._on_moved(topic, gone[topic], server)
        self._on_known((topic,))
