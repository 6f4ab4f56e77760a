"""The marks of gryphon, found in the events and effects of a core.

`PROTOCOL.md` names each of them at the rule that it stands for. A new mark is a row of the table.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from brokerd.model.client_messages import Publish
from brokerd.model.identity import BrokerNumber, StreamId
from brokerd.overlay.cells import CellGraph
from brokerd.overlay.graph import OverlayGraph
from brokerd.protocols.gryphon.definition import LOG
from brokerd.protocols.gryphon.messages import (
    AckExpected,
    Beginnings,
    Done,
    Events,
    FilterChange,
    FilterSet,
    Join,
    Nack,
    Silent,
    WindowUpdate,
)
from brokerd.protocols.gryphon.state import BEGINS, MERGED, RESERVED
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
from brokerd.simulator.checks.marks import Mark, MarkStep, MarkTable
from brokerd.simulator.world.views import BrokerView


def _lacks_any(step: MarkStep) -> bool:
    """Return True if filters are on, and the broker lacks one."""
    filters = step.core.filters
    return filters.is_on and any(
        filters.predicates(each.broker) is None for each in filters.versions()
    )


def _is_behind(row: Sequence[Sequence[int]]) -> bool:
    return any(tick for _, *ticks in row for tick in ticks)


def _holds_back(step: MarkStep) -> bool:
    """Return True if a cell below does not want all events of a first transmission.

    A message of a closed session may name an unknown stream.
    """
    core, message = step.core, step.message
    if message.again or not core.filters.is_on:
        return False
    streams = [each for each in core.streams if each.identity == message.run.source]
    selection = core.filters.select(message.run)
    wanted = [selection.wanted(cell) for stream in streams for cell in stream.children]
    return any(part is None or len(part) < len(message.run) for part in wanted)


FILTER_MARKS = (
    Mark(
        "event-suppressed",
        "an intermediate broker suppressed an event for a cell",
        seeds=4,
        on=(Events,),
        when=_holds_back,
    ),
    Mark(
        "forwarded-without-filter",
        "a broker forwarded everything, because it lacked a filter",
        seeds=8,
        by=(Events,),
        when=_lacks_any,
    ),
    Mark(
        "filter-sent", "a broker sent a missing filter to another broker", seeds=4, by=(FilterSet,)
    ),
    Mark(
        "filter-narrowed",
        "a broker announced a narrower filter",
        seeds=4,
        by=(FilterChange,),
        when=lambda step: step.sends(FilterChange, lambda each: bool(each.removed)),
    ),
    Mark(
        "starts-announced",
        "a broker announced the starts of subscriptions in its streams",
        seeds=2,
        by=(Beginnings,),
        when=lambda step: step.sends(
            Beginnings, lambda each: step.is_own(each.beginnings[0].broker)
        ),
    ),
    Mark(
        "subscription-began-behind",
        "a subscription began behind what had been published",
        seeds=4,
        by=(Commit,),
        when=lambda step: any(row.value and _is_behind(row.value) for row in step.rows(BEGINS)),
    ),
)


def _logs(step: MarkStep) -> bool:
    """Return True if the step appends publications to the log."""
    return any(each.log == LOG for each in step.acts.get(Append, ()))


def _counter(step: MarkStep, name: str) -> int:
    found: int = step.core.statistics()[name]
    return found


MARKS = (
    Mark(
        "gap-requested",
        "a subscriber's broker requested a gap",
        seeds=4,
        on=(DeadlineReached,),
        when=lambda step: Nack in step.sent,
    ),
    Mark(
        "nack-forwarded",
        "a broker forwarded a neighbour's request",
        seeds=8,
        on=(Nack,),
        when=lambda step: Nack in step.sent,
    ),
    Mark(
        "nack-consolidated",
        "a nack was suppressed, because a similar nack was just sent",
        seeds=40,
        on=(Nack,),
        when=lambda step: not step.sent and not step.core.status().missing,
    ),
    Mark(
        "nack-answered-by-intermediate",
        "an intermediate broker answered a nack",
        seeds=8,
        on=(Nack,),
        when=lambda step: Events in step.sent and not step.is_own(step.message.stream.broker),
    ),
    Mark(
        "nack-answered-with-silence",
        "a nack was answered with silence",
        seeds=20,
        on=(Nack,),
        when=lambda step: Silent in step.sent,
    ),
    Mark(
        "events-behind-gap",
        "events arrived behind a gap and were not delivered",
        seeds=4,
        on=(Events,),
        when=lambda step: Deliver not in step.acts and bool(step.core.aftermath()),
    ),
    Mark(
        "ack-expected",
        "a pubend requested the missing acknowledgements",
        seeds=4,
        on=(DeadlineReached,),
        when=lambda step: step.sends(AckExpected, lambda each: step.is_own(each.stream.broker)),
    ),
    Mark(
        "acks-requested-downstream",
        "an intermediate broker requested acknowledgements downstream",
        seeds=8,
        on=(AckExpected,),
        when=lambda step: AckExpected in step.sent,
    ),
    Mark(
        "cache-acks-requested",
        "an intermediate broker requested acknowledgements of its cache",
        seeds=12,
        on=(DeadlineReached,),
        when=lambda step: step.sends(AckExpected, lambda each: not step.is_own(each.stream.broker)),
    ),
    Mark("log-read", "a restarted broker found events in its log", seeds=4, on=(RecordsRead,)),
    Mark(
        "log-truncated", "a pubend truncated events that all had acknowledged", seeds=2, by=(Chop,)
    ),
    Mark(
        "publication-repeated",
        "a publisher sent a received publication again",
        seeds=10,
        on=(Publish,),
        when=lambda step: not _logs(step) and not _counter(step, "publications_held"),
    ),
    Mark(
        "cell-peer-changed", "the messages for a cell moved to another broker of the cell", seeds=8
    ),
    Mark("events-sent-within-cell", "events were sent to another broker of the same cell", seeds=8),
    Mark("nack-sent-within-cell", "a nack was sent to another broker of the same cell", seeds=15),
    Mark(
        "acks-sent-within-cell",
        "a broker forwarded downstream acknowledgements to its cell",
        seeds=8,
    ),
    Mark(
        "silence-assigned",
        "a pubend declared future ticks silent",
        seeds=8,
        by=(Commit,),
        when=lambda step: step.commits(RESERVED),
    ),
    Mark(
        "unrequested-silence",
        "an event arrived with unrequested silence",
        seeds=8,
        by=(Events,),
        when=lambda step: step.sends(Events, _has_silence_behind),
    ),
    Mark(
        "pubend-joined",
        "a broker waits for one pubend more",
        seeds=8,
        by=(Commit,),
        when=lambda step: step.commits(MERGED),
    ),
    Mark(
        "pubend-joined-late",
        "a broker whose clients have got events waits for one pubend more",
        seeds=20,
        by=(Commit,),
        when=lambda step: step.commits(MERGED) and bool(_counter(step, "publications_delivered")),
    ),
    Mark(
        "join-requested-again",
        "a pubend that was to begin asked again",
        seeds=20,
        on=(DeadlineReached,),
        when=lambda step: Join in step.sent,
    ),
    Mark(
        "answer-resumed",
        "an answer continued when its window had room again",
        seeds=20,
        on=(WindowUpdate,),
        when=lambda step: step.sends(Events, lambda each: each.again),
    ),
    Mark(
        "publisher-held",
        "publications waited for room downstream",
        seeds=20,
        on=(Publish,),
        when=lambda step: not _logs(step) and bool(_counter(step, "publications_held")),
    ),
    Mark(
        "publisher-resumed",
        "waiting publications were logged",
        seeds=20,
        on=(SessionLost, WindowUpdate),
        when=_logs,
    ),
    Mark(
        "stalled-receiver-passed-over",
        "publications were logged in spite of a stalled receiver",
        seeds=20,
        on=(DeadlineReached,),
        when=_logs,
    ),
    Mark(
        "answer-in-parts",
        "a broker received part of an answer, and requested the rest later",
        seeds=60,
        on=(WindowUpdate,),
        when=lambda step: AckExpected in step.sent,
    ),
    Mark(
        "duplicate-received",
        "a neighbour sent known ticks again",
        seeds=8,
        on=(Events,),
        when=lambda step: step.message.again and not step.sent and Deliver not in step.acts,
    ),
    *FILTER_MARKS,
)


def _has_silence_behind(message: Events) -> bool:
    return not message.again and message.end > message.run.last + 1


class GryphonMarks:
    """See MarkObserver: the marks of the table, and those of messages within a cell."""

    def __init__(self, graph: OverlayGraph) -> None:
        self._table = MarkTable(MARKS)
        overlay = graph.overlay
        assert isinstance(overlay, CellGraph), f"{overlay} is none of cells"
        self._cells = [overlay.cell_of(number) for number in range(len(overlay.brokers))]
        self._stated_by: dict[tuple[BrokerNumber, StreamId, int], BrokerNumber] = {}

    @property
    def counts(self) -> dict[str, int]:
        return self._table.counts

    def step(self, broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        if not effects and type(event) not in (MessageReceived, RecordsRead):
            return
        self._table.step(MarkStep(broker, event, effects))
        for effect in effects:
            if type(effect) is Send and isinstance(effect.peer, int):
                self._table.count(self._count_in_cells(broker.number, effect.peer, effect.message))

    def _count_in_cells(
        self, broker: BrokerNumber, peer: BrokerNumber, message: Any
    ) -> Iterator[str]:
        is_beside = self._cells[broker] == self._cells[peer]
        if type(message) is Nack and is_beside:
            yield "nack-sent-within-cell"
        elif type(message) is Done and message.cell != self._cells[broker]:
            yield "acks-sent-within-cell"
        elif type(message) is Events and not message.again:
            key = broker, message.run.source, self._cells[peer]
            if is_beside:
                yield "events-sent-within-cell"
            elif self._stated_by.setdefault(key, peer) != peer:
                yield "cell-peer-changed"
                self._stated_by[key] = peer
