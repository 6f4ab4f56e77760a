"""Tests of calls that await an unreachable broker, and of requests without an answer."""

import contextlib
import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from brokerd.client.client import BrokerUnreachable, Client, ClientError, connect
from brokerd.client.waits import Changes
from brokerd.model.client_messages import Connected, Refused, Subscribed
from tests.client.test_client import OIL, brokers, client_of, scripted
from tests.helpers.memory_links import MemoryNet
from tests.helpers.virtual_time import in_virtual_time

CALLS = {
    "subscribe": lambda client: client.subscribe("true"),
    "wait_attached": lambda client: client.wait_attached(),
    "flush": lambda client: client.flush(),
    "detach": lambda client: client.detach(),
    "publish": lambda client: client.publish(OIL, b"2"),
}


@pytest.mark.parametrize("call", CALLS)
@in_virtual_time
async def test_a_call_fails_with_the_name_of_the_unreachable_broker(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    net = MemoryNet()
    async with connect("nowhere", "c", publishes=True, dial=net.dial, window=1) as client:
        await client.publish(OIL, b"1")
        began_s = trio.current_time()
        with pytest.raises(BrokerUnreachable, match=r"no broker for 30 s \(nowhere: "):
            await CALLS[call](client)
        assert trio.current_time() - began_s == pytest.approx(30, abs=0.1)
    assert all("has reached no broker" in each.getMessage() for each in caplog.records)


@in_virtual_time
async def test_a_call_that_is_repeated_waits_again_and_nothing_is_lost() -> None:
    net = MemoryNet()
    async with (
        brokers() as (b0,),
        connect("b0", "s", dial=lambda address: (b0._net if is_up else net).dial(address)) as c,
    ):
        is_up = False
        with pytest.raises(BrokerUnreachable):
            await c.subscribe("topic = 'oil'")
        began_s = trio.current_time()
        with pytest.raises(BrokerUnreachable):
            await c.wait_started(1)
        assert trio.current_time() - began_s == pytest.approx(30, abs=0.1)
        is_up = True
        await c.wait_started(1)
        async with client_of(b0, "p", publishes=True) as publisher:
            await publisher.publish(OIL, b"1")
            assert (await anext(c)).run.sequences == range(1, 2)


@in_virtual_time
async def test_an_outage_that_begins_later_counts_from_its_own_beginning() -> None:
    async with brokers() as (b0,), client_of(b0, "c", publishes=True) as client:
        await client.wait_attached()
        await trio.sleep(100)
        began_s = trio.current_time()
        del b0._net.listeners["b0"]
        b0.fault("blackhole")
        await client.publish(OIL, b"1")
        with pytest.raises(BrokerUnreachable, match="b0"):
            await client.flush()
        assert 30 < trio.current_time() - began_s < 40


@in_virtual_time
async def test_a_client_that_is_to_wait_for_ever_does() -> None:
    net = MemoryNet()
    async with connect("nowhere", "c", dial=net.dial, unreachable_after_s=math.inf) as client:
        with trio.move_on_after(500) as waiting:
            await client.subscribe("true")
        assert waiting.cancelled_caught


@in_virtual_time
async def test_a_failed_move_to_an_absent_broker_leaves_the_client_attached() -> None:
    async with brokers() as (b0,), client_of(b0, "c") as client:
        number = await client.subscribe("true")
        with pytest.raises(BrokerUnreachable, match="nowhere"):
            await client.move("nowhere")
        assert client.attached
        await client.wait_started(number)


@in_virtual_time
async def test_a_client_that_only_receives_writes_one_line_per_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = MemoryNet()
    async with connect("nowhere", "c", dial=net.dial) as client:
        with caplog.at_level(logging.WARNING), trio.move_on_after(100):
            await client.receive()
    assert len(caplog.records) == 1
    assert "client c has reached no broker for 30 s (nowhere: " in caplog.records[0].getMessage()


@in_virtual_time
async def test_each_outage_of_a_client_writes_its_own_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes = Changes("c", 30.0)
    for outage in range(1, 4):
        line: Any = SimpleNamespace(
            unattached_since_s=trio.current_time(), last_failure="", address="b0"
        )
        for _ in range(3):
            changes.warn_if_unreachable(line)
            await trio.sleep(20)
        assert len(caplog.records) == outage
        line.unattached_since_s = None
        changes.warn_if_unreachable(line)


@in_virtual_time
async def test_a_publish_on_a_subscriber_names_the_missing_option() -> None:
    async with brokers() as (b0,), client_of(b0, "c") as client:

        async def publish_many(client: Client) -> None:
            await client.publish_many((OIL,), bytes(1), 1, b"x")

        async def publish_many_nowait(client: Client) -> None:
            client.publish_many_nowait((OIL,), bytes(1), 1, b"x")

        for call in (lambda c: c.publish(OIL, b"x"), publish_many, publish_many_nowait):
            with pytest.raises(ClientError, match=r"connect\(..., 'c', publishes=True\)"):
                await call(client)
        assert client.outstanding == 0
        await client.subscribe("true")


@in_virtual_time
async def test_a_subscription_that_stays_pending_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with scripted() as (client, next_session), trio.open_nursery() as nursery:
        broker = await next_session()
        await broker.greet()
        await broker.say(Connected(None, 1))

        async def answer() -> None:
            await broker.next()
            await broker.say(Subscribed(1, "pending"))
            for _ in range(1_000):
                await trio.sleep(0.2)
                await broker.beat()
            await broker.say(Subscribed(1, "started"))

        nursery.start_soon(answer)
        with caplog.at_level(logging.WARNING):
            assert await client.subscribe("true") == 1
        nursery.cancel_scope.cancel()
    assert [record.getMessage() for record in caplog.records] == [
        "client c: subscription 1 is pending after 30 s: not all brokers confirm it"
    ]


@in_virtual_time
async def test_a_broker_that_refuses_all_clients_is_reported_with_its_reason() -> None:
    async with scripted() as (client, next_session), trio.open_nursery() as nursery:

        async def refuse() -> None:
            while True:
                broker = await next_session()
                await broker.greet()
                with contextlib.suppress(trio.BrokenResourceError):
                    await broker.say(Refused("connect", 0, "the broker recovers", True))

        nursery.start_soon(refuse)
        with pytest.raises(BrokerUnreachable, match=r"b: the broker recovers"):
            await client.wait_attached()
        nursery.cancel_scope.cancel()
