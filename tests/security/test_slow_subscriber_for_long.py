"""Tests of S-BP-1 on real brokers: one minute by default, ten with --lab-long."""

import contextlib
from typing import Any

import psutil
import pytest
import trio

from brokerd.client.client import Client, connect
from brokerd.model.client_messages import Connect, Subscribe
from brokerd.model.predicate_text import parse_predicate
from brokerd.sessions.messages import Heartbeat
from brokerd.sessions.session import client_hello
from brokerd.wire.attributes import encode_attributes
from brokerd.wire.codec import encode
from tests.helpers.patience import PATIENCE_S
from tests.runtime.test_process import (  # noqa: F401  (fixtures)
    NAMES,
    Configure,
    Start,
    ask,
    configure,
    start,
    wait_until_ready,
)

pytestmark = [pytest.mark.lab, pytest.mark.slow]

OIL = encode_attributes({"topic": "oil"})
SIZE_BYTES = 1_024
PER_SECOND = 2_000
STEPS_PER_SECOND = 10
GROWTH_BYTES = 32 << 20  # had they kept what it does not read, they would grow by 40 MiB


async def be_deaf(address: str) -> None:
    """Subscribe to all publications, send heartbeats, and never read."""
    host, _, port = address.rpartition(":")
    subscribing = [client_hello("deaf", "", 1, 1), Connect(False, 1, 1, 0, ())]
    messages = [*subscribing, Subscribe(1, parse_predicate("true"))]
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all(b"".join(part for m in messages for part in encode(m)))
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"".join(encode(Heartbeat())))
                await trio.sleep(0.25)


async def publish_for(client: Client, seconds: int) -> float:
    """Publish for `seconds` at no more than the rate; return the duration in seconds."""
    began = trio.current_time()
    step = PER_SECOND // STEPS_PER_SECOND
    for number in range(seconds * STEPS_PER_SECOND):
        await trio.sleep_until(began + number / STEPS_PER_SECOND)
        await client.publish_many([OIL], bytes(step), SIZE_BYTES, bytes(step * SIZE_BYTES))
    return trio.current_time() - began


def test_brokers_stay_small_and_serve_others_despite_a_client_that_never_reads(
    configure: Configure,  # noqa: F811
    start: Start,  # noqa: F811
    request: pytest.FixtureRequest,
) -> None:
    is_long = request.config.getoption("--lab-long")
    seconds = 600 if is_long else 60
    folders = [configure(name) for name in NAMES]
    processes = [psutil.Process(start(folder).pid) for folder in folders]
    addresses = [
        line.split('"')[1]
        for folder in folders
        for line in (folder / "broker.toml").read_text().splitlines()
        if line.startswith("listen")
    ]
    sizes: list[list[int]] = [[] for _ in processes]

    async def weigh() -> None:
        while True:
            for process, rows in zip(processes, sizes, strict=True):
                rows.append(process.memory_info().rss)
            await trio.sleep(1)

    async def story() -> tuple[float, int, dict[str, Any]]:
        taken = 0

        async def take(subscriber: Client) -> None:
            nonlocal taken
            while True:
                taken += sum(len(item.run) for item in await subscriber.receive())

        await wait_until_ready(*folders)
        async with (
            connect(addresses[0], "p", publishes=True) as publisher,
            connect(addresses[2], "s") as subscriber,
            trio.open_nursery() as nursery,
        ):
            await subscriber.subscribe("true")
            nursery.start_soon(be_deaf, addresses[2])
            nursery.start_soon(take, subscriber)
            nursery.start_soon(weigh)
            with trio.fail_after(seconds + PATIENCE_S):
                took_s = await publish_for(publisher, seconds)
                await publisher.flush()
            statistics = await ask(folders[2], "statistics")
            nursery.cancel_scope.cancel()
        return took_s, taken, statistics

    took_s, taken, statistics = trio.run(story)
    assert statistics["slow_consumers"] == 1
    assert statistics["queue_publications"] == 0
    assert taken == PER_SECOND * seconds
    if took_s > seconds / 0.95:
        said = f"the machine was busy: {PER_SECOND} publications a second took {took_s:.0f} s"
        request.node.user_properties.append(("measured", said))
    for name, rows in zip(NAMES, sizes, strict=True):
        third = len(rows) // 3
        middle, last = max(rows[third : 2 * third]), max(rows[2 * third :])
        assert last < middle + GROWTH_BYTES, f"{name} went on growing"
