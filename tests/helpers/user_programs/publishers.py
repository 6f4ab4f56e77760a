"""Publishers of a random program."""

import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from brokerd.client.client import Client, connect
from brokerd.runtime.streams import Gate
from brokerd.wire.attributes import encode_attributes
from tests.helpers.every_protocol import HOMES
from tests.helpers.user_programs.attributes import draw_attributes
from tests.helpers.user_programs.environment import (
    Brokers,
    MemoryStore,
    StoreFull,
    impatiently,
    patiently,
)
from tests.helpers.user_programs.history import SEPARATOR, History, Published

FLUSH_S: Final = 900.0
ACTS: Final = (*["one"] * 6, *["many"] * 2, *["pause"] * 4, "wait", "flush", "away", "full")
SIZES_BYTES: Final = (*[0] * 40, 1_000, 20_000, 1_000_000)
"""Payloads are at least so long; the last is near the limit of a frame."""


class Publisher:
    """A publisher; one with a store restarts, and loses nothing that it has published."""

    def __init__(self, name: str, history: History, brokers: Brokers, choices: random.Random):
        self.name = name
        self._history = history
        self._brokers = brokers
        self._choices = choices
        self._count = 0
        self._unacknowledged: list[str] = []

    async def run(self) -> None:
        choose = self._choices.choice
        store = choose((None, None, MemoryStore()))
        lives = choose((1, 2, 3)) if store is not None else 1
        home = choose(HOMES)
        left = lives
        while left:
            left -= 1
            try:
                await self._live(home, store, is_last=not left)
            except* StoreFull:
                left += 1
            except* _Crash:
                pass
            if store is not None and store.saves_left is not None:
                store.saves_left = None  # the disk has room again
            await trio.sleep(choose((0, 0.5, 2)))

    async def _live(self, home: str, store: MemoryStore | None, *, is_last: bool) -> None:
        """Publish in one process."""
        choose = self._choices.choice
        gate = Gate()
        options: dict[str, Any] = {"store": store} if store is not None else {}
        can_move = store is None and self._brokers.is_calm and choose((True, False))
        tasks = choose((1, 1, 2))
        window = choose((65_536, 65_536, 1, 3))
        async with connect(
            home, self.name, publishes=True, dial=self._brokers.net.dial, gate=gate,
            window=window, **options,
        ) as client:  # fmt: skip
            async with trio.open_nursery() as nursery:
                if can_move:
                    nursery.start_soon(self._move_about, client)
                async with trio.open_nursery() as publishing:
                    for _ in range(tasks):
                        publishing.start_soon(self._act, client, gate, store)
                    if not is_last and choose((True, False)):
                        await trio.sleep(choose((0.01, 0.5, 3)))
                        publishing.cancel_scope.cancel()
                nursery.cancel_scope.cancel()
            self._note_source(client)
            if is_last:
                with trio.fail_after(FLUSH_S):
                    await patiently(choose((client.flush, client.detach)))
                self._note_source(client)
                self._unacknowledged.clear()
            elif choose((True, False)):
                raise _Crash

    async def _move_about(self, client: Client) -> None:
        while True:
            await trio.sleep(self._choices.choice((0.1, 0.5, 2)))
            self._history.is_disturbed = True
            await patiently(client.move, self._choices.choice(HOMES))

    async def _act(self, client: Client, gate: Gate, store: MemoryStore | None) -> None:
        """Publish, wait, and lose the connection, some times."""
        choose = self._choices.choice
        for _ in range(choose((10, 20, 40))):
            match choose(ACTS):
                case "one":
                    await self._publish(client, 1)
                case "many":
                    await self._publish(client, choose((2, 3, 5)))
                case "pause":
                    await trio.sleep(choose((0, 0.01, 0.2)))
                case "wait":
                    await trio.sleep(choose((1, 3)))
                case "flush":
                    await impatiently(self._choices, patiently, client.flush)
                case "away":
                    self._history.is_disturbed = True
                    gate.shut()
                    await trio.sleep(choose((0.1, 2)))
                    gate.open()
                case "full":
                    if store is not None and choose((True, False, False)):
                        store.saves_left = choose((0, 1, 5))

    async def _publish(self, client: Client, count: int) -> None:
        """Publish; a call that is cancelled has published nothing."""
        history = self._history
        history.calls += 1
        rows = [self._draw() for _ in range(count)]
        names = [name for name, _ in rows]
        try:
            number = await impatiently(self._choices, self._call, client, rows)
        except StoreFull:
            history.doubt(names)
            raise
        except trio.Cancelled:
            self._end(names, "cancelled")
            raise
        if number is None:
            self._end(names, "cancelled")
            return
        self._end(names, "published")
        for offset, name in enumerate(names):
            history.published[name].sequence = number + offset
            history.published[name].source = client.source
        self._unacknowledged += names

    def _note_source(self, client: Client) -> None:
        for name in self._unacknowledged:
            published = self._history.published[name]
            published.source = published.source or client.source

    def _end(self, names: list[str], fate: Any) -> None:
        for name in names:
            self._history.published[name].fate = fate

    def _draw(self) -> tuple[str, bytes]:
        """Return the name and the payload of a new publication."""
        name = f"{self.name}-{self._count}"
        payload = (name.encode() + SEPARATOR).ljust(self._choices.choice(SIZES_BYTES), b".")
        attributes = draw_attributes(self._choices, self._count)
        self._history.published[name] = Published(attributes, self._history.calls, len(payload))
        self._count += 1
        return name, payload

    def _call(self, client: Client, rows: list[tuple[str, bytes]]) -> Awaitable[int]:
        published = [self._history.published[name].attributes for name, _ in rows]
        if len(rows) == 1:
            return patiently(client.publish, published[0], rows[0][1])
        table = [encode_attributes(attributes) for attributes in published]
        lengths = tuple(len(payload) for _, payload in rows)
        payload = b"".join(payload for _, payload in rows)
        index: Callable[[range], Any] = self._choices.choice((bytes, tuple))

        async def publish_many() -> int:
            numbers = await client.publish_many(table, index(range(len(rows))), lengths, payload)
            return numbers[0]

        return patiently(publish_many)


class _Crash(Exception):
    """An error of an application, which ends its process."""
