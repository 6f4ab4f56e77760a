"""What simulations know of multi_proxy."""

from brokerd.protocols.multi_proxy.checks.marks import MARKS, MultiProxyMarks
from brokerd.protocols.multi_proxy.checks.planning import MultiProxyPlanning
from brokerd.protocols.multi_proxy.checks.reach import MultiProxyReach
from brokerd.protocols.multi_proxy.checks.steps import MultiProxyChecks
from brokerd.protocols.multi_proxy.checks.words import MultiProxyWording
from brokerd.protocols.multi_proxy.mutants import MUTANTS
from brokerd.simulator.checks.growth import Kept
from brokerd.simulator.checks.protocol_checks import SimulatedProtocol

SIMULATED = SimulatedProtocol(
    bugs=MUTANTS,
    canaries=("puts-twice",),
    marks=MARKS,
    make_observer=MultiProxyMarks,
    make_checks=MultiProxyChecks,
    make_wording=MultiProxyWording,
    make_reach=MultiProxyReach,
    make_planning=MultiProxyPlanning,
    kept=Kept(
        streams=9,  # as many as `topics` is drawn, and that of publications without
        empty=("MultiProxy._early", "FollowedTopic.handed", "Durability._when_durable"),
        paired=("a row of lost",),  # one stands for a run of publications
    ),
)
