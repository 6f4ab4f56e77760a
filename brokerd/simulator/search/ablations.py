"""Ablations: what happens when one rule of the protocol is left out.

A swarm that finds nothing in the protocol has shown something only if it finds what is wrong
without a rule. Each ablation names its bug and where to look: the mix of the swarm, or the row of
the campaign whose faults ask for the rule most often.

    pubsubctl simulate mutants

Paper: [DFT11] §V-§VIII, rule by rule.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from brokerd.protocols.delta_tree.mutants import PAPER_LITERAL, Mutant
from brokerd.simulator.search.swarm import PlanRun, SwarmOptions, plan_of, run_seed
from brokerd.simulator.search.workers import map_in_workers

SEEDS = 500
"""So many seeds an ablation gets by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One way to break the protocol.

    Attributes:
        mutants: named bugs that every broker has.
        row: of the campaign; "" for the mix.
        settings: parameters of delta_tree, as `name=value`.
        moves: clients move, and brokers join and depart.
        unseen: why no swarm sees it; "" where one must.
    """

    mutants: tuple[Mutant, ...] = ()
    row: str = ""
    settings: tuple[str, ...] = ()
    moves: bool = False
    unseen: str = ""

    @property
    def options(self) -> SwarmOptions:
        """How its seeds are run."""
        return SwarmOptions(
            mutants=frozenset(self.mutants),
            campaign=self.row,
            settings=self.settings,
            moves=self.moves,
            check_purity=False,
        )


NOT_SIMULATED = {
    Mutant.FULL_QUEUE_DROPS_OLDEST: "the queue between core and socket: tests/runtime",
    Mutant.HALF_A_FRAME: "the writer of a session: tests/runtime",
    Mutant.HEARTBEATS_IN_QUEUE: "the writer of a session: tests/runtime",
}
"""Bugs between core and socket, where nothing is simulated."""

UNSEEN: dict[Mutant, str] = {
    Mutant.NO_LAST_IN_CUT: "one seed in some hundreds: tests/simulator/test_stories.py",
    Mutant.NEWCOMER_IS_COMPLETE: "nobody joins but with --moves: tests/simulator/test_joining.py",
    Mutant.NEWCOMERS_ARE_HEARD: "nobody joins but with --moves: tests/simulator/test_joining.py",
    Mutant.ACKNOWLEDGED_BEFORE_DURABLE: "publishers die: tests/simulator/test_publication_log.py",
    Mutant.RELAY_RESUMES: "waits until the link is back: tests/simulator/test_assist.py",
    Mutant.TOMBSTONES_VOLATILE: "leaves rows only: tests/simulator/test_unsubscription.py",
    Mutant.MOVE_BEFORE_START: "rare where much moves: tests/simulator/test_moving.py",
    Mutant.SYNC_END_BEFORE_PENDING: "without a clock: tests/simulator/test_adversary_mutants.py",
    Mutant.NO_LATERAL_SYNC: "without a clock: tests/simulator/test_adversary_mutants.py",
    Mutant.PENDING_NOT_REISSUED: "nowhere yet: tests/simulator/test_adversary_mutants.py",
    Mutant.SYNC_END_FROM_INACTIVE: "without a clock: tests/simulator/test_adversary_mutants.py",
    Mutant.GONE_EARLY: "partition tables: tests/protocols/delta_tree/test_partitions.py",
}
"""Bugs that a swarm does not see, and what does."""

ROWS: dict[Mutant, str] = {
    Mutant.EDGE_FORGETS: "crashes-beyond",
    Mutant.HALF_AN_INTERSECTION: "crashes-beyond",
}
"""Bugs that need more failures at once than the mix has."""

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
        settings=("profile=paper", "assist=off"),  # a relayed session brings what was not told
    ),
    "late-and-source-cut": Ablation(
        row="links",
        settings=("profile=paper", "dedupe=source", "legitimacy=observe", "cut=src"),
    ),
    "paper-literal": Ablation(
        mutants=tuple(sorted(PAPER_LITERAL)), row="links", settings=("profile=paper",)
    ),
}
"""By the name that their bug has in the design."""


@dataclass(frozen=True, slots=True)
class Caught:
    """How an ablation fared.

    Attributes:
        name: of the ablation.
        first_seed: the first one that shows it; -1 when none does.
        rule: that the seed breaks; "" when none does.
        tried: how many seeds were run, the failing one included.
        command: repeats the seed; the last one tried when none shows it.
    """

    name: str
    first_seed: int
    rule: str
    tried: int
    command: str


def first_catch(name: str, first: int = 0, most: int = SEEDS) -> Caught:
    """Run an ablation from a seed on until one shows it, `most` seeds at most.

    A seed counts when the same plan without the bug shows nothing.
    """
    assert most > 0, f"{most} seeds of {name}"
    for seed in range(first, first + most):
        report = run_seed(seed, "delta_tree", ABLATIONS[name].options)
        if report.violations and _is_sound_without(name, seed):
            return Caught(name, seed, report.rule, seed - first + 1, report.command)
    return Caught(name, -1, "", most, report.command)


def catch_all(names: Iterable[str], most: int, processes: int) -> Iterator[Caught]:
    """`first_catch` of each, in the order of the names."""
    return map_in_workers(first_catch, [(name, 0, most) for name in names], processes)


def _is_sound_without(name: str, seed: int) -> bool:
    options = ABLATIONS[name].options
    if not options.mutants:
        options = replace(options, settings=())
    plan = replace(plan_of(seed, "delta_tree", options), mutants=())
    return not PlanRun(plan, check_purity=False).report(seed, "").violations
