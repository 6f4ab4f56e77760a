"""ges.scale: how path lengths, graphs of brokers and the cost of a profile grow with the system.

Paper: [GES] §2 (small worlds), §3 (abbreviated system views, propagation of profiles).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, linear_regression
from typing import TYPE_CHECKING, Any

from results.figures.drawing import Drawing, Metric, house_style
from results.papers.experiment_runs import ExperimentRun, load_experiment_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pyspark.sql import SparkSession

Row = Any
BLOCK = 64
"""Units in a unit, at most."""
LOOKS = {
    "hierarchy": ("#0072b2", "o"),
    "ring": ("#d55e00", "s"),
    "random": ("#1a1a1a", "D"),
}
FULL = ("#e69f00", "^")
"""The style of hierarchies with the other fanouts."""


def scale(spark: "SparkSession", run_dir: "Path") -> Drawing:
    """Path lengths, clustering, graph sizes and messages per profile change by system size."""
    run = load_experiment_run(spark, Path(run_dir))
    shapes = run.table(spark, "shapes").orderBy("fanout", "brokers", "shape").collect()
    hierarchies = run.table(spark, "hierarchies").orderBy("fanout", "brokers", "broker").collect()
    return draw_scale(run, shapes, hierarchies)


FIGURES: Mapping[str, Callable[["SparkSession", "Path"], Drawing]] = {"ges.scale": scale}


@house_style()
def draw_scale(run: ExperimentRun, shapes: Sequence[Row], hierarchies: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of both tables."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.6, 6.4), layout="constrained")
    (path, clustering), (graph, messages) = figure.subplots(2, 2)
    for axes in (path, clustering, graph, messages):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("brokers")
        sizes = sorted({row.brokers for row in shapes})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
    _draw_shapes(path, shapes, lambda row: row.mean_path_links)
    path.set_yscale("log")
    path.set_ylabel("links on a shortest path, mean (L)")
    path.legend(loc="upper left")
    _draw_shapes(clustering, shapes, lambda row: row.clustering)
    clustering.set_ylim(0, 1)
    clustering.set_ylabel("clustering coefficient (C)")
    _draw_graphs(graph, hierarchies)
    _draw_messages(messages, hierarchies)
    metrics = dict(_metrics(shapes, hierarchies))
    return Drawing(
        figure=figure,
        columns=(
            "shape", "fanout", "brokers", "links", "mean_degree", "mean_path_links", "clustering",
            "graph_units", "graph_bound", "graph_connections", "profile_messages", "answers",
            "deciding", "keeper_messages", "mean_kept",
        ),
        rows=list(_rows(shapes, hierarchies)),
        caption=_caption(run),
        scale=dict(run.manifest["scale"]),
        metrics=metrics,
        run_ids=(run.run_id,),
    )  # fmt: skip


def _draw_shapes(axes: "Axes", rows: Sequence[Row], number: Callable[[Row], float]) -> None:
    lines = [
        (f"hierarchy, units of {fanout}", look, [row for row in group if row.shape == "hierarchy"])
        for fanout, look, group in _group_by_fanout(rows)
    ]
    lines += [
        (shape, LOOKS[shape], [row for row in rows if row.shape == shape])
        for shape in ("ring", "random")
    ]
    for label, (colour, marker), line in lines:
        axes.plot(
            [row.brokers for row in line], [number(row) for row in line],
            color=colour, marker=marker, label=label,
        )  # fmt: skip


def _group_by_fanout(rows: Sequence[Row]) -> Iterator[tuple[int, tuple[str, str], list[Row]]]:
    """Yield the rows of each size of units, the smallest first, with the style of their line."""
    for place, fanout in enumerate(sorted({row.fanout for row in rows})):
        look = FULL if place else LOOKS["hierarchy"]
        yield fanout, look, [row for row in rows if row.fanout == fanout]


def _draw_graphs(axes: "Axes", rows: Sequence[Row]) -> None:
    """Draw the largest graph that was found, below the bound from the paper's blocks."""
    sizes = sorted({row.brokers for row in rows})
    axes.plot(sizes, sizes, color="#999999", linestyle=":", label="all brokers")
    for fanout, (colour, marker), group in _group_by_fanout(rows):
        here = [[row for row in group if row.brokers == size] for size in sizes]
        axes.plot(
            sizes, [_bound(of_size[0]) for of_size in here], color=colour, linestyle="--",
            alpha=0.6, label=f"64 per level, units of {fanout}",
        )  # fmt: skip
        axes.plot(
            sizes, [max(row.graph_units for row in of_size) for of_size in here],
            color=colour, marker=marker, label=f"largest graph, units of {fanout}",
        )  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylabel("brokers and units in a broker's graph")
    axes.legend(loc="upper left", fontsize=8)


