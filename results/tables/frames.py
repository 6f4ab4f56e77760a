"""Building blocks for the tables of all checks on Spark."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from results.tables.schema import TABLES, arrow_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PAIR = ("run_id", "sub_id", "pubend")
PUBLICATION = ("run_id", "pubend", "incarnation", "seq")
EVIDENCE = (*PAIR, "incarnation", "seq", "order_idx")

SEQUENCE_BITS = 47
FIRST_KEY, LAST_KEY = 0, (1 << 63) - 1


def small_frame(spark: "SparkSession", rows: Sequence[Any], ddl: str) -> "DataFrame":
    """Return a small table from rows of the driver."""
    fields = [column.split() for column in ddl.split(", ")]
    columns: list[Any] = [*zip(*rows, strict=True)] if rows else [[] for _ in fields]
    table = pa.table(
        {
            name: pa.array(values, arrow_type(kind))
            for (name, kind), values in zip(fields, columns, strict=True)
        }
    )
    return spark.createDataFrame(table, ddl)


def escape_path(path: Path | str) -> str:
    """Return a path for Spark's readers, which take a path for a pattern.

    Unescaped, the path of a run may match the folder of another run.
    """
    return re.sub(r"[\\{}\[\]*?]", r"\\\g<0>", str(path))


def read_table(spark: "SparkSession", name: str, folder: Path) -> "DataFrame":
    return spark.read.schema(TABLES[name].ddl).parquet(escape_path(folder))


def key_column() -> "Column":
    """Return incarnation and sequence in a number with the same order."""
    from pyspark.sql import functions as F

    high = F.shiftleft(F.col("incarnation").cast("BIGINT"), SEQUENCE_BITS)
    return high.bitwiseOR(F.col("seq"))


def make_owed_column() -> "Column":
    """Return a column that is True between the fences.

    Fences themselves must be excluded elsewhere.
    """
    from pyspark.sql import functions as F

    return F.col("key").between(F.col("after_opening"), F.col("before_closing"))


def key_of(incarnation: int, sequence: int) -> int:
    """Return the key of a publication, as in `key_column`."""
    return incarnation << SEQUENCE_BITS | min(sequence, (1 << SEQUENCE_BITS) - 1)
