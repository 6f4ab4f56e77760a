"""The followers of a server's topics, and their acknowledged positions.

Paper: [MP22] §4 (a queue of message ids for each subscriber). Deviates: per access broker a
position.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.messages import CarriedFollower, Wanted
from brokerd.protocols.multi_proxy.topic_log import Part, Topic, TopicLog

FOLLOWERS: Final = "followers"
"""Per access broker: incarnation and number of its Follow, its topics, and more if set.

More are: the first positions in other servers' parts, and topics to confirm here.
"""


class Version(NamedTuple):
    """The order of an access broker's requests."""

    incarnation: int
    number: int


NEVER: Final = Version(0, 0)


@dataclass(slots=True)
class Follower:
    """An access broker that follows topics here.

    Attributes:
        version: of the last Follow.
        done: per topic and part, the acknowledged position; also of parts that are not here.
        expected: topics that it has followed at a server that has given them to this server.
        got: version of the last fetch request.
        waits: the content of that request while not answered.
    """

    version: Version
    done: dict[Part, int] = field(default_factory=dict)
    expected: dict[int, None] = field(default_factory=dict)
    got: Version = NEVER
    waits: dict[Part, Wanted] = field(default_factory=dict)


class Followers:
    """All followers of a server."""

    def __init__(self, broker: BrokerNumber, log: TopicLog) -> None:
        self._broker = broker
        self._log = log
        self._all: dict[BrokerNumber, Follower] = {}
        self._decommissioned: dict[BrokerNumber, None] = {}

    def __iter__(self) -> Iterator[tuple[BrokerNumber, Follower]]:
        return iter(self._all.items())

    def get(self, home: BrokerNumber) -> Follower | None:
        """Return a follower, or None."""
        return self._all.get(home)

    def add(self, home: BrokerNumber, version: Version) -> Follower:
        """Return a follower, which is added if new."""
        return self._all.setdefault(home, Follower(version))

    def drop(self, home: BrokerNumber) -> list[Change]:
        """Remove a decommissioned broker, and return the changes on disk."""
        self._decommissioned[home] = None
        return [] if self._all.pop(home, None) is None else [Change(FOLLOWERS, str(home), None)]

    def follows(self, follower: Follower, number: int) -> bool:
        """Return True if a follower follows a topic here."""
        return Part(self._broker, number) in follower.done

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the state of an earlier incarnation, after the topics' state."""
        for key, (incarnation, number, topics, *more) in recovered.get(FOLLOWERS, {}).items():
            follower = self._all[int(key)] = Follower(Version(incarnation, number))
            for topic in topics:
                follower.done[Part(self._broker, topic)] = 0
            for server, topic, begins in more[0] if more else ():
                follower.done[Part(server, topic)] = begins
            follower.expected.update(dict.fromkeys(more[1] if more else ()))
            for topic in topics:
                self._need_nothing_gone(follower, topic)

    def _need_nothing_gone(self, follower: Follower, number: int) -> None:
        for topic in self._log.parts(number):
            done = follower.done.get(topic.part, 0)
            follower.done[topic.part] = max(done, topic.needed_position)

    def row(self, home: BrokerNumber) -> Change:
        """Return the row of a follower."""
        follower = self._all[home]
        own = [part.topic for part in follower.done if part.server == self._broker]
        value: list[Any] = [*follower.version, own]
        others = [part for part in follower.done if part.server != self._broker]
        if others or follower.expected:
            value.append([[*part, follower.done[part]] for part in others])
            value.append([*follower.expected])
        return Change(FOLLOWERS, str(home), value)

    def done_with(self, topic: Topic) -> list[int]:
        """Return the positions that the followers of a topic have acknowledged in a part."""
        own, part = Part(self._broker, topic.number), topic.part
        return [
            follower.done.get(part, 0) for follower in self._all.values() if own in follower.done
        ]

    def of(self, number: int) -> list[tuple[BrokerNumber, dict[Part, int]]]:
        """Return the followers of a topic, with their acknowledged positions."""
        return [
            (home, {part: done for part, done in follower.done.items() if part.topic == number})
            for home, follower in self._all.items()
            if self.follows(follower, number)
        ]

    # ------------------------------------------------------------ topics that come and go

    def expect(self, carried: CarriedFollower, number: int) -> None:
        """Add a follower of a topic at the server that gives the topic to this server."""
        if carried.home in self._decommissioned:
            return
        follower = self.add(carried.home, NEVER)
        if not self.follows(follower, number):
            follower.expected[number] = None
            follower.done[Part(self._broker, number)] = 0
            for server, topic, done in carried.done:
                follower.done[Part(server, topic)] = done

    def take_positions(self, number: int, parts: Sequence[Topic]) -> Iterator[Change]:
        """Take another server's positions, and yield the changes on disk."""
        for home, follower in self._all.items():
            if self.follows(follower, number):
                self._need_nothing_gone(follower, number)
                for topic in parts:
                    done = follower.done.get(topic.part, 0)
                    follower.done[topic.part] = max(done, topic.needed_position)
                yield self.row(home)

    def leave(self, number: int) -> list[Change]:
        """Remove all followers of a topic that has moved away, and return the changes on disk."""
        rows = []
        for home, follower in self._all.items():
            if self.follows(follower, number):
                for part in [part for part in follower.done if part.topic == number]:
                    del follower.done[part]
                    follower.waits.pop(part, None)
                follower.expected.pop(number, None)
                rows.append(self.row(home))
        return rows
