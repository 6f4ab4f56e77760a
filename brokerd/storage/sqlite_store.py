"""The meta store of a broker process: one SQLite file with a digest of its rows.

SQLite finds damage of its own structures, and does not find a changed bit inside a row. So each
transaction updates a digest of all rows. A changed bit in SQLite's journal ends the journal before
that place, without an error. So a mark outside the database has the number of the last durable
transaction.
"""

import errno
import hashlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from brokerd.errors import ForeignState, StorageCorrupt
from brokerd.storage.files import (
    DISK,
    TAG_BYTES,
    SyncedMark,
    find_write_obstacle,
    is_transient,
)
from brokerd.storage.meta_store import (
    VOUCHED,
    WITNESSED,
    Beginning,
    FolderMarks,
    NewMarks,
    RowChange,
    Tables,
    decode_value,
    encode_value,
)

SCHEMA: Final = "pubsubctl/meta/2"
OLD_SCHEMA: Final = "pubsubctl/meta/1"
"""Written by programs before 0.2: without a digest, which the next start adds."""
MARK_SUFFIX: Final = ".synced"
_SUFFIXES: Final = ("", "-wal", "-shm")
"""Suffixes of the files of a database."""
MOST_SHARES: Final = 1_024
DIGEST: Final = "digest"
"""Row of `about` with the number of the last transaction, and the digest of all other rows."""
_DIGESTED: Final = {
    "rows": "SELECT name, key, value FROM rows",
    "about": f"SELECT key, value FROM about WHERE key != '{DIGEST}'",
    "starts": "SELECT incarnation, start, commits, groups FROM starts",
}

_STARTS: Final = (
    "CREATE TABLE IF NOT EXISTS starts"
    " (incarnation INTEGER PRIMARY KEY, start TEXT, commits INTEGER, groups INTEGER) STRICT"
)


