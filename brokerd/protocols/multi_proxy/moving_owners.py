"""Which server a home goes to for each topic, where topics go from one server to another.

What it was told last is on its disk before it goes by it, so that it never goes back to a server
that has given a topic away: who has it would take what this home follows for given up.

Paper: [MP22] §3, §3.1.7. Deviates: homes are told where a topic is; the paper's proxies route them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.messages import Locate, Merged, Owner
from brokerd.protocols.multi_proxy.owners import Answered, Owners
from brokerd.protocols.parts.durability import Durability

CHOSEN: Final = "chosen"
"""Per topic the server that a home goes to, and the generation where arbiters give it one."""


class MovingOwners(Owners, ABC):
    """The server to which one home goes for each topic; another one only when it was told.

    Args:
        names: of all servers.
        on_gone: told of topics that another server has now, each with who had it.
        on_moved: told of a topic, who had it and who has it.
        on_merged: told of a topic that its server has more of than this home may know.
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
        answered: Answered,
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
        """Servers have given topics to others, or have been given them."""

    def _row(self, owner: Owner) -> Change:
        return Change(CHOSEN, str(owner.topic), owner.server)

    def _check(self, peer: Peer, owners: Sequence[Owner]) -> None:
        for topic, server, _ in owners:
            if topic >= len(self._arbiters) or server not in self._names:
                raise RemoteProtocolError(peer, f"broker {server} owns topic {topic}")

    def _is_new(self, topic: int) -> bool:
        return topic not in self._known and topic not in self._choosing

    def _go_by(self, owners: Sequence[Owner]) -> None:
        """Go to servers for topics, from now on."""
        self._add(owners)

    def _begin_choosing(self, owners: Sequence[Owner]) -> None:
        self._choosing.update((owner.topic, owner.server) for owner in owners)

    def _choose(self, owners: Sequence[Owner]) -> None:
        """Go to servers for topics of which none was known."""
        self._begin_choosing(owners)

        def chosen() -> None:
            for owner in owners:
                self._choosing.pop(owner.topic, None)
            self._go_by(owners)

        self._disk.commit([self._row(owner) for owner in owners], chosen)

    def _change(self, owners: Sequence[Owner]) -> None:
        """Go to other servers for topics."""
        self._begin_choosing(owners)

        def chosen() -> None:
            for owner in owners:
                self._move(owner)

        self._disk.commit([self._row(owner) for owner in owners], chosen)

    def _hear_again(self, owners: Sequence[Owner]) -> None:
        """A server that this home goes to has more of a topic, or waits to hear of this home."""
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
