"""The publication log on disk: what a crash, a full segment and a bad disk do to it."""

import errno
import os
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brokerd.errors import StorageCorrupt
from brokerd.storage import publication_log
from brokerd.storage.publication_log import LogEntry, PublicationLogFiles
from tests.helpers.lossy_disk import LossyDisk

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
    whole = path.read_bytes()
    second = whole.rindex(b"psb2")
    for place in range(second):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StorageCorrupt, match="damaged at byte"):
            reopened(folder)
        assert path.stat().st_size == len(whole), "nobody removes what is left of it"


def test_a_segment_that_is_missing_between_others_is_damage(tmp_path):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1)], [entry(A, 2)], [entry(A, 3)], segment_bytes=1)
    sorted(folder.glob("*.log"))[1].unlink()
    with pytest.raises(StorageCorrupt, match="group 3 at byte 24 in place of 2"):
        reopened(folder)


@pytest.mark.parametrize("size", [0, 3, 23, 24])
def test_a_segment_that_a_crash_ended_at_its_beginning_held_nothing(tmp_path, size):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1)], [entry(A, 2)], segment_bytes=1)
    (folder / "00000003.log").write_bytes(bytes(size))
    for number in (3, 4):
        found, files = reopened(folder)
        assert [n for _, n, _ in found] == list(range(1, number))
        files.write([entry(A, number)])
        files.close()


def test_a_log_of_an_earlier_version_is_refused_as_such(tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "00000001.log").write_bytes(b"psb1" + bytes(100))
    with pytest.raises(StorageCorrupt, match="written by an earlier version"):
        reopened(folder)


def a_log_of_its_own(groups: int) -> bytes:
    """What another broker's log has on its disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "log"
        written(folder, *([entry(A, number)] for number in range(1, groups + 1)))
        return min(folder.glob("*.log")).read_bytes()


OWN = object()
"""In a payload: what this log has on its disk so far."""
pieces = st.lists(
    st.one_of(
        st.just(OWN),
        st.sampled_from([b"psb1" + bytes(8), b"psb2" + bytes(24), b"psb2", a_log_of_its_own(40)]),
        st.binary(max_size=40),
    ),
    max_size=5,
)


@given(payloads=st.lists(pieces, min_size=1, max_size=4), cut=st.integers(0, 1 << 20))
@example(payloads=[[b"psb1" + bytes(8), b"more"]], cut=1)
@example(payloads=[[b"one"], [OWN, b"more"]], cut=1)
@example(payloads=[[a_log_of_its_own(40), b"more"]], cut=1)
def test_no_payload_makes_a_torn_end_look_like_damage(payloads, cut):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "log"
        files = PublicationLogFiles(folder)
        files.begin(recovering=True)
        expected, sizes = [], [0]
        for number, payload in enumerate(payloads, start=1):
            so_far = b"".join(path.read_bytes() for path in folder.glob("*.log"))
            content = b"".join(so_far if piece is OWN else piece for piece in payload)
            files.write([entry(A, number, content)])
            expected.append((A, number, content))
            (path,) = folder.glob("*.log")
            sizes.append(path.stat().st_size)
        files.close()
        last = sizes[-1] - sizes[-2] if len(payloads) > 1 else sizes[-1] - 24
        os.truncate(path, sizes[-1] - 1 - cut % last)
        found, again = reopened(folder)
        assert found == expected[:-1]
        again.write([entry(A, 9, b"goes on")])
        again.close()
        assert reopened(folder)[0] == [*expected[:-1], (A, 9, b"goes on")]


def test_a_payload_that_pretends_to_be_many_groups_does_not_cost_a_look_at_each(
    tmp_path, monkeypatch
):
    folder = tmp_path / "log"
    pretended = publication_log._GROUP.pack(b"psb2", 7, 30_000, 0) + bytes(8)
    written(folder, [entry(A, 1)], [entry(A, 2, pretended * 1_000)])
    path = max(folder.glob("*.log"))
    os.truncate(path, path.stat().st_size - 1)
    summed = []

    def crc32(data: bytes) -> int:
        summed.append(len(data))
        return zlib.crc32(data)

    monkeypatch.setattr(publication_log, "zlib", type("", (), {"crc32": staticmethod(crc32)}))
    assert [number for _, number, _ in reopened(folder)[0]] == [1]
    assert sum(summed) < 2 * path.stat().st_size + 100


def test_what_a_write_called_durable_survives_a_power_failure(tmp_path, monkeypatch):
    folder = tmp_path / "log"
    for count in range(1, 6):
        disk = LossyDisk(tmp_path, monkeypatch)
        files = PublicationLogFiles(folder, segment_bytes=100)
        files.begin(recovering=True)
        for number in range(1, count + 1):
            files.write([entry(A, 10 * count + number, bytes(40))])
        files.close()
        disk.crash()
        monkeypatch.undo()
        assert [number for _, number, _ in reopened(folder)[0]] == [
            10 * each + number for each in range(1, count + 1) for number in range(1, each + 1)
        ]


def test_what_a_new_deployment_found_no_use_for_does_not_come_back(tmp_path, monkeypatch):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1)])
    disk = LossyDisk(tmp_path, monkeypatch)
    PublicationLogFiles(folder).begin(recovering=False)
    disk.crash()
    assert reopened(folder)[0] == []


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


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_write_that_cannot_be_made_durable_is_no_mere_lack_of_room(tmp_path, monkeypatch, number):
    files = PublicationLogFiles(tmp_path / "log")
    files.begin(recovering=True)
    files.write([entry(A, 1)])

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        files.write([entry(A, 2)])
    assert caught.value.errno == errno.EIO
