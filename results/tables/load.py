"""Loader of a run's raw logs into the Parquet tables of `results.tables.schema`.

Spark's workers read the record files (`record_readers`) and write the tables; this process does so
for few records, and for the tables with a row per process, second or fault.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from results.checker.spark import plan_for
from results.tables.derived import Tables
from results.tables.frames import read_table
from results.tables.logs import Logs, read_logs
from results.tables.manifest import Run, read_run
from results.tables.record_readers import StretchReader
from results.tables.schema import SCHEMA_VERSION, TABLES
from results.tables.small_tables import small_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
from results.tables.names import Clock, Names
from results.tables.record_readers import (
    READ_HERE_ROWS,
    AckReader,
    DeliveryReader,
    PositionReader,
    PublicationReader,
    check_positions,
    read_pieces,
)

BROADCAST_PUBLICATIONS = 1 << 20
HASHED_PUBLICATIONS = 1 << 22


@dataclass(frozen=True)
class LoadedRun:
    """A run with loaded tables.

    Attributes:
        run: the small facts of the run.
        logs: the logs of the run.
    """

    run: Run
    logs: Logs

    @property
    def shares_a_clock(self) -> bool:
        """Return True if some publisher and some subscriber share a clock."""
        hosts: dict[str, list[str]] = {"publisher": [], "subscriber": [], "broker": []}
        for process in self.logs.processes:
            hosts[process.role].append(process.host)
        return not hosts["subscriber"] or any(
            self.run.clocks.share(a, b) for a in hosts["publisher"] for b in hosts["subscriber"]
        )

    def table(self, spark: "SparkSession", name: str) -> "DataFrame":
        return read_table(spark, name, table_folder(self.run, name))


def table_folder(run: Run, name: str) -> Path:
    return run.derived / "tables" / name


def load_run(spark: "SparkSession", run_dir: Path, *, force: bool = False) -> LoadedRun:
    """Read and check the logs of a run, and write its tables unless present.

    Tables of another user, and tables changed since, are written again.

    Args:
        force: write the tables even if present.

    Raises:
        ResultsError: there is no run in that folder.
        IntegrityError: a file of the run has changed since the run's end.
    """
    run = read_run(run_dir)
    logs = read_logs(run)
    about = {"schema": SCHEMA_VERSION, "run_id": run.run_id, "run": run.seal.digest}
    tables = Tables(run.derived / "tables", about)
    if not force and tables.is_ours():
        return LoadedRun(run, logs)
    tables.clear()
    for name, table in small_tables(run, logs).items():
        folder = table_folder(run, name)
        folder.mkdir(parents=True)
        pa.parquet.write_table(table, folder / "part-0.parquet")
    with plan_for(spark, logs.rows):
        _write_bulk_tables(spark, run, logs)
    tables.close()
    return LoadedRun(run, logs)


def _write_bulk_tables(spark: "SparkSession", run: Run, logs: Logs) -> None:
    """Write the tables with a row per message.

    Rows contain only numbers while being read and joined; names are added at the end.
    """
    clock = Clock(run)
    names = Names(logs, run.run_id, clock)
    acks = read_pieces(spark, logs.files("acks"), AckReader(names, clock))
    sent = read_pieces(
        spark, logs.files("publications"), PublicationReader(run.content, names, clock)
    )
    folder = table_folder(run, "publications")
    write = _write_here if logs.rows <= READ_HERE_ROWS else _write_by_spark
    write(names.put_in(with_acks(sent, acks)), "publications", folder)

    predicates = {
        subscription.sub_id: subscription.predicate for subscription in logs.subscriptions
    }
    stretches = StretchReader(run.content, names.publishers, predicates)
    reader = DeliveryReader(names, clock, stretches)
    received = read_pieces(spark, logs.files("deliveries"), reader)
    published = read_table(spark, "publications", folder)
    files = [*logs.files("publications")]
    deliveries = names.put_in(
        with_publications(
            received,
            names.take_out(published),
            once=all(file.scan.rising for file in files),
            rows=sum(file.rows for file in files),
        )
    )
    write(deliveries, "deliveries", table_folder(run, "deliveries"), ["broker"])
    if placed := [*logs.files("positions")]:
        check_positions(placed)
        rows = names.put_in(read_pieces(spark, placed, PositionReader(names, clock)))
        write(rows, "positions", table_folder(run, "positions"))


def _write_by_spark(
    frame: "DataFrame", name: str, folder: Path, partitions: Sequence[str] = ()
) -> None:
    """Write a table, in a folder for each value of the partitions."""
    rows = frame.select(*TABLES[name].names)
    rows.write.partitionBy(*partitions).parquet(str(folder))


def _write_here(
    frame: "DataFrame", name: str, folder: Path, partitions: Sequence[str] = ()
) -> None:
    """Write a small table as `_write_by_spark` does, for whose commit Java starts programs."""
    whole = frame.select(*TABLES[name].names).toArrow()
    folder.mkdir()
    parts = [(folder, whole)]
    for column in partitions:
        of = whole.column(column)
        parts = [
            (folder / f"{column}={_escape(value)}", whole.filter(pc.equal(of, value)))
            for value in of.unique().to_pylist()
        ]
    for part, rows in parts:
        part.mkdir(exist_ok=True)
        pa.parquet.write_table(rows.drop_columns([*partitions]), part / "part-0.parquet")


def _escape(value: str) -> str:
    """Return a value as Spark writes it into the name of a partition's folder."""
    return "".join(
        f"%{ord(char):02X}" if char < " " or char in "\"#%'*/:=?\\{[]^\x7f" else char
        for char in value
    )


