"""The raw logs of a run → the Parquet tables of `results.schema`.

Record files are cut at record boundaries and read by Spark's workers, each piece with one
`numpy` call; a row is never touched in Python. What is small (a row per process, per second,
per fault) is written directly, because a Spark job for it would take longer than reading it.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from results.expectation import (
    GOLDEN,
    MIX_A,
    MIX_B,
    PAYLOADS_PER_TABLE,
    ExpectedContent,
    seed_of_source,
)
from results.logs import NOTICE, RECORD_BYTES, RECORDS, Logs, RecordFile, Source, read_logs
from results.manifest import Run, read_json, read_run, verify_seal, write_json
from results.schema import SCHEMA_VERSION, TABLES
from results.small_tables import small_tables
from results.spark import planned_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PIECE_ROWS = 1 << 19
BATCH_ROWS = 1 << 16
OUTCOMES = ("unknown", "acked", "rejected")
KINDS = ("data", "fence", "gap")
LAYERS = ("wire", "application")

LOADED = "loaded.json"
BULK_TABLES = ("publications", "deliveries")


@dataclass(frozen=True)
class LoadedRun:
    """A run whose tables are there.

    Attributes:
        run: its small facts.
        logs: which logs there are.
    """

    run: Run
    logs: Logs

    def table(self, spark: "SparkSession", name: str) -> "DataFrame":
        """One of its tables."""
        return spark.read.schema(TABLES[name].ddl).parquet(str(table_folder(self.run, name)))


def table_folder(run: Run, name: str) -> Path:
    """Where a table of a run lies."""
    return run.folder / "tables" / name


def load_run(spark: "SparkSession", run_dir: Path, *, force: bool = False) -> LoadedRun:
    """Read and check the logs of a run, and write its tables where they are not there yet.

    Args:
        force: write the tables even if they are there.

    Raises:
        ResultsError: there is no run in that folder.
        IntegrityError: a file of the run is not what was written when it ended.
    """
    run = read_run(run_dir)
    verify_seal(run.folder)
    logs = read_logs(run)
    marker = run.folder / "tables" / LOADED
    wanted = {"schema": SCHEMA_VERSION, "run_id": run.run_id, "logs": _fingerprint(logs)}
    if not force and marker.is_file() and read_json(marker) == wanted:
        return LoadedRun(run, logs)

    shutil.rmtree(run.folder / "tables", ignore_errors=True)
    for name, table in small_tables(run, logs).items():
        folder = table_folder(run, name)
        folder.mkdir(parents=True)
        pa.parquet.write_table(table, folder / "part-0.parquet")
    with planned_for(spark, logs.rows):
        _write_bulk_tables(spark, run, logs)
    write_json(marker, wanted)
    return LoadedRun(run, logs)


def _fingerprint(logs: Logs) -> dict[str, Any]:
    """What changes when a record file does."""
    return {
        f"{file.host}/{file.process}/{file.layout}": [file.rows, file.facts.get("blake2b", "")]
        for process in logs.processes
        for file in process.records.values()
    }


def _write_bulk_tables(spark: "SparkSession", run: Run, logs: Logs) -> None:
    clock = Clock(run)
    acks = read_pieces(spark, logs.files("acks"), AckReader(run.run_id))
    publications = with_acks(
        read_pieces(
            spark, logs.files("publications"), PublicationReader(run.content, logs.sources, clock)
        ),
        acks,
        clock,
    )
    folder = str(table_folder(run, "publications"))
    publications.select(*TABLES["publications"].names).write.parquet(folder)

    brokers = {subscription.sub_id: subscription.broker for subscription in logs.subscriptions}
    received = read_pieces(
        spark, logs.files("deliveries"), DeliveryReader(run.run_id, brokers, clock)
    )
    published = spark.read.schema(TABLES["publications"].ddl).parquet(folder)
    deliveries = with_publications(received, published)
    deliveries.select(*TABLES["deliveries"].names).write.partitionBy("broker").parquet(
        str(table_folder(run, "deliveries"))
    )


@dataclass(frozen=True)
class Clock:
    """From a host's monotonic clock to the run's time line and its phases."""

    origin_ns: int
    phase_names: tuple[str, ...]
    phase_starts_ns: tuple[int, ...]

    def __init__(self, run: Run) -> None:
        phases = sorted(run.phases, key=lambda phase: phase.from_ns)
        object.__setattr__(self, "origin_ns", run.origin_ns)
        object.__setattr__(self, "phase_names", ("deploy", *(phase.name for phase in phases)))
        object.__setattr__(self, "phase_starts_ns", tuple(phase.from_ns for phase in phases))

    def moved(self, stamps: Any) -> Any:
        """Stamps on the run's time line."""
        return stamps - self.origin_ns

    def phases_of(self, moved: Any) -> pa.Array:
        """The name of the phase each of these moments lies in."""
        places = np.searchsorted(np.array(self.phase_starts_ns, "i8"), moved, side="right")
        return pa.array(self.phase_names).take(pa.array(places))


