"""Who follows which topics of one server, and is done with what.

Paper: [MP22] §4 (a queue of message ids for each subscriber). Deviates: per home a position.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.messages import CarriedFollower, Wanted
from brokerd.protocols.multi_proxy.topic_log import Part, Topic, TopicLog

FOLLOWERS: Final = "followers"
"""Per home: incarnation and number of its Follow, and its topics; where topics may come from other
servers also where it begins in these, and which it is not known to follow here yet."""


class Version(NamedTuple):
    """Which of a home's requests came later."""

    incarnation: int
    number: int


NEVER: Final = Version(0, 0)


@dataclass(slots=True)
class Follower:
    """A home that follows topics here.

    Attributes:
        version: of its Follow.
        done: per topic and whose positions, up to where it is done; also of such as are not here.
        expected: topics that it has followed at a server which has given them to this one.
        got: version of its latest get.
        waits: what that get asked for while it is not answered.
    """

    version: Version
    done: dict[Part, int] = field(default_factory=dict)
    expected: dict[int, None] = field(default_factory=dict)
    got: Version = NEVER
    waits: dict[Part, Wanted] = field(default_factory=dict)


class Followers:
    """All that follow something of one server."""

    def __init__(self, broker: BrokerNumber, log: TopicLog) -> None:
        self._broker = broker
        self._log = log
        self._all: dict[BrokerNumber, Follower] = {}
        self._gone: dict[BrokerNumber, None] = {}

    def __iter__(self) -> Iterator[tuple[BrokerNumber, Follower]]:
        return iter(self._all.items())

    def get(self, home: BrokerNumber) -> Follower | None:
        """What is known of a home; None: nothing."""
        return self._all.get(home)

    def add(self, home: BrokerNumber, version: Version) -> Follower:
        """A home that follows something for the first time."""
        return self._all.setdefault(home, Follower(version))

    def drop(self, home: BrokerNumber) -> list[Change]:
        """Do without a home that never comes back; returns what that changes on disk."""
        self._gone[home] = None
        return [] if self._all.pop(home, None) is None else [Change(FOLLOWERS, str(home), None)]

    def follows(self, follower: Follower, number: int) -> bool:
        """Whether a home follows a topic here."""
        return Part(self._broker, number) in follower.done

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what an earlier incarnation had on disk; what is kept of topics is known."""
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
            follower.done[topic.part] = max(done, topic.needed_after)

    def row(self, home: BrokerNumber) -> Change:
        """What is to be on disk of a home."""
        follower = self._all[home]
        own = [part.topic for part in follower.done if part.server == self._broker]
        value: list[Any] = [*follower.version, own]
        others = [part for part in follower.done if part.server != self._broker]
        if others or follower.expected:
            value.append([[*part, follower.done[part]] for part in others])
            value.append([*follower.expected])
        return Change(FOLLOWERS, str(home), value)

    def done_with(self, topic: Topic) -> list[int]:
        """Up to where those who follow a topic are done with one server's positions in it."""
        own, part = Part(self._broker, topic.number), topic.part
        return [
            follower.done.get(part, 0) for follower in self._all.values() if own in follower.done
        ]

    def of(self, number: int) -> list[tuple[BrokerNumber, dict[Part, int]]]:
        """Who follows a topic, and is done with what."""
        return [
            (home, {part: done for part, done in follower.done.items() if part.topic == number})
            for home, follower in self._all.items()
            if self.follows(follower, number)
        ]

    # ------------------------------------------------------------ topics that come and go

    def expect(self, carried: CarriedFollower, number: int) -> None:
        """A home has followed a topic at a server that gives it to this one."""
        if carried.home in self._gone:
            return
        follower = self.add(carried.home, NEVER)
        if not self.follows(follower, number):
            follower.expected[number] = None
            follower.done[Part(self._broker, number)] = 0
            for server, topic, done in carried.done:
                follower.done[Part(server, topic)] = done

    def carried(self, number: int, parts: Sequence[Topic]) -> Iterator[Change]:
        """Positions of other servers are here; returns what that changes on disk."""
        for home, follower in self._all.items():
            if self.follows(follower, number):
                self._need_nothing_gone(follower, number)
                for topic in parts:
                    done = follower.done.get(topic.part, 0)
                    follower.done[topic.part] = max(done, topic.needed_after)
                yield self.row(home)

    def leave(self, number: int) -> list[Change]:
        """A topic is another server's; returns what that changes on disk."""
        rows = []
        for home, follower in self._all.items():
            if self.follows(follower, number):
                for part in [part for part in follower.done if part.topic == number]:
                    del follower.done[part]
                    follower.waits.pop(part, None)
                follower.expected.pop(number, None)
                rows.append(self.row(home))
        return rows
