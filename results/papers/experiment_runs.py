"""Runs of experiments without real brokers: raw rows to the tables of `results.tables.schema`.

The experiments were computed on a tree, or measured on simulated brokers or on a disk, so the runs
have no logs, phases or clocks: a table is the JSON lines of the same name, with types.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.checker.spark import plan_for
from results.figures.drawing import Drawing, Metric
from results.rules.specification import specification_digest
from results.tables.derived import Tables, find_derived_folder
from results.tables.frames import escape_path, read_table
from results.tables.json_files import (
    JOURNAL,
    IntegrityError,
    ResultsError,
    check_journal,
    read_json,
    read_toml,
)
from results.tables.schema import SCHEMA_VERSION, TABLES
from results.tables.seals import verify_seal

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame, SparkSession

KINDS = ("graph", "simulation", "behaviour", "storage", "consumers")
_JUDGED_TABLES = ("simulated_points", "judged_draws")
_LEAST_ROW_BYTES = 16
"""Lower limit of the bytes of a row, for an upper limit of the number of rows."""


@dataclass(frozen=True)
class ExperimentRun:
    """A completed experiment with loaded tables.

    Attributes:
        derived: the folder of tables and figures.
        experiment: the question and settings, from the experiment's file.
    """

    folder: Path
    derived: Path
    manifest: Mapping[str, Any]
    experiment: Mapping[str, Any]

    @property
    def run_id(self) -> str:
        return str(self.manifest["run_id"])

    def table(self, spark: "SparkSession", name: str) -> "DataFrame":
        """Return a table of the experiment.

        Raises:
            ResultsError: the experiment has another question.
        """
        folder = self.derived / "tables" / name
        if not folder.is_dir():
            question = self.experiment.get("question")
            raise ResultsError(f"{self.folder} has no table {name!r}: it answers {question!r}")
        return read_table(spark, name, folder)


def is_experiment_run(run_dir: Path) -> bool:
    """Return True if the folder contains a run of an experiment without real brokers."""
    manifest = Path(run_dir) / "manifest.json"
    return manifest.is_file() and read_json(manifest).get("kind") in KINDS


def has_verdict(run_dir: Path) -> bool:
    """Return True if an experiment recorded the oracle's judgement of its deliveries."""
    return any(
        path for table in _JUDGED_TABLES for path in Path(run_dir).glob(f"raw/*/*/{table}.jsonl")
    )


@contextmanager
def plan_for_experiment(spark: "SparkSession", run_dir: Path) -> Iterator[None]:
    """Plan queries for the number of rows of an experiment inside the block."""
    size_bytes = sum(path.stat().st_size for path in Path(run_dir).glob("raw/*/*/*.jsonl"))
    with plan_for(spark, size_bytes // _LEAST_ROW_BYTES):
        yield


def load_experiment_run(
    spark: "SparkSession", run_dir: Path, *, force: bool = False
) -> ExperimentRun:
    """Check the rows of a run and write its tables unless present.

    Args:
        force: write the tables even if present.

    Raises:
        ResultsError: there is no such run, or the run is incomplete.
        IntegrityError: a file of the run has changed since the run's end, or two files differ.
    """
    folder = Path(run_dir).resolve()
    if not is_experiment_run(folder):
        raise ResultsError(f"{folder} holds no run of an experiment without real brokers")
    manifest = read_json(folder / "manifest.json")
    if manifest.get("state") != "complete":
        raise ResultsError(
            f"{folder}: the run is {manifest.get('state')}; part of its draws would mislead"
        )
    seal = verify_seal(folder)
    experiment = read_toml(folder / "spec" / "experiment.toml")
    check_experiment_files(folder, manifest, experiment)
    run = ExperimentRun(folder, find_derived_folder(folder, seal), manifest, experiment)
    about = {"schema": SCHEMA_VERSION, "run_id": run.run_id, "run": seal.digest}
    tables = Tables(run.derived / "tables", about)
    if not force and tables.is_ours():
        return run
    tables.clear()
    files: dict[str, list[str]] = {}
    for path in sorted(folder.glob("raw/*/*/*.jsonl")):
        files.setdefault(path.stem, []).append(str(path))
    with plan_for_experiment(spark, folder):
        for name in TABLES:
            if name in files:
                _write_table(spark, run, name, files[name])
    tables.close()
    return run


def load_run_about(spark: "SparkSession", run_dir: Path, question: str) -> ExperimentRun:
    """Return the loaded run of an experiment with a question.

    Raises:
        ResultsError: the experiment has another question.
    """
    run = load_experiment_run(spark, run_dir)
    found = run.experiment.get("question")
    if found != question:
        raise ResultsError(f"{run.folder}: the run is about {found!r}, the figure {question!r}")
    return run


def drawing_of_rows(
    run: ExperimentRun,
    rows: Sequence[Any],
    figure: "Figure",
    caption: str,
    metrics: Mapping[str, Metric],
) -> Drawing:
    """Return a figure of a run whose values are whole rows of a table."""
    return Drawing(
        figure=figure,
        columns=[*rows[0].asDict()],
        rows=[[*row] for row in rows],
        caption=caption,
        scale=dict(run.manifest["scale"]),
        metrics=metrics,
        run_ids=(run.run_id,),
    )


def check_experiment_files(
    folder: Path, manifest: Mapping[str, Any], experiment: Mapping[str, Any]
) -> None:
    """Check that the manifest, the journal, the experiment's file and the rows agree.

    Raises:
        IntegrityError: two files differ; names both, and the key.
    """
    logged = check_journal(folder, manifest)
    for key, stated in (("experiment", "name"), ("figure", "figure"), ("seed", "seed")):
        if manifest.get(key) != experiment.get(stated, manifest.get(key)):
            raise IntegrityError(f"{folder}: manifest.json and spec/experiment.toml: {key}")
    stated_digest = manifest.get("specification_digest")
    if stated_digest not in (None, specification_digest(folder / "spec")):
        raise IntegrityError(f"{folder}: manifest.json and spec/ differ on specification_digest")
    digests = logged.get("digests") or {}
    for path in sorted(folder.glob("raw/*/*/*.jsonl")):
        name = path.stem
        with path.open("rb") as stream:
            found: tuple[Any, ...] = (hashlib.file_digest(stream, "sha256").hexdigest(),)
            stream.seek(0)
            found = *found, sum(1 for _ in stream)
        wanted = digests.get(name, found[0]), logged.get(name, found[1])
        if logged and found != wanted:
            raise IntegrityError(f"{folder}: {path.name} and {JOURNAL} differ on its rows")


def _write_table(spark: "SparkSession", run: ExperimentRun, name: str, files: list[str]) -> None:
    from pyspark.sql import functions as F

    paths = [escape_path(path) for path in files]
    rows = spark.read.schema(TABLES[name].ddl).option("mode", "FAILFAST").json(paths)
    rows.withColumn("run_id", F.lit(run.run_id)).select(*TABLES[name].names).coalesce(
        1
    ).write.parquet(str(run.derived / "tables" / name))
