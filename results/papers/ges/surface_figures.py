"""ges.fig7: latency by publication rate and size, a surface per match rate; flooding as a line.

Paper: [GES] §5, Fig. 7 and Table 2, whose numbers are lost.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style
from results.papers.experiment_runs import ExperimentRun, load_experiment_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = Any
Key = tuple[int, int, int]
"""Match rate, size and publication rate."""
COLOURS = ("#d55e00", "#e69f00", "#009e73", "#0072b2")
FLOODING = "#1a1a1a"


def fig7(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Mean latency over rate and size, per hierarchy and match rate."""
    run = load_experiment_run(spark, Path(run_dir))
    return draw_fig7(run, run.table(spark, "latency_surfaces").collect())


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {"ges.fig7": fig7}


class _Surfaces:
    """The mean and variance of the latency on a hierarchy."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {_key(row): row for row in rows if not row.is_flooding}
        self.flooded = {_key(row): row for row in rows if row.is_flooding}
        self.matches = sorted({match for match, _, _ in self.rows}, reverse=True)
        self.sizes = sorted({size for _, size, _ in self.rows})
        self.rates = sorted({rate for *_, rate in self.rows})
        self.middle_size = self.sizes[len(self.sizes) // 2]
        self.middle_rate = self.rates[len(self.rates) // 2]

    def mean(self, match: int, size: int, rate: int) -> float:
        """Return the mean latency of a point, in milliseconds."""
        return float(self.rows[match, size, rate].mean_ms)

    def gap(self, rate: int) -> float:
        """Return the latency that the smallest match rate saves at a rate."""
        most, least = self.matches[0], self.matches[-1]
        size = self.middle_size
        return self.mean(most, size, rate) - self.mean(least, size, rate)

    def count_falling_matches(self) -> int:
        """Return the points at which a smaller match rate is slower than the next larger one."""
        return sum(
            self.mean(less, size, rate) > self.mean(more, size, rate)
            for more, less in pairwise(self.matches)
            for size in self.sizes
            for rate in self.rates
        )

    def count_falling_sizes(self) -> int:
        """Return the points at which larger publications are faster than smaller ones."""
        return sum(
            self.mean(match, small, rate) > self.mean(match, large, rate)
            for match in self.matches
            for small, large in pairwise(self.sizes)
            for rate in self.rates
        )

    def steps_down(self, number: Callable[[Row], float]) -> int:
        """Return the steps at which a number falls with the match rate, at the middle point."""
        size, rate = self.middle_size, self.middle_rate
        line = [number(self.rows[match, size, rate]) for match in self.matches]
        return sum(more > less for more, less in pairwise(line))


def _key(row: Row) -> Key:
    return row.match_percent, row.size_bytes, row.rate


@house_style()
def draw_fig7(run: ExperimentRun, rows: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of the table."""
    from matplotlib.figure import Figure

    topologies = list(dict.fromkeys(run.experiment["topologies"]))
    found = {name: _Surfaces([row for row in rows if row.topology == name]) for name in topologies}
    figure = Figure(figsize=(4.6 * len(topologies), 7.6), layout="constrained")
    for place, (name, surfaces) in enumerate(found.items(), 1):
        above = figure.add_subplot(2, len(topologies), place, projection="3d")
        _draw_surfaces(above, surfaces)
        above.set_title(name)
        below = figure.add_subplot(2, len(topologies), len(topologies) + place)
        _draw_lines(below, surfaces)
    _limit(figure, rows)
    return Drawing(
        figure=figure,
        columns=(
            "topology", "flooding", "match_percent", "size_bytes", "rate", "mean_ms",
            "variance_ms2", "p99_ms", "busiest", "publications", "violations",
        ),
        rows=[
            (row.topology, int(row.is_flooding), row.match_percent, row.size_bytes, row.rate,
             round(row.mean_ms, 4), round(row.variance_ms2, 4), round(row.p99_ms, 4),
             round(row.busiest, 3), row.publications, row.violations)
            for row in sorted(rows, key=lambda row: (row.topology, row.is_flooding, *_key(row)))
        ],
        caption=_caption(run),
        scale=dict(run.manifest["scale"]),
        metrics=dict(_metrics(found, rows)),
        run_ids=(run.run_id,),
    )  # fmt: skip


def _limit(figure: Any, rows: Sequence[Row]) -> None:
    """Give all surfaces one scale, and all lines another; no latency is near 0."""
    middle = {row.size_bytes for row in rows if row.is_flooding}
    for axes in figure.axes:
        is_surface = hasattr(axes, "set_zlim")
        shown = [row.mean_ms for row in rows if is_surface or row.size_bytes in middle]
        limits = 0.9 * min(shown), 1.05 * max(shown)
        (axes.set_zlim if is_surface else axes.set_ylim)(*limits)


