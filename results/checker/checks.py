"""Verdicts of runs: counts and doubts become VALID, INVALID or UNKNOWN, with evidence.

After `check_run` a run's folder has `verdict.json`, `evidence/delivery.jsonl` with the earliest
cases of each kind of violation, and the tables `coverage`, `violations` and `verdicts`. If the
folder is not writable, the user's cache has these files.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from results.checker.canary import try_checker
from results.checker.delivery import DeliveryCheck
from results.checker.second_opinion import (
    LARGEST_STREAM,
    MOST_ROWS,
    StreamSample,
    disagreement,
    judge_sample,
    second_opinion,
)
from results.checker.spark import plan_for
from results.reference.history import Judgement
from results.rules.doubts import doubts_of
from results.rules.evidence import evidence_rows
from results.rules.facts import RunFacts
from results.rules.fault_log import fault_spans
from results.rules.findings import Findings, describe_nothing_owed
from results.rules.terms import (
    CHURN,
    EXIT_STATUS,
    NEVER_NS,
    NOT_CHECKED,
    ON_TRUST,
    PUBLISHER_ORDER,
    Counts,
    Recovery,
    VerdictName,
    doubt,
)
from results.rules.verdict_text import (
    churn_of,
    counts_in_words,
    recoveries_in_words,
    verdict_in_words,
    with_publisher_names,
)
from results.rules.verdicts import decide
from results.tables.derived import EVIDENCE, VERDICT, VerdictMark, find_derived_folder
from results.tables.json_files import read_json, read_toml, write_json, write_json_lines
from results.tables.load import LoadedRun, load_run, table_folder
from results.tables.manifest import Run
from results.tables.schema import TABLES
from results.tables.seals import seal_derived, verify_seal
from results.tables.small_tables import arrow_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERDICT_SCHEMA = "pubsubctl/verdict/1"
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
            document = _document(loaded, facts[run_id], findings, canaries.get(run_id), known)
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


def decide_verdict(
    facts: RunFacts, findings: Findings, doubts: Iterable[str] = ()
) -> tuple[VerdictName, list[str], list[str]]:
    """Return verdict, reasons and all doubts.

    Args:
        doubts: doubts of the caller, beside the doubts of facts and findings.
    """
    return decide(
        findings.counts,
        [*doubts_of(facts, findings), *doubts],
        facts.guarantee,
        facts.calm,
        facts.deliveries_per_pair_min,
        facts.busy,
        facts.in_silence,
        facts.promises.may_lose,
    )


def doubts_about_exercise(loaded: LoadedRun, facts: RunFacts, findings: Findings) -> Iterable[str]:
    """Yield doubts about required tests that did not happen, by workload and fault schedule."""
    if loaded.run.manifest.get("loadgen_saturated"):
        yield doubt("saturated")
    path = loaded.run.folder / "spec" / "faults.toml"
    required = read_toml(path).get("exercised", {}) if path.is_file() else {}
    absorbed = sum(row.get("absorbed_msgs") or 0 for row in loaded.run.fault_rows)
    # Simulated brokers do not count absorbed publications.
    if absorbed < required.get("absorbed_msgs_min", 0) and not loaded.run.is_simulated:
        yield doubt("absorbed_little", n=absorbed, minimum=required["absorbed_msgs_min"])
    brokers = {s.sub_id: s.broker for s in facts.subscriptions}
    reached = {brokers[sub_id] for sub_id, (at_risk, _) in findings.at_risk_of.items() if at_risk}
    if spared := [b for b in required.get("subscribers_on_path", ()) if b not in reached]:
        yield doubt("spared", brokers=", ".join(spared))


def _document(
    loaded: LoadedRun,
    facts: RunFacts,
    findings: Findings,
    canary: Mapping[str, Any] | None,
    judgement: Judgement | None,
) -> dict[str, Any]:
    doubts = [*doubts_about_exercise(loaded, facts, findings)]
    second, alike = _second_opinion(loaded, facts, findings, doubts, judgement)
    if canary is None:
        doubts.append("no subscription received enough to try the checker on")
    verdict, because, doubts = decide_verdict(facts, findings, doubts)
    publishers = {source.pubend: source.name for source in loaded.logs.sources}
    if why := disagreement(second):
        verdict, because, doubts = "UNKNOWN", [why], [why, *doubts]
    return {
        "schema": VERDICT_SCHEMA,
        "run_id": facts.run_id,
        "protocol": loaded.run.protocol,
        "verdict": verdict.lower(),
        "calm": facts.calm,
        **({"brokers": label} if (label := loaded.run.brokers_label) else {}),
        "exit_code": EXIT_STATUS[verdict],
        "guarantee": str(facts.guarantee),
        "because": because,
        "doubts": doubts,
        "lines": [
            with_publisher_names(line, publishers)
            for line in (
                *_lines(verdict, because, facts, findings, loaded.run.brokers_label),
                *_stretches_in_words(_count_by_stretches(loaded)),
                *alike,
            )
        ],
        "counts": _counts_mapping(facts, findings),
        **({"stretches": stretches} if (stretches := _count_by_stretches(loaded)) else {}),
        "exercised": _measure_exercise(loaded, findings),
        "recoveries": [
            _recovery_mapping(recovery, loaded)
            for recovery in findings.recoveries
            if recovery.window.verb != CHURN
        ],
        **({"churn": churn} if (churn := churn_of(findings.recoveries)) else {}),
        "canary": canary,
        "second_opinion": second,
        "not_checked": [*NOT_CHECKED[facts.order]],
        "on_trust": [*ON_TRUST],
    }


def _second_opinion(
    loaded: LoadedRun,
    facts: RunFacts,
    findings: Findings,
    doubts: Sequence[str],
    judgement: Judgement | None,
) -> tuple[Mapping[str, Any] | None, list[str]]:
    """Return the second opinion, or that of a sample of a large run, with a line about it."""
    if judgement is not None or loaded.logs.rows <= MOST_ROWS:
        verdict, _, _ = decide_verdict(facts, findings, doubts)
        return second_opinion(loaded.run.folder, verdict, findings.counts, judgement), []
    sample = StreamSample.of(loaded.run.run_id, findings.pairs)
    if sample is None:
        text = f"  no second opinion: every stream has more than {LARGEST_STREAM:,} rows"
        return None, [text]
    second = judge_sample(loaded.run.folder, sample, findings)
    return second, [] if "differs" in second else [f"  {sample.describe()}"]


def _counts_mapping(facts: RunFacts, findings: Findings) -> dict[str, Any]:
    """Return publications, owed deliveries and violations, by name."""
    counts = findings.counts
    return {
        "published_in_measure": findings.measured,
        "pairs": counts.pairs,
        "owed": counts.owed,
        "delivered": counts.delivered,
        "missing": counts.missing,
        "undecided": counts.undecided,
        "least_owed": _least_owed(counts),
        "withheld": sum(counts.withheld.values()),
        "withheld_by": dict(sorted(counts.withheld.items())),
        "violations": dict(sorted(counts.violations.items())),
        **_count_other_orders(facts, counts),
    }


def _count_by_stretches(loaded: LoadedRun) -> dict[str, int]:
    """Return the number of deliveries without a row of their own; empty if there are none."""
    scans = [file.scan for file in loaded.logs.files("deliveries")]
    folded = sum(scan.in_stretches for scan in scans)
    if not folded:
        return {}
    return {
        "deliveries": sum(file.places for file in loaded.logs.files("deliveries")),
        "in_stretches": folded,
        "longest_ms": max(scan.longest_ms for scan in scans),
    }


def _stretches_in_words(span: Mapping[str, int]) -> Iterable[str]:
    if span:
        yield (
            f"  {span['in_stretches']:,} of {span['deliveries']:,} logged deliveries are recorded "
            f"in stretches: their contents are exact, their times to {span['longest_ms'] / 1000:g} "
            "s; latencies are those of the others"
        )


def _count_other_orders(facts: RunFacts, counts: Counts) -> dict[str, Any]:
    """Return the counts for protocols that promise gaps or redelivery."""
    if facts.promises == PUBLISHER_ORDER:
        return {}
    return {
        "announced": sum(counts.announced.values()),
        "announced_by": dict(sorted(counts.announced.items())),
        "redelivered": counts.redelivered,
    }


def _least_owed(counts: Counts) -> dict[str, Any] | None:
    if counts.least_owed is None:
        return None
    return dict(zip(("subscription", "source", "owed"), counts.least_owed, strict=True))


def _measure_exercise(loaded: LoadedRun, findings: Findings) -> dict[str, int]:
    """Return the extent of each tested condition."""
    rows = loaded.run.fault_rows
    counters = _last_counters(loaded)
    sessions_lost = pa.parquet.read_table(
        table_folder(loaded.run, "links"), columns=["event"]
    ).column("event").to_pylist().count("down")  # fmt: skip
    return {
        "at_risk_deliveries": findings.at_risk,
        "recovered": findings.recovered,
        "withheld": sum(findings.counts.withheld.values()),
        "faults_observed": sum(row.get("t_observed_ns") is not None for row in rows),
        "absorbed_msgs": sum(row.get("absorbed_msgs") or 0 for row in rows),
        "sessions_lost": sessions_lost,
        "resent_publications": counters.get("resent_publications", 0),
        "duplicates_received": counters.get("duplicates_received", 0),
    }


def _last_counters(loaded: LoadedRun) -> dict[str, int]:
    """Return the sums over brokers of their last counters."""
    table = pa.parquet.read_table(
        table_folder(loaded.run, "broker_stats"), columns=["broker", "t_ns", "counters"]
    )
    last: dict[str, dict[str, int]] = {}
    for row in sorted(table.to_pylist(), key=lambda row: row["t_ns"] or 0):
        last[row["broker"]] = dict(row["counters"] or ())
    totals: dict[str, int] = {}
    for counters in last.values():
        for name, value in counters.items():
            totals[name] = totals.get(name, 0) + value
    return totals


def _recovery_mapping(recovery: Recovery, loaded: LoadedRun) -> dict[str, Any]:
    window = recovery.window
    steps = {row["fault_id"]: row.get("step") or row["fault_id"] for row in loaded.run.fault_rows}
    return {
        "faults": [*window.fault_ids],
        "steps": [steps[fault_id] for fault_id in window.fault_ids],
        "verb": window.verb,
        "target": window.target,
        "from_ns": window.from_ns,
        "to_ns": None if window.to_ns >= NEVER_NS else window.to_ns,
        "ended_by": window.ended_by,
        "at_risk": recovery.at_risk,
        "recovered": recovery.recovered,
        "recovered_after_ns": recovery.recovered_after_ns,
    }


def _lines(
    verdict: str, because: Sequence[str], facts: RunFacts, findings: Findings, brokers: str
) -> Iterable[str]:
    word = verdict_in_words(verdict, is_calm=facts.calm, brokers=brokers)
    yield (
        f"{word}  {facts.guarantee} · {findings.measured:,} published in measure · "
        f"{counts_in_words(findings.counts, facts.order)}"
    )
    if verdict == "UNKNOWN":
        yield from (f"  unknown: {reason}" for reason in because)
    is_decided = bool(findings.counts.missing)
    lines = recoveries_in_words(findings.recoveries, is_decided=is_decided)
    yield from ("  " + line for line in lines)
    yield from ("  " + line for line in describe_nothing_owed(findings.pairs))


# --- Tables ---------------------------------------------------------------------------------


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
