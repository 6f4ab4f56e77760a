"""Measures of a run of a fault experiment: requests of brokers, and latencies of deliveries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brokerd.model.fault_verbs import HOLDING_VERBS
from results.checker.latency import first_deliveries
from results.tables.json_files import ResultsError
from results.tables.load import LoadedRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BIN_NS = 100_000_000
SECOND_NS = 1e9
FAILS = ("kill", "cut")


@dataclass(frozen=True)
class FaultSummary:
    """An instance.

    Attributes:
        stall_ns: the time from the stall to the failure.
        failed_ns, repaired_ns: the times of the failure and of the repair.
        requests: rows of `retransmission_requests` since the stall began.
        latency_us: subscriber's broker → stretch of send time → the largest latency.
    """

    run_id: str
    from_ns: int
    stall_ns: int
    failed_ns: int
    repaired_ns: int
    requests: Sequence[Mapping[str, Any]]
    latency_us: Mapping[str, Mapping[int, float]]

    def requested_ns(self, *brokers: str, of: str = "") -> int:
        """Return the ticks that brokers requested from a peer, or from all, in ns."""
        return sum(
            row["asked_ns"]
            for row in self.requests
            if row["broker"] in brokers and of in ("", row["peer"])
        )

    def count_requests(self, *brokers: str) -> int:
        """Return the number of nacks that brokers sent, to any peers."""
        return sum(row["broker"] in brokers for row in self.requests)

    def streams_requested(self, broker: str) -> int:
        """Return the number of streams from which a broker has requested ticks."""
        return len({row["pubend"] for row in self.requests if row["broker"] == broker})

    def requested_while_down_ns(self) -> int:
        """Return the ticks that all brokers requested between failure and repair, in ns."""
        return sum(
            row["asked_ns"]
            for row in self.requests
            if self.failed_ns < row["t_ns"] < self.repaired_ns
        )

    def peak_us(self, broker: str) -> float:
        """Return the largest latency at a broker, of publications sent since the stall began."""
        first = self.from_ns // BIN_NS
        return max(us for at, us in self.latency_us[broker].items() if at >= first)

    def accumulate(self, broker: str) -> list[tuple[float, float]]:
        """Return (seconds, sum of requested milliseconds), a step for each request."""
        total, found = 0.0, []
        for row in self.requests:
            if row["broker"] == broker:
                total += row["asked_ns"] / 1e6
                found.append((row["t_ns"] / SECOND_NS, total))
        return found


def fault_summary(spark: "SparkSession", loaded: LoadedRun) -> FaultSummary:
    """Return the summary of a run.

    Raises:
        ResultsError: the schedule is not a stall that a failure ends.
    """
    faults = sorted(loaded.run.fault_rows, key=lambda row: row["t_applied_ns"] or 0)
    stall = next((row for row in faults if row["verb"] in HOLDING_VERBS), None)
    failure = next((row for row in faults if row["verb"] in FAILS), None)
    if stall is None or failure is None:
        raise ResultsError(f"{loaded.run.folder}: no stall that a failure ends")
    restart = next((row for row in faults if row["verb"] == "restart"), None)
    repaired_ns = failure["t_healed_ns"] if restart is None else restart["t_applied_ns"]
    from_ns, failed_ns = stall["t_applied_ns"], failure["t_applied_ns"]
    table = loaded.table(spark, "retransmission_requests")
    requests = [row.asDict() for row in table.orderBy("t_ns", "broker").collect()]
    return FaultSummary(
        loaded.run.run_id,
        from_ns,
        failed_ns - from_ns,
        failed_ns,
        repaired_ns,
        [row for row in requests if row["t_ns"] >= from_ns],
        _latencies(spark, loaded),
    )


def _latencies(spark: "SparkSession", loaded: LoadedRun) -> dict[str, dict[int, float]]:
    from pyspark.sql import functions as F

    homes = loaded.table(spark, "subscriptions").select("sub_id", "broker")
    rows = (
        first_deliveries(spark, loaded)
        .join(F.broadcast(homes), "sub_id")
        .groupBy("broker", F.floor(F.col("t_ns") / BIN_NS).cast("INT").alias("bin"))
        .agg(F.max("latency_us").alias("us"))
        .collect()
    )
    found: dict[str, dict[int, float]] = {}
    for row in sorted(rows, key=lambda row: (row.broker, row.bin)):
        found.setdefault(row.broker, {})[row.bin] = float(row.us)
    return found
