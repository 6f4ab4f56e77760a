"""The publication log on disk: what a crash, a full segment and a bad disk do to it."""

import os
from pathlib import Path

import pytest

from brokerd.errors import StorageCorrupt
from brokerd.storage.publication_log import LogEntry, PublicationLogFiles

A, B = b"source-a", b"source-b"


def entry(key: bytes, number: int, content: bytes = b"x") -> LogEntry:
    return LogEntry(key, number, [content[:1], content[1:]])


def released(key: bytes, number: int) -> LogEntry:
    return LogEntry(key, number, None)


def reopened(folder: Path) -> tuple[list[tuple[bytes, int, bytes]], PublicationLogFiles]:
    files = PublicationLogFiles(folder)
    found = files.begin(recovering=True)
    return [(e.key, e.number, b"".join(e.content or ())) for e in found], files


def written(folder: Path, *groups: list[LogEntry], segment_bytes: int = 1 << 20) -> None:
    files = PublicationLogFiles(folder, segment_bytes)
    files.begin(recovering=True)
    for group in groups:
        files.write(group)
    files.close()


def test_what_was_written_comes_back_in_order(tmp_path):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1, b"one"), entry(B, 7, b"")], [entry(A, 5, b"five")])
    found, files = reopened(folder)
    assert found == [(A, 1, b"one"), (B, 7, b""), (A, 5, b"five")]
    files.write([entry(A, 6, b"six")])
    files.close()
    assert reopened(folder)[0][-1] == (A, 6, b"six")


def test_what_is_released_does_not_come_back(tmp_path):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1), entry(A, 3), entry(B, 2)], [released(A, 2)])
    assert [(key, number) for key, number, _ in reopened(folder)[0]] == [(A, 3), (B, 2)]


def test_a_new_deployment_starts_with_nothing(tmp_path):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1)])
    assert PublicationLogFiles(folder).begin(recovering=False) == []
    assert reopened(folder)[0] == []


def test_segments_go_when_everything_in_them_is_released(tmp_path):
    folder = tmp_path / "log"
    files = PublicationLogFiles(folder, segment_bytes=100)
    files.begin(recovering=True)
    for number in range(1, 30):
        files.write([entry(A, number, bytes(50))])
    assert len(list(folder.glob("*.log"))) > 10
    files.write([released(A, 28)])
    files.write([entry(B, 1)])
    files.close()
    assert len(list(folder.glob("*.log"))) <= 3
    assert [(key, number) for key, number, _ in reopened(folder)[0]] == [(A, 29), (B, 1)]


@pytest.mark.parametrize("cut", [1, 5, 11, 20, 30])
def test_the_end_that_a_crash_cut_off_is_removed_and_told(tmp_path, cut):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1)], [entry(A, 2, b"two")])
    path = max(folder.glob("*.log"))
    size = path.stat().st_size
    os.truncate(path, size - cut)
    found, files = reopened(folder)
    assert [number for _, number, _ in found] == [1]
    assert 0 < files.torn_bytes < size
    files.close()
    assert [number for _, number, _ in reopened(folder)[0]] == [1]


def test_damage_before_a_whole_group_is_no_torn_end(tmp_path):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1)], [entry(A, 2)])
    path = max(folder.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[15] ^= 1
    path.write_bytes(data)
    with pytest.raises(StorageCorrupt, match="damaged at byte 0"):
        reopened(folder)


def test_a_segment_that_is_not_the_last_may_have_no_torn_end(tmp_path):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1, bytes(200))], [entry(A, 2)], segment_bytes=100)
    path = min(folder.glob("*.log"))
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(StorageCorrupt, match="damaged"):
        reopened(folder)


def test_without_fsync_nothing_waits_for_the_disk(tmp_path, monkeypatch):
    log = PublicationLogFiles(tmp_path / "log", fsync=False)
    log.begin(recovering=False)
    monkeypatch.delattr(os, "fdatasync")
    log.write([entry(A, 1)])
    log.close()
    assert len(PublicationLogFiles(tmp_path / "log").begin(recovering=True)) == 1


def test_a_write_that_cannot_be_made_durable_is_an_error(tmp_path, monkeypatch):
    files = PublicationLogFiles(tmp_path / "log")
    files.begin(recovering=True)

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output"):
        files.write([entry(A, 1)])
