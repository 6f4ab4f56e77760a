"""Swarms and campaigns for the command line: run, add up, write the ledger, shrink."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from brokerd.errors import ConfigError
from brokerd.protocols.registry import DEFAULT
from brokerd.simulator.checks.marks import (
    MarkCoverage,
    Novelty,
    compute_coverage,
    describe_coverage,
    measure_novelty,
)
from brokerd.simulator.checks.protocol_checks import marks_of, simulation_of
from brokerd.simulator.named_bugs import NoCheckout, has_data
from brokerd.simulator.search.ablations import (
    SEEDS,
    CanaryReport,
    Caught,
    ablations,
    canaries_among,
    catch_all,
    rules_without,
    run_canary,
)
from brokerd.simulator.search.campaign import ROWS, Setting
from brokerd.simulator.search.ledger import Campaign, describe_totals, with_caught, with_runs
from brokerd.simulator.search.move import PlanError
from brokerd.simulator.search.plan import read_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.seed_report import SeedReport, total
from brokerd.simulator.search.shrink import shrink
from brokerd.simulator.search.swarm import SwarmOptions, plan_of, run_swarm
from brokerd.text import counted, nearest
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.console.outputs import write_output
from pubsubctl.errors import (
    IntegrityError,
    PubsubctlError,
    UserError,
    VerdictInvalid,
    VerdictUnknown,
)
from pubsubctl.hosts.files import shown
from pubsubctl.simulation.ledger_file import campaign_of, read_ledger, update_ledger

SHOWN: Final = 20
"""The number of seeds that are shown with the commands that repeat the seeds."""
JUDGED_SEEDS: Final = 100
"""The number of seeds below which a swarm need not reach every mark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """The options of `simulate swarm`.

    Attributes:
        first, last: seeds, both included.
        options: settings that no seed decides.
        ledger: the file that counts the runs; None for none.
        verify_determinism: run every seed in two more interpreters and compare.
    """

    protocol: str
    first: int
    last: int
    options: SwarmOptions
    processes: int
    ledger: Path | None
    verify_determinism: bool


def simulate_swarm(call: Invocation, swarm: Swarm) -> Result:
    """Run a range of seeds, the canaries, and the other requested checks."""
    read_ledger(swarm.ledger)  # refuses an invalid ledger before anything runs
    options = swarm.options
    settings = (*options.settings, *(("moves",) if options.moves else ()))
    campaign = campaign_of(
        swarm.protocol, options.campaign, options.mutants, settings, options.profile
    )
    plain = options == SwarmOptions()
    seeds = range(swarm.first, swarm.last + 1)
    wants_canaries = plain and bool(
        simulation_of(swarm.protocol).canaries and canaries_among(seeds)
    )
    with_canaries = wants_canaries and has_data()
    reports, canaries, differing = _run(call, swarm, seeds, with_canaries=with_canaries)
    counted = total(reports)
    update_ledger(swarm.ledger, lambda document: with_runs(document, campaign, reports, canaries))
    wrong = [report for report in reports if report.violations]
    marks = compute_coverage(marks_of(swarm.protocol), reports)
    sentences = [
        describe_totals(counted),
        *_describe_marks(marks, reports, len(seeds)),
        *_describe_canaries(canaries, is_skipped=wants_canaries and not with_canaries),
    ]
    if differing is not None:
        sentences.append(
            f"{len(seeds) - len(differing)} of {len(seeds)} seeds gave the same history twice"
        )
    return Result(
        document={
            "schema": "pubsubctl/swarm/1",
            "protocol": swarm.protocol,
            "row": options.campaign,
            "profile": options.profile,
            "mutants": sorted(options.mutants),
            "seeds": [row_of(report) for report in reports],
            "canaries": [_canary_row(canary) for canary in canaries],
            "differing_seeds": differing,
            "marks": _mark_rows(marks),
            "novelty": _novelty_row(measure_novelty(reports)),
            "total": counted,
        },
        text="\n".join(sentences),
        because=(
            *_complaints(wrong[:SHOWN], options),
            *further_seeds(wrong),
            *(_list_unreached(marks) if plain and len(seeds) >= JUDGED_SEEDS else ()),
            *_survivors(canaries),
            *(
                VerdictInvalid(f"seed {seed}: another history in another interpreter")
                for seed in (differing or [])[:20]
            ),
        ),
    )


