"""ds03.caches: missed events by the place where a broker finds them, by the size of stores.

Paper: [DS03] §1.1, §3 (caches at intermediate brokers; no figure).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from results.figures.drawing import Drawing, Metric, house_style
from results.papers.experiment_runs import ExperimentRun, load_experiment_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = Any
_PLACES: Final = {
    "fetched_from_pubends": ("publishers' broker, from its log", "#d55e00"),
    "fetched_from_store": ("a store on the way", "#009e73"),
    "fetched_from_memory": ("not acknowledged on the way yet", "#56b4e9"),
}
"""Title and colour by the place of missed events."""


def caches(spark: "SparkSession", run_dir: Path) -> Drawing:
    """Share of missed events that each place had, of each case."""
    run = load_experiment_run(spark, Path(run_dir))
    return draw_caches(run, run.table(spark, "missed_events").collect())


FIGURES: Mapping[str, Callable[["SparkSession", Path], Drawing]] = {"ds03.caches": caches}


@house_style()
def draw_caches(run: ExperimentRun, found: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of its table."""
    from matplotlib.figure import Figure

    cases = run.experiment["case"]
    shares = {case["name"]: _percent(found, case["name"]) for case in cases}
    figure = Figure(figsize=(7.4, 3.8), layout="constrained")
    axes = figure.subplots()
    bottom = [0.0] * len(cases)
    for place, (title, colour) in _PLACES.items():
        heights = [shares[case["name"]][place] for case in cases]
        axes.bar(range(len(cases)), heights, bottom=bottom, color=colour, label=title, width=0.7)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.axhline(10, color="#1a1a1a", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(cases)), [case["title"] for case in cases])
    axes.set_xlabel("size of each store, in seconds of events or in bytes")
    axes.set_ylabel("missed events found at, %")
    axes.set_ylim(0, 100)
    figure.legend(loc="outside upper center", ncols=3)
    return Drawing(
        figure=figure,
        columns=("case", "run", "published", "missing", *_PLACES),
        rows=[
            (
                row.case, row.run, row.published, row.missing,
                *(getattr(row, place) for place in _PLACES),
            )
            for row in sorted(found, key=lambda row: (row.case, row.run))
        ],
        caption=_caption(run),
        scale=dict(run.manifest["scale"]),
        metrics=dict(_metrics(found, shares)),
        run_ids=(run.run_id,),
    )  # fmt: skip


def _percent(found: Sequence[Row], case: str) -> dict[str, float]:
    """Return the share of each place among all missed events of a case."""
    rows = [row for row in found if row.case == case]
    counts = {place: sum(getattr(row, place) for row in rows) for place in _PLACES}
    total = sum(counts.values())
    return {place: 100 * count / total if total else 0.0 for place, count in counts.items()}


def _metrics(
    found: Sequence[Row], shares: Mapping[str, Mapping[str, float]]
) -> Iterator[tuple[str, Metric]]:
    for name, share in shares.items():
        yield f"percent_from_pubends.{name}", Metric(share["fetched_from_pubends"])
        rows = [row for row in found if row.case == name]
        fetched = sum(getattr(row, place) for row in rows for place in _PLACES)
        yield f"fetched.{name}", Metric(fetched)
    yield "missing", Metric(sum(row.missing for row in found))


def _caption(run: ExperimentRun) -> str:
    setup = run.experiment
    return (
        f"Simulated brokers: a publishers' broker, one on the way, and two with "
        f"{setup['subscribers']} subscribers each. Each subscriber is away for "
        f"{setup['away_s']:g} s of {setup['period_s']:g} s, at its own time; "
        f"{setup['rate']} events/s of {setup['payload_bytes']} bytes, {setup['runs']} draws of "
        "the times. Events for catch-up by the place where a broker found them. Each broker "
        "stores the events that have passed it, up to the size below; restarted: the "
        "subscriber's broker restarts meanwhile, and has no events in memory. Dashed: the goal "
        "of 10 % for the publishers' broker."
    )
