"""Checkpoint tokens: the committed positions of an application's durable subscription.

An application that stores a token beside the effects of the committed events, in one transaction,
processes each event exactly once, however its process ends. Paper: [DS03] §2 (CT, kept by the
subscriber).
"""

import sqlite3
from dataclasses import dataclass
from typing import Final, Protocol

import cbor2

from brokerd.client.core import ClientCore
from brokerd.client.restart import restart
from brokerd.client.state import ClientState, Home, KeptSubscription, Positions
from brokerd.client.state_encoding import frame_of, home_of, message_of, read_token, write_token
from brokerd.errors import ConfigError, RemoteProtocolError, ResumeTokenRefused
from brokerd.model.client_messages import Subscribe
from brokerd.model.identity import ClientId
from brokerd.model.predicate import Predicate
from brokerd.wire.strict_cbor import StrictCborError, decode_strict

TABLE: Final = "pubsubctl_tokens"
"""Table in which `SqliteTokens` stores tokens: columns client (key), generation, token."""

_SAVEPOINT: Final = "pubsubctl_transaction"
_FULL: Final = 2


class TransactionFailed(Exception):
    """A commit with a token that failed, or with an unknown result; this process cannot continue.

    A new process reads the token, and continues from there.
    """


@dataclass(frozen=True, slots=True)
class CheckpointToken:
    """The content of a token.

    Attributes:
        client: owner of the token.
        generation: increased by one each time a process takes the subscription over.
        home: the broker that has the subscription.
        number, predicate: number and predicate of the subscription.
        positions: all events of a stream up to here are committed; one entry per pubend.
    """

    client: ClientId
    generation: int
    home: Home
    number: int
    predicate: Predicate
    positions: Positions

    def to_bytes(self) -> bytes:
        """Return the token as CBOR for storage; the content is private."""
        home = self.home
        request = frame_of(Subscribe(self.number, self.predicate))
        resume = write_token(home, self.positions)
        broker = [home.broker, home.deployment, home.protocol]
        return cbor2.dumps([self.client, self.generation, broker, request, resume])

    def to_state(self, generation: int, publishes: bool) -> ClientState:
        """Return the initial state of the client of a new process, of this generation."""
        kept = KeptSubscription(self.number, self.predicate, True, self.positions, ())
        return ClientState(
            self.client, publishes, generation, 1, self.home, None, (), self.number, (kept,), ()
        )


def read_checkpoint_token(data: bytes, client: ClientId, deployment: str = "") -> CheckpointToken:
    """Return the token in `data`, which must be of this client.

    Args:
        deployment: required deployment; empty for any.

    Raises:
        ResumeTokenRefused: the token is of another client or deployment, damaged, or no token.
    """
    try:
        name, generation, broker, request, resume = decode_strict(data)
        home = home_of(*broker)
        subscribe = message_of(request, Subscribe)
        positions = read_token(resume, home)
        if type(generation) is not int or generation < 1:
            raise ValueError(f"generation = {generation!r}")
    except (StrictCborError, RemoteProtocolError, ValueError, TypeError, KeyError) as error:
        text = f"{len(data)} bytes that are no checkpoint token: {str(error)[:200]}"
        raise ResumeTokenRefused(text) from error
    if name != client:
        raise ResumeTokenRefused(f"a checkpoint token of client {name!r}, not {client!r}")
    if deployment and home.deployment != deployment:
        theirs = home.deployment[:64]
        raise ResumeTokenRefused(f"a checkpoint token of deployment {theirs!r}, not {deployment!r}")
    return CheckpointToken(
        client, generation, home, subscribe.number, subscribe.predicate, positions
    )


class Tokens(Protocol):
    """A store of the token of a client, beside the application's own data."""

    def take_over(self, client: ClientId) -> tuple[int, bytes]:
        """Return the generation of the process that commits from now on, and the token.

        The token is b"" before the first commit.
        """
        ...

    def begin(self) -> None:
        """Begin a transaction.

        Later changes of the application are committed with a token, or not at all.
        """
        ...

    def commit(self, token: bytes) -> None:
        """Commit the changes of the application, and the token, in one step.

        Raises:
            TransactionFailed: another process has taken over, the application has ended the
                transaction itself, or the commit has failed with an unknown result.
            Exception: raised by the store; nothing is committed, and `roll_back` undoes the
                changes.
        """
        ...

    def roll_back(self) -> None:
        """Undo the changes of the application since `begin`."""
        ...


