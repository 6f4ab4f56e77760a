"""The recovery in a headline, computed again from the records and the fault log.

The rules are those of the help page on workloads. Windows of the measure phase have one length. A
window after the last change is late if fewer than half of the expected deliveries have arrived, or
if its 99th percentile is above twice the highest percentile before the first change, plus 1 ms.
"""

import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from brokerd.quantiles import quantile
from results.rules.terms import doubt
from results.witnesses.folder import FAULTS, MANIFEST, RunFolder

_DATA, _APPLICATION = 0, 1
_WINDOW_NS, _PER_WINDOW, _LEAST = 100_000_000, 20, 5
_SAMPLED_ROWS = 2_000_000
"""Number of rows from which on the run's own figure is of a sample."""
_ROUNDING_US = 1.0
_PUBLICATION = struct.Struct("<qqqHHI")  # number, intended, sent, publisher, incarnation, set
_DELIVERY = struct.Struct("<qqIIHHBBH")  # number, received, …, publisher, incarnation, kind, layer

Edges = tuple[int, int, int, int]
"""Start of the phase, first change, last change, end of the phase."""


def doubts_about_recovery(
    folder: RunFolder, headline: Mapping[str, Any], phase: tuple[int, int]
) -> Iterator[str]:
    """Yield a recovery that records and fault log contradict; bursts of the load are not judged."""
    stated = headline.get("recovery")
    shaped = any(isinstance(entry.get("rate"), list) for entry in _publishers(folder))
    if "recovery" not in headline or shaped:
        return
    edges = edges_of_faults(folder.fault_rows, phase)
    found = None if edges is None else recovery_of_records(folder.path / "raw", edges)
    if found is _SAMPLED:
        return
    if stated is None or found is None:
        if stated is not found:
            yield _differ(stated, found)
    elif stated["is_over"] is not found[1] or abs(stated["us"] - found[0]) > _ROUNDING_US:
        yield _differ(stated, found)


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
    due: list[tuple[int, int]] = []
    size = 0
    for tables, rows in _files(raw, "deliveries"):
        size += len(rows) // _DELIVERY.size
        if size >= _SAMPLED_ROWS:
            return _SAMPLED
        if "sample" in tables:
            continue
        for number, received, _, _, place, incarnation, kind, layer, _ in _DELIVERY.iter_unpack(
            rows
        ):
            at = intended.get((tables["publishers"][place], incarnation, number))
            if at is not None and kind == _DATA and layer == _APPLICATION:
                due.append((at, received - at))
    return _judge(due, list(intended.values()), edges)


def _judge(due: list[tuple[int, int]], sent: list[int], edges: Edges) -> tuple[float, bool] | None:
    from_ns, begin_ns, end_ns, to_ns = edges
    before = sum(from_ns <= at < begin_ns for at, _ in due)
    if not before:
        return None
    window_ns = max(_WINDOW_NS, _PER_WINDOW * (begin_ns - from_ns) // before)
    n_calm, n_later = (begin_ns - from_ns) // window_ns, max(0, to_ns - end_ns) // window_ns
    calm: dict[int, list[int]] = {}
    later: dict[int, list[int]] = {}
    for at, wait in due:
        calm.setdefault((at - from_ns) // window_ns, []).append(wait)
        later.setdefault((at - end_ns) // window_ns, []).append(wait)
    if n_calm < _LEAST or n_later < _LEAST or any(place not in calm for place in range(n_calm)):
        return None
    limit_ns = 2 * max(quantile(sorted(calm[place]), 0.99) for place in range(n_calm)) + 1_000_000
    published = sum(from_ns <= at < begin_ns for at in sent)
    n_sent = Counter((at - end_ns) // window_ns for at in sent)
    last = 0
    for place in range(n_later):
        waits = later.get(place, [])
        is_short = 2 * len(waits) * published < before * n_sent[place]
        if n_sent[place] and (is_short or quantile(sorted(waits), 0.99) > limit_ns):
            last = place + 1
    return last * window_ns / 1000, n_later - last >= _LEAST


def _intended(raw: Path) -> dict[tuple[str, int, int], int]:
    """Return the intended time of each publication, by source and number; without fences."""
    found: dict[tuple[str, int, int], int] = {}
    for tables, rows in _files(raw, "publications"):
        fence = len(tables["attribute_sets"]) - 1
        for number, intended, _, place, incarnation, chosen in _PUBLICATION.iter_unpack(rows):
            if chosen != fence and intended:
                found[tables["publishers"][place], incarnation, number] = intended
    return found


def _files(raw: Path, layout: str) -> Iterator[tuple[Mapping[str, Any], memoryview]]:
    for path in sorted(raw.glob(f"*/*/{layout}.rec")):
        tables = json.loads(path.with_name(f"{path.name}.json").read_text("utf-8"))["tables"]
        if tables.get("publishers"):
            content = memoryview(path.read_bytes())
            yield tables, content[: len(content) // _DELIVERY.size * _DELIVERY.size]


def _publishers(folder: RunFolder) -> list[Mapping[str, Any]]:
    found = folder.workload.get("publishers", ())
    return [entry for entry in found if isinstance(entry, Mapping)]


def _differ(found: Any, wanted: Any) -> str:
    return doubt(
        "disagree", one=MANIFEST, other=FAULTS, what="headline.recovery", found=found,
        wanted=wanted,
    )  # fmt: skip
