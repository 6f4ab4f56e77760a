"""Latencies of a run as HdrHistogram logs, a form that other tools can read and merge.

A log for each phase and metric, with an interval for each second in which publications were due;
values are microseconds, to three digits. The logs omit deliveries that no application received,
fences, deliveries with stamps of two clocks, and, if load generators recorded a sample, deliveries
outside the sample.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from results.tables.json_files import write_whole
from results.tables.load import LoadedRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

METRICS: Final = ("response", "service")
DIGITS: Final = 3
LARGEST_US: Final = 3_600_000_000
_BITS: Final = 11
"""Values are counted by their first eleven bits, more than three digits."""


def write_histogram_logs(spark: "SparkSession", loaded: LoadedRun, folder: Path) -> list[Path]:
    """Write `<phase>-<metric>.hlog` for each phase with deliveries; return the paths."""
    written = []
    for metric in METRICS:
        rows = _counts(loaded.table(spark, "deliveries"), f"lat_{metric}_us").toArrow().to_pylist()
        begin = min((row["second"] for row in rows), default=0)
        for phase, of_phase in groupby(rows, key=lambda row: row["phase"]):
            path = folder / f"{phase}-{metric}.hlog"
            folder.mkdir(parents=True, exist_ok=True)
            about = f"{loaded.run.run_id}, {phase}, {metric} latency in microseconds"
            write_whole(path, "".join(log_lines([*of_phase], about, begin)))
            written.append(path)
    return written


def log_lines(rows: Sequence[Mapping[str, Any]], about: str, begin: int) -> Iterator[str]:
    """Yield the lines of a log.

    Args:
        rows: second, value in µs and count, by second.
        begin: the first second of the run; readers accept no times before 0.
    """
    from hdrh.histogram import HdrHistogram

    yield f"#[{about}]\n"
    yield "#[Histogram log format version 1.2]\n"
    yield "#[BaseTime: 0.000 (seconds since the first publication was due)]\n"
    yield '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
    for second, of_second in groupby(rows, key=lambda row: row["second"]):
        histogram = HdrHistogram(1, LARGEST_US, DIGITS)
        for row in of_second:
            histogram.record_value(min(max(row["us"], 0), LARGEST_US), row["n"])
        largest_ms = histogram.get_max_value() / 1000
        yield f"{second - begin:.3f},1.000,{largest_ms:.3f},{histogram.encode().decode('ascii')}\n"


def _counts(deliveries: "DataFrame", column: str) -> "DataFrame":
    """Return phase, second, value and count, in order."""
    from pyspark.sql import functions as F

    value = F.greatest(F.col(column), F.lit(0))
    bits = F.greatest(F.length(F.bin(F.greatest(value, F.lit(1)))) - _BITS, F.lit(0))
    width = F.call_function("shiftleft", F.lit(1).cast("BIGINT"), bits)
    return (
        deliveries.where(
            (F.col("layer") == "application")
            & (F.col("kind") == "data")
            & F.col("same_clock")
            & F.col(column).isNotNull()
        )
        .groupBy(
            "phase",
            F.floor(F.col("t_intended_ns") / 1_000_000_000).alias("second"),
            (value - value % width).alias("us"),
        )
        .agg(F.count("*").alias("n"))
        .orderBy("phase", "second", "us")
    )
