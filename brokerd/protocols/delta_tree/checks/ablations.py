"""Rules of delta_tree that are disabled to test that a swarm notices.

Paper: [DFT11] §V-§VIII, rule by rule.
"""

from brokerd.protocols.delta_tree.mutants import PAPER_LITERAL, Mutant
from brokerd.simulator.checks.ablations import Ablation

CANARIES = (
    Mutant.CONFIRM_ON_RECEIPT,
    Mutant.NO_RESEND_ON_ACTIVATION,
    Mutant.RESEND_AFTER_NEWER,
    Mutant.DROP_UNREACHABLE_DESTINATIONS,
    Mutant.CONFIRM_COVERS_PENDING,
    Mutant.RESTARTED_IS_EDGE,
)
"""Bugs that any swarm finds within a few seeds."""

NOT_SIMULATED = {
    Mutant.FULL_QUEUE_DROPS_OLDEST: "the queue between core and socket: tests/runtime",
    Mutant.HALF_A_FRAME: "the writer of a session: tests/runtime",
    Mutant.HEARTBEATS_IN_QUEUE: "the writer of a session: tests/runtime",
}
"""Bugs between core and socket, outside of the simulation."""

UNSEEN: dict[Mutant, str] = {
    Mutant.NO_LAST_IN_CUT: "one seed in some hundreds: tests/simulator/test_stories.py",
    Mutant.NEWCOMER_IS_COMPLETE: "nobody joins but with --moves: tests/simulator/test_joining.py",
    Mutant.NEWCOMERS_ARE_HEARD: "nobody joins but with --moves: tests/simulator/test_joining.py",
    Mutant.ACKNOWLEDGED_BEFORE_DURABLE: "publishers die: tests/simulator/test_publication_log.py",
    Mutant.CLIENTS_BEFORE_LOG: "disks are slow: tests/simulator/test_publication_log.py",
    Mutant.RECOVERED_BEFORE_LOG: "disks are slow: tests/simulator/test_publication_log.py",
    Mutant.POSITION_GOES_BACK: "one seed in some dozens: tests/simulator/test_positions.py",
    Mutant.RELAY_RESUMES: "waits until the link is back: tests/simulator/test_assist.py",
    Mutant.TOMBSTONES_VOLATILE: "leaves rows only: tests/simulator/test_unsubscription.py",
    Mutant.MOVE_BEFORE_START: "rare where much moves: tests/simulator/test_moving.py",
    Mutant.SYNC_END_BEFORE_PENDING: "without a clock: tests/simulator/test_adversary_mutants.py",
    Mutant.NO_LATERAL_SYNC: "without a clock: tests/simulator/test_adversary_mutants.py",
    Mutant.PENDING_NOT_REISSUED: "nowhere yet: tests/simulator/test_adversary_mutants.py",
    Mutant.SYNC_END_FROM_INACTIVE: "without a clock: tests/simulator/test_adversary_mutants.py",
    Mutant.GONE_EARLY: "partition tables: tests/protocols/delta_tree/test_partitions.py",
}
"""Bugs that a swarm does not find, with the test that does."""

ROWS: dict[Mutant, str] = {
    Mutant.EDGE_FORGETS: "crashes-beyond",
    Mutant.HALF_AN_INTERSECTION: "crashes-beyond",
}
"""Bugs that need more simultaneous failures than the mix has."""

OF_MOVES = (Mutant.MOVE_WITHOUT_MARK, Mutant.MOVE_BEFORE_START, Mutant.MOVE_FORGETS_POSITIONS)
"""Bugs of clients that move."""

ABLATIONS: dict[str, Ablation] = {
    str(mutant): Ablation(
        mutants=(mutant,),
        row=ROWS.get(mutant, ""),
        moves=mutant in OF_MOVES,
        unseen=UNSEEN.get(mutant, ""),
    )
    for mutant in Mutant
    if mutant not in NOT_SIMULATED
} | {
    "M17": Ablation(
        mutants=(Mutant.PARTITIONS_SPREAD_DELTA,),
        row="links-beyond-chain",
        settings=("profile=paper", "assist=off"),  # a relayed session brings the rest
    ),
    "late-and-source-cut": Ablation(
        row="links",
        settings=("profile=paper", "dedupe=source", "legitimacy=observe", "cut=src"),
    ),
    "paper-literal": Ablation(
        mutants=tuple(sorted(PAPER_LITERAL)), row="links", settings=("profile=paper",)
    ),
}
"""The ablations by the name of their bug in the design."""
