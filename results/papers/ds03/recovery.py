"""Measures of a run in which the broker of durable subscribers is down for a while."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from results.repetitions.timelines import first_deliveries
from results.tables.json_files import ResultsError
from results.tables.load import LoadedRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BIN_NS = 1_000_000_000
SECOND_NS = 1e9
DELIVERED, RELEASED = "delivered_us.", "released_us."
CAUGHT_UP_S = 2.0
"""The largest lag of a stream that counts as caught up: samples are a second apart."""

Line = Sequence[tuple[float, float]]
"""(seconds, seconds): time, and position of a stream at that time."""


@dataclass(frozen=True)
class Recovery:
    """An instance; times are seconds after measuring began.

    Attributes:
        down_s, up_s: the times of the broker's kill and restart.
        delivered, released: by stream.
        received: by second, the number of deliveries to all subscribers.
        processor: by broker, (seconds, share of a core).
        missed_s: the time of the last delivery of publications before `up_s`.
    """

    run_id: str
    down_s: float
    up_s: float
    delivered: Mapping[str, Line]
    released: Mapping[str, Line]
    received: Line
    processor: Mapping[str, Line]
    missed_s: float

    def caught_up(self) -> tuple[float, float]:
        """Return the time at which all streams had caught up, and the slope until then."""
        found = [self._caught_up(line) for line in self.delivered.values()]
        return max(at for at, _ in found), sum(slope for _, slope in found) / len(found)

    def _caught_up(self, line: Line) -> tuple[float, float]:
        before = max(point for point in line if point[0] <= self.down_s)
        for at, arrived in line:
            if at > self.up_s and arrived - before[1] > at - before[0] - CAUGHT_UP_S:
                return at, (arrived - before[1]) / (at - self.up_s)
        raise ResultsError(f"{self.run_id}: a stream never caught up")

    def flat_s(self) -> float:
        """Return the mean time for which nothing of a stream was delivered."""
        return sum(map(self._flat_s, self.delivered.values())) / len(self.delivered)

    def _flat_s(self, line: Line) -> float:
        before = max(point for point in line if point[0] <= self.down_s)
        return min(at for at, arrived in line if arrived > before[1]) - before[0]

    def lag_s(self, lines: Mapping[str, Line]) -> float:
        """Return the largest increase of a stream's lag from the failure to the end."""
        lags = []
        for line in lines.values():
            before = max(point for point in line if point[0] <= self.down_s)
            lags.append((line[-1][0] - before[0]) - (line[-1][1] - before[1]))
        return max(lags)

    def rate(self, from_s: float, to_s: float) -> float:
        """Return deliveries per second between two times."""
        return sum(count for at, count in self.received if from_s <= at < to_s) / (to_s - from_s)


def recovery_of(spark: "SparkSession", loaded: LoadedRun) -> Recovery:
    """Return the recovery in a run.

    Raises:
        ResultsError: no broker was killed and started again in the run.
    """
    faults = {row["verb"]: row for row in loaded.run.fault_rows}
    if not {"kill", "restart"} <= faults.keys():
        raise ResultsError(f"{loaded.run.folder}: no broker was killed and started again")
    broker = faults["kill"]["target"]
    up_ns = faults["restart"]["t_applied_ns"]
    stats = loaded.table(spark, "broker_stats").orderBy("t_ns").collect()
    end_ns = loaded.run.phase("measure").to_ns
    shown = [row for row in stats if 0 <= row.t_ns <= end_ns]
    of_broker = [(row.t_ns / SECOND_NS, row.counters) for row in shown if row.broker == broker]
    received, missed_ns = _count_received(spark, loaded, up_ns)
    return Recovery(
        loaded.run.run_id,
        faults["kill"]["t_applied_ns"] / SECOND_NS,
        up_ns / SECOND_NS,
        stream_lines(of_broker, DELIVERED),
        stream_lines(of_broker, RELEASED),
        received,
        {
            name: [
                (row.t_ns / SECOND_NS, row.cpu_ratio)
                for row in shown
                if row.broker == name and row.cpu_ratio is not None
            ]
            for name in sorted({row.broker for row in shown})
        },
        missed_ns / SECOND_NS,
    )


def stream_lines(rows: Sequence[tuple[float, Mapping[str, int]]], prefix: str) -> dict[str, Line]:
    """Return, for each stream with data, positions from its first row; none while down."""
    names = sorted({name for _, counters in rows for name in counters if name.startswith(prefix)})
    found: dict[str, Line] = {}
    for name in names:
        points = [(at, counters[name] / 1e6) for at, counters in rows if counters.get(name)]
        if len({arrived for _, arrived in points}) > 1:
            first_at, first = points[0]
            found[name.removeprefix(prefix)] = [
                (at, arrived - first + first_at) for at, arrived in points
            ]
    return found


def _count_received(spark: "SparkSession", loaded: LoadedRun, up_ns: int) -> tuple[Line, int]:
    from pyspark.sql import functions as F

    deliveries = first_deliveries(spark, loaded).withColumn(
        "received_ns", F.col("t_ns") + 1000 * F.col("latency_us")
    )
    bins = (
        deliveries.groupBy(F.floor(F.col("received_ns") / BIN_NS).cast("INT").alias("bin"))
        .count()
        .orderBy("bin")
        .collect()
    )
    counts = {row.bin: row["count"] for row in bins}
    end = loaded.run.phase("measure").to_ns // BIN_NS
    missed = deliveries.where(F.col("t_ns") < up_ns).agg(F.max("received_ns")).collect()
    return [(float(at), counts.get(at, 0)) for at in range(end)], int(missed[0][0])
