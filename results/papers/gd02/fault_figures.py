"""gd02.fig6, gd02.fig7, gd02.fig8: latency and retransmission requests around a failure.

The typical instance is drawn (`results.repetitions.spread`); the band lies between the least and
the largest values of the others. Numbers are means over all instances.

Paper: [GD02] §4.2.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style
from results.figures.series import series_latency
from results.figures.style import line_with_band
from results.papers.gd02.faults import BIN_NS, SECOND_NS, FaultSummary, fault_summary
from results.repetitions.series_runs import SeriesRuns, load_series, metric_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

COLOURS = {"s1": "#0072b2", "s2": "#d55e00", "s3": "#999999", "b2": "#1a1a1a", "s5": "#999999"}
_HELD, _DOWN = "#f4c463", "#aab0b9"


@dataclass(frozen=True)
class FaultFigure:
    """The content of a figure.

    Attributes:
        shown: subscribers' brokers with drawn latency.
        asking: brokers with drawn requests.
        around: seconds before and after `anchor` that the lower panel shows.
        anchor: `failed` or `repaired`: the time around which the lower panel is drawn.
        paper: the paper's report.
    """

    name: str
    what: str
    shown: tuple[str, ...]
    asking: tuple[str, ...]
    anchor: str
    around: tuple[float, float]
    paper: str


FIG6 = FaultFigure(
    "gd02.fig6", "The link between b1 and s1 stalls, fails, and is repaired after 10 s",
    ("s1", "s2"), ("s1", "b2"), "failed", (3.5, 3.5),
    "The paper reports a sawtooth from about 2.5 s at s1, requests of that length for each stream "
    "to b2, and nothing at s2.",
)  # fmt: skip
FIG7 = FaultFigure(
    "gd02.fig7", "Broker b1 stalls, crashes, and is back after 30 s",
    ("s1", "s2", "s3"), ("s1", "s2", "b2"), "failed", (3.5, 3.5),
    "The paper reports about 5,500 ms asked for by s1 and by s2 each (2 streams, 2,750 ms each), "
    "and about half of their sum by b2.",
)  # fmt: skip
FIG8 = FaultFigure(
    "gd02.fig8", "The publishers' broker p1 logs, sends nothing, crashes, and is back after 20 s",
    ("s1", "s3"), ("s1", "s3", "b2"), "repaired", (3.0, 6.0),
    "The paper reports no requests while p1 is down, and then a partial sawtooth near 20 to 23 s.",
)  # fmt: skip


def fig6(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Latency and requests around the failure of a link. Paper: [GD02] Fig. 6."""
    return _drawing(spark, run_dir, FIG6)


