"""Tests of durable subscriptions in transactions: change and token are committed together."""

import sqlite3
from pathlib import Path

import pytest
import trio

from brokerd.client.client import Client, ClientError
from brokerd.client.tokens import TABLE, OwnTokens, SqliteTokens, read_checkpoint_token
from brokerd.client.transactions import DurableSubscription, Transaction
from brokerd.errors import ConfigError, ResumeTokenRefused
from tests.helpers.keeping_broker import PUBEND, KeepingBroker, client_of, serve
from tests.helpers.virtual_time import in_virtual_time

pytestmark = pytest.mark.usefixtures("closed_connections")


class Oops(Exception):
    """An error of an application."""


def application(folder: Path) -> tuple[Path, sqlite3.Connection]:
    """Return the application's file, and a connection to the file."""
    path = folder / "orders.db"
    return path, open_database(path)


def open_database(path: Path) -> sqlite3.Connection:
    """Open the application's file, as a starting process does."""
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE IF NOT EXISTS orders (number INTEGER)")
    connection.commit()
    return connection


def orders(path: Path) -> list[int]:
    """Return the committed orders, in order and with duplicates."""
    with sqlite3.connect(path) as other:
        return [number for (number,) in other.execute("SELECT number FROM orders ORDER BY rowid")]


def kept_position(path: Path) -> int:
    """Return the position of the token in the file."""
    with sqlite3.connect(path) as other:
        (token,) = other.execute(f"SELECT token FROM {TABLE}").fetchone()
    return dict(read_checkpoint_token(token, "dora").positions)[PUBEND]


async def store(transaction: Transaction, database: sqlite3.Connection) -> int:
    """Store the received publications in the application's table; return the count."""
    received = await transaction.receive()
    rows = [(publication.sequence,) for publication in received]
    database.executemany("INSERT INTO orders VALUES (?)", rows)
    return len(rows)


async def take(subscription: DurableSubscription, database: sqlite3.Connection, count: int) -> None:
    """Receive `count` publications, in as many transactions as necessary."""
    while count > 0:
        async with subscription.transaction() as transaction:
            count -= await store(transaction, database)


async def fail(
    subscription: DurableSubscription, database: sqlite3.Connection | None = None
) -> None:
    """Receive and write publications, and abort the transaction."""
    async with subscription.transaction() as transaction:
        assert await transaction.receive()
        if database is not None:
            database.execute("INSERT INTO orders VALUES (99)")
        raise Oops


async def resumed(client: Client) -> DurableSubscription:
    return await client.resume("price > 5")


