"""What servers know of the positions that others give, so that two may own a topic (`causal`).

Each server says in every period how far positions have come in each topic, its own and those that
it has heard of. Whoever begins to follow a topic at one server is owed of another one's positions
those behind what was known of them at that moment: whatever is published later comes behind that.
And what all servers know a server may let go of: nobody who comes to follow elsewhere is owed it.
No clock is needed, where the design has one at each server and a bound on how wrong it is.

Paper: none; [MP22] §4 leaves open what merging two copies of a topic loses.
"""

from collections.abc import Iterable, Sequence

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.multi_proxy.messages import Elsewhere, Periodic
from brokerd.protocols.multi_proxy.topic_log import Part, Topic, TopicLog

Version = tuple[int, int]
"""Incarnation of a server and number of what it says."""


class Known:
    """What one server knows of all positions, and what it knows others to know."""

    def __init__(
        self, broker: BrokerNumber, servers: Sequence[BrokerNumber], log: TopicLog
    ) -> None:
        self._broker = broker
        self._others = tuple(server for server in servers if server != broker)
        self._log = log
        self._through: dict[Part, int] = {}
        self._heard: dict[BrokerNumber, Version] = dict.fromkeys(self._others, (0, 0))
        self._theirs: dict[BrokerNumber, dict[Part, int]] = {each: {} for each in self._others}

    def of(self, topics: Iterable[int]) -> dict[Part, int]:
        """How far positions have come in some topics, of servers whose positions are not here."""
        wanted = {*topics}
        return {
            part: through
            for part, through in self._through.items()
            if part.topic in wanted and not self._log.holds(part)
        }

    def all(self) -> tuple[Elsewhere, ...]:
        """What a server says that it knows."""
        known = dict(self._through)
        for topic in self._log:
            if topic.durable and topic.is_here:
                known[topic.part] = max(topic.durable, known.get(topic.part, 0))
        return tuple(Elsewhere(*part, through) for part, through in sorted(known.items()))

    def hear(self, message: Periodic) -> bool:
        """Take what another server says; returns whether that is news."""
        version = message.incarnation, message.number
        if self._heard.get(message.server, version) >= version:
            return False
        self._heard[message.server] = version
        theirs, asked = self._theirs[message.server], {*message.topics}
        for server, number, through in message.known:
            part = Part(server, number)
            if server != self._broker:
                self._through[part] = max(through, self._through.get(part, 0))
            if number not in asked:
                theirs[part] = max(through, theirs.get(part, 0))
        return True

    def everywhere(self, topic: Topic) -> int:
        """Up to where no server but this one has anybody who is owed positions."""
        known = [theirs.get(topic.part, 0) for theirs in self._theirs.values()]
        return min((topic.durable, *known))
