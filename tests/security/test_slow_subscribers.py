"""Tests of S-BP-1: a subscriber that reads nothing costs little, and others wait once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from brokerd.client.client import Client, ClientError, connect
from brokerd.config import SessionParameters
from brokerd.model.client_messages import Connect, Subscribe
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.sessions.messages import Heartbeat
from brokerd.sessions.session import client_hello
from brokerd.wire.attributes import encode_attributes
from brokerd.wire.codec import encode
from tests.helpers.memory_broker import MemoryBroker, chain
from tests.helpers.memory_links import MemoryNet
from tests.helpers.virtual_time import in_virtual_time

OIL = encode_attributes({"topic": "oil"})
WINDOW = DeltaTreeParameters().client_window
PUBLISHER_WINDOW = 4 * WINDOW


class Deaf:
    """A subscriber that keeps sending heartbeats, but reads nothing after its subscription."""

    def __init__(self, stream: trio.abc.Stream, name: str) -> None:
        self._stream = stream
        self._name = name

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self._say(client_hello(self._name, "", 1, 1), Connect(False, 1, 1, 0, ()))
        await self._say(Subscribe(1, parse_predicate("true")))
        task_status.started()
        try:
            while True:
                await self._say(Heartbeat())
                await trio.sleep(0.25)
        except trio.BrokenResourceError:
            pass  # it was evicted

    async def _say(self, *messages: object) -> None:
        await self._stream.send_all(b"".join(part for m in messages for part in encode(m)))


@asynccontextmanager
async def broker(
    net: MemoryNet, session: SessionParameters | None = None
) -> AsyncIterator[tuple[MemoryBroker, trio.Nursery]]:
    async with trio.open_nursery() as nursery:
        one = MemoryBroker(net, chain(1), "b0", session=session)
        await nursery.start(one.run)
        yield one, nursery
        nursery.cancel_scope.cancel()


async def publish_for(client: Client, seconds: int, per_second: int) -> None:
    for _ in range(seconds * 4):
        count = per_second // 4
        await client.publish_many([OIL], bytes(count), 10, bytes(10 * count))
        await trio.sleep(0.25)


@in_virtual_time
async def test_a_subscriber_that_reads_nothing_is_evicted_without_delay_to_others() -> None:
    net = MemoryNet()
    taken = 0
    async with broker(net) as (b0, nursery):
        await nursery.start(Deaf(await net.dial("b0"), "deaf").run)
        async with (
            connect("b0", "p", publishes=True, window=PUBLISHER_WINDOW, dial=net.dial) as publisher,
            connect("b0", "s", dial=net.dial) as subscriber,
        ):
            await subscriber.subscribe("true")
            began = trio.current_time()
            rate = WINDOW // 2
            nursery.start_soon(publish_for, publisher, 60, rate)
            while taken < 60 * rate:
                taken += sum(len(item.run) for item in await subscriber.receive())
            assert trio.current_time() - began < 60 / 0.95
            assert b0.links.counters["slow_consumers"] == b0.links.counters["sessions_lost"] == 1
            assert b0.links.counters["broker_sessions_lost"] == 0
            assert set(b0.links.session_peers()) == {"p", "s"}
            with trio.move_on_after(1):
                await subscriber.receive()
            await publisher.flush()
            statistics = b0.driver.core.statistics()
            assert (statistics["queue_publications"], statistics["subscriptions"]) == (0, 1)
            assert b0.links.waiting_bytes() < 1_000


@in_virtual_time
async def test_an_evicted_subscriber_is_notified_on_return_and_may_restart() -> None:
    net = MemoryNet()
    async with broker(net) as (b0, nursery):
        await nursery.start(Deaf(await net.dial("b0"), "deaf").run)
        async with connect("b0", "p", publishes=True, dial=net.dial) as publisher:
            await publisher.publish_many([OIL], bytes(2 * WINDOW), 1, bytes(2 * WINDOW))
            with trio.fail_after(30):
                await publisher.flush()
            assert b0.links.counters["slow_consumers"] == 1

            async def come_back() -> None:
                async with connect("b0", "deaf", dial=net.dial) as client:
                    await client.subscribe("true")

            with pytest.raises(ClientError, match="slow consumer"):
                await come_back()
            await come_back()


@in_virtual_time
async def test_a_slow_subscriber_keeps_its_subscription() -> None:
    net = MemoryNet()
    async with (
        broker(net) as (b0, _),
        connect("b0", "p", publishes=True, dial=net.dial) as publisher,
        connect("b0", "slow", dial=net.dial) as subscriber,
    ):
        await subscriber.subscribe("true")
        count = 2 * WINDOW
        for _ in range(2):
            await publisher.publish_many([OIL], bytes(WINDOW), 1, bytes(WINDOW))
        taken = 0
        while taken < count:
            taken += sum(len(item.run) for item in await subscriber.receive(1))
            await trio.sleep(3)
        assert taken == count
        assert trio.current_time() > 10, "or it was not slow"
        assert b0.links.counters["slow_consumers"] == 0


@in_virtual_time
async def test_all_clients_wait_for_a_stalled_subscriber_without_the_eviction_rule() -> None:
    """The test proves that the eviction rule is effective."""
    net = MemoryNet()
    never = SessionParameters(slow_after_ns=10**18)
    async with broker(net, never) as (b0, nursery):
        await nursery.start(Deaf(await net.dial("b0"), "deaf").run)
        async with connect("b0", "p", publishes=True, dial=net.dial) as publisher:
            await publisher.publish_many([OIL], bytes(2 * WINDOW), 1, bytes(2 * WINDOW))
            with trio.move_on_after(60):
                await publisher.flush()
            assert publisher.outstanding == 2 * WINDOW
            assert b0.links.counters["slow_consumers"] == 0