def _draw_messages(axes: "Axes", rows: Sequence[Row]) -> None:
    rows = _first(rows)
    sizes = sorted({row.brokers for row in rows})
    numbers: Mapping[str, Callable[[Row], float | None]] = {
        "at every broker: messages and answers": lambda row: row.profile_messages + row.answers,
        "at every broker: messages": lambda row: row.profile_messages,
        "brokers that decide by it": lambda row: row.deciding,
        "at gatekeepers: messages and answers": _keeper_messages,
        "at gatekeepers: profiles that a broker keeps": lambda row: row.mean_kept,
    }
    looks = (*LOOKS.values(), FULL, ("#009e73", "v"))
    for (label, number), (colour, marker) in zip(numbers.items(), looks, strict=True):
        found = [(row.brokers, number(row)) for row in rows]
        counted = [(size, value) for size, value in found if value is not None]
        if len(counted) < len(found):
            continue  # not counted by earlier versions
        means = [fmean(value for at, value in counted if at == size) for size in sizes]
        axes.plot(sizes, means, color=colour, marker=marker, label=label)
    axes.set_yscale("log")
    axes.set_ylim(top=axes.get_ylim()[1] * 100)  # room for the legend
    axes.set_ylabel("per change of a profile")
    axes.legend(loc="upper left", fontsize=8)


def _keeper_messages(row: Row) -> float | None:
    """Return the messages and answers of a change that only gatekeepers store."""
    if row.keeper_messages is None:
        return None
    return float(row.keeper_messages + row.keeper_answers)


