"""Counters of gryphon with their expected values at rest."""

from collections import Counter

from brokerd.model.predicate import EVERYTHING
from brokerd.protocols.gryphon.filter_table import FilterTable
from brokerd.protocols.gryphon.flow_control import FlowControl
from brokerd.protocols.gryphon.knowledge import RetainedEvents
from brokerd.protocols.gryphon.own_filter import OwnFilter
from brokerd.protocols.gryphon.pubend import Pubends
from brokerd.protocols.gryphon.stream import InFlightEvents
from brokerd.simulator.checks.recounts import Recount, nonzero

RETAINED = (
    Recount(
        RetainedEvents,
        "events",
        lambda kept: kept.events,
        lambda kept, _: sum(map(len, kept._runs)),
    ),
    Recount(
        RetainedEvents,
        "payload_bytes",
        lambda kept: kept.payload_bytes,
        lambda kept, _: sum(run.payload_bytes() for run in kept._runs),
    ),
    Recount(
        RetainedEvents,
        "firsts",
        lambda kept: kept._firsts,
        lambda kept, _: [run.first for run in kept._runs],
    ),
    Recount(
        RetainedEvents,
        "dense",
        lambda kept: kept._dense <= len(kept._runs),
        lambda kept, _: True,
    ),
)

RECOUNTS = (
    *RETAINED,
    Recount(
        FilterTable,
        "everything",
        lambda table: {host: each.everything for host, each in table._filters.items()},
        lambda table, _: {
            host: sum(wanted == EVERYTHING for wanted in (each.predicates or {}).values())
            for host, each in table._filters.items()
        },
    ),
    Recount(
        OwnFilter,
        "subscriptions",
        lambda own: {wanted: each.subscriptions for wanted, each in own._wanted.items()},
        lambda own, _: dict(Counter(local.predicate for local in own._added)),
    ),
    Recount(Pubends, "logging_bytes", lambda pubends: pubends._logging_bytes, lambda *_: 0),
    Recount(
        Pubends,
        "pending",
        lambda pubends: [*map(len, pubends._pending)],
        lambda pubends, _: [0] * len(pubends._pending),
    ),
    Recount(
        FlowControl,
        "full",
        lambda flow: [*flow.full],
        lambda flow, _: [key for key in flow.full if flow._windows[key].room_bytes <= 0],
    ),
    Recount(
        FlowControl,
        "stalled",
        lambda flow: [key for key, window in flow._windows.items() if window.is_stalled],
        lambda flow, _: [
            key
            for key, window in flow._windows.items()
            if window.is_stalled and window.room_bytes <= 0
        ],
    ),
    Recount(FlowControl, "owed", lambda flow: nonzero(flow._owed), lambda *_: {}),
    Recount(
        InFlightEvents,
        "open",
        lambda entry: entry.open,
        lambda entry, holdings: holdings.parcels_of(entry),
    ),
)
