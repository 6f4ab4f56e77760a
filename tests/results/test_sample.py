"""The run that comes with the repository: whole, small, and judged again as it was judged."""

import hashlib
import shutil
from pathlib import Path

from pyspark.sql import SparkSession

from results.checks import check_run
from results.figures import draw

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


def test_the_sample_is_judged_and_drawn_again_to_the_byte(
    spark: SparkSession, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(SAMPLE, tmp_path / "run"))
    document = check_run(spark, run).document
    assert document["verdict"] == "valid"
    assert document["exercised"]["at_risk_deliveries"] == 365
    assert (run / "verdict.json").read_bytes() == (SAMPLE / "verdict.json").read_bytes()
    first, second = [[path.read_bytes() for path in draw("timeline", spark, run)] for _ in range(2)]
    assert first == second
