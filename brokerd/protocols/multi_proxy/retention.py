"""Retention: a server releases old publications, although access brokers have not fetched them.

A server also releases publications that its log has no room for, the oldest first, at any age. A
follower without an acknowledgement receives a gap. The age of an earlier incarnation's
publications is not certain by any clock: it counts from the time at which this incarnation has
read them.

Paper: none. [MP22] §4 keeps everything until each subscriber has fetched it, so that a subscriber
that never returns fills the disk.
"""

from collections.abc import Iterator
from typing import Any, Final, Protocol

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.interface import Instant
from brokerd.protocols.multi_proxy.messages import Lost, LostRun
from brokerd.protocols.multi_proxy.topic_log import Topic, TopicLog
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.units import MILLISECOND_NS, SECOND_NS

RETAINED: Final = "retained"
"""Purpose of the deadline at which publications become too old."""

_RUNS_TOLD: Final = 4_096
"""The most runs in a message."""


class RetentionBounds(Protocol):
    """The bounds on retained publications without all acknowledgements; 0: no bound."""

    @property
    def max_retain_ns(self) -> Instant:
        """The longest time of retention."""

    @property
    def max_retain_bytes(self) -> int:
        """The largest size of the log."""


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
        bounds: RetentionBounds,
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
        for start in range(0, len(runs), _RUNS_TOLD):
            part: tuple[LostRun, ...] = tuple(runs[start : start + _RUNS_TOLD])
            yield Lost(self._broker, home, *topic.part, part)
