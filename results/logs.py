"""The logs that the processes of a run wrote: which there are, and whether they are whole.

Record files are checked here, column by column, and read by `results.load` in parallel.
JSON lines are a few a second and read at once.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from results.manifest import IntegrityError, Run, read_json, read_json_lines
from results.withheld import Notice, Partition

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
}  # fmt: skip
# Column → the string table of the sidecar that it points into, or the values it may have.
POINTERS = {"publisher": "publishers", "subscription": "subscriptions"}
LARGEST_VALUE = {"kind": 3, "layer": 1, "outcome": 2}
NOTICE = 3
LONGEST_ACK = 1 << 24
LARGEST_SEQUENCE = (1 << 47) - 1  # so that incarnation and sequence fit into one 64-bit key

_CHUNK_ROWS = 1 << 15


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
        rising: of publications, whether each source's sequence numbers only went up, so that
            none was used twice.
        notices: of deliveries, the records that announce what is withheld, with their places.
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
    rising: bool = True
    notices: Sequence[tuple[int, Any]] = field(default=(), repr=False)

    @property
    def is_whole(self) -> bool:
        """Whether all that the process wrote down for this run is there."""
        return self.closed and not self.foreign_run

    def doubt(self) -> str | None:
        """Why it is not whole."""
        where = f"{self.host}/{self.process}/{self.path.name}"
        if self.foreign_run:
            return f"{where} is of run {self.foreign_run}"
        if not self.closed:
            torn = f", {self.torn_bytes} bytes of a torn record left out" if self.torn_bytes else ""
            return f"{where} was not closed{torn}"
        return None


@dataclass(frozen=True)
class Process:
    """One process of a run and the folder of what it wrote."""

    host: str
    name: str
    folder: Path
    records: Mapping[str, RecordFile]

    @property
    def role(self) -> str:
        """What it did, by what it wrote."""
        if "publications" in self.records:
            return "publisher"
        return "subscriber" if "deliveries" in self.records else "broker"

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The JSON lines of one of its files, none where it wrote none."""
        return [*read_json_lines(self.folder / name, missing_ok=True)]


def read_processes(run: Run) -> list[Process]:
    """Every process of a run, with its record files checked.

    Raises:
        IntegrityError: a record file does not fit its sidecar.
    """
    folders = sorted(path for path in run.folder.glob("raw/*/*") if path.is_dir())
    paths = [path for folder in folders for path in sorted(folder.glob("*.rec"))]
    # Hashing lets go of the interpreter's lock, so threads are enough.
    with ThreadPoolExecutor() as pool:
        files = [*pool.map(lambda path: read_record_file(path, run.run_id), paths)]
    return [
        Process(
            folder.parent.name,
            folder.name,
            folder,
            {file.layout: file for file in files if file.path.parent == folder},
        )
        for folder in folders
    ]


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
    rising, notices = _verify_content(file, str(sidecar.get("blake2b", "")))
    return replace(file, rising=rising, notices=notices)


