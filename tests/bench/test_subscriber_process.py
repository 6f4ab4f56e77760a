"""Tests of subscriber processes killed during transactions: every event arrives once, in order."""

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from brokerd.client.client import connect
from tests.helpers.patience import PATIENCE_S
from tests.runtime.test_process import Configure, Start, configure, start, wait_until_up

pytestmark = pytest.mark.end_to_end
__all__ = ["configure", "start"]

CELLS = """
schema = "pubsubctl/topology/2"
name = "one"
kind = "cells"
brokers = ["b0"]
[cells]
bundles = []
"""
EVENTS = 5


class Subscribers:
    """One subscriber, as one process after the other."""

    def __init__(self, folder: Path, address: str) -> None:
        self.database = folder / "orders.sqlite"
        self.address = address
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *orders: str) -> None:
        """Start a new process with these orders."""
        config = {
            "client": "dora",
            "address": self.address,
            "predicate": "kind = 'order'",
            "deployment_id": "d1",
            "session": {},
            "tls": None,
            "acknowledge": "",
            "database": str(self.database),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.load.subscriber_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        self.tell(json.dumps(config), *orders)

    def tell(self, *orders: str) -> None:
        """Send the orders to the process."""
        assert self._process is not None, "it was started"
        assert self._process.stdin is not None, "stdin is a pipe"
        self._process.stdin.write("".join(f"{order}\n" for order in orders).encode())
        self._process.stdin.flush()

    async def ended(self) -> int:
        """Wait for the end of the process; return its exit status."""
        process = self._process
        assert process is not None
        with trio.fail_after(PATIENCE_S):
            while process.poll() is None:
                await trio.sleep(0.01)
        assert process.stdin is not None
        process.stdin.close()
        return process.returncode

    def kill(self) -> None:
        """Kill the process at once."""
        if self._process is not None:
            self._process.kill()

    def rows(self) -> list[int]:
        """Return the rows of the application, in order."""
        try:
            with closing(sqlite3.connect(self.database)) as database:
                rows: list[Any] = database.execute(
                    "SELECT sequence FROM received ORDER BY place"
                ).fetchall()
        except sqlite3.OperationalError:
            return []
        return [number for (number,) in rows]

    async def has(self, count: int) -> None:
        """Wait until the application has `count` rows."""
        with trio.fail_after(PATIENCE_S):
            while len(self.rows()) < count:
                await trio.sleep(0.01)


@pytest.fixture
def subscribers(configure: Configure, start: Start, tmp_path: Path) -> Iterator[Subscribers]:
    """Yield a subscriber; the broker of a durable subscriber runs."""
    folder = configure("b0", protocol="durable")
    (folder.parent / "topology.toml").write_text(CELLS)
    text = (folder / "broker.toml").read_text()
    listen = next(line for line in text.splitlines() if line.startswith("listen"))
    start(folder)
    trio.run(wait_until_up, folder)
    found = Subscribers(tmp_path, json.loads(listen.partition("=")[2]))
    yield found
    found.kill()


def test_a_subscriber_killed_around_a_commit_has_each_event_once(
    subscribers: Subscribers,
) -> None:
    async def play() -> None:
        published = 0
        async with connect(subscribers.address, "ann", publishes=True) as publisher:

            async def publish() -> None:
                nonlocal published
                for _ in range(EVENTS):
                    published = await publisher.publish({"kind": "order"}, b"1")
                await publisher.flush()

            subscribers.start("subscribe")
            with trio.fail_after(PATIENCE_S):
                while not subscribers.rows():
                    await publish()
            subscribers.kill()
            assert await subscribers.ended() == -signal.SIGKILL
            first = subscribers.rows()[0]
            for moment in ("token", "committed"):  # `client-crash` knows the others
                subscribers.start(f"die {moment}", "subscribe")
                await publish()
                assert await subscribers.ended() == -signal.SIGKILL, moment
            subscribers.start("subscribe")
            await publish()
            await subscribers.has(published - first + 1)
            subscribers.tell("leave")
            assert await subscribers.ended() == 0
        assert subscribers.rows() == list(range(first, published + 1))

    trio.run(play)
