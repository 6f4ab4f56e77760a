"""Retention: a server lets go of what it has kept for long, although some home has not come for it.

Or of what its log has no room for, beginning with the oldest, whatever its age. Who was not done
with it, and has not got it, is told a gap. How long an earlier incarnation of the server had kept
something, no clock says for sure: it counts as kept since this one has read it.

Paper: none. [MP22] §4 keeps everything until each subscriber has fetched it, so that one that never
comes back fills the disk.
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
"""Purpose of the deadline at which something has been kept for long enough."""

_RUNS_TOLD: Final = 4_096
"""In one message, at most."""


class RetentionBounds(Protocol):
    """What is kept at most, of what somebody is not done with; 0: for as long as it takes."""

    @property
    def max_retain_ns(self) -> Instant:
        """How long something is kept."""

    @property
    def max_retain_bytes(self) -> int:
        """How much the log has."""


class Retention:
    """What one server lets go of for its age, or because there is no room for it.

    Attributes:
        bounds: what is kept at most.
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

    def kept(self) -> None:
        """There may be more than there is room for, and something that will get old."""
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
        """Let go of what is old."""
        for topic in self._log:
            through = topic.old_through(self._machine.now_ns - self.bounds.max_retain_ns)
            if through > topic.released and topic.is_here and not topic.is_frozen:
                self._log.expire(topic, through)
        self.kept()

    def told(self, home: BrokerNumber, topic: Topic, after: int) -> Iterator[Lost]:
        """What a home is to be told of what was lost behind a position."""
        runs = topic.lost.after(after)
        for start in range(0, len(runs), _RUNS_TOLD):
            part: tuple[LostRun, ...] = tuple(runs[start : start + _RUNS_TOLD])
            yield Lost(self._broker, home, *topic.part, part)
