"""Tests of one client that several tasks call at the same time."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from brokerd.client.client import Callbacks, Client, ClientError
from brokerd.client.consumer import BrokerTokens
from brokerd.client.tokens import OwnTokens
from brokerd.errors import ConfigError
from tests.client.test_client import OIL, brokers, client_of
from tests.helpers.consuming_broker import ConsumingBroker
from tests.helpers.keeping_broker import client_of as client_with_tokens
from tests.helpers.keeping_broker import serve
from tests.helpers.virtual_time import in_virtual_time


async def error_of(call: Awaitable[object]) -> str:
    """Return the text of the error of a call, or "" after a call without an error."""
    try:
        await call
    except (ClientError, ConfigError) as error:
        return str(error)
    return ""


@in_virtual_time
async def test_each_of_two_tasks_that_receive_is_woken() -> None:
    received: list[bytes] = []
    ended: list[str] = []

    async def receive(client: Client, name: str) -> None:
        with contextlib.suppress(ClientError):
            async for publication in client.publications():
                received.append(publication.payload)
        ended.append(name)

    async with (
        brokers() as (b0,),
        client_of(b0, "publisher", publishes=True) as publisher,
        trio.open_nursery() as nursery,
    ):
        async with client_of(b0, "subscriber") as subscriber:
            await subscriber.subscribe("true")
            for name in ("one", "two"):
                nursery.start_soon(receive, subscriber, name)
            await trio.sleep(1)
            for number in range(4):
                await publisher.publish(OIL, b"%d" % number)
                await trio.sleep(1)
        await trio.sleep(1)
        assert sorted(received) == [b"0", b"1", b"2", b"3"]
        assert sorted(ended) == ["one", "two"]


LEAVING: dict[str, Callable[[Client], Awaitable[None]]] = {
    "is moving": lambda client: client.move("b1"),
    "has detached": lambda client: client.detach(drain=False),
}


@pytest.mark.parametrize("occupation", LEAVING)
@in_virtual_time
async def test_a_client_that_leaves_accepts_no_publication_that_waited(occupation: str) -> None:
    """No connection would send the publication, and `flush` would not wait for it."""
    refused: list[str] = []

    async def publish(client: Client) -> None:
        refused.append(await error_of(client.publish(OIL, b"second")))

    async with (
        brokers(2) as (b0, b1),
        client_of(b0, "publisher", publishes=True, window=1) as publisher,
        client_of(b1, "subscriber") as subscriber,
        trio.open_nursery() as nursery,
    ):
        await subscriber.subscribe("true")
        await publisher.publish(OIL, b"first")
        await trio.sleep(1)
        nursery.start_soon(publish, publisher)
        await trio.sleep(1)
        nursery.start_soon(LEAVING[occupation], publisher)
        await trio.sleep(1)
        with trio.move_on_after(1):
            await subscriber.receive(1)
            await subscriber.receive(1)
        await trio.sleep(1)
        assert [occupation in each for each in refused] == [True], refused


@in_virtual_time
async def test_a_move_that_is_cancelled_while_the_old_broker_is_left_is_complete() -> None:
    """The old broker has ended the client already, and only the new one can send for it."""
    scope = trio.CancelScope()

    def cancel_when_lost(change: str, details: object) -> None:
        if change == "lost":
            scope.cancel()

    async with (
        brokers(2) as (b0, _),
        client_of(
            b0, "publisher", publishes=True, callbacks=Callbacks(on_session=cancel_when_lost)
        ) as publisher,
    ):
        await publisher.publish(OIL, b"first")
        with scope:
            await publisher.move("b1")
        assert scope.cancel_called
        await publisher.publish(OIL, b"second")
        await publisher.flush()
        assert publisher.source.broker == 1


@in_virtual_time
async def test_a_flush_after_a_cancelled_detachment_is_refused() -> None:
    async with brokers() as (b0,), client_of(b0, "publisher", publishes=True) as publisher:
        await publisher.wait_attached()
        b0.fault("cut", "publisher")
        await publisher.publish(OIL, b"")
        with trio.move_on_after(1):
            await publisher.detach(drain=False)
        with trio.move_on_after(10):
            assert "has detached" in await error_of(publisher.flush())
            return
        raise AssertionError("it waits for acknowledgements that no broker sends")


@in_virtual_time
async def test_a_subscription_that_waits_for_its_start_has_started_after_a_move() -> None:
    started: list[int] = []

    async def subscribe(client: Client) -> None:
        started.append(await client.subscribe("true"))

    async with (
        brokers(2) as (b0, _),
        client_of(b0, "subscriber") as subscriber,
        trio.open_nursery() as nursery,
    ):
        await subscriber.wait_attached()
        b0.fault("cut", "subscriber")
        await trio.sleep(1)
        nursery.start_soon(subscribe, subscriber)
        await trio.sleep(1)
        await subscriber.move("b1")
        await trio.sleep(1)
        assert started == [1]


CONSUMERS: dict[str, tuple[Any, Callable[[Client], Awaitable[Any]]]] = {
    "own tokens": (lambda: OwnTokens(b""), lambda client: client.resume("true")),
    "broker tokens": (BrokerTokens, lambda client: client.consume("true", "transacted")),
}


@pytest.mark.parametrize("tokens", CONSUMERS)
@in_virtual_time
async def test_a_second_transaction_inside_another_is_refused(tokens: str) -> None:
    make, consume = CONSUMERS[tokens]
    async with (
        serve(ConsumingBroker()) as broker,
        client_with_tokens(broker, tokens=make()) as client,
    ):
        consumer = await consume(client)
        async with consumer.transaction():
            error = await error_of(consumer.transaction().__aenter__())
        assert "one transaction at a time" in error


async def cancel_soon(scope: trio.CancelScope) -> None:
    """Cancel a call that does not wait, and so lets no time pass."""
    for _ in range(100):
        await trio.lowlevel.checkpoint()
    scope.cancel()


@pytest.mark.parametrize("tokens", CONSUMERS)
@in_virtual_time
async def test_a_transaction_that_is_to_receive_nothing_is_refused(tokens: str) -> None:
    make, consume = CONSUMERS[tokens]
    async with (
        serve(ConsumingBroker()) as broker,
        client_with_tokens(broker, tokens=make()) as client,
        trio.open_nursery() as nursery,
    ):
        errors: list[str] = []
        consumer = await consume(client)
        await broker.publish(2)
        await trio.sleep(1)
        async with consumer.transaction() as transaction:
            with trio.CancelScope() as scope:
                nursery.start_soon(cancel_soon, scope)
                errors.append(await error_of(transaction.receive(0)))
        assert ["limit = 0" in error for error in errors] == [True]


@pytest.mark.parametrize("call", ["next", "commit"])
@in_virtual_time
async def test_a_consumer_whose_subscription_has_ended_says_so(call: str) -> None:
    async with (
        serve(ConsumingBroker()) as broker,
        client_with_tokens(broker, tokens=BrokerTokens()) as client,
    ):
        consumer = await client.consume("true")
        await broker.publish(2)
        await anext(consumer)
        await client.unsubscribe(consumer.number)
        error = await error_of(anext(consumer) if call == "next" else consumer.commit())
        assert "has no subscription 1" in error
