"""The marks of gryphon, found in the events and effects of a core.

`PROTOCOL.md` names each of them at the rule that it stands for.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from brokerd.model.client_messages import Publish
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.overlay.cells import CellGraph
from brokerd.overlay.graph import OverlayGraph
from brokerd.protocols.gryphon.checks.filter_marks import FILTER_MARKS, filter_marks
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.messages import (
    AckExpected,
    Done,
    Events,
    Join,
    Nack,
    Silent,
    WindowUpdate,
)
from brokerd.protocols.gryphon.state import MERGED, RESERVED
from brokerd.protocols.interface import (
    Append,
    Chop,
    Commit,
    DeadlineReached,
    Deliver,
    Effect,
    Event,
    MessageReceived,
    RecordsRead,
    Send,
    SessionLost,
)
from brokerd.simulator.checks.marks import Mark
from brokerd.simulator.world.views import BrokerView

MARKS = (
    Mark("gap-asked", "a subscriber's broker requested a gap", seeds=4),
    Mark("asked-for-another", "a broker forwarded a neighbour's request", seeds=8),
    Mark(
        "nack-consolidated", "a nack was suppressed, because a similar one was just sent", seeds=40
    ),
    Mark("answered-on-the-way", "an intermediate broker answered a nack", seeds=8),
    Mark("answered-with-silence", "a nack was answered with silence", seeds=20),
    Mark("held-below-a-gap", "events arrived behind a gap and were not delivered", seeds=4),
    Mark("ack-expected", "a pubend requested the missing acknowledgements", seeds=4),
    Mark("expected-below", "an intermediate broker requested acknowledgements downstream", seeds=8),
    Mark(
        "kept-on-the-way",
        "an intermediate broker requested acknowledgements of its cache",
        seeds=12,
    ),
    Mark("log-read", "a restarted broker found events in its log", seeds=4),
    Mark("log-chopped", "a pubend truncated events that all had acknowledged", seeds=2),
    Mark("published-twice", "a publisher sent a received publication again", seeds=10),
    Mark("moved-over", "the messages for a cell moved to another broker of the cell", seeds=8),
    Mark("went-sideways", "events were sent to another broker of the same cell", seeds=8),
    Mark("asked-beside", "a nack was sent to another broker of the same cell", seeds=15),
    Mark("told-beside", "a broker forwarded downstream acknowledgements to its cell", seeds=8),
    Mark("silence-assigned", "a pubend declared future ticks silent", seeds=8),
    Mark("silent-beforehand", "an event arrived with unrequested silence", seeds=8),
    Mark("joined", "a broker waits for one pubend more", seeds=8),
    Mark(
        "joined-late",
        "a broker whose clients have got events waits for one pubend more",
        seeds=20,
    ),
    Mark("join-asked-again", "a pubend that was to begin asked again", seeds=20),
    Mark("answered-on", "an answer continued when its window had room again", seeds=20),
    Mark("publisher-held", "publications waited for room downstream", seeds=20),
    Mark("publisher-goes-on", "waiting publications were logged", seeds=20),
    Mark("stall-passed-over", "publications were logged in spite of a stalled receiver", seeds=20),
    Mark(
        "told-too-much",
        "a broker received part of an answer, and requested the rest later",
        seeds=60,
    ),
    Mark("came-twice", "a neighbour sent known ticks again", seeds=8),
    *FILTER_MARKS,
)


class GryphonMarks:
    """See MarkObserver."""

    def __init__(self, graph: OverlayGraph) -> None:
        self.counts = {mark.name: 0 for mark in MARKS}
        overlay = graph.overlay
        assert isinstance(overlay, CellGraph), f"{overlay} is none of cells"
        self._cells = [overlay.cell_of(number) for number in range(len(overlay.brokers))]
        self._told: dict[tuple[BrokerNumber, StreamId, int], BrokerNumber] = {}

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        """See MarkObserver."""
        if not effects and type(event) not in (MessageReceived, RecordsRead):
            return
        sends = [effect for effect in effects if type(effect) is Send]
        said = [effect.message for effect in sends]
        others = [effect for effect in effects if type(effect) is not Send]
        for name in _find_marks(broker, event, said, others):
            self.counts[name] += 1
        for name in filter_marks(broker, event, said, others):
            self.counts[name] += 1
        for effect in sends:
            if isinstance(effect.peer, int):
                for name in self._count_in_cells(broker.number, effect.peer, effect.message):
                    self.counts[name] += 1

    def _count_in_cells(
        self, broker: BrokerNumber, peer: BrokerNumber, message: Any
    ) -> Iterator[str]:
        is_beside = self._cells[broker] == self._cells[peer]
        if type(message) is Nack and is_beside:
            yield "asked-beside"
        elif type(message) is Done and message.cell != self._cells[broker]:
            yield "told-beside"
        elif type(message) is Events and not message.again:
            key = broker, message.run.source, self._cells[peer]
            if is_beside:
                yield "went-sideways"
            elif self._told.setdefault(key, peer) != peer:
                yield "moved-over"
                self._told[key] = peer


def _has_silence_behind(message: Any) -> bool:
    return type(message) is Events and not message.again and message.end > message.run.last + 1


def _find_marks(
    broker: BrokerView, event: Event, said: Sequence[Any], others: Sequence[Effect]
) -> Iterator[str]:
    """Yield the marks of a step, from its messages to peers and its other effects."""
    kinds = {type(message): None for message in said}
    acts = {type(effect): None for effect in others}
    if type(event) is RecordsRead:
        yield "log-read"
    if Chop in acts:
        yield "log-chopped"
    logs = Append in acts and any(type(each) is Append and each.log == LOG for each in others)
    if logs and type(event) in (DeadlineReached, SessionLost):
        yield "stall-passed-over" if type(event) is DeadlineReached else "publisher-goes-on"
    if type(event) is DeadlineReached:
        if Nack in kinds:
            yield "gap-asked"
        asked = [message for message in said if type(message) is AckExpected]
        if any(message.stream.broker == broker.number for message in asked):
            yield "ack-expected"
        if Join in kinds:
            yield "join-asked-again"
        if any(message.stream.broker != broker.number for message in asked):
            yield "kept-on-the-way"
    if Events in kinds and any(_has_silence_behind(message) for message in said):
        yield "silent-beforehand"
    if Commit in acts:
        rows = [row for effect in others if type(effect) is Commit for row in effect.changes]
        if any(row.table == RESERVED for row in rows):
            yield "silence-assigned"
        if any(row.table == MERGED for row in rows):
            yield "joined"
            if broker.core.statistics()["publications_delivered"]:
                yield "joined-late"
    if type(event) is not MessageReceived:
        return
    message = event.message
    if type(message) is Nack:
        if Nack in kinds:
            yield "asked-for-another"
        elif not kinds and not broker.core.status().missing:
            yield "nack-consolidated"
        if Events in kinds and message.stream.broker != broker.number:
            yield "answered-on-the-way"
        if Silent in kinds:
            yield "answered-with-silence"
    elif type(message) is Events:
        handed = Deliver in acts
        if not handed and broker.core.aftermath():
            yield "held-below-a-gap"
        if message.again and not kinds and not handed and Done not in kinds:
            yield "came-twice"
    elif type(message) is WindowUpdate:
        if any(type(each) is Events and each.again for each in said):
            yield "answered-on"
        if AckExpected in kinds:
            yield "told-too-much"
        if logs:
            yield "publisher-goes-on"
    elif type(message) is AckExpected and AckExpected in kinds:
        yield "expected-below"
    elif type(message) is Publish and not logs:
        is_held = broker.core.statistics()["publications_held"]
        yield "publisher-held" if is_held else "published-twice"
