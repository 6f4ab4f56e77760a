"""Tests of named logs on disk: crashes, full segments and bad disks."""

import errno
import os
import re
import shutil
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brokerd.errors import LogDamaged, StorageCorrupt
from brokerd.storage import log_groups, log_volume
from brokerd.storage.files import MARK_BYTES, DiskFiles
from brokerd.storage.log_groups import EntryKind, LogEntry, LogRun
from brokerd.storage.log_volume import LogVolume, is_transient
from tests.helpers.lossy_disk import LossyDisk
from tests.helpers.memory_storage import MemoryFiles
from tests.helpers.small_disk import limit_writes

A, B = "events", "filters"
LOGS = (A, B)
PAGE_BYTES = 1 << 20


def entry(log: str, index: int, content: bytes = b"x") -> LogEntry:
    return LogEntry(EntryKind.APPENDED, log, index, [content[:1], content[1:]])


def chopped(log: str, first: int) -> LogEntry:
    return LogEntry(EntryKind.CHOPPED, log, first)


def truncated(log: str, next_index: int) -> LogEntry:
    return LogEntry(EntryKind.TRUNCATED, log, next_index)


def opened(folder: Path, segment_bytes: int = 1 << 20) -> LogVolume:
    volume = LogVolume(folder, segment_bytes)
    volume.begin(LOGS, recovering=True)
    return volume


def reopened(folder: Path) -> tuple[list[tuple[str, int, bytes]], LogVolume]:
    """Return all records, log by log, and the volume."""
    volume = LogVolume(folder)
    found = []
    for log, (first, end) in sorted(volume.begin(LOGS, recovering=True).items()):
        while first < end:
            records = volume.read(log, first, end, PAGE_BYTES)
            found += [(log, first + place, record) for place, record in enumerate(records)]
            first += len(records)
    return found, volume


def indices(folder: Path) -> list[int]:
    return [index for _, index, _ in reopened(folder)[0]]


def written(folder: Path, *groups: list[LogEntry], segment_bytes: int = 1 << 20) -> None:
    files = opened(folder, segment_bytes)
    for group in groups:
        files.write(group)
    files.close()


def test_written_records_are_recovered_by_log_and_in_order(tmp_path):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1, b"one"), entry(B, 1, b"")], [entry(A, 2, b"two")])
    found, files = reopened(folder)
    assert found == [(A, 1, b"one"), (A, 2, b"two"), (B, 1, b"")]
    files.write([entry(A, 3, b"three")])
    files.close()
    assert (A, 3, b"three") in reopened(folder)[0]


def test_chopped_records_are_not_recovered(tmp_path):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1), entry(A, 2), entry(B, 1)], [chopped(A, 2)])
    assert [(log, index) for log, index, _ in reopened(folder)[0]] == [(A, 2), (B, 1)]


def test_a_new_deployment_starts_with_nothing(tmp_path):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1)])
    assert LogVolume(folder).begin(LOGS, recovering=False) == {A: (1, 1), B: (1, 1)}
    assert reopened(folder)[0] == []


def test_an_unknown_log_is_not_ignored(tmp_path):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1)])
    with pytest.raises(StorageCorrupt, match="has a log 'filters', but not in \\['events'\\]"):
        LogVolume(folder).begin((A,), recovering=True)


def test_segments_go_when_everything_in_them_is_chopped(tmp_path):
    folder = tmp_path / "log"
    files = opened(folder, segment_bytes=100)
    for index in range(1, 30):
        files.write([entry(A, index, bytes(50))])
    assert len(list(folder.glob("*.log"))) > 10
    files.write([chopped(A, 29)])
    files.write([entry(B, 1)])
    files.close()
    assert len(list(folder.glob("*.log"))) <= 3
    assert [(log, index) for log, index, _ in reopened(folder)[0]] == [(A, 29), (B, 1)]


