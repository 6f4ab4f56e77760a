"""How large the processes of a run were, from the statistics that each wrote once a second."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Memory = Mapping[str, int]
"""`first`, `largest` and `last`: resident memory in bytes.

Of a broker also `retained`: the most payload bytes that it kept for others.
"""


def memory_of(raw: Path) -> dict[str, Memory]:
    """By process, for all below `raw` that wrote it down; a torn last line is left out."""
    found: dict[str, Memory] = {}
    for path in sorted(raw.glob("*/*/stats.jsonl")):
        rows = [*map(_row, path.read_bytes().splitlines())]
        sizes = [size for row in rows if (size := _number(row, "rss_bytes"))]
        if sizes:
            memory = {"first": sizes[0], "largest": max(sizes), "last": sizes[-1]}
            if any("queue_bytes" in row for row in rows):
                memory["retained"] = max(_number(row, "queue_bytes") for row in rows)
            found[path.parent.name] = memory
    return found


def _row(line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _number(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name, 0)
    return value if isinstance(value, int) else 0
