"""`compare --all`: the same load and faults over brokers of ours and of others, and one report."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.load.progress import RunFailed
from bench.run.outcome import RunOutcome
from bench.spec.overrides import Overrides
from bench.systems.boundary import WrongSettings
from bench.systems.comparison import Comparison, Entry, load_comparison
from bench.systems.configuration import NotInstalled
from bench.systems.servers import ServerFailed
from brokerd.errors import ControlError
from pubsubctl.commands.bench import experiment_of
from pubsubctl.commands.invocation import Invocation
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.interruption import Interruption, run_interruptibly
from pubsubctl.errors import PubsubctlError, UserError, VerdictUnknown
from pubsubctl.running.experiment import Experiment, carry_out, lab_for, numbers_text
from pubsubctl.running.judging import Judged, judge_and_report
from pubsubctl.running.systems import asked_of, run_asked

NAME = "all"
LABEL = "compared"
"""Of a run: what the report calls it."""
NOT_WAITING = "what was started for this run ends by itself within a minute"

_Run = Callable[[Progress, Interruption], Awaitable[RunOutcome]]


@dataclass(frozen=True)
class _Side:
    name: str
    run: _Run


def compare_all(
    call: Invocation,
    only: list[str],
    also: list[str],
    duration: str | None,
    results: Path | None,
) -> Result:
    """Run every entry of the comparison after the other, judge all, and write one report.

    Everything is checked before anything is run. What is not installed, or cannot be had in the
    version that is, is named and left out; so is one whose servers fail.

    Args:
        only: names of entries; all where empty.
        also: configurations of further systems.
        duration: how long to measure, in the place of the workload's.

    Raises:
        UserError, SpecError: what was asked for cannot be; names file, key and value.
    """
    comparison = load_comparison(call.project.find("comparison", NAME)).only(only).also(also)
    folder = call.project.results_folder(results)
    sides, left_out = _sides(call, comparison, Overrides(measure=duration), folder)
    if call.dry_run:
        return _planned(comparison, sides, left_out)
    if not sides:
        raise UserError(f"comparison {comparison.name}: nothing of it is here", *left_out.values())
    outcomes: dict[str, RunOutcome] = {}
    with call.console.progress() as progress:

        async def work(interruption: Interruption) -> None:
            for number, side in enumerate(sides, start=1):
                progress.say(f"{number} of {len(sides)}: {side.name}")
                try:
                    outcomes[side.name] = await side.run(progress, interruption)
                except (ServerFailed, RunFailed, ControlError) as error:
                    left_out[side.name] = str(error)
                    progress.say(f"{side.name}: {error}")

        run_interruptibly(work, call.console, when_not_waiting=NOT_WAITING)
        runs = [outcome.run_directory for outcome in outcomes.values()]
        if not runs:
            raise VerdictUnknown(f"comparison {comparison.name}: no run", *left_out.values())
        report = folder / f"comparison-{comparison.name}" / "report.html"
        judged = judge_and_report(runs, report, progress, call.master(), comparison.title)
    return _result(call, outcomes, judged, left_out, report)


def _sides(
    call: Invocation, comparison: Comparison, overrides: Overrides, folder: Path
) -> tuple[list[_Side], dict[str, str]]:
    """What can be run, and why the rest cannot."""
    sides, left_out = [], {}
    for entry in comparison.entries:
        try:
            run = _run_of(call, comparison, entry, overrides, folder)
        except (NotInstalled, WrongSettings) as error:
            left_out[entry.name] = str(error)
            call.console.warn(f"{entry.name} is left out: {error}")
            continue
        sides.append(_Side(entry.name, run))
    return sides, left_out


def _run_of(
    call: Invocation, comparison: Comparison, entry: Entry, overrides: Overrides, folder: Path
) -> _Run:
    labels = {LABEL: entry.title or entry.name}
    if entry.system is not None:
        asked = asked_of(
            call, entry.system, overrides, comparison.faults, labels, comparison.workload
        )
        return partial(run_asked, asked, folder)
    of = Overrides(protocol=entry.protocol, topology=entry.topology, measure=overrides.measure)
    spec, schedule = experiment_of(call, comparison.workload, of, comparison.faults, labels)
    experiment, lab = Experiment(spec, schedule, folder), lab_for(call)

    async def run(progress: Progress, interruption: Interruption) -> RunOutcome:
        return await carry_out(experiment, lab, progress, interruption, f"compare {entry.name}")

    return run


def _planned(comparison: Comparison, sides: list[_Side], left_out: dict[str, str]) -> Result:
    names = [side.name for side in sides]
    lines = [f"run {name}: {comparison.workload}, faults {comparison.faults}" for name in names]
    lines += [f"leave out {name}: {why}" for name, why in left_out.items()]
    document = {"schema": "pubsubctl/comparison-plan/1", "runs": names, "left_out": left_out}
    return Result(document=document, text="\n".join(lines))


def _result(
    call: Invocation,
    outcomes: dict[str, RunOutcome],
    judged: list[Judged],
    left_out: dict[str, str],
    report: Path,
) -> Result:
    """Whatever the verdicts are, they are what was to be found out; none at all is not."""
    blocks: list[str] = []
    runs: list[dict[str, Any]] = []
    because: list[PubsubctlError] = []
    for (name, outcome), row in zip(outcomes.items(), judged, strict=True):
        numbers = numbers_text(outcome)
        blocks.append(f"{name}\n{row.painted(call.console)}\n  {numbers}\n  run {row.run}")
        runs.append({"name": name, "run_directory": str(row.run), **row.document})
        if row.verdict == "UNKNOWN":
            because.append(
                VerdictUnknown(f"{name}: {'; '.join(map(str, row.document['because']))}")
            )
    blocks += [f"{name} is left out: {why}" for name, why in left_out.items()]
    blocks.append(f"report {report}")
    document = {
        "schema": "pubsubctl/comparison/1",
        "runs": runs,
        "left_out": left_out,
        "report": str(report),
    }
    return Result(document=document, text="\n\n".join(blocks), because=tuple(because))
