"""Readers of record files: they turn records into rows of tables, in Spark's workers.

Record files are cut at record boundaries, and each piece is read with a single `numpy` call; a row
is never touched in Python.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from results.rules.expectation import (
    GOLDEN,
    MIX_A,
    MIX_B,
    PAYLOADS_PER_TABLE,
    ExpectedContent,
    parse_predicate,
    seed_of_source,
)
from results.tables.frames import small_frame
from results.tables.json_files import IntegrityError
from results.tables.names import Clock, Names
from results.tables.record_files import (
    NOTICE,
    RECORD_BYTES,
    RECORDS,
    STRETCH,
    RecordFile,
    count_folded,
)
from results.tables.schema import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LEAST_LOOKED_AT = 64


class StretchReader:
    """An expander of stretches; pickled for Spark's workers.

    A stretch of n deliveries up to a number represents the last n publications up to that number
    that match the subscription's predicate. A stretch contains no fence.

    Args:
        publishers: source → publisher.
        predicates: subscription → predicate.
    """

    def __init__(
        self,
        content: ExpectedContent,
        publishers: Mapping[str, str],
        predicates: Mapping[str, str],
    ) -> None:
        self._content = content
        self._publishers = dict(publishers)
        self._predicates = dict(predicates)
        self._tables: dict[str, Any] = {}

    def unfold(self, file: RecordFile, rows: Any) -> tuple[Any, Any, Any]:
        """Return sequence number, record and place within the record of every delivery.

        Raises:
            IntegrityError: too few publications match.
        """
        counts = np.where(rows["kind"] == STRETCH, rows["digest"], 1).astype("i8")
        spread = np.repeat(np.arange(len(rows)), counts)
        starts = np.cumsum(counts) - counts
        within = np.arange(len(spread)) - starts[spread]
        sequences = rows["sequence"][spread]
        for number in np.flatnonzero(rows["kind"] == STRETCH):
            start, count = int(starts[number]), int(counts[number])
            sequences[start : start + count] = self._numbers(file, rows[number], count)
        return sequences, spread, within

    def _numbers(self, file: RecordFile, row: Any, count: int) -> Any:
        pubend = file.tables["publishers"][row["publisher"]]
        subscription = file.tables["subscriptions"][row["subscription"]]
        publisher = self._content.publishers.get(self._publishers.get(pubend, ""))
        if publisher is None:
            raise IntegrityError(f"{file.path}: a stretch of {pubend}, which is no publisher's")
        wanted = self._wanted(subscription)
        last = int(row["sequence"])
        if wanted.all():
            return np.arange(last - count + 1, last + 1)
        seed = np.uint64(
            seed_of_source(self._content.seed, publisher.index, int(row["incarnation"]))
        )
        share = max(float(wanted.mean()), 1e-6)
        found: list[Any] = []
        missing = count
        if not wanted.any():
            last = 0
        while missing > 0 and last >= 1:
            looked_at = max(_LEAST_LOOKED_AT, int(missing / share * 1.1))
            numbers = np.arange(max(1, last - looked_at + 1), last + 1)
            mixed = splitmix64(numbers.astype("u8") + seed)
            sets = (mixed % np.uint64(self._content.fence_set)).astype("i8")
            found.insert(0, numbers[wanted[sets]])
            missing -= len(found[0])
            last = int(numbers[0]) - 1
        if missing > 0:
            raise IntegrityError(
                f"{file.path}: a stretch of {count} deliveries of {pubend} to {subscription} up to "
                f"{row['sequence']}, and only {count - missing} match"
            )
        return np.concatenate(found)[-count:]

    def _wanted(self, subscription: str) -> Any:
        """Return a mask of the attribute sets that match the subscription's predicate."""
        predicate = self._predicates.get(subscription, "true")
        table = self._tables.get(predicate)
        if table is None:
            node = parse_predicate(predicate)
            table = np.array([node.holds(each) for each in self._content.attribute_sets], "?")
            self._tables[predicate] = table
        return table


def splitmix64(numbers: Any) -> Any:
    """Return one step of splitmix64 on a column of unsigned 64-bit numbers."""
    mixed = numbers + np.uint64(GOLDEN)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(MIX_A)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(MIX_B)
    return mixed ^ mixed >> np.uint64(31)


PIECE_ROWS = 1 << 19
BATCH_ROWS = 1 << 16
READ_HERE_ROWS = 1 << 15
"""Limit of rows that this process reads itself, with the deliveries of stretches."""


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
        for batch in batches:
            for piece in batch.to_pylist():
                yield from _read_piece(
                    by_number[piece["file"]], reader, piece["first"], piece["rows"]
                )

    if sum(max(file.rows, file.places) for file in by_number.values()) <= READ_HERE_ROWS:
        # Spark's workers start in the time of a hundred times as many rows.
        found = [
            batch
            for number, first, rows in pieces
            for batch in _read_piece(by_number[number], reader, first, rows)
        ]
        return spark.createDataFrame(pa.Table.from_batches(found), reader.ddl)
    frame = small_frame(spark, pieces, "file INT, first BIGINT, rows BIGINT")
    return frame.repartition(min(len(pieces), 4096)).mapInArrow(read, reader.ddl)


def _read_piece(
    file: RecordFile, reader: RecordReader, first: int, rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that the reader makes of some records of a file."""
    dtype = RECORDS[reader.layout]
    for start in range(first, first + rows, BATCH_ROWS):
        count = min(BATCH_ROWS, first + rows - start)
        records = np.fromfile(file.path, dtype, count, offset=start * RECORD_BYTES)
        yield from reader.batches(file, records, start)


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
        delivered = deliveries_of_positions(file)["subscription"][rows["row"]]
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


def deliveries_of_positions(file: RecordFile) -> Any:
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
        wrong = np.flatnonzero((rows < 0) | (rows >= len(deliveries_of_positions(file))))
        if wrong.size:
            raise IntegrityError(
                f"{file.path}, record {int(wrong[0])}: the position of delivery "
                f"{int(rows[wrong[0]])}, which is not there"
            )
