"""The deliveries that faults put at risk, and their outcome, for many runs at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from results.rules.announcements import Announcements
from results.rules.facts import RunFacts
from results.rules.findings import Findings
from results.rules.risks import Exposure, certain_window_ns, risk_windows
from results.rules.terms import Recovery, RiskWindow
from results.tables.frames import PAIR, key_column, make_owed_column, small_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


DELIVERY = (*PAIR, "incarnation", "seq")
"""The columns that identify a delivery."""


def look_at_risks(
    spark: "SparkSession",
    facts: Mapping[str, RunFacts],
    findings: Mapping[str, Findings],
    wanted: "DataFrame",
    judged: "DataFrame",
    fences: "DataFrame",
    announced: Announcements,
    keep: Callable[["DataFrame"], "DataFrame"],
) -> None:
    """Record in `findings` the owed deliveries of publications that were sent through a fault.

    Args:
        wanted: publications with the predicates that match.
        judged: deliveries by pair, with `is_wanted`.
        fences: the keys of the first and last data publication that may be owed, by source.
        keep: computes a table once for repeated use.
    """
    from pyspark.sql import functions as F

    windows = {
        run_id: found for run_id, of_run in facts.items() if (found := risk_windows(of_run.faults))
    }
    if not windows:
        return
    at_risk = keep(_find_at_risk(spark, facts, windows, wanted, fences))
    arrivals = (
        judged.where("is_wanted")
        .join(at_risk.select(*DELIVERY), [*DELIVERY])
        .groupBy(*DELIVERY)
        .agg(F.min("t_recv_ns").alias("arrived_ns"))
    )
    rows = (
        announced.select_unannounced(
            at_risk.join(arrivals, [*DELIVERY], "left").withColumn("key", key_column()),
            unless=F.col("arrived_ns").isNotNull(),
        )
        .groupBy("run_id", "sub_id", "windows")
        .agg(
            F.count("*").alias("at_risk"),
            F.count("arrived_ns").alias("recovered"),
            F.max("arrived_ns").alias("last_ns"),
        )
        .toArrow()
        .to_pylist()
    )
    for row in rows:
        noted = findings[row["run_id"]]
        noted.at_risk += row["at_risk"]
        noted.recovered += row["recovered"]
        at_risk_before, recovered_before = noted.at_risk_of.get(row["sub_id"], (0, 0))
        noted.at_risk_of[row["sub_id"]] = (
            at_risk_before + row["at_risk"],
            recovered_before + row["recovered"],
        )
    for run_id, of_run in windows.items():
        for number, window in enumerate(of_run):
            mine = [r for r in rows if r["run_id"] == run_id and number in r["windows"]]
            findings[run_id].recoveries.append(_recovery(window, mine))


def _find_at_risk(
    spark: "SparkSession",
    facts: Mapping[str, RunFacts],
    windows: Mapping[str, Sequence[RiskWindow]],
    wanted: "DataFrame",
    fences: "DataFrame",
) -> "DataFrame":
    """Return the owed deliveries of publications that were sent in a window, with all windows."""
    from pyspark.sql import functions as F

    return (
        wanted.where(F.col("happened") & ~F.col("is_fence"))
        .join(F.broadcast(_window_table(spark, windows)), "run_id")
        .where((F.col("t_sent_ns") >= F.col("from_ns")) & (F.col("t_sent_ns") < F.col("to_ns")))
        .join(F.broadcast(fences), ["run_id", "pubend"])
        .where(make_owed_column())
        .join(
            F.broadcast(_exposure_table(spark, facts, windows)),
            ["run_id", "window", "pubend", "predicate_id"],
        )
        .groupBy(*DELIVERY)
        .agg(F.sort_array(F.collect_set("window")).alias("windows"))
    )


def _window_table(
    spark: "SparkSession", windows: Mapping[str, Sequence[RiskWindow]]
) -> "DataFrame":
    rows = [
        (run_id, number, *certain_window_ns(window))
        for run_id, of_run in windows.items()
        for number, window in enumerate(of_run)
    ]
    return small_frame(spark, rows, "run_id STRING, window INT, from_ns BIGINT, to_ns BIGINT")


def _exposure_table(
    spark: "SparkSession",
    facts: Mapping[str, RunFacts],
    windows: Mapping[str, Sequence[RiskWindow]],
) -> "DataFrame":
    """Return the subscriptions behind each fault, by source."""
    rows = []
    for run_id, of_run in windows.items():
        known = facts[run_id]
        exposure = Exposure(known.links, known.faults, known.routes)
        predicate_ids = {text: number for number, text in enumerate(known.predicates)}
        for number, window in enumerate(of_run):
            for subscription in known.subscriptions:
                if not subscription.started:
                    continue
                predicate_id = predicate_ids[subscription.predicate]
                rows += [
                    (run_id, number, source.pubend, predicate_id, subscription.sub_id)
                    for source in known.sources
                    if exposure.holds(
                        window,
                        source.name,
                        source.broker,
                        subscription.subscriber,
                        subscription.broker,
                    )
                ]
    return small_frame(
        spark,
        rows,
        "run_id STRING, window INT, pubend STRING, predicate_id INT, sub_id STRING",
    )


def _recovery(window: RiskWindow, rows: Sequence[Mapping[str, Any]]) -> Recovery:
    arrived = [row["last_ns"] for row in rows if row["last_ns"] is not None]
    after_ns = max(arrived) - window.to_ns if arrived and window.ended_by else None
    return Recovery(
        window,
        sum(row["at_risk"] for row in rows),
        sum(row["recovered"] for row in rows),
        after_ns,
    )
