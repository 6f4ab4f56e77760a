"""ds03.fig4: total delivery rate of subscribers, by the number of their brokers.

Paper: [DS03] §5.1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from results.checker.latency import quantile_of
from results.figures.drawing import Drawing, Metric, house_style
from results.repetitions.series_runs import SeriesRuns, load_series
from results.tables.load import LoadedRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUBLISHER_SIDE = "p1"
KEPT_UP = 0.99
"""The share of due deliveries during the measurement from which a run has kept up."""
WAYS = {False: "all subscribers connected", True: "subscribers disconnect and return"}
COLOURS = {False: "#0072b2", True: "#d55e00"}
WIDTH = 0.38


@dataclass(frozen=True)
class Load:
    """A run.

    Attributes:
        brokers: the brokers of subscribers.
        churn: True if its subscribers disconnect and return.
        wanted_per_s, delivered_per_s: due deliveries to all subscribers, and actual deliveries,
            during the measurement.
        p99_ms: of the latency.
        publisher_side: the share of a core used by the publishers' broker, in percent.
        processor: the same of all brokers together.
    """

    run_id: str
    brokers: int
    subscribers: int
    churn: bool
    wanted_per_s: float
    delivered_per_s: float
    p99_ms: float
    publisher_side: float
    processor: float

    @property
    def has_kept_up(self) -> bool:
        """Return True if at least the share `KEPT_UP` of due deliveries was made."""
        return self.delivered_per_s >= KEPT_UP * self.wanted_per_s


def fig4(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """The peak rate with 1, 2 and 4 brokers of subscribers. Paper: [DS03] Fig. 4."""
    series = load_series(spark, Path(run_dir), ("VALID",))
    loads = [_load(spark, loaded) for point in series.points for loaded in point.runs]
    return draw_fig4(series, loads)


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {"ds03.fig4": fig4}


def _load(spark: "SparkSession", loaded: LoadedRun) -> Load:
    from pyspark.sql import functions as F

    run = loaded.run
    phase = run.phase("measure")
    measured_s = (phase.to_ns - phase.from_ns) / 1e9
    data = loaded.table(spark, "deliveries").where("layer = 'application' and kind = 'data'")
    row = data.agg(
        F.sum(_select_within(F.col("t_sent_ns"), phase.to_ns)).alias("wanted"),
        F.sum(_select_within(F.col("t_recv_ns"), phase.to_ns)).alias("delivered"),
        quantile_of("lat_response_us", 0.99).alias("p99_us"),
    ).collect()[0]
    processor = {
        each.broker: 100 * each.ratio
        for each in loaded.table(spark, "broker_stats")
        .where((F.col("t_ns") > 1_000_000_000) & (F.col("t_ns") <= phase.to_ns))
        .where(F.col("cpu_ratio").isNotNull())
        .groupBy("broker")
        .agg(F.avg("cpu_ratio").alias("ratio"))
        .collect()
    }
    homes = {broker for broker, _ in run.subscribers().values()}
    return Load(
        run.run_id, len(homes), len(run.subscribers()), "churn" in run.workload,
        row.wanted / measured_s, row.delivered / measured_s, row.p99_us / 1e3,
        processor[PUBLISHER_SIDE], sum(processor.values()),
    )  # fmt: skip


def _select_within(column: Any, to_ns: int) -> Any:
    return ((column >= 0) & (column < to_ns)).cast("BIGINT")


@house_style()
def draw_fig4(series: SeriesRuns, loads: Sequence[Load]) -> Drawing:
    """Return figure 4 from all tried loads, with the peak of each number of brokers."""
    from matplotlib.figure import Figure

    numbers = sorted({load.brokers for load in loads})
    peaks = {(n, way): _peak(loads, n, way) for n in numbers for way in WAYS}
    picture = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = picture.subplots()
    for way, words in WAYS.items():
        offset = WIDTH * (-0.5 + way)
        bars = axes.bar(
            [place + offset for place, _ in enumerate(numbers)],
            [peaks[n, way].delivered_per_s for n in numbers],
            WIDTH, color=COLOURS[way], label=words,
        )  # fmt: skip
        for bar, n in zip(bars, numbers, strict=True):
            if not peaks[n, way].has_kept_up:
                bar.set(facecolor="none", edgecolor=COLOURS[way], hatch="//")
    axes.set_xticks(range(len(numbers)), [str(n) for n in numbers])
    axes.set_xlabel("brokers of subscribers")
    axes.set_ylabel("deliveries/s to all subscribers")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(loc="upper left")
    first, last = numbers[0], numbers[-1]
    metrics = {
        f"peak_per_s.{'with' if way else 'without'}_churn.{n}": Metric(load.delivered_per_s)
        for (n, way), load in peaks.items()
        if load.has_kept_up
    }
    compared = {
        "growth.without_churn": ((last, False), (first, False)),
        "growth.with_churn": ((last, True), (first, True)),
        "with_churn_per_without": ((last, True), (last, False)),
    }
    for name, (one, other) in compared.items():
        ratio = peaks[one].delivered_per_s / peaks[other].delivered_per_s
        metrics[name] = Metric(ratio)
        metrics[f"borne.{name}"] = Metric(
            float(peaks[one].has_kept_up and peaks[other].has_kept_up)
        )
    metrics["publisher_side_growth_points"] = Metric(
        _publisher_side(loads, last) - _publisher_side(loads, first)
    )
    return Drawing(
        figure=picture,
        columns=(
            "brokers", "churn", "subscribers", "wanted_per_s", "delivered_per_s", "kept_up",
            "p99_ms", "publisher_side_percent", "brokers_percent",
        ),
        rows=[
            (load.brokers, load.churn, load.subscribers, round(load.wanted_per_s, 1),
             round(load.delivered_per_s, 1), load.has_kept_up, round(load.p99_ms, 2),
             round(load.publisher_side, 1), round(load.processor, 1))
            for load in loads
        ],
        caption=_caption(series, loads, peaks),
        scale={
            "brokers_of_subscribers": last,
            "subscribers": max(load.subscribers for load in loads),
            "instances": min(len(point.runs) for point in series.points),
        },
        metrics=metrics,
        run_ids=series.run_ids,
    )  # fmt: skip


def _peak(loads: Sequence[Load], brokers: int, churn: bool) -> Load:
    """Return the run with the highest delivery rate, among runs that kept up if any did."""
    of_both = [load for load in loads if (load.brokers, load.churn) == (brokers, churn)]
    kept_up = [load for load in of_both if load.has_kept_up]
    return max(kept_up or of_both, key=lambda load: load.delivered_per_s)


def _publisher_side(loads: Sequence[Load], brokers: int) -> float:
    return fmean(load.publisher_side for load in loads if load.brokers == brokers)


def _caption(
    series: SeriesRuns, loads: Sequence[Load], peaks: Mapping[tuple[int, bool], Load]
) -> str:
    run = next(point.modal.run for point in series.points if "churn" in point.modal.run.workload)
    churn = run.workload["churn"]
    rate = sum(
        each.get("count", 1) * int(str(each["rate"]).partition("/")[0])
        for each in run.workload["publishers"]
    )
    each = sorted({load.subscribers // load.brokers for load in loads})
    most = [
        brokers
        for (brokers, _), load in peaks.items()
        if load.has_kept_up and load.subscribers // load.brokers == each[-1]
    ]
    limit = (
        "No load was too high, so the peak of these brokers is higher"
        if len(most) == len(peaks)
        else "If the larger load was too high, the smaller one is shown. If that was too high as "
        "well, a hatched bar shows the deliveries of an incomplete run: that is no peak, and "
        "depends on other load of the machine"
    )
    machine = f"{run.manifest['cpu']}, {run.manifest['cores']} cores"
    return (
        "Highest rate of deliveries to all subscribers, against the number of their brokers; a "
        f"load passes if {100 * KEPT_UP:.0f} % of the deliveries that are due in the measurement "
        f"arrive in it. {limit}. The paper reports 20,000 to 79,200 events/s with all subscribers "
        "connected and 17,600 to 69,600 with each subscriber disconnected for 5 s of each 5 min, "
        "each broker on a machine of its own with six processors. Here publishers' broker, "
        f"subscribers' brokers and clients share one machine ({machine}), so more brokers do not "
        f"add processors. {rate} publications of {run.workload['publishers'][0]['size']} a second "
        f"(paper: 800); each subscriber receives a quarter of them (as in the paper), with "
        f"{' or '.join(map(str, each))} subscribers at each broker (paper: 100, or 88), which are "
        f"disconnected for {churn['disconnected']} of each {churn['every']}."
    )
