"""Style of the figures of runs.

Colours are distinguishable with colour blindness, and never carry a meaning alone: risk also has
another mark, loss another shape, and faults have labels.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal


def _cache_folder() -> str:
    """Return the folder for matplotlib's list of fonts."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(home, "pubsubctl", "matplotlib")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return tempfile.mkdtemp(prefix="pubsubctl-matplotlib-")
    return str(folder)


os.environ.setdefault("MPLCONFIGDIR", _cache_folder())

import matplotlib  # noqa: E402  (reads MPLCONFIGDIR when it is imported)
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

Width = Literal["wide", "narrow"]
WIDTHS_INCHES: dict[Width, float] = {"wide": 9.6, "narrow": 4.3}

INK = "#1f2430"
MUTED = "#69707d"
GRID = "#e3e6ea"
PAPER = "#ffffff"
BLUE = "#0072b2"
ORANGE = "#d98200"
RED = "#c4321f"
GREEN = "#00876c"
PURPLE = "#9a5fb5"
SKY = "#3f9fd8"
OLIVE = "#8c8500"
HELD = "#f4c463"
DOWN = "#aab0b9"
SERIES = (BLUE, GREEN, PURPLE, SKY, OLIVE, ORANGE, RED, MUTED)
MARKERS = "osD^"
DASHES = ("-", "--", "-.", ":")

_SETTINGS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "hatch.linewidth": 0.6,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
    "path.simplify": True,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
}


@contextmanager
def run_style() -> Iterator[None]:
    """Apply matplotlib's defaults and our settings, and no user's files."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def new_figure(width: Width, height_inches: float) -> Figure:
    """Return an empty figure outside of any global state."""
    return Figure(figsize=(WIDTHS_INCHES[width], height_inches), layout=None)


def duration_text(microseconds: float) -> str:
    """Return a duration in axis notation."""
    for limit, unit, size in ((1_000, "µs", 1), (1_000_000, "ms", 1_000), (None, "s", 1_000_000)):
        if limit is None or microseconds < limit:
            return f"{microseconds / size:.3g} {unit}"
    raise AssertionError(microseconds)


def literal(text: str) -> str:
    """Return a text of the user for a figure; text between dollar signs would be a formula."""
    return text.replace("$", r"\$")


def duration_axis(axes: Axes, lowest_us: float, highest_us: float) -> None:
    """Set a logarithmic axis of durations with a few round labels."""
    axes.set_yscale("log")
    axes.set_ylim(lowest_us, highest_us)
    ticks = [10.0**power for power in range(10) if lowest_us <= 10.0**power <= highest_us]
    if len(ticks) > 4:
        ticks = ticks[::2]
    axes.set_yticks(ticks, [duration_text(tick) for tick in ticks])
    axes.minorticks_off()


def title(figure: Figure, left: float, text: str) -> None:
    """Write the title of a figure, in its upper left corner."""
    _, height = figure.get_size_inches()
    figure.text(left, 1 - 0.11 / height, text, fontsize=10.5, weight="bold", va="top", color=INK)


def legend(figure: Figure, right: float, key: Sequence[tuple[str, str, str]]) -> None:
    """Draw the key in the upper right corner: (mark, colour, words) from left to right."""
    width, height = figure.get_size_inches()
    small = width < 6
    place = right
    for mark, color, words in reversed(key):
        room = (0.062 * len(words) + (0.2 if small else 0.26)) / width * (0.92 if small else 1)
        place -= room
        y = 1 - (0.30 if small else 0.13) / height
        figure.text(place, y, mark, fontsize=8, va="top", color=color)
        figure.text(place + 0.12 / width, y, words, fontsize=7.5, va="top", color=MUTED)


def label_below_axis(figure: Figure, middle: float, text: str) -> None:
    """Write the label of the x axis below the lowest row."""
    _, height = figure.get_size_inches()
    figure.text(middle, 0.31 / height, text, fontsize=8, color=MUTED, ha="center", va="center")


def footer(figure: Figure, text: str) -> None:
    """Write measurement, machine and size in small print."""
    _, height = figure.get_size_inches()
    figure.text(0.008, 0.05 / height, text, fontsize=6.5, color=MUTED, ha="left", va="bottom")


def line_with_band(
    axes: Axes,
    x: Sequence[float],
    middle: Sequence[float],
    band: tuple[Sequence[float], Sequence[float]] | None,
    colour: str,
    *,
    alpha: float = 0.18,
    **line: Any,
) -> None:
    """Draw a line, and shade the band around the line.

    Args:
        band: the lower ends and the upper ends; None for no band.
        line: style and label of the line.
    """
    if band is not None:
        axes.fill_between(x, *band, color=colour, alpha=alpha, linewidth=0)
    axes.plot(x, middle, color=colour, **line)