class SqliteTokens:
    """A token in the application's own SQLite file, written by the application's connection.

    Implements `Tokens`.

    The table is `pubsubctl_tokens` (client, generation, token), made if missing. A file may have
    the tokens of several clients. A commit is one fsync or two in the thread of the connection, so
    the file should be on a disk with an fsync of milliseconds.

    Raises:
        ConfigError: by `take_over`: commits would not survive a crash of the machine (`:memory:`,
            or `synchronous` below FULL), or a transaction is open.
        sqlite3.Error: the file cannot be read or written.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._client = ""
        self._generation = 0

    def take_over(self, client: ClientId) -> tuple[int, bytes]:
        """See Tokens; from here on no older process can commit for this client."""
        self._check_durable(client)
        self._client = client
        database = self._connection
        database.execute("BEGIN IMMEDIATE")
        try:
            database.execute(
                f"CREATE TABLE IF NOT EXISTS {TABLE}"
                " (client TEXT PRIMARY KEY, generation INTEGER NOT NULL, token BLOB NOT NULL)"
            )
            database.execute(
                f"INSERT INTO {TABLE} VALUES (?, 1, x'')"
                " ON CONFLICT (client) DO UPDATE SET generation = generation + 1",
                (client,),
            )
            row = database.execute(
                f"SELECT generation, token FROM {TABLE} WHERE client = ?", (client,)
            ).fetchone()
            database.execute("COMMIT")
        except BaseException:
            self.roll_back()
            raise
        self._generation, token = row
        return self._generation, token

    def _check_durable(self, client: ClientId) -> None:
        if self._connection.in_transaction:
            raise ConfigError(f"client {client}: tokens: the connection has a transaction open")
        (synchronous,) = self._connection.execute("PRAGMA synchronous").fetchone()
        files = [row[2] for row in self._connection.execute("PRAGMA database_list")]
        if synchronous < _FULL or not files[0]:
            where = files[0] or ":memory:"
            text = f"client {client}: tokens: {where}: PRAGMA synchronous = {synchronous}"
            raise ConfigError(f"{text}; a file with at least FULL, or a crash loses what is done")

    def begin(self) -> None:
        self._connection.execute("BEGIN")
        self._connection.execute(f"SAVEPOINT {_SAVEPOINT}")

    def commit(self, token: bytes) -> None:
        database = self._connection
        try:
            database.execute(f"RELEASE {_SAVEPOINT}")
        except sqlite3.OperationalError as error:
            text = f"the application has ended its transaction itself ({error})"
            raise TransactionFailed(text) from error
        changed = database.execute(
            f"UPDATE {TABLE} SET token = ? WHERE client = ? AND generation = ?",
            (token, self._client, self._generation),
        ).rowcount
        if not changed:
            text = f"another process has taken over from generation {self._generation}"
            raise TransactionFailed(text)
        try:
            database.execute("COMMIT")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise
            raise TransactionFailed(
                f"the contents of the file are uncertain: {error}; read it before you write again"
            ) from error

    def roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


class OwnTokens:
    """Tokens for an application that stores `Transaction.token` itself, beside its own changes.

    Leaving a transaction without an exception confirms that the token is stored. The application
    must exclude two processes at once: a token of a lower generation must not replace another.

    Args:
        token: the stored token; empty for none yet.
    """

    def __init__(self, token: bytes = b"") -> None:
        self._token = token

    def take_over(self, client: ClientId) -> tuple[int, bytes]:
        if not self._token:
            return 1, b""
        return read_checkpoint_token(self._token, client).generation + 1, self._token

    def begin(self) -> None:
        """See Tokens: the application begins the transaction."""

    def commit(self, token: bytes) -> None:
        """See Tokens: the application has committed."""

    def roll_back(self) -> None:
        """See Tokens: the application rolls back."""


def core_of_token(
    name: str, publishes: bool, instance: bytes, deployment_id: str, tokens: Tokens
) -> tuple[ClientCore, int]:
    """Return the client of a token, or a new client, and the generation of its tokens."""
    generation, token = tokens.take_over(name)
    if not token:
        core = ClientCore(
            name,
            publishes=publishes,
            incarnation=generation,
            instance=instance,
            mode="transactional",
        )
        return core, generation
    read = read_checkpoint_token(token, name, deployment_id)
    state = read.to_state(generation, publishes)
    return restart(state, instance=instance, mode="transactional"), generation
