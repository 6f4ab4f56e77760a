"""The rise of latency towards the highest sustainable rate."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from results.figures.drawing import Drawing, Metric, house_style, plain_log_ticks
from results.tables.json_files import ResultsError, read_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KIND: Final = "search"
_P50, _P99, _FAILED = "#0072b2", "#9a5fb5", "#c4321f"


def search_knee(spark: "SparkSession | None", run_dir: Path) -> Drawing:
    """Median and p99 of every tried rate, with the range of the limit.

    Raises:
        ResultsError: the run is no search, is incomplete, or no rate passed.
    """
    folder = Path(run_dir)
    manifest = read_json(folder / "manifest.json")
    if manifest.get("kind") != KIND:
        raise ResultsError(f"{folder} is no search; `pubsubctl limit WORKLOAD` makes one")
    if manifest.get("state") != "complete":
        raise ResultsError(f"{folder}: the search is {manifest.get('state')}")
    found = read_json(folder / "search.json")
    if found["highest_passed"] is None:
        raise ResultsError(f"{folder}: no rate passed")
    return draw(manifest, found)


@house_style()
def draw(manifest: Mapping[str, Any], found: Mapping[str, Any]) -> Drawing:
    """Return the figure of a search."""
    from matplotlib.figure import Figure

    of_all = found["publishers"]
    rows = sorted(found["tried"], key=lambda row: row["rate"])
    picture = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = picture.subplots()
    for key, colour, label in (("p50_us", _P50, "median"), ("p99_us", _P99, "99 %")):
        known = [row for row in rows if row[key]]
        for passed, marker in ((True, "o"), (False, "x")):
            at = [row for row in known if bool(row["why_not"]) != passed]
            axes.plot(
                [of_all * row["rate"] for row in at], [row[key] / 1000 for row in at],
                color=colour, marker=marker, linestyle="none", markersize=5,
                label=label if passed else None,
            )  # fmt: skip
        axes.plot(*_typical(known, key, of_all), color=colour, linewidth=1.0, alpha=0.6)
    highest, lowest = found["highest_passed"], found["lowest_failed"]
    most = highest if lowest is None else lowest
    axes.axvline(of_all * highest, color=_P50, linewidth=0.9, linestyle="--")
    axes.axhline(found["p99_ns"] / 1e6, color=_P99, linewidth=0.9, linestyle=":")
    if lowest is not None:
        axes.axvspan(of_all * highest, of_all * lowest, color=_FAILED, alpha=0.15, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_log_ticks(axes.xaxis)
    plain_log_ticks(axes.yaxis)
    axes.set_xlabel("publications per second, all publishers")
    axes.set_ylabel("latency (ms)")
    axes.legend(loc="best")
    return Drawing(
        figure=picture,
        columns=("rate", "stage", "passed", "p50_ms", "p99_ms", "delivered_per_s", "why_not"),
        rows=[
            (
                of_all * row["rate"], row["stage"], not row["why_not"], row["p50_us"] / 1000,
                row["p99_us"] / 1000, row["delivered_per_s"], row["why_not"],
            )
            for row in rows
        ],
        caption=_caption(manifest, found),
        scale={"publishers": of_all, "tried": len(rows)},
        metrics={"highest": Metric(*(of_all * rate for rate in (highest, highest, most)))},
        run_ids=tuple(row["run_id"] for row in found["tried"]),
    )  # fmt: skip


def _typical(
    rows: Sequence[Mapping[str, Any]], key: str, of_all: int
) -> tuple[list[float], list[float]]:
    """Return by rate the median of its values."""
    at: dict[float, list[float]] = {}
    for row in rows:
        at.setdefault(of_all * row["rate"], []).append(row[key] / 1000)
    return [*at], [sorted(values)[len(values) // 2] for values in at.values()]


def _caption(manifest: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    of_all = found["publishers"]
    highest, lowest = found["highest_passed"], found["lowest_failed"]
    failed = "none failed" if lowest is None else f"the lowest that failed {of_all * lowest:,.0f}/s"
    limit = f" There: limited by {found['first_limit']}." if found["first_limit"] else ""
    return (
        f"{manifest['experiment']}: latency from when a publication was meant to be sent, at every "
        f"rate that was tried. The highest that passed is {of_all * highest:,.0f}/s, {failed}; a "
        f"rate passes where everything owed comes, nothing piles up, and p99 is below "
        f"{found['p99_ns'] / 1e6:g} ms (dotted). Crosses failed.{limit} "
        f"{manifest['cpu']}, {manifest['cores']} cores."
    )


FIGURES = {"search.knee": search_knee}
