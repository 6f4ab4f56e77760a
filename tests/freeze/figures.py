"""Figures of the sample runs, which are drawn again to the byte."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from results.figures.catalogue import draw

SAMPLES = Path(__file__).parents[2] / "results/samples"
RUN = SAMPLES / "delta-tree-crash"
RUN_FIGURES = ("rate", "run.memory", "run.topology", "spectrum", "timeline")


def figure_digests(spark: SparkSession) -> Iterator[tuple[str, str]]:
    """Yield a name and 16 hex digits for every figure of the samples."""
    for figure in RUN_FIGURES:
        yield f"figure sample {figure}", _digest_of(spark, RUN, figure)
    for path in sorted(SAMPLES.glob("experiments/*/*/manifest.json")):
        figure = json.loads(path.read_text("utf-8"))["figure"]
        yield f"figure {path.parents[1].name} {figure}", _digest_of(spark, path.parent, figure)


def _digest_of(spark: SparkSession, run: Path, figure: str) -> str:
    digest = hashlib.blake2b(digest_size=8)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(run, Path(folder) / run.name))
        for path in sorted(draw(figure, spark, copy)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
