"""The detection of catch-up streams that do not approach the live position.

Paper: [DS03] §4.1 (flow control: catching up has to end).
"""

from typing import Any, Final

from brokerd.protocols.durable.hosted_streams import HostedStream
from brokerd.protocols.durable.lanes import Lane
from brokerd.protocols.gryphon import TICK_NS
from brokerd.protocols.interface import Instant, Record
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.units import MILLISECOND_NS

CATCHUP_WATCH: Final = "catch-up watch"


class CatchupWatch:
    """All catch-up streams of a broker, with their distances at the last look.

    Args:
        interval_ns: the time in which a stream must approach.
        counters: `catchups_diverging` counts streams that have not.
    """

    def __init__(
        self,
        machine: EventMachine,
        timers: DeadlineQueue[Any],
        interval_ns: Instant,
        counters: dict[str, int],
    ) -> None:
        self._machine = machine
        self._timers = timers
        self._interval_ns = interval_ns
        self._counters = counters
        counters["catchups_diverging"] = 0
        self._behind: dict[Lane, tuple[HostedStream, int]] = {}

    def __len__(self) -> int:
        """Return the number of catch-up streams."""
        return len(self._behind)

    def begin(self, hosted: HostedStream, lane: Lane, had: int) -> None:
        """Add a lane that catches up from a position."""
        self._behind[lane] = hosted, hosted.position - had
        self._look_later()

    def leave(self, lane: Lane) -> None:
        """Remove a lane."""
        self._behind.pop(lane, None)

    def due(self) -> None:
        """Look at all catch-up streams, and record those that diverge."""
        for lane, (hosted, before) in self._behind.items():
            assert lane.catchup is not None, f"{lane.subscription} does not catch up"
            behind = hosted.position - lane.catchup.given
            self._behind[lane] = hosted, behind
            if behind >= before:
                self._counters["catchups_diverging"] += 1
                self._machine.emit(Record("catchup_diverging", _details(lane, behind)))
        if self._behind:
            self._look_later()

    def _look_later(self) -> None:
        if (CATCHUP_WATCH, None) not in self._timers:
            self._timers.set((CATCHUP_WATCH, None), self._machine.now_ns + self._interval_ns)


def _details(lane: Lane, behind: int) -> dict[str, Any]:
    source, publisher, _ = lane.stream
    return {
        "client": lane.subscription.client,
        "subscription": lane.subscription.number,
        "source": source,
        "stream": publisher,
        "behind_ms": behind * TICK_NS // MILLISECOND_NS,
    }
