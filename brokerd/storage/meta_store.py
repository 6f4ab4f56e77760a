"""Small rows that survive a restart: incarnation, home table, publisher numbers, positions.

One SQLite file, changed in transactions that are durable when `commit` returns.
"""

import errno
import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from brokerd.errors import ForeignState, StorageCorrupt

SCHEMA: Final = "pubsubctl/meta/1"

RowChange = tuple[str, str, Any]
"""Table, key, value; None deletes the row."""

Tables = dict[str, dict[str, Any]]

_STARTS: Final = (
    "CREATE TABLE IF NOT EXISTS starts"
    " (incarnation INTEGER PRIMARY KEY, start TEXT, commits INTEGER, groups INTEGER) STRICT"
)

WITNESSED: Final = "witnessed"
"""Table of the state marks of neighbours; its changes are not counted as commits."""

VOUCHED: Final = "vouched"
"""Row of WITNESSED that exists once a neighbour has returned a mark of this folder."""


@dataclass(frozen=True, slots=True)
class FolderMarks:
    """The marks that a state folder contains about itself.

    Attributes:
        key: secret of the folder; b"" if there is none yet.
        lineage: time in seconds at which a loss was accepted last; 0 if none was.
        is_vouched: see `sessions.state_marks`.
        commits: transactions so far, without transactions that change WITNESSED alone.
        starts: (incarnation, start, commits, groups) of each start on record, ascending.
    """

    key: bytes = b""
    lineage: int = 0
    is_vouched: bool = False
    commits: int = 0
    starts: tuple[tuple[int, bytes, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Beginning:
    """The stored state that a starting broker reads from its disk.

    Attributes:
        incarnation: the new incarnation; already durable.
        recovering: True if the same deployment has run here before.
        rows: the rows of that deployment.
    """

    incarnation: int
    recovering: bool
    rows: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class NewMarks:
    """The marks that a start adds to a state folder.

    Attributes:
        key: key of the folder, if the folder has none.
        start: random number of the start.
        groups: groups of the log at the start.
        kept: number of starts that stay on record.
        lineage: lineage of this start, which accepts a loss; 0 if the start accepts none.
        step: least advance of the incarnation.
        witnessed: the highest incarnation that a neighbour has proved.
    """

    key: bytes
    start: bytes
    groups: int
    kept: int
    lineage: int = 0
    step: int = 1
    witnessed: int = 0


class MetaStore(Protocol):
    """Rows of named tables.

    Attributes:
        commits: durable transactions so far; see `FolderMarks`.
    """

    @property
    def commits(self) -> int:
        """See the class."""
        ...

    def marks(self) -> FolderMarks:
        """Return the marks that the folder contains about itself."""
        ...

    def has_deployment(self, deployment_id: str) -> bool:
        """Return True if this deployment began here last."""
        ...

    def check_owner(self, deployment_id: str) -> None:
        """Check that the folder is new, or of this broker in this deployment.

        Raises:
            ForeignState: the folder is of another deployment, broker or protocol, and unchanged.
        """
        ...

    def begin(self, deployment_id: str, marks: NewMarks | None = None) -> Beginning:
        """Start a new incarnation; rows of another deployment are dropped."""
        ...

    def commit(self, changes: Iterable[RowChange]) -> None:
        """Change rows in one transaction, durable on return. Never run twice at once."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


class SqliteMetaStore:
    """The meta store of a broker process; may be used from changing threads, one at a time.

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
        self._owner = owner
        self._protocol = protocol
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
        except sqlite3.DatabaseError as error:
            self._connection.close()
            raise self._translate(error) from error

    def has_deployment(self, deployment_id: str) -> bool:
        """See MetaStore."""
        try:
            row = self._connection.execute(
                "SELECT value FROM about WHERE key = 'deployment'"
            ).fetchone()
        except sqlite3.DatabaseError as error:
            raise self._translate(error) from error
        return row is not None and bool(row[0] == deployment_id)

    def check_owner(self, deployment_id: str) -> None:
        """See MetaStore."""
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
        """See MetaStore."""
        try:
            about = dict(self._connection.execute("SELECT key, value FROM about"))
            rows = self._connection.execute(
                "SELECT incarnation, start, commits, groups FROM starts ORDER BY incarnation"
            ).fetchall()
            return FolderMarks(
                bytes.fromhex(about.get("key", "")),
                int(about.get("lineage", "0")),
                self._is_vouched(),
                int(about.get("commits", "0")),
                tuple([(row[0], bytes.fromhex(row[1]), row[2], row[3]) for row in rows]),
            )
        except (sqlite3.DatabaseError, ValueError) as error:
            raise self._translate(error) from error

    def begin(self, deployment_id: str, marks: NewMarks | None = None) -> Beginning:
        """See MetaStore."""
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
        except (sqlite3.DatabaseError, KeyError, ValueError) as error:
            raise self._translate(error) from error
        return Beginning(incarnation, recovering, rows)

    def _is_vouched(self) -> bool:
        row = self._connection.execute(
            "SELECT 1 FROM rows WHERE name = ? AND key = ?", (WITNESSED, VOUCHED)
        ).fetchone()
        return row is not None

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
        """See MetaStore."""
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
        try:
            with self._transaction() as connection:
                connection.executemany(
                    "INSERT INTO rows (name, key, value) VALUES (?, ?, ?)"
                    " ON CONFLICT (name, key) DO UPDATE SET value = excluded.value",
                    set_rows,
                )
                connection.executemany("DELETE FROM rows WHERE name = ? AND key = ?", deleted)
                if counted:
                    commits = str(self.commits + 1)
                    connection.execute(
                        "INSERT OR REPLACE INTO about VALUES ('commits', ?)", (commits,)
                    )
        except sqlite3.DatabaseError as error:
            raise self._translate(error) from error
        self.commits += counted

    def close(self) -> None:
        """See MetaStore."""
        self._connection.close()

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
        if row is None or row[0] != SCHEMA:
            raise StorageCorrupt(f"{self._path}: schema {row and row[0]!r}; this reads {SCHEMA!r}")
        (verdict,) = self._connection.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise StorageCorrupt(f"{self._path}: {str(verdict)[:200]}")

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._connection)

    def _translate(self, error: Exception) -> Exception:
        code = getattr(error, "sqlite_errorcode", None)
        text = f"{self._path}: {error}"
        damaged = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
        if code is None or code & 0xFF in damaged:
            return StorageCorrupt(text)
        if code & 0xFF == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
            return OSError(errno.ENOSPC, text)  # rolled back: the transaction may be repeated
        return OSError(text)


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


def encode_value(value: Any) -> str:
    """Return a row's value as text: JSON, with bytes as {"hex": …}."""
    return json.dumps(value, default=_encode_bytes, separators=(",", ":"), allow_nan=False)


def decode_value(text: str) -> Any:
    """Return the value that `encode_value` wrote; tuples are returned as lists.

    Raises:
        ValueError: the text was not written by `encode_value`.
    """
    return json.loads(text, object_hook=_decode_bytes)


def _encode_bytes(value: Any) -> dict[str, str]:
    assert isinstance(value, bytes), f"a {type(value).__name__} cannot be stored"
    return {"hex": value.hex()}


def _decode_bytes(pairs: dict[str, Any]) -> bytes:
    if list(pairs) != ["hex"]:
        raise ValueError(f"a stored map with the keys {list(pairs)[:4]}")
    return bytes.fromhex(pairs["hex"])
