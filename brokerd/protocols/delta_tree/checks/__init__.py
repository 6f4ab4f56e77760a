"""Simulation of delta_tree: marks, ablations, wording, and checks of internal state."""

from brokerd.overlay.tree import tree_of
from brokerd.protocols.delta_tree.checks.ablations import ABLATIONS, CANARIES
from brokerd.protocols.delta_tree.checks.marks import MARKS, DeltaTreeMarks
from brokerd.protocols.delta_tree.checks.planning import DeltaTreePlanning
from brokerd.protocols.delta_tree.checks.steps import (
    KEPT,
    RECOUNTS,
    DeltaTreeChecks,
    DeltaTreeReach,
)
from brokerd.protocols.delta_tree.checks.words import DeltaTreeWording
from brokerd.protocols.delta_tree.state import ATTACHED, POSITIONS
from brokerd.protocols.delta_tree.tombstones import TOMBSTONES
from brokerd.simulator.checks.growth import LATE, Limit
from brokerd.simulator.checks.protocol_checks import SimulatedProtocol
from brokerd.simulator.checks.recounts import Position

_FOLDER = "brokerd.protocols.delta_tree"

SIMULATED = SimulatedProtocol(
    ablations=ABLATIONS,
    canaries=CANARIES,
    marks=MARKS,
    make_observer=lambda graph: DeltaTreeMarks(tree_of(graph)),
    make_checks=DeltaTreeChecks,
    make_wording=DeltaTreeWording,
    make_reach=DeltaTreeReach,
    kept=KEPT,
    limits=(
        Limit(f"{_FOLDER}.partition_table", "TOMBSTONE_RANGES", (1, 3)),
        Limit(f"{_FOLDER}.fast_path", "KEPT", (1, 4)),
        Limit(f"{_FOLDER}.queue_entries", "FRAME_PAYLOAD_BYTES", (1, 50)),
        Limit(f"{_FOLDER}.entry_merge", "FEWEST", (1, 8)),
        Limit(f"{_FOLDER}.entry_merge", "STEP", (1, 4)),
        Limit(f"{_FOLDER}.home_subscriptions", "FLUSH_INTERVAL_NS", (1_000_000,), LATE),
    ),
    positions=(
        Position(POSITIONS, ends=True),
        Position(ATTACHED, ends=True),
        Position(TOMBSTONES, lambda row: row[0]),
    ),
    recounts=RECOUNTS,
    counters=("publications_withheld", "notifiers_sent"),
    timed_counters=(
        "dedupe_disagreements",
        "legitimacy_held",
        "legitimacy_violating",
        "legitimacy_violated",
        "tags_missing",
        "tags_extra",
        "relayed_sessions_established",
        "messages_relayed",
    ),
    tallied=("seeds_telling_duplicates_both_ways", "dedupe_disagreements"),
    make_planning=DeltaTreePlanning,
)
