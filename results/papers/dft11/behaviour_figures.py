"""Behaviour of the δ tree around a failure, in figures that [DFT11] does not have.

The figures are drawn from the rows that `papers.dft11.behaviours` makes of a run on simulated
brokers. Captions mark numbers that follow from a rule of ours rather than of the paper.

Paper: [DFT11] §IV to §VIII give the rules; none of its figures shows them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style
from results.figures.style import MARKERS, line_with_band
from results.papers.dft11.behaviours import (
    bypass_distribution,
    exclusions_by_partition,
    gate_openings,
    overhead_per_delivery,
    queue_over_time,
    start_latency,
)
from results.papers.experiment_runs import ExperimentRun, drawing_of_rows, load_run_about

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pyspark.sql import SparkSession

Row = Any
Metrics = Iterator[tuple[str, Metric]]

LINES = ("#d55e00", "#e69f00", "#0072b2", "#1a1a1a")
DASHES = ("--", "-", "-.", ":")
SOURCES = {"behind": "beyond them", "inside": "on the middle one"}
NO_FIGURE = "The paper has no such figure."


def bypass(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Time from a silent failure to the next delivery beyond it, by suspicion timeout."""
    run = load_run_about(spark, run_dir, "bypass")
    return draw_bypass(run, bypass_distribution(run.table(spark, "bypasses")).collect())