def _verify_content(file: RecordFile, expected_hash: str) -> tuple[bool, list[tuple[int, Any]]]:
    """Check hash and columns in one pass.

    Returns:
        Whether sequence numbers only went up, and the notices with their places.
    """
    digest = hashlib.blake2b(digest_size=len(expected_hash) // 2 or 64)
    dtype = RECORDS[file.layout]
    highest: dict[int, int] = {}
    rising = True
    notices: list[tuple[int, Any]] = []
    with file.path.open("rb") as stream:
        place = 0
        while place < file.rows:
            count = min(_CHUNK_ROWS, file.rows - place)
            chunk = stream.read(count * RECORD_BYTES)
            digest.update(chunk)
            records = np.frombuffer(chunk, dtype)
            _verify_columns(file, records, place)
            if file.layout == "publications":
                rising = _only_go_up(records, highest) and rising
            if file.layout == "deliveries":
                found = np.flatnonzero(records["kind"] == NOTICE)
                notices += [(place + int(n), records[n].copy()) for n in found]
            place += count
    if file.closed and digest.hexdigest() != expected_hash:
        raise IntegrityError(f"{file.path}: its content is not what was written")
    return rising, notices


def _only_go_up(records: Any, highest: dict[int, int]) -> bool:
    """Whether each source's numbers go on above `highest`, which is brought up to date."""
    sources = records["publisher"].astype("i8") << 16 | records["incarnation"]
    for source in np.unique(sources):
        numbers = records["sequence"][sources == source]
        if numbers[0] <= highest.get(int(source), -1) or (np.diff(numbers) <= 0).any():
            return False
        highest[int(source)] = int(numbers[-1])
    return True


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
        wrong = np.flatnonzero((rows["sequence"] < 0) | (rows["sequence"] > LARGEST_SEQUENCE))
        if wrong.size:
            raise IntegrityError(
                f"{file.path}, record {place + int(wrong[0])}: a number of no sense"
            )
    if file.layout == "deliveries":
        partitions = len(file.tables.get("partitions", ()))
        notices = rows["kind"] == NOTICE
        counts = rows["digest"]
        wrong = np.flatnonzero(
            notices & ((rows["partition"] >= partitions) | (counts < 1) | (rows["sequence"] < 1))
        )
        if wrong.size:
            raise IntegrityError(
                f"{file.path}, record {place + int(wrong[0])}: a notice of no sense"
            )
    if file.layout == "acks":
        lengths = rows["last"] - rows["first"]
        if (wrong := np.flatnonzero((lengths < 0) | (lengths > LONGEST_ACK))).size:
            raise IntegrityError(
                f"{file.path}, record {place + int(wrong[0])}: a range of no sense"
            )


# --- What follows from the logs together ----------------------------------------------------


@dataclass(frozen=True)
class Source:
    """One publisher as the logs know it."""

    pubend: str
    name: str
    closed: bool

    @property
    def broker(self) -> str:
        return self.pubend.rpartition("/")[0]


@dataclass(frozen=True)
class Subscription:
    """One subscription as the logs know it; stamps are on the run's time line."""

    sub_id: str
    subscriber: str
    broker: str
    predicate: str
    issued_ns: int | None
    accepted_ns: int | None
    closed: bool


@dataclass(frozen=True)
class Logs:
    """All logs of a run, and what they leave in doubt."""

    processes: Sequence[Process]
    sources: Sequence[Source]
    subscriptions: Sequence[Subscription]
    doubts: Sequence[str]

    @property
    def rows(self) -> int:
        """Records in all files together."""
        return sum(file.rows for process in self.processes for file in process.records.values())

    def files(self, layout: str) -> Iterator[RecordFile]:
        """The record files of this layout that belong to this run."""
        for process in self.processes:
            file = process.records.get(layout)
            if file is not None and not file.foreign_run:
                yield file


def read_logs(run: Run) -> Logs:
    """Find and check all logs of a run.

    Raises:
        IntegrityError: a log is not what was written.
    """
    processes = read_processes(run)
    doubts = [
        doubt
        for process in processes
        for file in process.records.values()
        if (doubt := file.doubt()) is not None
    ]
    sources = [*_sources(processes, run, doubts)]
    subscriptions = [*_subscriptions(processes, run, doubts)]
    _miss(doubts, "publisher", run.content.publishers, [source.name for source in sources])
    _miss(doubts, "subscriber", run.subscribers(), [s.subscriber for s in subscriptions])
    return Logs(processes, sources, subscriptions, doubts)


def notices_of(logs: Logs, moved: Callable[[int, str], int]) -> dict[tuple[str, str], list[Notice]]:
    """What each subscription was told of each source that it does not get, in order.

    Args:
        moved: puts a stamp of a host's clock on the run's time line.
    """
    found: dict[tuple[str, str], list[Notice]] = {}
    for file in logs.files("deliveries"):
        tables = file.tables
        partitions = [Partition.of_mapping(values) for values in tables.get("partitions", ())]
        for place, row in file.notices:
            pair = (
                tables["subscriptions"][row["subscription"]],
                tables["publishers"][row["publisher"]],
            )
            first = int(row["sequence"])
            notice = Notice(
                source=pair[1],
                incarnation=int(row["incarnation"]),
                first=first,
                last=first + int(row["digest"]) - 1,
                partition=partitions[row["partition"]],
                place=place,
                received_ns=moved(int(row["received_ns"]), file.host),
            )
            found.setdefault(pair, []).append(notice)
    return found


def _miss(doubts: list[str], role: str, wanted: Any, found: Sequence[str]) -> None:
    if lost := [name for name in wanted if name not in set(found)]:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        doubts.append(f"{role} {', '.join(lost[:3])}{more} left no log")


def _sources(processes: Sequence[Process], run: Run, doubts: list[str]) -> Iterator[Source]:
    content = run.content
    seen: set[str] = set()
    for process in processes:
        file = process.records.get("publications")
        if file is None or file.foreign_run:
            continue
        names: Any = file.tables.get("publisher_names") or {}
        whole = all(
            process.records[layout].is_whole
            for layout in ("publications", "acks")
            if layout in process.records
        )
        for pubend in file.tables.get("publishers", ()):
            name = names.get(pubend, "")
            if name not in content.publishers:
                doubts.append(f"source {pubend} is no publisher of the workload ({name!r})")
                continue
            if pubend in seen:
                doubts.append(f"two logs are of source {pubend}")
                continue
            seen.add(pubend)
            yield Source(pubend, name, whole)
        if _other_attribute_sets(file, content):
            doubts.append(
                f"{process.host}/{process.name} used other attribute sets than the seed's"
            )


def _other_attribute_sets(file: RecordFile, content: Any) -> bool:
    sets = [*file.tables.get("attribute_sets", ())]
    return sets != [content.attributes(number) for number in range(content.fence_set + 1)]


def _subscriptions(
    processes: Sequence[Process], run: Run, doubts: list[str]
) -> Iterator[Subscription]:
    for process in processes:
        file = process.records.get("deliveries")
        known = {line["sub_id"] for line in process.lines("subscriptions.jsonl")}
        for name in file.tables.get("subscriptions", ()) if file is not None else ():
            if name not in known:
                doubts.append(f"subscription {name} was never accepted")
        for line in process.lines("subscriptions.jsonl"):
            accepted_ns = line.get("t_accepted_ns")
            if not accepted_ns:
                doubts.append(f"subscription {line['sub_id']} was never accepted")
            issued_ns = line.get("t_issued_ns")
            yield Subscription(
                line["sub_id"],
                line["subscriber"],
                line["broker"],
                line["predicate"],
                run.moved(issued_ns, process.host) if issued_ns else None,
                run.moved(accepted_ns, process.host) if accepted_ns else None,
                file is not None and file.is_whole,
            )
