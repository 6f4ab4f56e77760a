"""Random programs of clients on all protocols: every call returns, or raises a clear error.

Each program runs some clients with different options at brokers that end and return. Clients share
names, go away, move, detach, cancel their calls, and call methods after their end.
"""

import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import trio
import trio.testing

from brokerd.client.client import Client, ClientError, connect
from brokerd.client.consumer import BrokerTokens, Consumer
from brokerd.client.tokens import OwnTokens
from brokerd.client.transactions import DurableSubscription
from brokerd.errors import ConfigError
from brokerd.model.predicate import PredicateError
from brokerd.runtime.streams import Gate
from brokerd.wire.attributes import encode_attributes
from tests.client.test_kept_clients import MemoryStore, at_once
from tests.helpers.every_protocol import HOMES, PROTOCOLS, three_brokers
from tests.helpers.memory_broker import MemoryBroker
from tests.helpers.memory_links import MemoryNet

__all__ = ["at_once"]

PROGRAMS: Final = 3
"""The number of programs of each protocol; thousands have run."""
HANG_S: Final = 1_500.0
"""Longer than all brokers' patience with clients that do not receive."""

ATTRIBUTES: Final = ({"topic": "oil", "n": 1}, {"kind": "a"}, {})
PREDICATES: Final = ("topic = 'oil'", "true", "kind = 'a'", "n = 1 and")
CLEAR: Final = (ClientError, ConfigError, PredicateError)


class Undo(Exception):
    """An error of an application inside a transaction."""


