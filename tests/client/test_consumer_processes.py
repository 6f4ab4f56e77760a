"""Tests of a stateless process killed at any moment: the broker keeps the state for the next."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio

from brokerd.client.client import connect
from tests.bench.test_subscriber_process import Subscribers, subscribers
from tests.helpers.patience import PATIENCE_S
from tests.runtime.test_process import configure, start

__all__ = ["configure", "start", "subscribers"]

KILLS = 4
BACKLOG = 40
"""The publications stored for each process; the process is killed among them."""
PROGRAM = """
import os, sys, trio
from brokerd.client.client import connect
from brokerd.client.consumer import BrokerTokens

async def main(address, path):
    noted = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with connect(address, "dora", tokens=BrokerTokens()) as client:
        async for each in await client.consume("true"):
            os.write(noted, b"%d %d\\n" % (each.sequence, each.redelivered))

trio.run(main, *sys.argv[1:])
"""

Noted = list[tuple[int, bool]]
"""The publications that processes received in turn: number, and true if marked as redelivered."""


def faults(noted: Noted, kills: int) -> list[str]:
    """Return violations of the promise: a missing publication, or an unmarked repetition."""
    found, again, last = [], 0, 0
    for number, is_marked in noted:
        if number == last and is_marked:
            again += 1
        elif number != last + 1:
            found.append(f"{number} behind {last}, marked: {is_marked}")
        last = number
    if again > kills:
        found.append(f"{again} came again after {kills} kills")
    return found


@pytest.mark.parametrize(
    "noted, kills",
    [
        ([(1, False), (3, False)], 1),
        ([(1, False), (1, False), (2, False)], 1),
        ([(1, False), (1, True), (1, True), (2, False)], 1),
        ([(1, False), (2, False), (1, True), (2, True)], 2),
    ],
)
def test_a_violation_of_the_redelivery_guarantee_is_detected(noted: Noted, kills: int) -> None:
    assert faults(noted, kills)
    assert not faults([(1, False), (1, True), (2, True), (3, False)], 1)


class Consuming:
    """The present process, and the notes of all processes."""

    def __init__(self, folder: Path, address: str) -> None:
        self._path = folder / "noted"
        self._path.touch()
        self._command = [sys.executable, "-c", PROGRAM, address, str(self._path)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def noted(self) -> Noted:
        lines = [line.split() for line in self._path.read_text().splitlines()]
        return [(int(number), is_marked == "1") for number, is_marked in lines]

    async def has(self, number: int) -> None:
        with trio.fail_after(PATIENCE_S):
            while not self.noted() or self.noted()[-1][0] < number:
                await trio.sleep(0.005)


@pytest.fixture
def consuming(subscribers: Subscribers, tmp_path: Path) -> Iterator[Consuming]:
    made = Consuming(tmp_path, subscribers.address)
    yield made
    made.kill()


@pytest.mark.end_to_end
def test_a_kill_of_a_consumer_causes_at_most_one_marked_redelivery(
    consuming: Consuming, subscribers: Subscribers
) -> None:
    random = Random(14)

    async def play() -> None:
        async with connect(subscribers.address, "ann", publishes=True) as publisher:

            async def publish(count: int) -> int:
                numbers = [await publisher.publish({"price": 1}, b"") for _ in range(count)]
                await publisher.flush()
                return numbers[-1]

            consuming.start()
            with trio.fail_after(PATIENCE_S):  # its subscription begins with what it is first given
                while not consuming.noted():
                    await publish(1)
                    await trio.sleep(0.02)
            for _ in range(KILLS):
                await publish(BACKLOG)
                await consuming.has(consuming.noted()[-1][0] + random.randrange(1, BACKLOG))
                consuming.kill()
                consuming.start()
            await consuming.has(await publish(1))

    trio.run(play)
    noted = consuming.noted()
    assert not faults([(number - noted[0][0] + 1, mark) for number, mark in noted], KILLS)
