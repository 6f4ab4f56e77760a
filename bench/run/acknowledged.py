"""Waiting times of publishers for acknowledgements, computed from record files."""

import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from brokerd.history.records import ACKNOWLEDGED, ACKS, ROW_BYTES

LARGEST_SAMPLE: Final = 200_000
_SHORTEST_RUN: Final = 16
_OPEN_SHARE: Final = 0.02

Times = Mapping[tuple[str, int], tuple["array[int]", "array[int]"]]
"""Per source, intended and sent times by sequence number; 0 for an unused number."""


@dataclass(frozen=True)
class Acknowledgements:
    """The acknowledgements of publications that were intended in one stretch of time.

    Attributes:
        waits_ns: times from intended publication to acknowledgement; a sample of many.
        due: number of publications that were intended before the end.
        done: number of publications that were acknowledged before the end.
    """

    waits_ns: list[int] = field(default_factory=list)
    due: int = 0
    done: int = 0

    @property
    def kept_up(self) -> bool:
        """True if all due publications were acknowledged by the end, apart from a few in flight."""
        return self.due - self.done <= max(_SHORTEST_RUN, _OPEN_SHARE * self.due)


def acknowledgements(raw: Path, times: Times, from_ns: int, to_ns: int) -> Acknowledgements:
    """Return the acknowledgements below `raw` of publications intended in [`from_ns`, `to_ns`)."""
    due = sum(0 < at < to_ns for intended, _ in times.values() for at in intended)
    rows = [
        (source, first, last, at)
        for path in sorted(raw.glob("*/*/acks.rec"))
        for source, first, last, at in _rows(path)
    ]
    numbers = sum(last - first + 1 for _, first, last, _ in rows)
    step = max(1, -(-numbers // LARGEST_SAMPLE))
    done = 0
    waits_ns = []
    for source, first, last, at in rows:
        intended = times.get(source, (array("q"), array("q")))[0]
        if at < to_ns:
            done += last - first + 1
        for sequence in range(-(-first // step) * step, min(last + 1, len(intended)), step):
            if from_ns <= intended[sequence] < to_ns:
                waits_ns.append(at - intended[sequence])
    return Acknowledgements(waits_ns, due, done)


def _rows(path: Path) -> Sequence[tuple[tuple[str, int], int, int, int]]:
    """Return (source, first, last, time) of each acknowledgement in a file that was closed."""
    sidecar = json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))
    publishers = sidecar["tables"].get("publishers")
    if not publishers:
        return []
    content = path.read_bytes()
    whole = memoryview(content)[: len(content) // ROW_BYTES * ROW_BYTES]
    return [
        ((publishers[publisher], incarnation), first, last, at)
        for first, last, at, publisher, incarnation, outcome in ACKS.row.iter_unpack(whole)
        if outcome == ACKNOWLEDGED
    ]