@house_style()
def draw_bypass(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of `bypass_distribution`."""
    lines = _lines(rows, "delta", "suspicion_ms")
    several = len({delta for delta, _ in lines}) > 1
    figure, (axes,) = _figure(1, 6.4)
    for number, ((delta, silence), line) in enumerate(lines.items()):
        colour = LINES[number % len(LINES)]
        name = f"δ = {delta}, {silence:,} ms" if several else f"{silence:,} ms"
        axes.axvline(silence, color=colour, linestyle=":", linewidth=1.2, alpha=0.7)
        axes.plot(
            [line[0].latency_ms, *(row.latency_ms for row in line)],
            [0, *(100 * row.share for row in line)],
            drawstyle="steps-post", color=colour,
            label=f"{name}:  {_share_time(line, 0.5):,.0f}, {_share_time(line, 0.99):,.0f} ms",
        )  # fmt: skip
    axes.set_xlabel("ms from the silence to the first later publication")
    axes.set_ylabel("subscribers behind the failure reached (%)")
    axes.set_xlim(0, 1.08 * max(silence for _, silence in lines))
    axes.set_ylim(0, 102)
    _place_legend(axes, "suspected after:  half, 99 % by")
    metrics = dict(_bypass_metrics(lines))
    default = _default_suspicion(lines)
    metric = f"p99_ms.suspicion_{default}"
    caption = (
        f"An inner broker of a balanced tree of {run.experiment['brokers']} falls silent for ever. "
        "Time until each subscriber behind it receives the first later publication, "
        f"{run.experiment['runs']} draws per timeout, on simulated brokers. Dotted: the timeout. "
        f"Brokers send three heartbeats per timeout, so the silence may begin up to one interval "
        f"before the failure. {NO_FIGURE} It states that neighbours bypass a failed broker (§IV). "
        f"With {default} ms, 99 % of the subscribers are reached within "
        f"{metrics[metric].value:,.0f} ms; {int(metrics['cut_off'].value)} never are."
    )
    return drawing_of_rows(run, rows, figure, caption, metrics)


def starts(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Time for subscriptions to start, by size of the tree, δ and failures."""
    run = load_run_about(spark, run_dir, "starts")
    return draw_starts(run, start_latency(run.table(spark, "starts")).collect())


@house_style()
def draw_starts(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of `start_latency`."""
    shares = sorted({row.failed_percent for row in rows})
    figure, panels = _figure(len(shares), 3.6)
    for axes, share in zip(panels, shares, strict=True):
        here = [row for row in rows if row.failed_percent == share]
        for number, ((delta,), line) in enumerate(_lines(here, "delta").items()):
            colour = LINES[number % len(LINES)]
            sizes = [row.brokers for row in line]
            band = [row.p10_ms for row in line], [row.p90_ms for row in line]
            line_with_band(
                axes, sizes, [row.p50_ms for row in line], band, colour, alpha=0.12,
                marker=MARKERS[number % len(MARKERS)], label=f"δ = {delta}",
            )  # fmt: skip
        axes.set_xscale("log")
        sizes = sorted({row.brokers for row in rows})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set_title("all live" if not share else f"{share} % failed")
        axes.set_xlabel("brokers")
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("from request to start (ms)")
    _place_legend(panels[-1], None)
    metrics = dict(_start_metrics(rows))
    largest = max(row.brokers for row in rows)
    ours = ", ".join(
        f"{share} % failed: {metrics[f'p50_ms.brokers_{largest}.failed_{share}'].value:.0f} ms"
        for share in shares
    )
    caption = (
        "Time from a client's request to the answer that its subscription has started, in balanced "
        f"trees with at most {run.experiment['fanout']} neighbours per broker, on simulated "
        "brokers with link delays of 0.1 to 2 ms and with disk delays; failed brokers were drawn "
        "at random and had been bypassed before. Lines: median; shaded: 10 % to 90 %. "
        f"{NO_FIGURE} It starts a subscription when every broker has confirmed it (§V). "
        f"{int(metrics['asked'].value - metrics['never'].value):,} of "
        f"{int(metrics['asked'].value):,} started; the median over all δ with {largest} brokers "
        f"is, {ours}."
    )
    return drawing_of_rows(run, rows, figure, caption, metrics)


def overhead(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Duplicates at brokers and bytes between brokers, per delivery, by δ and failures."""
    run = load_run_about(spark, run_dir, "overhead")
    return draw_overhead(run, overhead_per_delivery(run.table(spark, "overheads")).collect())


@house_style()
def draw_overhead(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of `overhead_per_delivery`."""
    variants = [*dict.fromkeys(row.variant for row in rows)]
    figure, panels = _figure(2, 4.2)
    shown = (
        ("duplicates_per_1000", "duplicate receptions per 1,000 deliveries"),
        ("bytes_per_delivery", "bytes between brokers per delivery"),
    )
    for axes, (name, words) in zip(panels, shown, strict=True):
        for place, variant in enumerate(variants):
            here = [row for row in rows if row.variant == variant]
            for number, ((delta,), line) in enumerate(_lines(here, "delta").items()):
                axes.plot(
                    [row.failed for row in line], [row[name] for row in line],
                    color=LINES[place % len(LINES)], marker=MARKERS[number % len(MARKERS)],
                    linestyle=DASHES[number % len(DASHES)], label=f"{variant}, δ = {delta}",
                )  # fmt: skip
        axes.set_xlabel("brokers that fall silent meanwhile")
        axes.set_title(words, fontsize=9.5)
        axes.set_ylim(bottom=0)
    _place_legend(panels[-1], None)
    metrics = dict(_overhead_metrics(rows, variants))
    experiment = run.experiment
    most = max((row.delta, row.failed) for row in rows)
    ours = "; ".join(
        f"{row.variant}: {row.duplicates_per_1000:.1f} and {row.bytes_per_delivery:.0f}"
        for row in rows
        if (row.delta, row.failed) == most
    )
    caption = (
        f"{experiment['publications_per_s']} publications a second of "
        f"{experiment['payload_bytes']} bytes for {experiment['measured_s']} s to every live "
        f"broker of {experiment['brokers']} in a balanced tree; brokers drawn at random fall "
        f"silent during the first half. {experiment['runs']} draws per point, on simulated "
        "brokers, every message through the wire's codec; heartbeats, which the simulator does "
        f"not send, are not counted. {NO_FIGURE} It names duplicates after a bypass as the cost "
        "of losing nothing (§VII). While nothing fails, brokers receive no duplicates "
        f"({metrics['duplicates_while_calm'].value:.0f}), and a delivery costs "
        f"{metrics['bytes_while_calm'].value:.0f} bytes, with the largest δ "
        f"{metrics['bytes_largest_to_smallest_delta_ratio'].value:.2f} times as many as with the "
        f"smallest. With {most[1]} failed and δ = {most[0]}, duplicates per 1,000 deliveries and "
        f"bytes per delivery are, by variant of the protocol, {ours}."
    )
    return drawing_of_rows(run, rows, figure, caption, metrics)


def exclusions(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Publications withheld from a subscription made during a partition, and their end."""
    run = load_run_about(spark, run_dir, "exclusions")
    draws = run.table(spark, "exclusions")
    return draw_exclusions(
        run, exclusions_by_partition(draws).collect(), gate_openings(draws).collect()
    )


@house_style()
def draw_exclusions(run: ExperimentRun, rows: Sequence[Row], openings: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of `exclusions_by_partition` and `gate_openings`."""
    delta = run.experiment["delta"]
    figure, panels = _figure(2, 4.2)
    lines = _lines((row for row in rows if row.source == "behind"), "length")
    for number, ((length,), line) in enumerate(lines.items()):
        panels[0].plot(
            [row.partitioned_s for row in line], [row.withheld for row in line],
            color=LINES[number % len(LINES)], marker=MARKERS[number % len(MARKERS)],
            label=f"{length} down ({'bypassed' if length <= delta else 'a barrier'})",
        )  # fmt: skip
    panels[0].legend(loc="upper left")
    panels[0].set_title("publications withheld, of a source beyond", fontsize=9.5)
    panels[0].set_xlabel("duration of the partition after the subscription (s)")
    panels[0].set_ylabel("withheld per subscription")
    panels[0].set_xlim(left=0)
    for shift, (source, words) in zip((-0.08, 0.08), SOURCES.items(), strict=True):
        there = [row for row in openings if row.source == source]
        middle = [row.p50_ms for row in there]
        panels[1].errorbar(
            [row.length + shift for row in there], middle,
            yerr=[[row.p50_ms - row.p10_ms for row in there],
                  [row.p90_ms - row.p50_ms for row in there]],
            linestyle="none", capsize=3, marker="o" if source == "behind" else "s",
            color=LINES[2 if source == "behind" else 0], label=words,
        )  # fmt: skip
    panels[1].set_title("from heal to open gate (median, 10 % to 90 %)", fontsize=9.5)
    panels[1].set_xlabel("brokers down in a row")
    panels[1].set_ylabel("ms")
    panels[1].set_xticks(sorted({row.length for row in rows}))
    for axes in panels:
        axes.set_ylim(bottom=0)
    _place_legend(panels[-1], "publisher")
    metrics = dict(_exclusion_metrics(rows, openings, delta))
    experiment = run.experiment
    caption = (
        f"A client subscribes at one end of a line of {experiment['brokers']} brokers (δ = "
        f"{delta}) while brokers in its middle are down. A publisher beyond them sends "
        f"{experiment['publications_per_s']} a second; one on the middle broker sends after its "
        f"return. {experiment['runs']} draws per point, on simulated brokers. {NO_FIGURE} It "
        "withholds publications across a barrier (§VI) until recovery notifiers arrive (§VIII). "
        f"Here {int(metrics['withheld_without_barrier'].value)} publications from beyond were "
        f"withheld with at most δ brokers down. Every publication was either delivered or "
        f"announced as withheld ({int(metrics['neither'].value)} were neither). The gates were "
        f"open {metrics['open_longest_ms'].value:,.0f} ms after the heal at the latest: that is "
        "the timeout of an attempt to dial a silent broker, before the next attempt."
    )
    return drawing_of_rows(run, rows, figure, caption, metrics)


def queue(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Publications that wait at the broker before failed brokers, over time."""
    run = load_run_about(spark, run_dir, "queue")
    return draw_queue(run, queue_over_time(run.table(spark, "queues")).collect())


@house_style()
def draw_queue(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of `queue_over_time`."""
    experiment = run.experiment
    delta, broken_s = experiment["delta"], experiment["broken_s"]
    figure, (axes,) = _figure(1, 6.4)
    axes.axvspan(0, broken_s, color="#999999", alpha=0.14, linewidth=0)
    axes.text(
        broken_s / 2, 0.97, "brokers are down", transform=axes.get_xaxis_transform(),
        ha="center", va="top", color="#444444",
    )  # fmt: skip
    for number, ((length,), line) in enumerate(_lines(rows, "length").items()):
        axes.plot(
            [row.t_s for row in line], [row.queue_publications for row in line],
            color=LINES[number % len(LINES)],
            label=f"{length} ({'bypassed' if length <= delta else 'a barrier'}):  "
            f"{max(row.queue_publications for row in line):,.0f} at most",
        )  # fmt: skip
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("since the brokers fell silent (s)")
    axes.set_ylabel("publications held before them")
    axes.set_ylim(bottom=0)
    axes.set_xlim(-experiment["before_s"], broken_s + experiment["after_s"])
    _place_legend(axes, "brokers down in a row")
    metrics = dict(_queue_metrics(rows, delta, broken_s))
    caption = (
        f"{experiment['publications_per_s']} publications a second along a line of "
        f"{experiment['brokers']} brokers (δ = {delta}); brokers in its middle fall silent for "
        f"{broken_s} s and then start again. Shown is the queue of the last broker before them: "
        f"publications that brokers behind have not confirmed. On simulated brokers. {NO_FIGURE} "
        "It queues publications without a route (§VI). Up to δ brokers are bypassed, and the queue "
        f"until then ({metrics['most_bypassed'].value:,.0f} at most) is sent at once. Before a "
        "barrier all publications are queued, and all of them were delivered within "
        f"{metrics['drained_s'].value:.1f} s of the heal."
    )
    return drawing_of_rows(run, rows, figure, caption, metrics)


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {
    "dft11.bypass": bypass,
    "dft11.starts": starts,
    "dft11.overhead": overhead,
    "dft11.exclusions": exclusions,
    "dft11.queue": queue,
}


# --- Metrics of the curves ------------------------------------------------------------------


def _bypass_metrics(lines: Mapping[tuple[Any, ...], Sequence[Row]]) -> Metrics:
    least = min(delta for delta, _ in lines)
    for (delta, silence), line in lines.items():
        where = f"suspicion_{silence}" + (f".delta_{delta}" if delta != least else "")
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            yield f"{name}_ms.{where}", Metric(_share_time(line, share))
        yield f"longest_ms.{where}", Metric(line[-1].latency_ms)
        yield f"subscribers.{where}", Metric(sum(row.subscribers for row in line))
    yield "cut_off", Metric(sum(line[0].cut_off for line in lines.values()))


def _start_metrics(rows: Sequence[Row]) -> Metrics:
    sizes = sorted({row.brokers for row in rows})
    shares = sorted({row.failed_percent for row in rows})
    middle = {
        (size, share): _mean(
            row.p50_ms for row in rows if (row.brokers, row.failed_percent) == (size, share)
        )
        for size in sizes
        for share in shares
    }
    for (size, share), value in middle.items():
        yield f"p50_ms.brokers_{size}.failed_{share}", Metric(value)
    yield (
        "largest_to_smallest_tree_ratio",
        Metric(middle[sizes[-1], shares[0]] / middle[sizes[0], shares[0]]),
    )
    yield "asked", Metric(sum(row.subscriptions for row in rows))
    yield "never", Metric(sum(row.subscriptions - row.started for row in rows))
    yield "longest_ms", Metric(max(row.longest_ms for row in rows if row.started))


def _overhead_metrics(rows: Sequence[Row], variants: Sequence[str]) -> Metrics:
    first = [row for row in rows if row.variant == variants[0]]
    for row in rows:
        where = f"{row.variant}.delta_{row.delta}.failed_{row.failed}"
        yield f"duplicates_per_1000.{where}", Metric(row.duplicates_per_1000)
        yield f"bytes_per_delivery.{where}", Metric(row.bytes_per_delivery)
    calm = sorted((row for row in first if not row.failed), key=lambda row: row.delta)
    yield "deliveries_while_calm", Metric(sum(row.deliveries for row in calm))
    yield "duplicates_while_calm", Metric(sum(row.duplicates for row in calm))
    yield "bytes_while_calm", Metric(_mean(row.bytes_per_delivery for row in calm))
    yield (
        "bytes_largest_to_smallest_delta_ratio",
        Metric(calm[-1].bytes_per_delivery / calm[0].bytes_per_delivery),
    )
    yield "most_duplicates_per_1000", Metric(max(row.duplicates_per_1000 for row in first))


def _exclusion_metrics(rows: Sequence[Row], openings: Sequence[Row], delta: int) -> Metrics:
    for row in rows:
        where = f"{row.source}.length_{row.length}.partitioned_{row.partitioned_s}"
        yield f"withheld.{where}", Metric(row.withheld)
    for row in openings:
        for name in ("p10_ms", "p50_ms", "p90_ms"):
            yield f"open_{name}.{row.source}.length_{row.length}", Metric(row[name])
    around = [row for row in rows if row.source == "behind" and row.length <= delta]
    yield "withheld_without_barrier", Metric(sum(row.withheld * row.runs for row in around))
    yield "neither", Metric(sum(row.neither for row in rows))
    yield "never_opened", Metric(sum(row.never_opened for row in rows))
    yield "open_longest_ms", Metric(max(row.open_longest_ms or 0 for row in rows))


def _queue_metrics(rows: Sequence[Row], delta: int, broken_s: float) -> Metrics:
    lines = _lines(rows, "length")
    for (length,), line in lines.items():
        yield f"most.length_{length}", Metric(max(row.queue_publications for row in line))
        yield f"last.length_{length}", Metric(line[-1].queue_publications)
    yield (
        "most_bypassed",
        Metric(max(row.queue_publications for row in rows if row.length <= delta)),
    )
    late = [
        row.t_s
        for row in rows
        if row.length > delta and row.t_s >= broken_s and row.undelivered > LEFT_IN_FLIGHT
    ]
    instants = sorted({row.t_s for row in rows})
    last = max(late, default=broken_s)
    yield "drained_s", Metric(next((t for t in instants if t > last), last) - broken_s)
    yield (
        "undelivered_at_end",
        Metric(max(line[-1].undelivered for line in lines.values())),
    )


LEFT_IN_FLIGHT = 2
"""Publications that are always on their way somewhere when a sample is taken."""


# --- Rows, panels, words --------------------------------------------------------------------


def _figure(panels: int, width_inches: float) -> "tuple[Figure, list[Axes]]":
    """Return panels side by side without a common axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches * panels + (0.8 if panels > 1 else 0), 3.6),
                    layout="constrained")  # fmt: skip
    return figure, [*figure.subplots(1, panels, sharey=panels > 2, squeeze=False)[0]]


def _place_legend(axes: "Axes", title: str | None) -> None:
    axes.legend(title=title, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _lines(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    lines: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        lines.setdefault(tuple(row[name] for name in names), []).append(row)
    return dict(sorted(lines.items()))


def _share_time(line: Sequence[Row], share: float) -> float:
    """Return the time by which this share of the subscribers was reached, else the last time."""
    return float(next((row.latency_ms for row in line if row.share >= share), line[-1].latency_ms))


def _default_suspicion(lines: Mapping[tuple[Any, ...], Any]) -> int:
    silences = [silence for _, silence in lines]
    return 750 if 750 in silences else silences[0]


def _mean(values: Iterable[float | None]) -> float:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else 0.0