class SqliteMetaStore:
    """The meta store of a broker process; may be used from changing threads, one at a time.

    Implements `MetaStore`.

    Args:
        fsync: True if a commit waits for the disk; else commits survive the end of the process
            only.
        owner: name of the owning broker; no other broker may use the stored rows.
        protocol: protocol of the broker; no other protocol can read the stored rows.

    Raises:
        StorageCorrupt: the folder contains no meta store, or a damaged store; from any method.
        OSError: the disk failed; the broker must not continue.
    """

    def __init__(
        self, path: Path, *, fsync: bool = True, owner: str = "", protocol: str = ""
    ) -> None:
        self._path = path
        self._fsync = fsync
        self._owner = owner
        self._protocol = protocol
        self._mark = SyncedMark(DISK, path.with_name(path.name + MARK_SUFFIX))
        self._tag = b""
        self._transactions = 0
        self._digest = 0
        self._shares: dict[tuple[str, str], int] = {}
        self.commits = 0
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except sqlite3.DatabaseError as error:
            raise self._translate(error) from error
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'OFF'}")
            if not self._connection.execute("SELECT 1 FROM sqlite_master").fetchall():
                self._create()  # new, or one that a full disk kept from being made
            self._check()
            self._connection.execute(_STARTS)  # a store of an earlier version has none
            self._check_digest()
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            self._connection.close()
            raise self._translate(error) from error
        except BaseException:
            self._connection.close()
            raise

    def has_deployment(self, deployment_id: str) -> bool:
        try:
            row = self._connection.execute(
                "SELECT value FROM about WHERE key = 'deployment'"
            ).fetchone()
        except sqlite3.DatabaseError as error:
            raise self._translate(error) from error
        return row is not None and bool(row[0] == deployment_id)

    def check_owner(self, deployment_id: str) -> None:
        try:
            about = dict(self._connection.execute("SELECT key, value FROM about"))
        except sqlite3.DatabaseError as error:
            raise self._translate(error) from error
        found = about.get("deployment", "")
        if not found:
            return  # new
        if found != deployment_id:
            raise ForeignState(
                f"{self._path.parent}: this is of deployment {found!r}, and the broker is of "
                f"{deployment_id!r}. Nothing was changed: put the broker's own folder back, or "
                "remove this one with `pubsubctl down`"
            )
        if (owner := about.get("owner", self._owner)) != self._owner:
            raise ForeignState(f"{self._path}: this is of {owner!r}, and {self._owner!r} has it")
        if (protocol := about.get("protocol", self._protocol)) != self._protocol:
            raise ForeignState(
                f"{self._path}: this is of {protocol!r}, and the broker runs {self._protocol!r}"
            )

    def marks(self) -> FolderMarks:
        try:
            about = dict(self._connection.execute("SELECT key, value FROM about"))
            rows = self._connection.execute(
                "SELECT incarnation, start, commits, groups FROM starts ORDER BY incarnation"
            ).fetchall()
            return FolderMarks(
                bytes.fromhex(about.get("key", "")),
                int(about.get("lineage", "0")),
                self._read_vouched(),
                int(about.get("commits", "0")),
                tuple([(row[0], bytes.fromhex(row[1]), row[2], row[3]) for row in rows]),
            )
        except (sqlite3.DatabaseError, ValueError) as error:
            raise self._translate(error) from error

    def missing(self, deployment_id: str) -> int:
        return max(0, self._mark.number(_tag_of(deployment_id)) - self._transactions)

    def begin(self, deployment_id: str, marks: NewMarks | None = None) -> Beginning:
        try:
            with self._transaction() as connection:
                about = dict(connection.execute("SELECT key, value FROM about"))
                incarnation = int(about["incarnation"]) + 1
                recovering = about["deployment"] == deployment_id
                self.commits = int(about.get("commits", "0"))
                if not recovering:
                    connection.execute("DELETE FROM rows")
                    connection.execute("DELETE FROM starts")
                    connection.execute("DELETE FROM about WHERE key IN ('key', 'lineage')")
                    about.pop("key", None)
                else:
                    self.check_owner(deployment_id)
                if marks is not None:
                    incarnation = max(incarnation, int(about["incarnation"]) + marks.step)
                    incarnation = max(incarnation, marks.witnessed + marks.step)
                    self._note_start(connection, incarnation, marks, has_key="key" in about)
                connection.executemany(
                    "INSERT OR REPLACE INTO about VALUES (?, ?)",
                    [
                        ("schema", SCHEMA),
                        ("incarnation", str(incarnation)),
                        ("deployment", deployment_id),
                        ("owner", self._owner),
                        ("protocol", self._protocol),
                    ],
                )
                rows: Tables = {}
                for table, key, value in connection.execute(
                    "SELECT name, key, value FROM rows ORDER BY rowid"
                ):
                    rows.setdefault(table, {})[key] = decode_value(value)
                # Beyond every number of a mark, so that an accepted loss is reported once.
                number = max(self._transactions, self._mark.newest()[1]) + 1
                digest = self._digest_of_all()
                self._write_digest(number, digest)
        except (sqlite3.DatabaseError, KeyError, ValueError) as error:
            raise self._translate(error) from error
        self._transactions, self._digest = number, digest
        self._shares.clear()
        self._tag = _tag_of(deployment_id)
        self._write_mark()
        return Beginning(incarnation, recovering, rows)

    def _read_vouched(self) -> tuple[int, ...]:
        """Return the neighbours that have vouched for the folder.

        A row of an earlier release names none. Then all neighbours with a mark in this folder have
        vouched: the broker received their marks in sessions on this folder.
        """
        texts = self._connection.execute(
            "SELECT key, value FROM rows WHERE name = ? ORDER BY rowid", (WITNESSED,)
        )
        rows = {key: decode_value(value) for key, value in texts}
        vouched = rows.pop(VOUCHED, [])
        return tuple(map(int, vouched if isinstance(vouched, list) else rows))

    def _note_start(
        self, connection: sqlite3.Connection, incarnation: int, marks: NewMarks, *, has_key: bool
    ) -> None:
        """Record a start; a start that accepts a loss begins a lineage.

        The key stays, so that an earlier copy can check the marks that prove it older.
        """
        about = []
        if not has_key:
            about.append(("key", marks.key.hex()))
        if marks.lineage:
            about.append(("lineage", str(marks.lineage)))
            connection.execute("DELETE FROM rows WHERE name = ? AND key = ?", (WITNESSED, VOUCHED))
        connection.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", about)
        connection.execute(
            "INSERT INTO starts VALUES (?, ?, ?, ?)",
            (incarnation, marks.start.hex(), self.commits, marks.groups),
        )
        connection.execute(
            "DELETE FROM starts WHERE incarnation NOT IN"
            " (SELECT incarnation FROM starts ORDER BY incarnation DESC LIMIT ?)",
            (marks.kept,),
        )

    def commit(self, changes: Iterable[RowChange]) -> None:
        set_rows: list[tuple[str, str, str]] = []
        deleted: list[tuple[str, str]] = []
        counted = 0
        for table, key, value in changes:
            counted = 1 if table != WITNESSED else counted
            if value is None:
                deleted.append((table, key))
            else:
                set_rows.append((table, key, encode_value(value)))
        assert not {row[:2] for row in set_rows} & {*deleted}, "a row is changed twice"
        assert self._tag, f"{self._path}: a commit before the start"
        keys = [*[row[:2] for row in set_rows], *deleted]
        try:
            with self._transaction() as connection:
                digest = self._digest - sum(map(self._share, keys))
                connection.executemany(
                    "INSERT INTO rows (name, key, value) VALUES (?, ?, ?)"
                    " ON CONFLICT (name, key) DO UPDATE SET value = excluded.value",
                    set_rows,
                )
                connection.executemany("DELETE FROM rows WHERE name = ? AND key = ?", deleted)
                shares = {row[:2]: _hash("rows", row) for row in set_rows}
                digest += sum(shares.values())
                if counted:
                    before, after = str(self.commits), str(self.commits + 1)
                    connection.execute(
                        "INSERT OR REPLACE INTO about VALUES ('commits', ?)", (after,)
                    )
                    digest += _hash("about", ("commits", after))
                    digest -= _hash("about", ("commits", before)) if self.commits else 0
                self._write_digest(self._transactions + 1, digest)
        except sqlite3.DatabaseError as error:
            raise self._translate(error) from error
        self._transactions += 1
        self._digest = digest
        self.commits += counted
        self._remember(shares, deleted)
        self._write_mark()

    def close(self) -> None:
        self._connection.close()
        self._mark.close()

    def _create(self) -> None:
        with self._transaction() as connection:
            connection.execute("CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT) STRICT")
            connection.execute(
                "CREATE TABLE rows (name TEXT, key TEXT, value TEXT, UNIQUE (name, key)) STRICT"
            )
            connection.executemany(
                "INSERT INTO about VALUES (?, ?)",
                [("schema", SCHEMA), ("incarnation", "0"), ("deployment", "")],
            )

    def _check(self) -> None:
        row = self._connection.execute("SELECT value FROM about WHERE key = 'schema'").fetchone()
        if row is None or row[0] not in (SCHEMA, OLD_SCHEMA):
            raise StorageCorrupt(f"{self._path}: schema {row and row[0]!r}; this reads {SCHEMA!r}")
        (verdict,) = self._connection.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise StorageCorrupt(f"{self._path}: {str(verdict)[:200]}")

    # ------------------------------------------------------------ damage

    def _check_digest(self) -> None:
        """Load the digest, and compare it with the rows.

        Raises:
            StorageCorrupt: a row has changed, or is missing, since its transaction.
        """
        about = dict(self._connection.execute("SELECT key, value FROM about"))
        self.commits = int(about.get("commits", "0"))
        is_new = about.get("incarnation") == "0" and DIGEST not in about
        if is_new or about.get("schema") == OLD_SCHEMA:
            return
        number, _, digest = about.get(DIGEST, "").partition(" ")
        total = self._digest_of_all()
        found = _total(int(number or "0"), total)
        if digest != found:
            raise StorageCorrupt(
                f"{self._path}: its rows have the digest {found}, and their last transaction wrote "
                f"{digest or 'none'}: a part of the file has changed. Put the newest copy of "
                f"{self._path.parent} back; if there is none, move the folder away and start the "
                "broker, which ends with the command that accepts the loss"
            )
        self._transactions, self._digest = int(number), total

    def _digest_of_all(self) -> int:
        connection = self._connection
        return sum(
            _hash(table, row)
            for table, query in _DIGESTED.items()
            for row in connection.execute(query)
        )

    def _share(self, key: tuple[str, str]) -> int:
        """Return the share of a row in the digest; 0 for no row."""
        share = self._shares.get(key)
        if share is None:
            query = "SELECT name, key, value FROM rows WHERE name = ? AND key = ?"
            row = self._connection.execute(query, key).fetchone()
            share = 0 if row is None else _hash("rows", row)
        return share

    def _remember(
        self, shares: Mapping[tuple[str, str], int], deleted: Iterable[tuple[str, str]]
    ) -> None:
        """Keep the shares of rows that have changed lately: most of them change again."""
        if len(self._shares) > MOST_SHARES:
            self._shares.clear()
        self._shares.update(shares)
        for key in deleted:
            self._shares.pop(key, None)

    def _write_digest(self, number: int, digest: int) -> None:
        value = f"{number} {_total(number, digest)}"
        self._connection.execute("INSERT OR REPLACE INTO about VALUES (?, ?)", (DIGEST, value))

    def _write_mark(self) -> None:
        """Mark the last transaction durable; without a descriptor, the mark stays behind."""
        if not self._fsync:
            return
        try:
            self._mark.open()
        except OSError as error:
            if not is_transient(error):
                raise
        else:
            self._mark.write(self._tag, self._transactions)

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._connection)

    def _translate(self, error: Exception) -> Exception:
        code = getattr(error, "sqlite_errorcode", None)
        text = f"{self._path}: {error}"
        damaged = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
        if code is None or code & 0xFF in damaged:
            return StorageCorrupt(text)
        files = [self._path.with_name(self._path.name + suffix) for suffix in _SUFFIXES]
        if (obstacle := find_write_obstacle(files)) is not None:
            return obstacle
        if code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
            return OSError(errno.ENOSPC, text)  # rolled back: the transaction may be repeated
        return OSError(f"{text} ({getattr(error, 'sqlite_errorname', code)})")


class _Transaction:
    """A transaction, all or nothing: an error leaves the store unchanged."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> sqlite3.Connection:
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._connection.execute("COMMIT")
        elif self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _hash(table: str, row: Sequence[object]) -> int:
    """Return the share of a row in the digest, which is independent of the order of rows."""
    content = "\0".join([table, *map(str, row)]).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")


def _total(number: int, digest: int) -> str:
    """Return the digest of all rows and of the number of the transaction."""
    return f"{_hash('transaction', (number, digest % (1 << 64))):016x}"


def _tag_of(deployment_id: str) -> bytes:
    return hashlib.blake2b(deployment_id.encode(), digest_size=TAG_BYTES).digest()
