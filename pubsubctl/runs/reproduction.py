"""`results reproduce`: checks up to a level that the results of a capsule can be reproduced.

`figures` draws every figure again from the tables of the runs, `check` also judges every run again
from its logs. `sim` also repeats everything without hosts: the workload and faults of each run on
simulated brokers, and simulated experiments. `local` also runs everything again on brokers of this
machine.
"""

import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.spec.keys import Overrides
from bench.spec.spec import ExperimentSpec
from brokerd.errors import ConfigError
from brokerd.text import counted
from fault_injection.schedule.schedule import FaultSchedule
from pubsubctl.console.console import Progress, Result
from pubsubctl.console.interruption import Interruption, run_interruptibly
from pubsubctl.console.invocation import Invocation
from pubsubctl.errors import ExpectationFailed, PubsubctlError, UserError, VerdictUnknown
from pubsubctl.runs.capsule_index import RUNS
from pubsubctl.runs.capsules import Capsule, found_in, is_of_brokers, unpack_capsule
from pubsubctl.runs.claims import judge as judge_claims
from pubsubctl.runs.claims import load_claims, measurements
from pubsubctl.runs.experiment import Experiment, carry_out, describe_abandoned, lab_for
from pubsubctl.runs.plan import plan_experiment
from pubsubctl.runs.runs import manifest, read_json, sibling_run
from pubsubctl.runs.verdicts import JudgedRun, announce_verdicts, judge_with

if TYPE_CHECKING:
    from results.reference.history import Judgement as PlainJudgement

SCHEMA: Final = "pubsubctl/reproduced/1"
LEVELS: Final = ("figures", "check", "sim", "local")


@dataclass(frozen=True, slots=True)
class Row:
    """A result to reproduce.

    Attributes:
        level: the level of the comparison.
        run: by its name in the capsule.
        what: a figure, `verdict`, or a claim.
        recorded, now: in words.
        is_same: True if reproduced, including details that the words leave out; None if undecided.
    """

    level: str
    run: str
    what: str
    recorded: str
    now: str
    is_same: bool | None

    @property
    def so(self) -> str:
        """In words."""
        return {True: "same", False: "differs", None: "cannot tell"}[self.is_same]

    def row(self) -> dict[str, Any]:
        """Return a mapping for JSON."""
        return {
            "level": self.level, "run": self.run, "what": self.what, "recorded": self.recorded,
            "now": self.now, "same": self.is_same,
        }  # fmt: skip


def reproduce(
    call: Invocation, path: Path, level: str, output: Path | None, master: str, digest: str = ""
) -> Result:
    """Compare the recorded results of a capsule with present results, up to a level.

    Args:
        output: the folder for the unpacked capsule; without a folder, the files are removed
            afterwards.
        digest: the required digest of the capsule; empty for any.

    Raises:
        UserError: the file is no capsule, or the folder exists.
        IntegrityError: a byte has changed, or the digest differs.
    """
    if output is not None:
        if output.exists():
            raise UserError(f"{output} is there already")
        output.mkdir(parents=True)
        return _reproduce(call, path, level, output, master, digest)
    with tempfile.TemporaryDirectory(prefix="pubsubctl-capsule-") as folder:
        return _reproduce(call, path, level, Path(folder).resolve(), master, digest)


def _reproduce(
    call: Invocation, path: Path, level: str, folder: Path, master: str, digest: str
) -> Result:
    from results.checker.spark import spark_session

    with call.console.progress() as progress:
        progress.phase("unpacking")
        capsule = unpack_capsule(path, folder, digest)
        again = _run_again(call, capsule, progress) if level == "local" else {}
        simulated = [*simulate_again(call, capsule, progress)] if level == "sim" else []
        judgements = {} if level == "figures" else judge_first(capsule, progress)
        progress.phase("starting Spark")
        with spark_session("pubsubctl results reproduce", master) as spark:
            judges = level != "figures"
            rows = [*compare(spark, capsule, progress, judges=judges, judgements=judgements)]
            for run, local in again.items():
                rows.append(judge_again(judge_with(spark, local, progress), run, capsule))
            rows += simulated
        claims = _claims(call, capsule)
    table = [(row.level, row.run, row.what, row.recorded, row.now, row.so) for row in rows]
    header = ("LEVEL", "RUN", "WHAT", "RECORDED", "NOW", "RESULT")
    text = f"capsule {capsule.digest}\n\n" + call.console.table(header, table)
    if claims:
        shown = [
            (each["claim"], each["ours"], each["tolerance"], each["verdict"]) for each in claims
        ]
        text += "\n\n" + call.console.table(("CLAIM", "OURS", "TOLERANCE", "RESULT"), shown)
    because: list[PubsubctlError] = []
    for row in rows:
        difference = f"{path}: {row.run}: {row.what} is {row.now}, and was {row.recorded}"
        if not row.is_same:
            because.append(
                VerdictUnknown(difference) if row.is_same is None else ExpectationFailed(difference)
            )
    document = {
        "schema": SCHEMA, "digest": capsule.digest, "level": level,
        "rows": [row.row() for row in rows], "claims": claims,
    }  # fmt: skip
    return Result(document=document, text=text, because=tuple(because))


