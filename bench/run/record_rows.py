"""Columns and rows of record files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brokerd.history.records import ROW_BYTES

_CHUNK_ROWS = 1 << 16


def rows_of(path: Path) -> tuple[memoryview, Mapping[str, Any]]:
    """Return the complete rows of a record file, and its tables; a torn last row is left out."""
    content = path.read_bytes()
    sidecar = json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))
    whole = len(content) // ROW_BYTES * ROW_BYTES
    return memoryview(content)[:whole], sidecar["tables"]


def transposed(columns: Sequence[memoryview]) -> Iterator[tuple[int, ...]]:
    """Yield rows, converted in chunks, because a list of numbers needs several times the memory."""
    for first in range(0, len(columns[0]), _CHUNK_ROWS):
        chunks = [column[first : first + _CHUNK_ROWS].tolist() for column in columns]
        yield from zip(*chunks, strict=True)
