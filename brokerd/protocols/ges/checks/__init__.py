"""The parts of ges that simulations use."""

from brokerd.protocols.ges.checks.marks import MARKS, GesMarks
from brokerd.protocols.ges.checks.planning import GesPlanning
from brokerd.protocols.ges.checks.steps import RECOUNTS, GesChecks
from brokerd.protocols.ges.checks.words import GesWording
from brokerd.simulator.checks.growth import LATE, Limit
from brokerd.simulator.checks.protocol_checks import SimulatedProtocol

SIMULATED = SimulatedProtocol(
    canaries=("sent-to-all-units",),
    marks=MARKS,
    make_observer=GesMarks,
    make_checks=GesChecks,
    checks_always=True,
    forgiven=("gap", "incomplete"),
    make_wording=GesWording,
    recounts=RECOUNTS,
    limits=(
        Limit("brokerd.protocols.ges.membership", "MOST_LOOKS", (2, 4), LATE),
        Limit("brokerd.protocols.ges.overload", "MOST_CHECKS_TO_FALL", (3, 6), LATE),
        Limit("brokerd.protocols.ges.roaming", "MOST_DOUBLINGS", (0, 1), LATE),
    ),
    make_planning=GesPlanning,
)
