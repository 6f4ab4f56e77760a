"""gd02.dct: recovery of a lost last event against the messages that find it.

Paper: [GD02] §3.2 (DCT and AET; no figure).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from results.figures.drawing import Drawing, Metric, house_style
from results.papers.experiment_runs import ExperimentRun, load_experiment_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = Any
_MARKS: Final = {"subends": ("o", "#0072b2"), "pubends": ("s", "#d55e00"), "both": ("D", "#009e73")}
"""Marker and colour by the ends that look for lost events."""


def dct(spark: "SparkSession", run_dir: Path) -> Drawing:
    """Recovery time of a lost last event, and messages between brokers, of each case."""
    run = load_experiment_run(spark, Path(run_dir))
    return draw_dct(run, run.table(spark, "lost_last_events").collect())


FIGURES: Mapping[str, Callable[["SparkSession", Path], Drawing]] = {"gd02.dct": dct}


def _kind(case: Mapping[str, Any]) -> str:
    if case["aet_s"] and case["dct_s"]:
        return "both"
    return "pubends" if case["aet_s"] else "subends"


@house_style()
def draw_dct(run: ExperimentRun, found: Sequence[Row]) -> Drawing:
    """Return the figure from the rows of its table."""
    from matplotlib.figure import Figure

    cases = run.experiment["case"]
    by_case = {
        case["name"]: sorted((row for row in found if row.case == case["name"]), key=_run_of)
        for case in cases
    }
    figure = Figure(figsize=(8.6, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    columns = (("idle_messages", "idle_s"), ("busy_messages", "busy_s"))
    for axes, (column, seconds) in zip(panels, columns, strict=True):
        for case in cases:
            rows = by_case[case["name"]]
            late_s = [row.recovery_s for row in rows if row.recovery_s is not None]
            marker, colour = _MARKS[_kind(case)]
            if late_s:
                is_durable = case["protocol"] == "durable"
                axes.errorbar(
                    _per_second(rows, column, run.experiment[seconds]),
                    _mean(late_s),
                    yerr=[[_mean(late_s) - min(late_s)], [max(late_s) - _mean(late_s)]],
                    marker=marker, color=colour, linestyle="none", capsize=2,
                    fillstyle="none" if is_durable else "full",
                )  # fmt: skip
        axes.set_xlabel("messages between brokers per second, without events")
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("recovery of a lost last event, s")
    panels[0].set_title("nothing is published")
    panels[1].set_title(f"{run.experiment['rate']} events a second")
    _add_legend(panels[0])
    return Drawing(
        figure=figure,
        columns=("case", "run", "recovery_s", "idle_per_s", "busy_per_s"),
        rows=[
            (
                row.case, row.run,
                None if row.recovery_s is None else round(row.recovery_s, 3),
                round(row.idle_messages / run.experiment["idle_s"], 3),
                round(row.busy_messages / run.experiment["busy_s"], 3),
            )
            for rows in by_case.values() for row in rows
        ],
        caption=_caption(run),
        scale=dict(run.manifest["scale"]),
        metrics=dict(_metrics(run, by_case)),
        run_ids=(run.run_id,),
    )  # fmt: skip


def _run_of(row: Row) -> int:
    return int(row.run)


def _add_legend(axes: Any) -> None:
    from matplotlib.lines import Line2D

    names = {"subends": "subends (DCT)", "pubends": "pubends (AET)", "both": "both"}
    handles = [
        Line2D([], [], marker=marker, color=colour, linestyle="none", label=names[kind])
        for kind, (marker, colour) in _MARKS.items()
    ]
    axes.legend(handles=handles)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _per_second(rows: Sequence[Row], column: str, seconds: float) -> float:
    return _mean([getattr(row, column) / seconds for row in rows])


def _metrics(
    run: ExperimentRun, by_case: Mapping[str, Sequence[Row]]
) -> Iterator[tuple[str, Metric]]:
    setup = run.experiment
    times = {case["name"]: case for case in setup["case"]}
    for name, rows in by_case.items():
        late_s = [row.recovery_s for row in rows if row.recovery_s is not None]
        yield f"lost.{name}", Metric(len(rows) - len(late_s))
        if not late_s:
            continue
        case = times[name]
        earliest_s = min(each for each in (case["aet_s"], case["dct_s"]) if each)
        yield f"recovery_s.{name}", Metric(_mean(late_s))
        yield f"slowest_of_threshold.{name}", Metric(max(late_s) / earliest_s)
        idle = _per_second(rows, "idle_messages", setup["idle_s"])
        yield f"idle_per_s.{name}", Metric(idle)
        yield f"busy_per_s.{name}", Metric(_per_second(rows, "busy_messages", setup["busy_s"]))
        if case["dct_s"]:
            yield f"idle_per_dct.{name}", Metric(idle * case["dct_s"])


def _caption(run: ExperimentRun) -> str:
    setup = run.experiment
    return (
        "Simulated brokers: the ten of [GD02] Fig. 3, with a subscriber at each of five. The last "
        f"of {setup['events'] + 1} events is absorbed by b1, which is then killed; nothing "
        "follows. Mean, least and greatest time until both subscribers behind b1 have the event, "
        f"of {setup['runs']} draws of the pause before it (0 to {setup['pause_s']:g} s). DCT: a "
        "subend doubts a stream without news. AET: a pubend requests missing acknowledgements, "
        "and looks every second. Hollow: durable. Messages are counted without a failure."
    )
