"""The clockless adversary for the command line: run seeds, shrink a failing seed."""

from dataclasses import dataclass, replace

from brokerd.simulator.search.adversary import (
    AdversaryOptions,
    run_adversaries,
    run_adversary,
    shrink_seed,
)
from brokerd.simulator.search.campaign import CAMPAIGN
from brokerd.simulator.search.seed_report import SeedReport, total
from brokerd.text import counted, nearest
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import UserError, VerdictInvalid
from pubsubctl.hosts.files import shown
from pubsubctl.simulation.swarms import SHOWN, further_seeds, row_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Adversary:
    """The options of `simulate adversary`.

    Attributes:
        first, last: seeds, both included.
        setting: a row of the campaign; "" for a setting drawn per seed.
        settings: parameters of the protocol for all seeds, as `name=value`.
        short: shrink the history of the first failing seed.
    """

    protocol: str
    first: int
    last: int
    setting: str
    mutants: frozenset[str]
    settings: tuple[str, ...]
    processes: int
    short: bool


def simulate_adversary(call: Invocation, adversary: Adversary) -> Result:
    """Run a range of seeds.

    Raises:
        UserError: unknown setting; names the nearest.
    """
    if adversary.setting and adversary.setting not in CAMPAIGN:
        near = nearest(adversary.setting, tuple(CAMPAIGN))
        raise UserError(f"no setting called {shown(adversary.setting)}{near}")
    options = AdversaryOptions(
        protocol=adversary.protocol,
        setting=adversary.setting,
        mutants=adversary.mutants,
        settings=adversary.settings,
    )
    seeds = range(adversary.first, adversary.last + 1)
    reports: list[SeedReport] = []
    story = ""
    with call.console.progress() as progress:
        progress.phase(f"an adversary of {adversary.protocol}")
        for report in run_adversaries(seeds, options, adversary.processes):
            reports.append(report)
            progress.update({"seeds": f"{len(reports)}/{len(seeds)}"})
        wrong = [report for report in reports if report.violations]
        if wrong and adversary.short:
            progress.phase(f"cutting seed {wrong[0].seed} down")
            found = shrink_seed(wrong[0].seed, options)
            story = found.describe() if found is not None else ""
        elif wrong and (len(seeds) == 1 or call.console.verbose):
            story = run_adversary(wrong[0].seed, replace(options, story=True)).describe()
    sums = total(reports)
    sentence = (
        f"{counted(len(seeds), 'seed')}, {len(wrong):,} with a violation; "
        f"{counted(sums['actions'], 'action')}, "
        f"{counted(sums['deliveries'], 'delivery')}, {sums['at_risk']:,} at risk"
    )
    return Result(
        document={
            "schema": "pubsubctl/adversary/1",
            "protocol": adversary.protocol,
            "setting": adversary.setting,
            "mutants": sorted(adversary.mutants),
            "settings": list(adversary.settings),
            "seeds": [row_of(report) for report in reports],
            "total": sums,
            "story": story.splitlines(),
        },
        text="\n".join(filter(None, (story, sentence))),
        because=(
            *(
                VerdictInvalid(f"seed {report.seed}: {report.rule}; {report.command}")
                for report in wrong[:SHOWN]
            ),
            *further_seeds(wrong),
        ),
    )
