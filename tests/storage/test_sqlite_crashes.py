"""Tests of crashes during SQLite's writes: the store keeps all committed rows, or more.

The library is the brokers' own. Its calls to the file system are recorded, and every possible state
after a crash is opened again.
"""

import errno
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from brokerd.storage.sqlite_store import SqliteMetaStore, Tables
from tests.helpers import recorded_sqlite as recorder
from tests.helpers.crash_states import Contents, CrashStates
from tests.helpers.recorded_sqlite import RecordedSqlite, recorded_sqlite

SEED = 11
OF_A_MOMENT = 24
LEAST_STATES = 1_000

History = list[tuple[int, int, Tables]]
"""The state after every operation: length of the trail, incarnation, rows."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder in memory if possible, because thousands of stores are opened in it."""
    see_whether_it_is_possible()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def written(path: Path) -> tuple[RecordedSqlite, History]:
    """Write the rows of two incarnations of a store."""
    history: History = [(0, 0, {})]
    with recorded_sqlite(str(path)) as recording:

        def done(incarnation: int, rows: Tables) -> None:
            history.append((len(recording.trail), incarnation, rows))

        store = SqliteMetaStore(path)
        done(0, {})
        store.begin("d")
        done(1, {})
        store.commit([("t", "a", 1), ("t", "b", bytes(5_000))])
        done(1, {"t": {"a": 1, "b": bytes(5_000)}})
        store.commit([("t", "a", 2), ("t", "b", None), ("u", "c", "x")])
        done(1, {"t": {"a": 2}, "u": {"c": "x"}})
        store.close()
        store = SqliteMetaStore(path)
        store.begin("d")
        done(2, {"t": {"a": 2}, "u": {"c": "x"}})
        store.commit([("t", "a", 3)])
        done(2, {"t": {"a": 3}, "u": {"c": "x"}})
        store.close()
        done(2, {"t": {"a": 3}, "u": {"c": "x"}})
    return recording, history


def crashes(
    recording: RecordedSqlite, of_a_moment: int, random: Random
) -> Iterator[tuple[int, Contents]]:
    """Yield some states after a crash at every moment; always include the certain state."""
    states = CrashStates(folders=[str(Path(recording.prefix).parent)])
    for moment, step in enumerate(recording.trail, 1):
        states.take(step)
        for state in states.some(random, of_a_moment):
            yield moment, state


def recovered(folder: Path, state: Contents) -> tuple[int, Tables]:
    for path in folder.iterdir():
        path.unlink()
    for name, content in state.items():
        (folder / Path(name).name).write_bytes(content)
    store = SqliteMetaStore(folder / "meta.sqlite3", fsync=False)
    try:
        beginning = store.begin("d")
    finally:
        store.close()
    return beginning.incarnation - 1, {name: dict(rows) for name, rows in beginning.rows.items()}


def test_no_crash_loses_a_committed_record(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    states = crash_everywhere(folder, OF_A_MOMENT)
    record_property("measured", f"crash states of SQLite: {states:,}, 0 committed lost")
    assert states >= LEAST_STATES


def see_whether_it_is_possible() -> None:
    if not recorder.is_possible():
        pytest.skip("the SQLite library of this Python shows nobody its functions")


def test_the_crash_test_is_skipped_if_sqlite_is_built_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On such a Python `_sqlite3` is not a file of its own."""
    monkeypatch.delattr(recorder._sqlite3, "__file__")
    with pytest.raises(pytest.skip.Exception, match="shows nobody its functions"):
        crash_everywhere(tmp_path, 1)


def crash_everywhere(tmp_path: Path, of_a_moment: int) -> int:
    see_whether_it_is_possible()
    (tmp_path / "first").mkdir()
    (tmp_path / "again").mkdir()
    recording, history = written(tmp_path / "first" / "meta.sqlite3")
    states = 0
    for moment, state in crashes(recording, of_a_moment, Random(SEED)):
        states += 1
        committed = max(n for n, (length, *_) in enumerate(history) if length <= moment)
        found = recovered(tmp_path / "again", state)
        possible = [tuple(row[1:]) for row in history[committed : committed + 2]]
        assert found in possible, f"step {moment} of {len(recording.trail)}: {found}"
    return states


@pytest.mark.parametrize(
    "operation, code, number",
    [
        ("write", recorder.FULL, errno.ENOSPC),
        ("write", recorder.IO_WRITE, None),
        ("sync", recorder.IO_FSYNC, None),
    ],
)
def test_a_commit_that_did_not_get_to_the_disk_is_refused_and_leaves_nothing(
    folder: Path, operation: str, code: int, number: int | None
) -> None:
    """The error is lack of room, after which a retry is allowed, or ends the broker."""
    path = folder / "meta.sqlite3"
    with recorded_sqlite(str(path)) as recording:
        store = SqliteMetaStore(path)
        store.begin("d")
        recording.answer = lambda asked: code if asked == operation else recorder.OK
        with pytest.raises(OSError, match=r"meta\.sqlite3") as caught:
            store.commit([("t", "a", 1)])
        assert caught.value.errno == number
        recording.answer = lambda _: recorder.OK
        if number is not None:
            store.commit([("t", "b", 2)])
        store.close()
    store = SqliteMetaStore(path)
    assert store.begin("d").rows == ({"t": {"b": 2}} if number is not None else {})
    store.close()