def judge_first(capsule: Capsule, progress: Progress) -> dict[Path, "PlainJudgement"]:
    """Print the verdicts of the plain judge seconds after the start, and return its judgements.

    Spark judges each run again, and must agree.
    """
    of_brokers = [run for run in capsule.runs if is_of_brokers(run)]
    judgements = announce_verdicts(of_brokers, progress, named=True)
    same = sum(
        capsule.read_record(run)["verdict"] == found.verdict for run, found in judgements.items()
    )
    if judgements:
        more = "" if same == len(judgements) else "; Spark decides"
        text = f"{same} of {counted(len(judgements), 'verdict')} as recorded{more}"
        progress.print(f"plain judge: {text}")
    return judgements


def compare(
    spark: Any,
    capsule: Capsule,
    progress: Progress,
    *,
    judges: bool,
    judgements: "Mapping[Path, PlainJudgement] | None" = None,
) -> Iterator[Row]:
    """Yield verdicts and figures, as recorded and at present."""
    runs = sorted(capsule.runs, key=lambda run: manifest(run).get("kind") == "series")
    for place, run in enumerate(runs, start=1):
        recorded = capsule.read_record(run)
        name = _name(run, capsule)
        now = found_in(
            spark, run, recorded["figures"], progress, judges=judges,
            judgement=(judgements or {}).get(run), place=f"{place} of {len(runs)}: ",
        )  # fmt: skip
        if "verdict" in now:
            is_same = all(recorded.get(key) == now[key] for key in ("verdict", "counts"))
            yield Row("check", name, "verdict", _judge(recorded), _judge(now), is_same)
        for figure, files in recorded["figures"].items():
            drawn = now["figures"][figure]
            words = _files(files, files), _files(drawn, files)
            yield Row("figures", name, figure, *words, drawn == files)


def judge_again(judged: JudgedRun, run: Path, capsule: Capsule) -> Row:
    """Return the verdict on a new run.

    A run that cannot be judged proves nothing about the other run.
    """
    recorded, now = str(capsule.read_record(run)["verdict"]), judged.verdict
    is_same = _agree(recorded, now)
    why = f": {judged.document['because'][0]}" if is_same is None and now == "UNKNOWN" else ""
    return Row("local", _name(run, capsule), "verdict", recorded, now + why, is_same)


def _agree(recorded: str, now: str) -> bool | None:
    """Compare the verdicts on two runs; None if one of them left open what the other found."""
    return None if recorded != now and "UNKNOWN" in (recorded, now) else recorded == now


def simulate_again(call: Invocation, capsule: Capsule, progress: Progress) -> Iterator[Row]:
    """Yield verdicts on simulated brokers, and the rows of simulated experiments.

    Raises:
        UserError: the capsule contains nothing that can be simulated.
    """
    runs = [run for run in capsule.runs if _is_simulated(run)]
    of_brokers = _to_run(capsule)
    if not runs and not of_brokers:
        raise UserError("--level sim: no run in this capsule is one that can be simulated")
    for run in of_brokers:
        progress.phase(f"simulating {_name(run, capsule)}")
        recorded = str(capsule.read_record(run)["verdict"])
        now, why = _simulate_verdict(call, run)
        is_same = None if why else _agree(recorded, now)
        yield Row("sim", _name(run, capsule), "verdict", recorded, now + why, is_same)
    for run in runs:
        progress.phase(f"simulating {_name(run, capsule)}")
        before, now_rows = _rows_of(run), _rows_again(run, progress)
        words = _count(before), _count(now_rows)
        yield Row("sim", _name(run, capsule), "rows", *words, before == now_rows)


def _is_simulated(run: Path) -> bool:
    from bench.papers.experiments import is_simulated

    return is_simulated(run / "spec" / "experiment.toml")


