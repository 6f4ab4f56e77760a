"""Tests of positions in streams of several sources, as rows of a table."""

from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.load.records import delivery_rows, position_rows
from brokerd.history.records import DELIVERIES, POSITIONS
from brokerd.history.writer import RecordWriter
from results.tables.json_files import IntegrityError
from results.tables.record_files import RECORDS, RecordFile, read_record_file
from results.tables.record_readers import PositionReader, check_positions

TABLES = {
    "publishers": ["p1/1"], "subscriptions": ["a/1", "b/1"], "partitions": [],
    "streams": ["0/7", "0/9"],
}  # fmt: skip


def positions_of(folder: Path, first_row: int) -> RecordFile:
    """Write five deliveries to b; those from row `first_row` on are 40 and 43 of stream 0/9."""
    deliveries = RecordWriter(folder, DELIVERIES, "run")
    deliveries.append(delivery_rows(range(1, 6), 1000, array("I", range(5)), 1, 0, 1))
    deliveries.close(TABLES)
    positions = RecordWriter(folder, POSITIONS, "run")
    positions.append(position_rows([40, 43], 1000, first_row, 1))
    positions.close(TABLES)
    return read_record_file(folder / "positions.rec", "run")


def test_a_position_belongs_to_the_subscription_of_its_delivery(tmp_path: Path) -> None:
    file = positions_of(tmp_path, first_row=2)
    check_positions([file])
    names: Any = SimpleNamespace(
        streams=["0/9", "0/7"], subscriptions_of=lambda _: np.array([5, 6], "i4")
    )
    clock: Any = SimpleNamespace(to_timeline=lambda stamps, host: stamps - 100)
    records = np.fromfile(file.path, RECORDS["positions"])
    assert PositionReader(names, clock).batch(file, records, 0).to_pylist() == [
        {
            "subscription": 6, "stream_number": 0, "position": position, "order_idx": row,
            "t_recv_ns": 900,
        }
        for row, position in ((2, 40), (3, 43))
    ]  # fmt: skip


def test_a_position_of_no_delivery_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="record 1: the position of delivery 5, which is not"):
        check_positions([positions_of(tmp_path, first_row=4)])