def test_a_slow_log_keeps_the_segments_that_it_shares(tmp_path):
    folder = tmp_path / "log"
    written(
        folder,
        [entry(A, 1), entry(B, 1)],
        [entry(A, 2)],
        [entry(A, 3), chopped(A, 3)],
        segment_bytes=1,
    )
    assert len(list(folder.glob("*.log"))) == 3, "B 1 is in the first"
    assert [(log, index) for log, index, _ in reopened(folder)[0]] == [(A, 3), (B, 1)]


def test_indices_continue_after_all_records_of_a_log_were_chopped(tmp_path):
    folder = tmp_path / "log"
    written(folder, [entry(B, 1), chopped(B, 2)], segment_bytes=1)
    for index in range(1, 4):
        files = opened(folder, segment_bytes=1)
        files.write([entry(A, index), chopped(A, index)])
        files.close()
    assert not (folder / "00000001.log").exists()
    assert LogVolume(folder).begin(LOGS, recovering=True) == {A: (3, 4), B: (2, 2)}


def test_truncated_records_are_removed_and_their_indices_are_reused(tmp_path):
    folder = tmp_path / "log"
    expected = [(A, 1, b"a"), (A, 2, b"new"), (A, 3, b"newer")]
    files = opened(folder)
    files.write([entry(A, 1, b"a"), entry(A, 2, b"old"), entry(A, 3, b"old"), entry(A, 4, b"old")])
    files.write([truncated(A, 3), entry(A, 3, b"older"), truncated(A, 2), entry(A, 2, b"new")])
    files.write([entry(A, 3, b"newer")])
    assert [files.read(A, index, 4, 0)[0] for index in (1, 2, 3)] == [b"a", b"new", b"newer"]
    files.close()
    assert reopened(folder)[0] == expected


def test_a_page_has_at_least_one_record_and_about_the_requested_bytes(tmp_path):
    files = opened(tmp_path / "log", segment_bytes=2_000)
    for index in range(1, 21):
        files.write([entry(A, index, bytes([index]) * 400), entry(B, index)])
    assert files.read(A, 7, 21, 0) == [bytes([7]) * 400]
    assert [record[0] for record in files.read(A, 7, 21, 1_000)] == [7, 8, 9]
    assert [record[0] for record in files.read(A, 7, 9, PAGE_BYTES)] == [7, 8]
    with pytest.raises(AssertionError, match=r"\[20, 22\)"):
        files.read(A, 20, 22, PAGE_BYTES)
    files.close()


def test_a_record_far_inside_is_not_looked_for_from_the_beginning(tmp_path, monkeypatch):
    files = opened(tmp_path / "log")
    for index in range(1, 31):
        files.write([entry(A, index, bytes(30_000))])
    read = []
    monkeypatch.setattr(os, "pread", lambda *a, real=os.pread: read.append(a[1]) or real(*a))
    assert len(files.read(A, 30, 31, PAGE_BYTES)) == 1
    assert sum(read) < 150_000, "of 900,000"
    files.close()


def test_a_record_damaged_after_the_start_is_not_read(tmp_path):
    folder = tmp_path / "log"
    files = opened(folder)
    files.write([entry(A, 1, b"one")])
    files.write([entry(A, 2, b"two")])
    (path,) = folder.glob("*.log")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"two", b"owt"))
    assert files.read(A, 1, 2, 0) == [b"one"]
    with pytest.raises(StorageCorrupt, match="damaged at byte"):
        files.read(A, 2, 3, 0)
    files.close()


@st.composite
def histories(draw):
    """Draw groups of changes of two logs, with the records that remain at the end."""
    left = {log: {} for log in LOGS}
    ends = {log: [1, 1] for log in LOGS}
    groups = []
    for _ in range(draw(st.integers(1, 8))):
        group = []
        for _ in range(draw(st.integers(1, 4))):
            log = draw(st.sampled_from(LOGS))
            first, end = ends[log]
            what = draw(st.sampled_from([entry, entry, entry, chopped, truncated]))
            if what is entry:
                left[log][end] = draw(st.binary(max_size=8))
                group.append(entry(log, end, left[log][end]))
                ends[log][1] += 1
                continue
            index = draw(st.integers(first, end))
            group.append(what(log, index))
            ends[log] = [index, end] if what is chopped else [first, index]
            first, end = ends[log]
            left[log] = {i: record for i, record in left[log].items() if first <= i < end}
        groups.append(group)
    expected = [(log, index, record) for log in sorted(left) for index, record in left[log].items()]
    return groups, expected, {log: tuple(found) for log, found in ends.items()}


