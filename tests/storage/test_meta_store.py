"""Tests of durable rows: the store on disk and its twin in memory behave alike."""

import errno
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerd.errors import StorageCorrupt
from brokerd.storage import sqlite_store
from brokerd.storage.meta_store import (
    VOUCHED,
    WITNESSED,
    MetaStore,
    NewMarks,
)
from brokerd.storage.sqlite_store import SqliteMetaStore
from tests.helpers.memory_storage import MemoryMetaStore

pytestmark = pytest.mark.usefixtures("closed_connections")

Reopen = Callable[[], MetaStore]


def on_disk(folder: Path) -> Reopen:
    """Return a function that opens the same store repeatedly."""
    return lambda: SqliteMetaStore(folder / "meta.sqlite3")


def in_memory(_: Path) -> Reopen:
    store = MemoryMetaStore()
    return lambda: store


ON_BOTH = pytest.mark.parametrize("kept", [on_disk, in_memory])


@ON_BOTH
def test_each_start_is_a_new_incarnation_and_the_same_deployment_recovers(
    kept: Callable[[Path], Reopen], tmp_path: Path
) -> None:
    reopen = kept(tmp_path)
    told = []
    for _ in range(3):
        store = reopen()
        beginning = store.begin("d1")
        told.append((beginning.incarnation, beginning.recovering))
        store.close()
    assert told == [(1, False), (2, True), (3, True)]


@ON_BOTH
def test_another_deployment_starts_with_nothing_but_never_repeats_an_incarnation(
    kept: Callable[[Path], Reopen], tmp_path: Path
) -> None:
    reopen = kept(tmp_path)
    store = reopen()
    store.begin("d1")
    store.commit([("table", "key", 1)])
    beginning = reopen().begin("d2")
    assert (beginning.incarnation, beginning.recovering, beginning.rows) == (2, False, {})


@ON_BOTH
def test_rows_are_set_changed_and_deleted(kept: Callable[[Path], Reopen], tmp_path: Path) -> None:
    reopen = kept(tmp_path)
    store = reopen()
    store.begin("d")
    store.commit([("a", "x", 1), ("a", "y", "text"), ("b", "x", [True, b"\0\xff", (1, 2)])])
    store.commit([("a", "x", 2), ("a", "y", None), ("b", "gone", None)])
    assert reopen().begin("d").rows == {"a": {"x": 2}, "b": {"x": [True, b"\0\xff", [1, 2]]}}


values = st.recursive(
    st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=5), st.booleans(), st.binary()),
    lambda inner: st.lists(inner, max_size=3),
)
changes = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), st.one_of(st.none(), values)
)


@given(commits=st.lists(changes, max_size=5))
@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_disk_and_memory_agree(
    tmp_path_factory: pytest.TempPathFactory, commits: list[dict[tuple[str, str], object]]
) -> None:
    path = tmp_path_factory.mktemp("store") / "meta.sqlite3"
    stores: list[MetaStore] = [SqliteMetaStore(path), MemoryMetaStore()]
    for store in stores:
        store.begin("d")
        for commit in commits:
            store.commit([(table, key, value) for (table, key), value in commit.items()])
    stores[0].close()
    assert SqliteMetaStore(path).begin("d").rows == stores[1].begin("d").rows


