"""Style of every figure of the graph experiments, and the files beside a figure."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.tables.json_files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FIGURE_SCHEMA = "pubsubctl/figure/1"
FORMATS = ("svg", "png")

# The inks of a picture on a dark page; an SVG in a page adopts the page's preference.
DARK_INKS: Mapping[str, str] = {
    "#1f2430": "#e4e7ec",
    "#1a1a1a": "#e4e7ec",
    "#000000": "#e4e7ec",
    "#444444": "#8b93a1",
    "#69707d": "#9aa3b2",
    "#e3e6ea": "#2b313c",
    "#dddddd": "#2b313c",
    "#0072b2": "#5cb3e8",
    "#00876c": "#3fc4a2",
    "#9a5fb5": "#c592dc",
    "#c4321f": "#ff7a66",
    "#d98200": "#f5ab3d",
    "#f4c463": "#8a6420",
    "#aab0b9": "#5b6370",
    "#ffffff": "#12151b",
}

STYLE: Mapping[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.formatter.min_exponent": 6,  # 0.01 and 100000 on logarithmic axes, no powers
    "axes.grid": True,
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 11,
    "figure.dpi": 100,
    "font.family": "DejaVu Sans",  # part of matplotlib, so equal on all machines
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
    """A number by which a claim may be judged, with a 95 % interval if there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Drawing:
    """A figure with its numbers and texts.

    Attributes:
        columns, rows: the content, value by value.
        caption: the measurement, its scale, and the paper's report.
        scale: the size of the experiment; a claim may require the paper's scale.
        metrics: numbers by name.
        run_ids: the runs behind the figure.
        about: further values for drawing the figure again from the files beside it.
    """

    figure: "Figure"
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str
    scale: Mapping[str, Any]
    metrics: Mapping[str, Metric]
    run_ids: tuple[str, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Write picture, values (CSV) and words (JSON); the same bytes for the same values."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        with house_style():
            for suffix in formats:
                picture = io.BytesIO()
                metadata = (
                    {"Date": None, "Creator": None} if suffix == "svg" else {"Software": None}
                )
                self.figure.savefig(picture, format=suffix, metadata=metadata)
                content = picture.getvalue()
                if suffix == "svg":
                    content = adapt_to_dark_pages(content.decode()).encode()
                path = folder / f"{name}.{suffix}"
                write_whole(path, content)
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
            **({"about": dict(self.about)} if self.about else {}),
        }
        for suffix, text in (("csv", self._csv()), ("json", _json(words))):
            path = folder / f"{name}.{suffix}"
            write_whole(path, text)
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
    """Apply our style in this block, regardless of the machine's settings."""
    import matplotlib

    parameters: dict[Any, Any] = {**matplotlib.rcParamsDefault}
    parameters.update(STYLE)
    with matplotlib.rc_context(parameters):
        yield


def adapt_to_dark_pages(svg: str) -> str:
    """Return an SVG with other inks if the reader prefers dark pages; otherwise unchanged."""
    rules = "".join(
        f'[style*="{attribute}: {light}"]{{{attribute}:{dark}!important}}'
        for light, dark in DARK_INKS.items()
        for attribute in ("fill", "stroke")
        if f"{attribute}: {light}" in svg
    )
    style = f"@media (prefers-color-scheme:dark){{{rules}}}</style>"
    return svg.replace("</style>", style, 1) if rules else svg


def new_figure(panels: Sequence[int]) -> "tuple[Figure, dict[int, Axes]]":
    """Return a figure with a panel for each key, side by side, with a common y axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    return figure, dict(zip(panels, axes, strict=True))


def plain_log_axis(axes: "Axes", ticks: Sequence[int], low: float, high: float) -> None:
    """Set a logarithmic x axis with plain numbers as ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(low, high)


def plain_log_ticks(axis: "Axis") -> None:
    """Set a logarithmic axis with ticks at 1, 2 and 5 of each decade, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
