"""mp22.m3, m6, m7 and m8: spread of topics, waiting for a server, and costs of crashes.

Paper: [MP22], which measures nothing itself; expectations are from its design, §3 and §4.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style
from results.papers.experiment_runs import ExperimentRun, load_experiment_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

Row = Any
SIZE = (6.4, 3.6)
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#999999"
SHADES = (BLUE, "#56b4e9", "#e69f00", ORANGE)


def _spread(spark: "SparkSession", run_dir: Path) -> Drawing:
    run = load_experiment_run(spark, Path(run_dir))
    return draw_spread(run, _rows(spark, run, "owned_topics", "run", "server"))


def _stall(spark: "SparkSession", run_dir: Path) -> Drawing:
    run = load_experiment_run(spark, Path(run_dir))
    return draw_stall(run, _rows(spark, run, "stalled_seconds", "stalled_server", "second"))


def _crashes(spark: "SparkSession", run_dir: Path) -> Drawing:
    run = load_experiment_run(spark, Path(run_dir))
    return draw_crashes(run, _rows(spark, run, "crash_points", "run"))


def _timeouts(spark: "SparkSession", run_dir: Path) -> Drawing:
    run = load_experiment_run(spark, Path(run_dir))
    return draw_timeouts(run, _rows(spark, run, "asked_again", "timeout_ms", "stall_ms"))


FIGURES: Mapping[str, Callable[["SparkSession", Path], Drawing]] = {
    "mp22.m3": _spread,
    "mp22.m6": _stall,
    "mp22.m7": _crashes,
    "mp22.m8": _timeouts,
}


def _rows(spark: "SparkSession", run: ExperimentRun, table: str, *order: str) -> Sequence[Row]:
    return run.table(spark, table).orderBy(*order).collect()


def _drawing(
    run: ExperimentRun,
    figure: Any,
    columns: tuple[str, ...],
    rows: Iterable[Row],
    metrics: Mapping[str, float],
    caption: str,
) -> Drawing:
    return Drawing(
        figure=figure,
        columns=columns,
        rows=[tuple(_round(getattr(row, name)) for name in columns) for row in rows],
        caption=f"{caption} Brokers are simulated, one millisecond apart.",
        scale=dict(run.manifest["scale"]),
        metrics={name: Metric(value) for name, value in metrics.items()},
        run_ids=(run.run_id,),
    )


def _round(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def _axes() -> tuple[Any, "Axes"]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_axisbelow(True)
    return figure, axes


def _kinds(rows: Sequence[Row], name: str, order: Iterable[Any]) -> list[Any]:
    """Return the values of a column, in the order of the experiment."""
    found = {getattr(row, name) for row in rows}
    return [each for each in order if each in found]


# ------------------------------------------------------------ m3


@house_style()
def draw_spread(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return the figure of topics per server, beside an equal share, by kind of ownership."""
    figure, axes = _axes()
    ownerships = _kinds(rows, "ownership", run.experiment["ownerships"])
    servers = sorted({row.server for row in rows})
    metrics: dict[str, float] = {}
    for place, ownership in enumerate(ownerships):
        here = [row for row in rows if row.ownership == ownership]
        runs = sorted({row.run for row in here})
        mean = sum(row.topics for row in here) / len(runs) / len(servers)
        for at, server in enumerate(servers):
            found = [row.topics for row in here if row.server == server]
            x = place + (at - (len(servers) - 1) / 2) * 0.09
            axes.plot([x] * len(found), found, "o", color=BLUE, markersize=3, alpha=0.7)
        axes.plot([place - 0.4, place + 0.4], [mean, mean], color=GREY, linestyle=":")
        shares = [max(row.topics for row in here if row.run == each) / mean for each in runs]
        metrics[f"most_over_mean.{ownership}"] = sum(shares) / len(shares)
        least = [min(row.topics for row in here if row.run == each) / mean for each in runs]
        metrics[f"least_over_mean.{ownership}"] = sum(least) / len(least)
    axes.set_xticks(range(len(ownerships)), ownerships)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("topics of a server")
    percent = run.experiment["asked_percent"]
    return _drawing(
        run,
        figure,
        ("ownership", "run", "server", "topics"),
        rows,
        metrics,
        f"Topics of each of {len(servers)} servers from left to right by name, a dot per draw; "
        f"dotted: an equal share. Each of two access brokers has requested {percent} % of "
        f"{run.manifest['scale']['topics']:,} topics, each over a proxy of its own. With arbiter "
        "a topic has one owner for ever, the server with the fewest topics; with causal and paper "
        "two proxies may have chosen two, and the one with the earlier name keeps the topic.",
    )


# ------------------------------------------------------------ m6


