"""Tests of the parts of a volume on objects: places of records, groups, marks."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from brokerd.storage.files import DiskFiles, SyncedMark
from brokerd.storage.log_groups import (
    _PLACE_EVERY_BYTES,
    HEAD_BYTES,
    SALT_BYTES,
    SEGMENT,
    EntryKind,
    LogEntry,
    LogState,
    entries_of,
    group_at,
    is_one_bit_off,
    pack_group,
    pack_segment,
    salt_of,
)
from brokerd.storage.log_volume import MARK_NAME, LogVolume
from tests.storage.test_log_volume import LOGS, A, entry, opened

SALT = bytes(range(SALT_BYTES))


# ---------------------------------------------------------------- the state of one log


@pytest.mark.parametrize("seed", range(10))
def test_places_and_stale_records_match_a_list_of_records(seed: int) -> None:
    """The twin has every record, with the group in which the record was written."""
    random = Random(seed)
    log, twin = LogState(), {}
    byte = 0
    for group in range(1, 61):
        act = random.randrange(4)
        if act < 2:
            byte += random.choice((1, _PLACE_EVERY_BYTES - 1, _PLACE_EVERY_BYTES))
            log.add_place(log.next, byte // (3 * _PLACE_EVERY_BYTES), byte)
            for _ in range(random.randint(1, 3)):
                twin[log.next] = (group, byte)
                log.next += 1
        elif act == 2:
            first = random.randint(log.first, log.next)
            log.chop(first)
            twin = {index: place for index, place in twin.items() if index >= first}
        elif log.next > log.first:
            next_index = random.randint(log.first, log.next - 1)
            gone = {index: place for index, place in twin.items() if index >= next_index}
            log.truncate(group, next_index)
            twin = {index: place for index, place in twin.items() if index < next_index}
            for index, (written, _) in gone.items():
                assert log.is_stale(written, index)
                assert not log.is_stale(group, index)
                assert not log.is_stale(group + 1, index)
        for index, (written, at) in twin.items():
            assert not log.is_stale(written, index)
            places = [place for place in log.places if place[0] <= index]
            assert places, f"no search begins before record {index}"
            assert places[-1][2] <= at
        assert len([place for place in log.places if place[0] < log.first]) <= 1
        assert all(end > log.first for _, _, end in log.stale)
        assert log.places == sorted(log.places)


def test_places_are_far_apart_within_a_segment() -> None:
    log = LogState()
    for index, (segment, byte) in enumerate(
        [(1, 9), (1, 8 + _PLACE_EVERY_BYTES), (1, 9 + _PLACE_EVERY_BYTES), (2, 9), (2, 10)], 1
    ):
        log.add_place(index, segment, byte)
    assert [index for index, _, _ in log.places] == [1, 3, 4]


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize("entries", [[], [entry(A, 1, b"")], [entry(A, 1, b"some bytes")]])
def test_a_group_is_read_from_its_bytes_alone(entries: list[LogEntry]) -> None:
    data = pack_group(entries, 5, SALT)
    found = group_at(data, 0, SALT)
    assert found is not None
    assert (found.number, found.size) == (5, len(data))
    assert [each.index for each in entries_of(found.body)] == [each.index for each in entries]
    for cut in (HEAD_BYTES - 1, len(data) - 1):
        assert group_at(data[:cut], 0, SALT) is None
    assert group_at(b"xy" + data, 2, SALT) is not None
    assert group_at(data, 0, SALT[::-1]) is None


def test_each_changed_bit_is_recognised_and_a_torn_end_is_none() -> None:
    data = pack_group([entry(A, 1, b"some bytes")], 5, SALT)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert is_one_bit_off(bytes(changed), 0, SALT), bit
    for end in range(len(data)):
        torn = data[:end] + bytes(len(data) - end)
        if torn != data and group_at(torn, 0, SALT) is None and end < HEAD_BYTES - 8:
            assert not is_one_bit_off(torn, 0, SALT), end
        assert not is_one_bit_off(data[:end], 0, SALT)
    two = bytearray(data)
    two[-1] ^= 0b11
    assert not is_one_bit_off(bytes(two), 0, SALT)


def test_a_segment_of_its_salt_alone_has_a_salt() -> None:
    data = pack_segment(SALT)
    assert len(data) == SEGMENT.size
    assert salt_of(data) == salt_of(data + b"more") == SALT
    assert salt_of(data[:-1]) == salt_of(b"") == b""


@pytest.mark.parametrize(
    "limit, count", [(1, 1), (10, 1), (11, 2), (20, 2), (21, 3), (30, 3), (99, 4)]
)
def test_a_page_ends_with_the_record_that_reaches_its_limit(
    tmp_path: Path, limit: int, count: int
) -> None:
    volume = opened(tmp_path / "log")
    volume.write([entry(A, index, b"0123456789") for index in range(1, 5)])
    volume.write([entry(A, 5, b"0123456789")])
    assert len(volume.read(A, 1, 5, limit)) == count
    volume.close()


# ---------------------------------------------------------------- files


class CountedFiles(DiskFiles):
    """Files that count the open descriptors."""

    def __init__(self) -> None:
        self.open_files: Counter[int] = Counter()

    def create(self, path: Path) -> int:
        file = super().create(path)
        self.open_files[file] += 1
        return file

    def open(self, path: Path, *, change: bool = False) -> int:
        file = super().open(path, change=change)
        self.open_files[file] += 1
        return file

    def close(self, file: int) -> None:
        self.open_files[file] -= 1
        assert self.open_files[file] >= 0, "closed twice"
        super().close(file)


def test_a_closed_volume_has_no_open_files(tmp_path: Path) -> None:
    files = CountedFiles()
    for recovering in (False, True):
        volume = LogVolume(tmp_path / "log", 100, files=files)
        volume.begin(LOGS, recovering=recovering)
        first = volume._logs[A].next
        for index in range(first, first + 9):
            volume.write([entry(A, index, b"0123456789")])
        volume.write([LogEntry(EntryKind.CHOPPED, A, first + 5)])
        assert sum(files.open_files.values()) <= 2
        volume.close()
        volume.close()
        assert sum(files.open_files.values()) == 0


def test_a_mark_is_opened_closed_and_opened_again(tmp_path: Path) -> None:
    files = CountedFiles()
    mark = SyncedMark(files, tmp_path / MARK_NAME)
    mark.close()
    for number in (1, 2):
        mark.open()
        mark.open()
        assert sum(files.open_files.values()) == 1
        mark.write(SALT, number)
        mark.close()
        mark.close()
        assert (mark.number(SALT), mark.number(SALT[::-1])) == (number, 0)
    mark.remove()
    mark.remove()
    assert mark.newest() == (b"", 0)