@given(
    history=histories(), segment_bytes=st.sampled_from([1, 150, 1 << 20]), restarts=st.booleans()
)
def test_any_history_leaves_the_state_of_a_plain_table(history, segment_bytes, restarts):
    groups, expected, ends = history
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "log"
        files = opened(folder, segment_bytes)
        for group in groups:
            if restarts:
                files.close()
                files = opened(folder, segment_bytes)
            files.write(group)
        files.close()
        found, again = reopened(folder)
        assert found == expected
        assert again.begin(LOGS, recovering=True) == ends


@given(
    history=histories(),
    segment_bytes=st.sampled_from([1, 150, 1 << 20]),
    fails=st.lists(st.sampled_from([False, False, True]), max_size=40),
)
def test_writes_that_found_no_room_or_descriptor_can_be_repeated_and_leave_no_file_open(
    history, segment_bytes, fails
):
    groups, expected, ends = history
    files = MemoryFiles({"/d/x": b""})
    left = iter(fails)

    def before(operation: str) -> None:
        number = errno.ENOSPC if operation == "append" else errno.EMFILE
        if operation in ("create", "open", "append", "sync_folder") and next(left, False):
            raise OSError(number, os.strerror(number))

    volume = LogVolume(Path("/d/log"), segment_bytes, files=files)
    volume.begin(LOGS, recovering=False)
    files.before = before
    for group in groups:
        while True:
            try:
                volume.write(group)
            except OSError as error:
                if not is_transient(error):
                    raise
            else:
                break
        assert len(files.in_use) == 2, "the segment that is written to, and the mark"
    files.before = lambda _operation: None
    volume.close()
    assert files.in_use == []
    again = LogVolume(Path("/d/log"), files=MemoryFiles(files.read_all()))
    assert again.begin(LOGS, recovering=True) == ends
    assert [
        (log, index, record)
        for log, (first, end) in sorted(ends.items())
        for index in range(first, end)
        for record in again.read(log, index, index + 1, PAGE_BYTES)
    ] == expected


@pytest.mark.parametrize("cut", [1, 5, 11, 20, 30])
def test_an_end_torn_by_a_crash_is_removed_and_reported(tmp_path, cut):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1)], [entry(A, 2, b"two")])
    path = max(folder.glob("*.log"))
    size = path.stat().st_size
    os.truncate(path, size - cut)
    (folder / log_volume.MARK_NAME).write_bytes(bytes(MARK_BYTES))
    found, files = reopened(folder)
    assert [index for _, index, _ in found] == [1]
    assert 0 < files.torn_bytes < size
    files.close()
    assert indices(folder) == [1]


@pytest.mark.parametrize(
    "change", ["removed", "moved", "replaced", "written over by an older copy"]
)
def test_a_segment_that_is_removed_or_replaced_takes_no_further_groups(tmp_path, change):
    """No restart would find the groups, so they must not be acknowledged."""
    folder = tmp_path / "log"
    files = opened(folder)
    files.write([entry(A, 1)])
    path = folder / "00000001.log"
    content = path.read_bytes()
    if change == "written over by an older copy":
        path.write_bytes(content[:-1])
    elif change == "moved":
        path.rename(folder / "moved")
    else:
        path.unlink()
    if change == "replaced":
        path.write_bytes(content)
    with pytest.raises(StorageCorrupt, match="removed or replaced while this broker was running"):
        files.write([entry(A, 2)])
    files.close()


def moved(path: Path) -> None:
    path.rename(path.with_name("moved"))


def moved_below_a_copy(path: Path) -> None:
    moved(path)
    path.write_bytes(path.with_name("moved").read_bytes())


