"""Catch-up times in a run with subscribers that disconnect at times."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from results.papers.ds03.recovery import DELIVERED, RELEASED, SECOND_NS, Line, stream_lines
from results.repetitions.timelines import first_deliveries
from results.rules.absences import absences_of
from results.tables.frames import small_frame
from results.tables.json_files import ResultsError
from results.tables.load import LoadedRun

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
