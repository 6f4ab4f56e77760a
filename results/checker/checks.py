"""Verdicts of runs: counts and doubts become VALID, INVALID or UNKNOWN, with evidence.

After `check_run` a run's folder has `verdict.json`, `evidence/delivery.jsonl` with the earliest
cases of each kind of violation, and the tables `coverage`, `violations` and `verdicts`. If the
folder is not writable, the user's cache has these files.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from results.checker.canary import try_checker
from results.checker.delivery import DeliveryCheck
from results.checker.spark import plan_for
from results.checker.verdict_document import document_of
from results.reference.history import Judgement
from results.rules.evidence import evidence_rows
from results.rules.facts import RunFacts
from results.rules.fault_log import fault_spans
from results.rules.findings import Findings
from results.rules.terms import NEVER_NS
from results.tables.derived import EVIDENCE, VERDICT, VerdictMark, find_derived_folder
from results.tables.json_files import read_json, write_json, write_json_lines
from results.tables.load import LoadedRun, load_run, table_folder
from results.tables.manifest import Run
from results.tables.schema import TABLES
from results.tables.seals import seal_derived, verify_seal
from results.tables.small_tables import arrow_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECK = "delivery"
EVIDENCE_PER_KIND = 8


@dataclass(frozen=True)
class Verdict:
    """The verdict of a run.

    Attributes:
        folder: folder of the run.
        derived: folder of verdict.json, evidence and tables: the folder of the run, or the user's
            cache.
        document: content of verdict.json.
    """

    folder: Path
    derived: Path
    document: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """VALID, INVALID or UNKNOWN."""
        return str(self.document["verdict"]).upper()

    @property
    def exit_status(self) -> int:
        return int(self.document["exit_code"])

    def lines(self) -> list[str]:
        """Return the verdict in a few lines for people."""
        return [*self.document["lines"]]


def standing_verdict(run_dir: Path) -> Verdict | None:
    """Return the verdict that this user's present program made of a run; None if there is none.

    Raises:
        IntegrityError: a file of the run has changed since the run ended.
    """
    folder = Path(run_dir)
    seal = verify_seal(folder)
    derived = find_derived_folder(folder, seal)
    if not VerdictMark(derived, seal.digest).holds():
        return None
    return Verdict(folder.resolve(), derived, read_json(derived / VERDICT))


def check_run(
    spark: "SparkSession",
    run_dir: Path,
    *,
    max_evidence: int = EVIDENCE_PER_KIND,
    judgement: Judgement | None = None,
) -> Verdict:
    """Judge one run; see `check_runs`.

    Args:
        judgement: the second opinion on the whole run, if it exists.
    """
    known = {} if judgement is None else {Path(run_dir).resolve(): judgement}
    return check_runs(spark, [run_dir], max_evidence=max_evidence, judgements=known)[0]


def check_runs(
    spark: "SparkSession",
    run_dirs: Sequence[Path],
    *,
    max_evidence: int = EVIDENCE_PER_KIND,
    judgements: Mapping[Path, Judgement] | None = None,
) -> list[Verdict]:
    """Judge runs, all in the same Spark jobs; load missing tables first.

    Args:
        judgements: existing second opinions on whole runs, by folder.

    Raises:
        ResultsError: a folder has no run.
        IntegrityError: a file of a run has changed since the run ended.
        CheckerBroken: the checker missed a deliberate violation.
    """
    waiting = [load_run(spark, folder) for folder in run_dirs]
    found: dict[Path, Verdict] = {}
    while waiting:
        # Copies of one run are indistinguishable in one table.
        runs = {loaded.run.run_id: loaded for loaded in reversed(waiting)}
        for verdict in _check_together(spark, runs, max_evidence, judgements or {}):
            found[verdict.folder] = verdict
        waiting = [loaded for loaded in waiting if loaded.run.folder not in found]
    return [found[Path(folder).resolve()] for folder in run_dirs]


def _check_together(
    spark: "SparkSession",
    runs: Mapping[str, LoadedRun],
    max_evidence: int,
    judgements: Mapping[Path, Judgement],
) -> list[Verdict]:
    facts = {run_id: RunFacts.from_run(loaded) for run_id, loaded in runs.items()}
    publications = _all(spark, runs, "publications")
    deliveries = _all(spark, runs, "deliveries")
    rows = sum(loaded.logs.rows for loaded in runs.values())
    with plan_for(spark, rows) as small:
        positions = _positions(spark, runs)
        check = DeliveryCheck(
            spark, facts, publications, deliveries, small=small, positions=positions
        )
        both = {run_id: (facts[run_id], check.findings[run_id]) for run_id in runs}
        canaries = try_checker(spark, both, publications, deliveries)
        verdicts = []
        for run_id, loaded in runs.items():
            findings = check.findings[run_id]
            evidence = evidence_rows(spark, loaded, facts[run_id], check, max_evidence)
            _write_violations(loaded, check)
            known = judgements.get(loaded.run.folder)
            document = document_of(loaded, facts[run_id], findings, canaries.get(run_id), known)
            _write_tables(loaded, findings, document)
            _write_documents(loaded.run, document, evidence)
            verdicts.append(Verdict(loaded.run.folder, loaded.run.derived, document))
        check.close()
    return verdicts


def _all(spark: "SparkSession", runs: Mapping[str, LoadedRun], name: str) -> "DataFrame":
    tables = [loaded.table(spark, name) for loaded in runs.values()]
    return reduce(lambda left, right: left.unionByName(right), tables)


def _positions(spark: "SparkSession", runs: Mapping[str, LoadedRun]) -> "DataFrame | None":
    """Return the places of deliveries in streams, for the runs with places."""
    placed = {
        run_id: loaded
        for run_id, loaded in runs.items()
        if any(file.rows for file in loaded.logs.files("positions"))
    }
    return _all(spark, placed, "positions") if placed else None


def _write_documents(
    run: Run, document: Mapping[str, Any], evidence: Sequence[Mapping[str, Any]]
) -> None:
    shutil.rmtree(run.derived / EVIDENCE, ignore_errors=True)
    write_json_lines(run.derived / EVIDENCE / f"{CHECK}.jsonl", evidence)
    write_json(run.derived / VERDICT, document)
    VerdictMark(run.derived, run.seal.digest).write()
    if run.derived == run.folder:
        seal_derived(run.folder)


def _write_violations(loaded: LoadedRun, check: DeliveryCheck) -> None:
    """Write all violations, in any number; an empty table for a clean run."""
    from pyspark.sql import functions as F

    folder = table_folder(loaded.run, "violations")
    shutil.rmtree(folder, ignore_errors=True)
    run_id = loaded.run.run_id
    if check.violations is None or not check.findings[run_id].violations:
        _write_table(loaded, "violations", [])
        return
    held = [
        F.when(F.col("t_ns").between(span.from_ns, span.to_ns), F.lit(span.step))
        for span in fault_spans(loaded.run.fault_rows, NEVER_NS)
    ]
    names = F.array(*held) if held else F.array().cast("ARRAY<STRING>")
    of_run = check.violations.where(F.col("run_id") == run_id)
    rows = of_run.withColumn("check", F.lit(CHECK)).withColumn(
        "active_faults", F.array_compact(names)
    )
    # A gap of a lost stream has a higher incarnation than other rows.
    rows = rows.withColumn("incarnation", F.col("incarnation").cast("BIGINT"))
    rows.select(*TABLES["violations"].names).write.parquet(str(folder))


def _write_tables(loaded: LoadedRun, findings: Findings, document: Mapping[str, Any]) -> None:
    coverage = [
        {
            "sub_id": pair.sub_id,
            "pubend": pair.pubend,
            "tick_lo": pair.first_seq,
            "tick_hi": pair.last_seq,
            "n": pair.received,
            "n_dup": pair.duplicates,
            "n_out_of_order": pair.reordered,
            "n_owed": pair.owed,
            "n_missing": pair.missing,
            "n_undecided": pair.undecided,
            "n_withheld": pair.withheld,
            "first_ns": pair.first_ns,
            "last_ns": pair.last_ns,
            "xor_hash": pair.xor_hash,
        }
        for pair in findings.pairs
    ]
    _write_table(loaded, "coverage", coverage)
    verdict = {
        "check": CHECK,
        "verdict": document["verdict"].upper(),
        "n_checked": document["counts"]["owed"],
        "n_violations": sum(document["counts"]["violations"].values()),
        "n_unknown": len(document["doubts"]),
        "exercised": document["exercised"],
        "reason": "; ".join(document["because"]),
    }
    _write_table(loaded, "verdicts", [verdict])


def _write_table(loaded: LoadedRun, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    folder = table_folder(loaded.run, name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    table = arrow_table(TABLES[name], loaded.run.run_id, [*rows])
    pa.parquet.write_table(table, folder / "part-0.parquet")
