"""The HTML page over all runs of a folder: verdicts, key numbers, small pictures and links.

The page needs no Spark: numbers are from manifests and verdicts, pictures from the counters of load
generators. Links are relative, so a copy of the folder of runs keeps them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from results.papers.experiment_runs import has_verdict
from results.repetitions.series_runs import KIND as SERIES
from results.report import text
from results.tables.json_files import IntegrityError, read_json, read_json_lines, write_whole

_Read = TypeVar("_Read")
WIDTH: Final = 240
HEIGHT: Final = 44
MOST_POINTS: Final = 120
_SECOND_NS: Final = 1_000_000_000
_CHANGED: Final = "CHANGED"
_WORST: Final = {"INVALID": 0, _CHANGED: 0, "UNKNOWN": 1, "": 2, "VALID": 3}


@dataclass(frozen=True, kw_only=True)
class IndexEntry:
    """A run on the page.

    Attributes:
        folder: the folder of the run, below the folder of the page.
        kind: "run", "series", or the kind of an experiment without brokers.
        verdict: VALID, INVALID or UNKNOWN; CHANGED since the check; "" before a check.
        members: verdicts of a series' runs, by run id.
        plain_verdict: the verdict of the plain judge; "" without one.
    """

    folder: Path
    experiment: str
    kind: str
    state: str
    protocol: str
    verdict: str
    started_utc: str
    labels: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)
    plain_verdict: str = ""

    @property
    def run_id(self) -> str:
        return self.folder.name

    @property
    def is_unjudged(self) -> bool:
        """True if `check` can judge the run, and has not."""
        return not self.verdict and (self.kind == "run" or has_verdict(self.folder))


@dataclass(frozen=True)
class Picture:
    """Deliveries per second over a run, in a drawing of WIDTH and HEIGHT.

    Attributes:
        line: the points of a polyline.
        faults: left edge, width and title of each fault.
        highest: the largest rate.
        seconds: the duration of the drawing.
    """

    line: str
    faults: Sequence[tuple[float, float, str]]
    highest: float
    seconds: float


def write_index(entries: Sequence[IndexEntry], page: Path, left_out: int) -> None:
    """Write the page over runs, the newest first, whole or not at all.

    Args:
        left_out: the number of older runs that the page does not show.
    """
    write_whole(page, render_index(entries, page.parent, left_out))


def render_index(entries: Sequence[IndexEntry], folder: Path, left_out: int) -> str:
    """Return the page over runs; links are relative to a folder."""
    newest = sorted(entries, key=lambda entry: entry.run_id, reverse=True)
    reports = {
        name: page.read_text("utf-8", "replace")
        for name in {entry.experiment for entry in entries}
        if (page := folder / name / "report.html").is_file()
    }
    by_experiment: dict[str, list[Mapping[str, Any]]] = {}
    for entry in newest:
        is_reported = entry.run_id in reports.get(entry.experiment, "")
        row = {**_row(entry, folder), "is_reported": is_reported}
        by_experiment.setdefault(entry.experiment, []).append(row)
    counts = {
        word: sum(entry.verdict == word for entry in entries)
        for word in ("VALID", "INVALID", "UNKNOWN")
    }
    counts["not judged"] = sum(each.is_unjudged for each in entries)
    return text.load_template("index.html").render(
        experiments=by_experiment,
        reports={name: quote(f"{name}/report.html") for name in reports},
        counts=counts,
        newest=newest[0] if newest else None,
        title=_title(entries),
        left_out=left_out,
        words=text,
        width=WIDTH,
        height=HEIGHT,
    )


def _title(entries: Sequence[IndexEntry]) -> str:
    """Return the numbers of runs and of series, which are no runs themselves."""
    series = sum(entry.kind == SERIES for entry in entries)
    runs = text.counted(len(entries) - series, "run")
    return f"{runs}, {series} series" if series else runs


def _row(entry: IndexEntry, folder: Path) -> dict[str, Any]:
    address = quote(entry.folder.relative_to(folder).as_posix())
    figures = sorted(path.name for path in entry.folder.glob("figures/*.svg"))
    has_numbers = entry.verdict != _CHANGED
    return {
        "entry": entry,
        "verdict": entry.verdict or ("not judged" if entry.is_unjudged else ""),
        "numbers": (_of_damaged(numbers_of, entry.folder) or []) if has_numbers else [],
        "picture": _of_damaged(picture_of, entry.folder) if entry.kind == "run" else None,
        "worst": sorted(entry.members.values(), key=lambda word: _WORST.get(word, 2)),
        "address": address,
        "report": f"{address}/report.html" if (entry.folder / "report.html").is_file() else "",
        "figures": [(name[: -len(".svg")], f"{address}/figures/{quote(name)}") for name in figures],
    }


def _of_damaged(read: Callable[[Path], _Read], run: Path) -> _Read | None:
    """Return what a function reads from a run; None for values that no run holds.

    One damaged run hides no other from the page.
    """
    try:
        return read(run)
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def numbers_of(run: Path) -> list[tuple[str, str]]:
    """Return the key numbers of a run: name and text; empty without numbers."""
    headline = _object(run / "manifest.json").get("headline") or {}
    verdict = _object(run / "verdict.json")
    counts, exercised = verdict.get("counts") or {}, verdict.get("exercised") or {}
    response = headline.get("response_us") or {}
    found: list[tuple[str, str]] = []
    if "owed" in counts:
        found.append(("delivered of owed", f"{counts['delivered']:,} of {counts['owed']:,}"))
    wrong = counts.get("violations") or {}
    for kind, number in wrong.items():
        found.append((text.VIOLATIONS.get(kind, kind), f"{number:,}"))
    if exercised.get("at_risk_deliveries"):
        recovered, at_risk = exercised.get("recovered", 0), exercised["at_risk_deliveries"]
        found.append(("recovered of at risk", f"{recovered:,} of {at_risk:,}"))
    if headline.get("delivered_per_s"):
        found.append(("delivered per second", f"{headline['delivered_per_s']:,.0f}"))
    for name in ("p50", "p99"):
        if name in response:
            found.append((f"latency {name}", text.latency(round(response[name]))))
    if mean := headline.get("broker_cpu_us_per_message_mean"):
        found.append(("CPU per delivery and broker", text.latency(round(mean))))
    return found


def picture_of(run: Path) -> Picture | None:
    """Return the deliveries per second of a run, with its faults; None without counters."""
    rows = [
        row
        for path in sorted(run.glob("raw/*/*/stats.jsonl"))
        for row in _rows(path)
        if "delivered" in row and "offered" in row and isinstance(row.get("t_ns"), int)
    ]
    phases = _object(run / "manifest.json").get("phases") or []
    stamps = {each["phase"]: each for each in phases if each.get("t1_ns") is not None}
    if not rows or "measure" not in stamps:
        return None
    from_ns = stamps.get("warmup", stamps["measure"])["t0_ns"]
    until_ns = stamps["measure"]["t1_ns"]  # the load ends here, and so do the rates
    span_ns = max(1, until_ns - from_ns)
    points = min(MOST_POINTS, max(2, span_ns // _SECOND_NS))
    rates = _rates(rows, from_ns, span_ns / points, points)
    highest = max(rates)
    if not highest:
        return None
    step = WIDTH / (points - 1)
    line = " ".join(
        f"{place * step:.1f},{HEIGHT - 2 - rate / highest * (HEIGHT - 6):.1f}"
        for place, rate in enumerate(rates)
    )
    return Picture(line, [*_faults(run, from_ns, span_ns)], highest, span_ns / _SECOND_NS)


def _rates(
    rows: Sequence[Mapping[str, Any]], from_ns: int, width_ns: float, points: int
) -> list[float]:
    """Return deliveries per second in bins; a sample counts evenly since the one before it.

    Nothing is published outside of the bins, so a sample counts for its part inside.
    """
    bins = [0.0] * points
    last: dict[str, tuple[int, int]] = {}
    for row in sorted(rows, key=lambda row: int(row["t_ns"])):
        process, t_ns, delivered = str(row.get("proc_id")), int(row["t_ns"]), int(row["delivered"])
        since_ns, before = last.get(process, (t_ns - 1, 0))
        last[process] = t_ns, delivered
        low = max((since_ns - from_ns) / width_ns, 0.0)
        high = min((t_ns - from_ns) / width_ns, float(points))
        for place in range(int(low), min(points, int(high) + 1)):
            share = min(high, place + 1) - max(low, place)
            bins[place] += (delivered - before) * max(share, 0.0) / max(high - low, 1e-9)
    return [max(0.0, number) / width_ns * _SECOND_NS for number in bins]


def _faults(run: Path, from_ns: int, span_ns: int) -> list[tuple[float, float, str]]:
    found = []
    for row in _rows(run / "faults" / "faults.jsonl"):
        applied_ns, healed_ns = row.get("t_applied_ns"), row.get("t_healed_ns")
        if not isinstance(applied_ns, int):
            continue
        end_ns = healed_ns if isinstance(healed_ns, int) else applied_ns
        left = min(max((applied_ns - from_ns) / span_ns, 0.0), 1.0) * WIDTH
        right = min(max((end_ns - from_ns) / span_ns, 0.0), 1.0) * WIDTH
        title = f"{row.get('verb')} {row.get('target')}"
        found.append((round(left, 1), round(max(1.5, right - left), 1), title))
    return found


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return list(read_json_lines(path)) if path.is_file() else []
    except IntegrityError:
        return []


def _object(path: Path) -> Mapping[str, Any]:
    try:
        found = read_json(path) if path.is_file() else {}
    except IntegrityError:
        return {}
    return found if isinstance(found, dict) else {}
