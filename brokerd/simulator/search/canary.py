"""Canaries: one seed in a hundred runs a named bug, and must fail.

A swarm that reports no violation may have found none, or may have stopped looking. The canaries
tell the two apart in every long run.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from brokerd.simulator.anchors import AnchorLost
from brokerd.simulator.checks.protocol_checks import simulated
from brokerd.simulator.search.swarm import SwarmOptions, run_seed

EVERY = 100
"""The last of each hundred seeds has a canary."""

TRIES = 40
"""Not every workload meets every bug: so many seeds on, one must have failed."""


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """How a canary fared.

    Attributes:
        failed_at: the seed at which the bug was seen; -1 when it was not.
        rule: by which rule.
        tries: how many seeds were run.
        lost: why the bug could not be planted; "" if it was.
    """

    seed: int
    mutant: str
    failed_at: int
    rule: str
    tries: int
    lost: str = ""


def canaries_among(seeds: Iterable[int]) -> list[int]:
    """The seeds that have a canary."""
    return [seed for seed in seeds if seed % EVERY == EVERY - 1]


def run_canary(protocol: str, seed: int) -> CanaryReport:
    """Run the bug that this seed has, from this seed on, until it is seen."""
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
