"""Consumers of one process, which count: `python -m bench.papers.ds03.consumer_process`.

Its arguments are the broker's address, the first number and how many they are, how many events each
is to have, and for how many seconds it goes on at most once a line comes on its standard input. It
says a JSON line when all have begun, and one with what they have consumed at the end.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence

import trio

from brokerd.client.client import connect
from brokerd.client.consumer import BrokerTokens

_BEGIN_TOGETHER = 25


class Consumers:
    """All of one process.

    Attributes:
        consumed: events that are committed.
        last_s: when the last one was, since they were let go.
    """

    def __init__(self, address: str, names: Sequence[str], events: int, seconds: float) -> None:
        self.consumed = 0
        self.last_s = 0.0
        self._address = address
        self._names = names
        self._events = events
        self._seconds = seconds
        self._began = 0.0
        self._waiting = len(names)
        self._all_here, self._go = trio.Event(), trio.Event()
        self._turns = trio.CapacityLimiter(_BEGIN_TOGETHER)

    async def run(self) -> None:
        """Begin, wait for the word, and consume."""
        async with trio.open_nursery() as nursery:
            for name in self._names:
                nursery.start_soon(self._consume, name)
            await self._all_here.wait()
            _say({"begun": len(self._names)})
            await trio.to_thread.run_sync(sys.stdin.readline)
            self._began = time.perf_counter()
            nursery.cancel_scope.deadline = trio.current_time() + self._seconds
            self._go.set()

    async def _consume(self, name: str) -> None:
        async with connect(self._address, name, tokens=BrokerTokens()) as client:
            async with self._turns:
                consumer = await client.consume("true")
            self._waiting -= 1
            if not self._waiting:
                self._all_here.set()
            await self._go.wait()
            for _ in range(self._events):
                await anext(consumer)
                await consumer.commit()
                self.consumed += 1
                self.last_s = time.perf_counter() - self._began


def main(arguments: Sequence[str]) -> None:
    """See the module."""
    address, first, count, events, seconds = arguments
    names = [f"consumer{number}" for number in range(int(first), int(first) + int(count))]
    consumers = Consumers(address, names, int(events), float(seconds))
    trio.run(consumers.run)
    _say({"consumed": consumers.consumed, "last_s": consumers.last_s})


def _say(what: Mapping[str, float]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
