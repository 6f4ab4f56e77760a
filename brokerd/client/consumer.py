"""A consumer: a durable subscription of an application that keeps nothing; its broker does.

Paper: [DS03] §1, §5.2 (the Java Message Service's durable subscriptions).
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal, Protocol

from brokerd.client.callbacks import ClientError
from brokerd.client.consumption import Consumption, Taken
from brokerd.client.events import Announced
from brokerd.client.inbox import Inbox
from brokerd.client.line import Line
from brokerd.client.singles import Publication
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.predicate import Predicate
from brokerd.wire.attributes import decode_attributes

Acknowledge = Literal["auto", "transacted"]
"""When a consumer commits: after each publication, or where its application says so."""

CONSUMED: Final = "pubsubctl_consumed"
"""Where `SqliteConsumed` keeps what was consumed: columns client, source, sequence."""


class Consumed(Protocol):
    """What an application knows that it has consumed, in a store of its own."""

    def has(self, source: SourceId, sequence: int) -> bool:
        """Whether this publication was consumed; asked only of what may be a redelivery."""
        ...


class SqliteConsumed:
    """Keeps in the application's own SQLite file what it has consumed.

    The application calls `add` in the transaction of what it does with a publication; then
    nothing that it has done is given to it again. A file may be of several clients.

    Raises:
        sqlite3.Error: the file cannot be read or written.
    """

    def __init__(self, connection: sqlite3.Connection, client: ClientId) -> None:
        self._connection = connection
        self._client = client
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {CONSUMED} (client TEXT, source TEXT,"
            " sequence INTEGER NOT NULL, PRIMARY KEY (client, source))"
        )
        connection.commit()

    def has(self, source: SourceId, sequence: int) -> bool:
        """See Consumed: those of a source come in order."""
        row = self._connection.execute(
            f"SELECT sequence FROM {CONSUMED} WHERE client = ? AND source = ?",
            (self._client, _key(source)),
        ).fetchone()
        return row is not None and int(row[0]) >= sequence

    def add(self, publication: Publication) -> None:
        """This is consumed, if what the connection has open is committed."""
        self._connection.execute(
            f"INSERT INTO {CONSUMED} VALUES (?, ?, ?)"
            " ON CONFLICT (client, source) DO UPDATE SET sequence = excluded.sequence",
            (self._client, _key(publication.source), publication.sequence),
        )


class BrokerTokens:
    """The broker keeps how far the one subscription of a client is committed; see `consume`.

    Args:
        consumed: what the application has consumed, so that a redelivery is not given to it.
    """

    def __init__(self, consumed: Consumed | None = None) -> None:
        self.consumed = consumed

    def take_over(self, client: ClientId) -> tuple[int, bytes]:
        """See Tokens: there is none here."""
        return 1, b""

    def begin(self) -> None:
        """See Tokens."""

    def commit(self, token: bytes) -> None:
        """See Tokens."""

    def roll_back(self) -> None:
        """See Tokens."""


class Shell(Protocol):
    """The client that consumers are of."""

    async def wait_arrived(self) -> None:
        """Wait until something has come; raises when nothing will."""

    async def wait_committed(self, number: int, request: int) -> None:
        """Wait until the broker has answered; raises when it will not."""


class Consumer:
    """A subscription whose broker keeps how far it is committed; made by `Client.consume`.

    With `acknowledge="auto"`: `async for publication in consumer`. Asking for the next one commits
    the one before, and waits until the broker has that on its disk; so does `commit`. A process
    that dies between the two is given one publication again, marked as redelivered.

    With `acknowledge="transacted"`: `async with consumer.transaction() as batch`, which commits
    all that was received inside in one step. What may come again is one batch, marked.

    Attributes:
        number: at its client.
        predicate: what it asks for.
    """

    def __init__(
        self,
        shell: Shell,
        line: Line,
        inbox: Inbox,
        number: int,
        acknowledge: Acknowledge,
        most: int,
        consumed: Consumed | None,
    ) -> None:
        self.number = number
        self.predicate: Predicate = line.core.predicates[number]
        self._shell = shell
        self._line = line
        self._inbox = inbox
        self._acknowledge = acknowledge
        self._asked = 0
        self._is_open = False
        had = consumed.has if consumed is not None else None
        self._consumption = Consumption(line.core, number, most, had)

    @property
    def dropped(self) -> int:
        """How many redeliveries were not given, because the application has consumed them."""
        return self._consumption.dropped

    def __aiter__(self) -> "Consumer":
        return self

    async def __anext__(self) -> Publication:
        """The next publication; the one before is committed.

        Raises:
            ClientError: the client cannot go on, or commits in transactions.
        """
        self._check("auto")
        await self.commit()
        while (publication := self._next()) is None:
            await self._wait()
        return publication

    async def commit(self) -> None:
        """The application is done with what it was given; returns when its broker knows.

        Raises:
            ClientError: the client cannot go on; what was given last may come again.
        """
        if request := self._consumption.commit():
            self._asked = request
            self._line.nudge()
            self._line.read_on()
        if self._asked:
            await self._shell.wait_committed(self.number, self._asked)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Batch"]:
        """What is received inside is committed when, and only when, the block is left in order.

        Returns when its broker has it on disk. An exception, or a cancelled scope, undoes it: the
        next transaction receives the same again. What the application does inside is its own
        business: where its process ends before the broker has answered, the same comes again,
        marked as redelivered.

        Raises:
            ClientError: the client cannot go on, or commits each publication by itself.
        """
        self._check("transacted")
        assert not self._is_open, "one transaction at a time: what is taken is taken in order"
        self._is_open = True
        try:
            yield Batch(self)
        except BaseException:
            self._consumption.roll_back()
            raise
        finally:
            self._is_open = False
        await self.commit()

    async def receive(self, limit: int) -> list[Publication]:
        """See Batch.receive."""
        received: list[Publication] = []
        while not received and not self._consumption.is_full:
            while len(received) < limit and (publication := self._next()) is not None:
                received.append(publication)
            if not received:
                await self._wait()
        return received

    def _next(self) -> Publication | None:
        while True:
            item = self._consumption.next()
            if isinstance(item, Taken):
                return Publication(
                    item.source,
                    item.sequence,
                    decode_attributes(item.blob),
                    bytes(item.payload),
                    (self.number,),
                    item.redelivered,
                )
            if item is not None:
                self._inbox.tell(item)
            elif self._inbox and not self._consumption.is_full:
                event = self._inbox.pop()
                assert not isinstance(event, Announced), f"{event}: a consumer has no partitions"
                self._consumption.put(event)
                self._line.read_on()
            else:
                self._line.nudge()  # silence may be committed, which nobody waits for
                return None

    async def _wait(self) -> None:
        await self._shell.wait_arrived()

    def _check(self, mode: Acknowledge) -> None:
        if self._acknowledge != mode:
            raise ClientError(f"consumer {self.number}: acknowledge = {self._acknowledge!r}")


class Batch:
    """One transaction of a consumer, as the application sees it."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def receive(self, limit: int = 1_000) -> list[Publication]:
        """What has come, up to `limit`; waits until anything has.

        The list is empty once the transaction has as many as the consumer was made for.

        Raises:
            ClientError: the client cannot go on.
        """
        return await self._consumer.receive(limit)


def _key(source: SourceId) -> str:
    return ".".join(map(str, source))
