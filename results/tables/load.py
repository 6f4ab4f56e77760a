"""The raw logs of a run → the Parquet tables of `results.tables.schema`.

Record files are cut at record boundaries and read by Spark's workers, each piece with one
`numpy` call; a row is never touched in Python. What is small (a row per process, per second,
per fault) is written directly, because a Spark job for it would take longer than reading it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from results.checker.clocks import Clocks
from results.checker.spark import planned_for
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
    folded_in,
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
    """A run whose tables are there.

    Attributes:
        run: its small facts.
        logs: which logs there are.
    """

    run: Run
    logs: Logs

    @property
    def shares_a_clock(self) -> bool:
        """Whether some publisher and some subscriber stamped by the same clock."""
        hosts: dict[str, list[str]] = {"publisher": [], "subscriber": [], "broker": []}
        for process in self.logs.processes:
            hosts[process.role].append(process.host)
        return not hosts["subscriber"] or any(
            self.run.clocks.share(a, b) for a in hosts["publisher"] for b in hosts["subscriber"]
        )

    def table(self, spark: "SparkSession", name: str) -> "DataFrame":
        """One of its tables."""
        return spark.read.schema(TABLES[name].ddl).parquet(str(table_folder(self.run, name)))


def table_folder(run: Run, name: str) -> Path:
    """Where a table of a run lies."""
    return run.derived / "tables" / name


def load_run(spark: "SparkSession", run_dir: Path, *, force: bool = False) -> LoadedRun:
    """Read and check the logs of a run, and write its tables where we have not done so yet.

    Tables that somebody else wrote, or that were changed since, are written anew.

    Args:
        force: write the tables even if they are there.

    Raises:
        ResultsError: there is no run in that folder.
        IntegrityError: a file of the run is not what was written when it ended.
    """
    run = read_run(run_dir)
    logs = read_logs(run)
    about = {"schema": SCHEMA_VERSION, "run_id": run.run_id, "run": run.seal.digest}
    tables = Tables(run.derived / "tables", about)
    if not force and tables.are_ours():
        return LoadedRun(run, logs)
    tables.clear()
    for name, table in small_tables(run, logs).items():
        folder = table_folder(run, name)
        folder.mkdir(parents=True)
        pa.parquet.write_table(table, folder / "part-0.parquet")
    with planned_for(spark, logs.rows):
        _write_bulk_tables(spark, run, logs)
    tables.close()
    return LoadedRun(run, logs)


def _write_bulk_tables(spark: "SparkSession", run: Run, logs: Logs) -> None:
    """The tables with a row per message.

    While rows are read and joined they are numbers only; names are put in at the end.
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
    """From a host's monotonic clock to the run's time line and its phases."""

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

    def moved(self, stamps: Any, host: str) -> Any:
        """Stamps of a host's clock on the run's time line."""
        if self.clocks.share(host, self.clocks.reference) or not len(stamps):
            return stamps - self.origin_ns
        ends = np.array([stamps.min(), stamps.max()])
        offsets = [self.clocks.offset_ns(host, int(stamp)) for stamp in ends]
        ahead = np.interp(stamps - ends[0], ends - ends[0], offsets).round().astype("i8")
        return stamps - ahead - self.origin_ns

    def errors_us(self, host: str, others: Sequence[str]) -> Any:
        """By how much latencies from each of these hosts may be wrong here; -1 if unknown."""
        errors = [self.clocks.error_between_ns(other, host, self.until_ns) for other in others]
        return np.array([-1 if error is None else -(-error // 1000) for error in errors], "i8")

    def phases_of(self, moved: Any) -> Any:
        """The place among the phases' names that each of these moments lies in."""
        places = np.searchsorted(np.array(self.phase_starts_ns, "i8"), moved, side="right")
        return places.astype("i4")


class Names:
    """Numbers that stand for names in all rows of a run, whatever file they come from.

    Each file has tables of its own; `sources_of` and `subscriptions_of` lead from a file's
    numbers to ours.
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
        """Our number for each of a file's publishers."""
        return np.array([self.sources.index(name) for name in file.tables["publishers"]], "i4")

    def hosts_of_sources(self, host: str) -> list[str]:
        """Where each source's publisher was; `host` for those nobody published."""
        return [self._source_hosts.get(name, host) for name in self.sources]

    def subscriptions_of(self, file: RecordFile) -> Any:
        """Our number for each of a file's subscriptions."""
        names = file.tables["subscriptions"]
        return np.array([self.subscriptions.index(name) for name in names], "i4")

    def put_in(self, rows: "DataFrame") -> "DataFrame":
        """The rows with names beside their numbers; null beside null."""
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
        """Publications with numbers in place of the names that a join would carry along."""
        from pyspark.sql import functions as F

        return publications.withColumns(
            {
                number: (F.array_position(_texts(names), F.col(name)) - 1).cast("INT")
                for name in ("pubend", "outcome", "phase")
                for number, names in [self._columns[name]]
            }
        )


def _texts(values: Sequence[str]) -> "Column":
    """A constant array of texts."""
    from pyspark.sql import functions as F

    return F.array(*map(F.lit, values)).cast("ARRAY<STRING>")


def _all_names(files: Iterable[RecordFile], table: str) -> list[str]:
    return [*dict.fromkeys(name for file in files for name in file.tables.get(table, ()))]


# --- Reading record files in pieces ---------------------------------------------------------


class RecordReader:
    """Turns records of one layout into rows; sent to Spark's workers as it is."""

    layout: str
    ddl: str

    def batch(self, file: RecordFile, rows: Any, first_row: int) -> pa.RecordBatch:
        """The rows for some records of a file, `first_row` being the place of the first."""
        raise NotImplementedError

    def batches(self, file: RecordFile, rows: Any, first_row: int) -> Iterator[pa.RecordBatch]:
        """The same in as many batches as they want."""
        yield self.batch(file, rows, first_row)


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
                    yield from reader.batches(file, records, first)

    frame = spark.createDataFrame(pieces, "file INT, first BIGINT, rows BIGINT")
    return frame.repartition(min(len(pieces), 4096)).mapInArrow(read, reader.ddl)


def _batch(ddl: str, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """A batch with the columns of a DDL text, in its order and types."""
    fields = [column.split() for column in ddl.split(", ")]
    arrays = [pa.array(columns[name], arrow_type(kind)) for name, kind in fields]
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in fields])


class PublicationReader(RecordReader):
    """Rows of publications, with what the seed says they hold."""

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
        # Of a source that is no publisher of the workload nothing can be expected.
        names = [self._names.publishers.get(pubend) for pubend in file.tables["publishers"]]
        known = [number for number, name in enumerate(names) if name is not None]
        rows = rows[np.isin(rows["publisher"], known)]
        expected, digests, sizes = (np.zeros(len(rows), "i8") for _ in range(3))
        for publisher in np.unique(rows["publisher"]):
            of_publisher = rows["publisher"] == publisher
            name = names[publisher]
            assert name is not None
            expect = expected_columns(self._content, name, rows[of_publisher])
            expected[of_publisher], digests[of_publisher] = expect
            sizes[of_publisher] = self._content.publishers[name].size_bytes
        intended = self._clock.moved(rows["intended_ns"], file.host)
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
                "t_sent_ns": self._clock.moved(rows["sent_ns"], file.host),
                "phase_number": self._clock.phases_of(intended),
            },
        )


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
    if content.numbered is not None:
        each = zip(rows["incarnation"].tolist(), rows["sequence"].tolist(), fences, strict=True)
        found = [content.digest(publisher, number, at, fence=fence) for number, at, fence in each]
        return sets, np.array(found, "i8")
    digests = np.array(content.digest_table(publisher.size_bytes), "i8")
    return sets, digests[sets, payloads.astype("i8")]


