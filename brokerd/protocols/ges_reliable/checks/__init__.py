"""What simulations know of ges_reliable."""

from brokerd.protocols.ges_reliable.checks.planning import GesReliablePlanning
from brokerd.protocols.ges_reliable.checks.reach import GesReliableReach
from brokerd.protocols.ges_reliable.mutants import MUTANTS
from brokerd.simulator.checks.protocol_checks import SimulatedProtocol

SIMULATED = SimulatedProtocol(
    bugs=MUTANTS, make_reach=GesReliableReach, make_planning=GesReliablePlanning
)
