"""A server: owner of topics, each a queue that homes follow at their own pace.

Paper: [MP22] §2, §4. Deviates: a get does not take a message out of a subscriber's queue; each
message is there once, and each home that follows the topic has said up to where it is done. A
server that crashes has forgotten that, and what it was told last it is told again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import BrokerNumber, Peer
from brokerd.protocols.interface import Change, LogEnds, RecordsRead
from brokerd.protocols.multi_proxy.messages import (
    Answer,
    Answered,
    Follow,
    Followed,
    Following,
    Get,
    Messages,
    Put,
    Stored,
    Wanted,
)
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.topic_log import Topic, TopicLog
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.durability import Durability
from brokerd.protocols.parts.event_machine import MessageHandler

WAITING: Final = "waiting"
"""Purpose of the deadline at which a home's get is answered, whatever there is."""
FOLLOWERS: Final = "followers"
"""Per home: incarnation and number of its Follow, and its topics."""


class Version(NamedTuple):
    """Which of a home's requests came later."""

    incarnation: int
    number: int


_NEVER: Final = Version(0, 0)


@dataclass(slots=True)
class Follower:
    """A home that follows topics here.

    Attributes:
        version: of its Follow.
        done: per topic, up to where it is done.
        got: version of its latest get.
        waits: what that get asked for, by topic, while it is not answered.
    """

    version: Version
    done: dict[int, int] = field(default_factory=dict)
    got: Version = _NEVER
    waits: dict[int, Wanted] = field(default_factory=dict)