class AckReader(RecordReader):
    """One row per answered publication, from rows that answer ranges of them."""

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
                "acked_ns": self._clock.moved(spread["acked_ns"], file.host),
                "answer": spread["outcome"],
            },
        )


class DeliveryReader(RecordReader):
    """Rows of what subscribers received; a stretch becomes the deliveries that it stands for.

    Of these nobody knows more than between which two instants they came. They have the earlier
    one, with what that may be wrong by as part of their error, and no digest of their own.
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
            beyond = folded_in(rows)
            places += file.place_of(first_row) - first_row + np.cumsum(beyond) - beyond
            parts = [*self._parts(beyond + 1)]
        else:
            parts = [slice(0, len(rows))]
        for part in parts:
            yield self._batch(file, rows[part], places[part])

    @staticmethod
    def _is_sampled(file: RecordFile, sequences: Any) -> Any:
        """Whether latencies may be told: what keeps its time by chance is not like the rest."""
        sample: Any = file.tables.get("sample") or {"block": 1, "one_in": 1}
        return sequences // sample["block"] % sample["one_in"] == 0

    @staticmethod
    def _parts(lengths: Any) -> Iterator[slice]:
        """Records that stand for about a batch of messages, and at least for one."""
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
            sequences, spread, within = self._stretches.unfolded(file, rows)
        rows, folded = rows[spread], folded[spread]
        sources = self._names.sources_of(file)[rows["publisher"]]
        errors = self._clock.errors_us(file.host, self._names.hosts_of_sources(file.host))
        lasted_ms = np.where(folded, rows["partition"], 0).astype("i8")
        moved = self._clock.moved(rows["received_ns"], file.host)
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
    """Where deliveries stand in streams that are not their sources'.

    Whose they are is said by the rows of deliveries beside them.
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
                "t_recv_ns": self._clock.moved(rows["received_ns"], file.host),
            },
        )


