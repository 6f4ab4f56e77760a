"""Offered, sent, owed and delivered publications per interval of time."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def count_published(publications: "DataFrame", bin_ns: int) -> "DataFrame":
    """Return the intended and sent publications of publishers, per interval of `bin_ns`.

    Returns:
        run_id, series ("offered" by intended time, "sent" by the time sent), bin, n.
    """
    from pyspark.sql import functions as F

    data = publications.where(~F.col("is_fence"))
    parts = [
        data.groupBy("run_id", _bin(stamp, bin_ns)).count().withColumn("series", F.lit(series))
        for series, stamp in (("offered", "t_intended_ns"), ("sent", "t_sent_ns"))
    ]
    return parts[0].unionByName(parts[1]).withColumnRenamed("count", "n")


def count_delivered(deliveries: "DataFrame", bin_ns: int) -> "DataFrame":
    """Return the deliveries to applications, per subscription and interval of `bin_ns`, by receipt.

    Returns:
        run_id, sub_id, bin, n.
    """
    from pyspark.sql import functions as F

    data = deliveries.where((F.col("layer") == "application") & (F.col("kind") == "data"))
    received = data.groupBy("run_id", "sub_id", _bin("t_recv_ns", bin_ns))
    return received.count().withColumnRenamed("count", "n")


def _bin(column: str, bin_ns: int) -> "Column":
    from pyspark.sql import functions as F

    return F.floor(F.col(column) / bin_ns).cast("INT").alias("bin")