def test_commits_survive_a_kill_and_transactions_are_atomic(tmp_path: Path) -> None:
    """The process is killed during commits at full speed; every commit sets two rows."""
    path = tmp_path / "meta.sqlite3"
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from brokerd.storage.sqlite_store import SqliteMetaStore\n"
        "store = SqliteMetaStore(Path(sys.argv[1]))\n"
        "store.begin('d')\n"
        "number = 0\n"
        "while True:\n"
        "    number += 1\n"
        "    store.commit([('t', 'a', number), ('t', 'b', number)])\n"
        "    print(number, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen = int(line)
        if seen == 20:
            os.kill(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()
    rows = SqliteMetaStore(path).begin("d").rows["t"]
    assert rows["a"] == rows["b"]
    assert rows["a"] >= seen


def test_commits_are_synchronous(tmp_path: Path) -> None:
    store = SqliteMetaStore(tmp_path / "meta.sqlite3")
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    careless = SqliteMetaStore(tmp_path / "careless.sqlite3", fsync=False)
    assert careless._connection.execute("PRAGMA synchronous").fetchone() == (0,)
    careless.close()


def foreign_text(path: Path) -> None:
    path.write_text("this is no database, whatever its name says" * 50)


def foreign_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE about (key TEXT, value TEXT)")
        connection.execute("INSERT INTO about VALUES ('schema', 'somebody else')")
    connection.close()


def without_incarnation(path: Path) -> None:
    SqliteMetaStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE about SET value = 'x' WHERE key = 'incarnation'")
    connection.close()


def scribbled_over(path: Path) -> None:
    store = SqliteMetaStore(path)
    store.begin("d")
    store.commit([("t", str(number), "x" * 200) for number in range(500)])
    store.close()
    data = bytearray(path.read_bytes())
    data[4096 * 5 : 4096 * 9] = b"\xff" * 4096 * 4
    path.write_bytes(data)


def index_lost(path: Path) -> None:
    """Destroy the index; reading the rows alone does not touch the index."""
    store = SqliteMetaStore(path)
    store.begin("d")
    store.commit([("t", "k", "x")])
    store.close()
    with sqlite3.connect(path) as connection:
        ((page,),) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE type = 'index' AND tbl_name = 'rows'"
        )
    connection.close()
    data = bytearray(path.read_bytes())
    data[4096 * (page - 1) : 4096 * page] = bytes(4096)
    path.write_bytes(data)


def foreign_value(path: Path) -> None:
    store = SqliteMetaStore(path)
    store.begin("d")
    store._connection.execute("INSERT INTO rows VALUES ('t', 'k', '{\"x\": 1}')")
    store.close()


@pytest.mark.parametrize(
    "damage",
    [
        *(foreign_text, foreign_database, without_incarnation),
        *(scribbled_over, index_lost, foreign_value),
    ],
)
def test_a_damaged_or_foreign_store_is_refused(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = tmp_path / "meta.sqlite3"
    damage(path)
    with pytest.raises(StorageCorrupt, match=r"meta\.sqlite3"):
        SqliteMetaStore(path).begin("d")


def test_a_row_that_cannot_be_stored_is_our_own_fault(tmp_path: Path) -> None:
    store = SqliteMetaStore(tmp_path / "meta.sqlite3")
    with pytest.raises(AssertionError, match="set cannot be stored"):
        store.commit([("t", "k", {1})])


def test_a_transaction_that_found_no_room_leaves_nothing_and_is_made_later(tmp_path: Path) -> None:
    store = SqliteMetaStore(tmp_path / "meta.sqlite3")
    store.begin("d")
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    large = [("t", str(number), "x" * 200) for number in range(500)]
    with pytest.raises(OSError, match="full") as caught:
        store.commit(large)
    assert caught.value.errno == errno.ENOSPC
    store._connection.execute("PRAGMA max_page_count = 1000")
    store.commit(large[:2])
    store.close()
    again = SqliteMetaStore(tmp_path / "meta.sqlite3")
    assert list(again.begin("d").rows["t"]) == ["0", "1"]
    again.close()


def test_a_limit_of_file_sizes_is_no_lack_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteMetaStore(tmp_path / "meta.sqlite3")
    store.begin("d")
    store._connection.execute("PRAGMA max_page_count = 1")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4_096, 4_096))
    with pytest.raises(OSError, match=r"meta\.sqlite3: File too large") as caught:
        store.commit([("t", str(number), "x" * 200) for number in range(500)])
    assert caught.value.errno == errno.EFBIG
    store.close()