@house_style()
def draw_stall(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return the figure of each second's slowest publications, by the server of the topic."""
    figure, axes = _axes()
    setup = run.experiment
    stalled = [row for row in rows if row.stalled_server]
    others = [row for row in rows if not row.stalled_server]
    for label, colour, group in (
        ("topics of the server that stalls", ORANGE, stalled),
        ("topics of other servers", BLUE, others),
    ):
        axes.plot(
            [row.second for row in group], [row.slowest_ms / 1e3 for row in group],
            color=colour, marker="o", markersize=3, label=label,
        )  # fmt: skip
    stalls = setup["before_s"]
    dies, back = stalls + setup["stalled_s"], stalls + setup["stalled_s"] + setup["down_s"]
    axes.axvspan(stalls, dies, color=GREY, alpha=0.25, linewidth=0, label="it does not answer")
    axes.axvspan(dies, back, color=GREY, alpha=0.5, linewidth=0, label="it is down")
    axes.set_yscale("log")
    axes.set_xlabel("published at (s)")
    axes.set_ylabel("slowest latency of a second (s)")
    axes.legend(fontsize="small")
    late_s = [row.last_came_s for row in stalled if row.second < back]
    metrics = {
        "others_slowest_ms": max((row.slowest_ms for row in others), default=0.0),
        "recovered_ms": 1e3 * (max(late_s, default=back) - back),
        "violations": float(max(row.violations for row in rows)),
    }
    return _drawing(
        run,
        figure,
        (
            "second", "stalled_server", "published", "delivered", "slowest_ms", "mean_ms",
            "last_came_s",
        ),
        rows,
        metrics,
        f"One of {run.manifest['scale']['servers']} servers receives and does not answer for "
        f"{setup['stalled_s']} s, is killed, and returns {setup['down_s']} s later: latency of "
        "the slowest publication of each second until all subscribers had it. Topics of that "
        "server wait; topics of other servers do not.",
    )  # fmt: skip


# ------------------------------------------------------------ m7


@house_style()
def draw_crashes(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return the figure of runs with success, failure, or no crash, by crash point."""
    figure, axes = _axes()
    points = _kinds(rows, "crash_point", run.experiment["crash_points"])
    crashed, failed = [], []
    for point in points:
        here = [row for row in rows if row.crash_point == point and row.broker]
        crashed.append(len(here))
        failed.append(sum(bool(row.violations) or row.delivered < row.owed for row in here))
    well = [each - wrong for each, wrong in zip(crashed, failed, strict=True)]
    axes.bar(range(len(points)), well, color=GREEN, label="all delivered once")
    axes.bar(range(len(points)), failed, bottom=well, color=ORANGE, label="not")
    names = [point.replace("-", " ") for point in points]
    axes.set_xticks(range(len(points)), names, rotation=45, ha="right")
    axes.tick_params(axis="x", labelsize="x-small")
    axes.set_ylabel("runs in which a broker was killed there")
    axes.set_ylim(top=1.25 * max(1, *crashed))
    axes.legend(fontsize="small", ncols=2)
    metrics = {
        "failed": float(sum(failed) + sum(bool(r.violations) for r in rows if not r.broker)),
        "fewest_crashes": float(min(crashed)),
    }
    return _drawing(
        run,
        figure,
        ("crash_point", "ownership", "run", "broker", "owed", "delivered", "violations", "rules"),
        rows,
        metrics,
        "A broker is killed at a crash point of the design, at a moment that the seed draws, and "
        f"returns at once, after 0.3 s or 1.5 s, in {run.manifest['scale']['runs']} runs each. "
        "C1 to C4 are access brokers: before publications are put, before they are acknowledged, "
        "before received ones are delivered, and after. C5 to C7 are servers: before a put is "
        "written, after it, and in between. C9 and C10 are proxies, C11 and C12 two servers that "
        "merge a topic, C13 an arbiter and the candidate of a topic, C14 the arbiter of a topic "
        "that moves, its old owner and its new owner.",
    )


# ------------------------------------------------------------ m8


@house_style()
def draw_timeouts(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return the figure of requests per publication during a stall, by timeout for answers."""
    figure, axes = _axes()
    for place, timeout in enumerate(sorted({row.timeout_ms for row in rows})):
        here = [row for row in rows if row.timeout_ms == timeout]
        stalls = [row.stall_ms / 1e3 for row in here]
        colour = SHADES[place % len(SHADES)]
        axes.plot(
            stalls, [row.puts_most for row in here], color=colour, marker="o", markersize=4,
            label=f"{timeout} ms",
        )  # fmt: skip
        axes.plot(stalls, [row.nested_most for row in here], color=colour, linestyle=":")
    axes.plot([], [], color=GREY, linestyle=":", label="three tries at two hops each")
    axes.set_xscale("log")
    ticks = sorted({row.stall_ms / 1e3 for row in rows})
    axes.set_xticks(ticks, [f"{each:g}" for each in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("the server does not answer for (s)")
    axes.set_ylabel("puts of one publication, at most")
    axes.legend(title="timeout", fontsize="small")
    metrics = {
        "puts_most": float(max(row.puts_most for row in rows)),
        "puts_mean": max(row.puts_mean for row in rows),
        "nested_most": float(max(row.nested_most for row in rows)),
        "violations": float(sum(row.violations + row.undelivered for row in rows)),
    }
    return _drawing(
        run,
        figure,
        (
            "timeout_ms", "stall_ms", "published", "puts_mean", "puts_most", "known_already",
            "nested_most", "slowest_ms", "undelivered", "violations",
        ),
        rows,
        metrics,
        "Number of puts of one publication by its access broker while the only server does not "
        "answer. Here only access brokers retry, with doubled waits, and for ever. Dotted, "
        "computed: the report's rules, by which a client and a proxy each try three times and then "
        "report a failure.",
    )  # fmt: skip
