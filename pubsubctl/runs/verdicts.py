"""Verdicts at the command line: Spark is started once, and its messages become one line.

The plain judge (`results.reference`) reads the logs row by row. Its verdict on a run of up to
`MOST_DELIVERIES` logged deliveries is printed before Spark starts.
"""

import gc
import itertools
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.run.expectations import Expectation, Judgement
from brokerd.text import parse_json
from pubsubctl.console.console import Console, Progress, Style
from pubsubctl.errors import (
    ExpectationFailed,
    IntegrityError,
    PubsubctlError,
    UserError,
    VerdictInvalid,
    VerdictUnknown,
)
from pubsubctl.hosts.files import load_toml
from pubsubctl.runs.run_changes import refresh_run_index
from pubsubctl.runs.runs import check_specification, manifest

if TYPE_CHECKING:
    from results.reference.history import Judgement as PlainJudgement

MOST_DELIVERIES: Final = 500_000


@dataclass(frozen=True)
class PlainVerdict:
    """A verdict of the plain judge.

    Attributes:
        because: the reasons, with the names of publishers.
        text: verdict, guarantee and counts, in a line.
        took_s: the duration of the judgement.
    """

    run: Path
    judgement: "PlainJudgement"
    because: tuple[str, ...]
    text: str
    took_s: float

    def lines(self) -> list[str]:
        """Return the verdict for people, and the reasons of an UNKNOWN verdict."""
        reasons = self.because if self.judgement.verdict == "UNKNOWN" else ()
        return [f"{self.text} (plain judge, {self.took_s:.1f} s)", *(f"  {why}" for why in reasons)]


def logged_deliveries(run: Path) -> int:
    """Return the number of rows in the delivery logs of a run; 0 without logs."""
    import struct

    from results.reference.files import LAYOUTS

    width = struct.calcsize(LAYOUTS["deliveries"][0])
    return sum(path.stat().st_size for path in run.glob("raw/*/*/deliveries.rec")) // width


def plain_verdict(run: Path) -> PlainVerdict | None:
    """Return the verdict of the plain judge; None if a run has no or too many deliveries.

    Raises:
        Refused: a file has changed since the run ended.
    """
    from results.reference.history_reader import read_history
    from results.reference.rule import check
    from results.rules.verdict_text import counts_in_words, verdict_in_words, with_publisher_names

    if not 0 < logged_deliveries(run) <= MOST_DELIVERIES:
        return None
    began_s = time.monotonic()
    # A row per delivery, and no cycles: to look for garbage takes a tenth of the time.
    gc.disable()
    try:
        history = read_history(run)
        judgement = check(history)
    finally:
        gc.enable()
    counts = counts_in_words(judgement.counts, history.order)
    word = verdict_in_words(judgement.verdict, is_calm=history.calm, brokers=history.brokers)
    text = f"{word}  {history.guarantee} · {counts}"
    names = {log.source: log.name for log in history.publishers}
    because = tuple(with_publisher_names(reason, names) for reason in judgement.because)
    return PlainVerdict(run, judgement, because, text, time.monotonic() - began_s)


def announce_verdicts(
    runs: Sequence[Path], progress: Progress, *, named: bool = False
) -> dict[Path, "PlainJudgement"]:
    """Print the verdicts of the plain judge, and return its judgements by run.

    A run that the plain judge cannot read is left to Spark, which names the reason.

    Args:
        named: begin each verdict with the name of the run.
    """
    found: dict[Path, PlainJudgement] = {}
    for run in runs:
        try:
            verdict = plain_verdict(run)
        except Exception as error:  # any error concerns only this run
            progress.print(f"{run.name}: no verdict of the plain judge: {error}")
            continue
        if verdict is not None:
            first, *others = verdict.lines()
            progress.print(f"{run.name}: {first}" if named else first)
            for line in others:
                progress.print(line)
            found[run] = verdict.judgement
    return found


MASTER = "local[*]"
CASES_SHOWN = 4


