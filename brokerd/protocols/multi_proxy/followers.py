"""The followers of a server's topics: their positions, what waits for them, and for how long.

Publish requests wait for followers that are behind, so that no log grows for ever. A server also
releases old publications, although access brokers have not fetched them, and publications that its
log has no room for, the oldest first, at any age; a follower without an acknowledgement receives a
gap. The age of an earlier incarnation's publications is not certain by any clock: it counts from
the time at which this incarnation has read them. A server that lost state asks all access brokers
again which topics they follow, and releases no publication until each has stated its topics, once
per loss.

Paper: [MP22] §4 (a queue of message ids for each subscriber). Deviates: per access broker a
position. [MP22] §4 stores all publish requests, and keeps everything until each subscriber has
fetched it; it takes stable storage as given.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from brokerd.model.identity import BrokerNumber, SourceId
from brokerd.protocols.interface import Change
from brokerd.protocols.multi_proxy.messages import CarriedFollower, Get, Lost, LostRun, Put
from brokerd.protocols.multi_proxy.parameters import MultiProxyParameters
from brokerd.protocols.multi_proxy.retention import Topic
from brokerd.protocols.multi_proxy.state import (
    FOLLOWERS,
    NEVER,
    RESTATED,
    Follower,
    Part,
    Reader,
    Version,
)
from brokerd.protocols.multi_proxy.topic_log import TopicLog
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.units import MILLISECOND_NS, SECOND_NS


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

    def find_loss(self, message: Get) -> str:
        """Return the durable state that a Get proves, and that this server lacks; "" for none.

        The Follow before a Get, and every position in a Get, was on disk before its announcement.
        After an accepted loss, a Follow from before the loss may count as the repeated one. What
        is missing of a former owner's positions was lost there, before the topic moved.
        """
        home, follower = message.home, self._all.get(message.home)
        if follower is None or message.incarnation > follower.version.incarnation:
            cause = f"the topics that broker {home} follows were on disk, and are missing"
            return "" if self._log.lost_through else cause
        if message.incarnation < follower.version.incarnation:
            return ""
        for each in message.wanted:
            part = Part(each.part, each.topic)
            if part.server != self._broker:
                continue
            received = max(each.done, each.after)
            known = max(self._log.announced(part), follower.done.get(part, received))
            if received > known:
                return (
                    f"positions {known + 1} to {received} of topic {each.topic}, which broker "
                    f"{home} has, were on disk, and are missing"
                )
        return ""

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


class Restatements:
    """Access brokers that must restate the topics that they follow.

    Args:
        homes: all brokers, which are access brokers of their clients.
    """

    def __init__(self, homes: Collection[BrokerNumber]) -> None:
        self._homes = tuple(homes)
        self._lineage = 0
        self._restated: dict[BrokerNumber, int] = {}
        self._awaited: dict[BrokerNumber, None] = {}

    def recover(self, recovered: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore the statements of an earlier incarnation."""
        rows = recovered.get(RESTATED, {})
        self._restated = {int(key): lineage for key, lineage in rows.items()}

    def begin(self, lineage: int) -> None:
        """Wait for all access brokers that have stated nothing since the loss, or ever (0)."""
        self._lineage = lineage
        waiting = (home for home in self._homes if self._restated.get(home) != lineage)
        self._awaited = dict.fromkeys(waiting)

    @property
    def are_awaited(self) -> bool:
        """Return True while an access broker has not stated its topics again."""
        return bool(self._awaited)

    def is_awaited(self, home: BrokerNumber) -> bool:
        """Return True if an access broker has not stated its topics again."""
        return home in self._awaited

    def list_awaited(self) -> list[BrokerNumber]:
        """Return the access brokers that have not stated their topics again."""
        return [*self._awaited]

    def take(self, home: BrokerNumber) -> Change:
        """Record that an access broker has stated its topics; return the change on disk."""
        del self._awaited[home]
        self._restated[home] = self._lineage
        return Change(RESTATED, str(home), self._lineage)

    def drop(self, home: BrokerNumber) -> None:
        """Remove a decommissioned broker."""
        self._awaited.pop(home, None)

    def aftermath(self) -> Sequence[str]:
        """Return the brokers that are waited for, in words."""
        if not self._awaited:
            return ()
        since = " since a loss" if self._lineage else ""
        return (f"{len(self._awaited)} brokers have not stated their topics{since}",)


HELD: Final = "held"
"""Purpose of the deadline at which publishers are notified that their requests still wait."""


