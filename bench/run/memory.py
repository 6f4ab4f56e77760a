"""How large the processes of a run were, from the statistics that each wrote once a second."""

import json
from collections.abc import Mapping
from pathlib import Path

Memory = Mapping[str, int]
"""`first`, `largest` and `last`: resident memory in bytes."""


def memory_of(raw: Path) -> dict[str, Memory]:
    """By process, for all below `raw` that wrote it down; a torn last line is left out."""
    found: dict[str, Memory] = {}
    for path in sorted(raw.glob("*/*/stats.jsonl")):
        sizes = [size for line in path.read_bytes().splitlines() if (size := _size(line))]
        if sizes:
            found[path.parent.name] = {
                "first": sizes[0],
                "largest": max(sizes),
                "last": sizes[-1],
            }
    return found


def _size(line: bytes) -> int:
    try:
        size = json.loads(line).get("rss_bytes", 0)
    except ValueError:
        return 0
    return size if isinstance(size, int) else 0