def covered_by_a_link_to_a_copy(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    os.link(copy, copy.with_name("link"))
    copy.with_name("link").replace(path)


def swapped_with_a_copy_of_its_folder(path: Path) -> None:
    shutil.copytree(path.parent, path.parent.with_name("copy"))
    moved(path.parent)
    path.parent.with_name("copy").rename(path.parent)


@pytest.mark.parametrize("name", ["00000001.log", "00000002.log", "00000003.log", "synced"])
@pytest.mark.parametrize(
    "change",
    [moved, moved_below_a_copy, covered_by_a_link_to_a_copy, swapped_with_a_copy_of_its_folder],
)
def test_a_log_takes_no_further_groups_once_another_file_has_a_name_of_its_files(
    tmp_path, change, name
):
    """An open file without its name takes writes that no restart would find."""
    folder = tmp_path / "log"
    written(folder, *([entry(A, number)] for number in (1, 2)), segment_bytes=1)
    files = opened(folder)
    files.write([entry(A, 3)])
    change(folder / name)
    last = 4 if name == "00000003.log" else 8
    with pytest.raises(StorageCorrupt, match="removed or replaced while this broker was running"):
        write_each(files, range(4, last + 1))
    files.close()


def write_each(files: LogVolume, numbers: range) -> None:
    for number in numbers:
        files.write([entry(A, number)])


def test_a_log_with_further_links_to_its_files_takes_further_groups(tmp_path):
    folder = tmp_path / "log"
    files = opened(folder)
    files.write([entry(A, 1)])
    os.link(folder / "00000001.log", tmp_path / "link")
    files.write([entry(A, 2)])
    files.close()
    assert indices(folder) == [1, 2]


@pytest.mark.parametrize("number", [1, 2])
def test_an_end_without_the_file_of_the_mark_is_damaged_and_not_torn(tmp_path, number):
    """No crash removes that file: it is durable before the first group of a segment."""
    folder = tmp_path / "log"
    written(folder, *([entry(A, n)] for n in range(1, number + 1)), segment_bytes=1)
    path = max(folder.glob("*.log"))
    assert path.name == f"{number:08d}.log"
    os.truncate(path, path.stat().st_size - 1)
    (folder / log_volume.MARK_NAME).unlink()
    for _ in range(2):
        with pytest.raises(LogDamaged, match="the file synced is missing"):
            reopened(folder)
    volume = LogVolume(folder)
    volume.begin(LOGS, recovering=True, drops_damage=True)
    volume.accept_end()
    volume.write([entry(A, number)])
    volume.close()
    assert indices(folder) == [*range(1, number + 1)]
    last = max(folder.glob("*.log"))
    os.truncate(last, last.stat().st_size - 1)
    with pytest.raises(LogDamaged, match="was on disk"):
        reopened(folder)  # groups behind an accepted loss are marked durable


def test_damage_before_a_whole_group_is_no_torn_end(tmp_path):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1)], [entry(A, 2)])
    path = max(folder.glob("*.log"))
    whole = path.read_bytes()
    second = whole.rindex(b"psl1")
    (folder / log_volume.MARK_NAME).write_bytes(bytes(MARK_BYTES))
    for place in range(second):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 3]) + whole[place + 1 :])
        with pytest.raises(StorageCorrupt, match="damaged at byte"):
            reopened(folder)
        assert path.stat().st_size == len(whole), "nobody removes what is left of it"


@pytest.mark.parametrize("size", [0, 5, 24, 40, 90])
def test_an_only_segment_after_others_is_never_taken_as_empty(tmp_path, size):
    """Earlier segments are removed only after the first group of a later segment is durable."""
    folder = tmp_path / "log"
    written(folder, *([chopped(A, n), entry(A, n)] for n in (1, 2, 3)), segment_bytes=1)
    path = min(folder.glob("*.log"))
    for later in set(folder.glob("*.log")) - {path}:
        later.unlink()
    os.truncate(path, size)
    (folder / log_volume.MARK_NAME).write_bytes(bytes(MARK_BYTES))
    volume = LogVolume(folder)
    for _ in range(2):
        with pytest.raises(LogDamaged, match="damaged at byte"):
            volume.begin(LOGS, recovering=True)
        assert path.stat().st_size == size
    assert continued(folder) == [1]