def _simulate_verdict(call: Invocation, run: Path) -> tuple[str, str]:
    """Return a verdict on simulated brokers, or UNKNOWN and the reason for a missing comparison."""
    from bench.run.simulated_run import simulate_experiment

    try:
        found = simulate_experiment(*_experiment(call, run, simulated=True))
    except ConfigError as error:
        return "UNKNOWN", f": {error}"
    return found.value, ": nothing was at risk" if found.value == "UNKNOWN" else ""


def _rows_again(run: Path, progress: Progress) -> dict[str, bytes]:
    from bench.papers.experiments import load_figure_experiment, run_figure_experiment

    experiment = load_figure_experiment(run / "spec" / "experiment.toml")
    with tempfile.TemporaryDirectory(prefix="pubsubctl-again-") as folder:
        return _rows_of(run_figure_experiment(experiment, Path(folder), progress, 1))


def _rows_of(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(run.glob("raw/*/*/*.jsonl"))}


def _count(rows: Mapping[str, bytes]) -> str:
    lines = sum(content.count(b"\n") for content in rows.values())
    digest = hashlib.sha256(b"".join(rows[name] for name in sorted(rows))).hexdigest()
    return f"{counted(lines, 'row')} {digest[:8]}"


def _name(run: Path, capsule: Capsule) -> str:
    return run.relative_to(capsule.folder / RUNS).as_posix()


def _judge(found: Mapping[str, Any]) -> str:
    counts = found.get("counts") or {}
    parts = [f"{counts[key]:,} {key}" for key in ("owed", "delivered") if key in counts]
    others = {key: value for key, value in counts.items() if key not in ("owed", "delivered")}
    wrong = [f"{value:,} {key}" for key, value in others.items() if key == "missing" and value]
    return " · ".join([str(found["verdict"]), *parts, *wrong])


def _files(drawn: Mapping[str, str], recorded: Mapping[str, str]) -> str:
    """Return the number of files of a figure, or the names of files with other bytes."""
    differ = [name for name in recorded if drawn.get(name) != recorded[name]]
    return counted(len(recorded), "file") if not differ else f"other bytes in {', '.join(differ)}"


def _claims(call: Invocation, capsule: Capsule) -> list[dict[str, Any]]:
    """Return the outcomes of the claims on figures in the capsule, from the present drawings."""
    figures = [name for about in capsule.document["runs"].values() for name in about["figures"]]
    claims = [
        claim
        for name in call.project.names("claims")
        for claim in load_claims(call.project.find("claims", name))
        if claim.figure in figures
    ]
    return [
        each.row() for each in judge_claims(claims, measurements(capsule.folder / RUNS, figures))
    ]


# ------------------------------------------------------------ repeating runs


def _run_again(call: Invocation, capsule: Capsule, progress: Progress) -> dict[Path, Path]:
    """Run the broker experiments again: of each point of a series, the typical run."""
    planned = {run: _experiment(call, run) for run in _to_run(capsule)}
    if not planned:
        raise UserError("--level local: no run in this capsule is one of brokers of ours")
    lab, results = lab_for(call), call.project.results_folder(None)
    again: dict[Path, Path] = {}

    async def work(interruption: Interruption) -> None:
        for number, (run, (spec, schedule)) in enumerate(planned.items(), start=1):
            progress.print(f"{number} of {len(planned)}: {_name(run, capsule)}")
            experiment = Experiment(spec, schedule, results)
            outcome = await carry_out(experiment, lab, progress, interruption, "reproduce")
            again[run] = outcome.run_directory

    first = next(iter(planned.values()))[0]
    run_interruptibly(work, call.console, when_not_waiting=describe_abandoned(first))
    return again


def _to_run(capsule: Capsule) -> Sequence[Path]:
    of_series: dict[Path, bool] = {}
    for run in capsule.runs:
        if manifest(run).get("kind") == "series":
            points = read_json(run / "series.json")["points"].values()
            typical = {point["modal"] for point in points}
            for each in (run_id for point in points for run_id in point["runs"]):
                of_series[sibling_run(run, each)] = each in typical
    return [
        run
        for run in capsule.runs
        if is_of_brokers(run) and "system" not in manifest(run) and of_series.get(run, True)
    ]


def _experiment(
    call: Invocation, run: Path, *, simulated: bool = False
) -> tuple[ExperimentSpec, FaultSchedule | None]:
    spec = run / "spec"
    faults = spec / "faults.toml"
    overrides = Overrides(topology=str(spec / "topology.toml"), seed=manifest(run).get("seed"))
    return plan_experiment(
        call,
        str(spec / "workload.toml"),
        overrides,
        str(faults) if faults.is_file() else None,
        {},
        simulated=simulated,
    )
