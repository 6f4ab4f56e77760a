"""Retention: the rules by which a pubend releases events before all have acknowledged them.

A pubend releases old events, although disconnected subscribers lack them. A tick may be lost when
all have released it (`release`), or when it is beyond a bound and all brokers with subscribers have
acknowledged it. Bounds are an age and the weight of newer events, in a policy of each pubend. So
live subscribers lack nothing; subscribers in catch-up receive gaps.

Paper: [DS03] §3 (early release, maxRetain).
Deviates: nothing is lost for its age soon after a start, when live subscribers have not had the
time to return.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from brokerd.model.identity import StreamId
from brokerd.model.retention_policy import RetentionPolicy
from brokerd.protocols.durable.catchup import NOTHING_LOST, LostPart
from brokerd.protocols.durable.messages import LOST, Origins
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.passed_events import weigh
from brokerd.protocols.durable.state import RETENTION
from brokerd.protocols.extensions import StreamRetention
from brokerd.protocols.gryphon import EVENT_BYTES, TICK_NS, Stream, ticks_in
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.interface import RETENTION_CHANGED, Change, Instant, Record, RetentionChanged
from brokerd.units import MILLISECOND_NS, SECOND_NS

RETAINED: Final = "retained"
EXCESSIVE: Final = "excessive"

_EXCESS_PAUSE_NS: Final = 20 * MILLISECOND_NS


class Retention:
    """The retention of a broker's pubends, bounded in time and in bytes by policies."""

    def __init__(
        self,
        gryphon: Gryphon,
        parameters: DurableParameters,
    ) -> None:
        self._machine = gryphon
        self._deadlines = gryphon.deadlines
        self._pubends = gryphon.pubends
        self._streams = gryphon.streams
        self._parameters = parameters
        self._policies = [*parameters.policies]
        self._grace_ns = parameters.release_grace_ns
        self._begun_ns: Instant | None = None
        self._requested: dict[int, RetentionChanged] = {}
        self._released: dict[StreamId, int] = {}
        self._lost: dict[StreamId, tuple[int, Origins]] = {}
        self._note_bounds()

    def _note_bounds(self) -> None:
        self._has_age = any(each.age_ns for each in self._policies)
        self._has_bytes = any(each.most_bytes for each in self._policies)

    def policy(self, stream: StreamId) -> RetentionPolicy:
        """Return the policy of a pubend here."""
        return self._policies[stream.publisher]

    def changed(self) -> dict[str, str]:
        """Return the changed policies by pubend, for people."""
        default = self._parameters.policies
        return {
            str(pubend): str(policy)
            for pubend, policy in enumerate(self._policies)
            if policy != default[pubend]
        }

    def begin(self, rows: Mapping[str, str], *, is_restart: bool) -> None:
        """Continue from the state of an earlier incarnation.

        A crash separates the removal of a row from its record, and a lost disk removes rows
        without a record. So a restart also records the policies without a row.

        Args:
            rows: the changed policies, by pubend.
        """
        self._begun_ns = self._machine.now_ns
        for key, text in rows.items():
            if int(key) < len(self._policies):
                self._policies[int(key)] = RetentionPolicy.parse(text, f"row {key}")
        for pubend in range(len(self._policies)) if is_restart else ():
            self._machine.emit(self._record(pubend))
        self._note_bounds()
        for stream in self._streams.own():
            self._released[stream.identity] = stream.held = self._pubends.released(
                stream.identity.publisher
            )
        self.schedule()

    def request(self, event: RetentionChanged) -> Change:
        """Return the row of a changed policy; `change` follows when the row is durable."""
        self._requested[event.pubend] = event
        value = None if event.policy is None else str(event.policy)
        return Change(RETENTION, str(event.pubend), value)

    def change(self, event: RetentionChanged) -> Stream:
        """Set a durable policy, without a later change; return the stream for its release.

        A longer policy also retains events beyond the bounds of the earlier policy.
        """
        stream = self._streams.get(self._pubends.stream(event.pubend))
        if self._requested[event.pubend] is not event:
            return stream
        default = self._parameters.policies[event.pubend]
        self._policies[event.pubend] = default if event.policy is None else event.policy
        self._note_bounds()
        self._machine.emit(self._record(event.pubend))
        stream.held = stream.knowledge.final
        self._hold(stream)
        for purpose in (RETAINED, EXCESSIVE):
            self._deadlines.cancel((purpose, None))
        self.schedule()
        return stream

    def _record(self, pubend: int) -> Record:
        policy = self._policies[pubend]
        details = {
            "pubend": pubend,
            "pubends": len(self._policies),
            "policy": str(policy),
            "reason": LOST,
            "gap_age_ns": self._parameters.gap_age_with(policy),
        }
        return Record(RETENTION_CHANGED, details)

    def list_all(
        self, now_ns: Instant, proposed: RetentionPolicy | None
    ) -> Iterator[StreamRetention]:
        """Yield the policies of the pubends here. See ListingProtocol.list_retention."""
        now = self._pubends.tick(now_ns)
        for stream in self._streams.own():
            identity, events = stream.identity, stream.knowledge.events
            policy = proposed or self.policy(identity)
            first = events.after(stream.knowledge.final)
            bounds = [now - ticks_in(policy.age_ns) - 1] if policy.age_ns else []
            if policy.most_bytes:
                bounds.append(events.before_newest(policy.most_bytes, EVENT_BYTES))
            kept, _ = weigh(events, max([stream.knowledge.final, *bounds]))
            yield StreamRetention(
                identity,
                self.policy(identity),
                self._parameters.policies[identity.publisher],
                events.events,
                events.events - kept,
                0 if first is None else (now - first) * TICK_NS,
                events.payload_bytes + EVENT_BYTES * events.events,
                self._record(identity.publisher),
            )

    def on_released(self, stream: Stream, through: int) -> None:
        """Record the released tick of a stream, which may have to be retained less."""
        self._released[stream.identity] = through
        self._hold(stream)

    def schedule(self) -> None:
        """Schedule the expiry of new events."""
        if self._has_age and (RETAINED, None) not in self._deadlines:
            due_ns = self._next_ns()
            if due_ns is not None:
                self._deadlines.set((RETAINED, None), due_ns)
        if self._has_bytes and (EXCESSIVE, None) not in self._deadlines:
            excessive = [
                self._from_ns(stream)
                for stream in self._streams.own()
                if self._excess_tick(stream) > (stream.held or 0)
            ]
            if excessive:
                due_ns = max(self._machine.now_ns + _EXCESS_PAUSE_NS, min(excessive))
                self._deadlines.set((EXCESSIVE, None), due_ns)

    def expire(self) -> Iterator[Stream]:
        """Release events beyond the bounds; yield streams that may be retained less."""
        for stream in self._streams.own():
            self._hold(stream)
            yield stream
        self.schedule()

    def _hold(self, stream: Stream) -> None:
        bounds = self.expired_tick(stream), self._excess_tick(stream) * self._is_settled(stream)
        stream.held = max(self._released[stream.identity], stream.held or 0, *bounds)

    def _is_settled(self, stream: Stream) -> bool:
        """Return True unless live subscribers may lack the time to return since the start."""
        return self._machine.now_ns >= self._from_ns(stream)

    def _from_ns(self, stream: Stream) -> Instant:
        """Return the instant of the first possible loss."""
        if self._begun_ns is None:
            return 0
        # How old the events of an earlier incarnation are, no clock says for sure.
        return self._begun_ns + max(self._grace_ns, self.policy(stream.identity).age_ns)

    def _excess_tick(self, stream: Stream) -> int:
        """Return the tick through which newer events have the weight to retain."""
        most_bytes = self.policy(stream.identity).most_bytes
        return stream.knowledge.events.before_newest(most_bytes, EVENT_BYTES) if most_bytes else 0

    def expired_tick(self, stream: Stream) -> int:
        """Return the tick through which events are older than the retention."""
        age_ns = self.policy(stream.identity).age_ns
        if not age_ns or not self._is_settled(stream):
            return 0
        return max(0, self._pubends.tick(self._machine.now_ns) - ticks_in(age_ns) - 1)

    def _next_ns(self) -> Instant | None:
        """Return the expiry of the next event, or later to bound the rate."""
        now_ns, now = self._machine.now_ns, self._pubends.tick(self._machine.now_ns)
        found = []
        for stream in self._streams.own():
            age_ns = self.policy(stream.identity).age_ns
            first = stream.knowledge.events.after(stream.held or 0) if age_ns else None
            if first is not None:
                old_ns = now_ns + age_ns + (first + 1 - now) * TICK_NS
                pause_ns = min(max(age_ns // 16, MILLISECOND_NS), SECOND_NS)
                found.append(max(old_ns, self._from_ns(stream), now_ns + pause_ns))
        return min(found, default=None)

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
