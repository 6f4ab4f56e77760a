"""Predictions of verdicts, as the commands announce them before a run starts."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.spec.predictions import DEPLOYED, Prediction, Stage, predictions_of
from bench.spec.spec import ExperimentSpec
from brokerd.units import SECOND_NS
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Result
from pubsubctl.console.invocation import Invocation
from pubsubctl.console.waits import RunTime, describe_series
from pubsubctl.runs.outputs import explain_obstacle


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a command.

    Attributes:
        name: its name among the runs of the command, "" for the only one.
        schedule: its faults; None for none.
    """

    name: str
    spec: ExperimentSpec
    schedule: FaultSchedule | None
    stage: Stage = DEPLOYED


def announce(
    call: Invocation, runs: Iterable[Run], folder: Path | None = None
) -> list[dict[str, Any]]:
    """Print the predictions of all runs, each once, and return them for a JSON document.

    Doubts are warnings. A prediction that holds for some of several runs names them. What cannot be
    predicted is printed by --dry-run and -v. A dry run also warns of results that cannot be
    written, which a run finds before it starts.

    Args:
        folder: the folder of runs; None if nothing is written.
    """
    runs = [*runs]
    found: dict[tuple[str, str], tuple[Prediction, list[str]]] = {}
    for run in runs:
        for each in predictions_of(run.spec, run.schedule, run.stage):
            found.setdefault((each.kind, each.text), (each, []))[1].append(run.name)
    rows = []
    for (kind, text), (each, names) in sorted(found.items(), key=lambda item: item[0][0]):
        line = f"{', '.join(names)}: {text}" if len(names) < len(runs) else text
        if kind == "doubt":
            call.console.warn(line)
        elif kind == "note" or call.dry_run:
            call.console.print(line)
        else:
            call.console.detail(line)
        rows.append({**each.row(), **({"runs": names} if len(runs) > 1 else {})})
    checked = folder if call.dry_run else None
    if checked and (obstacle := explain_obstacle(checked, (run.spec for run in runs))):
        call.console.warn(f"a run would be refused now: {obstacle}")
    return rows


def expect_time(call: Invocation, spec: ExperimentSpec) -> RunTime:
    """Return the expected time of a run, by earlier commands on this machine."""
    phases = spec.workload.phases
    return RunTime.expect(call.console.waits, (phases.warmup + phases.measure) / SECOND_NS)


def describe_doubts(predictions: Collection[Mapping[str, Any]]) -> str:
    """Return the lines of a dry run about the predictions of its verdict."""
    doubts = [str(each["text"]) for each in predictions if each["kind"] == "doubt"]
    if doubts:
        return "\n".join(f"verdict UNKNOWN: {text}" for text in doubts)
    if any(each["kind"] == "open" for each in predictions):
        return "verdict: no doubt is predicted, as far as the verdict can be predicted"
    return "verdict: no doubt is predicted"


@dataclass(frozen=True, slots=True)
class SeriesPlan:
    """The plan of a series: its runs and their time.

    Attributes:
        points: values of the document by name of the point.
        repetitions: runs of each point.
        times: the expected time of every run.
        predictions: predictions of the verdicts.
        schema: the schema of the document.
        kind: the kind of its points; the document has the plural as a key.
    """

    points: Mapping[str, Mapping[str, Any]]
    repetitions: int
    times: Sequence[RunTime]
    predictions: Sequence[Mapping[str, Any]]
    schema: str = "pubsubctl/series-plan/1"
    kind: str = "point"

    def result(self) -> Result:
        """Return the result of a dry run."""
        return Result(
            document={
                "schema": self.schema,
                f"{self.kind}s": {name: dict(values) for name, values in self.points.items()},
                "repetitions": self.repetitions,
                "expected_ns": round(sum(each.run_s for each in self.times) * SECOND_NS),
                "predictions": [*self.predictions],
            },
            text="\n".join(
                [
                    *(f"{self.kind} {name}" for name in self.points),
                    describe_doubts(self.predictions),
                    describe_series(self.times),
                ]
            ),
        )