def fig7(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Latency and requests around the crash of a broker on the way. Paper: [GD02] Fig. 7."""
    return _drawing(spark, run_dir, FIG7)


def fig8(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Latency and requests around the crash of the publishers' broker. Paper: [GD02] Fig. 8."""
    return _drawing(spark, run_dir, FIG8)


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {
    "gd02.fig6": fig6,
    "gd02.fig7": fig7,
    "gd02.fig8": fig8,
    # The same faults under other protocols, which the paper could not show.
    "gd02.beside6": series_latency,
    "gd02.beside7": series_latency,
    "gd02.beside8": series_latency,
}


def _drawing(spark: "SparkSession", run_dir: "Path", figure: FaultFigure) -> Drawing:
    series = load_series(spark, Path(run_dir), ("VALID",))
    point = series.points[0]
    summaries = {loaded.run.run_id: fault_summary(spark, loaded) for loaded in point.runs}
    return draw(figure, series, summaries, point.modal.run.run_id)


@house_style()
def draw(
    figure: FaultFigure, series: SeriesRuns, summaries: Mapping[str, FaultSummary], modal: str
) -> Drawing:
    """Return a figure from the summaries of all instances.

    Args:
        modal: the run id of the typical instance.
    """
    from matplotlib.figure import Figure

    typical = summaries[modal]
    others = [summary for run_id, summary in summaries.items() if run_id != modal]
    picture = Figure(figsize=(7.4, 5.6), layout="constrained")
    upper, lower = picture.subplots(2, 1)
    _draw_latency(upper, figure, typical, others)
    _draw_requests(lower, figure, typical, others)
    return Drawing(
        figure=picture,
        columns=("panel", "broker", "t_s", "value", "low", "high"),
        rows=[*_latency_rows(figure, typical, others), *_request_rows(figure, typical)],
        caption=_caption(figure, series, typical, len(summaries)),
        scale=_scale(series, len(summaries)),
        metrics=dict(_metrics([*summaries.values()])),
        run_ids=series.run_ids,
        about={"modal": modal},
    )


def _draw_latency(
    axes: "Axes", figure: FaultFigure, typical: FaultSummary, others: Sequence[FaultSummary]
) -> None:
    _shade(axes, typical)
    for broker in figure.shown:
        rows = [row for row in _latency_rows(figure, typical, others) if row[1] == broker]
        rows = [*_with_holes(rows)]
        times = [row[2] for row in rows]
        band = ([row[4] for row in rows], [row[5] for row in rows]) if others else None
        line_with_band(
            axes, times, [row[3] for row in rows], band, COLOURS[broker],
            marker=".", markersize=2.5, linestyle="none", label=broker, zorder=3,
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylabel("largest latency in 0.1 s (ms)")
    axes.set_xlabel("sent, seconds after measuring began")
    axes.set_title(figure.what, loc="left")
    axes.legend(loc="upper right", ncols=3)


def _draw_requests(
    axes: "Axes", figure: FaultFigure, typical: FaultSummary, others: Sequence[FaultSummary]
) -> None:
    _shade(axes, typical)
    anchor_ns = typical.failed_ns if figure.anchor == "failed" else typical.repaired_ns
    left, right = (anchor_ns / SECOND_NS + off for off in (-figure.around[0], figure.around[1]))
    for place, broker in enumerate(figure.asking):
        for number, summary in enumerate([*others, typical]):
            is_typical = number == len(others)
            steps = [(left, 0.0), *summary.accumulate(broker)]
            steps.append((right, steps[-1][1]))
            style: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.35}
            if is_typical:
                # The widest first: curves that coincide are all to be seen.
                width = 1.2 + 2.2 * (len(figure.asking) - 1 - place)
                noun = "nack" if len(steps) == 3 else "nacks"
                label = f"{broker}: {steps[-1][1]:,.0f} ms in {len(steps) - 2:,} {noun}"
                style = {"label": label, "linewidth": width}
            axes.plot(
                [at for at, _ in steps], [ms for _, ms in steps],
                drawstyle="steps-post", color=COLOURS[broker], **style,
            )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("asked for again, cumulated (ms)")
    axes.set_xlabel("seconds after measuring began")
    axes.legend(loc="upper left")


def _shade(axes: "Axes", summary: FaultSummary) -> None:
    moments = [ns / SECOND_NS for ns in (summary.from_ns, summary.failed_ns, summary.repaired_ns)]
    axes.axvspan(moments[0], moments[1], color=_HELD, alpha=0.35, linewidth=0, zorder=0)
    axes.axvspan(moments[1], moments[2], color=_DOWN, alpha=0.3, linewidth=0, zorder=0)


Row = tuple[str, str, float, float, float, float]


def _latency_rows(
    figure: FaultFigure, typical: FaultSummary, others: Sequence[FaultSummary]
) -> Iterator[Row]:
    """Yield the largest latency in each stretch of send time, with the range of the others."""
    for broker in figure.shown:
        for at, us in typical.latency_us[broker].items():
            beside = [summary.latency_us[broker].get(at, us) / 1e3 for summary in others]
            low, high = (min(beside), max(beside)) if beside else (us / 1e3, us / 1e3)
            yield (
                "latency_ms",
                broker,
                round((at + 0.5) * BIN_NS / SECOND_NS, 3),
                us / 1e3,
                low,
                high,
            )


def _with_holes(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows, with an empty row for each pause in sending, which interrupts the band."""
    nothing = float("nan")
    before = rows[0] if rows else None
    for row in rows:
        if before is not None and row[2] - before[2] > 1.5 * BIN_NS / SECOND_NS:
            yield row[0], row[1], before[2], nothing, nothing, nothing
        yield row
        before = row


def _request_rows(figure: FaultFigure, typical: FaultSummary) -> Iterator[Row]:
    for broker in figure.asking:
        for at, ms in typical.accumulate(broker):
            yield "asked_ms", broker, round(at, 6), ms, ms, ms


def _metrics(summaries: Sequence[FaultSummary]) -> Iterator[tuple[str, Metric]]:
    """Yield every number over all instances that have the number."""
    brokers = {row["broker"] for summary in summaries for row in summary.requests} | {
        "s1",
        "s2",
        "b2",
    }
    peers = sorted({row["peer"] for summary in summaries for row in summary.requests})
    numbers = [dict(_numbers(summary, sorted(brokers), peers)) for summary in summaries]
    for name in numbers[0]:
        values = [value for each in numbers if (value := each[name]) is not None]
        if values:
            yield name, metric_of(values)
    yield "instances", Metric(len(summaries))


def _numbers(
    summary: FaultSummary, brokers: Sequence[str], peers: Sequence[str]
) -> Iterator[tuple[str, float | None]]:
    """Yield the numbers of an instance; None for a share of nothing."""
    yield "stall_s", summary.stall_ns / SECOND_NS
    for broker in brokers:
        requested_ns, streams = summary.requested_ns(broker), summary.streams_requested(broker)
        yield f"asked_ms.{broker}", requested_ns / 1e6
        yield f"streams_asked.{broker}", streams
        yield f"nacks.{broker}", summary.count_requests(broker)
        yield f"asked_per_stall_and_stream.{broker}", _per(requested_ns, summary.stall_ns * streams)
        for peer in peers:
            share = _per(100 * summary.requested_ns(broker, of=peer), requested_ns)
            yield f"percent_asked_of.{peer}.by.{broker}", share
    for broker in sorted(summary.latency_us):
        yield f"peak_s.{broker}", summary.peak_us(broker) / 1e6
        yield f"peak_per_stall.{broker}", 1e3 * summary.peak_us(broker) / summary.stall_ns
    nacks = {broker: summary.count_requests(broker) for broker in ("s1", "s2", "b2")}
    yield "nacks_per_nack_of_s2.s1", _per(nacks["s1"], nacks["s2"])
    yield "nack_consolidation.b2", _per(nacks["b2"], nacks["s1"] + nacks["s2"])
    yield "consolidation.b2", _per(summary.requested_ns("b2"), summary.requested_ns("s1", "s2"))
    yield "asked_ms.other_branch", summary.requested_ns("b3", "b4", "s3", "s4", "s5") / 1e6
    yield "asked_while_down_ms", summary.requested_while_down_ns() / 1e6


def _per(value: float, by: float) -> float | None:
    return value / by if by else None


def _scale(series: SeriesRuns, instances: int) -> dict[str, Any]:
    run = series.points[0].modal.run
    publishers = run.workload["publishers"]
    return {
        "brokers": len(run.topology["brokers"]),
        "publishers": sum(len(entry["at"]) * entry.get("count", 1) for entry in publishers),
        "instances": instances,
    }


def _caption(figure: FaultFigure, series: SeriesRuns, typical: FaultSummary, instances: int) -> str:
    run = series.points[0].modal.run
    machine = f"{run.manifest['cpu']}, {run.manifest['cores']} cores"
    publishers = run.workload["publishers"][0]
    return (
        f"{figure.what}. Above: the largest latency in each 0.1 s of send time over all streams, "
        f"from the due time of a publication: publications due while their broker was down were "
        f"sent after its return. Below: the length of the stream ranges that "
        f"a broker has requested again, cumulated, a step for each request. "
        f"Yellow: stall, {typical.stall_ns / SECOND_NS:.2f} s; grey: failed. "
        f"The typical one of {instances} instances (the medoid of latency by send time, "
        f"{typical.run_id}); shaded and thin: the others. {len(run.topology['brokers'])} brokers "
        f"in 8 cells on one machine ({machine}), 4 publishers of {publishers['rate']} and "
        f"{publishers['size']}, GCT 200 ms, NRT 600 ms, AET 10 s. {figure.paper}"
    )