@dataclass
class Deployment:
    """Three brokers that end and return, and the content of all clients' stores."""

    protocol: str
    choices: random.Random
    nursery: trio.Nursery
    net: MemoryNet = field(default_factory=MemoryNet)
    kept: dict[Any, Any] = field(default_factory=dict)
    scopes: dict[str, trio.CancelScope] = field(default_factory=dict)
    brokers: dict[str, MemoryBroker] = field(default_factory=dict)

    async def start_all(self) -> None:
        parameters = {"topic_attribute": "kind"} if self.protocol == "multi_proxy" else {}
        topology = three_brokers(self.protocol, **parameters)
        for name in topology.brokers:
            self.brokers[name] = MemoryBroker(self.net, topology, name, self.protocol)
            await self.nursery.start(self._run, name)

    async def _run(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as self.scopes[name]:
            await self.brokers[name].run(task_status=task_status)

    async def disturb(self) -> None:
        """End and restart brokers for ever."""
        while True:
            await trio.sleep(self.choices.choice((0.01, 1, 30, 200)))
            name = self.choices.choice([*self.brokers])
            self.scopes[name].cancel()
            self.net.listeners.pop(name)
            await trio.sleep(self.choices.choice((0.01, 3, 15, 60)))
            await self.nursery.start(self._run, name)


async def call(wait_s: float, door: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call, or None after a clear error or a cancellation."""
    error: Exception | None = None
    try:
        scope = trio.fail_after(HANG_S) if wait_s < 0 else trio.move_on_after(wait_s)
        with scope:
            result = door(*arguments)
            return await result if isinstance(result, Awaitable) else result
    except CLEAR as clear:
        error = clear
    assert error is None or len(str(error)) > 10, f"{error!r} by {door}"
    return None


class Program:
    """The life of one client process."""

    def __init__(self, deployment: Deployment, name: str) -> None:
        self.choose = deployment.choices.choice
        self.deployment = deployment
        self.mode = self.choose(["plain", "list", "store", "explicit store", "own", "broker"])
        self.gate = Gate()
        self.key = name, self.choose([True, True, False]), self.mode
        self.consumer: Any = None
        self.calls: list[Callable[[Client], Awaitable[Any]]] = [
            self.publish, self.publish, self.publish_many, self.subscribe, self.subscribe,
            self.unsubscribe, self.receive, self.commit, self.consume, self.consume, self.consume,
            self.flush, self.detach, self.move, self.be_away, self.wait,
        ]  # fmt: skip

    def options(self) -> dict[str, Any]:
        found: dict[str, Any] = {"publishes": self.key[1], "gate": self.gate}
        kept = self.deployment.kept.get(self.key)
        if "store" in self.mode:
            found["store"] = self.deployment.kept[self.key] = kept or MemoryStore()
            found["automatic_commit"] = self.mode == "store"
        elif self.mode == "own":
            found["tokens"] = OwnTokens(kept or b"")
        elif self.mode == "broker":
            found["tokens"] = BrokerTokens()
        return found

    def wait_s(self) -> float:
        """Return the time after which a call is cancelled; -1 for never."""
        return float(self.choose([-1, -1, -1, 0, 0.0005, 0.003, 0.05, 1, 20]))

    async def run(self) -> None:
        address = HOMES if self.mode == "list" else self.choose(HOMES)
        dial = self.deployment.net.dial
        with contextlib.suppress(*CLEAR):
            async with (
                connect(address, self.key[0], dial=dial, **self.options()) as client,
                trio.open_nursery() as nursery,
            ):
                if self.mode in ("plain", "list", "store"):
                    nursery.start_soon(self.listen, client)
                for _ in range(self.choose(range(2, 10))):
                    await self.choose(self.calls)(client)
                nursery.cancel_scope.cancel()
            await self.call_after_the_end(client)

    async def listen(self, client: Client) -> None:
        """Receive for ever: publishers wait for subscribers."""
        with contextlib.suppress(ClientError):
            async for _ in client:
                pass

    async def publish(self, client: Client) -> None:
        await call(self.wait_s(), client.publish, self.choose(ATTRIBUTES), b"x")

    async def publish_many(self, client: Client) -> None:
        table = [encode_attributes(each) for each in ATTRIBUTES]
        await call(self.wait_s(), client.publish_many, table, bytes((0, 1, 2)), 1, b"123")

    async def subscribe(self, client: Client) -> None:
        await call(self.wait_s(), client.subscribe, self.choose(PREDICATES))

    async def unsubscribe(self, client: Client) -> None:
        door = self.choose([client.unsubscribe, client.unsubscribe_nowait])
        await call(self.wait_s(), door, self.choose([1, 2, 3]))

    async def receive(self, client: Client) -> None:
        await call(self.choose([0, 0.01, 1]), client.receive, self.choose([1, 100]))

    async def commit(self, client: Client) -> None:
        for each in await call(0.5, client.receive, 10) or ():
            for number in each.subscriptions:
                subscription = await call(-1, client.subscription, number)
                if subscription is not None:
                    await call(self.wait_s(), subscription.commit, each)

    async def consume(self, client: Client) -> None:
        """Consume in transactions or publication by publication, with any kind of tokens."""
        if self.consumer is None:
            door = self.choose([client.resume, client.consume])
            self.consumer = await call(self.wait_s(), door, self.choose(PREDICATES))
        elif isinstance(self.consumer, Consumer):
            await call(self.choose([0, 1, 5]), self.consumer.__anext__)
        else:
            await call(self.choose([0, 1, 5]), self.transact)

    async def transact(self) -> None:
        assert isinstance(self.consumer, DurableSubscription), f"{self.consumer}"
        with contextlib.suppress(Undo):
            async with self.consumer.transaction() as transaction:
                await transaction.receive(3)
                if self.choose([True, False, False]):
                    raise Undo
                self.deployment.kept[self.key] = transaction.token

    async def flush(self, client: Client) -> None:
        await call(self.wait_s(), client.flush)

    async def detach(self, client: Client) -> None:
        if self.choose([True, False]):
            drain = self.choose([True, False])
            await call(self.wait_s(), lambda: client.detach(drain=drain))

    async def move(self, client: Client) -> None:
        await call(self.choose([0.003, 1, 60]), client.move, self.choose([*HOMES, "nowhere"]))

    async def be_away(self, client: Client) -> None:
        self.gate.shut()
        await trio.sleep(self.choose([0.1, 10, 100]))
        self.gate.open()

    async def wait(self, client: Client) -> None:
        await trio.sleep(self.choose([0, 0.001, 0.1, 5, 120]))
        await call(self.wait_s(), client.wait_attached)
        await call(self.wait_s(), client.wait_started, self.choose([1, 2]))

    async def call_after_the_end(self, client: Client) -> None:
        """Check that every method refuses to work."""
        doors: list[Callable[[], Any]] = [
            lambda: client.publish({}, b""), client.flush, client.receive, client.wait_attached,
            lambda: client.subscribe("true"), lambda: client.unsubscribe(1), client.detach,
            lambda: client.move("c1"), lambda: client.wait_started(1), client.__anext__,
            lambda: client.resume("true"), lambda: client.consume("true"),
        ]  # fmt: skip
        if isinstance(self.consumer, Consumer):
            doors.append(self.consumer.__anext__)
        elif self.consumer is not None:
            doors.append(self.transact)
        for door in doors:
            with pytest.raises(ClientError), trio.fail_after(HANG_S):
                await door()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_call_of_a_random_program_returns_or_raises_a_clear_error(protocol: str) -> None:
    for seed in range(PROGRAMS):
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(run_program, protocol, seed, clock=clock)


async def run_program(protocol: str, seed: int) -> None:
    """Run a program to the end."""
    choices = random.Random(f"{seed} {protocol}")
    async with trio.open_nursery() as nursery:
        deployment = Deployment(protocol, choices, nursery)
        await deployment.start_all()
        if choices.random() < 0.6:
            nursery.start_soon(deployment.disturb)

        async def live(name: str) -> None:
            for _ in range(choices.randrange(1, 4)):
                await Program(deployment, name).run()

        async with trio.open_nursery() as processes:
            for number in range(choices.randrange(1, 4)):
                processes.start_soon(live, choices.choice([f"c{number}", "same"]))
        nursery.cancel_scope.cancel()
