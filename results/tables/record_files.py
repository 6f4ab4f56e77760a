"""A record file: verification against its sidecar, and the facts that a first pass collects.

Columns are checked in a single pass, with numpy; `load` reads the rows, in parallel.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from results.tables.json_files import IntegrityError, read_json

RECORD_BYTES = 32
RECORDS: Mapping[str, np.dtype[Any]] = {
    "publications": np.dtype(
        [("sequence", "<i8"), ("intended_ns", "<i8"), ("sent_ns", "<i8"),
         ("publisher", "<u2"), ("incarnation", "<u2"), ("attribute_set", "<u4")]
    ),
    "acks": np.dtype(
        [("first", "<i8"), ("last", "<i8"), ("acked_ns", "<i8"),
         ("publisher", "<u2"), ("incarnation", "<u2"), ("outcome", "u1"), ("", "V3")]
    ),
    "intents": np.dtype(
        [("last", "<i8"), ("at_ns", "<i8"), ("publisher", "<u2"), ("incarnation", "<u2"),
         ("", "V12")]
    ),
    "deliveries": np.dtype(
        [("sequence", "<i8"), ("received_ns", "<i8"), ("digest", "<u4"), ("subscription", "<u4"),
         ("publisher", "<u2"), ("incarnation", "<u2"), ("kind", "u1"), ("layer", "u1"),
         ("partition", "<u2")]
    ),
    "positions": np.dtype(
        [("row", "<i8"), ("position", "<i8"), ("received_ns", "<i8"), ("stream", "<u4"),
         ("", "V4")]
    ),
}  # fmt: skip
# Column → the sidecar's string table for its values, or the largest valid value.
POINTERS = {"publisher": "publishers", "subscription": "subscriptions", "stream": "streams"}
LARGEST_VALUE = {"kind": 5, "layer": 1, "outcome": 2}
# The stamp of writing a row, on a clock that only increases.
STAMPS = {
    "publications": "sent_ns",
    "acks": "acked_ns",
    "intents": "at_ns",
    "deliveries": "received_ns",
    "positions": "received_ns",
}
# The column with a row's highest sequence number, for rows that answer or reserve numbers.
NUMBERS = {"acks": "last", "intents": "last"}
NOTICE = 3
STRETCH = 5
LONGEST_ACK = 1 << 24
LONGEST_STRETCH = 1 << 20
"""The largest number of deliveries in a stretch, which covers a tenth of a second."""
LARGEST_SEQUENCE = (1 << 47) - 1  # so that incarnation and sequence fit into one 64-bit key

_CHUNK_ROWS = 1 << 15

SourceNumber = tuple[int, int]
"""A publisher's index in a file's table, and its incarnation."""


@dataclass
class Numbers:
    """The sequence numbers of a source in a file.

    Attributes:
        highest: the highest number; 0 for none.
        logged: the count of distinct numbers from 1 on; for publications only.
        first_lost: the lowest missing number from 1 on; for publications only.
    """

    highest: int = 0
    logged: int = 0
    first_lost: int = 1

    def add(self, rising: Any) -> None:
        """Add rising numbers above all earlier numbers."""
        rising = rising[rising >= 1]
        if not len(rising):
            return
        if self.first_lost == self.highest + 1:
            steps = np.flatnonzero(rising != np.arange(len(rising)) + self.first_lost)
            self.first_lost += int(steps[0]) if len(steps) else len(rising)
        self.highest = int(rising[-1])
        self.logged += len(rising)


@dataclass
class Scan:
    """The findings of a pass over a file's records.

    Attributes:
        rising: for publications, True if each source's sequence numbers only increased, so no
            number was used twice.
        numbers: for publications, acks and intents.
        notices: for deliveries, the records that announce withheld publications, with places.
        folded: for deliveries, the number of extra places of the records before each chunk, and
            at last of the whole file.
        in_stretches: for deliveries, the number of deliveries in stretches.
        longest_ms: the longest duration of a stretch.
        back_ns: the largest step back of the clock between two rows.
        untimed: rows without a stamp.
    """

    layout: str
    rising: bool = True
    numbers: dict[SourceNumber, Numbers] = field(default_factory=dict)
    notices: list[tuple[int, Any]] = field(default_factory=list)
    folded: list[int] = field(default_factory=lambda: [0])
    in_stretches: int = 0
    longest_ms: int = 0
    back_ns: int = 0
    untimed: int = 0
    _rows: int = 0
    _last_ns: int | None = None

    def add(self, records: Any) -> None:
        """Add the next records of the file."""
        self._add_stamps(records[STAMPS[self.layout]])
        if self.layout == "publications":
            self._add_published(records)
        elif self.layout in NUMBERS:
            for source, values in _group_by_source(records, NUMBERS[self.layout]):
                of = self.numbers.setdefault(source, Numbers())
                of.highest = max(of.highest, int(values.max()))
        elif self.layout == "deliveries":
            beyond = np.cumsum(count_folded(records))
            found = np.flatnonzero(records["kind"] == NOTICE)
            before = self._rows + self.folded[-1]
            self.notices += [(before + int(n + beyond[n]), records[n].copy()) for n in found]
            self.folded.append(self.folded[-1] + int(beyond[-1]))
            stretches = records[records["kind"] == STRETCH]
            self.in_stretches += int(stretches["digest"].sum(dtype="i8"))
            self.longest_ms = max(self.longest_ms, int(stretches["partition"].max(initial=0)))
        self._rows += len(records)

    def count_again(self, records: Any) -> None:
        """Count all publications again, because some arrived twice or late."""
        self.numbers = {}
        for source, values in _group_by_source(records, "sequence"):
            self.numbers[source] = numbers = Numbers()
            numbers.add(np.unique(values))

    def _add_stamps(self, stamps: Any) -> None:
        self.untimed += int((stamps <= 0).sum())
        last_ns = int(stamps[0]) if self._last_ns is None else self._last_ns
        self.back_ns = max(self.back_ns, -int(np.diff(stamps, prepend=last_ns).min()))
        self._last_ns = int(stamps[-1])

    def _add_published(self, records: Any) -> None:
        for source, values in _group_by_source(records, "sequence"):
            of = self.numbers.get(source)
            continued = of is None or values[0] > of.highest
            self.rising = self.rising and bool(continued) and not (np.diff(values) <= 0).any()
            self.numbers.setdefault(source, Numbers()).add(values)


def count_folded(records: Any) -> Any:
    """Return the number of extra places of each record of deliveries: those of a stretch."""
    return np.where(records["kind"] == STRETCH, records["digest"].astype("i8") - 1, 0)


def _group_by_source(records: Any, column: str) -> Iterator[tuple[SourceNumber, Any]]:
    sources = records["publisher"].astype("i8") << 16 | records["incarnation"]
    for source in np.unique(sources):
        yield (int(source) >> 16, int(source) & 0xFFFF), records[column][sources == source]


@dataclass(frozen=True)
class RecordFile:
    """A record file with the content of its sidecar.

    Attributes:
        rows: the number of whole records.
        torn_bytes: the bytes of a truncated last record.
        closed: True if the process closed the file in order.
        foreign_run: the file's run if it is another run, else "".
        tables: names by the numbers in records.
        facts: everything else in the sidecar.
        scan: the findings about the content.
    """

    path: Path
    layout: str
    host: str
    process: str
    rows: int
    torn_bytes: int
    closed: bool
    foreign_run: str
    tables: Mapping[str, Sequence[Any]]
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    scan: Scan = field(default_factory=lambda: Scan(""), repr=False)

    @property
    def places(self) -> int:
        """Return the number of messages that the records represent."""
        return self.rows + self.scan.folded[-1]

    def place_of(self, row: int) -> int:
        """Return the place of the first message of a record, which must be the first of a chunk."""
        assert row % _CHUNK_ROWS == 0, f"record {row} begins no chunk"
        return row + (self.scan.folded[row // _CHUNK_ROWS] if self.scan.folded[-1] else 0)

    @property
    def is_whole(self) -> bool:
        """Return True if everything that the process recorded for this run is present."""
        return self.closed and not self.foreign_run

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.host}/{self.process}/{self.path.name}"

    def numbers(self) -> dict[tuple[str, int], Numbers]:
        """Return the scan's numbers by the names of sources."""
        publishers = self.tables.get("publishers", ())
        return {(publishers[of], inc): n for (of, inc), n in self.scan.numbers.items()}


