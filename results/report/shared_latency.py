"""Layout of the report's drawing of the latencies of all runs on shared axes.

Each run is a line over the percentiles, on a logarithmic axis of latency. Each point has its value
as a title, which browsers show under the pointer; the page needs no script for them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from results.report import text
from results.report.run_reader import RunStory

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


def latency_picture(stories: Sequence[RunStory], names: Sequence[str]) -> LatencyPicture | None:
    """Return the drawing; None if fewer than two runs measured latencies.

    Args:
        names: the name of each run on the page.
    """
    found = [
        (name, values)
        for name, story in zip(names, stories, strict=True)
        if (values := _latencies(story))
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


def _latencies(story: RunStory) -> dict[str, float]:
    """Return the percentiles of the headline that are above 0, in µs."""
    found = (story.run.manifest.get("headline") or {}).get("response_us") or {}
    return {
        key: float(found[key])
        for key in COLUMNS
        if isinstance(found.get(key), int | float) and found[key] >= 1
    }
