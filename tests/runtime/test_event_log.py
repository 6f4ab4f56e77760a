"""Tests of the event log of a broker on a full disk, and without a free file descriptor."""

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from brokerd.runtime.event_log import EventLog, digests_of
from tests.helpers.descriptors import no_free_descriptors


def rows(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for row in found:
        del row["t_ns"]
    return found


def test_a_line_without_room_is_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog(tmp_path)
    log.record("started", {})
    with monkeypatch.context() as full:
        full.setattr(os, "write", _no_room)
        log.record("session_lost", {})
        log.sample({"queued": 1})
    log.record("stopping", {})
    log.record("stopped", {})
    log.sample({"queued": 2})
    log.close()
    assert rows(tmp_path / "events.jsonl") == [
        {"event": "started"},
        {"event": "lines_left_out", "lines": 2},
        {"event": "stopping"},
        {"event": "stopped"},
    ]
    assert rows(tmp_path / "stats.jsonl") == [{"queued": 2}]


def test_no_part_of_a_line_that_was_cut_short_stays_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog(tmp_path)
    log.sample({"queued": 1})
    write = os.write
    with monkeypatch.context() as nearly_full:
        nearly_full.setattr(os, "write", lambda file, data: write(file, data[:10]))
        log.sample({"queued": 2})
    log.sample({"queued": 3})
    log.close()
    assert rows(tmp_path / "stats.jsonl") == [{"queued": 1}, {"queued": 3}]


def test_a_run_ends_without_a_free_descriptor(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "own")
    log.begin_run("r1", tmp_path / "run")
    with no_free_descriptors():
        log.end_run()
        log.record("between_runs", {})
    assert log.run_id == ""
    log.record("still_between_runs", {})
    log.close()
    assert [row["event"] for row in rows(tmp_path / "own/events.jsonl")] == [
        "between_runs",
        "still_between_runs",
    ]


def test_a_run_that_cannot_begin_leaves_no_file_open(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "own")
    (tmp_path / "run/stats.jsonl").mkdir(parents=True)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(IsADirectoryError):
            log.begin_run("r1", tmp_path / "run")
    assert os.listdir("/proc/self/fd") == before
    log.close()


def _no_room(_file: int, _data: bytes) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_end_of_a_run_names_its_files_and_their_digests(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "own")
    assert log.end_run() == ()
    log.begin_run("r1", tmp_path / "run")
    log.record("run_ended", {"counters": {"a": 1}})
    log.sample({"a": 1})
    ended = log.end_run()
    log.record("after", {})
    assert [path.name for path in ended] == ["events.jsonl", "stats.jsonl"]
    assert digests_of(ended) == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((tmp_path / "run").iterdir())
    }
    log.close()


def test_each_run_has_its_own_lines_and_no_file_stays_open(tmp_path: Path) -> None:
    """A run may begin before the last one was ended, and the log may be closed within a run."""
    before = len(os.listdir("/proc/self/fd"))
    log = EventLog(tmp_path / "own")
    log.record("between", {})
    own = len(os.listdir("/proc/self/fd"))
    for number, is_ended in ((1, True), (2, False), (3, True), (4, False)):
        run_id = f"r{number}"
        log.begin_run(run_id, tmp_path / run_id)
        assert log.run_id == run_id
        assert len(os.listdir("/proc/self/fd")) == own + 2
        log.record("of", {"run": number})
        log.sample({"run": number})
        if is_ended:
            log.end_run()
            assert log.run_id == ""
            assert len(os.listdir("/proc/self/fd")) == own
            log.record("between", {})
    log.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert rows(tmp_path / "own/events.jsonl") == 3 * [{"event": "between"}]
    for number in range(1, 5):
        assert rows(tmp_path / f"r{number}/events.jsonl") == [{"event": "of", "run": number}]
        assert rows(tmp_path / f"r{number}/stats.jsonl") == [{"run": number}]
