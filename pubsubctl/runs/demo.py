"""`demo`: equal load and an equal crash, with a reliable and an unreliable protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.run.outcome import RunOutcome
from bench.spec.keys import Overrides
from bench.spec.spec import load_experiment
from brokerd.protocols.registry import DEFAULT, DEFINITIONS, definition_of, protocols_for
from pubsubctl.console.console import Result
from pubsubctl.console.interruption import Interruption, run_interruptibly
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import PubsubctlError, VerdictInvalid, VerdictUnknown
from pubsubctl.injection.faults import check_schedule, schedule_of, settle_schedule
from pubsubctl.runs.experiment import (
    Experiment,
    carry_out,
    describe_abandoned,
    lab_for,
    numbers_text,
)
from pubsubctl.runs.verdicts import JudgedRun, announce_verdicts, judge_and_report

if TYPE_CHECKING:
    from results.reference.history import Judgement

_WORKLOAD: Final = "demo"
_WORKLOAD_OF_KIND: Final = {"bipartite": "proxies"}
"""Workload and fault schedule of one name: by overlay kind, if different from the demo's."""

_PLAIN = next(name for name, each in DEFINITIONS.items() if not each.promises.exactly_once)
PROTOCOLS = (DEFAULT, _PLAIN)
"""The protocols of the demo: the first keeps its promise, the second shows the promise's worth."""


def demonstrable_protocols(call: Invocation) -> tuple[str, ...]:
    """Return all protocols that run on the demo's brokers, then protocols with a separate demo."""
    protocols: dict[str, None] = {}
    for workload in (_WORKLOAD, *_WORKLOAD_OF_KIND.values()):
        spec = load_experiment(call.project.find("workload", workload), Overrides())
        protocols.update(dict.fromkeys(protocols_for(spec.topology)))
    return tuple(protocols)


def run_demo(
    call: Invocation,
    protocols: Sequence[str],
    *,
    results: Path | None,
    teardown: bool,
    labels: Mapping[str, str],
) -> Result:
    """Deploy, load, break, take down, for each protocol; then judge and report all at once.

    Args:
        labels: labels of each run, beside those of the demo.
    """
    experiments = [experiment_of(call, protocol, results, labels) for protocol in protocols]
    if not teardown:
        experiments[-1] = replace(experiments[-1], teardown=False)
    outcomes: list[RunOutcome] = []
    judgements: dict[Path, Judgement] = {}
    with call.console.progress() as progress:

        async def work(interruption: Interruption) -> None:
            for experiment in experiments:
                progress.print(f"{experiment.spec.protocol}:")
                lab = lab_for(call)
                purpose = f"demo with {experiment.spec.protocol}"
                outcome = await carry_out(experiment, lab, progress, interruption, purpose)
                outcomes.append(outcome)
                judgements.update(announce_verdicts([outcome.run_directory], progress))

        run_interruptibly(
            work, call.console, when_not_waiting=describe_abandoned(experiments[0].spec)
        )
        runs = [outcome.run_directory for outcome in outcomes]
        report = experiments[0].results / "demo" / "report.html"
        judged = judge_and_report(runs, report, progress, call.master(), judgements=judgements)
    return _result(call, protocols, outcomes, judged, report)


def experiment_of(
    call: Invocation,
    protocol: str,
    results: Path | None,
    labels: Mapping[str, str] | None = None,
) -> Experiment:
    """Return the demo's experiment for a protocol: load and faults on brokers of its kind."""
    name = _WORKLOAD_OF_KIND.get(definition_of(protocol).kind, _WORKLOAD)
    spec = load_experiment(
        call.project.find("workload", name),
        Overrides(protocol=protocol),
        {**(labels or {}), "demo": protocol},
    )
    schedule = settle_schedule(
        schedule_of(call.project, name), spec.topology, protocol=spec.protocol
    )
    measure_ns = spec.workload.phases.measure
    check_schedule(
        schedule,
        spec.topology,
        measure_ns=measure_ns,
        clients=spec.clients(),
        protocol=spec.protocol,
    )
    return Experiment(spec, schedule, call.project.results_folder(results))


def _result(
    call: Invocation,
    protocols: Sequence[str],
    outcomes: Sequence[RunOutcome],
    judged: Sequence[JudgedRun],
    report: Path,
) -> Result:
    blocks: list[str] = []
    runs: list[dict[str, Any]] = []
    for protocol, outcome, row in zip(protocols, outcomes, judged, strict=True):
        numbers = numbers_text(outcome)
        blocks.append(f"{protocol}\n{row.paint(call.console)}\n  {numbers}\n  run {row.run}")
        runs.append({"protocol": protocol, "run_directory": str(row.run), **row.document})
    blocks.append(f"report {report}")
    return Result(
        document={
            "schema": "pubsubctl/demo/1",
            "runs": runs,
            "report": str(report),
            "as_expected": not explain_unexpected(protocols, judged),
        },
        text="\n\n".join(blocks),
        because=tuple(explain_unexpected(protocols, judged)),
    )


def explain_unexpected(
    protocols: Sequence[str], judged: Sequence[JudgedRun]
) -> list[PubsubctlError]:
    """Return the reasons for which the demo did not show the expected verdicts."""
    found: list[PubsubctlError] = []
    for protocol, row in zip(protocols, judged, strict=True):
        expected = "VALID" if definition_of(protocol).promises.exactly_once else "INVALID"
        if row.verdict == expected:
            continue
        broken = row.verdict == "INVALID"
        kind = VerdictInvalid if broken else VerdictUnknown
        reasons = "; ".join(map(str, row.document["because"]))
        found.append(kind(f"{protocol} is {row.verdict}, expected {expected}: {reasons}"))
    return found
