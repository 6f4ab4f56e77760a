"""Canaries: one seed in a hundred runs a named bug, and must fail.

A swarm without a violation may be correct, or may have stopped checking. The canaries distinguish
both cases in every long run.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from brokerd.simulator.anchors import AnchorLost
from brokerd.simulator.checks.protocol_checks import simulated
from brokerd.simulator.search.swarm import SwarmOptions, run_seed

EVERY = 100
"""Period of canaries: the last of each hundred seeds has a canary."""

TRIES = 40
"""Maximum number of seeds until a canary must fail; not every workload reaches every bug."""


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """The outcome of a canary.

    Attributes:
        failed_at: the seed that found the bug; -1 for none.
        rule: the broken rule.
        tries: number of seeds run.
        lost: the reason why the bug could not be planted; "" if it was.
    """

    seed: int
    mutant: str
    failed_at: int
    rule: str
    tries: int
    lost: str = ""


def canaries_among(seeds: Iterable[int]) -> list[int]:
    """Return the seeds that have a canary."""
    return [seed for seed in seeds if seed % EVERY == EVERY - 1]


def run_canary(protocol: str, seed: int) -> CanaryReport:
    """Run the bug of this seed, from this seed on, until a seed finds the bug."""
    canaries = simulated(protocol).canaries
    assert canaries, f"{protocol} has no canaries"
    mutant = canaries[seed // EVERY % len(canaries)]
    options = SwarmOptions(mutants=frozenset((mutant,)), check_purity=False)
    for tries in range(TRIES):
        try:
            report = run_seed(seed + tries, protocol, options)
        except AnchorLost as error:
            return CanaryReport(seed, mutant, -1, "", tries, str(error))
        if report.violations:
            return CanaryReport(seed, mutant, seed + tries, report.rule, tries + 1)
    return CanaryReport(seed, mutant, -1, "", TRIES)