PUBLICATION = ["source", "incarnation", "seq"]


def with_acks(publications: "DataFrame", acks: "DataFrame") -> "DataFrame":
    """Return publications with their answers; `answer` is an index into OUTCOMES.

    An acknowledgement takes precedence over a refusal, because it is the stronger promise.
    """
    from pyspark.sql import functions as F

    first_answers = acks.groupBy(*PUBLICATION).agg(
        F.min("answer").alias("given"), F.min("acked_ns").alias("acked_ns")
    )
    return publications.join(first_answers, PUBLICATION, "left").withColumns(
        {
            "t_acked_ns": F.col("acked_ns"),
            "answer": F.coalesce("given", F.lit(0)),
        }
    )


def with_publications(
    received: "DataFrame", publications: "DataFrame", *, once: bool, rows: int
) -> "DataFrame":
    """Return deliveries joined with the facts about their publications; null without a publication.

    Args:
        once: True if no number of a source was used for two publications.
        rows: the number of publications: a small table is held by every task while deliveries
            stream past, which avoids moving deliveries; for a very large table, both are sorted.
    """
    from pyspark.sql import functions as F

    columns = ["digest", "attrs_expected", "answer", "phase_number", "t_intended_ns", "t_sent_ns"]
    sent = publications.select(*PUBLICATION, *columns)
    if not once:
        # A number used twice is a separate finding and must not double its deliveries here.
        sent = sent.groupBy(*PUBLICATION).agg(*[F.min(name).alias(name) for name in columns])
    if rows < BROADCAST_PUBLICATIONS:
        sent = F.broadcast(sent)
    elif rows < HASHED_PUBLICATIONS:
        sent = sent.hint("shuffle_hash")
    return received.join(sent, PUBLICATION, "left").withColumns(
        {
            "lat_response_us": _null_untimed(F.col("t_recv_ns") - F.col("t_intended_ns")),
            "lat_service_us": _null_untimed(F.col("t_recv_ns") - F.col("t_sent_ns")),
            "same_clock": F.col("err_us") == 0,
            "lat_err_us": F.when(F.col("err_us") >= 0, F.col("err_us")),
            # For a stretch, the receiver has compared contents; a stretch has no wrong content.
            "digest_ok": F.col("is_folded") | (F.col("received_digest") == F.col("digest")),
        }
    )


def _null_untimed(nanoseconds: Any) -> Any:
    """Return µs; null without a receive time."""
    from pyspark.sql import functions as F

    return F.when(F.col("is_timed"), F.floor(nanoseconds / 1000).cast("BIGINT"))
