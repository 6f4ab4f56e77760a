"""Stories of publishers that share a pubend: a message to a subscriber has runs of two sources."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest
import trio

from brokerd.client.application import Publication
from brokerd.client.client import Client, connect
from brokerd.overlay.topology import Topology
from brokerd.wire.attributes import encode_attributes
from tests.helpers.memory_broker import MemoryBroker
from tests.helpers.memory_links import MemoryNet
from tests.helpers.virtual_time import in_virtual_time

ROUNDS = 6
Receipt = tuple[str, int]


def shared(order: str, protocol: str = "gryphon") -> Topology:
    """Return a topology of two cells, with a single pubend per broker."""
    content = {
        "schema": "pubsubctl/topology/2", "name": "shared", "kind": "cells",
        "brokers": ["c1", "c2"], "cells": {"bundles": [["c1", "c2"]]},
        "parameters": {protocol: {"order": order, "pubends": 1}},
    }  # fmt: skip
    return Topology.from_mapping(content, "shared.toml")


@asynccontextmanager
async def clients(
    order: str, protocol: str = "gryphon"
) -> AsyncIterator[tuple[Client, Client, Client]]:
    """Yield two publishers at a broker, and a subscriber at the other broker."""
    net = MemoryNet()
    topology = shared(order, protocol)
    async with trio.open_nursery() as nursery:
        for name in topology.brokers:
            await nursery.start(MemoryBroker(net, topology, name, protocol).run)
        async with (
            connect("c1", "p", publishes=True, dial=net.dial) as first,
            connect("c1", "q", publishes=True, dial=net.dial) as second,
            connect("c2", "s", dial=net.dial) as subscriber,
        ):
            await subscriber.subscribe("true")
            yield first, second, subscriber
        nursery.cancel_scope.cancel()


async def publish(*publishers: Client) -> None:
    """Publish in turns, so that messages to the subscriber have runs of the sources."""
    for number in range(ROUNDS):
        for publisher in publishers:
            for _ in range(1 + number % 3):
                await publisher.publish({"round": number}, b"")
        if number % 3 == 2:
            await trio.sleep(0.05)
    await trio.sleep(0.1)


def published(*publishers: Client) -> list[Receipt]:
    """Return the publications of the publishers."""
    return [
        (str(publisher.source), number)
        for publisher in publishers
        for number in range(1, publisher.next_sequence)
    ]


def receipts(*publications: Publication) -> list[Receipt]:
    return [(str(each.source), each.sequence) for each in publications]


async def receive_one(client: Client) -> list[Receipt]:
    return receipts(await anext(client.publications()))


async def receive_run(client: Client) -> list[Receipt]:
    run = (await anext(client)).run
    return [(str(run.source), number) for number in run.sequences]


async def receive_runs(client: Client, limit: int = 2) -> list[Receipt]:
    return [
        (str(item.run.source), number)
        for item in await client.receive(limit)
        for number in item.run.sequences
    ]


WAYS: dict[str, Callable[[Client], Awaitable[list[Receipt]]]] = {
    "publications": receive_one,
    "runs": receive_run,
    "receive": receive_runs,
}


async def receive_in_turns(client: Client, ways: list[str]) -> list[Receipt]:
    """Receive in the named ways, in turns, until the subscriber is idle for 0.1 s."""
    received: list[Receipt] = []
    for turn in count():
        with trio.move_on_after(0.1) as patience:
            received += await WAYS[ways[turn % len(ways)]](client)
        if patience.cancelled_caught:
            break
    return received


@pytest.mark.parametrize(
    "order, ways",
    [*(("publisher", [way]) for way in WAYS), ("publisher", [*WAYS]), ("total", [*WAYS])],
    ids=str,
)
@in_virtual_time
async def test_each_way_to_receive_returns_every_publication(order: str, ways: list[str]) -> None:
    received: list[Receipt] = []
    async with clients(order) as (first, second, subscriber):
        for _ in range(2):
            await publish(first, second)
            received += await receive_in_turns(subscriber, ways)
        assert sorted(received) == sorted(published(first, second))


@in_virtual_time
async def test_the_rest_of_a_run_of_an_ended_subscription_is_not_returned() -> None:
    async with clients("publisher") as (first, _, subscriber):
        second = await subscriber.subscribe("round > 0")
        first.publish_many_nowait([encode_attributes({"round": 1})], bytes(3), 0, b"")
        assert (await subscriber.receive_one()).subscriptions == (1, second)
        await subscriber.unsubscribe(second)
        assert (await subscriber.receive_one()).subscriptions == (1,)
        await subscriber.unsubscribe(1)
        assert await receive_in_turns(subscriber, ["publications"]) == []
