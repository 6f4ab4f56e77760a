"""[GD02]: streams of ticks from publishers' brokers, over a tree of cells, to subscribers' brokers.

The names below are the parts that another protocol may use. The core of `durable` has a
`core.Gryphon`, which it serves with clients of its own.
"""

from brokerd.protocols.gryphon.definition import LOG, logs_with
from brokerd.protocols.gryphon.flow_control import EVENT_BYTES, FlowControl, weight_bytes
from brokerd.protocols.gryphon.knowledge import (
    TICK_NS,
    IntervalSet,
    Range,
    RetainedEvents,
    part_of,
    sequences_within,
    ticks_in,
)
from brokerd.protocols.gryphon.messages import EVERYWHERE, AckExpected, Done, LinkStatus
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.pubend import Pubends
from brokerd.protocols.gryphon.routes import KIND, Cell, Links, Routes, hosts_clients
from brokerd.protocols.gryphon.state import BEGINS, PersistentState
from brokerd.protocols.gryphon.stream import InFlightEvents, Stream, Streams, Subend, check_ticks

__all__ = [
    "BEGINS",
    "EVENT_BYTES",
    "EVERYWHERE",
    "KIND",
    "LOG",
    "TICK_NS",
    "AckExpected",
    "Cell",
    "Done",
    "FlowControl",
    "GryphonParameters",
    "InFlightEvents",
    "IntervalSet",
    "LinkStatus",
    "Links",
    "PersistentState",
    "Pubends",
    "Range",
    "RetainedEvents",
    "Routes",
    "Stream",
    "Streams",
    "Subend",
    "check_ticks",
    "hosts_clients",
    "logs_with",
    "part_of",
    "sequences_within",
    "ticks_in",
    "weight_bytes",
]
