"""Tests of stateless applications: the broker stores the committed positions."""

import contextlib
import sqlite3
from pathlib import Path

import pytest
import trio

from brokerd.client.client import Client, ClientError
from brokerd.client.consumer import BrokerTokens, Consumer, SqliteConsumed
from brokerd.client.tokens import OwnTokens
from tests.helpers.consuming_broker import ConsumingBroker
from tests.helpers.keeping_broker import client_of, serve
from tests.helpers.virtual_time import in_virtual_time


class Killed(Exception):
    """The end of the process."""


def consuming(broker: ConsumingBroker, consumed: SqliteConsumed | None = None):
    """Return a process of the client without state of an earlier process."""
    return client_of(broker, tokens=BrokerTokens(consumed))


async def take(consumer: Consumer, count: int) -> list[tuple[int, bool]]:
    """Receive `count` publications singly; the last is not committed."""
    taken = []
    async for publication in consumer:
        taken.append((publication.sequence, publication.redelivered))
        if len(taken) == count:
            break
    return taken


@in_virtual_time
async def test_the_next_receive_commits_the_previous_delivery() -> None:
    async with serve(ConsumingBroker()) as broker:
        async with consuming(broker) as client:
            consumer = await client.consume("true")
            await broker.publish(4)
            assert await take(consumer, 3) == [(1, False), (2, False), (3, False)]
            assert broker.token == 20
            await consumer.commit()
            assert broker.token == 30
        async with consuming(broker) as client:
            assert await take(await client.consume("true"), 1) == [(4, True)]


@in_virtual_time
async def test_a_closed_consumer_returns_no_publication_that_it_cannot_commit() -> None:
    received: list[object] = []
    async with serve(ConsumingBroker()) as broker:
        async with consuming(broker) as client:
            consumer = await client.consume("true")
            await broker.publish(2)
            await trio.sleep(1)
            assert client.statistics.waiting_bytes
        with contextlib.suppress(ClientError):
            received.append(await anext(consumer))
    assert not received


@in_virtual_time
async def test_a_closed_consumer_receives_nothing_in_a_transaction() -> None:
    received: list[object] = []
    async with serve(ConsumingBroker()) as broker:
        async with consuming(broker) as client:
            consumer = await client.consume("true", "transacted")
            await broker.publish(2)
            await trio.sleep(1)
        with pytest.raises(ClientError, match="is closed"):
            async with consumer.transaction() as batch:
                received += await batch.receive()
    assert not received


async def die_at(broker: ConsumingBroker, last: int, consumed: SqliteConsumed | None) -> None:
    """Run a process that receives publications up to `last`, notes them in its store, and ends."""
    async with consuming(broker, consumed) as client:
        async for publication in await client.consume("true"):
            if consumed is not None:
                consumed.add(publication)
            if publication.sequence == last:
                raise Killed


@in_virtual_time
async def test_an_uncommitted_delivery_is_redelivered_with_a_mark_after_a_crash() -> None:
    async with serve(ConsumingBroker()) as broker:
        await broker.publish(5)
        with pytest.raises(Killed):
            await die_at(broker, 2, None)
        async with consuming(broker) as client:
            consumer = await client.consume("true")
            assert await take(consumer, 4) == [(2, True), (3, False), (4, False), (5, False)]


@pytest.mark.usefixtures("closed_connections")
@in_virtual_time
async def test_a_delivery_that_the_application_recorded_is_not_redelivered(
    tmp_path: Path,
) -> None:
    database = sqlite3.connect(tmp_path / "orders.db")
    consumed = SqliteConsumed(database, "dora")
    async with serve(ConsumingBroker()) as broker:
        await broker.publish(3)
        with pytest.raises(Killed):
            await die_at(broker, 2, consumed)
        assert broker.token == 10
        async with consuming(broker, consumed) as client:
            consumer = await client.consume("true")
            assert await take(consumer, 1) == [(3, False)]
            assert consumer.dropped == 1


async def fail(consumer: Consumer) -> None:
    """Receive two publications in a transaction, and abort the transaction."""
    async with consumer.transaction() as batch:
        assert [each.sequence for each in await batch.receive(2)] == [1, 2]
        raise Killed


@in_virtual_time
async def test_a_transaction_commits_its_batch_or_gets_it_again() -> None:
    async with serve(ConsumingBroker()) as broker, consuming(broker) as client:
        consumer = await client.consume("true", acknowledge="transacted", most=3)
        await broker.publish(5)
        await broker.settle()
        with pytest.raises(Killed):
            await fail(consumer)
        async with consumer.transaction() as batch:
            assert [each.sequence for each in await batch.receive()] == [1, 2, 3]
            assert await batch.receive() == [], "as many as it may have"
            assert broker.token == 0
        assert broker.token == 30
        with pytest.raises(ClientError, match="acknowledge = 'transacted'"):
            await anext(consumer)


@in_virtual_time
async def test_a_commit_with_a_lost_reply_is_repeated_and_awaited() -> None:
    async with serve(ConsumingBroker(answers=False)) as broker, consuming(broker) as client:
        consumer = await client.consume("true")
        await broker.publish(2)
        assert await take(consumer, 1) == [(1, False)]
        with trio.move_on_after(10) as waited:
            await take(consumer, 1)
        assert waited.cancelled_caught
        broker.answers = True
        await broker.drop()
        assert await take(consumer, 1) == [(2, False)], "not again what this process had"
        assert broker.requests == [1, 1]


@in_virtual_time
async def test_silence_is_committed_without_a_wait() -> None:
    async with serve(ConsumingBroker()) as broker, consuming(broker) as client:
        consumer = await client.consume("true")
        await broker.publish(1)
        assert await take(consumer, 1) == [(1, False)]
        await consumer.commit()
        await broker.silence()
        with trio.move_on_after(1):
            await take(consumer, 1)
        assert broker.token == 19


@in_virtual_time
async def test_consume_is_refused_by_a_broker_without_tokens() -> None:
    async with (
        serve(ConsumingBroker(refuses="not here")) as broker,
        consuming(broker) as client,
    ):
        with pytest.raises(ClientError, match="refused: not here"):
            await client.consume("true")


@in_virtual_time
async def test_consume_requires_broker_tokens_and_resume_requires_own_tokens() -> None:
    async def refused(client: Client) -> None:
        with pytest.raises(ClientError, match="with BrokerTokens"):
            await client.consume("true")

    async with serve(ConsumingBroker()) as broker:
        async with client_of(broker, tokens=OwnTokens()) as client:
            await refused(client)
        async with consuming(broker) as client:
            with pytest.raises(ClientError, match="no tokens to resume by"):
                await client.resume("true")
            with pytest.raises(ClientError, match="at least 1"):
                await client.consume("true", "transacted", 0)
            await client.consume("true")
            await refused(client)
