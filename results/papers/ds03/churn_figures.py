"""ds03.fig5, ds03.fig6: subscribers that disconnect and return. ds03.beside5: by protocol.

Paper: [DS03] §5.1.1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, Any

from results.checker.latency import first_deliveries
from results.figures.drawing import Drawing, Metric, house_style
from results.papers.ds03.recovery_figures import DELIVERED, RELEASED, SECOND_NS, Line, stream_lines
from results.repetitions.series_runs import SeriesRuns, load_series
from results.rules.absences import absences_of
from results.tables.frames import small_frame
from results.tables.json_files import ResultsError
from results.tables.load import LoadedRun
from results.tables.manifest import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Return:
    """The return of a disconnected subscriber; times are seconds after measuring began.

    Attributes:
        away_s: the time without a session.
        at_s: the time at which the broker accepted the subscriber again.
        missed: the number of later deliveries that were published before the return.
        took_s: the time from the return to the last such delivery.
    """

    subscriber: str
    away_s: float
    at_s: float
    missed: int
    took_s: float


def returns_of(spark: "SparkSession", loaded: LoadedRun) -> list[Return]:
    """Return all returns of all subscribers, in order of time.

    Raises:
        ResultsError: no subscriber was away, or a subscriber never returned.
    """
    from pyspark.sql import functions as F

    absences = [*absences_of(loaded.run, loaded.logs)]
    if not absences:
        raise ResultsError(f"{loaded.run.folder}: no subscriber was disconnected")
    sessions = loaded.table(spark, "sessions").select("client", "t_connect_ns").collect()
    sub_ids = {s.subscriber: s.sub_id for s in loaded.logs.subscriptions}
    rows = []
    for absence in absences:
        later = [
            row.t_connect_ns
            for row in sessions
            if row.client == absence.target and row.t_connect_ns >= (absence.healed_ns or 0)
        ]
        if not later:
            raise ResultsError(f"{loaded.run.folder}: {absence.target} never returned")
        rows.append((sub_ids[absence.target], absence.target, absence.applied_ns, min(later)))
    table = small_frame(spark, rows, "sub_id STRING, name STRING, left_ns BIGINT, back_ns BIGINT")
    received_ns = F.col("t_ns") + 1000 * F.col("latency_us")
    caught_up = (
        first_deliveries(spark, loaded)
        .join(F.broadcast(table), "sub_id")
        .where((F.col("t_ns") < F.col("back_ns")) & (received_ns >= F.col("back_ns")))
        .groupBy("name", "back_ns")
        .agg(F.count("*").alias("missed"), F.max(received_ns).alias("last_ns"))
        .collect()
    )
    found = {(row["name"], row.back_ns): row for row in caught_up}
    returns = []
    for _, name, left_ns, back_ns in rows:
        row = found.get((name, back_ns))
        missed, last_ns = (row.missed, row.last_ns) if row is not None else (0, back_ns)
        returns.append(
            Return(
                name, (back_ns - left_ns) / SECOND_NS, back_ns / SECOND_NS, missed,
                (last_ns - back_ns) / SECOND_NS,
            )
        )  # fmt: skip
    return sorted(returns, key=lambda each: (each.at_s, each.subscriber))


@dataclass(frozen=True)
class Advance:
    """By stream, the delivered and released positions at a broker, sampled once a second."""

    delivered: Mapping[str, Line]
    released: Mapping[str, Line]


def advance_of(spark: "SparkSession", loaded: LoadedRun) -> Advance:
    """Return the advance at the broker of all subscribers of a run.

    Raises:
        ResultsError: the subscribers are at several brokers.
    """
    homes = sorted({s.broker for s in loaded.logs.subscriptions})
    if len(homes) != 1:
        raise ResultsError(f"{loaded.run.folder}: subscribers at {', '.join(homes)}; at one")
    end_ns = loaded.run.phase("measure").to_ns
    rows = [
        (row.t_ns / SECOND_NS, row.counters)
        for row in loaded.table(spark, "broker_stats").orderBy("t_ns").collect()
        if row.broker == homes[0] and 0 <= row.t_ns <= end_ns
    ]
    return Advance(stream_lines(rows, DELIVERED), stream_lines(rows, RELEASED))


def rates(line: Line) -> list[tuple[float, float]]:
    """Return the advance of a stream between successive samples, in ms per second."""
    return [
        (at, 1000 * (arrived - before) / (at - earlier))
        for (earlier, before), (at, arrived) in pairwise(line)
    ]


COLOURS = ("#0072b2", "#d55e00", "#00876c")
MARKS = ("o", "s", "^")


def fig5(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Catch-up time of each return. Paper: [DS03] Fig. 5."""
    series = load_series(spark, Path(run_dir), ("VALID",))
    found = {point.protocol: returns_of(spark, point.modal) for point in series.points}
    return draw_fig5(series, found)


