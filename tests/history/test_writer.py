"""Record files: whole when closed, and never claiming to be otherwise."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from brokerd.history.records import ACKS, DELIVERIES, INTENTS, POSITIONS, PUBLICATIONS
from brokerd.history.writer import LineWriter, RecordWriter


def sidecar(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(f"{path}.json").read_text())
    return content


def test_a_closed_file_is_counted_and_hashed(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, ACKS, "run-1")
    rows = [ACKS.row.pack(number, number + 3, 5, 0, 1, 1) for number in range(20_000)]
    for row in rows:
        writer.append(row)
    writer.close({"publishers": ["p1/1"]}, remark="x")
    assert writer.path.read_bytes() == b"".join(rows)
    facts = sidecar(writer.path)
    assert (facts["rows"], facts["closed"], facts["run_id"]) == (20_000, True, "run-1")
    assert facts["blake2b"] == hashlib.blake2b(b"".join(rows), digest_size=32).hexdigest()
    assert facts["tables"] == {"publishers": ["p1/1"]}
    assert facts["remark"] == "x"


def test_an_unfinished_recording_is_marked_as_not_closed(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, ACKS, "run-1")
    writer.append(ACKS.row.pack(1, 1, 5, 0, 1, 1))
    assert sidecar(writer.path)["closed"] is False
    writer.flush()
    assert writer.path.stat().st_size == 32
    writer.append(ACKS.row.pack(2, 2, 5, 0, 1, 1))
    writer.abandon()
    assert writer.path.stat().st_size == 64
    assert sidecar(writer.path)["closed"] is False
    assert "rows" not in sidecar(writer.path)


def test_a_table_that_rows_point_into_must_be_given(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, DELIVERIES, "run-1")
    with pytest.raises(AssertionError, match="subscriptions"):
        writer.close({"publishers": []})
    writer.abandon()


def test_layouts_have_a_value_per_column() -> None:
    for layout in (PUBLICATIONS, ACKS, INTENTS, DELIVERIES, POSITIONS):
        assert len(layout.row.unpack(bytes(32))) == len(layout.columns)


def test_lines_are_there_at_once(tmp_path: Path) -> None:
    lines = LineWriter(tmp_path / "stats.jsonl")
    lines.write({"t_ns": 1})
    lines.write({"t_ns": 2})
    assert (tmp_path / "stats.jsonl").read_text() == '{"t_ns": 1}\n{"t_ns": 2}\n'
    lines.close()
