"""Counters of durable, and their recounted values once all is at rest."""

from collections import Counter

from brokerd.protocols.durable.catchup_streams import CatchupWindow
from brokerd.protocols.durable.fetching import FetchedEvents, Fetching
from brokerd.protocols.durable.passed_events import PassedEvents
from brokerd.protocols.durable.state import Lane
from brokerd.protocols.gryphon import InFlightEvents, weight_bytes
from brokerd.protocols.gryphon.checks.steps import RECOUNTS as CORE
from brokerd.simulator.checks.recounts import Recount, nonzero


def _count_requests(window: CatchupWindow) -> dict[object, int]:
    found: Counter[object] = Counter()
    for lane, events in window._requested.items():
        found[lane.stream] += events
    return nonzero(found)


RECOUNTS = (
    *(each for each in CORE if each.kind is not InFlightEvents),
    Recount(
        Lane,
        "out_events",
        lambda lane: lane.out_events,
        lambda lane, _: sum(handed.events for handed in lane.out),
    ),
    Recount(
        FetchedEvents,
        "payload_bytes",
        lambda kept: kept.payload_bytes,
        lambda kept, _: sum(run.payload_bytes() for run in kept.runs),
    ),
    Recount(
        PassedEvents,
        "stored_bytes",
        lambda passed: passed.stored_bytes,
        lambda passed, _: sum(weight_bytes(run) for _, runs in passed.runs() for run in runs),
    ),
    Recount(
        CatchupWindow,
        "events",
        lambda window: nonzero(window._events),
        lambda window, _: _count_requests(window),
    ),
    Recount(
        Fetching,
        "left_bytes",
        lambda fetching: [
            key
            for key in fetching._left_bytes
            if key[1] not in fetching._unanswered.get(key[0], {})
        ],
        lambda *_: [],
    ),
    Recount(
        Fetching,
        "unanswered",
        lambda fetching: nonzero(fetching._unanswered),
        lambda *_: {},
    ),
)
