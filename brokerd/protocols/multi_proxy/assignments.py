"""The assignments of a server: topics from arbiters, on disk before an answer.

Paper: none. [MP22] §4 leaves open that two servers own a topic, whose merging loses messages.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.messages import (
    Assign,
    Generation,
    Owned,
    Owner,
)
from brokerd.protocols.multi_proxy.state import ASSIGNED
from brokerd.protocols.parts.bounds import check_generation
from brokerd.protocols.parts.event_machine import Durability


class Assignments:
    """The topics assigned to a server.

    Args:
        topics: the number of topics.
        proxies: proxies with a session.

    Attributes:
        generations: of the topics that are durably assigned to this server.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        topics: int,
        proxies: Collection[BrokerNumber],
    ) -> None:
        self._broker = broker
        self._disk = disk
        self._topics = topics
        self._proxies = proxies
        self._has_lost = False
        self.generations: dict[int, int] = {}
        self._in_flight: dict[int, int] = {}

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the assignments of an earlier incarnation."""
        self.generations = {int(key): number for key, number in recovered.get(ASSIGNED, {}).items()}

    def begin(self, lineage: int) -> None:
        """Continue after an accepted loss, which took assignments."""
        self._has_lost = lineage > 0

    def owns(self, topic: int) -> bool:
        """Return True if a topic is durably assigned to this server."""
        return self.generation(topic) > 0

    def adopts(self, topic: int) -> bool:
        """Own a topic that is requested here, if a loss may have taken its assignment.

        Access brokers request a topic only from its owner, and no topic has moved.
        """
        if not self._has_lost or topic >= self._topics:
            return False
        self.keep(topic, 1)
        if topic not in self._in_flight:
            self._disk.commit((self.row(topic, 1),), lambda: None)
        return True

    def generation(self, topic: int) -> int:
        """Return the durable generation of an assigned topic; 0 if not assigned."""
        return self.generations.get(topic, 0)

    def row(self, topic: int, number: int) -> Change:
        """Return the row of a topic that another server gives to this one."""
        return Change(ASSIGNED, str(topic), number)

    def keep(self, topic: int, number: int) -> None:
        """Record a durable generation of a topic of this server."""
        self.generations[topic] = max(number, self.generations.get(topic, 0))

    def take(
        self, peer: BrokerNumber, message: Assign, then: Callable[[tuple[Generation, ...]], None]
    ) -> None:
        """Take an assignment of topics, unless a later generation is here or in flight to disk.

        Args:
            then: receives the durable generations, to confirm them.
        """
        for topic, number in message.generations:
            check_generation(peer, topic, self.generations.get(topic, 0), number)
        new = [
            each
            for each in message.generations
            if each.number > self.generations.get(each.topic, 0)
            and each.number > self._in_flight.get(each.topic, 0)
        ]
        self._in_flight.update(new)

        def kept() -> None:
            for topic, number in new:
                self.keep(topic, number)
                if self._in_flight.get(topic) == number:
                    del self._in_flight[topic]
            then(
                tuple(
                    each
                    if each.number
                    else Generation(each.topic, self.generations.get(each.topic, 0))
                    for each in message.generations
                )
            )

        changes = [self.row(*each) for each in new]
        self._disk.commit(changes, kept)

    def announce(self, topics: Collection[int]) -> None:
        """Announce topics of this server to all proxies, as access brokers use them now."""
        for proxy in self._proxies:
            self.announce_to(proxy, topics)

    def announce_to(self, proxy: BrokerNumber, topics: Collection[int]) -> None:
        """Announce topics to a proxy, except those that are not durably assigned."""
        owners = tuple(
            Owner(topic, self._broker, self.generation(topic))
            for topic in topics
            if self.owns(topic)
        )
        self._disk.machine.send(proxy, Owned(owners))
