"""Counting consumers in one process: `python -m bench.papers.ds03.consumer_process`.

The arguments are the broker's address, the first number and the number of consumers, the number of
events per consumer, and the time limit in seconds from the start. A line on standard input is the
start. The process prints a JSON line when all consumers have begun, and a line with the consumed
events at the end.
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
    """All consumers of a process.

    Attributes:
        consumed: number of committed events.
        last_s: time of the last commit, since the start.
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
        """Begin, wait for the start, and consume."""
        async with trio.open_nursery() as nursery:
            for name in self._names:
                nursery.start_soon(self._consume, name)
            await self._all_here.wait()
            _report({"begun": len(self._names)})
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
    """Run the consumers; see the module."""
    address, first, count, events, seconds = arguments
    names = [f"consumer{number}" for number in range(int(first), int(first) + int(count))]
    consumers = Consumers(address, names, int(events), float(seconds))
    trio.run(consumers.run)
    _report({"consumed": consumers.consumed, "last_s": consumers.last_s})


def _report(report: Mapping[str, float]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
