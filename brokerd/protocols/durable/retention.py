"""Retention: the rules by which a pubend releases events before all have acknowledged them.

A pubend releases old events, although disconnected subscribers lack them. A tick may be lost when
all have released it (`release`), or when it is beyond a bound and all brokers with subscribers have
acknowledged it. Bounds are an age and the weight of newer events. So live subscribers lack nothing;
subscribers in catch-up receive gaps.

Paper: [DS03] §3 (early release, maxRetain).
Deviates: nothing is lost for its age soon after a start, when live subscribers have not had the
time to return.
"""

from collections.abc import Iterator
from typing import Final

from brokerd.model.identity import StreamId
from brokerd.protocols.durable.catchup import NOTHING_LOST, LostPart
from brokerd.protocols.durable.messages import Origins
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.gryphon import (
    EVENT_BYTES,
    TICK_NS,
    Stream,
    ticks_in,
)
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.interface import Instant
from brokerd.units import MILLISECOND_NS, SECOND_NS

RETAINED: Final = "retained"
EXCESSIVE: Final = "excessive"

_EXCESS_PAUSE_NS: Final = 20 * MILLISECOND_NS


class Retention:
    """The retention of a broker's pubends, bounded in time and in bytes.

    Attributes:
        most_bytes: the weight of the newest events that are retained in any case; 0 without a
            bound in bytes.
    """

    def __init__(
        self,
        gryphon: Gryphon,
        parameters: DurableParameters,
    ) -> None:
        self._machine = gryphon
        self._deadlines = gryphon.deadlines
        self._pubends = gryphon.pubends
        self._streams = gryphon.streams
        self._max_retain_ns = parameters.max_retain_ns
        self.most_bytes = parameters.max_retain_bytes
        self._grace_ns = parameters.release_grace_ns
        self._from_ns: Instant = 0
        self._released: dict[StreamId, int] = {}
        self._lost: dict[StreamId, tuple[int, Origins]] = {}

    def begin(self) -> None:
        """Continue from the state of an earlier incarnation."""
        # How old the events of an earlier incarnation are, no clock says for sure.
        self._from_ns = self._machine.now_ns + max(self._grace_ns, self._max_retain_ns)
        for stream in self._streams.own():
            self._released[stream.identity] = stream.held = self._pubends.released(
                stream.identity.publisher
            )
        self.schedule()

    def on_released(self, stream: Stream, through: int) -> None:
        """Record the released tick of a stream, which may have to be retained less."""
        self._released[stream.identity] = through
        self._hold(stream)

    def schedule(self) -> None:
        """Schedule the expiry of new events."""
        if self._max_retain_ns and (RETAINED, None) not in self._deadlines:
            due_ns = self._next_ns()
            if due_ns is not None:
                self._deadlines.set((RETAINED, None), due_ns)
        if self.most_bytes and (EXCESSIVE, None) not in self._deadlines:
            streams = self._streams.own()
            if any(self._excess_tick(stream) > (stream.held or 0) for stream in streams):
                due_ns = self._machine.now_ns + _EXCESS_PAUSE_NS
                self._deadlines.set((EXCESSIVE, None), max(due_ns, self._from_ns))

    def expire(self) -> Iterator[Stream]:
        """Release events beyond the bounds; yield streams that may be retained less."""
        for stream in self._streams.own():
            self._hold(stream)
            yield stream
        self.schedule()

    def _hold(self, stream: Stream) -> None:
        bounds = self.expired_tick(), self._excess_tick(stream) if self._is_settled else 0
        stream.held = max(self._released[stream.identity], stream.held or 0, *bounds)

    @property
    def _is_settled(self) -> bool:
        """True unless live subscribers may lack the time to return since the start."""
        return self._machine.now_ns >= self._from_ns

    def _excess_tick(self, stream: Stream) -> int:
        """Return the tick through which newer events have the weight to retain."""
        if not self.most_bytes:
            return 0
        return stream.knowledge.events.before_newest(self.most_bytes, EVENT_BYTES)

    def expired_tick(self) -> int:
        """Return the tick through which events are older than the retention."""
        if not self._max_retain_ns or not self._is_settled:
            return 0
        oldest = self._pubends.tick(self._machine.now_ns) - ticks_in(self._max_retain_ns)
        return max(0, oldest - 1)

    def _next_ns(self) -> Instant | None:
        """Return the expiry of the next event, or later to bound the rate."""
        now_ns = self._machine.now_ns
        firsts = [stream.knowledge.events.after(stream.held or 0) for stream in self._streams.own()]
        waiting = [tick for tick in firsts if tick is not None]
        if not waiting:
            return None
        lacking = min(waiting) + 1 - self._pubends.tick(now_ns)
        old_ns = now_ns + self._max_retain_ns + lacking * TICK_NS
        pause_ns = min(max(self._max_retain_ns // 16, MILLISECOND_NS), SECOND_NS)
        return max(old_ns, self._from_ns, now_ns + pause_ns)

    # ------------------------------------------------------------ losses

    def find_loss(self, stream: Stream, first: int) -> LostPart:
        """Return the loss in an answer about ticks from `first` on.

        Below a loss marker, events may be lost that are neither released nor in the log.
        """
        final, (marked, markers) = stream.knowledge.final, self._pubends.losses(stream.identity)
        if first <= final:
            return LostPart(max(final, marked), self.lost_origins(stream))
        return LostPart(marked, tuple(sorted(markers))) if first <= marked else NOTHING_LOST

    def lost_origins(self, stream: Stream) -> Origins:
        """Return the lost numbers per source: of publications that were on disk and are no more."""
        final = stream.knowledge.final
        known = self._lost.get(stream.identity)
        if known is None or known[0] != final:
            known = self._lost[stream.identity] = final, self._origins(stream)
        return known[1]

    def _origins(self, stream: Stream) -> Origins:
        last = dict(self._pubends.sources(stream.identity))
        kept = {
            source: sequences[0]
            for run in reversed([*stream.knowledge.events])
            for source, sequences in reversed(run.origins)
        }
        lost = {source: kept.get(source, through + 1) - 1 for source, through in last.items()}
        lost |= dict(self._pubends.losses(stream.identity)[1])
        return tuple(sorted((source, through) for source, through in lost.items() if through))