@pytest.mark.parametrize("name", ["00000001 (copy).log", "1.log", "000000002.log", "notes.log"])
def test_a_file_that_is_named_like_a_segment_is_refused_by_name(tmp_path, name):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1)])
    (folder / name).write_bytes((folder / "00000001.log").read_bytes())
    with pytest.raises(StorageCorrupt, match=re.escape(f"{folder / name}: no name of a segment")):
        reopened(folder)
    (folder / name).unlink()
    assert indices(folder) == [1]


class RecordingFiles(DiskFiles):
    """Files on disk that record removals and synced folders."""

    def __init__(self) -> None:
        self.acts: list[str] = []

    def remove(self, path: Path) -> None:
        super().remove(path)
        self.acts.append("remove")

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.acts.append(f"sync {folder.name}")


def continued(folder: Path) -> list[int]:
    """Return the numbers of a damaged log without the damage, with one more and after a restart."""
    volume = LogVolume(folder)
    with pytest.raises(LogDamaged):
        volume.begin(LOGS, recovering=True)
    end = volume.begin(LOGS, recovering=True, drops_damage=True)[A][1]
    volume.accept_end()
    volume.write([entry(A, end)])
    volume.close()
    assert LogVolume(folder).begin(LOGS, recovering=True)[A] == (1, end + 1)
    return indices(folder)


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_a_log_continues_before_damage_if_the_rest_may_be_lost(tmp_path, segment_bytes):
    folder = tmp_path / "log"
    written(folder, *([entry(A, number)] for number in (1, 2, 3)), segment_bytes=segment_bytes)
    whole = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    paths = [path for path in whole if path.suffix == ".log"]
    earlier = 0
    for path in paths:
        data = whole[path]
        starts = [place for place in range(24, len(data)) if data[place : place + 4] == b"psl1"]
        for place in range(len(data)):
            for each in folder.iterdir():
                each.unlink()
            for each, content in whole.items():
                each.write_bytes(content)
            path.write_bytes(data[:place] + bytes([data[place] ^ 3]) + data[place + 1 :])
            kept = earlier + max(0, sum(start <= place for start in starts) - 1)
            assert continued(folder) == [*range(1, kept + 2)], (path, place)
        earlier += len(starts)


@pytest.mark.parametrize("damaged", [0, 1], ids=["first segment", "a later one"])
def test_a_crash_does_not_bring_removed_segments_back(tmp_path, damaged):
    folder = tmp_path / "log"
    written(folder, *([entry(A, number)] for number in (1, 2, 3)), segment_bytes=1)
    path = sorted(folder.glob("*.log"))[damaged]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    files = RecordingFiles()
    volume = LogVolume(folder, files=files)
    volume.begin(LOGS, recovering=True, drops_damage=True)
    volume.close()
    assert files.acts[-1] == "sync log"
    assert "remove" in files.acts


def test_damage_on_a_full_disk_is_removed_once_there_is_room(tmp_path, monkeypatch):
    folder = tmp_path / "log"
    written(folder, *([entry(A, number)] for number in (1, 2, 3)), segment_bytes=1)
    path = sorted(folder.glob("*.log"))[1]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    volume = LogVolume(folder)
    limit_writes(monkeypatch, 24)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        volume.begin(LOGS, recovering=True, drops_damage=True)
    monkeypatch.undo()
    assert volume.begin(LOGS, recovering=True, drops_damage=True)[A] == (1, 2)
    volume.close()
    assert indices(folder) == [1]


@pytest.mark.parametrize(
    "cause, is_same",
    [("/log: damaged at byte 9", True), ("/log: damaged at byte 9: a bit has changed", True),
     ("/log: damaged at byte 95", False), ("/other: damaged at byte 9", False), ("", False)],
)  # fmt: skip
def test_a_recorded_loss_is_of_damage_at_the_same_place(cause, is_same):
    for text in ("/log: damaged at byte 9", "/log: damaged at byte 9: group 4 of 7 was on disk"):
        assert LogDamaged(text, 9).is_named_by(cause) == is_same