@in_virtual_time
async def test_each_event_is_in_the_database_once_across_restarts(tmp_path: Path) -> None:
    path, _ = application(tmp_path)
    async with serve(KeepingBroker()) as broker:
        for first in (1, 4, 7):
            again = open_database(path)
            async with client_of(broker, tokens=SqliteTokens(again)) as client:
                subscription = await resumed(client)
                assert (subscription.number, subscription.generation) == (1, 1 + first // 3)
                await broker.publish(3)
                await take(subscription, again, 3)
            again.close()
            assert orders(path) == list(range(1, first + 3))
            assert kept_position(path) == 10 * (first + 2)
        assert broker.presented == [None, 30, 60]


@in_virtual_time
async def test_deliveries_of_a_failed_transaction_are_repeated_and_not_acknowledged(
    tmp_path: Path,
) -> None:
    path, database = application(tmp_path)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.publish(2)
        await broker.settle()
        with pytest.raises(Oops):
            await fail(subscription, database)
        await broker.publish(1)
        await broker.settle()
        assert (orders(path), kept_position(path), broker.acknowledged) == ([], 0, 0)
        await take(subscription, database, 3)
        await broker.settle()
        assert (orders(path), kept_position(path), broker.acknowledged) == ([1, 2, 3], 30, 30)


@in_virtual_time
async def test_nothing_is_acknowledged_before_it_is_committed(tmp_path: Path) -> None:
    """Received and even written publications are not committed: a crash would undo them."""
    path, database = application(tmp_path)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.publish(2)
        await broker.settle()
        async with subscription.transaction() as transaction:
            assert await store(transaction, database) == 2
            await broker.silence()
            await broker.settle()
            assert broker.acknowledged == 0
            assert orders(path) == []
        await broker.settle()
        assert broker.acknowledged == 20, "silence came behind what was taken"


@in_virtual_time
async def test_a_token_and_the_change_it_stands_for_are_seen_together_or_not_at_all(
    tmp_path: Path,
) -> None:
    """At every executed statement another process sees both changes or neither."""
    path, database = application(tmp_path)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        seen: list[tuple[int, int]] = []

        def look(statement: str) -> None:
            seen.append((max(orders(path), default=0) * 10, kept_position(path)))

        database.set_trace_callback(look)
        for _ in range(2):
            await broker.publish(2)
            await broker.settle()
            await take(subscription, database, 2)
        database.set_trace_callback(None)
        assert {change for change, _ in seen} == {0, 20}
        assert all(change == position for change, position in seen), seen


@in_virtual_time
async def test_a_session_that_breaks_inside_a_block_costs_nothing_and_brings_nothing_twice(
    tmp_path: Path,
) -> None:
    path, database = application(tmp_path)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.publish(2)
        await broker.settle()
        async with subscription.transaction() as transaction:
            assert await store(transaction, database) == 2
            await broker.drop()
            await broker.settle()
            assert broker.presented == [None, 0], "only what is committed is presented"
        await broker.publish(1)
        await take(subscription, database, 1)
        await broker.settle()
        assert orders(path) == [1, 2, 3]
        assert broker.acknowledged == 30


@in_virtual_time
async def test_a_process_that_lost_the_token_cannot_commit(tmp_path: Path) -> None:
    path, database = application(tmp_path)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.publish(1)

        async def slowly() -> None:
            async with subscription.transaction() as transaction:
                await transaction.receive()
                SqliteTokens(open_database(path)).take_over("dora")
                database.execute("INSERT INTO orders VALUES (1)")

        said = ""
        try:
            await slowly()
        except ClientError as error:
            said = str(error)
        assert "another process has taken over from generation 1" in said
        assert orders(path) == []
        with pytest.raises(ClientError, match="taken over"):
            await client.resume("price > 5")


@in_virtual_time
async def test_an_early_commit_by_the_application_is_reported(
    tmp_path: Path,
) -> None:
    path, database = application(tmp_path)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.publish(1)

        async def hastily() -> None:
            async with subscription.transaction() as transaction:
                await store(transaction, database)
                database.commit()
                database.execute("INSERT INTO orders VALUES (7)")

        with pytest.raises(ClientError, match="ended its transaction itself"):
            await hastily()
        assert orders(path) == [1]


@in_virtual_time
async def test_a_block_that_is_cancelled_is_undone(tmp_path: Path) -> None:
    path, database = application(tmp_path)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.publish(1)
        with trio.move_on_after(5):
            async with subscription.transaction() as transaction:
                await store(transaction, database)
                await trio.sleep_forever()
        assert orders(path) == []
        await take(subscription, database, 1)
        assert orders(path) == [1]


@in_virtual_time
async def test_silence_ends_a_wait_so_that_the_token_moves_on(tmp_path: Path) -> None:
    path, database = application(tmp_path)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.silence()
        async with subscription.transaction() as transaction:
            assert await transaction.receive() == []
            await broker.settle()
            assert broker.acknowledged == 0
        await broker.settle()
        assert (kept_position(path), broker.acknowledged) == (9, 9)


@in_virtual_time
async def test_a_gap_belongs_to_the_transaction_of_its_receipt(tmp_path: Path) -> None:
    path, database = application(tmp_path)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.publish(1)
        await broker.gap(2)
        await broker.publish(1)
        await broker.settle()
        told = []
        for fails in (False, True, False):
            try:
                async with subscription.transaction() as transaction:
                    await store(transaction, database)
                    told.append([(gap.first, gap.last, gap.reason) for gap in transaction.gaps])
                    if fails:
                        raise Oops
            except Oops:
                pass
        lost = [(2, 2, "released")]
        assert told == [[], lost, lost]
        assert orders(path) == [1, 3]


@in_virtual_time
async def test_a_gap_of_received_events_advances_the_token(tmp_path: Path) -> None:
    path, database = application(tmp_path)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.publish(1)
        await take(subscription, database, 1)
        await broker.gap(2, lost=1)
        async with subscription.transaction() as transaction:
            assert await transaction.receive() == []
            assert transaction.gaps == []
        await broker.settle()
        assert (kept_position(path), broker.acknowledged) == (20, 20)


@in_virtual_time
async def test_an_application_may_keep_the_token_itself() -> None:
    async with serve(KeepingBroker()) as broker:
        kept: list[tuple[list[int], bytes]] = [([], b"")]
        for generation in (1, 2, 3):
            async with client_of(broker, tokens=OwnTokens(kept[-1][1])) as client:
                subscription = await resumed(client)
                await broker.publish(2)
                await broker.settle()
                async with subscription.transaction() as transaction:
                    numbers = [each.sequence for each in await transaction.receive()]
                    kept.append((numbers, transaction.token))
                await broker.settle()
                await broker.publish(1)
                with pytest.raises(Oops):  # the process ends before it has kept anything
                    await fail(subscription)
            token = read_checkpoint_token(kept[-1][1], "dora", "d")
            assert token.generation == generation
            assert broker.acknowledged == dict(token.positions)[PUBEND]
        assert [numbers for numbers, _ in kept] == [[], [1, 2], [3, 4, 5], [6, 7, 8]]


@in_virtual_time
async def test_an_older_token_than_the_last_is_allowed() -> None:
    async with serve(KeepingBroker()) as broker:
        tokens = OwnTokens()
        async with client_of(broker, tokens=tokens) as client:
            subscription = await resumed(client)
            old = subscription.token
            await broker.publish(2)
            await broker.settle()
            async with subscription.transaction() as transaction:
                assert len(await transaction.receive()) == 2
        async with client_of(broker, tokens=OwnTokens(old)) as client:
            subscription = await resumed(client)
            await broker.settle()
            async with subscription.transaction() as transaction:
                assert [each.sequence for each in await transaction.receive()] == [1, 2]


@in_virtual_time
async def test_a_detached_client_has_no_token(tmp_path: Path) -> None:
    _, database = application(tmp_path)
    async with serve(KeepingBroker()) as broker:
        async with client_of(broker, tokens=SqliteTokens(database)) as client:
            await resumed(client)
            await client.detach()
        async with client_of(broker, tokens=SqliteTokens(database)) as client:
            assert (await client.resume("price > 9")).generation == 2


@in_virtual_time
async def test_conflicting_token_uses_are_refused(tmp_path: Path) -> None:
    _, database = application(tmp_path)
    async with serve(KeepingBroker()) as broker:
        async with client_of(broker, tokens=SqliteTokens(database)) as client:
            subscription = await resumed(client)
            token = subscription.token
            with pytest.raises(ClientError, match="a subscription with another predicate"):
                await client.resume("price > 6")
            with pytest.raises(ClientError, match="does not receive"):
                await client.receive()
            with pytest.raises(ClientError, match="does not subscribe"):
                await client.subscribe("true")
            with pytest.raises(ClientError, match="does not move"):
                await client.move("elsewhere")
        with pytest.raises(ResumeTokenRefused, match="of client 'dora', not 'emil'"):
            OwnTokens(token).take_over("emil")
        with pytest.raises(ResumeTokenRefused, match="no checkpoint token"):
            OwnTokens(token[:-1]).take_over("dora")
        with pytest.raises(ResumeTokenRefused, match="of deployment 'd', not 'e'"):
            async with client_of(broker, tokens=OwnTokens(token), deployment_id="e"):
                pass
        async with client_of(broker) as client:
            with pytest.raises(ClientError, match="no tokens to resume by"):
                await resumed(client)


def test_a_file_that_would_forget_is_refused(tmp_path: Path) -> None:
    _, database = application(tmp_path)
    with pytest.raises(ConfigError, match=":memory:"):
        SqliteTokens(sqlite3.connect(":memory:")).take_over("dora")
    database.execute("PRAGMA synchronous = NORMAL")
    with pytest.raises(ConfigError, match="synchronous = 1; a file with at least FULL"):
        SqliteTokens(database).take_over("dora")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(ConfigError, match="a transaction open"):
        SqliteTokens(database).take_over("dora")


@in_virtual_time
async def test_a_transaction_that_could_not_begin_is_not_open(tmp_path: Path) -> None:
    """The application has begun a transaction of its own on the connection."""
    path, database = application(tmp_path)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.publish(1)
        database.execute("BEGIN")
        with pytest.raises(sqlite3.OperationalError, match="within a transaction"):
            await take(subscription, database, 1)
        database.rollback()
        await take(subscription, database, 1)
        assert orders(path) == [1]


@in_virtual_time
async def test_a_file_that_is_busy_commits_nothing_and_nothing_is_acknowledged(
    tmp_path: Path,
) -> None:
    path, _ = application(tmp_path)
    database = sqlite3.connect(path, timeout=0)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.publish(2)
        await broker.settle()
        reader = sqlite3.connect(path)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM orders").fetchall()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await take(subscription, database, 2)
        await broker.settle()
        reader.close()
        assert (orders(path), broker.acknowledged) == ([], 0)
        await take(subscription, database, 2)
        await broker.settle()
        assert (orders(path), broker.acknowledged) == ([1, 2], 20)
    database.close()


@in_virtual_time
async def test_a_file_on_a_full_disk_keeps_its_rows_and_receives_the_rest_later(
    tmp_path: Path,
) -> None:
    path, database = application(tmp_path)
    database.execute("CREATE TABLE pictures (content BLOB)")
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.publish(1)
        await take(subscription, database, 1)
        await broker.publish(1)
        await broker.settle()
        before = kept_position(path)
        (pages,) = database.execute("PRAGMA page_count").fetchone()
        database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            await draw(subscription, database)
        await broker.settle()
        assert (orders(path), kept_position(path), broker.acknowledged) == ([1], before, before)
        database.execute("PRAGMA max_page_count = 1000000")
        await draw(subscription, database)
        assert (orders(path), kept_position(path)) == ([1, 2], 20)
    database.close()


async def draw(subscription: DurableSubscription, database: sqlite3.Connection) -> None:
    """Receive a publication, and write a large value for it."""
    async with subscription.transaction() as transaction:
        assert await store(transaction, database) == 1
        database.execute("INSERT INTO pictures VALUES (zeroblob(100000))")


@in_virtual_time
async def test_a_transaction_commits_only_its_own_deliveries(tmp_path: Path) -> None:
    path, database = application(tmp_path)
    async with (
        serve(KeepingBroker()) as broker,
        client_of(broker, tokens=SqliteTokens(database)) as client,
    ):
        subscription = await resumed(client)
        await broker.publish(3)
        await broker.settle()
        with pytest.raises(Oops):
            await fail(subscription, database)
        for position in (10, 20):
            async with subscription.transaction() as transaction:
                (event,) = await transaction.receive(limit=1)
                assert event.sequence * 10 == position
            assert kept_position(path) == position
