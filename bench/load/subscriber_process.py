"""A subscriber in a process of its own with its application's database, which may be killed.

`python -m bench.load.subscriber_process` reads its settings from the first line of its standard
input, as JSON, and obeys the lines that follow:

    subscribe      resume the subscription, or begin it
    die MOMENT     end by SIGKILL at the next such moment of a transaction; without one, never
    shut           lose the connection, and refuse any other
    open           connect again
    leave          end the subscription, and then the process

Deliveries are written to table `received` of its SQLite file, in the transaction that commits the
resume token: the content of the table is the state of its application, after any number of kills.
If the broker keeps the position (`acknowledge`), the application writes deliveries in transactions
of its own, and then commits at the broker. Table `committed` has the commits that the broker has
confirmed. The process reports the state of its session on standard output, a JSON object per line.
"""

import json
import math
import os
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, Literal

import trio

from brokerd.client.application import Publication
from brokerd.client.client import Callbacks, Client, ClientError, Gate, connect
from brokerd.client.consumer import Acknowledge, BrokerTokens, Consumer
from brokerd.client.events import GapAnnounced
from brokerd.client.tokens import SqliteTokens
from brokerd.client.transactions import DurableSubscription
from brokerd.config import SessionParameters, TlsFiles
from brokerd.model.client_messages import Deliveries
from brokerd.wire.attributes import encode_attributes

Moment = Literal["taken", "writing", "written", "token", "committed"]
MOMENTS: Final[tuple[Moment, ...]] = ("taken", "writing", "written", "token", "committed")
"""Moments of a transaction: events taken, half of them written, all written, the token too, and
committed before the broker is notified. If the broker keeps the position, there is no token, and
`committed` follows the answer of the broker."""

TABLE: Final = """
CREATE TABLE IF NOT EXISTS received (
    place INTEGER PRIMARY KEY, received_ns INTEGER NOT NULL,
    broker INTEGER NOT NULL, publisher INTEGER NOT NULL, incarnation INTEGER NOT NULL,
    sequence INTEGER NOT NULL, attributes BLOB, payload BLOB,
    stream TEXT, position INTEGER, gap_last INTEGER, gap_reason TEXT,
    redelivered INTEGER NOT NULL DEFAULT 0
)"""
COMMITTED: Final = """
CREATE TABLE IF NOT EXISTS committed (
    number INTEGER PRIMARY KEY, first_place INTEGER NOT NULL, last_place INTEGER NOT NULL
)"""
"""Commits that the broker has confirmed: the first and the last place of the deliveries."""
_INSERT: Final = f"INSERT INTO received VALUES (NULL{', ?' * 12})"
_INSERT_COMMIT: Final = "INSERT INTO committed VALUES (NULL, ?, ?)"
_RUNS_AT_ONCE: Final = 64
_DETACH_TIMEOUT_S: Final = 2.0

Row = tuple[Any, ...]


class MortalConnection(sqlite3.Connection):
    """A connection that kills its process at a given moment of its next transaction."""

    dies_at = ""

    def reach(self, moment: Moment) -> None:
        """Kill the process if this is the given moment."""
        if self.dies_at == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """Execute a statement; the statements of the library show the moments of a transaction."""
        if sql.startswith("RELEASE"):
            self.reach("written")
        if sql != "COMMIT":
            return super().execute(sql, *parameters)
        self.reach("token")
        cursor = super().execute(sql)
        self.reach("committed")
        return cursor


def open_database(path: str) -> MortalConnection:
    """Return the application's database, with its table."""
    database = sqlite3.connect(path, factory=MortalConnection)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute(TABLE)
    database.execute(COMMITTED)
    return database


