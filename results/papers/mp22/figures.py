"""mp22.m1, m2, m4 and m5: throughput, latency and losses of topics behind proxies, by mode.

Paper: [MP22], which measures nothing itself; expectations are from its design, §3 and §4.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style
from results.repetitions.series_runs import SeriesRuns, load_series
from results.tables.derived import find_unsealed_derived
from results.tables.json_files import read_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROTOCOL = "multi_proxy"
VERDICTS = ("VALID", "INVALID")
"""The verdicts of drawn runs: losses are shown as losses."""
COLOURS = ("#0072b2", "#9fc5e0")
WIDTH = 0.38


@dataclass(frozen=True)
class Numbers:
    """The numbers of a run.

    Attributes:
        point: the point of the experiment, by its workload's name without the paper's.
        servers: the number of servers that share the topics.
        published_per_s: the publishers' rate, as fast as publications were stored.
        latency_ms, acknowledged_ms: median and 99th percentile.
        lost_percent: the share of owed deliveries that never arrived; 0 if nothing was owed.
        twice: delivered more than once.
    """

    point: str
    servers: int
    published_per_s: float
    delivered_per_s: float
    latency_ms: tuple[float, float]
    acknowledged_ms: tuple[float, float]
    lost_percent: float
    twice: int


@dataclass(frozen=True)
class Shown:
    """A kind of number in a figure.

    Attributes:
        bars: name in the legend and value, of a point.
        words: the measurement and the expectation.
    """

    axis: str
    bars: Callable[[Numbers], Mapping[str, float]]
    words: str


def _times(numbers: Numbers) -> Mapping[str, float]:
    return {
        "stored (median)": numbers.acknowledged_ms[0],
        "received (median)": numbers.latency_ms[0],
    }


def _count_lost(numbers: Numbers) -> Mapping[str, float]:
    return {"lost": numbers.lost_percent}


SHOWN: Mapping[str, Shown] = {
    "mp22.m1": Shown(
        "per second",
        lambda numbers: {
            "delivered": numbers.delivered_per_s,
            "published": numbers.published_per_s,
        },
        "Deliveries to all subscribers per second while publishers publish as fast as servers "
        "store, against the number of servers. Each topic belongs to one server, so with machines "
        "of their own twice the servers would carry about twice the load, if proxies keep up.",
    ),
    "mp22.m2": Shown(
        "ms",
        _times,
        "Time until a publisher receives the acknowledgement that a publication is stored, and "
        "until it is delivered, without failures. A known owner is not requested again, so one "
        "permanent owner per topic must cost nothing after the first request.",
    ),
    "mp22.m4": Shown(
        "owed deliveries that were lost (%)",
        _count_lost,
        "Lost deliveries after two failures of a proxy alone, which returned without its memory "
        "of owners. The paper's proxies then assign topics to other servers until servers announce "
        "their topics, every 5 s, or every second in paper1; arbiter and rendezvous assign a topic "
        "to one server for ever, and causal merges the parts of two servers.",
    ),
    "mp22.m5": Shown(
        "ms, the slowest of a hundred",
        lambda numbers: {
            "stored": numbers.acknowledged_ms[1],
            "received": numbers.latency_ms[1],
        },
        "Latency that one publication in a hundred exceeds, while for 10 s each proxy reaches only "
        "servers that the other one does not. Access brokers reach both, and so every server.",
    ),
}


def _figure(name: str) -> Callable[["SparkSession", Path], Drawing]:
    def make(spark: "SparkSession", run_dir: Path) -> Drawing:
        series = load_series(spark, Path(run_dir), VERDICTS)
        runs = [(point.name, point.modal.run) for point in series.points]
        return draw(name, series, [numbers_of(each, run) for each, run in runs])

    return make


FIGURES: Mapping[str, Callable[["SparkSession", Path], Drawing]] = {
    name: _figure(name) for name in SHOWN
}


def numbers_of(point: str, run: Any) -> Numbers:
    """Return the numbers of a judged run, from its manifest and verdict."""
    headline, phase = run.manifest["headline"], run.phase("measure")
    counts = read_json(find_unsealed_derived(run.folder) / "verdict.json")["counts"]
    return Numbers(
        point.removeprefix("mp22-").removesuffix(f"-{PROTOCOL}"),
        sum(name.startswith("v") for name in run.topology["brokers"]),
        headline["published"] * 1e9 / (phase.to_ns - phase.from_ns),
        headline["delivered_per_s"],
        _pair(headline["response_us"]),
        _pair(headline["acknowledged_us"]),
        100 * counts["missing"] / counts["owed"] if counts["owed"] else 0.0,
        counts["violations"].get("duplicate", 0),
    )


def _pair(percentiles_us: Mapping[str, float]) -> tuple[float, float]:
    return percentiles_us["p50"] / 1e3, percentiles_us["p99"] / 1e3


@house_style()
def draw(name: str, series: SeriesRuns, points: Sequence[Numbers]) -> Drawing:
    """Return a figure from the numbers of its points."""
    from matplotlib.figure import Figure

    shown = SHOWN[name]
    picture = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = picture.subplots()
    legend = [*shown.bars(points[0])]
    for place, (label, colour) in enumerate(zip(legend, COLOURS, strict=False)):
        offset = WIDTH * (place - (len(legend) - 1) / 2)
        axes.bar(
            [at + offset for at, _ in enumerate(points)],
            [shown.bars(point)[label] for point in points],
            WIDTH, color=colour, label=label,
        )  # fmt: skip
    axes.set_xticks(range(len(points)), [_label(point) for point in points])
    axes.set_ylabel(shown.axis)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_axisbelow(True)
    if len(legend) > 1:
        axes.legend()
    run = series.points[0].modal.run
    machine = f"{run.manifest['cpu']}, {run.manifest['cores']} cores"
    return Drawing(
        figure=picture,
        columns=(
            "point", "servers", "published_per_s", "delivered_per_s", "latency_p50_ms",
            "latency_p99_ms", "acknowledged_p50_ms", "acknowledged_p99_ms", "lost_percent", "twice",
        ),
        rows=[
            (point.point, point.servers, round(point.published_per_s, 1),
             round(point.delivered_per_s, 1),
             *(round(each, 3) for each in (*point.latency_ms, *point.acknowledged_ms)),
             round(point.lost_percent, 4), point.twice)
            for point in points
        ],
        caption=f"{shown.words} Brokers and clients share one machine ({machine}).",
        scale={
            "points": len(points),
            "servers": max(point.servers for point in points),
            "instances": min(len(point.runs) for point in series.points),
        },
        metrics=metrics_of(points),
        run_ids=series.run_ids,
    )  # fmt: skip


def _label(point: Numbers) -> str:
    """Return the name of a point below its bars: the number of servers, if that is all of it."""
    if point.point != f"servers{point.servers}":
        return point.point
    return f"{point.servers} server" + "s" * (point.servers > 1)


def metrics_of(points: Sequence[Numbers]) -> dict[str, Metric]:
    """Return the numbers for claims: each number of each point, and comparisons of points."""
    found: dict[str, Metric] = {}
    for point in points:
        found |= {
            f"published_per_s.{point.point}": Metric(point.published_per_s),
            f"delivered_per_s.{point.point}": Metric(point.delivered_per_s),
            f"latency_p99_ms.{point.point}": Metric(point.latency_ms[1]),
            f"acknowledged_p50_ms.{point.point}": Metric(point.acknowledged_ms[0]),
            f"lost_percent.{point.point}": Metric(point.lost_percent),
            f"twice.{point.point}": Metric(float(point.twice)),
        }
    first, last = points[0], points[-1]
    found["published_growth"] = Metric(last.published_per_s / first.published_per_s)
    found["growth"] = Metric(last.delivered_per_s / first.delivered_per_s)
    found["acknowledged_ratio"] = Metric(first.acknowledged_ms[0] / last.acknowledged_ms[0])
    found["lost_with_the_longer_period"] = Metric(points[0].lost_percent - points[1].lost_percent)
    return found
