"""The files of a run folder, and the check that the files are unchanged since the seal."""

import hashlib
import json
import math
import os
import struct
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from results.rules.terms import doubt

LAYOUTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "publications": (
        "<qqqHHI",
        ("sequence", "intended_ns", "at_ns", "publisher", "incarnation", "attribute_set"),
    ),
    "acks": ("<qqqHHBxxx", ("first", "last", "at_ns", "publisher", "incarnation", "outcome")),
    "intents": ("<qqHHxxxxxxxxxxxx", ("last", "at_ns", "publisher", "incarnation")),
    "deliveries": (
        "<qqIIHHBBH",
        ("sequence", "at_ns", "digest", "subscription", "publisher", "incarnation", "kind",
         "layer", "partition"),
    ),
    "positions": ("<qqqIxxxx", ("row", "position", "at_ns", "stream")),
}  # fmt: skip
NOTICE = 3
STRETCH = 5
JITTER_NS = 1_000_000
_MADE_FROM_THE_REST = ("verdict.json", "report.html", "evidence", "figures", "tables")
_DEEPEST = 32
_LARGEST_BYTES = 1 << 30
"""Limit of a file that is read whole."""
_DOCUMENTS = (".json", ".jsonl", ".toml")
_LARGEST = {"kind": 5, "layer": 1, "outcome": 2}


class FileRefusal(Exception):
    """A file is not as written; names the file and the difference."""

    exit_status = 8


def is_sealed(folder: Path) -> bool:
    """Return True if a folder has a valid seal, False without a seal.

    Raises:
        Refused: a file was changed, removed or added, or is no regular file.
    """
    found = _list_entries(folder)
    seal = folder / "SHA256SUMS"
    if not seal.is_file():
        return False
    lines = [line.partition("  ") for line in _read(seal, str.splitlines)]
    listed = {name: digest for digest, _, name in lines}
    there = {path.relative_to(folder).as_posix(): path for path in found if path != seal}
    made = {name for name in {*listed, *there} if name.split("/")[0] in _MADE_FROM_THE_REST}
    for name in sorted({*listed, *there} - made):
        if name not in listed or name not in there:
            raise FileRefusal(f"{folder}: {name} is {'missing' if name in listed else 'too much'}")
    for name in sorted({*there} - made):
        with there[name].open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != listed[name]:
            raise FileRefusal(f"{folder}: {name} has changed")
    return True


