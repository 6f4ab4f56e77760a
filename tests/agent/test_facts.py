"""Tests of the facts that an agent reports of its machine, against the calls that they name."""

from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.agent import facts
from brokerd.agent.facts import data_folder, disk_bytes_of, machine_facts, read_tails

Disk = namedtuple("Disk", "total used free")


@pytest.fixture
def distinct(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Let every call of the system answer with a value that no other call has."""
    answers = {
        "disk_free_bytes": 13,
        "memory_total_bytes": 21,
        "memory_available_bytes": 22,
        "cores_logical": 31,
        "cores_physical": 32,
        "load_average": [4.1, 4.2, 4.3],
        "uid": 51,
        "monotonic_ns": 61,
        "wall_ns": 62,
        "hostname": "h",
        "boot_id": "boot",
        "cores": [2, 9],
    }
    monkeypatch.setattr(facts.shutil, "disk_usage", lambda _root: Disk(11, 12, 13))
    memory = SimpleNamespace(total=21, available=22, used=23, free=24)
    monkeypatch.setattr(facts.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(facts.psutil, "cpu_count", lambda logical: 31 if logical else 32)
    monkeypatch.setattr(facts.os, "getloadavg", lambda: (4.1, 4.2, 4.3))
    monkeypatch.setattr(facts.os, "geteuid", lambda: 51)
    monkeypatch.setattr(facts.os, "sched_getaffinity", lambda _pid: {9, 2})
    clock = SimpleNamespace(monotonic_ns=lambda: 61, time_ns=lambda: 62)
    monkeypatch.setattr(facts, "time", clock)
    monkeypatch.setattr(facts.socket, "gethostname", lambda: "h")
    monkeypatch.setattr(facts, "boot_id", lambda: "boot")
    return {name: value for name, value in answers.items() if name != "memory_total_bytes"} | {
        "memory_bytes": answers["memory_total_bytes"]
    }


def test_each_fact_of_a_machine_is_of_its_own_call(
    distinct: dict[str, Any], tmp_path: Path
) -> None:
    found = machine_facts(tmp_path)
    assert {name: found[name] for name in distinct} == distinct


def test_a_clock_reading_has_each_clock_and_the_namespace_of_the_monotonic_one(
    distinct: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert distinct["monotonic_ns"] == 61
    monkeypatch.setattr(facts, "_time_namespace", lambda: "time:[7]")
    monkeypatch.setattr(facts, "_kernel_discipline", lambda: (True, 8))
    assert facts.clock_reading() == {
        "monotonic_ns": 61,
        "wall_ns": 62,
        "clock_id": "boot/time:[7]",
        "synchronised": True,
        "wall_error_us": 8,
    }


def test_the_disk_use_of_a_process_is_that_of_all_files_below_its_folder(tmp_path: Path) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    for place, path in enumerate((tmp_path / "x", below / "y"), start=1):
        path.write_bytes(b"x" * 10_000 * place)
    blocks = sum(path.lstat().st_blocks for path in (tmp_path / "x", below / "y"))
    assert disk_bytes_of({"state_folder": str(tmp_path), "folder": "/else"}) == 512 * blocks > 0
    assert data_folder({"folder": "/else"}) == Path("/else")
    assert disk_bytes_of({"folder": None}) is None


def test_tails_of_logs_continue_where_the_reader_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.log").write_bytes(b"0123456789")
    (tmp_path / "a.jsonl").write_bytes(b"abcdef")
    (tmp_path / "c.txt").write_bytes(b"no log")
    (tmp_path / "d.log").symlink_to(tmp_path / "c.txt")

    def tails(after: dict[str, int], last_bytes: int = 0) -> dict[str, tuple[int, bytes, int]]:
        rows = read_tails(tmp_path, after, last_bytes)
        return {row["name"]: (row["offset"], row["data"], row["size_bytes"]) for row in rows}

    assert tails({}) == {}
    assert tails({}, 4) == {"a.jsonl": (2, b"cdef", 6), "b.log": (6, b"6789", 10)}
    assert [*tails({}, 4)] == ["a.jsonl", "b.log"], "sorted by name"
    assert tails({"b.log": 8}) == {"b.log": (8, b"89", 10)}
    assert tails({"b.log": 10, "a.jsonl": 6}) == {}
    assert tails({"b.log": 11}) == {"b.log": (0, b"0123456789", 10)}, "a shorter file is new"
    monkeypatch.setattr(facts, "MOST_BYTES", 8)
    assert tails({"a.jsonl": 0, "b.log": 0}) == {
        "a.jsonl": (0, b"abcdef", 6),
        "b.log": (0, b"01", 10),
    }
    assert tails({"a.jsonl": 6, "b.log": 2}) == {"b.log": (2, b"23456789", 10)}
