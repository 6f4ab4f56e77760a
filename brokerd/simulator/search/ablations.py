"""Ablations and canaries: protocols with a rule left out, or a named bug, that seeds must find."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from brokerd.protocols.registry import DEFINITIONS
from brokerd.simulator.anchors import AnchorLost
from brokerd.simulator.checks.protocol_checks import Ablation, named_bug, simulation_of
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.swarm import SwarmOptions, plan_of, run_seed
from brokerd.simulator.search.workers import map_in_workers

SEEDS = 500
"""Default number of seeds for an ablation."""

EVERY = 100
"""Period of canaries: the last of each hundred seeds has a canary."""

TRIES = 40
"""Maximum number of seeds until a canary must fail; not every workload reaches every bug."""


class _OfProtocol(NamedTuple):
    protocol: str
    ablation: Ablation


@lru_cache(maxsize=1)
def _all() -> dict[str, _OfProtocol]:
    return {
        name: _OfProtocol(protocol, ablation)
        for protocol in DEFINITIONS
        for name, ablation in simulation_of(protocol).ablations.items()
    }


def ablations() -> dict[str, Ablation]:
    """Return the ablations of all protocols, by the name of their bug in the design."""
    return {name: found.ablation for name, found in _all().items()}


def rules_without(name: str) -> str:
    """Return the rules that the bugs of an ablation leave out, and its settings."""
    protocol, ablation = _all()[name]
    rules = (named_bug(bug, protocol).leaves_out for bug in ablation.mutants)
    return " ".join((*rules, *ablation.settings))


def options_of(ablation: Ablation) -> SwarmOptions:
    """Return the options of an ablation's seeds."""
    return SwarmOptions(
        mutants=frozenset(ablation.mutants),
        campaign=ablation.row,
        settings=ablation.settings,
        moves=ablation.moves,
        check_purity=False,
    )


@dataclass(frozen=True, slots=True)
class Caught:
    """The outcome of an ablation.

    Attributes:
        name: name of the ablation.
        first_seed: the first seed that finds the bug; -1 for none.
        rule: the rule that the seed breaks; "" for none.
        tried: number of seeds run, with the failing seed.
        command: repeats the seed, or the last seed if none finds the bug.
        lost: the reason why a bug could not be planted; "" if all were.
    """

    name: str
    first_seed: int
    rule: str
    tried: int
    command: str
    lost: str = ""


def first_catch(name: str, first: int = 0, most: int = SEEDS) -> Caught:
    """Run an ablation from a seed on until a seed finds the bug, `most` seeds at most.

    A seed counts only if the same plan without the bug finds no violation.
    """
    assert most > 0, f"{most} seeds of {name}"
    for seed in range(first, first + most):
        protocol, ablation = _all()[name]
        try:
            report = run_seed(seed, protocol, options_of(ablation))
        except AnchorLost as error:
            return Caught(name, -1, "", seed - first, "", str(error))
        if report.violations and _is_sound_without(name, seed):
            return Caught(name, seed, report.rule, seed - first + 1, report.command)
    return Caught(name, -1, "", most, report.command)


def catch_all(names: Iterable[str], most: int, processes: int) -> Iterator[Caught]:
    """Yield `first_catch` of each ablation, in the order of the names."""
    return map_in_workers(first_catch, [(name, 0, most) for name in names], processes)


def _is_sound_without(name: str, seed: int) -> bool:
    protocol, ablation = _all()[name]
    options = options_of(ablation)
    if not options.mutants:
        options = replace(options, settings=())
    plan = replace(plan_of(seed, protocol, options), mutants=())
    return not PlanRun(plan, check_purity=False).report(seed, "").violations


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
    """Return the seeds with a planted bug that the swarm has to find: one in `EVERY`."""
    return [seed for seed in seeds if seed % EVERY == EVERY - 1]


def run_canary(protocol: str, seed: int) -> CanaryReport:
    """Run the bug of this seed, from this seed on, until a seed finds the bug."""
    canaries = simulation_of(protocol).canaries
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