def _first(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the smallest units, to which all else is compared."""
    smallest = min(row.fanout for row in rows)
    return [row for row in rows if row.fanout == smallest]


def _bound(row: Row) -> int:
    return BLOCK * int(row.levels)


def _select(shapes: Sequence[Row], shape: str, brokers: int) -> Row:
    return next(row for row in shapes if (row.shape, row.brokers) == (shape, brokers))


def _metrics(shapes: Sequence[Row], hierarchies: Sequence[Row]) -> Iterator[tuple[str, Metric]]:
    sizes = sorted({row.brokers for row in shapes})
    middle, most = next(size for size in sizes if size >= BLOCK), sizes[-1]
    ring, drawn = _select(shapes, "ring", most), _select(shapes, "random", most)
    own = [row for row in _first(shapes) if row.shape == "hierarchy"]
    yield "clustering.hierarchy.least", Metric(min(row.clustering for row in own))
    yield "path_links.hierarchy", Metric(_select(shapes, "hierarchy", most).mean_path_links)
    yield "path_growth", Metric(_path_growth(own))
    degree = ring.mean_degree
    yield "ring.path_ratio", Metric(ring.mean_path_links / (most / (2 * degree)))
    lattice = 3 * (degree - 2) / (4 * (degree - 1))
    yield "ring.clustering_ratio", Metric(ring.clustering / lattice)
    by_chance = math.log(most) / math.log(drawn.mean_degree)
    yield "random.path_ratio", Metric(drawn.mean_path_links / by_chance)
    yield "random.clustering_ratio", Metric(drawn.clustering / (drawn.mean_degree / most))
    shares = [row.graph_units / _bound(row) for row in hierarchies]
    yield "graph_share_of_bound", Metric(max(shares))
    yield "graph_units.largest", Metric(max(row.graph_units for row in hierarchies))
    counted: Mapping[str, Callable[[Row], float | None]] = {
        "profile_messages": lambda row: row.profile_messages,
        "keeper_messages": _keeper_messages,
        "deciding": lambda row: row.deciding,
    }
    for name, number in counted.items():
        at_both = [
            [number(row) for row in _first(hierarchies) if row.brokers == size]
            for size in (middle, most)
        ]
        before, after = ([each for each in values if each is not None] for values in at_both)
        if before and after:
            yield f"growth.{name}", Metric(fmean(after) / fmean(before))
    numbers: Mapping[str, Callable[[Row], float | None]] = {
        "profile_messages": lambda row: row.profile_messages + row.answers,
        "keeper_messages": _keeper_messages,
        "kept": lambda row: row.mean_kept,
    }
    for name, number in numbers.items():
        line = [(row.brokers, number(row)) for row in _first(hierarchies)]
        points = [(math.log(size), math.log(found)) for size, found in line if found]
        if len(points) == len(line):
            exponent = linear_regression(*zip(*points, strict=True)).slope
            yield f"exponent.{name}", Metric(exponent)
    inner = [row.inner_kept for row in _first(hierarchies)]
    if None not in inner:
        yield "kept.inner.most", Metric(max(inner))


def _path_growth(rows: Sequence[Row]) -> float:
    """Return the ratio of a doubling's added path length at the end to that at the beginning."""
    line = [row for row in rows if row.brokers >= BLOCK]
    added = [
        (more.mean_path_links - less.mean_path_links) / math.log2(more.brokers / less.brokers)
        for less, more in pairwise(line)
    ]
    return float(added[-1] / added[0])


def _rows(shapes: Sequence[Row], hierarchies: Sequence[Row]) -> Iterator[tuple[Any, ...]]:
    for row in shapes:
        here = [
            each
            for each in hierarchies
            if (each.brokers, each.fanout, row.shape) == (row.brokers, row.fanout, "hierarchy")
        ]
        counts = [
            round(fmean(getattr(each, name) for each in here), 1) if here else ""
            for name in ("graph_connections", "profile_messages", "answers", "deciding")
        ]
        kept = [each for each in map(_keeper_messages, here) if each is not None]
        largest = max((each.graph_units for each in here), default="")
        yield (
            row.shape, row.fanout, row.brokers, row.links, round(row.mean_degree, 2),
            round(row.mean_path_links, 4), round(row.clustering, 4), largest,
            _bound(here[0]) if here else "", *counts, round(fmean(kept), 1) if kept else "",
            round(here[0].mean_kept, 2) if here and here[0].mean_kept else "",
        )  # fmt: skip


def _caption(run: ExperimentRun) -> str:
    setup = run.experiment
    small = setup["fanouts"][0]
    units = " or ".join(map(str, setup["fanouts"]))
    return (
        f"Hierarchies of units of up to {units} members: brokers of a cluster are all linked, the "
        "other units are rings with two links between neighbours. For comparison: a ring of "
        f"{setup['neighbours']} neighbours each, and a random graph with as many links as the "
        f"hierarchy with units of {small}. Upper panels: the paper states that hierarchies have "
        "high clustering and path lengths that grow with the logarithm, without numbers. Below: "
        f"the largest graph of {setup['looked_at']} brokers of each, computed from the whole "
        "system as swarms check it, against 64 for each level of links; and, with units of "
        f"{small}, the cost of a change of a profile, counted in the brokers' own code. With "
        "keeper_policy = every_node it is sent to all brokers over each link, stored at each, and "
        "confirmed. The paper sends it only to the gatekeepers that decide by it, as brokers do by "
        "default: messages with answers, and the number of profiles that brokers then keep."
    )
