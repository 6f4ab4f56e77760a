"""`targets`: runs the performance targets of brokers, and reports the results."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import trio

from bench.run.expectations import Judgement
from bench.run.testbed import RunFailed
from bench.spec.spec import ExperimentSpec
from bench.spec.sweep import estimate_ns
from bench.spec.targets import Target, experiment_of, load_targets
from brokerd.errors import ControlError
from brokerd.interpreter import module_command
from brokerd.text import counted
from brokerd.units import SECOND_NS
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.interruption import Interruption, run_interruptibly
from pubsubctl.console.invocation import Invocation
from pubsubctl.console.waits import describe_s
from pubsubctl.errors import HostError, PubsubctlError, VerdictUnknown
from pubsubctl.runs.experiment import Experiment, carry_out, describe_abandoned, lab_for
from pubsubctl.runs.plan import plan_faults
from pubsubctl.runs.runs import manifest
from pubsubctl.runs.verdicts import explain_status

SCHEMA: Final = "pubsubctl/targets-run/1"
_FAILS_ALONE: Final = (RunFailed, ControlError, HostError)
_ENDS_WITH_US: Final = "the measuring process ends with this one"

_Planned = tuple[Target, Invocation, ExperimentSpec | None, FaultSchedule | None]


@dataclass(frozen=True, slots=True)
class _TargetOutcome:
    """The outcome of a target's run.

    Attributes:
        run: its folder; None for a component, and after a failure.
        why: the reason for a failure.
    """

    target: Target
    run: Path | None
    judgements: tuple[Judgement, ...] = ()
    limited_by: str = ""
    why: str = ""

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the lines of a table, one line for each expectation."""
        if self.why:
            yield self.target.id, self.target.what, "", "", f"failed: {self.why}", ""
        for number, judged in enumerate(self.judgements):
            expected = judged.expectation
            yield (
                self.target.id if number == 0 else "",
                self.target.what if number == 0 else "",
                f"{expected.metric} {expected.wanted}",
                judged.number or "not measured",
                {True: "reached", False: "missed", None: "cannot tell"}[judged.holds],
                self.limited_by if number == 0 else "",
            )

    def row(self) -> dict[str, Any]:
        """Return a mapping for JSON."""
        return {
            "id": self.target.id,
            "what": self.target.what,
            "run_directory": None if self.run is None else str(self.run),
            "expectations": [judged.row() for judged in self.judgements],
            "limited_by": self.limited_by,
            "failed": self.why,
        }

    @property
    def because(self) -> list[PubsubctlError]:
        """Return the reasons for missed expectations."""
        if self.why:
            return [VerdictUnknown(f"target {self.target.id}: {self.why}")]
        return explain_status(self.run or self.target.id, self.judgements)


def run_targets(
    call: Invocation,
    file: str,
    ids: Sequence[str],
    results: Path | None,
    labels: Mapping[str, str],
) -> Result:
    """Run the targets of a file in sequence, each on separate brokers.

    Everything is checked before any run; a failed run does not block the others.

    Args:
        labels: labels of each run, beside those of its target.

    Raises:
        UserError, SpecError: a target cannot be run; names file, target, key and value.
    """
    path = call.project.find("targets", file)
    planned = [_plan(call, target, path, labels) for target in load_targets(path).select(ids)]
    if call.dry_run:
        return _plan_runs(planned)
    folder = call.project.results_folder(results)
    found: list[_TargetOutcome] = []
    with call.console.progress() as progress:

        async def work(interruption: Interruption) -> None:
            for number, (target, on, spec, schedule) in enumerate(planned, start=1):
                progress.print(f"{number} of {len(planned)}: {target.id}, {target.what}")
                try:
                    if spec is None:
                        with interruption.stoppable():
                            headline = await _measure(target)
                        found.append(_judge(target, headline, progress))
                        continue
                    outcome = await carry_out(
                        Experiment(spec, schedule, folder), lab_for(on), progress, interruption,
                        f"target {target.id}",
                    )  # fmt: skip
                except _FAILS_ALONE as error:
                    found.append(_TargetOutcome(target, None, why=str(error)))
                    progress.print(f"{target.id} failed: {error}")
                else:
                    run = outcome.run_directory
                    headline = manifest(run).get("headline") or {}
                    found.append(_judge(target, headline, progress, run))

        ends = [describe_abandoned(spec) for *_, spec, _ in planned if spec is not None]
        run_interruptibly(work, call.console, when_not_waiting=(ends or [_ENDS_WITH_US])[0])
    header = ("ID", "WHAT", "TARGET", "REACHED", "RESULT", "LIMITED BY")
    rows = [row for each in found for row in each.rows()]
    return Result(
        document={"schema": SCHEMA, "targets": [each.row() for each in found]},
        text=call.console.table(header, rows),
        because=tuple(error for each in found for error in each.because),
    )


def _plan(call: Invocation, target: Target, path: Path, labels: Mapping[str, str]) -> _Planned:
    if target.component is not None:
        return target, call, None, None
    if target.inventory and call.inventory_option is None:
        call = replace(call, inventory_option=target.inventory)
    workload = call.project.find("workload", target.workload, origin=str(path))
    spec = experiment_of(target, workload, str(path))
    spec = replace(spec, labels={**labels, **spec.labels})
    return target, call, spec, plan_faults(call, spec, target.faults or None)


async def _measure(target: Target) -> dict[str, Any]:
    """Return the numbers of a component, measured in a child process that ends with ours."""
    command = module_command("bench.components", str(target.component))
    try:
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True)
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no word"]
        raise RunFailed(f"{target.component}: status {error.returncode}: {last[0]}") from None
    return {str(target.component): json.loads(done.stdout)}


def _judge(
    target: Target, headline: Mapping[str, Any], progress: Progress, run: Path | None = None
) -> _TargetOutcome:
    judgements = tuple(expected.judge(headline) for expected in target.list_expectations())
    for judged in judgements:
        progress.print(f"{target.id}: {judged.text}")
    return _TargetOutcome(target, run, judgements, str(headline.get("limited_by") or ""))


def _plan_runs(planned: Sequence[_Planned]) -> Result:
    lines = [
        f"target {target.id}: {metric} {bound}"
        for target, *_ in planned
        for metric, bound in target.expectations.items()
    ]
    expected = sum(estimate_ns(spec) for *_, spec, _ in planned if spec is not None)
    lines.append(f"{counted(len(planned), 'run')}, about {describe_s(expected / SECOND_NS)}")
    document = {
        "schema": "pubsubctl/targets-plan/1",
        "targets": {target.id: target.expectations for target, *_ in planned},
        "expected_ns": expected,
    }
    return Result(document=document, text="\n".join(lines))