def _draw_surfaces(axes: Any, surfaces: _Surfaces) -> None:
    """Draw a surface per match rate, and a line for flooding at the middle size."""
    import numpy as np

    rates, sizes = np.meshgrid(surfaces.rates, surfaces.sizes)
    for place, match in enumerate(surfaces.matches):
        heights = np.array(
            [
                [surfaces.mean(match, size, rate) for rate in surfaces.rates]
                for size in surfaces.sizes
            ]
        )
        colour = COLOURS[place % len(COLOURS)]
        axes.plot_surface(rates, sizes, heights, color=colour, alpha=0.2, shade=False)
        axes.plot_wireframe(rates, sizes, heights, color=colour, linewidth=1)
    line = _flooding_line(surfaces)
    axes.plot(
        surfaces.rates, [surfaces.middle_size] * len(line), line, color=FLOODING, linestyle="--"
    )
    axes.view_init(elev=14, azim=-120)
    axes.set_xlabel("publications per second")
    axes.set_ylabel("bytes")
    axes.set_zlabel("mean latency (ms)")


def _flooding_line(surfaces: _Surfaces) -> list[float]:
    """Return the latencies of flooding by rate, at the smallest match rate and the middle size."""
    match, size = surfaces.matches[-1], surfaces.middle_size
    return [surfaces.flooded[match, size, rate].mean_ms for rate in surfaces.rates]


def _draw_lines(axes: Any, surfaces: _Surfaces) -> None:
    """Draw the surfaces at the middle size, with flooding at the smallest match rate."""
    size = surfaces.middle_size
    for place, match in enumerate(surfaces.matches):
        axes.plot(
            surfaces.rates, [surfaces.mean(match, size, rate) for rate in surfaces.rates],
            color=COLOURS[place % len(COLOURS)], marker="o", markersize=3.5, label=f"{match} %",
        )  # fmt: skip
    axes.plot(
        surfaces.rates, _flooding_line(surfaces), color=FLOODING, linestyle="--",
        label=f"{surfaces.matches[-1]} %, flooded",
    )  # fmt: skip
    axes.set_xlabel(f"publications of {size} bytes per second")
    axes.set_ylabel("mean latency (ms)")
    axes.legend(loc="upper left")


def _metrics(found: Mapping[str, _Surfaces], rows: Sequence[Row]) -> Iterator[tuple[str, Metric]]:
    for name, surfaces in found.items():
        first, last = surfaces.rates[0], surfaces.rates[-1]
        yield f"points_out_of_order.{name}", Metric(surfaces.count_falling_matches())
        yield f"sizes_out_of_order.{name}", Metric(surfaces.count_falling_sizes())
        yield f"gap_growth.{name}", Metric(surfaces.gap(last) / surfaces.gap(first))
        yield f"steps_down.mean.{name}", Metric(surfaces.steps_down(lambda row: row.mean_ms))
        falling = surfaces.steps_down(lambda row: row.variance_ms2)
        yield f"steps_down.variance.{name}", Metric(falling)
        faster = [
            key for key, row in surfaces.flooded.items() if row.mean_ms < surfaces.mean(*key) - 1e-9
        ]
        yield f"flooding_faster.{name}", Metric(len(faster))
    low = [
        surfaces.mean(surfaces.matches[0], surfaces.middle_size, surfaces.rates[0])
        for surfaces in found.values()
    ]
    yield "low_load_ratio", Metric(low[-1] / low[0])
    missing = sum(row.publications - row.delivered for row in rows)
    yield "missing_or_wrong", Metric(missing + sum(row.violations for row in rows))


def _caption(run: ExperimentRun) -> str:
    setup = run.experiment
    return (
        f"Mean latency of publications from a client at {setup['publisher']} to one at "
        f"{setup['measuring']}, which receives all of them, by rate, size, and the share of "
        f"{setup['clients']} clients at every other broker that receive each: a surface per share, "
        "as in the paper, and below each hierarchy its surfaces at the middle size. Dashed: every "
        "broker receives every publication, and drops unwanted ones. Simulated brokers, which run "
        "the code of real ones, send one copy after another: "
        f"{setup['copy_us']} µs and {setup['byte_ns']} ns a byte for each; a link takes "
        f"{setup['latency_us']} µs. Publications are sent at random times, "
        f"{setup['publications']} measured per point. The paper's numbers, of a machine for each "
        "broker, are lost; its text leaves the shapes."
    )
