"""One record file: that it is what its sidecar says, and the little that is looked at at once.

Columns are checked in one pass, with numpy; what rows say is read by `load`, in parallel.
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
# Column → the string table of the sidecar that it points into, or the values it may have.
POINTERS = {"publisher": "publishers", "subscription": "subscriptions", "stream": "streams"}
LARGEST_VALUE = {"kind": 5, "layer": 1, "outcome": 2}
# The stamp of when a row was written, by a clock that only goes forward.
STAMPS = {
    "publications": "sent_ns",
    "acks": "acked_ns",
    "intents": "at_ns",
    "deliveries": "received_ns",
    "positions": "received_ns",
}
# The column with a row's highest sequence number, of those who answer or reserve numbers.
NUMBERS = {"acks": "last", "intents": "last"}
NOTICE = 3
STRETCH = 5
LONGEST_ACK = 1 << 24
LONGEST_STRETCH = 1 << 20
"""Deliveries; more do not come within the tenth of a second that a stretch has."""
LARGEST_SEQUENCE = (1 << 47) - 1  # so that incarnation and sequence fit into one 64-bit key

_CHUNK_ROWS = 1 << 15

SourceNumber = tuple[int, int]
"""A publisher's place in a file's table, and its incarnation."""


@dataclass
class Numbers:
    """Which sequence numbers of one source a file has.

    Attributes:
        highest: of them; 0 for none.
        logged: how many different ones from 1 on; for publications only.
        first_lost: the lowest from 1 on that is not there; for publications only.
    """

    highest: int = 0
    logged: int = 0
    first_lost: int = 1

    def add(self, rising: Any) -> None:
        """Take in numbers that go on above all before them."""
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
    """What one pass over a file's records found.

    Attributes:
        rising: of publications, whether each source's sequence numbers only went up, so that
            none was used twice.
        numbers: of publications, acks and intents.
        notices: of deliveries, the records that announce what is withheld, with their places.
        folded: of deliveries, how many places the records before each chunk take beyond one each,
            and at last those of the whole file.
        in_stretches: of deliveries, how many are told by stretches.
        longest_ms: of these, how long one took at most.
        back_ns: by how much the clock went back at most between two rows.
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
        """Take in the next records of the file."""
        self._add_stamps(records[STAMPS[self.layout]])
        if self.layout == "publications":
            self._add_published(records)
        elif self.layout in NUMBERS:
            for source, values in _by_source(records, NUMBERS[self.layout]):
                of = self.numbers.setdefault(source, Numbers())
                of.highest = max(of.highest, int(values.max()))
        elif self.layout == "deliveries":
            beyond = np.cumsum(folded_in(records))
            found = np.flatnonzero(records["kind"] == NOTICE)
            before = self._rows + self.folded[-1]
            self.notices += [(before + int(n + beyond[n]), records[n].copy()) for n in found]
            self.folded.append(self.folded[-1] + int(beyond[-1]))
            stretches = records[records["kind"] == STRETCH]
            self.in_stretches += int(stretches["digest"].sum(dtype="i8"))
            self.longest_ms = max(self.longest_ms, int(stretches["partition"].max(initial=0)))
        self._rows += len(records)

    def count_again(self, records: Any) -> None:
        """All publications once more, of which some came again or late."""
        self.numbers = {}
        for source, values in _by_source(records, "sequence"):
            self.numbers[source] = numbers = Numbers()
            numbers.add(np.unique(values))

    def _add_stamps(self, stamps: Any) -> None:
        self.untimed += int((stamps <= 0).sum())
        last_ns = int(stamps[0]) if self._last_ns is None else self._last_ns
        self.back_ns = max(self.back_ns, -int(np.diff(stamps, prepend=last_ns).min()))
        self._last_ns = int(stamps[-1])

    def _add_published(self, records: Any) -> None:
        for source, values in _by_source(records, "sequence"):
            of = self.numbers.get(source)
            goes_on = of is None or values[0] > of.highest
            self.rising = self.rising and bool(goes_on) and not (np.diff(values) <= 0).any()
            self.numbers.setdefault(source, Numbers()).add(values)


def folded_in(records: Any) -> Any:
    """How many places each record of deliveries takes beyond its own: those of a stretch."""
    return np.where(records["kind"] == STRETCH, records["digest"].astype("i8") - 1, 0)


def _by_source(records: Any, column: str) -> Iterator[tuple[SourceNumber, Any]]:
    sources = records["publisher"].astype("i8") << 16 | records["incarnation"]
    for source in np.unique(sources):
        yield (int(source) >> 16, int(source) & 0xFFFF), records[column][sources == source]


@dataclass(frozen=True)
class RecordFile:
    """One record file with what its sidecar says.

    Attributes:
        rows: whole records in it.
        torn_bytes: of a record that was cut off at its end.
        closed: whether the process ended it in order.
        foreign_run: the run it belongs to where that is another one, else "".
        tables: names by the numbers that records have.
        facts: everything else in the sidecar.
        scan: what is in it.
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
        """How many messages its records stand for."""
        return self.rows + self.scan.folded[-1]

    def place_of(self, row: int) -> int:
        """The place of the first message that a record stands for, the first of a chunk."""
        assert row % _CHUNK_ROWS == 0, f"record {row} begins no chunk"
        return row + (self.scan.folded[row // _CHUNK_ROWS] if self.scan.folded[-1] else 0)

    @property
    def is_whole(self) -> bool:
        """Whether all that the process wrote down for this run is there."""
        return self.closed and not self.foreign_run

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.host}/{self.process}/{self.path.name}"

    def numbers(self) -> dict[tuple[str, int], Numbers]:
        """The scan's numbers by the names of sources."""
        publishers = self.tables.get("publishers", ())
        return {(publishers[of], inc): n for (of, inc), n in self.scan.numbers.items()}


def read_record_file(path: Path, run_id: str) -> RecordFile:
    """What the sidecar of a record file says, and that the file is what it says.

    Raises:
        IntegrityError: it is not.
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
        raise IntegrityError(
            f"{path}: {size} bytes; its sidecar says {sidecar.get('rows')} records"
        )
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
    """Numbers that lead out of a table or have no meaning."""
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


def _refuse(file: RecordFile, place: int, what: str, wrong: Any) -> None:
    if (found := np.flatnonzero(wrong)).size:
        raise IntegrityError(f"{file.path}, record {place + int(found[0])}: a {what} of no sense")
