"""The parts of ges_reliable that simulations use."""

from brokerd.protocols.ges.checks import SIMULATED as CORE
from brokerd.protocols.ges_reliable.checks.marks import MARKS, GesReliableMarks
from brokerd.protocols.ges_reliable.checks.planning import GesReliablePlanning
from brokerd.protocols.ges_reliable.checks.steps import (
    RECOUNTS,
    GesReliableChecks,
    GesReliableReach,
)
from brokerd.protocols.ges_reliable.checks.words import GesReliableWording
from brokerd.protocols.ges_reliable.state import FRONTIERS, GENERATIONS, RECEIPTS, RELEASED
from brokerd.simulator.checks.growth import LATE, Limit
from brokerd.simulator.checks.protocol_checks import SimulatedProtocol
from brokerd.simulator.checks.recounts import Position

SIMULATED = SimulatedProtocol(
    canaries=("released-by-the-fastest",),
    marks=MARKS,
    make_observer=GesReliableMarks,
    positions=(
        Position(RELEASED),
        Position(FRONTIERS),
        Position(RECEIPTS, lambda row: row[0], ends=True),
        Position(GENERATIONS, lambda row: row[0]),
    ),
    make_checks=GesReliableChecks,
    make_reach=GesReliableReach,
    make_wording=GesReliableWording,
    recounts=RECOUNTS,
    limits=(
        *CORE.limits,
        Limit("brokerd.protocols.ges_reliable.core", "_MOST_ROUTES", (0, 1), LATE),
    ),
    make_planning=GesReliablePlanning,
)
