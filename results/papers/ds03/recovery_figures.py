"""ds03.fig7, ds03.fig8: the broker of durable subscribers is down for 25 s.

The typical instance is drawn; numbers are means over all instances.

Paper: [DS03] §5.3.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.checker.latency import first_deliveries
from results.figures.drawing import Drawing, Metric, house_style
from results.repetitions.series_runs import SeriesRuns, load_series, metric_of
from results.tables.json_files import ResultsError
from results.tables.load import LoadedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

BIN_NS = 1_000_000_000
SECOND_NS = 1e9
DELIVERED, RELEASED = "delivered_us.", "released_us."
CAUGHT_UP_S = 2.0
"""The largest lag of a stream that counts as caught up: samples are a second apart."""

Line = Sequence[tuple[float, float]]
"""(seconds, seconds): time, and position of a stream at that time."""


@dataclass(frozen=True)
class Recovery:
    """An instance; times are seconds after measuring began.

    Attributes:
        down_s, up_s: the times of the broker's kill and restart.
        delivered, released: by stream.
        received: by second, the number of deliveries to all subscribers.
        processor: by broker, (seconds, share of a core).
        missed_s: the time of the last delivery of publications before `up_s`.
    """

    run_id: str
    down_s: float
    up_s: float
    delivered: Mapping[str, Line]
    released: Mapping[str, Line]
    received: Line
    processor: Mapping[str, Line]
    missed_s: float

    def caught_up(self) -> tuple[float, float]:
        """Return the time at which all streams had caught up, and the slope until then."""
        found = [self._caught_up(line) for line in self.delivered.values()]
        return max(at for at, _ in found), sum(slope for _, slope in found) / len(found)

    def _caught_up(self, line: Line) -> tuple[float, float]:
        before = max(point for point in line if point[0] <= self.down_s)
        for at, arrived in line:
            if at > self.up_s and arrived - before[1] > at - before[0] - CAUGHT_UP_S:
                return at, (arrived - before[1]) / (at - self.up_s)
        raise ResultsError(f"{self.run_id}: a stream never caught up")

    def flat_s(self) -> float:
        """Return the mean time for which nothing of a stream was delivered."""
        return sum(map(self._flat_s, self.delivered.values())) / len(self.delivered)

    def _flat_s(self, line: Line) -> float:
        before = max(point for point in line if point[0] <= self.down_s)
        return min(at for at, arrived in line if arrived > before[1]) - before[0]

    def lag_s(self, lines: Mapping[str, Line]) -> float:
        """Return the largest increase of a stream's lag from the failure to the end."""
        lags = []
        for line in lines.values():
            before = max(point for point in line if point[0] <= self.down_s)
            lags.append((line[-1][0] - before[0]) - (line[-1][1] - before[1]))
        return max(lags)

    def rate(self, from_s: float, to_s: float) -> float:
        """Return deliveries per second between two times."""
        return sum(count for at, count in self.received if from_s <= at < to_s) / (to_s - from_s)


def recovery_of(spark: "SparkSession", loaded: LoadedRun) -> Recovery:
    """Return the recovery in a run.

    Raises:
        ResultsError: no broker was killed and started again in the run.
    """
    faults = {row["verb"]: row for row in loaded.run.fault_rows}
    if not {"kill", "restart"} <= faults.keys():
        raise ResultsError(f"{loaded.run.folder}: no broker was killed and started again")
    broker = faults["kill"]["target"]
    up_ns = faults["restart"]["t_applied_ns"]
    stats = loaded.table(spark, "broker_stats").orderBy("t_ns").collect()
    end_ns = loaded.run.phase("measure").to_ns
    shown = [row for row in stats if 0 <= row.t_ns <= end_ns]
    of_broker = [(row.t_ns / SECOND_NS, row.counters) for row in shown if row.broker == broker]
    received, missed_ns = _count_received(spark, loaded, up_ns)
    return Recovery(
        loaded.run.run_id,
        faults["kill"]["t_applied_ns"] / SECOND_NS,
        up_ns / SECOND_NS,
        stream_lines(of_broker, DELIVERED),
        stream_lines(of_broker, RELEASED),
        received,
        {
            name: [
                (row.t_ns / SECOND_NS, row.cpu_ratio)
                for row in shown
                if row.broker == name and row.cpu_ratio is not None
            ]
            for name in sorted({row.broker for row in shown})
        },
        missed_ns / SECOND_NS,
    )