def _run(
    call: Invocation, swarm: Swarm, seeds: range, *, with_canaries: bool
) -> tuple[list[SeedReport], list[CanaryReport], list[int] | None]:
    """Return the reports of all seeds and canaries, and the seeds with differing histories.

    The last is None unless the swarm compares histories.
    """
    reports: list[SeedReport] = []
    canaries: list[CanaryReport] = []
    differing = None
    with call.console.progress() as progress:
        progress.phase(f"simulating {swarm.protocol}")
        for report in run_swarm(seeds, swarm.protocol, swarm.processes, swarm.options):
            reports.append(report)
            if report.violations and (len(seeds) == 1 or call.console.verbose):
                for line in report.describe().splitlines():
                    progress.print(line)
            progress.update({"seeds": f"{len(reports)}/{len(seeds)}"})
        if with_canaries:
            canaries = [run_canary(swarm.protocol, seed) for seed in canaries_among(seeds)]
        if swarm.verify_determinism:
            from brokerd.simulator.search.determinism import find_differing_seeds

            progress.phase("the same seeds in two fresh interpreters")
            differing = find_differing_seeds(
                swarm.first, swarm.last, swarm.protocol, swarm.options.campaign
            )
    return reports, canaries, differing


def _describe_marks(
    marks: Sequence[MarkCoverage], reports: Sequence[SeedReport], seeds: int
) -> Iterator[str]:
    """Yield the share of marks that were reached, and of new situations."""
    if marks and seeds >= JUDGED_SEEDS:
        yield describe_coverage(marks)
        yield measure_novelty(reports).describe()
    elif marks:
        met = sum(bool(row.seeds) for row in marks)
        yield (
            f"{met} of {len(marks)} marks reached; {JUDGED_SEEDS} seeds or more are judged by that"
        )


def _describe_canaries(canaries: Sequence[CanaryReport], *, is_skipped: bool) -> Iterator[str]:
    """Yield the number of canaries that failed, or the reason for no canaries."""
    if canaries:
        seen = sum(canary.failed_at >= 0 for canary in canaries)
        yield f"{seen} of {len(canaries)} canaries failed, as they must"
    if is_skipped:
        yield f"no canaries: {NoCheckout()}"


def check_rows(rows: Iterable[str]) -> None:
    """Refuse an unknown row of the campaign.

    Raises:
        UserError: the row is unknown; names the nearest.
    """
    for name in rows:
        if name not in ROWS:
            raise UserError(f"no campaign row called {shown(name)}{nearest(name, tuple(ROWS))}")


def simulate_campaign(
    call: Invocation, rows: tuple[str, ...], runs: int | None, processes: int, ledger: Path | None
) -> Result:
    """Run rows of the campaign, `runs` seeds of each, or the number that the design requires."""
    read_ledger(ledger)  # refuses an invalid ledger before anything runs
    campaigns = {name: campaign_of(DEFAULT, name) for name, _ in _choose(rows)}
    counted_rows: list[tuple[Campaign, list[SeedReport]]] = []
    played: list[dict[str, Any]] = []
    because: list[PubsubctlError] = []
    lines: list[str] = []
    all_reports: list[SeedReport] = []
    with call.console.progress() as progress:
        for name, row in _choose(rows):
            progress.phase(name)
            reports = []
            count = row.runs if runs is None else min(runs, row.runs)
            options = SwarmOptions(campaign=name)
            for report in run_swarm(range(count), DEFAULT, processes, options):
                reports.append(report)
                progress.update({"seeds": f"{len(reports)}/{count}"})
            wrong = [report for report in reports if report.violations]
            all_reports += reports
            counted = total(reports)
            played.append(
                {
                    "row": name,
                    "story": row.describe(),
                    "bound": row.bound,
                    "runs": count,
                    "violations": [row_of(report) for report in wrong],
                    "total": counted,
                }
            )
            lines.append(
                f"{name:24} {count:6,} runs {len(wrong):3,} violations "
                f"{counted['deliveries']:>12,} deliveries  {row.describe()}"
            )
            if row.bound:
                because += _complaints(wrong[:5], options)
            counted_rows.append((campaigns[name], reports))
    document = update_ledger(ledger, lambda document: _with_rows(document, counted_rows))
    marks = compute_coverage(marks_of(DEFAULT), all_reports)
    if not rows and len(all_reports) >= JUDGED_SEEDS:
        because += _list_unreached(marks)
    return Result(
        document={
            "schema": "pubsubctl/campaign/1",
            "rows": played,
            "marks": _mark_rows(marks),
            "total": document["total"],
        },
        text="\n".join([*lines, describe_coverage(marks)]),
        because=tuple(because),
    )


