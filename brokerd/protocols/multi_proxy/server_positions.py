"""The announced positions of all servers, so that two servers may own a topic (`causal`).

In every period a server announces the last position in every topic, of own positions and of
positions announced by others. A new follower of a topic at a server is owed another server's
positions after those announced at that moment: any later publication has a later position. A
server may release positions that all servers have received, because no new follower elsewhere is
owed older positions. This needs no clock; the design has a clock at every server, with a bound on
its error.

Paper: none; [MP22] §4 leaves open the loss from merging two copies of a topic.
"""

from collections.abc import Iterable, Sequence

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.multi_proxy.messages import Elsewhere, Periodic
from brokerd.protocols.multi_proxy.topic_log import Part, Topic, TopicLog

Version = tuple[int, int]
"""Incarnation of a server and number of the announcement."""


class StoredPositions:
    """The positions that a server has received, and those that other servers have."""

    def __init__(
        self, broker: BrokerNumber, servers: Sequence[BrokerNumber], log: TopicLog
    ) -> None:
        self._broker = broker
        self._peers = tuple(server for server in servers if server != broker)
        self._log = log
        self._through: dict[Part, int] = {}
        self._versions: dict[BrokerNumber, Version] = dict.fromkeys(self._peers, (0, 0))
        self._peer_positions: dict[BrokerNumber, dict[Part, int]] = {
            each: {} for each in self._peers
        }

    def of(self, topics: Iterable[int]) -> dict[Part, int]:
        """Return the last positions in some topics, of servers without positions here."""
        wanted = {*topics}
        return {
            part: through
            for part, through in self._through.items()
            if part.topic in wanted and not self._log.holds(part)
        }

    def all(self) -> tuple[Elsewhere, ...]:
        """Return the announcement of this server."""
        known = dict(self._through)
        for topic in self._log:
            if topic.durable and topic.is_here:
                known[topic.part] = max(topic.durable, known.get(topic.part, 0))
        return tuple(Elsewhere(*part, through) for part, through in sorted(known.items()))

    def on_announcement(self, message: Periodic) -> bool:
        """Take another server's announcement; return True if it is new."""
        version = message.incarnation, message.number
        if self._versions.get(message.server, version) >= version:
            return False
        self._versions[message.server] = version
        theirs, asked = self._peer_positions[message.server], {*message.topics}
        for server, number, through in message.known:
            part = Part(server, number)
            if server != self._broker:
                self._through[part] = max(through, self._through.get(part, 0))
            if number not in asked:
                theirs[part] = max(through, theirs.get(part, 0))
        return True

    def owed_nothing_through(self, topic: Topic) -> int:
        """Return the position through which followers at other servers are owed nothing."""
        known = [theirs.get(topic.part, 0) for theirs in self._peer_positions.values()]
        return min((topic.durable, *known))
