"""The parts of multi_proxy that simulations use."""

from brokerd.protocols.multi_proxy.checks.marks import MARKS, MultiProxyMarks
from brokerd.protocols.multi_proxy.checks.planning import MultiProxyPlanning
from brokerd.protocols.multi_proxy.checks.steps import RECOUNTS, MultiProxyChecks, MultiProxyReach
from brokerd.protocols.multi_proxy.checks.words import MultiProxyWording
from brokerd.protocols.multi_proxy.state import (
    ASSIGNED,
    CHOSEN,
    FOLLOWERS,
    MOVES,
    OWNERS,
    PUT,
    RELEASED,
)
from brokerd.simulator.checks.growth import ContainerLimits, Limit
from brokerd.simulator.checks.protocol_checks import SimulatedProtocol
from brokerd.simulator.checks.recounts import Position

SIMULATED = SimulatedProtocol(
    canaries=("puts-twice",),
    marks=MARKS,
    make_observer=MultiProxyMarks,
    positions=(
        Position(RELEASED),
        Position(PUT),
        Position(OWNERS, lambda row: row[1]),
        Position(ASSIGNED),
        Position(CHOSEN, lambda row: row[1] if isinstance(row, list | tuple) else None),
        Position(MOVES, lambda row: row[2] if len(row) > 2 else None),
        Position(FOLLOWERS, lambda row: row[:2], ends=True),
    ),
    make_checks=MultiProxyChecks,
    make_wording=MultiProxyWording,
    make_reach=MultiProxyReach,
    recounts=RECOUNTS,
    make_planning=MultiProxyPlanning,
    limits=(
        Limit("brokerd.protocols.multi_proxy.topics", "_REMEMBERED", (1, 4)),
        Limit("brokerd.protocols.multi_proxy.followers", "_RUNS_PER_LOSS", (1, 3)),
    ),
    kept=ContainerLimits(
        streams="topics",
        empty=("MultiProxy._deferred", "FollowedTopic.in_flight", "Durability._when_durable"),
        paired=(
            "a row of lost",  # one stands for a run of publications
            "a row of subscriber_progress",
        ),
    ),
)
