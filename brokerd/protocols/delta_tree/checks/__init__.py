"""What simulations know of delta_tree: marks, named bugs, words, and checks that look inside."""

from brokerd.overlay.tree import tree_of
from brokerd.protocols.delta_tree.checks.ablations import ABLATIONS, CANARIES
from brokerd.protocols.delta_tree.checks.kept import KEPT
from brokerd.protocols.delta_tree.checks.marks import MARKS, DeltaTreeMarks
from brokerd.protocols.delta_tree.checks.planning import DeltaTreePlanning
from brokerd.protocols.delta_tree.checks.reach import DeltaTreeReach
from brokerd.protocols.delta_tree.checks.recounts import RECOUNTS
from brokerd.protocols.delta_tree.checks.steps import DeltaTreeChecks
from brokerd.protocols.delta_tree.checks.words import DeltaTreeWording
from brokerd.protocols.delta_tree.mutants import MUTANTS
from brokerd.protocols.delta_tree.publications.deliveries import POSITIONS
from brokerd.protocols.delta_tree.storage.home_table import ATTACHED
from brokerd.protocols.delta_tree.subscriptions.tombstones import TOMBSTONES
from brokerd.simulator.checks.positions import Position
from brokerd.simulator.checks.protocol_checks import SimulatedProtocol

SIMULATED = SimulatedProtocol(
    bugs={str(mutant): bug for mutant, bug in MUTANTS.items()},
    ablations=ABLATIONS,
    canaries=tuple(map(str, CANARIES)),
    marks=MARKS,
    make_observer=lambda graph: DeltaTreeMarks(tree_of(graph)),
    make_checks=DeltaTreeChecks,
    make_wording=DeltaTreeWording,
    make_reach=DeltaTreeReach,
    kept=KEPT,
    positions=(
        Position(POSITIONS, ends=True),
        Position(ATTACHED, ends=True),
        Position(TOMBSTONES, lambda row: row[0]),
    ),
    recounts=RECOUNTS,
    make_planning=DeltaTreePlanning,
)
