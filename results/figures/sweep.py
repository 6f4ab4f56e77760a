"""A sweep: the numbers against one of the varied keys, with a band for chance.

The figure has a line for each combination of the other keys; means over the instances of a point,
and the 95 % interval of the mean, or for few instances the smallest and the largest value. A run
that broke its promise is drawn as a cross. A dashed line is a bound; the danger zone, in which a
bound is passed or a promise is broken, is shaded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from results.figures.drawing import Drawing, Metric, house_style, plain_log_ticks
from results.figures.style import literal
from results.repetitions.numbers import NUMBERS, Number, beyond
from results.repetitions.series_files import SUMMARY, differences
from results.repetitions.series_runs import KIND, read_points
from results.tables.json_files import ResultsError, read_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

SHOWN: Final = (
    "latency_p50_ms", "latency_p99_ms", "delivered_per_s", "delivered_new_per_s",
    "cpu_us_per_delivered", "delivered_fraction", "recovery_s",
)  # fmt: skip
"""The drawn numbers, as far as any run has them."""
_SHARE: Final = "delivered_fraction"
_SIMULATED: Final = "simulated"
_COLOURS: Final = ("#0072b2", "#c4321f", "#00876c", "#9a5fb5", "#d98200", "#1a1a1a")
_MARKERS: Final = "os^Dv*"
_DANGER: Final = "#c4321f"
_LEGIBLE: Final = 32
"""The number of letters that fit below a panel, over all values of an axis."""
_FEW: Final = 5
"""The number of values below which the interval of the mean is meaningless."""
_LOG_BEYOND: Final = 8
"""The ratio of largest to smallest value above which an axis is logarithmic."""


@dataclass(frozen=True)
class Line:
    """A combination of all keys but the x axis's key.

    Attributes:
        at: the place on the x axis and the summary of each point, rising.
        simulated: True for simulated brokers; drawn dashed, in the colour of the real brokers.
    """

    name: str
    at: Sequence[tuple[float, Mapping[str, Any]]]
    simulated: bool = False


def series_sweep(spark: "SparkSession | None", run_dir: Path) -> Drawing:
    """The numbers of a sweep against its first axis.

    Raises:
        ResultsError: the run is no sweep with axes, or is incomplete.
    """
    folder = Path(run_dir)
    manifest = read_json(folder / "manifest.json")
    if manifest.get("kind") != KIND:
        raise ResultsError(f"{folder} is no series of runs; `pubsubctl sweep FILE` makes one")
    if manifest.get("state") != "complete":
        raise ResultsError(f"{folder}: the series is {manifest.get('state')}")
    summary = read_json(folder / SUMMARY)
    axes = summary.get("axes") or []
    if not axes:
        raise ResultsError(f"{folder}: nothing was varied; `plot series.latency` draws it")
    _, points = read_points(folder)
    doubts = tuple(differences(summary["points"], points))
    return draw(manifest, axes, points, summary.get("bounds") or {}, doubts)


@house_style()
def draw(
    manifest: Mapping[str, Any],
    axes: Sequence[Mapping[str, Any]],
    points: Mapping[str, Mapping[str, Any]],
    bounds: Mapping[str, float],
    doubts: Sequence[str] = (),
) -> Drawing:
    """Return the figure from a sweep's summary.

    Args:
        doubts: the numbers and verdicts that the summary and the runs state differently.
    """
    from matplotlib.figure import Figure

    x, *others = axes
    lines = lines_of(x, others, points)
    zones = zones_of(x, lines, bounds)
    shown = _shown(points, bounds)
    columns = 2 if len(shown) > 1 else 1
    rows = -(-len(shown) // columns)
    picture = Figure(figsize=(4.8 * columns, 0.6 + 2.7 * rows), layout="constrained")
    panels = picture.subplots(rows, columns, squeeze=False).flat
    for axes_of_panel, number in zip(panels, shown, strict=False):
        if number.name in bounds:
            axes_of_panel.axhline(bounds[number.name], color=_DANGER, linestyle="--", linewidth=1)
        _draw_number(axes_of_panel, number, x, lines)
        for low, high in zones:
            axes_of_panel.axvspan(low, high, color=_DANGER, alpha=0.1, linewidth=0)
    for empty in [*picture.axes][len(shown) :]:
        empty.set_visible(False)
    if len(lines) > 1:
        handles, labels = picture.axes[0].get_legend_handles_labels()
        texts = [literal(label) for label in labels]
        picture.legend(handles, texts, loc="outside upper left", ncols=min(4, len(lines)))
    return Drawing(
        figure=picture,
        columns=("point", *(axis["key"] for axis in axes), "number", "mean", "low", "high", "runs"),
        rows=[*_rows(axes, points)],
        caption="".join(f"UNKNOWN: {doubt}. " for doubt in doubts)
        + _caption(manifest, x, points, bounds if bounds or zones else None),
        scale={"points": len(points), "instances": manifest["instances"]},
        metrics={
            f"{name}.{point}": Metric(row["mean"], row["low"], row["high"])
            for point, about in points.items()
            for name, row in about["numbers"].items()
        },
        run_ids=tuple(run for about in points.values() for run in about["runs"]),
    )


def lines_of(
    x: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]],
    points: Mapping[str, Mapping[str, Any]],
) -> list[Line]:
    """Return the lines in the order of the points.

    Points that lack a key of the axes are left out.
    """
    places = dict(zip(map(str, x["values"]), _places(x), strict=True))
    varied = [axis["key"] for axis in others if len(axis["values"]) > 1]
    named = [key for key in varied if key != _SIMULATED]
    found: dict[tuple[str, bool], list[tuple[float, Mapping[str, Any]]]] = {}
    for about in points.values():
        keys = about["keys"]
        if x["key"] in keys and all(key in keys for key in varied):
            name = ", ".join(f"{key.rpartition('.')[2]} {keys[key]}" for key in named)
            line = name, bool(keys.get(_SIMULATED))
            found.setdefault(line, []).append((places[str(keys[x["key"]])], about))
    return [
        Line(name, sorted(at, key=lambda place: place[0]), simulated)
        for (name, simulated), at in found.items()
    ]


def zones_of(
    x: Mapping[str, Any], lines: Sequence[Line], bounds: Mapping[str, float]
) -> list[tuple[float, float]]:
    """Return the ranges of the x axis in which a line's point breaks a bound or its promise.

    A zone ends half way to the neighbouring values, on the scale of the axis, and at the first and
    last value.
    """
    places = sorted(_places(x))
    bad = {at for line in lines for at, about in line.at if any(beyond(about, bounds))}
    edges = [sqrt(low * high) if _is_log(x) else (low + high) / 2 for low, high in pairwise(places)]
    starts, ends = [places[0], *edges], [*edges, places[-1]]
    zones: list[tuple[float, float]] = []
    for at, low, high in zip(places, starts, ends, strict=True):
        if at not in bad:
            continue
        if zones and zones[-1][1] == low:
            zones[-1] = zones[-1][0], high
        else:
            zones.append((low, high))
    return zones


def _is_log(x: Mapping[str, Any]) -> bool:
    places = _places(x)
    return bool(x["numbers"]) and min(places) > 0 and max(places) > _LOG_BEYOND * min(places)


def _places(x: Mapping[str, Any]) -> Sequence[float]:
    """Return the places of values: the numbers, or indices for values without numbers."""
    return x["numbers"] or [float(place) for place in range(len(x["values"]))]


def _shown(
    points: Mapping[str, Mapping[str, Any]], bounds: Mapping[str, float]
) -> Sequence[Number]:
    """Return the numbers that any run has.

    The delivered share is included if it varies, or if it is the only number.

    Raises:
        ResultsError: no run has any.
    """
    known = [
        number
        for number in NUMBERS
        if number.name in (*SHOWN, *bounds)
        and any(number.name in about["numbers"] for about in points.values())
    ]
    if not known:
        raise ResultsError(f"no run has a number to draw: {', '.join(SHOWN)}")
    shares = {
        about["numbers"][_SHARE]["mean"] for about in points.values() if _SHARE in about["numbers"]
    }
    informative = [number for number in known if number.name != _SHARE or shares != {1.0}]
    return informative or known


def _draw_number(axes: "Axes", number: Number, x: Mapping[str, Any], lines: Sequence[Line]) -> None:
    names = [*dict.fromkeys(line.name for line in lines)]
    for line in lines:
        place = names.index(line.name)
        colour = _COLOURS[place % len(_COLOURS)]
        marker = _MARKERS[place % len(_MARKERS)]
        style = "--" if line.simulated else "-"
        if not x["numbers"]:
            style = "none"  # nothing lies between two names
        label = f"{line.name}, simulated".removeprefix(", ") if line.simulated else line.name
        known = [(at, about) for at, about in line.at if number.name in about["numbers"]]
        rows = [about["numbers"][number.name] for _, about in known]
        at = [value for value, _ in known]
        means = [row["mean"] for row in rows]
        face = "none" if line.simulated else colour
        axes.plot(
            at, means, color=colour, marker=marker, linestyle=style, markerfacecolor=face,
            label=label,
        )  # fmt: skip
        bands = [_band(row) for row in rows]
        low, high = [low for low, _ in bands], [high for _, high in bands]
        if x["numbers"]:
            axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
        else:
            axes.vlines(at, low, high, color=colour, alpha=0.5, linewidth=3)
        wrong = [
            (value, mean)
            for (value, about), mean in zip(known, means, strict=True)
            if "INVALID" in about["runs"].values()
        ]
        axes.plot(
            [value for value, _ in wrong], [mean for _, mean in wrong], linestyle="none",
            marker="x", markersize=8, markeredgewidth=1.6, color=colour,
        )  # fmt: skip
    _scale_x(axes, x)
    means = [about["numbers"][number.name]["mean"] for line in lines for _, about in line.at
             if number.name in about["numbers"]]  # fmt: skip
    is_log = min(means) > 0 and max(means) > _LOG_BEYOND * min(means)
    if is_log:
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
    else:
        axes.set_ylim(0, 1.08 * axes.dataLim.y1 or 1)
    notes = [note for note in (number.unit, "logarithmic" if is_log else "") if note]
    ending = f"_{number.unit.replace('/', 'per_')}"
    unit = f" ({', '.join(notes)})" if notes else ""
    axes.set_title(f"{number.name.removesuffix(ending)}{unit}")


def _band(row: Mapping[str, Any]) -> tuple[float, float]:
    low, high = ("low", "high") if row["n"] >= _FEW else ("smallest", "largest")
    return row[low], row[high]


def _scale_x(axes: "Axes", x: Mapping[str, Any]) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    places = _places(x)
    if _is_log(x):
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([*places]))
    axes.xaxis.set_major_formatter(FixedFormatter([literal(str(value)) for value in x["values"]]))
    axes.xaxis.set_minor_locator(NullLocator())
    if sum(len(str(value)) for value in x["values"]) > _LEGIBLE:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlabel(x["key"])


def _rows(
    axes: Sequence[Mapping[str, Any]], points: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[Any, ...]]:
    for name, about in points.items():
        keys = [about["keys"].get(axis["key"], "") for axis in axes]
        for number, row in about["numbers"].items():
            low, high = ("" if row[key] is None else row[key] for key in ("low", "high"))
            yield name, *keys, number, row["mean"], low, high, row["n"]


def _caption(
    manifest: Mapping[str, Any],
    x: Mapping[str, Any],
    points: Mapping[str, Mapping[str, Any]],
    bounds: Mapping[str, float] | None,
) -> str:
    verdicts = [verdict for about in points.values() for verdict in about["runs"].values()]
    counted = ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(verdicts))
    machine = f"{manifest['cpu']}, {manifest['cores']} cores"
    few = manifest["instances"] < _FEW
    band = "the smallest and the largest" if few else "the 95 % interval of the mean"
    listed = [f"{name} passes {bound:g}" for name, bound in (bounds or {}).items()]
    shaded = " or ".join([*listed, "a promise is broken"])
    danger = f"Shaded, the danger zone: {shaded}. " if bounds is not None else ""
    return (
        f"{manifest['experiment']}: means of {manifest['instances']} runs of each point against "
        f"{x['key']}, and {band}. Latencies run from when a publication was "
        f"meant to be sent. Runs: {counted}; a cross is a point of which one broke its promise. "
        f"{danger}"
        f"Points were taken in an order drawn for each repetition. {machine}."
    )


FIGURES = {"series.sweep": series_sweep}