# --- Reading record files in pieces ---------------------------------------------------------


class RecordReader:
    """Turns records of one layout into rows; sent to Spark's workers as it is."""

    layout: str
    ddl: str

    def batch(self, file: RecordFile, rows: Any, first_row: int) -> pa.RecordBatch:
        """The rows for some records of a file, `first_row` being the place of the first."""
        raise NotImplementedError


def read_pieces(
    spark: "SparkSession", files: Iterable[RecordFile], reader: RecordReader
) -> "DataFrame":
    """The records of all these files, as the reader turns them into rows."""
    by_number = dict(enumerate(files))
    pieces = [
        (number, first, min(PIECE_ROWS, file.rows - first))
        for number, file in by_number.items()
        for first in range(0, file.rows, PIECE_ROWS)
    ]
    if not pieces:
        return spark.createDataFrame([], reader.ddl)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        dtype = RECORDS[reader.layout]
        for batch in batches:
            for piece in batch.to_pylist():
                file = by_number[piece["file"]]
                for first in range(piece["first"], piece["first"] + piece["rows"], BATCH_ROWS):
                    count = min(BATCH_ROWS, piece["first"] + piece["rows"] - first)
                    records = np.fromfile(file.path, dtype, count, offset=first * RECORD_BYTES)
                    yield reader.batch(file, records, first)

    frame = spark.createDataFrame(pieces, "file INT, first BIGINT, rows BIGINT")
    return frame.repartition(min(len(pieces), 4096)).mapInArrow(read, reader.ddl)


def _names(table: Sequence[Any], numbers: Any) -> pa.Array:
    return pa.array(table, pa.string()).take(pa.array(numbers))


def _batch(ddl: str, columns: Mapping[str, Any], count: int) -> pa.RecordBatch:
    """A batch with the columns of a DDL text; a single value stands for a column of it."""
    names = [column.split()[0] for column in ddl.split(", ")]
    arrays = []
    for name in names:
        value = columns[name]
        if isinstance(value, str | int | bool):
            value = pa.repeat(pa.scalar(value), count)
        elif not isinstance(value, pa.Array):
            value = pa.array(value)
        arrays.append(value)
    return pa.RecordBatch.from_arrays(arrays, names=names)


