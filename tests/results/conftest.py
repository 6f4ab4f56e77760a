"""One Spark session for all tests that want one: starting it takes seconds."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from results.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    with spark_session("tests", master="local[2]") as session:
        yield session
