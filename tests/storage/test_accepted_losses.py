"""A loss of durable writes is reported until a start accepts it, and never again."""

import shutil
from pathlib import Path

import pytest

from brokerd.storage.log_groups import EntryKind, LogEntry
from brokerd.storage.log_volume import LogVolume
from brokerd.storage.sqlite_store import SqliteMetaStore

pytestmark = pytest.mark.usefixtures("closed_connections")


@pytest.mark.parametrize("lost", [1, 3])
def test_a_store_reports_lost_transactions_until_a_start_accepts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """An older copy of the rows is put back, and a crash keeps the mark of the start from disk."""
    path, older = tmp_path / "meta.sqlite3", tmp_path / "older"
    store = SqliteMetaStore(path)
    store.begin("d")
    store.close()
    shutil.copyfile(path, older)
    store = SqliteMetaStore(path)
    store.begin("d")
    for number in range(lost - 1):  # the start is the first of them
        store.commit([("table", "key", number)])
    store.close()
    shutil.copyfile(older, path)
    for _ in range(2):
        store = SqliteMetaStore(path)
        assert store.missing("d") == lost
        store.close()
    monkeypatch.setattr(SqliteMetaStore, "_write_mark", lambda store: None)
    store = SqliteMetaStore(path)
    store.begin("d")
    store.close()
    again = SqliteMetaStore(path)
    assert not again.missing("d")
    again.close()


def test_a_log_reports_lost_groups_until_their_end_is_accepted(tmp_path: Path) -> None:
    """The last segment is removed."""
    folder = tmp_path / "logs"
    volume = LogVolume(folder, segment_bytes=1)
    volume.begin(["log"], recovering=True)
    for index in range(1, 5):
        volume.write([LogEntry(EntryKind.APPENDED, "log", index, [b"x"])])
    volume.close()
    max(folder.glob("*.log")).unlink()
    for _ in range(2):
        volume = LogVolume(folder)
        volume.begin(["log"], recovering=True)
        assert volume.lost_groups == 1
        volume.close()
    volume = LogVolume(folder)
    volume.begin(["log"], recovering=True)
    volume.accept_end()
    assert not volume.lost_groups
    volume.write([LogEntry(EntryKind.APPENDED, "log", 4, [b"y"])])
    volume.close()
    again = LogVolume(folder)
    again.begin(["log"], recovering=True)
    assert not again.lost_groups
    again.close()
