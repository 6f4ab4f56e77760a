"""What a run comes to in which the broker of durable subscribers is down for a while."""

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
"""A stream is where it would be, if it is no further behind than this: it is looked at once a
second."""

Line = Sequence[tuple[float, float]]
"""(seconds, seconds): when, and how far a stream had come then."""


@dataclass(frozen=True)
class Recovery:
    """One instance; times are seconds after measuring began.

    Attributes:
        down_s, up_s: when the broker was killed, and when it was started again.
        delivered, released: by stream.
        received: by second, how many deliveries all subscribers got.
        processor: by broker, (seconds, share of a core).
        missed_s: when the last of what was published before `up_s` was delivered.
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
        """When all streams were where they would be without the failure, and the slope to it."""
        found = [self._caught_up(line) for line in self.delivered.values()]
        return max(at for at, _ in found), sum(slope for _, slope in found) / len(found)

    def _caught_up(self, line: Line) -> tuple[float, float]:
        before = max(point for point in line if point[0] <= self.down_s)
        for at, come in line:
            if at > self.up_s and come - before[1] > at - before[0] - CAUGHT_UP_S:
                return at, (come - before[1]) / (at - self.up_s)
        raise ResultsError(f"{self.run_id}: a stream never caught up")

    def flat_s(self) -> float:
        """For how long nothing of any stream was delivered, on the mean."""
        return sum(map(self._flat_s, self.delivered.values())) / len(self.delivered)

    def _flat_s(self, line: Line) -> float:
        before = max(point for point in line if point[0] <= self.down_s)
        return min(at for at, come in line if come > before[1]) - before[0]

    def lag_s(self, lines: Mapping[str, Line]) -> float:
        """How much further behind the streams are at the end than before the failure."""
        lags = []
        for line in lines.values():
            before = max(point for point in line if point[0] <= self.down_s)
            lags.append((line[-1][0] - before[0]) - (line[-1][1] - before[1]))
        return max(lags)

    def rate(self, from_s: float, to_s: float) -> float:
        """Deliveries a second between two moments."""
        return sum(count for at, count in self.received if from_s <= at < to_s) / (to_s - from_s)


def recovery_of(spark: "SparkSession", loaded: LoadedRun) -> Recovery:
    """What happened in a run.

    Raises:
        ResultsError: no broker was killed and started again in it.
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
    received, missed_ns = _received(spark, loaded, up_ns)
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
    """Of each stream that has anything, seconds since its first row; there are none while down."""
    names = sorted({name for _, counters in rows for name in counters if name.startswith(prefix)})
    found: dict[str, Line] = {}
    for name in names:
        points = [(at, counters[name] / 1e6) for at, counters in rows if counters.get(name)]
        if len({come for _, come in points}) > 1:
            first_at, first = points[0]
            found[name.removeprefix(prefix)] = [
                (at, come - first + first_at) for at, come in points
            ]
    return found


def _received(spark: "SparkSession", loaded: LoadedRun, up_ns: int) -> tuple[Line, int]:
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
