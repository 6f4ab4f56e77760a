"""Swarms: one seed determines a cluster, a workload and faults; first safety, then liveness.

Even seeds run on a clock: for seconds, with shorter timeouts and retries than in a deployment, or,
in one seed of sixteen, for ten minutes with the timeouts of a deployment. Odd seeds have no
durations: an adversary chooses any message, timeout, crash or suspicion as the next event. Then all
faults end. In more than a quarter of the seeds some links stay broken for ever, and every possible
delivery without these links must arrive. At the end these links are healed too, and every owed
delivery must arrive.

    pubsubctl simulate swarm --protocol NAME --seeds 17..17
"""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from brokerd.simulator.checks.protocol_checks import planning_of
from brokerd.simulator.search.campaign import find_setting
from brokerd.simulator.search.plan import Plan, with_settings
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.planning.draw import draw_plan
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.search.workers import map_in_workers


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmOptions:
    """The choices that a seed does not make.

    Attributes:
        mutants: named bugs of every broker.
        faults: faults are injected.
        layer: "timed", "adversarial", or "" for the seed's choice.
        campaign: a row of the campaign, which then decides tree, δ and failures; "" for the mix.
        profile: profile of the protocol; "" for the seed's choice.
        settings: parameters of the protocol for any seed, as `name=value`.
        moves: clients also move, and brokers join and depart.
        check_purity: repeat one broker's events on a fresh core and compare.
    """

    mutants: frozenset[str] = frozenset()
    faults: bool = True
    layer: str = ""
    campaign: str = ""
    profile: str = ""
    settings: tuple[str, ...] = ()
    moves: bool = False
    check_purity: bool = True

    def as_arguments(self) -> str:
        """Return the arguments of `simulate` for the same choices, each after a space.

        `simulate` has no arguments for faults, layer and check_purity, which are for tests.
        """
        words = f" --campaign {self.campaign}" if self.campaign else ""
        words += f" --profile {self.profile}" if self.profile else ""
        words += " --moves" if self.moves else ""
        words += "".join(f" --set {shlex.quote(setting)}" for setting in self.settings)
        return words + "".join(f" --mutant {mutant}" for mutant in sorted(self.mutants))


def plan_of(seed: int, protocol: str, options: SwarmOptions | None = None) -> Plan:
    options = options or SwarmOptions()
    planning = planning_of(protocol)
    plan = draw_plan(
        seed,
        protocol,
        mutants=options.mutants | planning.profiles.get(options.profile, frozenset()),
        faults=options.faults,
        layer=options.layer,
        setting=find_setting(options.campaign) if options.campaign else None,
        moves=options.moves,
    )
    if options.profile:
        parameters = planning.in_profile(plan.parameters, options.profile)
        plan = replace(plan, parameters=parameters)
    if options.settings:
        plan = with_settings(plan, options.settings)
    if planning.can_wait_for_links(plan.parameters):
        return replace(plan, broken=())  # the wait for a link would never end
    return plan


def run_seed(seed: int, protocol: str, options: SwarmOptions | None = None) -> SeedReport:
    """Run one seed; never raise an error for a fault of the protocol."""
    options = options or SwarmOptions()
    which = f"--protocol {protocol} --seeds {seed}..{seed}{options.as_arguments()}"
    run = PlanRun(plan_of(seed, protocol, options), check_purity=options.check_purity)
    return run.report(seed, f"pubsubctl simulate swarm {which}")


def run_swarm(
    seeds: Iterable[int],
    protocol: str,
    processes: int = 1,
    options: SwarmOptions | None = None,
) -> Iterator[SeedReport]:
    """Run many seeds; yield reports in the order of the seeds."""
    jobs = [(seed, protocol, options) for seed in seeds]
    return map_in_workers(run_seed, jobs, processes, at_once=4)
