"""From a run to its verdict: counts and doubts become VALID, INVALID or UNKNOWN, with evidence.

After `check_run` a run's folder has `verdict.json`, `evidence/delivery.jsonl` with the earliest
cases of each kind of violation, and the tables `coverage`, `violations` and `verdicts`.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet

from results.canary import try_checker
from results.delivery import DeliveryCheck
from results.evidence import evidence_rows
from results.facts import RunFacts
from results.faults import fault_spans
from results.findings import Findings
from results.load import LoadedRun, load_run, table_folder
from results.manifest import read_toml, seal, write_json, write_json_lines
from results.risks import NEVER_NS
from results.schema import TABLES
from results.small_tables import arrow_table
from results.spark import planned_for
from results.verdicts import EXIT_STATUS, Recovery, decide, doubts_about_faults
from results.withheld import in_words

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERDICT_SCHEMA = "pubsubctl/verdict/1"
CHECK = "delivery"
EVIDENCE_PER_KIND = 8
SECOND_NS = 1_000_000_000
MOST_IDLE_NAMED = 3


@dataclass(frozen=True)
class Verdict:
    """What a run came to.

    Attributes:
        folder: of the run.
        document: what verdict.json says.
    """

    folder: Path
    document: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """VALID, INVALID or UNKNOWN."""
        return str(self.document["verdict"]).upper()

    @property
    def exit_status(self) -> int:
        return int(self.document["exit_code"])

    def lines(self) -> list[str]:
        """The verdict in a few lines for people."""
        return [*self.document["lines"]]


def check_run(
    spark: "SparkSession", run_dir: Path, *, max_evidence: int = EVIDENCE_PER_KIND
) -> Verdict:
    """Judge one run; see `check_runs`."""
    return check_runs(spark, [run_dir], max_evidence=max_evidence)[0]


def check_runs(
    spark: "SparkSession", run_dirs: Sequence[Path], *, max_evidence: int = EVIDENCE_PER_KIND
) -> list[Verdict]:
    """Judge runs, all in the same Spark jobs; loads tables first where they are missing.

    Raises:
        ResultsError: there is no run in a folder.
        IntegrityError: a file of a run is not what was written when it ended.
        CheckerBroken: the checker did not see what was spoiled on purpose.
    """
    runs = {run.run.run_id: run for run in (load_run(spark, folder) for folder in run_dirs)}
    facts = {run_id: RunFacts.of_run(loaded) for run_id, loaded in runs.items()}
    publications = _all(spark, runs, "publications")
    deliveries = _all(spark, runs, "deliveries")
    rows = sum(loaded.logs.rows for loaded in runs.values())
    with planned_for(spark, rows) as small:
        check = DeliveryCheck(spark, facts, publications, deliveries, small=small)
        both = {run_id: (facts[run_id], check.findings[run_id]) for run_id in runs}
        canaries = try_checker(spark, both, publications, deliveries)
        verdicts = []
        for run_id, loaded in runs.items():
            findings = check.findings[run_id]
            evidence = evidence_rows(spark, loaded, facts[run_id], check, max_evidence)
            _write_violations(loaded, check)
            document = _document(loaded, facts[run_id], findings, canaries.get(run_id))
            _write_tables(loaded, findings, document)
            _write_documents(loaded.run.folder, document, evidence)
            verdicts.append(Verdict(loaded.run.folder, document))
        check.close()
    return verdicts


def _all(spark: "SparkSession", runs: Mapping[str, LoadedRun], name: str) -> "DataFrame":
    tables = [loaded.table(spark, name) for loaded in runs.values()]
    return reduce(lambda left, right: left.unionByName(right), tables)


def _write_documents(
    folder: Path, document: Mapping[str, Any], evidence: Sequence[Mapping[str, Any]]
) -> None:
    shutil.rmtree(folder / "evidence", ignore_errors=True)
    write_json_lines(folder / "evidence" / f"{CHECK}.jsonl", evidence)
    write_json(folder / "verdict.json", document)
    seal(folder)


def all_doubts(loaded: LoadedRun, facts: RunFacts, findings: Findings) -> list[str]:
    """Everything that leaves a verdict open, but for what follows from the counts."""
    doubts = [*facts.doubts, *doubts_about_faults(facts.faults)]
    for pubend, source in findings.sources.items():
        if source.opening is None:
            doubts.append(f"source {pubend} has no opening and closing fence")
        if source.other_content:
            doubts.append(f"source {pubend} published other content than the seed says")
    doubts += _doubts_about_load(loaded)
    doubts += _doubts_about_exercise(loaded, facts, findings)
    return doubts


def _doubts_about_load(loaded: LoadedRun) -> Iterable[str]:
    if loaded.run.manifest.get("loadgen_saturated"):
        yield "the load generators could not hold their rate"


def _doubts_about_exercise(loaded: LoadedRun, facts: RunFacts, findings: Findings) -> Iterable[str]:
    """What the fault schedule asked to be put to the test, and was not."""
    path = loaded.run.folder / "spec" / "faults.toml"
    asked = read_toml(path).get("exercised", {}) if path.is_file() else {}
    absorbed = sum(row.get("absorbed_msgs") or 0 for row in loaded.run.fault_rows)
    if absorbed < asked.get("absorbed_msgs_min", 0):
        yield (
            f"only {absorbed} publications were absorbed; "
            f"the schedule asks for {asked['absorbed_msgs_min']}"
        )
    brokers = {s.sub_id: s.broker for s in facts.subscriptions}
    reached = {brokers[sub_id] for sub_id, (at_risk, _) in findings.at_risk_of.items() if at_risk}
    if spared := [b for b in asked.get("subscribers_on_path", ()) if b not in reached]:
        yield f"nothing was at risk for the subscribers at {', '.join(spared)}"


def _document(
    loaded: LoadedRun, facts: RunFacts, findings: Findings, canary: Mapping[str, Any] | None
) -> dict[str, Any]:
    doubts = all_doubts(loaded, facts, findings)
    if canary is None:
        doubts.append("no subscription received enough to try the checker on")
    counts = findings.counts
    verdict, because, doubts = decide(
        counts, doubts, facts.guarantee, facts.calm, facts.deliveries_per_pair_min
    )
    return {
        "schema": VERDICT_SCHEMA,
        "run_id": facts.run_id,
        "protocol": loaded.run.protocol,
        "verdict": verdict.lower(),
        "calm": facts.calm,
        "exit_code": EXIT_STATUS[verdict],
        "guarantee": str(facts.guarantee),
        "because": because,
        "doubts": doubts,
        "lines": [*_lines(verdict, because, loaded, facts, findings)],
        "counts": {
            "published_in_measure": findings.measured,
            "pairs": counts.pairs,
            "owed": counts.owed,
            "delivered": counts.delivered,
            "withheld": sum(counts.withheld.values()),
            "withheld_by": dict(sorted(counts.withheld.items())),
            "violations": dict(sorted(counts.violations.items())),
        },
        "exercised": _exercised(loaded, findings),
        "recoveries": [_recovery_mapping(r, loaded) for r in findings.recoveries],
        "canary": canary,
        "not_checked": ["order across sources"],
    }


def _exercised(loaded: LoadedRun, findings: Findings) -> dict[str, int]:
    """What was put to the test, and how much of it."""
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
    """Sums over brokers of what they counted last."""
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


# --- In words -------------------------------------------------------------------------------


def _lines(
    verdict: str, because: Sequence[str], loaded: LoadedRun, facts: RunFacts, findings: Findings
) -> Iterable[str]:
    counts = findings.counts
    word = f"{verdict} (calm)" if facts.calm and verdict == "VALID" else verdict
    relation = "=" if counts.owed == counts.delivered else "≠"
    wrong = ", ".join(f"{n:,} {kind}" for kind, n in sorted(counts.violations.items()))
    withheld = in_words(counts.withheld)
    yield (
        f"{word}  {facts.guarantee} · {findings.measured:,} published in measure · "
        f"{counts.owed:,} owed {relation} {counts.delivered:,} delivered · "
        + (f"{withheld} · " if withheld else "")
        + (wrong or "nothing missing, repeated or out of order")
    )
    if verdict == "UNKNOWN":
        yield from (f"  unknown: {reason}" for reason in because)
    yield from ("  " + line for line in recoveries_in_words(findings.recoveries))


def recoveries_in_words(recoveries: Sequence[Recovery]) -> list[str]:
    """A line for each, but one for all of a verb that put nothing at risk where these are many."""
    idle: dict[str, int] = {}
    for recovery in recoveries:
        if not recovery.at_risk:
            idle[recovery.window.verb] = idle.get(recovery.window.verb, 0) + 1
    summed = {verb: number for verb, number in idle.items() if number > MOST_IDLE_NAMED}
    found = [
        recovery_in_words(recovery)
        for recovery in recoveries
        if recovery.at_risk or recovery.window.verb not in summed
    ]
    more = " more" if found else ""
    found += [f"{verb} of {n}{more}: nothing was at risk" for verb, n in summed.items()]
    return found


def recovery_in_words(recovery: Recovery) -> str:
    """What a fault put at risk and what became of it."""
    window = recovery.window
    ending = {"kill": "the kill", "cut": "the cut", "release": "its end"}.get(window.ended_by, "")
    what = f"{window.verb} {window.target}"
    if ending:
        what += f" for {(window.to_ns - window.from_ns) / SECOND_NS:.2f} s"
        what += f", then {window.ended_by}" if window.ended_by != "release" else ""
    if not recovery.at_risk:
        return f"{what}: nothing was at risk"
    text = f"{what}: {recovery.at_risk:,} deliveries at risk, {recovery.recovered:,} recovered"
    if recovery.recovered < recovery.at_risk:
        return f"{text}, {recovery.at_risk - recovery.recovered:,} lost"
    if recovery.recovered_after_ns is None:
        return text
    after_s = recovery.recovered_after_ns / SECOND_NS
    return f"{text}, the last {abs(after_s):.2f} s {'after' if after_s >= 0 else 'before'} {ending}"


# --- Tables ---------------------------------------------------------------------------------


def _write_violations(loaded: LoadedRun, check: DeliveryCheck) -> None:
    """All violations, however many; those of a clean run are an empty table."""
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
