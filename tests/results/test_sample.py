"""Tests of the sample run in the repository: complete, small, and judged as before."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from results.checker.checks import check_run
from results.figures.catalogue import draw
from results.reference.history_reader import read_history
from results.reference.rule import check
from results.tables.manifest import read_run
from results.tables.seals import verify_seal
from tests.helpers.histories import SECOND
from tests.helpers.runs import ARCHIVES, unpack_sample

SAMPLE = Path(__file__).parents[2] / "results" / "samples" / "delta-tree-crash"
MADE_AGAIN = ("tables", "figures", "report.html")


def own_files() -> list[Path]:
    return [
        path
        for path in sorted(SAMPLE.rglob("*"))
        if path.is_file() and path.relative_to(SAMPLE).parts[0] not in MADE_AGAIN
    ]


def test_the_sample_is_small_and_every_file_is_sealed() -> None:
    files = own_files()
    assert 0 < sum(path.stat().st_size for path in files) <= 2_000_000
    sealed = {}
    for line in (SAMPLE / "SHA256SUMS").read_text().splitlines():
        digest, _, name = line.partition("  ")
        sealed[name] = digest
    for path in files:
        name = path.relative_to(SAMPLE).as_posix()
        if name not in ("SHA256SUMS", "report.html"):
            assert sealed[name] == hashlib.sha256(path.read_bytes()).hexdigest(), name


def test_faults_are_found_at_risk_whatever_the_clocks_of_their_hosts_say(tmp_path: Path) -> None:
    """The hosts of the same run have different boot times; the publishers are on local1."""
    ahead_ns = {"local1": 0, "local2": 7_200 * SECOND, "local3": -3_600 * SECOND}
    plain = read_history(SAMPLE)
    # With a second of doubt at both ends of both windows fewer are surely at risk.
    for err_ns, at_risk in ((0, 937), (SECOND, 424)):
        run = Path(shutil.copytree(SAMPLE, tmp_path / f"{err_ns}"))
        stamp_by_host(run, ahead_ns, err_ns)
        found = read_run(run).faults
        assert [replace(f, err_ns=0) for f in found] == plain.faults
        judgement = check(replace(plain, faults=found))
        assert judgement.verdict == "VALID"
        assert judgement.counts.at_risk == judgement.counts.recovered == at_risk


def stamp_by_host(run: Path, ahead_ns: dict[str, int], err_ns: int) -> None:
    """Rewrite the fault log with the stamps of the clocks of the hosts."""
    (run / "SHA256SUMS").unlink()
    placement = json.loads((run / "spec" / "placement.json").read_text())["brokers"]
    host_of = {row["broker"]: row["host"] for row in placement}
    path = run / "faults" / "faults.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        hosts = [host_of[broker] for broker in row["target"].split("-")]
        row["host_stamps"] = {
            stage: {host: row[f"t_{stage}_ns"] + ahead_ns[host] for host in hosts}
            for stage in ("applied", "observed", "healed")
            if row[f"t_{stage}_ns"] is not None
        }
        for stage in row["host_stamps"]:
            row[f"t_{stage}_ns"] += 12 * SECOND  # known by then as badly as that
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    at_ns = json.loads((run / "manifest.json").read_text())["origin_ns"]
    lines = [
        {"phase": when, "host_id": host, "ref_host": "local1", "same_clock": host == "local1",
         "clock_id": host, "t_ns": at_ns, "offset_ns": offset_ns, "drift_ppb": 0.0,
         "rtt_min_ns": 2 * err_ns, "err_ns": 0 if host == "local1" else err_ns, "n": 30}
        for when in ("before", "after")
        for host, offset_ns in ahead_ns.items()
    ]  # fmt: skip
    (run / "clock.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_sample_is_judged_and_drawn_again_to_the_byte(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(SAMPLE, tmp_path / "run"))
    document = check_run(spark, run).document
    assert document["verdict"] == "valid"
    assert document["exercised"]["at_risk_deliveries"] == 937
    assert (run / "verdict.json").read_bytes() == (SAMPLE / "verdict.json").read_bytes()
    first, second = [[path.read_bytes() for path in draw("timeline", spark, run)] for _ in range(2)]
    assert first == second


# --- Archived experiments -------------------------------------------------------------------

EXPERIMENTS = sorted(path.name.partition(".")[0] for path in ARCHIVES.glob("dft11-*.tar.xz"))


def test_archived_experiments_are_sealed_and_hold_what_claims_are_judged_by(
    tmp_path: Path,
) -> None:
    assert {"dft11-bypass", "dft11-fig9", "dft11-queue"} <= {*EXPERIMENTS}
    for name in EXPERIMENTS:
        run = unpack_sample(name, tmp_path)
        manifest = json.loads((run / "manifest.json").read_text())
        assert verify_seal(run).is_there
        assert (manifest["state"], manifest["git_dirty"]) == ("complete", False)
        words = json.loads((run / "figures" / f"{manifest['figure']}.json").read_text())
        assert (words["run_ids"], words["scale"]) == ([run.name], manifest["scale"])
        found = [file.name for file in (run / "figures").iterdir()]
        assert f"{words['figure']}.json" in found
        assert all(name.startswith(words["figure"]) for name in found)


@pytest.mark.parametrize("figure", ["dft11.queue", "dft11.bypass"])
def test_archived_figures_follow_from_the_archived_records(
    figure: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Only figures that are drawn quickly are drawn; the others take the same code."""
    run = unpack_sample(figure.replace(".", "-"), tmp_path)
    numbers = run / "figures" / f"{figure}.json"
    archived = json.loads(numbers.read_text())
    draw(figure, spark, run)
    caption = json.loads(numbers.read_text())["caption"]
    assert json.loads(numbers.read_text()) == {**archived, "caption": caption}