def stream_lines(rows: Sequence[tuple[float, Mapping[str, int]]], prefix: str) -> dict[str, Line]:
    """Return, for each stream with data, positions from its first row; none while down."""
    names = sorted({name for _, counters in rows for name in counters if name.startswith(prefix)})
    found: dict[str, Line] = {}
    for name in names:
        points = [(at, counters[name] / 1e6) for at, counters in rows if counters.get(name)]
        if len({arrived for _, arrived in points}) > 1:
            first_at, first = points[0]
            found[name.removeprefix(prefix)] = [
                (at, arrived - first + first_at) for at, arrived in points
            ]
    return found


def _count_received(spark: "SparkSession", loaded: LoadedRun, up_ns: int) -> tuple[Line, int]:
    from pyspark.sql import functions as F

    deliveries = first_deliveries(spark, loaded).withColumn(
        "received_ns", F.col("t_ns") + 1000 * F.col("latency_us")
    )
    bins = (
        deliveries.groupBy(F.floor(F.col("received_ns") / BIN_NS).cast("INT").alias("bin"))
        .count()
        .orderBy("bin")
        .collect()
    )
    counts = {row.bin: row["count"] for row in bins}
    end = loaded.run.phase("measure").to_ns // BIN_NS
    missed = deliveries.where(F.col("t_ns") < up_ns).agg(F.max("received_ns")).collect()
    return [(float(at), counts.get(at, 0)) for at in range(end)], int(missed[0][0])


COLOURS = ("#0072b2", "#d55e00", "#1a1a1a", "#e69f00")
_DOWN = "#aab0b9"
_HOLE_S = 5.0
"""Brokers are looked at once a second."""
_SETTLED_S = 5.0
"""The time before the failure from which normal values are taken."""