def simulate_mutants(
    call: Invocation, names: tuple[str, ...], runs: int | None, processes: int, ledger: Path | None
) -> Result:
    """Run named bugs, all by default, each from seed 0 on until a seed shows the bug."""
    for name in names:
        if name not in ablations():
            raise UserError(f"no mutant called {shown(name)}{nearest(name, tuple(ablations()))}")
    if not has_data():
        raise NoCheckout
    read_ledger(ledger)  # refuses an invalid ledger before anything runs
    commit = campaign_of(DEFAULT).commit
    chosen = names or tuple(ablations())
    caught: list[Caught] = []
    with call.console.progress() as progress:
        progress.phase("simulating named bugs")
        for one in catch_all(chosen, SEEDS if runs is None else runs, processes):
            caught.append(one)
            progress.update({"mutants": f"{len(caught)}/{len(chosen)}"})
    update_ledger(ledger, lambda document: with_caught(document, commit, caught))
    rows = [
        (
            one.name,
            rules_without(one.name),
            str(one.first_seed) if one.rule else "" if one.lost else f"none of {one.tried}",
            one.rule or (one.lost and "anchor lost") or ablations()[one.name].unseen or "not seen",
            one.command if one.rule else "",
        )
        for one in caught
    ]
    return Result(
        document={
            "schema": "pubsubctl/mutants/1",
            "mutants": [
                {"mutant": one.name, "leaves_out": rules_without(one.name),
                 "first_seed": one.first_seed, "rule": one.rule,
                 "tried": one.tried, "command": one.command, "lost": one.lost}
                for one in caught
            ],
        },
        text=call.console.table(
            ("MUTANT", "LEAVES OUT", "FIRST SEED", "BREAKS", "REPEAT WITH"), rows
        ),
        because=tuple(
            IntegrityError(one.lost)
            if one.lost
            else VerdictInvalid(f"mutant {one.name} was not seen in {counted(one.tried, 'seed')}")
            for one in caught
            if one.lost or not (one.rule or ablations()[one.name].unseen)
        ),
    )  # fmt: skip


def check_settings(settings: tuple[str, ...], protocol: str) -> None:
    """Refuse an unknown parameter of the protocol.

    Raises:
        UserError: the parameter is unknown; names the nearest.
    """
    try:
        plan_of(0, protocol, SwarmOptions(settings=settings))
    except ConfigError as error:
        raise UserError(f"--set: {error}") from None


def shrink_seed(seed: int, protocol: str, options: SwarmOptions, output: Path | None) -> Result:
    """Shrink a failing seed and write the rest as a plan."""
    plan = plan_of(seed, protocol, options)
    shrunk = shrink(plan, settings=options.settings)
    which = f"{seed} of {protocol}{options.as_arguments()}"
    if shrunk is None:
        raise UserError(f"seed {which} shows no violation, so it cannot be shrunk")
    named = "".join(f"-{mutant}" for mutant in sorted(options.mutants))
    path = output or Path(f"seed-{seed}{named}.plan")
    text = shrunk.describe(f"Seed {which}")
    write_output(path, text)
    # With a folder, no name of a file is taken for a word or a figure.
    name = shlex.quote(str(path) if len(path.parts) > 1 else f"./{path}")
    command = f"pubsubctl simulate run {name}"
    return Result(
        document={
            "schema": "pubsubctl/shrunk/1",
            "seed": seed,
            "file": str(path),
            "command": command,
            "small": shrunk.is_small(),
            "faults": shrunk.plan.faults,
            "brokers": len(shrunk.plan.topology.brokers),
            "publications": shrunk.plan.publications,
            "rule": shrunk.report.rule,
            "runs": shrunk.runs,
            "plan": text,
        },
        text=f"{text}\nfrom {plan.size()}, in {shrunk.runs} runs\nrepeat with: {command}\n"
        f"draw with: pubsubctl simulate draw {name}",
    )