@pytest.mark.parametrize("kept", [(), (1,)])
def test_damage_of_a_chop_does_not_bring_the_chopped_records_back(tmp_path, kept):
    """The records were in a segment that was removed after the chop."""
    folder = tmp_path / "log"
    volume = opened(folder, segment_bytes=500)
    volume.write([entry(A, 1, bytes(500))])
    volume.write([chopped(B, 1), *(entry(B, index) for index in kept)])
    for group in ([chopped(A, 2)], [entry(A, 2)]):
        volume.write(group)
    volume.close()
    (path,) = folder.glob("*.log")
    data = path.read_bytes()
    place = data.index(b"psl1", data.index(b"psl1", 24) + 1) + 20
    path.write_bytes(data[:place] + bytes([data[place] ^ 3]) + data[place + 1 :])
    ends = {A: (2, 2), B: (1, 1 + len(kept))}
    with pytest.raises(LogDamaged):
        LogVolume(folder).begin(LOGS, recovering=True)
    again = LogVolume(folder)
    assert again.begin(LOGS, recovering=True, drops_damage=True) == ends
    again.close()
    assert LogVolume(folder).begin(LOGS, recovering=True) == ends
    assert [index for log, index, _ in reopened(folder)[0] if log == B] == [*kept]


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


@pytest.mark.parametrize("magic", [b"psb1", b"psb2"])
def test_a_log_of_an_earlier_version_is_refused_as_such(tmp_path, magic):
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "00000001.log").write_bytes(magic + bytes(100))
    with pytest.raises(StorageCorrupt, match="written by an earlier version"):
        reopened(folder)


