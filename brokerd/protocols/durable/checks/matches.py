"""The logs of matches, compared with the pubends' logs and the subscriptions' predicates.

Paper: [DS03] §4.2 (one record per tick with a match, with back-pointers).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.protocols.durable.consolidated_stream import HostedStream
from brokerd.protocols.durable.core import Durable
from brokerd.protocols.durable.filtering_subsystem import NO_RECORD, MatchRecord
from brokerd.protocols.durable.state import DurableSubscription
from brokerd.protocols.gryphon import LOG
from brokerd.protocols.gryphon.checks.ghosts import GhostChecks
from brokerd.protocols.interface import Append, Chop, Effect, Event, RecordsRead, Started, Truncate
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

_Everybody = Mapping[int, DurableSubscription]


@dataclass(slots=True)
class _Written:
    """A log of matches, as one incarnation has read and written it.

    Attributes:
        position: ticks through this one were compared.
        next: the index of the next record.
        last_tick: of the newest record.
        ticks: of the records, by index.
        newest: per subscription, index and tick of its newest record.
    """

    position: int
    next: int
    last_tick: int = 0
    ticks: dict[int, int] = field(default_factory=dict)
    newest: dict[int, tuple[int, int]] = field(default_factory=dict)

    def take(self, record: MatchRecord) -> None:
        self.newest |= dict.fromkeys(record.subscriptions, (self.next, record.tick))
        self.last_tick = self.ticks[self.next] = record.tick
        self.next += 1

    def chop(self, first: int) -> int:
        """Remove records below an index; return their highest tick."""
        return max([self.ticks.pop(each) for each in [*self.ticks] if each < first], default=0)


class MatchChecks(ProtocolChecks):
    """See ProtocolChecks.

    - matches: a tick that a stream passes has a record of exactly the subscriptions that match the
      publication, connected or not; a record names the previous records of its subscriptions (J5);
    - chopped early: a record is truncated once its release is durable (J5).

    Args:
        ghosts: called before this in each step.
        released: returns the tick that all subscribers at a broker have released, from its disk.
    """

    def __init__(
        self,
        world: CheckedWorld,
        ghosts: GhostChecks,
        released: Callable[[BrokerView, StreamId], float],
    ) -> None:
        super().__init__(world)
        self._ghosts = ghosts
        self._released = released
        self._logs: dict[tuple[BrokerNumber, str], _Written] = {}
        self._positions: dict[BrokerNumber, list[int]] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        core = broker.protocol
        assert isinstance(core, Durable), f"{core} is no core of durable"
        if type(event) is Started:
            self._positions.pop(broker.number, None)
            for hosted in core.hosted.values():
                name = hosted.log.name
                written = _Written(hosted.delivered, event.logs[name].first)
                self._logs[broker.number, name] = written
        elif type(event) is RecordsRead and event.log != LOG:
            self._read(self._logs[broker.number, event.log], event, effects)
        fresh: dict[str, dict[int, MatchRecord]] = {}
        for effect in effects:
            if type(effect) is Append and effect.log != LOG and effect.records:
                records = [MatchRecord.unpack(b"".join(each)) for each in effect.records]
                fresh.setdefault(effect.log, {}).update((each.tick, each) for each in records)
        everybody: _Everybody | None = None
        chops = [each for each in effects if type(each) is Chop]
        positions = [hosted.stream.subend.position for hosted in core.hosted.values()]
        if positions == self._positions.get(broker.number) and not chops:
            return ()
        self._positions[broker.number] = positions
        for hosted in core.hosted.values():
            written = self._logs[broker.number, hosted.log.name]
            if hosted.position > written.position:
                if everybody is None:
                    everybody = {each.identity: each for each in core.registered.present.values()}
                records_of = fresh.get(hosted.log.name, {})
                self._compare(f"{broker.name}, ", everybody, hosted, written, records_of)
            for chop in chops:
                if chop.log == hosted.log.name:
                    self._check_chop(broker, hosted, written.chop(chop.first))
        return ()

    def _check_chop(self, broker: BrokerView, hosted: HostedStream, through: int) -> None:
        durable = self._released(broker, hosted.identity)
        if through > durable:
            subject = f"{broker.name}, {tuple(hosted.identity)}: {through} is chopped"
            raise InvariantViolated("chopped early", f"{subject}, and {durable} released on disk")

    @staticmethod
    def _read(written: _Written, event: RecordsRead, effects: list[Effect]) -> None:
        """Take the records that a restart reads, through the first that it truncates."""
        dropped = [each.next for each in effects if type(each) is Truncate and each.log != LOG]
        for index, content in enumerate(event.records, event.first):
            if index == written.next and index not in dropped:
                written.take(MatchRecord.unpack(content))

    def _compare(
        self,
        name: str,
        everybody: _Everybody,
        hosted: HostedStream,
        written: _Written,
        records: Mapping[int, MatchRecord],
    ) -> None:
        """Compare the ticks that a stream has passed in this step with their records."""
        before, position = written.last_tick, hosted.position
        for tick, blob in self._ghosts.logged_events(hosted.identity, written.position, position):
            record = records.get(tick)
            subject = f"{name}{tuple(hosted.identity)}: {tick}"
            if tick > before:  # else it was there already
                self._check_matching(subject, everybody, hosted, record, tick, blob)
            if record is not None:
                _check_before(subject, everybody, hosted, record, written)
                written.take(record)
        written.position = position

    def _check_matching(
        self,
        subject: str,
        everybody: _Everybody,
        hosted: HostedStream,
        record: MatchRecord | None,
        tick: int,
        blob: bytes,
    ) -> None:
        """Check a record's subscriptions; an acknowledgement in the same step allows both."""
        recorded = record.subscriptions if record is not None else ()
        for identity, local in everybody.items():
            is_wanted = self.world.oracle.wants(local.predicate, blob)
            if is_wanted and identity not in recorded and tick > _has(local, hosted.identity):
                raise InvariantViolated(
                    "matches", f"{subject} is for {identity}, and not so written"
                )
            if identity in recorded and not is_wanted:
                raise InvariantViolated(
                    "matches", f"{subject} is written for {identity}, and is not"
                )


def _check_before(
    subject: str,
    everybody: _Everybody,
    hosted: HostedStream,
    record: MatchRecord,
    written: _Written,
) -> None:
    """Check the previous records, except for acknowledged ticks and reused numbers."""
    for identity in record.subscriptions:
        newest, tick = written.newest.get(identity, (NO_RECORD, 0))
        named = record.before(identity)
        local = everybody.get(identity)
        is_needed = local is not None and tick > _has(local, hosted.identity)
        if named != newest and (named != NO_RECORD or is_needed):
            names = "none" if named == NO_RECORD else named
            raise InvariantViolated(
                "matches", f"{subject} names {names} for {identity}, not {newest}"
            )


def _has(local: DurableSubscription, stream: StreamId) -> int:
    """Return the tick through which a subscription's matches do not matter."""
    lane = local.lanes.get(stream)
    return max(lane.acknowledged, lane.matched_after) if lane is not None else 0
