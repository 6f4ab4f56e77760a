"""Loader of a run's raw logs into the Parquet tables of `results.tables.schema`.

Record files are cut at record boundaries and read by Spark's workers, each piece with a single
`numpy` call; a row is never touched in Python. Small tables (a row per process, per second, per
fault) are written directly, because a Spark job would take longer than reading the file.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from results.checker.clocks import Clocks
from results.checker.spark import plan_for
from results.rules.expectation import PAYLOADS_PER_TABLE, ExpectedContent, seed_of_source
from results.tables.derived import Tables
from results.tables.json_files import IntegrityError
from results.tables.logs import Logs, read_logs
from results.tables.manifest import Run, read_run
from results.tables.record_files import (
    NOTICE,
    RECORD_BYTES,
    RECORDS,
    STRETCH,
    RecordFile,
    count_folded,
)
from results.tables.schema import SCHEMA_VERSION, TABLES, arrow_type
from results.tables.small_tables import small_tables
from results.tables.stretches import StretchReader, splitmix64

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PIECE_ROWS = 1 << 19
BATCH_ROWS = 1 << 16
BROADCAST_PUBLICATIONS = 1 << 20
HASHED_PUBLICATIONS = 1 << 22
OUTCOMES = ("unknown", "acked", "rejected")
KINDS = ("data", "fence", "gap", "notice", "redelivered")
LAYERS = ("wire", "application")


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
        """Return a table of the run."""
        return spark.read.schema(TABLES[name].ddl).parquet(str(table_folder(self.run, name)))


def table_folder(run: Run, name: str) -> Path:
    """Return the folder of a run's table."""
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
    folder = str(table_folder(run, "publications"))
    publications = names.put_in(with_acks(sent, acks))
    publications.select(*TABLES["publications"].names).write.parquet(folder)

    predicates = {
        subscription.sub_id: subscription.predicate for subscription in logs.subscriptions
    }
    stretches = StretchReader(run.content, names.publishers, predicates)
    reader = DeliveryReader(names, clock, stretches)
    received = read_pieces(spark, logs.files("deliveries"), reader)
    published = spark.read.schema(TABLES["publications"].ddl).parquet(folder)
    files = [*logs.files("publications")]
    deliveries = names.put_in(
        with_publications(
            received,
            names.take_out(published),
            once=all(file.scan.rising for file in files),
            rows=sum(file.rows for file in files),
        )
    )
    deliveries.select(*TABLES["deliveries"].names).write.partitionBy("broker").parquet(
        str(table_folder(run, "deliveries"))
    )
    if placed := [*logs.files("positions")]:
        check_positions(placed)
        rows = names.put_in(read_pieces(spark, placed, PositionReader(names, clock)))
        folder = str(table_folder(run, "positions"))
        rows.select(*TABLES["positions"].names).write.parquet(folder)


