"""The marks of filters between brokers."""

from collections.abc import Sequence

from brokerd.protocols.gryphon.messages import Beginnings, Events, FilterChange, FilterSet
from brokerd.protocols.gryphon.state import BEGINS
from brokerd.protocols.interface import Commit
from brokerd.simulator.checks.mark_table import MarkStep
from brokerd.simulator.checks.marks import Mark


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
        "held-back",
        "an intermediate broker suppressed an event for a cell",
        seeds=4,
        on=(Events,),
        when=_holds_back,
    ),
    Mark(
        "passed-unknown",
        "a broker forwarded everything, because it lacked a filter",
        seeds=8,
        by=(Events,),
        when=_lacks_any,
    ),
    Mark(
        "filter-told", "a broker sent a missing filter to another broker", seeds=4, by=(FilterSet,)
    ),
    Mark(
        "filter-narrowed",
        "a broker announced a narrower filter",
        seeds=4,
        by=(FilterChange,),
        when=lambda step: step.sends(FilterChange, lambda each: bool(each.removed)),
    ),
    Mark(
        "start-told",
        "a broker announced the starts of subscriptions in its streams",
        seeds=2,
        by=(Beginnings,),
        when=lambda step: step.sends(
            Beginnings, lambda each: step.is_own(each.beginnings[0].broker)
        ),
    ),
    Mark(
        "begun-behind",
        "a subscription began behind what had been published",
        seeds=4,
        by=(Commit,),
        when=lambda step: any(row.value and _is_behind(row.value) for row in step.rows(BEGINS)),
    ),
)