def a_log_of_its_own(groups: int) -> bytes:
    """Return the bytes of another broker's log on disk."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "log"
        written(folder, *([entry(A, number)] for number in range(1, groups + 1)))
        return min(folder.glob("*.log")).read_bytes()


OWN = object()
"""A placeholder in a payload for the bytes of this log on disk."""
pieces = st.lists(
    st.one_of(
        st.just(OWN),
        st.sampled_from([b"psb1" + bytes(8), b"psl1" + bytes(24), b"psb3", a_log_of_its_own(40)]),
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
        files = opened(folder)
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
        (folder / log_volume.MARK_NAME).write_bytes(bytes(MARK_BYTES))
        found, again = reopened(folder)
        assert found == expected[:-1]
        again.write([entry(A, len(expected), b"goes on")])
        again.close()
        assert reopened(folder)[0] == [*expected[:-1], (A, len(expected), b"goes on")]


def test_a_payload_that_pretends_to_be_many_groups_does_not_cost_a_look_at_each(
    tmp_path, monkeypatch
):
    folder = tmp_path / "log"
    pretended = log_groups._GROUP.pack(b"psl1", 7, 30_000, 0) + bytes(8)
    written(folder, [entry(A, 1)], [entry(A, 2, pretended * 1_000)])
    path = max(folder.glob("*.log"))
    os.truncate(path, path.stat().st_size - 1)
    (folder / log_volume.MARK_NAME).write_bytes(bytes(MARK_BYTES))
    summed = []

    def crc32(data: bytes) -> int:
        summed.append(len(data))
        return zlib.crc32(data)

    monkeypatch.setattr(log_groups, "zlib", type("", (), {"crc32": staticmethod(crc32)}))
    LogVolume(folder).begin(LOGS, recovering=True)
    assert sum(summed) < 2 * path.stat().st_size + 100


def test_durable_writes_survive_a_power_failure(tmp_path, monkeypatch):
    folder = tmp_path / "log"
    written_through = 0
    for count in range(1, 6):
        disk = LossyDisk(tmp_path, monkeypatch)
        files = opened(folder, segment_bytes=100)
        for index in range(written_through + 1, written_through + count + 1):
            files.write([entry(A, index, bytes(40))])
        files.close()
        disk.crash()
        monkeypatch.undo()
        written_through += count
        assert indices(folder) == list(range(1, written_through + 1))


def test_records_discarded_by_a_new_deployment_are_not_recovered(tmp_path, monkeypatch):
    folder = tmp_path / "log"
    written(folder, [entry(A, 1)])
    disk = LossyDisk(tmp_path, monkeypatch)
    LogVolume(folder).begin(LOGS, recovering=False)
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
    log = LogVolume(tmp_path / "log", fsync=False)
    log.begin(LOGS, recovering=False)
    monkeypatch.delattr(os, "fdatasync")
    log.write([entry(A, 1)])
    log.close()
    assert indices(tmp_path / "log") == [1]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_write_that_cannot_be_made_durable_is_no_mere_lack_of_room(tmp_path, monkeypatch, number):
    files = opened(tmp_path / "log")
    files.write([entry(A, 1)])

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        files.write([entry(A, 2)])
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_a_failed_write_names_its_file(tmp_path, monkeypatch, segment_bytes):
    files = opened(tmp_path / "log", segment_bytes=segment_bytes)
    files.write([entry(A, 1)])

    def fail(*_: object) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(OSError, match=r"/0000000[12]\.log: File too large"):
        files.write([entry(A, 2)])


pieces = st.lists(st.binary(max_size=9), min_size=1, max_size=3)


@given(st.lists(st.lists(pieces, min_size=1, max_size=5), min_size=1, max_size=4))
def test_records_appended_together_are_written_as_if_each_were_appended_alone(groups):
    with tempfile.TemporaryDirectory() as name:
        volume, found = opened(Path(name) / "log"), []
        for number, records in enumerate(groups):
            first = len(found) + 1
            one_by_one = [
                LogEntry(EntryKind.APPENDED, A, index, record)
                for index, record in enumerate(records, first)
            ]
            together = [LogRun(A, first, records)]
            assert log_groups.pack_group(together, number, b"s") == log_groups.pack_group(
                one_by_one, number, b"s"
            )
            volume.write(together)
            found += [b"".join(record) for record in records]
        volume.close()
        kept = [(A, index, record) for index, record in enumerate(found, 1)]
        assert reopened(Path(name) / "log")[0] == kept


def test_records_that_do_not_follow_the_last_record_are_refused(tmp_path):
    volume = opened(tmp_path / "log")
    with pytest.raises(ValueError, match="records from 2 on"):
        volume.write([LogRun(A, 2, [[b"x"]])])


def test_a_group_is_written_once_although_a_segment_cannot_go_without_a_descriptor():
    files = MemoryFiles({"/d/x": b""})
    volume = LogVolume(Path("/d/logs"), 100, files=files)
    volume.begin([A], recovering=False)
    for index in range(1, 6):
        volume.write([entry(A, index, b"x" * 40)])
    failing = [False]

    def before(operation: str) -> None:
        if operation == "sync_folder" and failing[0]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    files.before = before
    segments = sorted(files.names(Path("/d/logs")))
    failing[0] = True
    volume.write([LogEntry(EntryKind.CHOPPED, A, 6)])
    assert sorted(files.names(Path("/d/logs"))) == segments[1:], "one, until it is gone for sure"
    failing[0] = False
    volume.write([entry(A, 6)])
    assert len(files.names(Path("/d/logs"))) == 2, "the segment that is written to, and the mark"
    assert volume.read(A, 6, 7, 100) == [b"x"]


def test_a_segment_grows_while_no_other_can_be_opened():
    files = MemoryFiles({"/d/x": b""})
    volume = LogVolume(Path("/d/logs"), 100, files=files)
    volume.begin([A], recovering=False)
    volume.write([entry(A, 1, b"x" * 100)])

    def before(operation: str) -> None:
        if operation in ("create", "open"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    files.before = before
    volume.write([entry(A, 2)])
    files.before = lambda _operation: None
    assert volume.read(A, 1, 3, 1_000) == [b"x" * 100, b"x"]