def read_record_file(path: Path, run_id: str) -> RecordFile:
    """Return a record file, verified against its sidecar.

    Raises:
        IntegrityError: the file differs from its sidecar.
    """
    sidecar = read_json(path.with_name(path.name + ".json"))
    layout = path.stem
    if sidecar.get("layout") != layout or layout not in RECORDS:
        raise IntegrityError(f"{path}: its sidecar is for layout {sidecar.get('layout')!r}")
    if sidecar.get("width") != RECORD_BYTES:
        raise IntegrityError(f"{path}: records of {sidecar.get('width')!r} bytes are unknown")
    size = path.stat().st_size
    rows, torn_bytes = divmod(size, RECORD_BYTES)
    file = RecordFile(
        path=path,
        layout=layout,
        host=path.parent.parent.name,
        process=path.parent.name,
        # A file that was never closed has no tables, and its rows no names.
        rows=rows if sidecar.get("tables") else 0,
        torn_bytes=torn_bytes,
        closed=sidecar.get("closed") is True,
        foreign_run="" if sidecar.get("run_id") == run_id else str(sidecar.get("run_id")),
        tables=sidecar.get("tables") or {},
        facts=sidecar,
    )
    if file.closed and size != sidecar.get("rows", -1) * RECORD_BYTES:
        raise IntegrityError(f"{path}: {size} bytes; its sidecar has {sidecar.get('rows')} records")
    return replace(file, scan=_scan(file, str(sidecar.get("blake2b", ""))))