class SubscriberProcess:
    """The process of a subscriber: client, application and orders of the controller."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self._database = open_database(config["database"])
        self._gate = Gate()
        self._may_subscribe = trio.Event()
        self._is_leaving = False
        self._scope = trio.CancelScope()

    async def run(self, orders: AsyncIterator[str]) -> None:
        """Run the subscriber until `leave`, or until the end of standard input."""
        config = self._config
        tls, is_consumer = config["tls"], bool(config["acknowledge"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._obey, orders, nursery.cancel_scope)
            try:
                async with connect(
                    config["address"],
                    config["client"],
                    deployment_id=config["deployment_id"],
                    parameters=SessionParameters(**config["session"]),
                    tls=None if tls is None else TlsFiles.from_mapping(dict(tls), "tls"),
                    callbacks=self._callbacks(),
                    tokens=BrokerTokens() if is_consumer else SqliteTokens(self._database),
                    gate=self._gate,
                    unreachable_after_s=math.inf,  # brokers fail here on purpose
                ) as client:
                    with self._scope:
                        await self._may_subscribe.wait()
                        await self._serve(client)
                    with trio.move_on_after(_DETACH_TIMEOUT_S):
                        await client.detach(drain=False)
            except ClientError as error:
                if not self._is_leaving:
                    _report("problem", text=str(error))
            nursery.cancel_scope.cancel()

    def close(self) -> None:
        """Close the application's database."""
        self._database.close()

    async def _obey(self, orders: AsyncIterator[str], whole: trio.CancelScope) -> None:
        async for order in orders:
            verb, _, moment = order.partition(" ")
            if verb == "subscribe":
                self._may_subscribe.set()
            elif verb == "die":
                self._database.dies_at = moment
            elif verb == "shut":
                self._gate.shut()
            elif verb == "open":
                self._gate.open()
            elif verb == "leave":
                self._is_leaving = True
                self._scope.cancel()
            else:
                raise AssertionError(f"{order!r} is no order")
        whole.cancel()

    async def _serve(self, client: Client) -> None:
        predicate, mode = self._config["predicate"], self._config["acknowledge"]
        if mode:
            consumer = await client.consume(predicate, mode)
            _report("subscribed")
            await self._consume(consumer, mode)
        else:
            subscription = await client.resume(predicate)
            _report("subscribed")
            await self._take_in(subscription)

    async def _consume(self, consumer: Consumer, mode: Acknowledge) -> None:
        """Write deliveries in transactions of the application; commit each at the broker."""
        while mode == "auto":
            places = self._write([await anext(consumer)])
            await consumer.commit()
            self._note_committed(places)
        while True:
            async with consumer.transaction() as batch:
                places = self._write(await batch.receive())
            self._note_committed(places)

    def _write(self, publications: Sequence[Publication]) -> tuple[int, int]:
        """Write deliveries to the database; return the first and the last place."""
        database = self._database
        database.reach("taken")
        now_ns = time.monotonic_ns()
        rows = [_consumed_row(publication, now_ns) for publication in publications]
        half = len(rows) // 2
        database.executemany(_INSERT, rows[:half])
        database.reach("writing")
        database.executemany(_INSERT, rows[half:])
        ((last,),) = database.execute("SELECT max(place) FROM received")
        database.commit()
        database.reach("written")
        database.reach("token")
        return last - len(rows) + 1, last

    def _note_committed(self, places: tuple[int, int]) -> None:
        """Record a commit that the broker has confirmed."""
        self._database.reach("committed")
        with self._database:
            self._database.execute(_INSERT_COMMIT, places)

    def _on_gap(self, gap: GapAnnounced) -> None:
        """Record a gap that a consumer receives between its publications."""
        with self._database:
            self._database.execute(_INSERT, _gap_row(gap, time.monotonic_ns()))

    def _callbacks(self) -> Callbacks:
        callbacks = Callbacks(on_session=self._on_session, on_refused=self._on_refused)
        if self._config["acknowledge"]:
            callbacks.on_gap = self._on_gap
        return callbacks

    async def _take_in(self, subscription: DurableSubscription) -> None:
        while True:
            async with subscription.transaction() as transaction:
                received = await transaction.receive_runs(_RUNS_AT_ONCE)
                self._database.reach("taken")
                now_ns = time.monotonic_ns()
                rows = [_gap_row(gap, now_ns) for gap in transaction.gaps]
                rows += [row for item in received for row in _rows(item, now_ns)]
                half = len(rows) // 2
                self._database.executemany(_INSERT, rows[:half])
                self._database.reach("writing")
                self._database.executemany(_INSERT, rows[half:])
            await trio.lowlevel.checkpoint()

    def _on_session(self, change: str, details: Mapping[str, Any]) -> None:
        place = f"{details['address']}: " if change == "failed" else ""
        _report(change, reason=f"{place}{details.get('reason', '')}")

    def _on_refused(self, request: str, number: int, reason: str) -> None:
        _report("problem", text=f"{request} refused: {reason}")


def _rows(item: Deliveries, now_ns: int) -> list[Row]:
    run = item.run
    positions: Any = [None] * len(run)
    stream = None
    if run.place is not None:
        stream, positions = "/".join(map(str, run.place.stream)), run.place.positions
    return [
        (now_ns, *run.source, sequence, blob, bytes(payload), stream, position, None, None, 0)
        for (sequence, blob, payload), position in zip(run.publications(), positions, strict=True)
    ]


def _consumed_row(publication: Publication, now_ns: int) -> Row:
    blob, again = encode_attributes(publication.attributes), int(publication.redelivered)
    nowhere = (None, None, None, None)
    return (
        now_ns, *publication.source, publication.sequence, blob, publication.payload, *nowhere,
        again,
    )  # fmt: skip


def _gap_row(gap: GapAnnounced, now_ns: int) -> Row:
    return (now_ns, *gap.source, gap.first, None, None, None, None, gap.last, gap.reason, 0)


def _report(report: str, **details: Any) -> None:
    line = json.dumps({"what": report, "t_ns": time.monotonic_ns(), **details})
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


async def read_lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    """Yield the whole lines of a stream, without their ends."""
    waiting = b""
    while chunk := await stream.receive_some():
        *whole, waiting = (waiting + bytes(chunk)).split(b"\n")
        for line in whole:
            yield line.decode()


async def _main() -> None:
    lines = read_lines(trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())))
    config = json.loads(await anext(lines))
    with closing(SubscriberProcess(config)) as process:
        await process.run(lines)


if __name__ == "__main__":
    trio.run(_main)