def fig6(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Rate at which a stream is delivered and released. Paper: [DS03] Fig. 6."""
    series = load_series(spark, Path(run_dir), ("VALID",))
    (point,) = series.points
    return draw_fig6(series, advance_of(spark, point.modal), returns_of(spark, point.modal))


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {
    "ds03.fig5": fig5,
    "ds03.beside5": fig5,
    "ds03.fig6": fig6,
}


@house_style()
def draw_fig5(series: SeriesRuns, returns: Mapping[str, Sequence[Return]]) -> Drawing:
    """Return figure 5 from the returns under each protocol."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = picture.subplots()
    words = {point.protocol: point.modal.run.words.title for point in series.points}
    metrics: dict[str, Metric] = {}
    texts = []
    for place, (protocol, found) in enumerate(returns.items()):
        axes.plot(
            [each.at_s for each in found], [1000 * each.took_s for each in found],
            linestyle="none", marker=MARKS[place], color=COLOURS[place],
            label=f"{words[protocol]} ({len(found)})",
        )  # fmt: skip
        took = [each.took_s for each in found]
        metrics[f"catchup_s.median.{protocol}"] = Metric(median(took))
        metrics[f"catchup_s.largest.{protocol}"] = Metric(max(took))
        metrics[f"returns.{protocol}"] = Metric(len(found))
        missed = fmean(each.missed for each in found)
        metrics[f"missed.mean.{protocol}"] = Metric(missed)
        texts.append(
            f"Under {words[protocol]}, {len(found)} returns, {missed:.0f} publications missed on "
            f"the mean, caught up after {1000 * median(took):.0f} ms in the median and "
            f"{1000 * max(took):.0f} ms at most"
        )
    axes.set_xlabel("seconds after measuring began, of the return")
    axes.set_ylabel("until all missed publications had arrived (ms)")
    axes.set_ylim(bottom=0)
    if len(returns) > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(returns))
    if len(returns) > 1:
        texts.append(
            "Their promises differ: durable subscriptions outlast a month of absence by default, "
            "with missed publications on disk; the other protocols keep these in memory, for "
            "`client_linger_ns`, a minute by default"
        )
    caption = (
        "Time from the moment when a broker accepts a returning subscriber until it has the last "
        "earlier publication. The paper reports 5 to 6 s as usual, until the subscriber's catch-up "
        "stream ends. "
        f"{'. '.join(texts)}. "
    )
    rows = [
        (protocol, each.subscriber, round(each.at_s, 3), round(each.away_s, 3), each.missed,
         round(each.took_s, 6))
        for protocol, found in returns.items()
        for each in found
    ]  # fmt: skip
    columns = ("protocol", "subscriber", "back_s", "away_s", "missed", "took_s")
    return _drawing(series, picture, columns, rows, caption, metrics)


@house_style()
def draw_fig6(series: SeriesRuns, advance: Advance, returns: Sequence[Return]) -> Drawing:
    """Return figure 6 from the positions of streams at each second."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(6.4, 4.6), layout="constrained")
    panels = picture.subplots(2, 1, sharex=True)
    stream = min(advance.delivered)
    shown = {"latestDelivered": advance.delivered, "released": advance.released}
    for axes, (name, lines), colour in zip(panels, shown.items(), COLOURS, strict=False):
        for each in returns:
            axes.axvspan(each.at_s - each.away_s, each.at_s, color="#aab0b9", alpha=0.15, lw=0)
        points = rates(lines[stream])
        axes.plot([at for at, _ in points], [rate for _, rate in points], color=colour)
        axes.set_title(name, loc="left")
        axes.set_ylabel("ms of the stream per s")
        axes.set_ylim(bottom=0)
    panels[1].set_xlabel("seconds after measuring began")
    of_all = {
        name: [rate for line in lines.values() for _, rate in rates(line)]
        for name, lines in shown.items()
    }
    delivered, released = of_all["latestDelivered"], of_all["released"]
    metrics = {
        "delivered_ms_per_s.mean": Metric(fmean(delivered)),
        "delivered_ms_per_s.least": Metric(min(delivered)),
        "released_ms_per_s.mean": Metric(fmean(released)),
        "released_deviation_per_delivered": Metric(pstdev(released) / pstdev(delivered)),
    }
    away = sum(each.away_s for each in returns) / max(each.at_s for each in returns)
    metrics["away.mean"] = Metric(away)
    caption = (
        "Rates at which one stream of four is delivered and released at s1, sampled once a "
        f"second; grey: subscribers are disconnected, {away:.1f} on the mean. The paper reports "
        "that latestDelivered advances by about 1,000 ms a second regardless of absences, with "
        "drops to about 700 during garbage collections, and that released varies much more, "
        "because it stalls during absences. Here latestDelivered never advanced by less than "
        f"{metrics['delivered_ms_per_s.least'].value:.0f} ms a second, and released varied "
        f"{metrics['released_deviation_per_delivered'].value:.0f} times as much (standard "
        "deviation, all four streams). "
    )
    rows = [
        (name, of, round(at, 3), round(rate, 3))
        for name, lines in shown.items()
        for of, line in lines.items()
        for at, rate in rates(line)
    ]
    return _drawing(series, picture, ("value", "stream", "t_s", "ms_per_s"), rows, caption, metrics)


def _drawing(
    series: SeriesRuns,
    picture: Any,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    caption: str,
    metrics: Mapping[str, Metric],
) -> Drawing:
    run = series.points[0].modal.run
    return Drawing(
        figure=picture,
        columns=columns,
        rows=rows,
        caption=caption + describe_setting(run),
        scale=scale_of(run),
        metrics=metrics,
        run_ids=series.run_ids,
    )


def scale_of(run: Run) -> dict[str, Any]:
    return {
        "input_per_s": sum(
            each.get("count", 1) * int(str(each["rate"]).partition("/")[0])
            for each in run.workload["publishers"]
        ),
        "subscribers": len(run.subscribers()),
    }


def describe_setting(run: Run) -> str:
    """Return scale and machine in words."""
    scale, churn = scale_of(run), run.workload["churn"]
    return (
        f"{scale['input_per_s']} publications a second (paper: 800) and {scale['subscribers']} "
        f"subscribers (88), each of a quarter of them and disconnected for "
        f"{churn['disconnected']} of each {churn['every']} (5 s of each 5 min); brokers and "
        f"clients on one machine ({run.manifest['cpu']}, {run.manifest['cores']} cores)."
    )