def _list_entries(folder: Path) -> list[Path]:
    """Return the files of a folder, none of them larger than what a run writes.

    Raises:
        Refused: an entry is neither file nor folder, or is too large, or folders are too deep.
    """
    found: list[Path] = []
    waiting = [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        with os.scandir(place) as scanned:
            entries = [*scanned]
        for entry in entries:
            path = Path(entry.path)
            if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
                raise FileRefusal(f"{path} is no file")
            if entry.is_dir() and depth == _DEEPEST:
                raise FileRefusal(f"{place}: more than {_DEEPEST} folders in one another")
            if entry.is_dir():
                waiting.append((path, depth + 1))
                continue
            _refuse_size(path, entry.stat().st_size)
            found.append(path)
    return found


def _refuse_size(path: Path, size: int) -> None:
    """Refuse a document that is too large, and records that differ in number from their sidecar."""
    if (path.suffix in _DOCUMENTS or path.name == "SHA256SUMS") and size > _LARGEST_BYTES:
        raise FileRefusal(f"{path} has {size} bytes; no run writes so many")
    sidecar = path.with_name(f"{path.name}.json")
    if path.suffix != ".rec" or not sidecar.is_file() or path.stem not in LAYOUTS:
        return
    facts = read_json(sidecar)
    width = struct.calcsize(LAYOUTS[path.stem][0])
    if facts.get("closed") is True and size != facts.get("rows", -1) * width:
        raise FileRefusal(f"{path} is not what was written: its sidecar has another number of rows")


def _refuse_number(text: str) -> Any:
    raise ValueError(f"{text[:80]} is no number of 64 bits")


def _whole_number(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        _refuse_number(text)
    return int(text)


def _broken_number(text: str) -> float:
    return float(text) if abs(float(text)) < math.inf else _refuse_number(text)


_read_json = json.JSONDecoder(
    parse_int=_whole_number, parse_float=_broken_number, parse_constant=_refuse_number
).decode


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    value = _read(path, _read_json)
    if not isinstance(value, dict):
        raise FileRefusal(f"{path} holds no object")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Return the TOML document in a file."""
    document: dict[str, Any] = _read(path, tomllib.loads)
    return document


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return JSON objects, one per line; a last line without its end is torn and does not count."""
    if not path.is_file():
        return []

    def parse(text: str) -> list[Any]:
        return [_read_json(line) for line in text.rpartition("\n")[0].splitlines()]

    rows: list[dict[str, Any]] = _read(path, parse)
    if not all(isinstance(row, dict) for row in rows):
        raise FileRefusal(f"{path} has a line that is no object")
    return rows


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    if path.exists() and not path.is_file():
        raise FileRefusal(f"{path}: no regular file")
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileRefusal(f"{path}: {error}") from None


@dataclass(frozen=True)
class Records:
    """A record file: its rows by column name, and the facts of its sidecar.

    Attributes:
        whole: the file was closed in order, and belongs to this run.
        doubts: reasons against the rows.
    """

    name: str
    host: str
    whole: bool
    tables: Mapping[str, Any]
    rows: list[dict[str, int]]
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class StreamSelection:
    """The streams to read from a run that is too large to be read whole."""

    sources: frozenset[str]
    subscriptions: frozenset[str]

    def keeps(self, tables: Mapping[str, Any]) -> Callable[[dict[str, int]], bool]:
        """Return a predicate: True for a record of the streams."""
        publishers, known = tables.get("publishers", ()), tables.get("subscriptions", ())
        sources = {n for n, name in enumerate(publishers) if name in self.sources}
        # Records of publishers have no subscription.
        subscriptions = {-1, *(n for n, name in enumerate(known) if name in self.subscriptions)}
        return lambda row: (
            row["publisher"] in sources and row.get("subscription", -1) in subscriptions
        )


def read_records(
    process: Path, layout: str, run_id: str, wanted: StreamSelection | None = None
) -> Records | None:
    """Return the records of a process; None if the process wrote no records of this kind.

    Deliveries have a number in the file, and a place, which also counts deliveries of stretches.

    Args:
        wanted: the streams to keep; with these streams, the digest of the file is not compared.

    Raises:
        Refused: the records do not fit their sidecar.
    """
    path = process / f"{layout}.rec"
    if not path.exists():
        return None
    sidecar = read_json(path.with_name(f"{layout}.rec.json"))
    name = f"{process.parent.name}/{process.name}/{path.name}"
    closed, tables = sidecar.get("closed") is True, sidecar.get("tables") or {}
    code, columns = LAYOUTS[layout]
    if (sidecar.get("layout"), sidecar.get("width")) != (layout, struct.calcsize(code)):
        raise FileRefusal(f"{name}: its sidecar is for something else")
    if wanted is not None:
        rows = [*_read_selected(path, layout, wanted.keeps(tables) if tables else None)]
        is_ours = sidecar.get("run_id") == run_id
        whole = closed and is_ours
        return Records(name, process.parent.name, whole, tables, rows if is_ours else [], ())
    _refuse_size(path, size := path.stat().st_size)
    width = struct.calcsize(code)
    if size > _MOST_ROWS_AT_ONCE * width:
        raise FileRefusal(f"{name} has {size // width} rows, too many to be read at once")
    data = path.read_bytes()
    digest = str(sidecar.get("blake2b", ""))
    found = hashlib.blake2b(data, digest_size=min(max(1, len(digest) // 2), 64)).hexdigest()
    if closed and found != digest:
        raise FileRefusal(f"{name} is not what was written")
    whole_bytes = len(data) // struct.calcsize(code) * struct.calcsize(code) if tables else 0
    rows = [
        dict(zip(columns, row, strict=True)) for row in struct.iter_unpack(code, data[:whole_bytes])
    ]
    if layout == "deliveries":
        place = 0
        for number, each in enumerate(rows):
            each |= {"number": number, "place": place}
            place += each["digest"] if each["kind"] == STRETCH else 1
    _refuse_nonsense(name, layout, tables, rows)
    is_ours = sidecar.get("run_id") == run_id
    doubts = [] if is_ours else [f"{name} is of run {sidecar.get('run_id')}"]
    doubts += [] if closed or not is_ours else [f"{name} was not closed"]
    doubts += _check_clock(name, [row["at_ns"] for row in rows])
    return Records(
        name, process.parent.name, closed and is_ours, tables, rows if is_ours else [],
        tuple(doubts),
    )  # fmt: skip


_AT_ONCE = 1 << 15
_MOST_ROWS_AT_ONCE = 1 << 27


def _read_selected(
    path: Path, layout: str, keeps: Callable[[dict[str, int]], bool] | None
) -> Iterator[dict[str, int]]:
    """Yield the wanted records of a file, read a piece at a time."""
    code, columns = LAYOUTS[layout]
    width = struct.calcsize(code)
    number = place = 0
    with path.open("rb") as file:
        while keeps is not None and (piece := file.read(width * _AT_ONCE)):
            whole = len(piece) // width * width
            for values in struct.iter_unpack(code, piece[:whole]):
                row = dict(zip(columns, values, strict=True))
                row |= {"number": number, "place": place}
                if keeps(row):
                    yield row
                number += 1
                place += row["digest"] if row.get("kind") == STRETCH else 1


def _check_clock(name: str, stamps: list[int]) -> Iterator[str]:
    if n := sum(stamp <= 0 for stamp in stamps):
        yield doubt("untimed", who=name, n=n)
    back_ns = max((a - b for a, b in pairwise(stamps)), default=0)
    if back_ns > JITTER_NS:
        yield doubt("clock_back", who=name, s=back_ns / 1e9)


def _refuse_nonsense(
    name: str, layout: str, tables: Mapping[str, Any], rows: list[dict[str, int]]
) -> None:
    """Refuse numbers outside of their table or without a meaning."""
    limits = {
        "publisher": len(tables.get("publishers", ())) - 1,
        "subscription": len(tables.get("subscriptions", ())) - 1,
        "stream": len(tables.get("streams", ())) - 1,
        **_LARGEST,
    }
    limits = {column: limit for column, limit in limits.items() if rows and column in rows[0]}
    for place, row in enumerate(rows):
        wrong = [column for column, limit in limits.items() if row[column] > limit]
        if layout == "publications" and not 0 <= row["sequence"] < 2**47:
            wrong.append("sequence")
        if layout == "acks" and not 0 <= row["last"] - row["first"] <= 2**24:
            wrong.append("last")
        if layout == "deliveries" and row["kind"] == NOTICE:
            known = row["partition"] < len(tables.get("partitions", ()))
            if not known or row["digest"] < 1 or row["sequence"] < 1:
                wrong.append("partition")
        if layout == "deliveries" and row["kind"] == STRETCH:
            is_long = not 1 <= row["digest"] <= row["sequence"] < 2**47
            wrong += ["digest"] if is_long or row["layer"] != 1 else []
        if wrong:
            raise FileRefusal(f"{name}, record {place}: {wrong[0]} makes no sense")