@dataclass(frozen=True)
class JudgedRun:
    """A run with its verdict.

    Attributes:
        run: its folder.
        derived: the folder of evidence: in the run, or in the user's cache.
        document: the content of verdict.json.
        expectations: the workload's expectations, judged.
    """

    run: Path
    derived: Path
    document: Mapping[str, Any]
    expectations: Sequence[Judgement] = ()

    @property
    def verdict(self) -> str:
        """VALID, INVALID or UNKNOWN."""
        return str(self.document["verdict"]).upper()

    @property
    def because(self) -> list[PubsubctlError]:
        """Why the exit status is not 0; empty for VALID."""
        lines = [str(line) for line in self.document["lines"]]
        begin = "  unknown: "  # with the names of publishers, as in the lines of the verdict
        reasons = [line.removeprefix(begin) for line in lines if line.startswith(begin)]
        reasons = reasons or [*map(str, self.document["because"])] or ["no reason given"]
        kinds: dict[str, type[PubsubctlError]] = {
            "INVALID": VerdictInvalid,
            "UNKNOWN": VerdictUnknown,
        }
        kind = kinds.get(self.verdict)
        found: list[PubsubctlError] = []
        if kind:
            found.append(kind(f"{self.run}: {self.verdict}: {'; '.join(reasons)}"))
        return [*found, *explain_status(self.run, self.expectations)]

    def evidence(self, limit: int) -> list[str]:
        """Return the first violations, one line each."""
        path = self.derived / "evidence" / "delivery.jsonl"
        if self.verdict != "INVALID" or not path.is_file():
            return []
        with path.open(encoding="utf-8") as file:
            rows = [parse_json(line) for line in itertools.islice(file, limit)]
        if not rows:
            return []
        if path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        return [*(f"  {_case(row)}" for row in rows), *self._explain(rows), f"  more in {path}"]

    def _explain(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the command that traces the first publication of the evidence, if it has one."""
        for row in rows:
            if isinstance(row.get("incarnation"), int) and row.get("publication"):
                publisher = row["publication"].get("publisher", row["source"])
                number = f"{publisher}:{row['incarnation']}:{row['sequence']}"
                run = shlex.quote(str(self.run))
                return [f"  `pubsubctl why {number} {row['subscription']} {run}`"]
        return []

    def paint(self, console: Console) -> str:
        """Return the verdict in a few lines, its first word in colour, and the first violations."""
        styles: dict[str, Style] = {"VALID": "good", "INVALID": "bad", "UNKNOWN": "doubtful"}
        lines = [*map(str, self.document["lines"]), *self.evidence(CASES_SHOWN)]
        lines += [f"  {each.text}" for each in self.expectations]
        text = "\n".join(lines)
        word, _, rest = text.partition(" ")
        if word != self.verdict:
            return text
        return f"{console.colorize(word, styles[word])} {rest}"

    def row(self) -> dict[str, Any]:
        """Return a mapping for --json."""
        expectations = [each.row() for each in self.expectations]
        return {"run_directory": str(self.run), **self.document, "expectations": expectations}


@dataclass(frozen=True)
class MissingVerdict:
    """A run without a verdict.

    Attributes:
        error: the reason; a bug of ours if it has no exit status.
    """

    run: Path
    error: Exception

    def paint(self, console: Console) -> str:
        """Return the missing verdict with its reason."""
        return f"{console.colorize('NOT JUDGED', 'bad')}  {self._text}"

    def row(self) -> dict[str, Any]:
        """Return a mapping for --json."""
        return {"run_directory": str(self.run), "verdict": None, "because": [self._text]}

    @property
    def _text(self) -> str:
        return str(self.error).partition("\n")[0] or type(self.error).__name__


def expectations_of(run: Path) -> list[Judgement]:
    """Return the expectations of a run's workload, judged by the numbers in its manifest."""
    workload = run / "spec" / "workload.toml"
    expectations = load_toml(workload).values.get("expectations", {}) if workload.is_file() else {}
    headline = manifest(run).get("headline") or {}
    try:
        return [Expectation.of(name, text).judge(headline) for name, text in expectations.items()]
    except ValueError as error:
        raise IntegrityError(f"{workload}: expectations: {error}") from None


def explain_status(run: Path | str, found: Sequence[Judgement]) -> list[PubsubctlError]:
    """Return the reasons for a nonzero exit status; empty if all expectations hold.

    Args:
        run: its folder, or the target if there is no run.
    """
    failed = [each.text for each in found if each.holds is False]
    unknown = [each.text for each in found if each.holds is None]
    errors: list[PubsubctlError] = []
    if failed:
        errors.append(ExpectationFailed(f"{run}: not as expected: {'; '.join(failed)}"))
    if unknown:
        errors.append(VerdictUnknown(f"{run}: {'; '.join(unknown)}"))
    return errors


def _case(row: Mapping[str, Any]) -> str:
    """Return a case of evidence as a sentence."""
    sent = row.get("publication") or {}
    publisher = sent.get("publisher", row["source"])
    parts = [f"{row['kind']}: {publisher} number {row['sequence']} for {row['subscription']}"]
    if row.get("t_ns") is not None:
        parts.append(f"at {row['t_ns'] / 1e9:.2f} s")
    if row.get("path"):
        parts.append("-".join(row["path"]))
    if row.get("active_faults"):
        parts.append(f"during {', '.join(row['active_faults'])}")
    if row.get("received_before") is not None and row.get("received_after") is not None:
        parts.append(f"it got {row['received_before']}, then {row['received_after']}")
    return ", ".join(parts)


def judge(run: Path, progress: Progress, master: str = MASTER) -> JudgedRun:
    """Load and check a run."""
    (judged,) = judge_each([run], progress, master)
    if isinstance(judged, MissingVerdict):
        raise judged.error
    return judged


def judge_each(
    runs: Sequence[Path], progress: Progress, master: str
) -> list[JudgedRun | MissingVerdict]:
    """Load and check runs, with one Spark session; an error in a run spoils no other run."""
    from results.checker.spark import spark_session, translate_errors

    refused = {run: error for run in runs if (error := _refusal_of(run)) is not None}
    if len(refused) == len(runs):
        return [MissingVerdict(run, refused[run]) for run in runs]
    found: list[JudgedRun | MissingVerdict] = []
    judgements = announce_verdicts(runs, progress, named=len(runs) > 1)
    damaged = {run: why for run in runs if (why := _find_damage(run, judgements)) is not None}
    if len(damaged) == len(runs):
        return [MissingVerdict(run, damaged[run]) for run in runs]
    progress.phase("starting Spark")
    with spark_session("pubsubctl check", master) as spark:
        for place, run in enumerate(runs, start=1):
            if run in damaged:
                found.append(MissingVerdict(run, damaged[run]))
                continue
            try:
                name = _numbered(place, len(runs))
                found.append(judge_with(spark, run, progress, judgements.get(run), name))
            except Exception as error:  # any error concerns only this run
                found.append(MissingVerdict(run, translate_errors(error)))
    refresh_run_index(runs, progress)
    return found


def _refusal_of(run: Path) -> UserError | None:
    """Return why a run cannot be judged, as far as its files show without Spark."""
    from results.papers.experiment_runs import has_verdict, is_experiment_run

    if not is_experiment_run(run) or has_verdict(run):
        return None
    return UserError(f"{run}: no deliveries are recorded, so none can be judged; plot it")


def _find_damage(run: Path, judgements: "Mapping[Path, PlainJudgement]") -> Exception | None:
    """Return why the files of a run differ from its seal; None if the plain judge read the run.

    A run that is too large for the plain judge is left to Spark: no digest is computed twice.
    """
    from results.tables.json_files import IntegrityError
    from results.tables.seals import verify_seal

    if run in judgements or logged_deliveries(run) > MOST_DELIVERIES:
        return None
    try:
        verify_seal(run)
    except IntegrityError as error:
        return error
    return None


def _numbered(place: int, runs: int) -> str:
    return f"{place} of {runs}: " if runs > 1 else ""


def judge_with(
    spark: Any,
    run: Path,
    progress: Progress,
    judgement: "PlainJudgement | None" = None,
    place: str = "",
) -> JudgedRun:
    """Load and check a run with a session that is there.

    Args:
        judgement: the judgement of the plain judge, if it is known.
        place: the place of the run among several, for people.
    """
    from results.checker.checks import check_run
    from results.papers.dft11.delivery_figures import check_simulated_run
    from results.papers.experiment_runs import is_experiment_run
    from results.tables.derived import VERDICT, VerdictMark, find_unsealed_derived
    from results.tables.json_files import write_json
    from results.tables.seals import seal_derived, verify_seal

    progress.phase(f"checking {place}{run.name}")
    if is_experiment_run(run):
        derived = find_unsealed_derived(run)
        document = {
            **check_simulated_run(spark, run),
            "run_id": manifest(run).get("run_id", run.name),
        }
        write_json(derived / VERDICT, document)
        VerdictMark(derived, verify_seal(run).digest).write()
        if derived == run:
            seal_derived(run)
        return JudgedRun(run, derived, document)
    check_specification(run)
    verdict = check_run(spark, run, judgement=judgement)
    return JudgedRun(run, verdict.derived, verdict.document, expectations_of(run))


def judge_and_report(
    runs: Sequence[Path],
    report: Path,
    progress: Progress,
    master: str,
    title: str = "",
    unpromised: Mapping[str, str] | None = None,
    judgements: "Mapping[Path, PlainJudgement] | None" = None,
    reuses: bool = False,
) -> list[JudgedRun]:
    """Check runs and write a report on all runs under this title, with one Spark session.

    Args:
        unpromised: entries of the report without a run, with the reasons.
        judgements: known judgements of the plain judge; None if it has judged no run.
        reuses: do not judge a run again whose verdict stands.
    """
    from results.checker.spark import spark_session
    from results.report import write_report

    standing = find_standing(runs, progress) if reuses else {}
    waiting = [run for run in runs if run not in standing]
    if judgements is None:
        judgements = announce_verdicts(waiting, progress, named=len(runs) > 1)
    progress.phase("starting Spark")
    with spark_session("pubsubctl report", master) as spark:
        fresh = {
            run: judge_with(spark, run, progress, judgements.get(run), _numbered(place, len(runs)))
            for place, run in enumerate(runs, start=1)
            if run not in standing
        }
        judged = [standing.get(run) or fresh[run] for run in runs]
        progress.phase("drawing the report")
        write_report(spark, runs, report, title, unpromised)
    refresh_run_index(runs, progress)
    return judged


def find_standing(
    runs: Sequence[Path], progress: Progress, *, is_named: bool = True
) -> dict[Path, JudgedRun]:
    """Return the runs with a verdict that this program made of the same files.

    Args:
        is_named: print each of them.
    """
    from results.checker.checks import standing_verdict
    from results.papers.experiment_runs import is_experiment_run

    found = {}
    for run in runs:
        verdict = None if is_experiment_run(run) else standing_verdict(run)
        if verdict is not None:
            found[run] = JudgedRun(run, verdict.derived, verdict.document, expectations_of(run))
            if is_named:
                progress.print(
                    f"{run.name}: {found[run].verdict} stands, for files and program are the "
                    "same; `pubsubctl check` judges again"
                )
    return found


def draw_and_judge(runs: Sequence[Path], progress: Progress, master: str) -> dict[Path, JudgedRun]:
    """Draw the figures of experiments without real brokers; the verdicts where brokers ran."""
    from results.checker.spark import spark_session
    from results.figures.catalogue import FIGURES, draw
    from results.papers.experiment_runs import has_verdict, load_experiment_run
    from results.repetitions.series_runs import is_series

    judged: dict[Path, JudgedRun] = {}
    progress.phase("starting Spark")
    with spark_session("pubsubctl report", master) as spark:
        for run in runs:
            if is_series(run):
                for name in manifest(run)["figures"]:
                    progress.phase(f"drawing {name} of {run.name}")
                    draw(name, spark, run)
                continue
            about = load_experiment_run(spark, run).manifest
            if has_verdict(run):
                judged[run] = judge_with(spark, run, progress)
            figure = str(about["figure"])
            for name in FIGURES:
                if name == figure or name.startswith(f"{figure}."):
                    progress.phase(f"drawing {name} of {run.name}")
                    draw(name, spark, run)
    refresh_run_index(runs, progress)
    return judged