def _scan(file: RecordFile, expected_hash: str) -> Scan:
    """Check hash and columns in one pass."""
    digest = hashlib.blake2b(digest_size=len(expected_hash) // 2 or 64)
    dtype = RECORDS[file.layout]
    scan = Scan(file.layout)
    with file.path.open("rb") as stream:
        place = 0
        while place < file.rows:
            count = min(_CHUNK_ROWS, file.rows - place)
            chunk = stream.read(count * RECORD_BYTES)
            digest.update(chunk)
            records = np.frombuffer(chunk, dtype)
            _verify_columns(file, records, place)
            scan.add(records)
            place += count
    if file.closed and digest.hexdigest() != expected_hash:
        raise IntegrityError(f"{file.path}: its content is not what was written")
    if not scan.rising:
        scan.count_again(np.fromfile(file.path, dtype, file.rows))
    return scan


def _verify_columns(file: RecordFile, rows: Any, place: int) -> None:
    """Refuse numbers outside of a table or without a meaning."""
    for column in rows.dtype.names:
        if column in POINTERS:
            limit = len(file.tables.get(POINTERS[column], ())) - 1
        elif column in LARGEST_VALUE:
            limit = LARGEST_VALUE[column]
        else:
            continue
        if (wrong := np.flatnonzero(rows[column] > limit)).size:
            at = int(wrong[0])
            raise IntegrityError(
                f"{file.path}, record {place + at}: {column} {rows[column][at]} does not fit its "
                f"sidecar (at most {limit})"
            )
    if file.layout == "publications":
        _refuse(
            file, place, "number", (rows["sequence"] < 0) | (rows["sequence"] > LARGEST_SEQUENCE)
        )
    if file.layout == "deliveries":
        partitions = len(file.tables.get("partitions", ()))
        senseless = (
            (rows["partition"] >= partitions) | (rows["digest"] < 1) | (rows["sequence"] < 1)
        )
        _refuse(file, place, "notice", (rows["kind"] == NOTICE) & senseless)
        senseless = (
            (rows["digest"] < 1) | (rows["digest"] > LONGEST_STRETCH)
            | (rows["sequence"] < rows["digest"]) | (rows["layer"] != 1)
            | (rows["sequence"] > LARGEST_SEQUENCE)
        )  # fmt: skip
        _refuse(file, place, "stretch", (rows["kind"] == STRETCH) & senseless)
    if file.layout == "acks":
        lengths = rows["last"] - rows["first"]
        _refuse(file, place, "range", (lengths < 0) | (lengths > LONGEST_ACK))


def _refuse(file: RecordFile, place: int, problem: str, wrong: Any) -> None:
    if (found := np.flatnonzero(wrong)).size:
        raise IntegrityError(
            f"{file.path}, record {place + int(found[0])}: a {problem} of no sense"
        )