def test_a_store_with_a_file_of_another_user_names_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write-ahead log has the mode that the database had when the log was made."""
    path = tmp_path / "meta.sqlite3"
    store = SqliteMetaStore(path)
    store.begin("d")
    store._connection.execute("PRAGMA max_page_count = 1")
    refused = tmp_path / "meta.sqlite3-wal"
    monkeypatch.setattr(os, "access", lambda path, *_, **__: path != refused)
    with pytest.raises(PermissionError, match=r"meta\.sqlite3-wal: Permission denied"):
        store.commit([("t", str(number), "x" * 200) for number in range(500)])
    store.close()


def test_a_refused_store_blocks_nothing_and_repeats_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "meta.sqlite3"
    store = SqliteMetaStore(path)
    store.begin("d")
    monkeypatch.setattr(sqlite_store, "encode_value", lambda _: '{"x": 1}')
    store.commit([("t", "k", "x")])
    for _ in range(2):
        with pytest.raises(StorageCorrupt, match="a stored map with the keys"):
            store.begin("d")
    store.close()


# ---------------------------------------------------------------- marks of a folder


@ON_BOTH
def test_transactions_are_counted_unless_they_change_marks_of_others_alone(
    kept: Callable[[Path], Reopen], tmp_path: Path
) -> None:
    reopen = kept(tmp_path)
    store = reopen()
    store.begin("d1")
    for changes, commits in (
        ([("table", "key", 1)], 1),
        ([(WITNESSED, "2", 1)], 1),
        ([(WITNESSED, "2", 1), ("table", "key", None)], 2),
        ([("table", "key", 1), (WITNESSED, "3", 1)], 3),
        ([], 3),
    ):
        store.commit(changes)
        assert (store.commits, store.marks().commits) == (commits, commits)
    store.close()
    again = reopen()
    assert again.marks().commits == 3
    again.begin("d1")
    again.commit([("table", "other", 1)])
    assert (again.commits, again.marks().commits) == (4, 4)


def new_marks(key: bytes, start: bytes, **values: int) -> NewMarks:
    return NewMarks(key, start, **{"groups": 0, "kept": 2, **values})


def test_a_folder_keeps_its_first_key_and_its_last_starts(tmp_path: Path) -> None:
    reopen = on_disk(tmp_path)
    for number, key in enumerate((b"first", b"second", b"third"), start=1):
        store = reopen()
        store.begin("d1", new_marks(key, b"start %d" % number, groups=10 * number))
        store.commit([("table", "key", number)])
        marks = store.marks()
        assert (marks.key, marks.lineage, marks.vouched) == (b"first", 0, ())
        assert marks.starts[-1] == (number, b"start %d" % number, number - 1, 10 * number)
        assert len(marks.starts) == min(number, 2)
        store.close()
    store = reopen()
    store.begin("d2", new_marks(b"other", b"start 4"))
    marks = store.marks()
    assert (marks.key, [each[0] for each in marks.starts]) == (b"other", [4])


def test_a_start_that_accepts_a_loss_begins_a_lineage_without_a_witness(tmp_path: Path) -> None:
    reopen = on_disk(tmp_path)
    store = reopen()
    store.begin("d1", new_marks(b"key", b"start 1"))
    store.commit([(WITNESSED, VOUCHED, [2, 4]), (WITNESSED, "2", 1)])
    assert store.marks().vouched == (2, 4)
    store.close()
    store = reopen()
    store.begin("d1", new_marks(b"new", b"start 2"))
    assert (store.marks().vouched, store.marks().lineage) == ((2, 4), 0)
    store.close()
    store = reopen()
    beginning = store.begin("d1", new_marks(b"new", b"start 3", lineage=99))
    marks = store.marks()
    assert (marks.key, marks.lineage, marks.vouched) == (b"key", 99, ())
    assert beginning.rows == {WITNESSED: {"2": 1}}


@pytest.mark.parametrize("rows, vouched", [
    ([], []),
    ([("2", [1]), ("4", [1])], []),
    ([("2", [1]), (VOUCHED, True), ("4", [1])], [2, 4]),
    ([("2", [1]), (VOUCHED, [4, 3])], [4, 3]),
])  # fmt: skip
def test_a_voucher_of_an_earlier_release_is_that_of_neighbours_with_a_mark_here(
    tmp_path: Path, rows: list[tuple[str, object]], vouched: list[int]
) -> None:
    """A neighbour that this folder refused since has no mark here, and still proves its loss."""
    store = on_disk(tmp_path)()
    store.begin("d1", new_marks(b"key", b"start 1"))
    store.commit([(WITNESSED, *row) for row in rows])
    assert [*store.marks().vouched] == vouched


@pytest.mark.parametrize(
    "step, witnessed, incarnation", [(1, 0, 2), (1, 1, 2), (1, 2, 3), (5, 0, 6), (5, 3, 8)]
)
def test_an_incarnation_is_above_all_that_a_neighbour_has_proved(
    tmp_path: Path, step: int, witnessed: int, incarnation: int
) -> None:
    store = on_disk(tmp_path)()
    store.begin("d1", new_marks(b"key", b"start 1"))
    store.close()
    store = on_disk(tmp_path)()
    marks = new_marks(b"key", b"start 2", step=step, witnessed=witnessed)
    assert store.begin("d1", marks).incarnation == incarnation
    assert store.marks().starts[-1][0] == incarnation
