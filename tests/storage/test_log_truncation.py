"""Tests of the truncation of the log volume, and of crashes and full disks."""

import errno
import os
from pathlib import Path

import pytest

from brokerd.storage.files import MARK_BYTES
from brokerd.storage.log_groups import EntryKind, LogEntry
from brokerd.storage.log_volume import MARK_NAME, LogVolume
from tests.helpers.lossy_disk import LossyDisk
from tests.helpers.small_disk import limit_writes

A, B = "events", "filters"
LOGS = (A, B)


def entry(log: str, index: int, content: bytes = b"x") -> LogEntry:
    return LogEntry(EntryKind.APPENDED, log, index, [content])


def chopped(log: str, first: int) -> LogEntry:
    return LogEntry(EntryKind.CHOPPED, log, first)


def opened(folder: Path, segment_bytes: int = 1 << 20) -> LogVolume:
    volume = LogVolume(folder, segment_bytes)
    volume.begin(LOGS, recovering=True)
    return volume


def left(folder: Path) -> list[tuple[str, int]]:
    volume = LogVolume(folder)
    found = volume.begin(LOGS, recovering=True)
    for log, (first, end) in found.items():
        for index in range(first, end):
            volume.read(log, index, end, 1)
    return [(log, index) for log in LOGS for index in range(*found[log])]


def test_a_segment_stays_while_one_before_it_does(tmp_path: Path) -> None:
    volume = opened(tmp_path / "log", segment_bytes=1)
    volume.write([entry(A, 1), entry(B, 1)])
    volume.write([entry(A, 2)])
    volume.write([chopped(A, 3)])
    volume.write([entry(A, 3)])
    assert len(list((tmp_path / "log").glob("*.log"))) == 4
    volume.close()
    assert left(tmp_path / "log") == [(A, 3), (B, 1)]


def test_the_segment_that_is_written_to_stays_when_everything_is_chopped(tmp_path: Path) -> None:
    volume = opened(tmp_path / "log")
    volume.write([entry(A, 1)])
    volume.write([chopped(A, 2)])
    volume.write([entry(A, 2)])
    volume.close()
    assert left(tmp_path / "log") == [(A, 2)]


def test_a_record_that_is_written_again_after_a_truncation_keeps_its_segment(
    tmp_path: Path,
) -> None:
    volume = opened(tmp_path / "log", segment_bytes=1)
    volume.write([entry(A, 1), entry(A, 2), entry(A, 3)])
    volume.write([LogEntry(EntryKind.TRUNCATED, A, 2)])
    volume.write([chopped(A, 2)])
    volume.write([entry(A, 2)])
    assert len(list((tmp_path / "log").glob("*.log"))) == 1, "nothing is left in those before"
    volume.close()
    assert left(tmp_path / "log") == [(A, 2)]


def test_a_log_continues_after_a_torn_end_and_another_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "log"
    files = opened(folder)
    files.write([entry(A, 1)])
    files.write([entry(A, 2)])
    files.close()
    os.truncate(folder / "00000001.log", (folder / "00000001.log").stat().st_size - 1)
    (folder / MARK_NAME).write_bytes(bytes(MARK_BYTES))
    torn = (folder / "00000001.log").read_bytes()
    disk = LossyDisk(tmp_path, monkeypatch)
    disk.has(folder / "00000001.log", torn)
    files = opened(folder)
    files.write([entry(A, 2)])
    files.close()
    disk.crash()
    assert left(folder) == [(A, 1), (A, 2)]


def test_a_segment_begins_on_the_disk_before_anything_is_behind_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a crash could keep the first group without the salt of its segment."""
    done: list[str] = []
    for name in ("write", "fdatasync"):

        def call(*arguments: int, _act: str = name, _call: object = getattr(os, name)) -> object:
            done.append(_act)
            assert callable(_call)
            return _call(*arguments)

        monkeypatch.setattr(os, name, call)
    files = opened(tmp_path / "log")
    files.write([entry(A, 1)])
    files.close()
    assert done == 3 * ["write", "fdatasync"], "the segment, the mark, the group"


def test_a_group_that_found_no_room_leaves_nothing_and_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path / "log")
    files.write([entry(A, 1)])
    limit_writes(monkeypatch, 40)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        files.write([entry(A, 2, bytes(100))])
    monkeypatch.undo()
    files.write([entry(A, 2, bytes(100))])
    files.close()
    assert left(tmp_path / "log") == [(A, 1), (A, 2)]
