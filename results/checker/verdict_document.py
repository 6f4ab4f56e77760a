"""The document of a verdict: reasons, doubts, counts, tested conditions and recoveries.

`check_run` writes it to `verdict.json` in the folder of a run.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from results.checker.second_opinion import (
    LARGEST_STREAM,
    MOST_ROWS,
    StreamSample,
    disagreement,
    judge_sample,
    second_opinion,
)
from results.reference.history import Judgement
from results.rules.doubts import doubts_of
from results.rules.facts import RunFacts
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
from results.tables.json_files import read_toml
from results.tables.load import LoadedRun, table_folder

VERDICT_SCHEMA = "pubsubctl/verdict/1"


def decide_verdict(
    facts: RunFacts, findings: Findings, doubts: Iterable[str] = ()
) -> tuple[VerdictName, list[str], list[str]]:
    """Return verdict, reasons and all doubts.

    Args:
        doubts: doubts of the caller, in addition to those of facts and findings.
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


def document_of(
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