class PublicationReader(RecordReader):
    """Rows of publications, with what the seed says they hold."""

    layout = "publications"
    ddl = (
        "run_id STRING, publisher STRING, pubend STRING, broker STRING, incarnation INT, "
        "seq BIGINT, size_bytes INT, attrs_ref INT, attrs_expected INT, digest BIGINT, "
        "is_fence BOOLEAN, t_intended_ns BIGINT, t_sent_ns BIGINT, phase STRING"
    )

    def __init__(self, content: ExpectedContent, sources: Sequence[Source], clock: Clock) -> None:
        self._content = content
        self._names = {source.pubend: source.name for source in sources}
        self._clock = clock

    def batch(self, file: RecordFile, rows: Any, first_row: int) -> pa.RecordBatch:
        rows = rows[np.isin(rows["publisher"], self._known(file))]
        sources = file.tables["publishers"]
        names = [self._names.get(pubend, "") for pubend in sources]
        count = len(rows)
        expected, digests, sizes = (np.zeros(count, "i8") for _ in range(3))
        for publisher in np.unique(rows["publisher"]):
            of_publisher = rows["publisher"] == publisher
            expect = expected_columns(self._content, names[publisher], rows[of_publisher])
            expected[of_publisher], digests[of_publisher] = expect
            sizes[of_publisher] = self._content.publishers[names[publisher]].size_bytes
        intended = self._clock.moved(rows["intended_ns"])
        return _batch(
            self.ddl,
            {
                "run_id": self._content.run_id,
                "publisher": _names(names, rows["publisher"]),
                "pubend": _names(sources, rows["publisher"]),
                "broker": _names([s.rpartition("/")[0] for s in sources], rows["publisher"]),
                "incarnation": rows["incarnation"].astype("i4"),
                "seq": rows["sequence"].astype("i8"),
                "size_bytes": sizes.astype("i4"),
                "attrs_ref": rows["attribute_set"].astype("i4"),
                "attrs_expected": expected.astype("i4"),
                "digest": digests,
                "is_fence": rows["attribute_set"] == self._content.fence_set,
                "t_intended_ns": intended,
                "t_sent_ns": self._clock.moved(rows["sent_ns"]),
                "phase": self._clock.phases_of(intended),
            },
            count,
        )

    def _known(self, file: RecordFile) -> list[int]:
        """Numbers of publishers of this workload; of others nothing can be expected."""
        return [n for n, pubend in enumerate(file.tables["publishers"]) if pubend in self._names]


def expected_columns(content: ExpectedContent, name: str, rows: Any) -> tuple[Any, Any]:
    """Attribute sets and digests that the seed decides for the records of one publisher."""
    publisher = content.publishers[name]
    mixed = np.zeros(len(rows), "u8")
    for incarnation in np.unique(rows["incarnation"]):
        of_incarnation = rows["incarnation"] == incarnation
        start = np.uint64(seed_of_source(content.seed, publisher.index, int(incarnation)))
        mixed[of_incarnation] = splitmix64(rows["sequence"][of_incarnation].astype("u8") + start)
    fences = rows["attribute_set"] == content.fence_set
    sets = (mixed % np.uint64(content.fence_set)).astype("i8")
    sets[fences] = content.fence_set
    payloads = (mixed >> np.uint64(32)) % np.uint64(PAYLOADS_PER_TABLE)
    digests = np.array(content.digest_table(publisher.size_bytes), "i8")
    return sets, digests[sets, payloads.astype("i8")]


def splitmix64(numbers: Any) -> Any:
    """One step of splitmix64 on a column of unsigned 64-bit numbers."""
    mixed = numbers + np.uint64(GOLDEN)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(MIX_A)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(MIX_B)
    return mixed ^ mixed >> np.uint64(31)


