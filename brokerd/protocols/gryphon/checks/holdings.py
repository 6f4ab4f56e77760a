"""Checks of retained events of streams, and of their release.

Paper: [GD02] §2.1 (an ever-growing prefix is final), §2.2 (form of a pubend's stream), §3.1.
"""

from collections.abc import Sequence

from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.model.publication import PublicationRun
from brokerd.overlay.cells import CellGraph
from brokerd.protocols.gryphon.checks.stream_states import gryphon_of
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.pubend import unpack_logged
from brokerd.protocols.gryphon.stream import Stream
from brokerd.protocols.interface import Append, Chop, Effect, Event, RecordsRead, Started
from brokerd.simulator.checks.protocol_checks import CheckedWorld, ProtocolChecks
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.views import BrokerView

_Counted = tuple[list[PublicationRun], int, int]
"""A broker's retained runs, with the number of their events and payload bytes."""


class HoldingChecks(ProtocolChecks):
    """See ProtocolChecks; the names of rules stand in the protocol's document.

    - pubend with a hole: at the pubend a stream has no gap up to its end (I4);
    - chopped early: a log keeps every record that a broker may lack (I8);
    - still curious: no request names ticks with knowledge while the window has room (I9);
    - retained: no event is retained that all below have acknowledged, and counts are exact (I16);
    - unsettled: ticks that all have acknowledged are final, at each broker with the acks (I16).
    """

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world)
        cells = world.graph.overlay
        assert isinstance(cells, CellGraph), f"{cells} is none of cells"
        self._hosts = [len(cells.members[cells.cell_of(n)]) == 1 for n in range(len(cells.brokers))]
        self._records: dict[BrokerNumber, dict[int, tuple[StreamId, int]]] = {}
        self._next: dict[BrokerNumber, int] = {}
        self._counted: dict[tuple[BrokerNumber, StreamId], _Counted] = {}

    def step(
        self, broker: BrokerView, event: Event, effects: list[Effect]
    ) -> Sequence[tuple[str, int]]:
        """See ProtocolChecks."""
        records = self._records.setdefault(broker.number, {})
        if type(event) is Started:
            records.clear()
            self._next[broker.number] = event.logs[LOG].next
        elif type(event) is RecordsRead and event.log == LOG:
            for index, record in enumerate(event.records, event.first):
                records[index] = _last_of(broker.number, bytes(record))
        for effect in effects:
            if type(effect) is Append and effect.log == LOG:
                for parts in effect.records:
                    index = self._next[broker.number]
                    records[index] = _last_of(broker.number, b"".join(map(bytes, parts)))
                    self._next[broker.number] = index + 1
            elif type(effect) is Chop and effect.log == LOG:
                self._check_chop(broker, effect)
        return ()

    def check_stream(self, broker: BrokerView, core: Gryphon, stream: Stream) -> None:
        """Check the state of one stream at a broker."""
        knowledge, identity = stream.knowledge, stream.identity
        known = knowledge.known
        if stream.upstream is None and len(known) > 1:
            subject = f"{_describe(broker, identity)}: {[*known]}"
            raise InvariantViolated("pubend with a hole", subject[:300])
        self._check_retained(broker, stream)
        done = min(self._list_acks(broker, stream), default=knowledge.final)
        if done > knowledge.final:
            subject = f"{_describe(broker, identity)}: {self._list_acks(broker, stream)}"
            raise InvariantViolated("unsettled", f"{subject}, final is {knowledge.final}")
        for peer, ranges in stream.curious.items():
            if core.flow.answer_room_bytes(peer, stream.identity) <= 0:
                continue
            if stated := [part for each in ranges for part in known.within(*each)]:
                subject = f"{_describe(broker, identity)}: {peer} of {stated}"
                raise InvariantViolated("still curious", subject)

    def _list_acks(self, broker: BrokerView, stream: Stream) -> list[int]:
        """Return the acks of all cells and clients that an event here may concern."""
        done = [*map(stream.acknowledged_by, stream.children)]
        if self._hosts[broker.number]:
            done.append(stream.subend.done)
        if stream.held is not None:
            done.append(stream.held)
        return done

    def _check_retained(self, broker: BrokerView, stream: Stream) -> None:
        """Check the counts of retained runs. Runs never change, so equal runs are counted once."""
        knowledge, events, identity = stream.knowledge, stream.knowledge.events, stream.identity
        runs = [*events]
        counted = self._counted.get((broker.number, identity))
        if counted is None or counted[0] != runs:
            counted = runs, sum(map(len, runs)), sum(run.payload_bytes() for run in runs)
            self._counted[broker.number, identity] = counted
        if runs and runs[0].first <= knowledge.final:
            subject = f"{_describe(broker, identity)}: {runs[0].first}"
            raise InvariantViolated("retained", f"{subject}, final is {knowledge.final}")
        counts = counted[1:]
        if counts != (events.events, events.payload_bytes):
            subject = f"{_describe(broker, identity)}: {counts}"
            raise InvariantViolated("retained", f"{subject} is not what is counted")

    def _check_chop(self, broker: BrokerView, effect: Chop) -> None:
        core, records = gryphon_of(broker.core), self._records[broker.number]
        final = {stream.identity: stream.knowledge.final for stream in core.streams}
        for index in [each for each in records if each < effect.first]:
            identity, last = records.pop(index)
            if last > final[identity]:
                subject = f"{broker.name}, record {index} of {tuple(identity)}: {last}"
                raise InvariantViolated("chopped early", f"{subject}, final is {final[identity]}")


def _last_of(broker: BrokerNumber, record: bytes) -> tuple[StreamId, int]:
    pubend, first, run = unpack_logged(record)
    return StreamId(broker, pubend, 0), first + len(run) - 1


def _describe(broker: BrokerView, identity: StreamId) -> str:
    return f"{broker.name}, {tuple(identity)}"