def play_plan(path: Path, text: str) -> Result:
    """Run the plan in a file."""
    try:
        plan = read_plan(text)
    except PlanError as error:
        raise UserError(f"{path}: {error}") from None
    report = PlanRun(plan).report(-1, f"pubsubctl simulate run {path}")
    return Result(
        document={"schema": "pubsubctl/plan/1", "file": str(path), **row_of(report)},
        text=report.describe(),
        because=(VerdictInvalid(f"{path}: {report.rule}"),) if report.violations else (),
    )


def _choose(rows: tuple[str, ...]) -> Iterator[tuple[str, Setting]]:
    return ((name, row) for name, row in ROWS.items() if not rows or name in rows)


def _with_rows(
    document: dict[str, Any], rows: Iterable[tuple[Campaign, list[SeedReport]]]
) -> dict[str, Any]:
    for campaign, reports in rows:
        document = with_runs(document, campaign, reports)
    return document


def row_of(report: SeedReport) -> dict[str, Any]:
    """Return the report of a seed as a mapping for --json."""
    return {
        "seed": report.seed,
        "history_digest": report.digest,
        "rule": report.rule,
        "violations": list(report.violations),
        "counters": report.counters,
        "command": report.command,
    }


def _canary_row(canary: CanaryReport) -> dict[str, Any]:
    return {
        "seed": canary.seed,
        "mutant": str(canary.mutant),
        "failed_at": canary.failed_at,
        "rule": canary.rule,
        "tries": canary.tries,
    }


def _mark_rows(marks: Iterable[MarkCoverage]) -> list[dict[str, Any]]:
    return [
        {"mark": row.mark.name, "seeds": row.seeds, "times": row.times, "required": row.required}
        for row in marks
    ]


def _novelty_row(novelty: Novelty) -> dict[str, Any]:
    return {
        "pairs": novelty.pairs,
        "single": novelty.single,
        "late": novelty.late,
        "chance_of_a_new_pair": round(novelty.chance, 4),
    }


def _list_unreached(marks: Iterable[MarkCoverage]) -> list[PubsubctlError]:
    """Return a complaint for each mark that too few seeds reached for a verdict."""
    return [
        VerdictUnknown(
            f"too few seeds reached mark {row.mark.name} ({row.mark.event}): {row.seeds}, and "
            f"{row.required} are required; run more seeds"
        )
        for row in marks
        if not row.is_enough
    ]


def _complaints(wrong: Iterable[SeedReport], options: SwarmOptions) -> Iterator[PubsubctlError]:
    """Yield the violations with seeds; for the first, with the command that shrinks the seed."""
    for place, report in enumerate(wrong):
        arguments = f"{report.seed} --protocol {report.protocol}{options.as_arguments()}"
        yield VerdictInvalid(
            f"seed {report.seed}: {report.rule}; {report.command}",
            *(() if place else (f"cut down with: pubsubctl simulate shrink {arguments}",)),
        )


def _survivors(canaries: list[CanaryReport]) -> Iterator[PubsubctlError]:
    for canary in canaries:
        if canary.lost:
            yield IntegrityError(f"canary {canary.seed}: {canary.lost}")
        elif canary.failed_at < 0:
            yield VerdictInvalid(
                f"canary {canary.seed}: {canary.mutant} was not seen in {canary.tries} "
                f"seeds; pubsubctl simulate swarm --mutant {canary.mutant} "
                f"--seeds {canary.seed}..{canary.seed + canary.tries - 1}"
            )


def further_seeds(wrong: Sequence[SeedReport]) -> Iterator[PubsubctlError]:
    """Yield a line with the number and the seeds of all failures beyond the first `SHOWN`."""
    rest = wrong[SHOWN:]
    if rest:
        seeds = ", ".join(str(report.seed) for report in rest)
        yield VerdictInvalid(f"{len(rest)} further seeds with a violation: {seeds}")
