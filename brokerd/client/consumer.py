"""A consumer: a durable subscription of an application without state; the broker keeps it.

Paper: [DS03] §1, §5.2 (the Java Message Service's durable subscriptions).
"""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal

from brokerd.client.access_broker import AccessBroker
from brokerd.client.application import ClientError, Publication
from brokerd.client.arguments import check_integer
from brokerd.client.consumption import Consumed, Consumption, Taken
from brokerd.client.events import Announced
from brokerd.model.identity import ClientId, SourceId
from brokerd.model.predicate import Predicate
from brokerd.wire.attributes import decode_attributes

Acknowledge = Literal["auto", "transacted"]
"""The commit mode of a consumer: after each publication, or explicitly by the application."""

CONSUMED: Final = "pubsubctl_consumed"
"""Table in which `SqliteConsumed` records consumption: columns client, source, sequence."""

_MOST_UNCOMMITTED: Final = 1 << 31


class SqliteConsumed:
    """A record of consumed publications in the application's own SQLite file.

    The application calls `add` in the transaction in which it processes a publication; then no
    processed publication is delivered again. A file may be shared by several clients.

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
        """See Consumed: publications of a source arrive in order."""
        row = self._connection.execute(
            f"SELECT sequence FROM {CONSUMED} WHERE client = ? AND source = ?",
            (self._client, _key(source)),
        ).fetchone()
        return row is not None and int(row[0]) >= sequence

    def add(self, publication: Publication) -> None:
        """Record a publication as consumed in the open transaction of the connection."""
        self._connection.execute(
            f"INSERT INTO {CONSUMED} VALUES (?, ?, ?)"
            " ON CONFLICT (client, source) DO UPDATE SET sequence = excluded.sequence",
            (self._client, _key(publication.source), publication.sequence),
        )


class BrokerTokens:
    """Tokens kept by the broker, for the single subscription of a client; see `consume`.

    Args:
        consumed: record of consumed publications, so that redeliveries are not delivered.
    """

    def __init__(self, consumed: Consumed | None = None) -> None:
        self.consumed = consumed

    def take_over(self, client: ClientId) -> tuple[int, bytes]:
        """See Tokens: there is no token here."""
        return 1, b""

    def begin(self) -> None:
        """See Tokens."""

    def commit(self, token: bytes) -> None:
        """See Tokens."""

    def roll_back(self) -> None:
        """See Tokens."""


class Consumer:
    """A subscription with committed positions kept by the broker; made by `Client.consume`.

    With `acknowledge="auto"`: `async for publication in consumer`. A request for the next
    publication commits the publication before, and waits until the commit is durable at the broker;
    so does `commit`. A process that crashes between the two receives one publication again, marked
    as redelivered.

    With `acknowledge="transacted"`: `async with consumer.transaction() as batch`, which commits all
    publications received inside in one step. A single batch may be redelivered, marked.

    Attributes:
        number: number at the client.
        predicate: predicate of the subscription.
    """

    def __init__(
        self,
        broker: AccessBroker,
        number: int,
        acknowledge: Acknowledge,
        most: int,
        consumed: Consumed | None,
    ) -> None:
        self.number = number
        self.predicate: Predicate = broker.core.subscriptions.predicates[number]
        self._broker = broker
        self._line = broker.line
        self._inbox = broker.inbox
        self._acknowledge = acknowledge
        self._requested = 0
        self._is_open = False
        self._consumption = Consumption(broker.core, number, most, consumed)

    @property
    def dropped(self) -> int:
        """The number of redeliveries withheld because the application has consumed them."""
        return self._consumption.dropped

    def __aiter__(self) -> "Consumer":
        return self

    async def __anext__(self) -> Publication:
        """Return the next publication; the publication before is committed.

        Raises:
            ClientError: the client cannot continue, or commits in transactions.
        """
        self._check("auto")
        self._broker.check_free()
        await self.commit()
        while (publication := self._next()) is None:
            await self._broker.wait_arrived()
        return publication

    async def commit(self) -> None:
        """Commit the delivered publications; returns when the broker has confirmed the commit.

        Raises:
            ClientError: the client cannot continue, or the subscription has ended; the last
                deliveries may be repeated.
        """
        self._broker.check_subscribed(self.number)
        if request := self._consumption.commit():
            self._requested = request
            self._line.nudge()
            self._line.read_on()
        if self._requested:
            await self._broker.wait_committed(self.number, self._requested)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["Batch"]:
        """Commit the publications received inside if, and only if, the block is left in order.

        Returns when the commit is durable at the broker. An exception, or a cancelled scope, undoes
        the transaction: the next transaction receives the same publications. The application's own
        changes inside are not part of it: if the process ends before the broker has answered, the
        same publications are redelivered, marked.

        Raises:
            ClientError: the client cannot continue, or commits each publication by itself, or
                another transaction is open.
        """
        self._check("transacted")
        if self._is_open:
            raise ClientError(f"consumer {self.number}: one transaction at a time")
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
        check_integer("limit", limit, 1)
        self._broker.check_free()
        received: list[Publication] = []
        while not received and not self._consumption.is_full:
            while len(received) < limit and (publication := self._next()) is not None:
                received.append(publication)
            if not received:
                await self._broker.wait_arrived()
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
                self._inbox.announce(item)
            elif self._inbox and not self._consumption.is_full:
                event = self._inbox.pop()
                assert not isinstance(event, Announced), f"{event}: a consumer has no partitions"
                self._consumption.put(event)
                self._line.read_on()
            else:
                self._line.nudge()  # silence may be committed, without a waiter
                return None

    def _check(self, mode: Acknowledge) -> None:
        if self._acknowledge != mode:
            raise ClientError(f"consumer {self.number}: acknowledge = {self._acknowledge!r}")


class Batch:
    """One transaction of a consumer, for the application."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def receive(self, limit: int = 1_000) -> list[Publication]:
        """Return the received publications, up to `limit`; wait until there are any.

        The list is empty once the transaction has reached the consumer's limit.

        Raises:
            ClientError: the client cannot continue.
            ConfigError: the limit is less than 1.
        """
        return await self._consumer.receive(limit)


def check_consumption(client: ClientId, acknowledge: object, most: object) -> None:
    """Refuse arguments of `Client.consume`.

    Raises:
        ClientError: an argument is refused; the text has its value.
    """
    if acknowledge not in ("auto", "transacted"):
        text = f"acknowledge = {acknowledge!r}"
        raise ClientError(f"client {client}: {text}; 'auto' or 'transacted'")
    if type(most) is not int or not 1 <= most <= _MOST_UNCOMMITTED:
        raise ClientError(f"client {client}: most = {most!r}; at least 1")


def _key(source: SourceId) -> str:
    return ".".join(map(str, source))
