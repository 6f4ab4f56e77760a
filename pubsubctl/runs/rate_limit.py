"""`limit`: a search for the highest sustainable rate, with the latency at each rate."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench.run.rate_search import SCHEMA, Bounds, Probe, RateFolder, TriedRate, open_search
from bench.run.series import describe_other_commits
from bench.spec.keys import Overrides
from bench.spec.spec import ExperimentSpec, load_experiment
from bench.spec.values import Rate, parse_rate
from brokerd.errors import ConfigError
from brokerd.text import counted
from brokerd.units import format_duration, parse_latency_ns
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.interruption import Interruption, resumable, run_interruptibly
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import PubsubctlError, UserError, VerdictUnknown
from pubsubctl.runs.experiment import Experiment, carry_out, describe_abandoned, lab_for
from pubsubctl.runs.plan import Run, announce, describe_doubts

FIGURE: Final = "search.knee"


@dataclass(frozen=True, slots=True)
class LimitRequest:
    """A search, as the command line describes the search.

    Attributes:
        p99: the limit of the 99th percentile of latency.
        from_rate, to_rate: the first and the last rate to try, per publisher.
        labels: labels of each run.
    """

    workload: str
    p99: str
    from_rate: str
    to_rate: str
    labels: Mapping[str, str] = field(default_factory=dict)


def find_limit(
    call: Invocation, request: LimitRequest, overrides: Overrides, results: Path | None
) -> Result:
    """Try increasing rates, resume an interrupted search, and report the highest.

    Raises:
        UserError, SpecError: an invalid request.
    """
    path = call.project.find("workload", request.workload)
    p99_ns, bounds = _bounds_of(request)
    first, last = bounds.start, bounds.limit
    if load_experiment(path, overrides).workload.churn is None:
        # A search has no faults, so nothing needs to be at risk.
        overrides = replace(overrides, keys={**(overrides.keys or {}), "calm": True})

    def spec_at(probe: Probe) -> ExperimentSpec:
        name = f"{path.stem}-max"
        labels = {**request.labels, "experiment": name, "stage": probe.stage}
        return load_experiment(path, replace(overrides, rate=_text(probe.rate)), labels)

    spec = spec_at(Probe(first, "bracket"))
    rates = [*dict.fromkeys((first, last))]
    predictions = announce(
        call,
        [Run(_text(rate), spec_at(Probe(rate, "bracket")), None) for rate in rates],
        call.project.results_folder(results),
    )
    if call.dry_run:
        return _plan_runs(spec, bounds, p99_ns, predictions)
    plan = _fixed_values(spec, p99_ns)
    lab, results_folder = lab_for(call), call.project.results_folder(results)
    try:
        folder = open_search(results_folder, spec.name, plan, bounds, hosts=lab.deciding())
    except ConfigError as error:
        raise UserError(str(error)) from None
    try:
        with call.console.progress() as progress:
            progress.print(f"search {folder.path}")
            for sentence in describe_other_commits(folder.path) if not folder.tried else ():
                call.console.warn(sentence)

            async def work(interruption: Interruption) -> None:
                while (probe := folder.search.next()) is not None:
                    progress.print(f"{probe.stage}: {_text(probe.rate)} of each publisher")
                    at = Experiment(spec_at(probe), None, results_folder)
                    outcome = await carry_out(at, lab, progress, interruption, f"bench {spec.name}")
                    tried = folder.note(probe, outcome, p99_ns / 1000)
                    progress.print(f"{_text(probe.rate)}: {_describe(tried)}")

            with resumable(call.console):
                run_interruptibly(work, call.console, when_not_waiting=describe_abandoned(spec))
            summary, because = _judge(folder, spec, p99_ns, progress, call.master())
    finally:
        folder.directory.leave()
    return _result(call, folder, summary, because)


def _bounds_of(request: LimitRequest) -> tuple[int, Bounds]:
    """Return the largest permitted latency in nanoseconds, and the range of the rates."""
    p99_ns = _read(parse_latency_ns, "--p99", request.p99)
    if p99_ns == 0:
        raise UserError(f"--p99 {request.p99}: no latency is below it")
    first = _per_second("--from-rate", request.from_rate)
    last = _per_second("--to-rate", request.to_rate)
    if first > last:
        raise UserError(f"--from-rate {request.from_rate}: more than --to-rate")
    return p99_ns, Bounds(start=first, limit=last)


def _fixed_values(spec: ExperimentSpec, p99_ns: int) -> dict[str, Any]:
    """Return the values that stay the same in a search; a resumed search must have equal ones."""
    return {
        "workload": {**spec.workload_mapping(), "publishers": None},
        "publishers": len(spec.publisher_plans()),
        "topology": spec.topology_toml(),
        "protocol": spec.protocol,
        "p99_ns": p99_ns,
    }


def _judge(
    folder: RateFolder, spec: ExperimentSpec, p99_ns: int, progress: Progress, master: str
) -> tuple[dict[str, Any], list[PubsubctlError]]:
    """Return the outcome of the search; the last run at the highest rate is judged like any run."""
    from pubsubctl.runs.verdicts import judge_with
    from results.checker.spark import spark_session
    from results.figures.catalogue import draw

    highest, lowest = folder.search.highest, folder.search.lowest_failed
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "p99_ns": p99_ns,
        "publishers": len(spec.publisher_plans()),
        "highest_passed": highest,
        "lowest_failed": lowest,
        "failed_below": folder.search.failed_below,
        "first_limit": folder.first_limit(),
        "tried": [asdict(tried) for tried in folder.tried],
    }
    because: list[PubsubctlError] = []
    at_highest = [tried for tried in folder.tried if tried.rate == highest]
    progress.phase("starting Spark")
    with spark_session("pubsubctl limit", master) as spark:
        if at_highest:
            run = folder.path.parent / at_highest[-1].run_id
            judged = judge_with(spark, run, progress)
            summary["verdict"] = judged.verdict
            because += judged.because if judged.verdict == "INVALID" else []
        else:
            because.append(VerdictUnknown(f"no rate passed, not even {_text(lowest or 0.0)}"))
        folder.close(summary)
        if at_highest:
            progress.phase(f"drawing {FIGURE}")
            draw(FIGURE, spark, folder.path)
    return summary, because


def _result(
    call: Invocation, folder: RateFolder, summary: dict[str, Any], because: list[PubsubctlError]
) -> Result:
    header = ("STAGE", "RATE", "P50", "P99", "DELIVERED", "RESULT")
    rows = [
        (
            tried.stage, _text(tried.rate), f"{tried.p50_us / 1000:.2f} ms",
            f"{tried.p99_us / 1000:.2f} ms", f"{tried.delivered_per_s:,.0f}/s", _describe(tried),
        )
        for tried in folder.tried
    ]  # fmt: skip
    lines = [call.console.table(header, rows)]
    highest, lowest = summary["highest_passed"], summary["lowest_failed"]
    publishers = summary["publishers"]
    if highest is not None:
        text = f"highest passed {_text(highest)}"
        if publishers > 1:
            text += f" of each of {publishers} publishers, {highest * publishers:,.0f}/s in all"
        if lowest is None:
            text += "; none failed: the limit is --to-rate"
        else:
            text += f"; lowest failed {_text(lowest)}"
        lines.append(f"{text}; p99 below {format_duration(summary['p99_ns'])}")
    if summary["failed_below"]:
        below = ", ".join(map(_text, summary["failed_below"]))
        lines.append(f"not monotone: {below} failed again and again, below rates that passed")
    if summary["first_limit"]:
        lines.append(f"at the lowest that failed: limited by {summary['first_limit']}")
    lines.append(str(folder.path))
    document = {**summary, "run_directory": str(folder.path)}
    return Result(document=document, text="\n".join(lines), because=tuple(because))


def _plan_runs(
    spec: ExperimentSpec,
    bounds: Bounds,
    p99_ns: int,
    predictions: Sequence[Mapping[str, Any]],
) -> Result:
    text = (
        "search for the highest rate of each publisher "
        f"({counted(len(spec.publisher_plans()), 'publisher')}), from "
        f"{_text(bounds.start)} to {_text(bounds.limit)}, p99 below {format_duration(p99_ns)}"
    )
    document = {
        "schema": "pubsubctl/search-plan/1",
        "bounds": asdict(bounds),
        "p99_ns": p99_ns,
        "predictions": [*predictions],
    }
    return Result(document=document, text=f"{text}\n{describe_doubts(predictions)}")


def _describe(tried: TriedRate) -> str:
    return tried.why_not or "passed"


def _text(rate: float) -> str:
    """Return a rate in workload notation."""
    return f"{rate:.6f}".rstrip("0").rstrip(".") + "/s"


def _per_second(option: str, text: str) -> float:
    rate: Rate = _read(parse_rate, option, text)
    if rate.per_second is None:
        raise UserError(f"{option} {text}: a number")
    return float(rate.per_second)


def _read(parse: Any, option: str, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(f"{option} {text}: {error}") from None
