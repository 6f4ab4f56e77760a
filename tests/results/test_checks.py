"""Tests of the check on Spark: whole runs receive verdicts that agree with the plain checker."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import results.checker.canary
from pubsubctl.runs.verdicts import JudgedRun
from results.checker.canary import CheckerBroken, try_checker
from results.checker.checks import Verdict, check_run, check_runs
from results.checker.delivery import DeliveryCheck
from results.checker.spark import plan_for
from results.reference.history import History
from results.reference.history_reader import read_history
from results.reference.rule import check
from results.rules.evidence import PUBLICATION
from results.rules.facts import RunFacts
from results.rules.findings import Findings, PairSummary
from results.rules.terms import DOUBTS
from results.tables.json_files import IntegrityError
from results.tables.load import load_run
from results.tables.seals import seal, verify_seal
from tests.helpers.histories import LEGAL, MUTATIONS, random_history
from tests.helpers.history_tables import judge_on_spark
from tests.helpers.judged_folders import histories_of, on_spark
from tests.helpers.runs import Scenario, write_demo_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SCENARIO = Scenario(measure_s=6.0, stall_s=1.0, kill_s=1.8, restart_s=3.5, bars=10)
READ_ONLY = "read-only"


# --- Many histories at once -------------------------------------------------------------------


def histories(count: int) -> dict[str, History]:
    """Return random histories by name; half of them are spoiled, with every mutation in turn."""
    found = {}
    ways = [*LEGAL.items(), *MUTATIONS.items()]
    for seed in range(count):
        rng = random.Random(seed)
        history = random_history(rng, f"run-{seed}")
        name, change = ways[seed // 2 % len(ways)]
        spoiled = change(history, rng) if seed % 2 else None
        found[f"seed {seed}, {name}" if spoiled else f"seed {seed}"] = spoiled or history
    return found


def test_the_plain_checker_and_spark_agree_on_many_histories(spark: "SparkSession") -> None:
    of = histories(400)
    found = judge_on_spark(spark, of)
    invalid = at_risk = 0
    for name, history in of.items():
        plain = check(history)
        verdict, doubts, findings = found[name]
        assert findings.counts == plain.counts, name
        assert tuple(findings.recoveries) == plain.recoveries, name
        assert (verdict, doubts) == (plain.verdict, {*plain.doubts}), name
        invalid += plain.verdict == "INVALID"
        at_risk += plain.counts.at_risk > 0
    assert 120 < invalid < 200
    assert at_risk > 120


def test_long_logs_are_walked_in_stretches(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """With four places per stretch, most violations lie across two stretches.

    Spark's workers try the predicates, as they do with many.
    """
    monkeypatch.setattr("results.checker.delivery.STRETCH_BITS", 2)
    monkeypatch.setattr("results.rules.lookups.MOST_TRIED", 0)
    of = histories(150)
    found = judge_on_spark(spark, of)
    for name, history in of.items():
        _, _, findings = found[name]
        assert findings.counts == check(history).counts, name


# --- Whole runs -------------------------------------------------------------------------------


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def interrupted(run: Path) -> None:
    change_json(run / "manifest.json", state="partial", reasons=["interrupted"])


def saturated(run: Path) -> None:
    change_json(run / "manifest.json", loadgen_saturated=True)


def unobserved(run: Path) -> None:
    path = run / "faults" / "faults.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["t_observed_ns"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def faultless(run: Path) -> None:
    shutil.rmtree(run / "faults")


def asks_for_more(run: Path) -> None:
    asked = '[exercised]\nabsorbed_msgs_min = 500\nsubscribers_on_path = ["s1", "s4"]\n'
    (run / "spec" / "faults.toml").write_text(asked)


def calm(run: Path) -> None:
    shutil.rmtree(run / "faults")
    path = run / "spec" / "workload.toml"
    path.write_text(path.read_text().replace("calm = false", "calm = true"))


def torn(run: Path) -> None:
    change_json(run / "raw/local3/load-local3/deliveries.rec.json", closed=False)


VARIANTS: dict[str, Callable[[Path], None]] = {"interrupted": interrupted, "calm": calm}
DOUBTFUL: dict[str, Callable[[Path], None]] = {
    change.__name__: change for change in (saturated, unobserved, faultless, asks_for_more, torn)
}


@pytest.fixture(scope="module")
def verdicts(
    spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Verdict]]:
    """Yield the verdicts of runs for all kinds of findings, judged together."""
    folder = tmp_path_factory.mktemp("runs")
    lossy = Scenario(**{**SCENARIO.__dict__, "run_id": "b-1", "protocol": "best_effort"})
    runs = {
        "delta_tree": write_demo_run(folder, SCENARIO),
        "best_effort": write_demo_run(folder, lossy),
        READ_ONLY: write_demo_run(folder, Scenario(**{**lossy.__dict__, "run_id": READ_ONLY})),
        **changed_runs(folder, VARIANTS),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(
            "results.tables.derived.is_writable", lambda path: path != runs[READ_ONLY].resolve()
        )
        judged = check_runs(spark, [*runs.values()])
        # Further tests trust the tables by the same key, which is in the cache.
        yield dict(zip(runs, judged, strict=True))


def changed_runs(folder: Path, changes: dict[str, Callable[[Path], None]]) -> dict[str, Path]:
    runs = {}
    for name, change in changes.items():
        scenario = Scenario(**{**SCENARIO.__dict__, "run_id": f"v-{name}"})
        runs[name] = write_demo_run(folder, scenario)
        change(runs[name])
        seal(runs[name])
    return runs


def test_a_run_that_kept_its_promise_is_valid(verdicts: dict[str, Verdict]) -> None:
    verdict = verdicts["delta_tree"]
    assert (verdict.verdict, verdict.exit_status) == ("VALID", 0)
    headline, recovery = verdict.lines()
    assert headline.startswith(
        "VALID (made up)  exactly-once, publisher order · 600 published in measure · "
    )
    assert headline.endswith("nothing missing, repeated or out of order")
    assert recovery.startswith("  absorb b1 for 0.80 s, then kill: ")
    assert recovery.endswith(" recovered, the last 0.33 s after the kill")
    document = json.loads((verdict.folder / "verdict.json").read_text())
    assert document == verdict.document
    assert document["schema"] == "pubsubctl/verdict/1"
    assert document["verdict"] == "valid"
    assert document["exercised"]["at_risk_deliveries"] == document["exercised"]["recovered"] > 50
    assert document["canary"]["seen"] == [
        "one dropped", "one repeated", "two swapped", "one altered", "end cut off",
    ]  # fmt: skip
    assert (verdict.folder / "evidence" / "delivery.jsonl").read_text() == ""


def test_a_run_that_lost_something_is_invalid(
    spark: "SparkSession", verdicts: dict[str, Verdict]
) -> None:
    verdict = verdicts["best_effort"]
    assert (verdict.verdict, verdict.exit_status) == ("INVALID", 1)
    (recovery,) = verdict.document["recoveries"]
    assert (recovery["steps"], recovery["ended_by"]) == (["stall-b1", "kill-b1"], "kill")
    assert recovery["recovered"] == 0 < recovery["at_risk"]
    lost = verdict.document["counts"]["violations"]["missing"]
    evidence = [
        json.loads(line)
        for line in (verdict.folder / "evidence" / "delivery.jsonl").read_text().splitlines()
    ]
    assert len(evidence) == 8 < lost
    first = evidence[0]
    assert (first["kind"], first["path"][1], first["active_faults"]) == (
        "missing",
        "b1",
        ["absorb b1"],
    )
    assert first["publication"]["outcome"] == "acked"
    assert first["received_here"] == []
    assert first["received_before"] < first["sequence"] < first["received_after"]
    assert set(first["received_by_others"]) <= {"s3-sub-1/1", "s4-sub-1/1", "s5-sub-1/1"}
    folder = str(verdict.folder / "tables" / "violations")
    rows = spark.read.parquet(folder).toArrow().to_pylist()
    assert len({tuple(row[name] for name in (*PUBLICATION, "sub_id")) for row in rows}) == lost
    assert {tuple(row["active_faults"]) for row in rows} >= {("stall-b1",), ("kill-b1",)}


@pytest.mark.parametrize("name", ["delta_tree", "best_effort"])
def test_the_plain_checker_agrees_with_spark_on_the_same_files(
    verdicts: dict[str, Verdict], name: str
) -> None:
    document = verdicts[name].document
    plain = check(read_history(verdicts[name].folder))
    assert plain.verdict == verdicts[name].verdict
    counts = document["counts"]
    assert (plain.counts.pairs, plain.counts.owed) == (counts["pairs"], counts["owed"])
    assert plain.counts.delivered == counts["delivered"]
    assert plain.counts.violations == counts["violations"]
    assert plain.counts.at_risk == document["exercised"]["at_risk_deliveries"]
    assert [r.recovered_after_ns for r in plain.recoveries] == [
        r["recovered_after_ns"] for r in document["recoveries"]
    ]


def test_an_undecidable_run_is_unknown_with_its_reasons(verdicts: dict[str, Verdict]) -> None:
    verdict = verdicts["interrupted"]
    assert (verdict.verdict, verdict.exit_status) == ("UNKNOWN", 3)
    assert verdict.document["because"] == ["the run is partial: interrupted"]


def test_each_reason_for_a_doubt_is_given(spark: "SparkSession", tmp_path: Path) -> None:
    runs = changed_runs(tmp_path, DOUBTFUL)
    judged = on_spark(spark, runs, histories_of(runs))
    assert {name: (each.outcome, *each.said) for name, each in judged.items()} == {
        "saturated": ("doubt", DOUBTS["saturated"]),
        "unobserved": ("doubt", "fault kill-b1 (kill b1) was not observed"),
        "faultless": (
            "doubt", "nothing was at risk: no publication was sent through a fault",
        ),
        "asks_for_more": (
            "doubt", "nothing was at risk for the subscribers at s4",
            "only 112 publications were absorbed; the schedule requires 500",
        ),
        "torn": ("doubt", "local3/load-local3/deliveries.rec was not closed"),
    }  # fmt: skip


def test_a_calm_run_needs_nothing_at_risk(verdicts: dict[str, Verdict]) -> None:
    assert verdicts["calm"].lines()[0].startswith("VALID (calm, made up)  exactly-once")


def test_a_second_check_writes_the_same_bytes(
    spark: "SparkSession", verdicts: dict[str, Verdict]
) -> None:
    folder = verdicts["best_effort"].folder
    names = ("verdict.json", "evidence/delivery.jsonl", "SHA256SUMS")
    before = {name: (folder / name).read_bytes() for name in names}
    verify_seal(folder)
    check_run(spark, folder)
    assert {name: (folder / name).read_bytes() for name in names} == before


def test_a_changed_run_is_not_judged(
    spark: "SparkSession", verdicts: dict[str, Verdict], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(verdicts["delta_tree"].folder, tmp_path / "run"))
    path = run / "faults" / "faults.jsonl"
    path.write_text(path.read_text().replace('"absorbed_msgs": 112', '"absorbed_msgs": 999'))
    with pytest.raises(IntegrityError, match=r"faults\.jsonl has changed"):
        check_run(spark, run)


def cut_a_table(tables: Path) -> None:
    (part,) = (tables / "deliveries" / "broker=s3").glob("*.parquet")
    part.write_bytes(part.read_bytes()[:4_000])


def remove_a_table(tables: Path) -> None:
    shutil.rmtree(tables / "publications")


def remove_a_part(tables: Path) -> None:
    shutil.rmtree(tables / "deliveries" / "broker=s3")


def test_damaged_tables_are_rebuilt(
    spark: "SparkSession",
    verdicts: dict[str, Verdict],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("publications", "deliveries")

    def counted(folder: Path) -> list[int]:
        loaded = load_run(spark, folder)
        return [loaded.table(spark, name).count() for name in names]

    folder = verdicts["delta_tree"].folder
    before = counted(folder)
    rebuilt: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr("results.tables.load._write_bulk_tables", lambda *_: rebuilt.append(1))
        for number, damage in enumerate((None, cut_a_table, remove_a_table)):
            copy = Path(shutil.copytree(folder, tmp_path / str(number)))
            if damage is not None:
                damage(copy / "tables")
            load_run(spark, copy)
            assert len(rebuilt) == (damage is not None), damage
            rebuilt.clear()
    remove_a_part(folder / "tables")
    assert counted(folder) == before


def test_a_run_in_a_read_only_folder_is_judged(verdicts: dict[str, Verdict]) -> None:
    """Tests may run as root, and root may write in any folder."""
    verdict, writable = verdicts[READ_ONLY], verdicts["best_effort"]
    assert verdict.lines() == writable.lines()
    assert verdict.document["counts"] == writable.document["counts"]
    verify_seal(verdict.folder)
    assert not {"verdict.json", "evidence", "tables"} & {*os.listdir(verdict.folder)}
    assert verdict.derived.is_relative_to(verdict.folder.parents[1] / "cache")
    judged = JudgedRun(verdict.folder, verdict.derived, verdict.document)
    assert judged.evidence(1)[-1] == f"  more in {verdict.derived}/evidence/delivery.jsonl"


# --- Who checks the checker -------------------------------------------------------------------


def test_the_check_detects_a_blinded_comparison(
    spark: "SparkSession", verdicts: dict[str, Verdict], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Blind(DeliveryCheck):
        def _compare(self, pairs: Any, counted: Any) -> list[Any]:
            super()._compare(pairs, counted)
            return []

    loaded = load_run(spark, verdicts["delta_tree"].folder)
    facts = RunFacts.from_run(loaded)
    tables = loaded.table(spark, "publications"), loaded.table(spark, "deliveries")
    findings = Findings(
        pairs=[PairSummary("s1-sub-1/1", "p1/2", 1, 177, 177, 0, 0, 175, 175, 0, 0, 0, 0)]
    )
    runs = {facts.run_id: (facts, findings)}
    with plan_for(spark, 0):
        tried = try_checker(spark, runs, *tables)
        assert tried[facts.run_id]["subscription"] == "s1-sub-1/1"
        monkeypatch.setattr(results.checker.canary, "DeliveryCheck", Blind)
        with pytest.raises(CheckerBroken, match="one dropped") as caught:
            try_checker(spark, runs, *tables)
    assert caught.value.exit_status == 70


def test_unacknowledged_publications_are_no_canary_for_the_check(
    spark: "SparkSession", verdicts: dict[str, Verdict]
) -> None:
    """The run ended before its publishers received acknowledgements: a dropped delivery proves
    nothing.
    """
    from pyspark.sql import functions as F

    loaded = load_run(spark, verdicts["delta_tree"].folder)
    facts = RunFacts.from_run(loaded)
    late = F.when(F.col("seq") % 3 > 0, F.lit("unknown")).otherwise(F.col("outcome"))
    tables = [
        loaded.table(spark, name).withColumn("outcome", late)
        for name in ("publications", "deliveries")
    ]
    pair = PairSummary("s1-sub-1/1", "p1/2", 1, 177, 177, 0, 0, 175, 175, 0, 0, 0, 0)
    runs = {facts.run_id: (facts, Findings(pairs=[pair]))}
    with plan_for(spark, 0):
        tried = try_checker(spark, runs, *tables)[facts.run_id]
    assert 4 < tried["deliveries"] < 20
    assert "one dropped" in tried["seen"]


def test_a_pair_with_too_short_a_piece_leaves_the_check_others(
    spark: "SparkSession", verdicts: dict[str, Verdict]
) -> None:
    """A pair of six publications, of which two were fences, had once been picked."""
    loaded = load_run(spark, verdicts["delta_tree"].folder)
    facts = RunFacts.from_run(loaded)
    tables = loaded.table(spark, "publications"), loaded.table(spark, "deliveries")
    short = PairSummary("s1-sub-1/1", "p1/2", 1, 4, 6, 0, 0, 4, 4, 0, 0, 0, 0)
    long = PairSummary("s1-sub-1/1", "p1/2", 1, 177, 177, 0, 0, 175, 175, 0, 0, 0, 0)
    with plan_for(spark, 0):
        for pairs in ([short, long], [long, short]):
            runs = {facts.run_id: (facts, Findings(pairs=pairs))}
            assert try_checker(spark, runs, *tables)[facts.run_id]["deliveries"] > 4
        runs = {facts.run_id: (facts, Findings(pairs=[short]))}
        assert try_checker(spark, runs, *tables) == {}


@pytest.mark.parametrize(
    "module",
    [
        "checker/delivery",
        "checker/checks",
        "checker/verdict_document",
        "checker/canary",
        "rules/exposure",
        "rules/lookups",
        "rules/evidence",
    ],
)
def test_nothing_in_the_check_may_lose_rows_quietly(module: str) -> None:
    text = (Path(results.__path__[0]) / f"{module}.py").read_text(encoding="utf-8")
    for forbidden in (
        "dropDuplicates", "drop_duplicates", ".distinct(", "NOT IN", "PERMISSIVE", "DROPMALFORMED",
        "monotonically_increasing_id", ".limit(", "crossJoin", ".collect()", "brokerd",
    ):  # fmt: skip
        assert forbidden not in text