def deliveries_beside(file: RecordFile) -> Any:
    """The rows of deliveries that a file of positions is about."""
    path = file.path.with_name("deliveries.rec")
    rows = path.stat().st_size // RECORD_BYTES if path.is_file() else 0
    dtype = RECORDS["deliveries"]
    return np.memmap(path, dtype, mode="r", shape=(rows,)) if rows else np.empty(0, dtype)


def check_positions(files: Iterable[RecordFile]) -> None:
    """Refuse files of positions that speak of deliveries that are not there.

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


# --- Bringing them together -----------------------------------------------------------------

PUBLICATION = ["source", "incarnation", "seq"]


def with_acks(publications: "DataFrame", acks: "DataFrame") -> "DataFrame":
    """Publications with what became of them; `answer` is a place in OUTCOMES.

    An acknowledgement counts for more than a refusal, because it is the stronger promise.
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
    """Deliveries, each with what is known of its publication; null where nobody sent it.

    Args:
        once: whether it is known that no number of a source was used for two publications.
        rows: how many publications there are: a few are held by every task while deliveries
            stream past, so that these need not be moved; of very many, tables are sorted.
    """
    from pyspark.sql import functions as F

    columns = ["digest", "attrs_expected", "answer", "phase_number", "t_intended_ns", "t_sent_ns"]
    sent = publications.select(*PUBLICATION, *columns)
    if not once:
        # A number used twice is a finding of its own and must not double its deliveries here.
        sent = sent.groupBy(*PUBLICATION).agg(*[F.min(name).alias(name) for name in columns])
    if rows < BROADCAST_PUBLICATIONS:
        sent = F.broadcast(sent)
    elif rows < HASHED_PUBLICATIONS:
        sent = sent.hint("shuffle_hash")
    return received.join(sent, PUBLICATION, "left").withColumns(
        {
            "lat_response_us": _if_timed(F.col("t_recv_ns") - F.col("t_intended_ns")),
            "lat_service_us": _if_timed(F.col("t_recv_ns") - F.col("t_sent_ns")),
            "same_clock": F.col("err_us") == 0,
            "lat_err_us": F.when(F.col("err_us") >= 0, F.col("err_us")),
            # Of a stretch who received it has compared contents; there is none where one was wrong.
            "digest_ok": F.col("is_folded") | (F.col("received_digest") == F.col("digest")),
        }
    )


def _if_timed(nanoseconds: Any) -> Any:
    """In µs; nothing where it is not known when a delivery came."""
    from pyspark.sql import functions as F

    return F.when(F.col("is_timed"), F.floor(nanoseconds / 1000).cast("BIGINT"))
