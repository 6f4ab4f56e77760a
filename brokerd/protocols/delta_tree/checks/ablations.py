"""Rules of delta_tree that are disabled to test that a swarm notices.

Paper: [DFT11] §V-§VIII, rule by rule.
"""

from brokerd.protocols.delta_tree.checks.planning import PAPER_LITERAL
from brokerd.simulator.checks.protocol_checks import Ablation

CANARIES = (
    "M21",
    "M22",
    "M23",
    "M24",
    "confirm-covers-pending",
    "M27",
)
"""Bugs that any swarm finds within a few seeds."""

UNSEEN: dict[str, str] = {
    "no-last-in-cut": "one seed in some hundreds: tests/simulator/test_stories.py",
    "newcomer-is-complete": "brokers join with --moves only: tests/simulator/test_joining.py",
    "newcomers-count-as-tagged": "brokers join with --moves only: tests/simulator/test_joining.py",
    "acknowledged-before-durable": "publishers die: tests/simulator/test_publication_log.py",
    "clients-before-log": "disks are slow: tests/simulator/test_publication_log.py",
    "recovered-before-log": "disks are slow: tests/simulator/test_publication_log.py",
    "position-decreases": "one seed in some dozens: tests/simulator/test_positions.py",
    "relayed-outlives-leg": "one seed in many hundreds: tests/protocols/delta_tree/test_relays.py",
    "relay-resumes": "waits until the link is back: tests/simulator/test_relayed_sessions.py",
    "tombstones-volatile": "leaves rows only: tests/simulator/test_unsubscription.py",
    "move-before-start": "rare where much moves: tests/simulator/test_client_moves.py",
    "sync-end-before-pending": "without a clock: tests/simulator/test_adversary_mutants.py",
    "no-lateral-sync": "without a clock: tests/simulator/test_adversary_mutants.py",
    "pending-not-reissued": "nowhere yet: tests/simulator/test_adversary_mutants.py",
    "sync-end-from-inactive": "without a clock: tests/simulator/test_adversary_mutants.py",
    "gone-early": "partition tables: tests/protocols/delta_tree/test_partitions.py",
}
"""Bugs that a swarm does not find, with the test that does."""

ROWS: dict[str, str] = {
    "M20": "crashes-beyond",
    "half-an-intersection": "crashes-beyond",
}
"""Bugs that need more simultaneous failures than the mix has."""

OF_MOVES = ("move-without-mark", "move-before-start", "move-forgets-positions")
"""Bugs of clients that move."""

SIMULATED = (
    "M14",
    "M15",
    "M20",
    "M21",
    "M22",
    "M23",
    "M24",
    "M25",
    "M27",
    "M41",
    "confirm-covers-pending",
    "no-cut",
    "no-upstream-copy",
    "no-tags",
    "no-last-in-cut",
    "M16",
    "M26",
    "no-notifiers",
    "tags-may-grow",
    "receiver-takes-any-tags",
    "half-an-intersection",
    "islands-as-barriers",
    "newcomer-is-complete",
    "newcomers-count-as-tagged",
    "acknowledged-before-durable",
    "log-released-on-append",
    "clients-before-log",
    "recovered-before-log",
    "every-partition-tagged",
    "M17",
    "gone-early",
    "M19",
    "hold-out-of-order",
    "drain-compares-peers",
    "no-tombstones",
    "tombstones-volatile",
    "no-home-authority",
    "relayed-outlives-leg",
    "relay-resumes",
    "switch-is-not-announced",
    "no-lateral-sync",
    "pending-not-reissued",
    "sync-end-before-pending",
    "sync-end-from-inactive",
    "confirmed-before-durable",
    "notifier-done-before-durable",
    "rows-stay-on-disk",
    "recovering-publishes",
    "missing-publishers-ignored",
    "move-without-mark",
    "move-before-start",
    "move-forgets-positions",
    "transit-not-applied",
    "answer-forgets-cut",
    "position-decreases",
)
"""Bugs that are left out one by one."""

ABLATIONS: dict[str, Ablation] = {
    mutant: Ablation(
        mutants=(mutant,),
        row=ROWS.get(mutant, ""),
        moves=mutant in OF_MOVES,
        unseen=UNSEEN.get(mutant, ""),
    )
    for mutant in SIMULATED
} | {
    "M17": Ablation(
        mutants=("M17",),
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
