"""The recovery in a headline, computed again from the records and the fault log.

The rules are those of the help page on workloads. Windows of the measure phase have one length. A
window after the last change is late if fewer than half of the expected deliveries have arrived, or
if its 99th percentile is above twice the highest percentile before the first change, plus 1 ms.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from results.rules.terms import doubt
from results.tables.record_files import RECORDS
from results.witnesses.folder import FAULTS, MANIFEST, RunFolder

_DATA, _APPLICATION = 0, 1
_WINDOW_NS, _PER_WINDOW, _LEAST = 100_000_000, 20, 5
_SAMPLED_ROWS = 2_000_000
"""Number of rows from which on the run's own figure is of a sample."""
_ROUNDING_US = 1.0

Edges = tuple[int, int, int, int]
"""Start of the phase, first change, last change, end of the phase."""


def doubts_about_recovery(
    folder: RunFolder, headline: Mapping[str, Any], phase: tuple[int, int]
) -> Iterator[str]:
    """Yield a recovery that records and fault log contradict; bursts of the load are not judged."""
    told = headline.get("recovery")
    shaped = any(isinstance(entry.get("rate"), list) for entry in _publishers(folder))
    if "recovery" not in headline or shaped:
        return
    edges = edges_of_faults(folder.fault_rows, phase)
    found = None if edges is None else recovery_of_records(folder.path / "raw", edges)
    if found is _SAMPLED:
        return
    if told is None or found is None:
        if told is not found:
            yield _differ(told, found)
    elif told["is_over"] is not found[1] or abs(told["us"] - found[0]) > _ROUNDING_US:
        yield _differ(told, found)


def edges_of_faults(rows: tuple[Mapping[str, Any], ...], phase: tuple[int, int]) -> Edges | None:
    """Return the edges of a phase with faults; None if no fault began inside of the phase."""
    spans = [
        (row["t_applied_ns"], row.get("t_healed_ns") or row["t_applied_ns"])
        for row in rows
        if row.get("t_applied_ns") and row["t_applied_ns"] < phase[1]
    ]
    if not spans or min(spans)[0] <= phase[0]:
        return None
    return phase[0], min(spans)[0], max(end for _, end in spans), phase[1]


_SAMPLED = (-1.0, False)


def recovery_of_records(raw: Path, edges: Edges) -> tuple[float, bool] | None:
    """Return the recovery time in µs, and whether the run has recovered; None if unmeasured."""
    intended = _intended(raw)
    due: list[Any] = []
    waits: list[Any] = []
    size = 0
    for tables, rows in _files(raw, "deliveries"):
        size += len(rows)
        if "sample" in tables:
            continue
        rows = rows[(rows["kind"] == _DATA) & (rows["layer"] == _APPLICATION)]
        for place, name in enumerate(tables["publishers"]):
            for incarnation in np.unique(rows["incarnation"][rows["publisher"] == place]):
                mine = rows[(rows["publisher"] == place) & (rows["incarnation"] == incarnation)]
                known = intended.get((name, int(incarnation)), np.zeros(1, "i8"))
                numbers = np.where(mine["sequence"] < len(known), mine["sequence"], 0)
                due.append(known[numbers])
                waits.append(mine["received_ns"] - known[numbers])
    if size >= _SAMPLED_ROWS:
        return _SAMPLED
    at = np.concatenate([np.zeros(0, "i8"), *due])
    wait = np.concatenate([np.zeros(0, "i8"), *waits])
    wait, at = wait[at > 0], at[at > 0]
    sent = np.concatenate([np.zeros(0, "i8"), *(each[each > 0] for each in intended.values())])
    return _judge(at, wait, sent, edges)


def _judge(at: Any, wait: Any, sent: Any, edges: Edges) -> tuple[float, bool] | None:
    from_ns, begin_ns, end_ns, to_ns = edges
    before = int(((at >= from_ns) & (at < begin_ns)).sum())
    if not before:
        return None
    window_ns = max(_WINDOW_NS, _PER_WINDOW * (begin_ns - from_ns) // before)
    calm = max(0, begin_ns - from_ns) // window_ns
    count = max(0, to_ns - end_ns) // window_ns
    if calm < _LEAST or count < _LEAST:
        return None
    highest = 0
    for place in range(calm):
        waits = _within(at, wait, from_ns + place * window_ns, window_ns)
        if not len(waits):
            return None
        highest = max(highest, _percentile(waits))
    published = int(((sent >= from_ns) & (sent < begin_ns)).sum())
    last = 0
    for place in range(count):
        start_ns = end_ns + place * window_ns
        waits = _within(at, wait, start_ns, window_ns)
        n_sent = int(((sent >= start_ns) & (sent < start_ns + window_ns)).sum())
        is_short = 2 * len(waits) * published < before * n_sent
        if n_sent and (is_short or _percentile(waits) > 2 * highest + 1_000_000):
            last = place + 1
    return last * window_ns / 1000, count - last >= _LEAST


def _within(at: Any, wait: Any, start_ns: int, window_ns: int) -> Any:
    return np.sort(wait[(at >= start_ns) & (at < start_ns + window_ns)])


def _percentile(ordered: Any) -> int:
    return int(ordered[max(0, -(-99 * len(ordered) // 100) - 1)])


def _intended(raw: Path) -> dict[tuple[str, int], Any]:
    """Return by source the intended times by number; 0 for fences and numbers without a row."""
    found: dict[tuple[str, int], Any] = {}
    for tables, rows in _files(raw, "publications"):
        rows = rows[rows["attribute_set"] != len(tables["attribute_sets"]) - 1]
        for row in rows:
            key = tables["publishers"][int(row["publisher"])], int(row["incarnation"])
            number = int(row["sequence"])
            known = found.get(key, np.zeros(1, "i8"))
            if number >= len(known):
                known = np.concatenate([known, np.zeros(max(number + 1, len(known)), "i8")])
            known[number] = row["intended_ns"]
            found[key] = known
    return found


def _files(raw: Path, layout: str) -> Iterator[tuple[Mapping[str, Any], Any]]:
    for path in sorted(raw.glob(f"*/*/{layout}.rec")):
        tables = json.loads(path.with_name(f"{path.name}.json").read_text("utf-8"))["tables"]
        if tables.get("publishers"):
            content = path.read_bytes()
            whole = len(content) // RECORDS[layout].itemsize * RECORDS[layout].itemsize
            yield tables, np.frombuffer(content[:whole], RECORDS[layout])


def _publishers(folder: RunFolder) -> list[Mapping[str, Any]]:
    found = folder.workload.get("publishers", ())
    return [entry for entry in found if isinstance(entry, Mapping)]


def _differ(found: Any, wanted: Any) -> str:
    return doubt(
        "disagree", one=MANIFEST, other=FAULTS, what="headline.recovery", found=found,
        wanted=wanted,
    )  # fmt: skip