class Server:
    """What a broker does for the topics that it owns.

    Args:
        owned: whether it owns a topic.
        answer: tells a home something, over whichever proxy reaches it.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        disk: Durability,
        deadlines: DeadlineQueue[Any],
        parameters: MultiProxyParameters,
        counters: dict[str, int],
        *,
        owned: Callable[[int], bool],
        answer: Callable[[BrokerNumber, Answer], None],
    ) -> None:
        self.log = TopicLog(broker, disk, self._on_durable)
        self._broker = broker
        self._disk = disk
        self._machine = disk.machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._counters = counters
        self._owned = owned
        self._answer = answer
        self._followers: dict[BrokerNumber, Follower] = {}

    def handlers(self) -> dict[type, MessageHandler]:
        """Who takes which request."""
        return {Put: self._on_put, Follow: self._on_follow, Get: self._on_get}

    def recover(self, recovered: Mapping[str, Mapping[str, Any]], ends: LogEnds) -> None:
        """Take over what an earlier incarnation had on disk."""
        self.log.recover(recovered, ends)
        for key, (incarnation, number, topics) in recovered.get(FOLLOWERS, {}).items():
            follower = Follower(Version(incarnation, number))
            follower.done = {topic: self.log.topic(topic).released for topic in topics}
            self._followers[int(key)] = follower

    def on_records(self, event: RecordsRead) -> None:
        """Take a page of the log."""
        self.log.on_records(event)

    def begin(self) -> None:
        """All that was on disk is known."""
        for topic in self.log:
            self._settle(topic)

    def retained(self) -> int:
        """How many publications somebody is not done with."""
        return sum(topic.durable - topic.released for topic in self.log)

    def retained_bytes(self) -> int:
        """The size of their payloads."""
        return sum(topic.retained_bytes for topic in self.log)

    def due(self, home: BrokerNumber) -> None:
        """A home's get has waited long enough."""
        follower = self._followers.get(home)
        if follower is not None and follower.waits:
            self._end_get(home, follower)

    # ------------------------------------------------------------ requests

    def _check(self, peer: Peer, home: BrokerNumber, topics: tuple[int, ...]) -> None:
        for topic in topics:
            if not self._owned(topic):
                raise RemoteProtocolError(peer, f"broker {home} asks for topic {topic} here")

    def _on_put(self, peer: Peer, message: Put) -> None:
        home, number, run = message.home, message.topic, message.run
        self._check(peer, home, (number,))
        if run.source.broker != home or run.origins:
            raise RemoteProtocolError(peer, f"broker {home} puts for {run.source}")
        self._counters["publications_received"] += len(run)

        def tell(through: int) -> None:
            self._answer(home, Stored(self._broker, home, number, run.source, through))

        self.log.put(number, message.previous, run, tell)

    def _on_follow(self, peer: Peer, message: Follow) -> None:
        home = message.home
        self._check(peer, home, message.topics)
        version = Version(message.incarnation, message.number)
        follower = self._followers.get(home)
        if follower is not None and version < follower.version:
            return
        if follower is None:
            follower = self._followers[home] = Follower(version)
        follower.version = version
        before = follower.done
        heads = {topic: self.log.topic(topic).assigned for topic in message.topics}
        follower.done = {topic: before.get(topic, head) for topic, head in heads.items()}
        followed = tuple(
            Followed(topic, follower.done[topic], head) for topic, head in heads.items()
        )
        answer = Following(self._broker, home, version.incarnation, version.number, followed)
        changes: tuple[Change, ...] = ()
        if before.keys() != follower.done.keys():
            row = [version.incarnation, version.number, list(message.topics)]
            changes = (Change(FOLLOWERS, str(home), row),)
        for gone in before:
            if gone not in follower.done:
                self._settle(self.log.topic(gone))

        def written() -> None:
            # A position that a crash could give to another publication must not be told.
            self.log.sync(lambda: self._answer(home, answer))

        if changes:
            self._disk.commit(changes, written)
        else:
            self._disk.when_written(written)

    def _on_get(self, peer: Peer, message: Get) -> None:
        home = message.home
        self._check(peer, home, tuple(wanted.topic for wanted in message.wanted))
        follower = self._followers.get(home)
        version = Version(message.incarnation, message.number)
        if follower is None or version <= follower.got:
            return
        waits = {each.topic: each for each in message.wanted if each.topic in follower.done}
        for wanted in waits.values():
            topic = self.log.topic(wanted.topic)
            if wanted.done > max(topic.durable, follower.done[wanted.topic]):
                reason = f"broker {home} is done with {wanted.done} of topic {wanted.topic}"
                raise RemoteProtocolError(peer, reason)
        follower.got, follower.waits = version, waits
        for wanted in waits.values():
            if wanted.done > follower.done[wanted.topic]:
                follower.done[wanted.topic] = wanted.done
                self._settle(self.log.topic(wanted.topic))
        if any(map(self._has, waits.values())):
            self._end_get(home, follower)
        else:
            due_ns = self._machine.now_ns + self._parameters.get_wait_ns
            self._deadlines.set((WAITING, home), due_ns)

    # ------------------------------------------------------------ answers

    def _has(self, wanted: Wanted) -> bool:
        return bool(wanted.most) and self.log.topic(wanted.topic).durable > wanted.after

    def _on_durable(self, topic: Topic) -> None:
        for home, follower in self._followers.items():
            wanted = follower.waits.get(topic.number)
            if wanted is not None and self._has(wanted):
                self._end_get(home, follower)
        self._settle(topic)

    def _end_get(self, home: BrokerNumber, follower: Follower) -> None:
        """Answer a get with what there is."""
        waits, follower.waits = follower.waits, {}
        self._deadlines.cancel((WAITING, home))
        for wanted in waits.values():
            most = min(wanted.most, self._parameters.get_publications)
            run = self.log.topic(wanted.topic).after(wanted.after, most) if most else None
            if run is not None:
                self._counters["publications_forwarded"] += len(run)
                self._answer(home, Messages(home, wanted.topic, run))
        self._answer(home, Answered(self._broker, home, *follower.got))

    def _settle(self, topic: Topic) -> None:
        """Let go of what all who follow a topic are done with; nobody follows: of everything."""
        done = [
            follower.done[topic.number]
            for follower in self._followers.values()
            if topic.number in follower.done
        ]
        through = min((topic.durable, *done))
        if through > topic.released:
            self.log.release(topic, through)