class AckReader(RecordReader):
    """One row per answered publication, from rows that answer ranges of them."""

    layout = "acks"
    ddl = "run_id STRING, pubend STRING, incarnation INT, seq BIGINT, t_acked_ns BIGINT, answer INT"

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id

    def batch(self, file: RecordFile, rows: Any, first_row: int) -> pa.RecordBatch:
        lengths = rows["last"] - rows["first"] + 1
        spread = np.repeat(rows, lengths)
        within = np.arange(len(spread)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return _batch(
            self.ddl,
            {
                "run_id": self._run_id,
                "pubend": _names(file.tables["publishers"], spread["publisher"]),
                "incarnation": spread["incarnation"].astype("i4"),
                "seq": spread["first"] + within,
                "t_acked_ns": spread["acked_ns"].astype("i8"),
                "answer": spread["outcome"].astype("i4"),
            },
            len(spread),
        )


class DeliveryReader(RecordReader):
    """Rows of what subscribers received."""

    layout = "deliveries"
    ddl = (
        "run_id STRING, sub_id STRING, pubend STRING, incarnation INT, seq BIGINT, kind STRING, "
        "layer STRING, order_idx BIGINT, t_recv_ns BIGINT, received_digest BIGINT, broker STRING"
    )

    def __init__(self, run_id: str, brokers: Mapping[str, str], clock: Clock) -> None:
        self._run_id = run_id
        self._brokers = brokers
        self._clock = clock

    def batch(self, file: RecordFile, rows: Any, first_row: int) -> pa.RecordBatch:
        places = np.arange(first_row, first_row + len(rows))
        delivered = rows["kind"] != NOTICE
        if not delivered.all():
            rows, places = rows[delivered], places[delivered]
        subscriptions = file.tables["subscriptions"]
        brokers = [self._brokers.get(name, "unknown") for name in subscriptions]
        return _batch(
            self.ddl,
            {
                "run_id": self._run_id,
                "sub_id": _names(subscriptions, rows["subscription"]),
                "pubend": _names(file.tables["publishers"], rows["publisher"]),
                "incarnation": rows["incarnation"].astype("i4"),
                "seq": rows["sequence"].astype("i8"),
                "kind": _names(KINDS, rows["kind"]),
                "layer": _names(LAYERS, rows["layer"]),
                "order_idx": places,
                "t_recv_ns": self._clock.moved(rows["received_ns"]),
                "received_digest": rows["digest"].astype("i8"),
                "broker": _names(brokers, rows["subscription"]),
            },
            len(rows),
        )


# --- Bringing them together -----------------------------------------------------------------

PUBLICATION = ["run_id", "pubend", "incarnation", "seq"]


def with_acks(publications: "DataFrame", acks: "DataFrame", clock: Clock) -> "DataFrame":
    """Publications with what became of them: acked, rejected, or unknown without an answer.

    An acknowledgement counts for more than a refusal, because it is the stronger promise.
    """
    from pyspark.sql import functions as F

    first_answers = acks.groupBy(*PUBLICATION).agg(
        F.min("answer").alias("answer"), F.min("t_acked_ns").alias("acked_ns")
    )
    outcome = F.element_at(F.array(*map(F.lit, OUTCOMES)), F.coalesce("answer", F.lit(0)) + 1)
    return (
        publications.join(first_answers, PUBLICATION, "left")
        .withColumn("t_acked_ns", F.col("acked_ns") - clock.origin_ns)
        .withColumn("outcome", outcome)
    )


def with_publications(received: "DataFrame", publications: "DataFrame") -> "DataFrame":
    """Deliveries, each with what is known of its publication; null where nobody sent it."""
    from pyspark.sql import functions as F

    columns = ["digest", "attrs_expected", "outcome", "phase", "t_intended_ns", "t_sent_ns"]
    # A number used twice is a finding of its own and must not double its deliveries here.
    sent = publications.groupBy(*PUBLICATION).agg(*[F.min(name).alias(name) for name in columns])
    return (
        received.join(sent, PUBLICATION, "left")
        .withColumn("lat_response_us", _microseconds(F.col("t_recv_ns") - F.col("t_intended_ns")))
        .withColumn("lat_service_us", _microseconds(F.col("t_recv_ns") - F.col("t_sent_ns")))
        .withColumn("same_clock", F.lit(True))
        .withColumn("digest_ok", F.col("received_digest") == F.col("digest"))
    )


def _microseconds(nanoseconds: Any) -> Any:
    from pyspark.sql import functions as F

    return F.floor(nanoseconds / 1000).cast("BIGINT")
