"""Tests of damage inside a meta store: a changed bit is detected, in rows and in the journal."""

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from brokerd.errors import StorageCorrupt
from brokerd.storage import sqlite_store
from brokerd.storage.meta_store import WITNESSED
from brokerd.storage.sqlite_store import DIGEST, OLD_SCHEMA, SqliteMetaStore

pytestmark = pytest.mark.usefixtures("closed_connections")

SEED = 5
NAME = "meta.sqlite3"
Rows = dict[str, dict[str, object]]


def stored(folder: Path) -> Rows:
    """Store rows that are set, changed and deleted; return the rows that stay."""
    store = SqliteMetaStore(folder / NAME, owner="b1", protocol="p")
    store.begin("d")
    for number in range(12):
        store.commit([("positions", f"s{number % 5}", [number, 10 * number])])
        store.commit([("subscriptions", f"c{number}", "x > 4"), (WITNESSED, "1", [number])])
    store.commit([("subscriptions", f"c{number}", None) for number in range(4)])
    store.close()
    return found_in(folder)


def found_in(folder: Path) -> Rows:
    store = SqliteMetaStore(folder / NAME, owner="b1", protocol="p")
    try:
        return {name: dict(rows) for name, rows in store.begin("d").rows.items()}
    finally:
        store.close()


def killed(folder: Path) -> Path:
    """Return the folder of a killed broker: the last transactions are in the journal."""
    running, left = folder / "running", folder / "left"
    running.mkdir()
    store = SqliteMetaStore(running / NAME, owner="b1", protocol="p")
    store.begin("d")
    for number in range(6):
        store.commit([("t", str(number), number)])
    shutil.copytree(running, left)
    store.close()
    return left


def change_bit(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def read_changed(folder: Path, copy: Path, bit: int, rows: Rows) -> str:
    """Read a copy with a changed bit: "refused", or "harmless" if all rows are there."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    change_bit(copy / NAME, bit)
    try:
        found = found_in(copy)
    except StorageCorrupt:
        return "refused"
    assert found == rows, f"bit {bit}"
    return "harmless"


def changed_bits(tmp_path: Path, count: int) -> Counter[str]:
    """Change random bits, and all bits of one row."""
    folder = tmp_path / "sound"
    folder.mkdir()
    rows = stored(folder)
    content = (folder / NAME).read_bytes()
    row = content.index(b"subscriptionsc7")
    random = Random(SEED)
    bits = [random.randrange(8 * len(content)) for _ in range(count)]
    bits += range(8 * row, 8 * (row + len(b'subscriptionsc7"x > 4"')))
    return Counter(read_changed(folder, tmp_path / "changed", bit, rows) for bit in bits)


def test_no_changed_bit_changes_a_row_silently(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    counts = changed_bits(tmp_path, 150)
    record_property("measured", f"changed bits of a meta store: {dict(counts)}")
    assert counts["refused"] >= 8 * len(b'subscriptionsc7"x > 4"')


def test_a_changed_bit_of_the_journal_does_not_drop_transactions_silently(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    journal = folder / f"{NAME}-wal"
    change_bit(journal, 8 * journal.stat().st_size - 9)
    store = SqliteMetaStore(folder / NAME, owner="b1", protocol="p")
    assert store.missing("d") > 0
    assert store.missing("another deployment") == 0
    store.close()


def test_a_journal_without_damage_misses_nothing(tmp_path: Path) -> None:
    store = SqliteMetaStore(killed(tmp_path) / NAME, owner="b1", protocol="p")
    assert store.missing("d") == 0
    assert dict(store.begin("d").rows["t"]) == {str(number): number for number in range(6)}
    store.close()


def test_a_store_that_is_gone_is_missed(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    for path in (NAME, f"{NAME}-wal", f"{NAME}-shm"):
        (folder / path).unlink()
    store = SqliteMetaStore(folder / NAME, owner="b1", protocol="p")
    assert store.missing("d") == 7
    store.begin("d")
    assert store.missing("d") == 0
    store.commit([("t", "0", 0)])
    store.close()
    assert found_in(folder) == {"t": {"0": 0}}


def test_without_fsync_nothing_is_marked_durable(tmp_path: Path) -> None:
    store = SqliteMetaStore(tmp_path / NAME, fsync=False)
    store.begin("d")
    store.commit([("t", "0", 0)])
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_store_of_an_earlier_version_gets_a_digest(tmp_path: Path) -> None:
    rows = stored(tmp_path)
    with sqlite3.connect(tmp_path / NAME) as connection:
        connection.execute("DELETE FROM about WHERE key = ?", (DIGEST,))
        connection.execute("UPDATE about SET value = ? WHERE key = 'schema'", (OLD_SCHEMA,))
    connection.close()
    assert found_in(tmp_path) == rows
    with sqlite3.connect(tmp_path / NAME) as connection:
        connection.execute("UPDATE rows SET value = '[1,11]' WHERE key = 's1'")
    connection.close()
    with pytest.raises(StorageCorrupt, match="a part of the file has changed"):
        found_in(tmp_path)


def test_a_row_that_disappears_is_detected(tmp_path: Path) -> None:
    stored(tmp_path)
    with sqlite3.connect(tmp_path / NAME) as connection:
        connection.execute("DELETE FROM rows WHERE key = 's1'")
    connection.close()
    with pytest.raises(StorageCorrupt, match="a part of the file has changed"):
        found_in(tmp_path)


def test_a_row_that_is_set_again_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "MOST_SHARES", 2)
    store = SqliteMetaStore(tmp_path / NAME, owner="b1", protocol="p")
    store.begin("d")
    for value in (1, None, 2, None, None, 3):
        store.commit([("t", "k", value), ("t", f"other{value}", 1)])
    store.close()
    assert found_in(tmp_path)["t"]["k"] == 3


def test_a_row_of_an_earlier_start_is_counted_out(tmp_path: Path) -> None:
    rows = stored(tmp_path)
    store = SqliteMetaStore(tmp_path / NAME, owner="b1", protocol="p")
    store.begin("d")
    store.commit([("positions", "s1", [0, 0]), ("positions", "s2", None)])
    store.close()
    rows["positions"]["s1"] = [0, 0]
    del rows["positions"]["s2"]
    assert found_in(tmp_path) == rows
