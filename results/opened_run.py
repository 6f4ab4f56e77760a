"""Runs from Python: verdict, numbers, deliveries as a data frame, and figures.

    from results import open_run

    run = open_run("latest")
    run.verdict                      # "VALID"
    run.deliveries()                 # a pandas DataFrame; needs no Spark
    run.deliveries(spark)            # a Spark DataFrame, for any number of deliveries
    run.figures()                    # {"timeline": Path(".../figures/timeline.svg"), ...}

Columns are those of [SCHEMA.md](SCHEMA.md), in both forms.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from brokerd.text import parse_toml
from results.tables.derived import find_unsealed_derived
from results.tables.json_files import IntegrityError, ResultsError, read_json
from results.tables.load import load_run
from results.tables.logs import Logs, read_logs
from results.tables.manifest import read_run
from results.tables.names import KINDS, LAYERS, Clock, Names
from results.tables.record_files import RECORD_BYTES, RECORDS
from results.tables.record_readers import (
    BATCH_ROWS,
    DeliveryReader,
    PublicationReader,
    RecordReader,
    StretchReader,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS: Final = Path("results", "runs")
MOST_ROWS: Final = 20_000_000
"""Limit of rows of a data frame in memory; Spark has no limit."""
_KEY: Final = ["source", "incarnation", "seq"]


def open_run(name: str | Path, runs: str | Path | None = None) -> "OpenRun":
    """Return a finished run.

    Args:
        name: a folder, a run id, `latest`, or `EXPERIMENT/latest`.
        runs: the folder of runs; by default that of the project around the current folder.

    Raises:
        ResultsError: there is no such run, and names the nearest; or a series, and names its runs.
    """
    folder = _runs_of_project() if runs is None else Path(runs)
    for candidate in (Path(name), folder / name, *folder.glob(f"*/{Path(name).name}")):
        if (candidate / "manifest.json").is_file():
            run = OpenRun(candidate.resolve())
            if run.manifest.get("kind") == "series":
                ids = dict.fromkeys(each for row in run.manifest["runs"].values() for each in row)
                raise ResultsError(f"{run.run_id} is a series; open a run: {', '.join(ids)}")
            return run
    known = [path.parent.name for path in folder.glob("*/[0-9]*/manifest.json")]
    near = difflib.get_close_matches(str(name), [*known, "latest"], n=1)
    hint = f"; did you mean {near[0]!r}?" if near and known else ""
    raise ResultsError(f"run {str(name)!r}: no such folder, nor run in {folder}{hint}")


def _runs_of_project() -> Path:
    """Return the folder of runs of the project around the current folder."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        settings = folder / "pubsubctl.toml"
        if settings.is_file():
            return folder / str(parse_toml(settings.read_text("utf-8")).get("results", RUNS))
    return RUNS


