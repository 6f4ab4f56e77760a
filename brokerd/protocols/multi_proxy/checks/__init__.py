"""What simulations know of multi_proxy."""

from brokerd.protocols.multi_proxy.checks.marks import MARKS, MultiProxyMarks
from brokerd.protocols.multi_proxy.checks.planning import MultiProxyPlanning
from brokerd.protocols.multi_proxy.checks.reach import MultiProxyReach
from brokerd.protocols.multi_proxy.checks.steps import MultiProxyChecks
from brokerd.protocols.multi_proxy.checks.words import MultiProxyWording
from brokerd.protocols.multi_proxy.mutants import MUTANTS
from brokerd.simulator.checks.growth import Kept
from brokerd.simulator.checks.limits import Limit
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
    limits=(
        Limit("brokerd.protocols.multi_proxy.topics", "_REMEMBERED", (1, 4)),
        Limit("brokerd.protocols.multi_proxy.retention", "_RUNS_TOLD", (1, 3)),
    ),
    kept=Kept(
        streams="topics",
        empty=("MultiProxy._early", "FollowedTopic.handed", "Durability._when_durable"),
        paired=("a row of lost",),  # one stands for a run of publications
    ),
)
