"""The marks of filters between brokers, found in the events and effects of a core."""

from collections.abc import Iterator, Sequence
from typing import Any

from brokerd.model.identity import BrokerNumber
from brokerd.protocols.gryphon.core import Gryphon
from brokerd.protocols.gryphon.messages import Beginnings, Events, FilterChange, FilterSet
from brokerd.protocols.gryphon.state import BEGINS
from brokerd.protocols.interface import Commit, Effect, Event, MessageReceived
from brokerd.simulator.checks.marks import Mark
from brokerd.simulator.world.views import BrokerView

FILTER_MARKS = (
    Mark("held-back", "an intermediate broker suppressed an event for a cell", seeds=4),
    Mark("passed-unknown", "a broker forwarded everything, because it lacked a filter", seeds=8),
    Mark("filter-told", "a broker sent a missing filter to another broker", seeds=4),
    Mark("filter-narrowed", "a broker announced a narrower filter", seeds=4),
    Mark("start-told", "a broker announced the starts of subscriptions in its streams", seeds=2),
    Mark("begun-behind", "a subscription began behind what had been published", seeds=4),
)


def filter_marks(
    broker: BrokerView, event: Event, said: Sequence[Any], others: Sequence[Effect]
) -> Iterator[str]:
    """Yield the marks of one step, from its messages to peers and its other effects."""
    core = broker.core
    if not isinstance(core, Gryphon) or not core.filters.is_on:
        return
    kinds = {type(message): None for message in said}
    if Events in kinds and _lacks_any(core):
        yield "passed-unknown"
    if FilterSet in kinds:
        yield "filter-told"
    if FilterChange in kinds and any(_narrows(message) for message in said):
        yield "filter-narrowed"
    if Beginnings in kinds and any(_is_start(message, broker.number) for message in said):
        yield "start-told"
    rows = [row for effect in others if type(effect) is Commit for row in effect.changes]
    if any(row.table == BEGINS and row.value and _is_behind(row.value) for row in rows):
        yield "begun-behind"
    if type(event) is MessageReceived and _holds_back(core, event.message):
        yield "held-back"


def _lacks_any(core: Gryphon) -> bool:
    filters = core.filters
    return any(filters.predicates(each.broker) is None for each in filters.versions())


def _narrows(message: object) -> bool:
    return type(message) is FilterChange and bool(message.removed)


def _is_start(message: object, broker: BrokerNumber) -> bool:
    return type(message) is Beginnings and message.beginnings[0].broker == broker


def _is_behind(row: Sequence[Sequence[int]]) -> bool:
    return any(tick for _, *ticks in row for tick in ticks)


def _holds_back(core: Gryphon, message: object) -> bool:
    """Return True if a cell below does not want all events of a first transmission.

    A message of a closed session may name an unknown stream.
    """
    if type(message) is not Events or message.again:
        return False
    streams = [each for each in core.streams if each.identity == message.run.source]
    selection = core.filters.select(message.run)
    wanted = [selection.wanted(cell) for stream in streams for cell in stream.children]
    return any(part is None or len(part) < len(message.run) for part in wanted)