class DelayedPublishes:
    """The waiting publish requests of a server, by topic, in order of arrival."""

    def __init__(
        self,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        parameters: MultiProxyParameters,
    ) -> None:
        self._machine = machine
        self._deadlines = deadlines
        self._parameters = parameters
        self._readers: dict[int, dict[BrokerNumber, Reader]] = {}
        self._held: dict[int, dict[tuple[SourceId, int], Put]] = {}

    def count(self) -> int:
        """Return the number of waiting publications."""
        return sum(len(put.run) for held in self._held.values() for put in held.values())

    def holds(self, message: Put) -> bool:
        """Return True if a request waits."""
        held = self._held.get(message.topic, {})
        return (message.run.source, message.run.last) in held

    def delays(self, topic: Topic, message: Put) -> bool:
        """Return True if a request waits until there is room; none overtakes a waiting request."""
        held = self._held.get(topic.number)
        if held is None and not self._is_full(topic):
            return False
        if held is None:
            held = self._held[topic.number] = {}
            self._wait(topic)
        held.setdefault((message.run.source, message.run.last), message)
        return True

    def on_progress(self, home: BrokerNumber, topic: Topic, after: int) -> Iterator[Put]:
        """Record the progress of an access broker; yield the requests to append."""
        readers = self._readers.setdefault(topic.number, {})
        reader = readers.get(home)
        if reader is None or after > reader.after:
            readers[home] = Reader(after, self._machine.now_ns)
            yield from self.list_ready(topic)

    def drop(self, number: int) -> None:
        """Drop the waiting requests to a topic that moves to another server.

        They are repeated there.
        """
        if self._held.pop(number, None) is not None:
            self._deadlines.cancel((HELD, number))
        self._readers.pop(number, None)

    def remove_follower(self, home: BrokerNumber, topic: Topic) -> Iterator[Put]:
        """Remove a follower of a topic; yield the requests to append."""
        self._readers.get(topic.number, {}).pop(home, None)
        yield from self.list_ready(topic)

    def list_late(self, topic: Topic) -> list[Put]:
        """Return the last waiting request of each source, and wait again."""
        if topic.number not in self._held:
            return []
        self._wait(topic)
        sources: dict[SourceId, Put] = {}
        for message in self._held[topic.number].values():
            sources[message.run.source] = message
        return [*sources.values()]

    def _wait(self, topic: Topic) -> None:
        due_ns = self._machine.now_ns + self._parameters.timeout_ns // 2
        self._deadlines.set((HELD, topic.number), due_ns)

    def _is_full(self, topic: Topic) -> bool:
        since_ns = self._machine.now_ns - self._parameters.patience_ns
        lowest = topic.assigned - self._parameters.topic_window
        readers = self._readers.get(topic.number, {}).values()
        return any(reader.after < lowest and reader.moved_ns > since_ns for reader in readers)

    def list_ready(self, topic: Topic) -> Iterator[Put]:
        """Yield the requests that wait no longer; each is appended before the next."""
        held = self._held.get(topic.number)
        while held and not self._is_full(topic):
            yield held.pop(next(iter(held)))
        if held is not None and not held:
            del self._held[topic.number]
            self._deadlines.cancel((HELD, topic.number))


RETAINED: Final = "retained"
"""Purpose of the deadline at which publications become too old."""


_RUNS_PER_LOSS: Final = 4_096
"""The most runs in a message."""


class Retention:
    """The release of a server's publications by age and by size.

    Attributes:
        bounds: the bounds of retention.
    """

    def __init__(
        self,
        broker: BrokerNumber,
        machine: EventMachine,
        deadlines: DeadlineQueue[Any],
        log: TopicLog,
        bounds: MultiProxyParameters,
    ) -> None:
        self._broker = broker
        self._machine = machine
        self._deadlines = deadlines
        self._log = log
        self.bounds = bounds

    def on_append(self) -> None:
        """Release publications beyond the size, and schedule the release of old ones."""
        if self.bounds.max_retain_bytes:
            for topic, last in self._log.beyond(self.bounds.max_retain_bytes):
                if last > topic.released:
                    self._log.expire(topic, last)
        if not self.bounds.max_retain_ns or (RETAINED, None) in self._deadlines:
            return
        oldest = [topic.since[0][1] for topic in self._log if topic.since]
        if oldest:
            pause_ns = min(max(self.bounds.max_retain_ns // 16, MILLISECOND_NS), SECOND_NS)
            due_ns = max(min(oldest) + self.bounds.max_retain_ns, self._machine.now_ns + pause_ns)
            self._deadlines.set((RETAINED, None), due_ns)

    def due(self) -> None:
        """Release old publications."""
        for topic in self._log:
            through = topic.old_through(self._machine.now_ns - self.bounds.max_retain_ns)
            if through > topic.released and topic.is_here and not topic.is_frozen:
                self._log.expire(topic, through)
        self.on_append()

    def losses_after(self, home: BrokerNumber, topic: Topic, after: int) -> Iterator[Lost]:
        """Yield the losses after a position, for an access broker."""
        runs = topic.lost.after(after)
        for start in range(0, len(runs), _RUNS_PER_LOSS):
            part: tuple[LostRun, ...] = tuple(runs[start : start + _RUNS_PER_LOSS])
            yield Lost(self._broker, home, *topic.part, part)
