"""Rows of a record file, a column at a time."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brokerd.history.records import ROW_BYTES

_CHUNK_ROWS = 1 << 16


def rows_of(path: Path) -> tuple[memoryview, Mapping[str, Any]]:
    """Whole rows of a record file, and its tables; a torn last row is left out."""
    content = path.read_bytes()
    sidecar = json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))
    whole = len(content) // ROW_BYTES * ROW_BYTES
    return memoryview(content)[:whole], sidecar["tables"]


def transposed(columns: Sequence[memoryview]) -> Iterator[tuple[int, ...]]:
    """Row by row; a chunk at a time, because a list of numbers takes several times its memory."""
    for first in range(0, len(columns[0]), _CHUNK_ROWS):
        chunks = [column[first : first + _CHUNK_ROWS].tolist() for column in columns]
        yield from zip(*chunks, strict=True)