def fig7(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Progress of streams, delivered and released. Paper: [DS03] Fig. 7."""
    series = load_series(spark, Path(run_dir), ("VALID",))
    return draw_fig7(series, _recoveries(spark, series))


def fig8(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Deliveries to subscribers, and the brokers' processor time. Paper: [DS03] Fig. 8."""
    series = load_series(spark, Path(run_dir), ("VALID",))
    return draw_fig8(series, _recoveries(spark, series))


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {
    "ds03.fig7": fig7,
    "ds03.fig8": fig8,
}


def _recoveries(spark: "SparkSession", series: SeriesRuns) -> list[Recovery]:
    """Return the recoveries of all runs, the typical run first."""
    (point,) = series.points
    return [recovery_of(spark, loaded) for loaded in (point.modal, *point.others)]


@house_style()
def draw_fig7(series: SeriesRuns, recoveries: Sequence[Recovery]) -> Drawing:
    """Return figure 7 from the recoveries of all instances, the typical instance first."""
    from matplotlib.figure import Figure

    typical = recoveries[0]
    picture = Figure(figsize=(7.4, 3.6), layout="constrained")
    panels = picture.subplots(1, 2, sharex=True, sharey=True)
    shown = {"latestDelivered": typical.delivered, "released": typical.released}
    for axes, (name, lines) in zip(panels, shown.items(), strict=True):
        _shade(axes, typical)
        for number, (stream, line) in enumerate(lines.items()):
            _draw_line(axes, line, COLOURS[number % len(COLOURS)], f"stream {stream}")
        axes.set_title(name, loc="left")
        axes.set_xlabel("seconds after measuring began")
    panels[0].set_ylabel("come so far (s of the stream)")
    panels[0].legend(loc="upper left")
    numbers = [
        {
            "flat_s": each.flat_s(),
            "slope_after": each.caught_up()[1],
            "caught_up_after_s": each.caught_up()[0] - each.up_s,
            "delivered_lag_s.end": each.lag_s(each.delivered),
            "released_lag_s.end": each.lag_s(each.released),
        }
        for each in recoveries
    ]
    metrics = {name: metric_of([each[name] for each in numbers]) for name in numbers[0]}
    caption = (
        f"Delivered and released ticks of the streams of four publishers at s1, which was down "
        f"for {typical.up_s - typical.down_s:.0f} s (grey); sampled once a second. The paper "
        "reports that latestDelivered stalls for about 25 s and then advances about 5 times as "
        "fast as normally until the broker has caught up; there clients reconnect after that, "
        "here before. Slope here, from the start of the process until it has caught up: "
        f"{metrics['slope_after'].value:.1f}."
    )
    rows = [
        (name, stream, round(at, 3), round(arrived, 3))
        for name, lines in shown.items()
        for stream, line in lines.items()
        for at, arrived in line
    ]
    columns = ("value", "stream", "t_s", "come_s")
    return _drawing(series, recoveries, picture, columns, rows, caption, metrics)


@house_style()
def draw_fig8(series: SeriesRuns, recoveries: Sequence[Recovery]) -> Drawing:
    """Return figure 8 from the recoveries of all instances, the typical instance first."""
    from matplotlib.figure import Figure

    typical = recoveries[0]
    picture = Figure(figsize=(7.4, 5.2), layout="constrained")
    upper, lower = picture.subplots(2, 1, sharex=True)
    for axes in (upper, lower):
        _shade(axes, typical)
    upper.plot(*zip(*typical.received, strict=True), drawstyle="steps-post", color=COLOURS[0])
    upper.set_ylabel("deliveries/s to all subscribers")
    upper.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    for number, (broker, line) in enumerate(typical.processor.items()):
        percent = [(at, 100 * ratio) for at, ratio in line]
        _draw_line(lower, percent, COLOURS[1 + number], broker)
    lower.set_ylabel("processor time (% of one core)")
    lower.set_xlabel("seconds after measuring began")
    lower.legend(loc="upper left")
    for axes in (upper, lower):
        axes.set_ylim(bottom=0)
    numbers = [_rates(each) for each in recoveries]
    metrics = {name: metric_of([each[name] for each in numbers]) for name in numbers[0]}
    caption = (
        "Deliveries to all subscribers of s1 per second, and processor time of the brokers; s1 "
        f"was down for {typical.up_s - typical.down_s:.0f} s (grey). The paper reports more than "
        "the normal rate until all have caught up after 116 s, with little effect on the "
        "publishers' broker. Here all missed publications had arrived "
        f"{metrics['missed_after_s'].value:.1f} s after s1 was started, at "
        f"{metrics['rate_per_normal'].value:.1f} times the normal rate."
    )
    rows = [
        *(("deliveries_per_s", "", at, count) for at, count in typical.received),
        *(
            ("processor_ratio", broker, round(at, 3), ratio)
            for broker, line in typical.processor.items()
            for at, ratio in line
        ),
    ]
    columns = ("value", "broker", "t_s", "number")
    return _drawing(series, recoveries, picture, columns, rows, caption, metrics)


def _rates(recovery: Recovery) -> dict[str, float]:
    normal = recovery.rate(max(0.0, recovery.down_s // 1 - _SETTLED_S), recovery.down_s // 1)
    first, last = recovery.up_s // 1, recovery.missed_s // 1 + 1
    return {
        "normal_per_s": normal,
        "missed_after_s": recovery.missed_s - recovery.up_s,
        "rate_per_normal": recovery.rate(first, last) / normal,
    }


def _draw_line(axes: "Axes", line: Line, colour: str, label: str) -> None:
    """Draw a line that is interrupted at times without data."""
    times: list[float] = []
    values: list[float] = []
    for at, value in line:
        if times and at - times[-1] > _HOLE_S:
            times.append(at)
            values.append(float("nan"))
        times.append(at)
        values.append(value)
    axes.plot(times, values, color=colour, label=label)


def _shade(axes: "Axes", recovery: Recovery) -> None:
    axes.axvspan(recovery.down_s, recovery.up_s, color=_DOWN, alpha=0.3, linewidth=0, zorder=0)


def _drawing(
    series: SeriesRuns,
    recoveries: Sequence[Recovery],
    picture: Any,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    caption: str,
    metrics: Mapping[str, Metric],
) -> Drawing:
    run = series.points[0].modal.run
    scale = {
        "input_per_s": sum(
            each.get("count", 1) * int(str(each["rate"]).partition("/")[0])
            for each in run.workload["publishers"]
        ),
        "subscribers": sum(each.get("count", 1) for each in run.workload["subscribers"]),
        "instances": len(recoveries),
    }
    setting = (
        f"{scale['input_per_s']} publications a second (paper: 800) and {scale['subscribers']} "
        "subscribers (40), each of a quarter of them; brokers and clients on one machine "
        f"({run.manifest['cpu']}, {run.manifest['cores']} cores). "
        f"Numbers: means of all instances, {scale['instances']} in number."
    )
    return Drawing(
        figure=picture,
        columns=columns,
        rows=rows,
        caption=f"{caption} {setting}",
        scale=scale,
        metrics=metrics,
        run_ids=series.run_ids,
    )