@dataclass(frozen=True)
class OpenRun:
    """A finished run.

    Attributes:
        folder: the folder of the run.
    """

    folder: Path

    @property
    def run_id(self) -> str:
        return str(self.manifest["run_id"])

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The facts about the run: protocol, seed, phases, machine, command."""
        return read_json(self.folder / "manifest.json")

    @property
    def numbers(self) -> Mapping[str, Any]:
        """The key numbers of the run, such as `delivered_per_s` and `response_us`."""
        return dict(self.manifest.get("headline") or {})

    @property
    def verdict(self) -> str:
        """VALID, INVALID or UNKNOWN; "" before a check."""
        return str(self.verdict_document.get("verdict", "")).upper()

    @property
    def verdict_document(self) -> Mapping[str, Any]:
        """The verdict with counts, reasons and recoveries; empty before a check."""
        path = find_unsealed_derived(self.folder) / "verdict.json"
        return read_json(path) if path.is_file() else {}

    def figures(self) -> dict[str, Path]:
        """Return the drawn figures by name, as SVG; `pubsubctl plot NAME RUN` draws more."""
        found = sorted((find_unsealed_derived(self.folder) / "figures").glob("*.svg"))
        return {path.stem: path for path in found}

    def table(self, name: str, spark: "SparkSession") -> "DataFrame":
        """Return a table of SCHEMA.md as a Spark DataFrame; writes the tables if necessary."""
        return load_run(spark, self.folder).table(spark, name)

    def deliveries(self, spark: "SparkSession | None" = None) -> Any:
        """Return a row per delivery, in the order of each subscriber's log.

        Args:
            spark: a session, for a Spark DataFrame; None for a pandas DataFrame.

        Raises:
            ResultsError: too many rows for pandas.
            IntegrityError: a file has changed since the run's end.
        """
        if spark is not None:
            return self.table("deliveries", spark)
        reading = _Reading.of(self.folder)
        received = reading.frame(DeliveryReader(reading.names, reading.clock, reading.stretches))
        sent = reading.sent().drop_duplicates(_KEY)
        rows = received.merge(sent[[*_KEY, *_SENT]], on=_KEY, how="left")
        is_timed = rows.pop("is_timed")
        for name, since in (("response", "t_intended_ns"), ("service", "t_sent_ns")):
            took_us = (rows["t_recv_ns"] - rows[since]) // 1000
            rows[f"lat_{name}_us"] = took_us.where(is_timed).astype("Int64")
        rows = rows.astype({"t_intended_ns": "Int64", "t_sent_ns": "Int64"})
        rows["sub_id"] = _named(rows["subscription"], reading.names.subscriptions)
        rows["kind"] = _named(rows["kind_number"], KINDS)
        rows["layer"] = _named(rows["layer_number"], LAYERS)
        brokers = {each.sub_id: each.broker for each in reading.logs.subscriptions}
        rows["broker"] = rows["sub_id"].map(brokers)
        rows = reading.with_names(rows).sort_values(["sub_id", "order_idx"], ignore_index=True)
        return rows[[*_DELIVERY_COLUMNS]]

    def publications(self, spark: "SparkSession | None" = None) -> Any:
        """Return a row per publication; see `deliveries`."""
        if spark is not None:
            return self.table("publications", spark)
        reading = _Reading.of(self.folder)
        rows = reading.with_names(reading.sent())
        rows = rows.sort_values(["pubend", "incarnation", "seq"], ignore_index=True)
        return rows[[*_PUBLICATION_COLUMNS]]


_SENT: Final = ("t_intended_ns", "t_sent_ns", "phase_number")
_DELIVERY_COLUMNS: Final = (
    *("sub_id", "broker", "pubend", "publisher", "incarnation", "seq", "kind", "layer"),
    *("order_idx", "t_recv_ns", "t_intended_ns", "t_sent_ns"),
    *("lat_response_us", "lat_service_us", "phase"),
)
_PUBLICATION_COLUMNS: Final = (
    *("pubend", "publisher", "incarnation", "seq", "size_bytes", "is_fence"),
    *("t_intended_ns", "t_sent_ns", "phase"),
)


@dataclass(frozen=True)
class _Reading:
    """The record files of a run, with the names and clocks of their rows."""

    logs: Logs
    names: Names
    clock: Clock
    publications: PublicationReader
    stretches: StretchReader

    @classmethod
    def of(cls, folder: Path) -> "_Reading":
        run = read_run(folder)
        logs = read_logs(run)
        clock = Clock(run)
        names = Names(logs, run.run_id, clock)
        predicates = {each.sub_id: each.predicate for each in logs.subscriptions}
        stretches = StretchReader(run.content, names.publishers, predicates)
        return cls(logs, names, clock, PublicationReader(run.content, names, clock), stretches)

    def frame(self, reader: RecordReader) -> pd.DataFrame:
        """Return all rows of a reader."""
        files = [*self.logs.files(reader.layout)]
        rows = sum(file.places if reader.layout == "deliveries" else file.rows for file in files)
        if rows > MOST_ROWS:
            raise ResultsError(
                f"{rows:,} {reader.layout} are too many for pandas (at most {MOST_ROWS:,}); "
                "pass a Spark session"
            )
        batches: list[pa.RecordBatch] = []
        for file in files:
            for first in range(0, file.rows, BATCH_ROWS):
                count = min(BATCH_ROWS, file.rows - first)
                offset = first * RECORD_BYTES
                records = np.fromfile(file.path, RECORDS[reader.layout], count, offset=offset)
                if len(records) < count:
                    raise IntegrityError(f"{file.path} is shorter than in its index")
                batches += reader.batches(file, records, first)
        if batches:
            return pa.Table.from_batches(batches).to_pandas()
        names = [column.split()[0] for column in reader.ddl.split(", ")]
        return pd.DataFrame({name: pd.Series(dtype="int64") for name in names})

    def sent(self) -> pd.DataFrame:
        """Return all publications, with numbers for names."""
        return self.frame(self.publications)

    def with_names(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return rows with the names of source, publisher and phase."""
        publishers = [self.names.publishers.get(name, "") for name in self.names.sources]
        return rows.assign(
            pubend=_named(rows["source"], self.names.sources),
            publisher=_named(rows["source"], publishers),
            phase=_named(rows["phase_number"], self.clock.phase_names),
        )


def _named(numbers: pd.Series, names: Any) -> pd.Series:
    """Return the names of numbers; None for an absent number."""
    return numbers.map(dict(enumerate(names)))
