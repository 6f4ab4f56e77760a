"""How every figure of the graph experiments looks, and what is written beside it."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FIGURE_SCHEMA = "pubsubctl/figure/1"
FORMATS = ("svg", "png")

STYLE: Mapping[str, Any] = {
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "figure.dpi": 100,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is the same one everywhere
    "font.size": 9,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "savefig.dpi": 160,
    "svg.fonttype": "path",
    "svg.hashsalt": "pubsubctl",
}


@dataclass(frozen=True)
class Metric:
    """One number that a claim may be judged by, with its 95 % interval where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Drawing:
    """A figure and everything that is said with it.

    Attributes:
        columns, rows: what is shown, value by value.
        caption: what was measured, at what scale, and what the paper reports.
        scale: how large the experiment was; a claim may ask for the paper's scale.
        metrics: numbers by name.
        run_ids: the runs it was drawn from.
    """

    figure: "Figure"
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str
    scale: Mapping[str, Any]
    metrics: Mapping[str, Metric]
    run_ids: tuple[str, ...]

    def write(self, folder: Path, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Write picture, values (CSV) and words (JSON); the same bytes for the same values."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        with house_style():
            for suffix in formats:
                path = folder / f"{name}.{suffix}"
                metadata = (
                    {"Date": None, "Creator": None} if suffix == "svg" else {"Software": None}
                )
                self.figure.savefig(path, format=suffix, metadata=metadata)
                written.append(path)
        words = {
            "schema": FIGURE_SCHEMA,
            "figure": name,
            "caption": self.caption,
            "run_ids": list(self.run_ids),
            "scale": dict(self.scale),
            "metrics": {
                key: {k: v for k, v in vars(metric).items() if v is not None}
                for key, metric in self.metrics.items()
            },
        }
        for suffix, text in (("csv", self._csv()), ("json", _json(words))):
            path = folder / f"{name}.{suffix}"
            path.write_text(text, encoding="utf-8")
            written.append(path)
        return written

    def _csv(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(self.rows)
        return text.getvalue()


@contextmanager
def house_style() -> Iterator[None]:
    """What is drawn in this block looks as our figures do, whatever the machine is set to."""
    import matplotlib

    parameters: dict[Any, Any] = {**matplotlib.rcParamsDefault}
    parameters.update(STYLE)
    with matplotlib.rc_context(parameters):
        yield


def new_figure(panels: Sequence[int]) -> "tuple[Figure, dict[int, Axes]]":
    """A figure with a panel for each of these, side by side, with one y axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    return figure, dict(zip(panels, axes, strict=True))


def plain_log_axis(axes: "Axes", ticks: Sequence[int], low: float, high: float) -> None:
    """A logarithmic x axis whose ticks are the numbers themselves."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(low, high)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
