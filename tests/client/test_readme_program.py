"""Tests of the manual's programs as printed: killed, restarted, and without duplicates."""

import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import trio

from brokerd.client.client import connect
from brokerd.model.identity import SourceId
from tests.bench.test_subscriber_process import Subscribers, subscribers
from tests.helpers.patience import PATIENCE_S
from tests.runtime.test_process import configure, start

pytestmark = pytest.mark.end_to_end
__all__ = ["configure", "start", "subscribers"]

MANUAL = Path(__file__).parents[2] / "pubsubctl/help"
PUBLISHER = "clients"
SUBSCRIBER = "durable-clients"


def program_of(topic: str) -> str:
    """Return the first program of a page of the manual."""
    page = (MANUAL / f"{topic}.md").read_text("utf-8")
    found = re.search(r"^```python\n(.*?)^```", page, re.S | re.M)
    assert found is not None, f"the manual has no program in {topic!r}"
    return found[1]


class Program:
    """The program in a file, and the file of its data."""

    def __init__(self, folder: Path, address: str) -> None:
        (folder / "orders.py").write_text(program_of(SUBSCRIBER))
        self._command = [sys.executable, str(folder / "orders.py"), address]
        self._kept = folder / "orders.db"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([*self._command, str(self._kept)])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def orders(self) -> list[tuple[int, float]]:
        """Return numbers and prices of the orders, in order."""
        try:
            with closing(sqlite3.connect(self._kept)) as database:
                query = "SELECT number, price FROM orders ORDER BY rowid"
                return database.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []  # it has not begun


@pytest.fixture
def program(subscribers: Subscribers, tmp_path: Path) -> Iterator[Program]:
    made = Program(tmp_path, subscribers.address)
    yield made
    made.kill()


def test_the_program_of_the_readme_has_each_order_once_when_it_was_killed(
    program: Program, subscribers: Subscribers
) -> None:
    async def play() -> None:
        async with connect(subscribers.address, "ann", publishes=True) as publisher:

            async def publish(*prices: int) -> None:
                for price in prices:
                    await publisher.publish({"price": price}, b"")
                await publisher.flush()

            async def has(price: int) -> None:
                with trio.fail_after(PATIENCE_S):
                    while price not in [kept for _, kept in program.orders()]:
                        await trio.sleep(0.02)

            program.start()
            with trio.fail_after(PATIENCE_S):
                while not program.orders():
                    await publish(60)
                    await trio.sleep(0.02)
            program.kill()
            await publish(70, 40, 80)
            program.start()
            await publish(45, 90)
            await has(90)

    trio.run(play)
    numbers = [number for number, _ in program.orders()]
    assert numbers == sorted(set(numbers))
    assert [price for _, price in program.orders() if price != 60] == [70, 80, 90]


def test_the_publisher_of_the_readme_may_be_started_again(
    program: Program, subscribers: Subscribers, tmp_path: Path
) -> None:
    shop = tmp_path / "shop.py"
    shop.write_text(program_of(PUBLISHER))

    async def play() -> None:
        async with connect(subscribers.address, "till") as till:
            await till.subscribe("kind = 'order'")
            received: list[tuple[SourceId, int]] = []
            for process in (1, 2, 3):
                await trio.run_process([sys.executable, str(shop), subscribers.address])
                with trio.fail_after(PATIENCE_S):
                    while len(received) < 20 * process:
                        run = (await anext(till)).run
                        received += [(run.source, number) for number in run.sequences]
        assert len(received) == len(set(received)) == 60

    trio.run(play)
