"""Layouts of a report's drawings: faults over time, and latencies of all runs on shared axes.

This module decides only places and words; the template draws. A fault's effect is never shown by
colour alone: every effect has a pattern or a word.

Each run is a line over the percentiles, on a logarithmic axis of latency. Each point has its value
as a title, which browsers show under the pointer; the page needs no script for them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from results.report import text
from results.report.run_reader import Row, RunSummary
from results.report.text import SECOND_NS, seconds
from results.rules.fault_log import FAULT_STAMPS, FaultSpan, fault_spans
from results.tables.manifest import Run

Size = Literal["wide", "narrow"]

LANES_WIDTHS = {"wide": 960.0, "narrow": 340.0}
LANES_LEFTS = {"wide": 112.0, "narrow": 70.0}
LONGEST_TARGETS = {"wide": 11, "narrow": 6}
LANES_RIGHT, LANES_TOP = 14.0, 46.0
LANE_HEIGHT, BAR_HEIGHT = 92.0, 24.0
LABEL_LETTER, MARK_WIDTH = 6.7, 11.5
LANE_KINDS = ("limited", "held", "cut", "down", "back")

STAMP_NAMES: Mapping[str, str] = {
    name: name.removeprefix("t_").removesuffix("_ns").replace("_", " ") for name in FAULT_STAMPS
}


@dataclass(frozen=True)
class Bar:
    """A period in which a fault had an effect; a label that does not fit is placed above."""

    x: float
    width: float
    kind: str
    label: str
    label_x: float
    inside: bool
    words: str


@dataclass(frozen=True)
class Mark:
    """A stamp of a fault."""

    x: float
    stage: str
    words: str


@dataclass(frozen=True)
class Risk:
    """A span from the start of a period of risk to the last delivery at risk."""

    x: float
    width: float
    label: str
    label_x: float
    anchor: str
    is_whole: bool


@dataclass(frozen=True)
class Lane:
    """The events of a broker or link."""

    target: str
    shown: str
    y: float
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...]
    risks: tuple[Risk, ...]


@dataclass(frozen=True)
class LanesPicture:
    """All faults of a run on its time line."""

    width: float
    height: float
    left: float
    right: float
    ticks: tuple[tuple[float, str], ...]
    lanes: tuple[Lane, ...]
    kinds: tuple[str, ...]
    words: str


def lanes_picture(summary: RunSummary, size: Size = "wide") -> LanesPicture | None:
    """Return the faults over time, a lane per broker or link; None if no fault was applied."""
    run = summary.run
    full_width, axis_left = LANES_WIDTHS[size], LANES_LEFTS[size]
    axis_right = full_width - LANES_RIGHT
    rows = [row for row in run.fault_rows if row.get("t_applied_ns") is not None]
    if not rows:
        return None
    end_ns = _end_ns(run)
    start_ns = min(0, *(row["t_applied_ns"] for row in rows))
    scale = (axis_right - axis_left) / max(1, end_ns - start_ns)

    def x(t_ns: int) -> float:
        shown_ns = max(start_ns, min(t_ns, end_ns))
        return float(round(axis_left + (shown_ns - start_ns) * scale, 2))

    spans = fault_spans(rows, end_ns)
    lanes = [
        Lane(
            target=target,
            shown=shorten(target, LONGEST_TARGETS[size]),
            y=LANES_TOP + place * LANE_HEIGHT,
            bars=tuple(_bars([span for span in spans if span.target == target], x, axis_right)),
            marks=tuple(_marks([row for row in rows if row["target"] == target], x, axis_right)),
            risks=tuple(
                _risk(recovery, x, end_ns, full_width)
                for recovery in summary.verdict.get("recoveries", ())
                if recovery["target"] == target and recovery["at_risk"]
            ),
        )
        for place, target in enumerate(dict.fromkeys(row["target"] for row in rows))
    ]
    kinds = {bar.kind for lane in lanes for bar in lane.bars}
    return LanesPicture(
        width=full_width,
        height=LANES_TOP + len(lanes) * LANE_HEIGHT + 24,
        left=axis_left,
        right=axis_right,
        ticks=tuple(
            (x(t_ns), f"{t_ns // SECOND_NS}")
            for t_ns in _ticks_ns(start_ns, end_ns, full_width / 80)
        ),
        lanes=tuple(lanes),
        kinds=tuple(kind for kind in LANE_KINDS if kind in kinds),
        words="; ".join(map(_span_in_full, spans)),
    )


def _bars(
    spans: Sequence[FaultSpan], x: Callable[[int], float], axis_right: float
) -> Iterator[Bar]:
    free_above = 0.0
    for span in spans:
        left = x(span.from_ns)
        width = max(2.5, round(x(span.to_ns) - left, 2))
        lasted = f"{seconds(span.to_ns - span.from_ns, 2)} s"
        label = {"back": f"back after {lasted}", "down": f"down {lasted}"}.get(
            span.kind, f"{span.verb} {lasted}"
        )
        if span.verb == "cut":
            label = f"cut {lasted}"
        needed = len(label) * LABEL_LETTER + 6
        inside = needed <= width
        label_x = round(left + width / 2, 2)
        if not inside:
            label_x = round(min(left, axis_right + LANES_RIGHT - needed), 2)
            if label_x < free_above:
                label = ""
            else:
                free_above = label_x + needed
        kind = "cut" if span.verb == "cut" else span.kind
        yield Bar(left, width, kind, label, label_x, inside, _span_in_full(span))


def _marks(rows: Sequence[Row], x: Callable[[int], float], axis_right: float) -> Iterator[Mark]:
    """Yield stamps in order of time, with overlapping stamps side by side."""
    stamps = sorted(
        (row[name], place, FAULT_STAMPS.index(name), row["verb"])
        for place, row in enumerate(rows)
        for name in FAULT_STAMPS
        if row.get(name) is not None
    )
    places: list[float] = []
    for t_ns, *_ in stamps:
        places.append(max([x(t_ns), *(place + MARK_WIDTH for place in places[-1:])]))
    end = axis_right + LANES_RIGHT - MARK_WIDTH / 2
    for number in reversed(range(len(places))):
        places[number] = round(min(places[number], end), 2)
        end = places[number] - MARK_WIDTH
    for place, (t_ns, _, number, verb) in zip(places, stamps, strict=True):
        stage = STAMP_NAMES[FAULT_STAMPS[number]]
        yield Mark(place, stage, f"{verb} {stage} at {seconds(t_ns)} s")


def _risk(recovery: Row, x: Callable[[int], float], end_ns: int, full_width: float) -> Risk:
    to_ns = end_ns if recovery["to_ns"] is None else recovery["to_ns"]
    left = x(recovery["from_ns"])
    right = x(max(to_ns, to_ns + (recovery["recovered_after_ns"] or 0)))
    at_risk, recovered = recovery["at_risk"], recovery["recovered"]
    is_whole = recovered == at_risk
    label = f"{at_risk:,} at risk, " + (
        "all arrived" if is_whole else f"{at_risk - recovered:,} lost"
    )
    needed = len(label) * LABEL_LETTER + 12
    anchor = "start" if right + needed < full_width else "end"
    label_x = right + 8 if anchor == "start" else left - 8
    return Risk(left, max(3.0, right - left), label, label_x, anchor, is_whole)


def _ticks_ns(start_ns: int, end_ns: int, most: float) -> Iterator[int]:
    """Yield at most `most` times, on round seconds."""
    steps = [base * 10**power for power in range(6) for base in (1, 2, 5)]
    wanted = (end_ns - start_ns) / SECOND_NS / most
    step_ns = next((step for step in steps if step >= wanted), steps[-1]) * SECOND_NS
    t_ns = -(-start_ns // step_ns) * step_ns
    while t_ns <= end_ns:
        yield t_ns
        t_ns += step_ns


def _span_in_full(span: FaultSpan) -> str:
    return f"{span.verb} {span.target}, {seconds(span.from_ns)} to {seconds(span.to_ns)} s"


def _end_ns(run: Run) -> int:
    """Return the end of the time line: the end of measurement, or a later stamp of a fault."""
    stamps = [row.get(name) or 0 for row in run.fault_rows for name in FAULT_STAMPS]
    return int(max(SECOND_NS, run.phase("measure").to_ns, *stamps))


def shorten(text: str, length: int) -> str:
    """Return the text, truncated with … beyond the length."""
    return text if len(text) <= length else text[: length - 1] + "…"


WIDTH, HEIGHT = 720.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 24.0, 16.0, 34.0
COLUMNS: Final[Mapping[str, str]] = {
    "p50": "50 %", "p90": "90 %", "p99": "99 %", "p999": "99.9 %", "max": "largest",
}  # fmt: skip
STYLES: Final = (("back", "0"), ("held", "6 4"), ("down", "2 4"), ("bad", "9 3 2 3"))
"""Colour and dashes of a line; a line is recognised without its colour."""


@dataclass(frozen=True)
class Point:
    """A percentile of a run, with its value in words."""

    x: float
    y: float
    words: str


@dataclass(frozen=True)
class Line:
    """The latencies of a run."""

    name: str
    colour: str
    dashes: str
    points: Sequence[Point]

    @property
    def path(self) -> str:
        """The points for SVG."""
        return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in self.points)


@dataclass(frozen=True)
class LatencyPicture:
    """Lines of all runs, with the places of the labels of both axes."""

    lines: Sequence[Line]
    columns: Sequence[tuple[float, str]]
    grid: Sequence[tuple[float, str]]


def latency_picture(summaries: Sequence[RunSummary], names: Sequence[str]) -> LatencyPicture | None:
    """Return the drawing; None if fewer than two runs measured latencies.

    Args:
        names: the name of each run on the page.
    """
    found = [
        (name, values)
        for name, summary in zip(names, summaries, strict=True)
        if (values := _latencies(summary))
    ]
    if len(found) < 2:
        return None
    every = [value for _, values in found for value in values.values()]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    high = max(high, low + 1)
    step = (WIDTH - LEFT - RIGHT) / (len(COLUMNS) - 1)
    places = {name: LEFT + number * step for number, name in enumerate(COLUMNS)}

    def height_of(value_us: float) -> float:
        share = (math.log10(value_us) - low) / (high - low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    lines = []
    for number, (name, values) in enumerate(found):
        colour, dashes = STYLES[number % len(STYLES)]
        points = [
            Point(
                places[key],
                height_of(value),
                f"{name}, {COLUMNS[key]}: {text.latency(round(value))}",
            )
            for key, value in values.items()
        ]
        lines.append(Line(name, colour, dashes, points))
    grid = [
        (height_of(10.0**power), text.latency(10**power)) for power in range(max(0, low), high + 1)
    ]
    return LatencyPicture(lines, [(places[key], text) for key, text in COLUMNS.items()], grid)


def _latencies(summary: RunSummary) -> dict[str, float]:
    """Return the percentiles of the headline that are above 0, in µs."""
    found = (summary.run.manifest.get("headline") or {}).get("response_us") or {}
    return {
        key: float(found[key])
        for key in COLUMNS
        if isinstance(found.get(key), int | float) and found[key] >= 1
    }
