"""Memory and session counts of the processes of a run.

Every process records its statistics once a second.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

_LOST: Final = "broker_sessions_lost"

_LAST: Final = ("resent_publications", "duplicates_received")

Memory = Mapping[str, int]
"""`first`, `largest` and `last`: resident memory in bytes.

Brokers also have `retained`, the most payload bytes kept for others, and `private`, the memory that
was shared with no other process at the end.
"""


@dataclass(frozen=True)
class ProcessStatistics:
    """The recorded statistics of the processes of a run.

    Attributes:
        memory_bytes: memory by process.
        sessions_lost: number of lost sessions between brokers during the record, over all brokers.
        resent_publications, duplicates_received: the last totals of all brokers.
    """

    memory_bytes: Mapping[str, Memory]
    sessions_lost: int
    resent_publications: int = 0
    duplicates_received: int = 0


def statistics_of(raw: Path) -> ProcessStatistics:
    """Return the statistics of all processes below `raw`, without torn last lines."""
    found: dict[str, Memory] = {}
    sessions_lost = 0
    last = dict.fromkeys(_LAST, 0)
    for path in sorted(raw.glob("*/*/stats.jsonl")):
        rows = [*map(_row, path.read_bytes().splitlines())]
        sizes = [size for row in rows if (size := _number(row, "rss_bytes"))]
        if sizes:
            memory = {"first": sizes[0], "largest": max(sizes), "last": sizes[-1]}
            if any("queue_bytes" in row for row in rows):
                memory["retained"] = max(_number(row, "queue_bytes") for row in rows)
            if private := max(_number(row, "private_bytes") for row in rows):
                memory["private"] = private
            found[path.parent.name] = memory
        for name in _LAST:
            last[name] += _number(rows[-1], name) if rows else 0
        counts = [_number(row, _LOST) for row in rows if _LOST in row]
        sessions_lost += sum(max(0, now - before) for before, now in pairwise(counts))
    return ProcessStatistics(found, sessions_lost, **last)


def _row(line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _number(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name, 0)
    return value if isinstance(value, int) else 0
