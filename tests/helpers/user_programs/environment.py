"""The surroundings of a random program: brokers that end and return, stores that fail, patience."""

import errno
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from brokerd.client.client import BrokerUnreachable, ClientError
from tests.helpers.every_protocol import three_brokers
from tests.helpers.memory_broker import MemoryBroker
from tests.helpers.memory_links import MemoryNet
from tests.helpers.user_programs.history import History

PARAMETERS: Final[dict[str, list[dict[str, Any]]]] = {
    "gryphon": [{}, {"pubends": 1}, {"order": "total"}, {"order": "total", "pubends": 1}],
    "durable": [{}, {"pubends": 1}, {"pubends": 2}],
    "multi_proxy": [{"topic_attribute": "kind"}],
}
ACCEPTS_LOSS: Final = ("durable", "ges_reliable", "gryphon")
"""Protocols in which a broker may lose its disk; gaps stand for all lost publications."""
LOSSY: Final = ("best_effort", "ges")
"""Protocols that may lose publications when something fails."""


class StoreFull(OSError):
    """A save on a full disk."""


class MemoryStore:
    """A store that keeps the saved content, while its disk has room.

    Attributes:
        saves_left: number of saves until the disk is full; None if it has room.
    """

    def __init__(self, content: bytes | None = None) -> None:
        self.content = content
        self.saves_left: int | None = None

    def load(self) -> bytes | None:
        return self.content

    def save(self, content: bytes) -> None:
        if self.saves_left is not None:
            self.saves_left -= 1
            if self.saves_left < 0:
                raise StoreFull(errno.ENOSPC, "no space")
        self.content = content


class Brokers:
    """Three brokers that end and return, unless the program is calm.

    Attributes:
        loses_disk: brokers lose their disks, once.
    """

    def __init__(
        self, protocol: str, choices: random.Random, nursery: trio.Nursery, history: History
    ) -> None:
        self.net = MemoryNet()
        self.is_calm = choices.random() < 0.3
        self.is_over = False
        self.loses_disk = not self.is_calm and protocol in ACCEPTS_LOSS and choices.random() < 0.3
        self.parameters = choices.choice(PARAMETERS.get(protocol, [{}]))
        self._choices = choices
        self._nursery = nursery
        self._history = history
        topology = three_brokers(protocol, **self.parameters)
        self._brokers = {
            name: MemoryBroker(self.net, topology, name, protocol) for name in topology.brokers
        }
        self._scopes: dict[str, trio.CancelScope] = {}
        self._has_lost = False

    async def start_all(self) -> None:
        for name in self._brokers:
            await self._nursery.start(self._run, name)

    async def disturb(self) -> None:
        """End and restart brokers, one at a time, until the program `is_over`."""
        while not self.is_over and not self.is_calm:
            await trio.sleep(self._choices.choice((0.3, 1, 5)))
            self._history.is_disturbed = True
            name = self._choices.choice([*self._brokers])
            self._scopes[name].cancel()
            self.net.listeners.pop(name)
            if self.loses_disk and not self._has_lost and self._choices.random() < 0.3:
                self._has_lost = True
                self._brokers[name].lose_disk()
            await trio.sleep(self._choices.choice((0.01, 1, 4)))
            await self._nursery.start(self._run, name)

    async def _run(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as self._scopes[name]:
            await self._brokers[name].run(task_status=task_status)


async def patiently(call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Return the result of a call that is repeated while the broker is unreachable.

    A call during a move is repeated after the move.
    """
    while True:
        try:
            return await call(*arguments)
        except BrokerUnreachable:
            continue
        except ClientError as error:
            if "is moving" not in str(error):
                raise
            await trio.sleep(0.01)


async def impatiently(
    choices: random.Random, call: Callable[..., Awaitable[Any]], *arguments: Any
) -> Any:
    """Return the result of a call, or None if it is cancelled first: at a time, or at an await."""
    choose = choices.choice
    results: list[Any] = []
    errors: list[ClientError] = []

    async def run() -> None:
        try:
            results.append(await call(*arguments))
        except ClientError as error:
            errors.append(error)

    with trio.CancelScope() as scope:
        if choose((True, False)):
            scope.deadline = trio.current_time() + choose((0, 0.001, 0.05, 1, 100))
            await run()
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, scope, choose((0, 1, 2, 3, 5, 8, 20)))
                await run()
                nursery.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return results[0] if results else None


async def _cancel_after(scope: trio.CancelScope, checkpoints: int) -> None:
    for _ in range(checkpoints):
        await trio.lowlevel.checkpoint()
    scope.cancel()