@dataclass(frozen=True)
class Clock:
    """A conversion from hosts' monotonic clocks to the run's time line and phases."""

    origin_ns: int
    clocks: Clocks
    until_ns: int
    phase_names: tuple[str, ...]
    phase_starts_ns: tuple[int, ...]

    def __init__(self, run: Run) -> None:
        phases = sorted(run.phases, key=lambda phase: phase.from_ns)
        object.__setattr__(self, "origin_ns", run.origin_ns)
        object.__setattr__(self, "clocks", run.clocks)
        object.__setattr__(self, "until_ns", run.origin_ns + run.phase("measure").to_ns)
        object.__setattr__(self, "phase_names", ("deploy", *(phase.name for phase in phases)))
        object.__setattr__(self, "phase_starts_ns", tuple(phase.from_ns for phase in phases))

    def to_timeline(self, stamps: Any, host: str) -> Any:
        """Return stamps of a host's clock on the run's time line."""
        if self.clocks.share(host, self.clocks.reference) or not len(stamps):
            return stamps - self.origin_ns
        ends = np.array([stamps.min(), stamps.max()])
        offsets = [self.clocks.offset_ns(host, int(stamp)) for stamp in ends]
        ahead = np.interp(stamps - ends[0], ends - ends[0], offsets).round().astype("i8")
        return stamps - ahead - self.origin_ns

    def errors_us(self, host: str, others: Sequence[str]) -> Any:
        """Return the error of latencies from each host to this host, in µs; -1 if unknown."""
        errors = [self.clocks.error_between_ns(other, host, self.until_ns) for other in others]
        return np.array([-1 if error is None else -(-error // 1000) for error in errors], "i8")

    def phases_of(self, moved: Any) -> Any:
        """Return for each time the index of its phase in the phases' names."""
        places = np.searchsorted(np.array(self.phase_starts_ns, "i8"), moved, side="right")
        return places.astype("i4")


class Names:
    """Numbers for names in all rows of a run, common to all files.

    Each file has separate string tables; `sources_of` and `subscriptions_of` map a file's numbers
    to the run's numbers.
    """

    def __init__(self, logs: Logs, run_id: str, clock: Clock) -> None:
        files = [file for process in logs.processes for file in process.records.values()]
        self.sources = _all_names(files, "publishers")
        self.subscriptions = _all_names(files, "subscriptions")
        self.streams = _all_names(files, "streams")
        self.publishers = {source.pubend: source.name for source in logs.sources}
        brokers = {s.sub_id: s.broker for s in logs.subscriptions}
        self._source_hosts = {
            name: file.host
            for file in files
            if file.layout == "publications"
            for name in file.tables.get("publishers", ())
        }
        self._columns = {
            "pubend": ("source", self.sources),
            "publisher": ("source", [self.publishers.get(name, "") for name in self.sources]),
            "sub_id": ("subscription", self.subscriptions),
            "stream": ("stream_number", self.streams),
            "outcome": ("answer", OUTCOMES),
            "phase": ("phase_number", clock.phase_names),
            "kind": ("kind_number", KINDS),
            "layer": ("layer_number", LAYERS),
        }
        self._brokers = {
            "source": [name.rpartition("/")[0] for name in self.sources],
            "subscription": [brokers.get(name, "unknown") for name in self.subscriptions],
        }
        self._run_id = run_id

    def sources_of(self, file: RecordFile) -> Any:
        """Return the run's number for each of a file's publishers."""
        return np.array([self.sources.index(name) for name in file.tables["publishers"]], "i4")

    def hosts_of_sources(self, host: str) -> list[str]:
        """Return the host of each source's publisher; `host` for a source without publications."""
        return [self._source_hosts.get(name, host) for name in self.sources]

    def subscriptions_of(self, file: RecordFile) -> Any:
        """Return the run's number for each of a file's subscriptions."""
        names = file.tables["subscriptions"]
        return np.array([self.subscriptions.index(name) for name in names], "i4")

    def put_in(self, rows: "DataFrame") -> "DataFrame":
        """Return the rows with names added to numbers; null for null."""
        from pyspark.sql import functions as F

        of = "subscription" if "subscription" in rows.columns else "source"
        columns = {**self._columns, "broker": (of, self._brokers[of])}
        return rows.withColumns(
            {"run_id": F.lit(self._run_id)}
            | {
                name: F.element_at(_texts(names), F.col(number) + 1)
                for name, (number, names) in columns.items()
                if number in rows.columns
            }
        )

    def take_out(self, publications: "DataFrame") -> "DataFrame":
        """Return publications with numbers for the names that a join would carry along."""
        from pyspark.sql import functions as F

        return publications.withColumns(
            {
                number: (F.array_position(_texts(names), F.col(name)) - 1).cast("INT")
                for name in ("pubend", "outcome", "phase")
                for number, names in [self._columns[name]]
            }
        )


def _texts(values: Sequence[str]) -> "Column":
    """Return a constant array of texts."""
    from pyspark.sql import functions as F

    return F.array(*map(F.lit, values)).cast("ARRAY<STRING>")


def _all_names(files: Iterable[RecordFile], table: str) -> list[str]:
    return [*dict.fromkeys(name for file in files for name in file.tables.get(table, ()))]


# --- Reading record files in pieces ---------------------------------------------------------


class RecordReader:
    """A converter of records with a common layout into rows; pickled for Spark's workers."""

    layout: str
    ddl: str

    def batch(self, file: RecordFile, rows: Any, first_row: int) -> pa.RecordBatch:
        """Return the rows for some records of a file, of which the first is at `first_row`."""
        raise NotImplementedError

    def batches(self, file: RecordFile, rows: Any, first_row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `batch` in as many batches as necessary."""
        yield self.batch(file, rows, first_row)


def read_pieces(
    spark: "SparkSession", files: Iterable[RecordFile], reader: RecordReader
) -> "DataFrame":
    """Return the records of all files as rows made by the reader."""
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
                    yield from reader.batches(file, records, first)

    frame = spark.createDataFrame(pieces, "file INT, first BIGINT, rows BIGINT")
    return frame.repartition(min(len(pieces), 4096)).mapInArrow(read, reader.ddl)


def _batch(ddl: str, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a batch with the columns, order and types of a DDL text."""
    fields = [column.split() for column in ddl.split(", ")]
    arrays = [pa.array(columns[name], arrow_type(kind)) for name, kind in fields]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in fields])


class PublicationReader(RecordReader):
    """Rows of publications, with the content expected from the seed."""

    layout = "publications"
    ddl = (
        "source INT, incarnation INT, seq BIGINT, size_bytes INT, attrs_ref INT, "
        "attrs_expected INT, digest BIGINT, is_fence BOOLEAN, t_intended_ns BIGINT, "
        "t_sent_ns BIGINT, phase_number INT"
    )

    def __init__(self, content: ExpectedContent, names: Names, clock: Clock) -> None:
        self._content = content
        self._names = names
        self._clock = clock

    def batch(self, file: RecordFile, rows: Any, first_row: int) -> pa.RecordBatch:
        # Without a publisher in the workload, a source has no expected content.
        names = [self._names.publishers.get(pubend) for pubend in file.tables["publishers"]]
        known = [number for number, name in enumerate(names) if name is not None]
        rows = rows[np.isin(rows["publisher"], known)]
        expected, digests, sizes = (np.zeros(len(rows), "i8") for _ in range(3))
        for publisher in np.unique(rows["publisher"]):
            of_publisher = rows["publisher"] == publisher
            name = names[publisher]
            assert name is not None
            expect = compute_expected_columns(self._content, name, rows[of_publisher])
            expected[of_publisher], digests[of_publisher] = expect
            sizes[of_publisher] = self._content.publishers[name].size_bytes
        intended = self._clock.to_timeline(rows["intended_ns"], file.host)
        return _batch(
            self.ddl,
            {
                "source": self._names.sources_of(file)[rows["publisher"]],
                "incarnation": rows["incarnation"],
                "seq": rows["sequence"],
                "size_bytes": sizes,
                "attrs_ref": rows["attribute_set"],
                "attrs_expected": expected,
                "digest": digests,
                "is_fence": rows["attribute_set"] == self._content.fence_set,
                "t_intended_ns": intended,
                "t_sent_ns": self._clock.to_timeline(rows["sent_ns"], file.host),
                "phase_number": self._clock.phases_of(intended),
            },
        )


def compute_expected_columns(content: ExpectedContent, name: str, rows: Any) -> tuple[Any, Any]:
    """Return attribute sets and digests expected from the seed, for records of a publisher."""
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
    if content.numbered is not None:
        each = zip(rows["incarnation"].tolist(), rows["sequence"].tolist(), fences, strict=True)
        found = [content.digest(publisher, number, at, fence=fence) for number, at, fence in each]
        return sets, np.array(found, "i8")
    digests = np.array(content.digest_table(publisher.size_bytes), "i8")
    return sets, digests[sets, payloads.astype("i8")]


class AckReader(RecordReader):
    """A row per answered publication, from rows that answer ranges of publications."""

    layout = "acks"
    ddl = "source INT, incarnation INT, seq BIGINT, acked_ns BIGINT, answer INT"

    def __init__(self, names: Names, clock: Clock) -> None:
        self._names = names
        self._clock = clock

    def batch(self, file: RecordFile, rows: Any, first_row: int) -> pa.RecordBatch:
        lengths = rows["last"] - rows["first"] + 1
        spread = np.repeat(rows, lengths)
        within = np.arange(len(spread)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return _batch(
            self.ddl,
            {
                "source": self._names.sources_of(file)[spread["publisher"]],
                "incarnation": spread["incarnation"],
                "seq": spread["first"] + within,
                "acked_ns": self._clock.to_timeline(spread["acked_ns"], file.host),
                "answer": spread["outcome"],
            },
        )


class DeliveryReader(RecordReader):
    """Rows of received deliveries; a stretch becomes the deliveries that it represents.

    The receive time of a delivery in a stretch is only bounded by two stamps. Its row has the
    earlier stamp, an error that includes the difference, and no separate digest.
    """

    layout = "deliveries"
    ddl = (
        "subscription INT, source INT, incarnation INT, seq BIGINT, kind_number INT, "
        "layer_number INT, order_idx BIGINT, t_recv_ns BIGINT, received_digest BIGINT, "
        "err_us BIGINT, is_folded BOOLEAN, is_timed BOOLEAN"
    )

    def __init__(self, names: Names, clock: Clock, stretches: StretchReader) -> None:
        self._names = names
        self._clock = clock
        self._stretches = stretches

    def batches(self, file: RecordFile, rows: Any, first_row: int) -> Iterator[pa.RecordBatch]:
        places = first_row + np.arange(len(rows))
        if file.places > file.rows:
            beyond = count_folded(rows)
            places += file.place_of(first_row) - first_row + np.cumsum(beyond) - beyond
            parts = [*self._parts(beyond + 1)]
        else:
            parts = [slice(0, len(rows))]
        for part in parts:
            yield self._batch(file, rows[part], places[part])

    @staticmethod
    def _is_sampled(file: RecordFile, sequences: Any) -> Any:
        """Return a mask of rows with usable latencies: rows that the sample selects by number."""
        sample: Any = file.tables.get("sample") or {"block": 1, "one_in": 1}
        return sequences // sample["block"] % sample["one_in"] == 0

    @staticmethod
    def _parts(lengths: Any) -> Iterator[slice]:
        """Yield slices of records that represent about a batch of messages, or a single record."""
        ends = np.cumsum(lengths)
        first, before = 0, 0
        while first < len(lengths):
            last = max(int(np.searchsorted(ends, before + BATCH_ROWS, "right")), first + 1)
            yield slice(first, last)
            first, before = last, int(ends[last - 1])

    def _batch(self, file: RecordFile, rows: Any, places: Any) -> pa.RecordBatch:
        delivered = rows["kind"] != NOTICE
        if not delivered.all():
            rows, places = rows[delivered], places[delivered]
        sequences, spread, within = rows["sequence"], np.arange(len(rows)), 0
        folded = rows["kind"] == STRETCH
        if folded.any():
            sequences, spread, within = self._stretches.unfold(file, rows)
        rows, folded = rows[spread], folded[spread]
        sources = self._names.sources_of(file)[rows["publisher"]]
        errors = self._clock.errors_us(file.host, self._names.hosts_of_sources(file.host))
        lasted_ms = np.where(folded, rows["partition"], 0).astype("i8")
        moved = self._clock.to_timeline(rows["received_ns"], file.host)
        errors_us = errors[sources]
        return _batch(
            self.ddl,
            {
                "subscription": self._names.subscriptions_of(file)[rows["subscription"]],
                "source": sources,
                "incarnation": rows["incarnation"],
                "seq": sequences,
                "kind_number": np.where(folded, 0, rows["kind"]),
                "layer_number": rows["layer"],
                "order_idx": places[spread] + within,
                "t_recv_ns": moved - 1_000_000 * lasted_ms,
                "received_digest": np.ma.array(rows["digest"].astype("i8"), mask=folded),
                "err_us": np.where(errors_us < 0, errors_us, errors_us + 1000 * lasted_ms),
                "is_folded": folded,
                "is_timed": ~folded & self._is_sampled(file, sequences),
            },
        )


class PositionReader(RecordReader):
    """Positions of deliveries in streams that are not their sources'.

    The rows of deliveries beside the file identify the publications.
    """

    layout = "positions"
    ddl = "subscription INT, stream_number INT, position BIGINT, order_idx BIGINT, t_recv_ns BIGINT"

    def __init__(self, names: Names, clock: Clock) -> None:
        self._names = names
        self._clock = clock

    def batch(self, file: RecordFile, rows: Any, first_row: int) -> pa.RecordBatch:
        delivered = deliveries_beside(file)["subscription"][rows["row"]]
        streams = [self._names.streams.index(name) for name in file.tables["streams"]]
        return _batch(
            self.ddl,
            {
                "subscription": self._names.subscriptions_of(file)[delivered],
                "stream_number": np.array(streams, "i4")[rows["stream"]],
                "position": rows["position"],
                "order_idx": rows["row"],
                "t_recv_ns": self._clock.to_timeline(rows["received_ns"], file.host),
            },
        )


def deliveries_beside(file: RecordFile) -> Any:
    """Return the rows of deliveries to which a file of positions refers."""
    path = file.path.with_name("deliveries.rec")
    rows = path.stat().st_size // RECORD_BYTES if path.is_file() else 0
    dtype = RECORDS["deliveries"]
    return np.memmap(path, dtype, mode="r", shape=(rows,)) if rows else np.empty(0, dtype)


def check_positions(files: Iterable[RecordFile]) -> None:
    """Refuse files of positions that refer to missing deliveries.

    Raises:
        IntegrityError: with the first such record.
    """
    for file in files:
        rows = np.memmap(file.path, RECORDS["positions"], mode="r", shape=(file.rows,))["row"]
        wrong = np.flatnonzero((rows < 0) | (rows >= len(deliveries_beside(file))))
        if wrong.size:
            raise IntegrityError(
                f"{file.path}, record {int(wrong[0])}: the position of delivery "
                f"{int(rows[wrong[0]])}, which is not there"
            )


# --- Joins ----------------------------------------------------------------------------------

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
