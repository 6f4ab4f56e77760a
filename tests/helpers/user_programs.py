"""Random programs of users on the real client library and real cores, in virtual time.

Publishers and subscribers use every way to publish, receive and commit, lose their connections, and
restart with their stores. Brokers end and return; in calm programs clients move. A history records
each publication and each delivery, and `judge` compares the two.

    python -m tests.helpers.user_programs PROTOCOL FIRST COUNT

runs more programs than the suite.
"""

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pytest
import trio
import trio.testing

from brokerd.client.application import Publication, publications_of
from brokerd.client.client import BrokerUnreachable, Callbacks, Client, connect
from brokerd.client.consumer import BrokerTokens, Consumer
from brokerd.client.tokens import OwnTokens
from brokerd.client.transactions import DurableSubscription
from brokerd.model.client_messages import Deliveries
from brokerd.model.identity import SourceId
from brokerd.runtime.streams import Gate
from brokerd.wire.attributes import encode_attributes
from tests.helpers.every_protocol import HOMES, three_brokers
from tests.helpers.memory_broker import MemoryBroker
from tests.helpers.memory_links import MemoryNet

Attributes = Mapping[str, Any]

PARAMETERS: Final[dict[str, list[dict[str, Any]]]] = {
    "gryphon": [{}, {"pubends": 1}, {"order": "total"}, {"order": "total", "pubends": 1}],
    "durable": [{}, {"pubends": 1}, {"pubends": 2}],
    "multi_proxy": [{"topic_attribute": "kind"}],
}
PREDICATES: Final[dict[str, Callable[[Attributes], bool]]] = {
    "true": lambda each: True,
    "kind = 'a'": lambda each: bool(each["kind"] == "a"),
    "n > 20": lambda each: bool(each["n"] > 20),
    "kind = 'b' or n < 30": lambda each: each["kind"] == "b" or each["n"] < 30,
}
MODES: Final = ("plain", "plain", "store", "explicit")
DURABLE_MODES: Final = (*MODES, "own", "auto", "transacted")
FLUSH_S: Final = 900.0
QUIET_S: Final = 40.0
"""A subscriber that receives nothing for so long, after the last fault, has received everything."""


class MemoryStore:
    """A store that keeps the saved content."""

    def __init__(self) -> None:
        self.content: bytes | None = None

    def load(self) -> bytes | None:
        return self.content

    def save(self, content: bytes) -> None:
        self.content = content


@dataclass(frozen=True)
class Receipt:
    """A publication as an application received it.

    Attributes:
        name: `PUBLISHER-NUMBER`, the payload.
        source: the source; a publisher that moves continues as another source.
    """

    name: str
    source: SourceId
    redelivered: bool


@dataclass
class History:
    """The publications and deliveries of a program.

    Attributes:
        published: by name, the attributes and the number of the publish call.
        calls: number of publish calls.
    """

    published: dict[str, tuple[Attributes, int]] = field(default_factory=dict)
    calls: int = 0


class Brokers:
    """Three brokers that end and return."""

    def __init__(self, protocol: str, choices: random.Random, nursery: trio.Nursery) -> None:
        self.net = MemoryNet()
        self.is_disturbed = choices.random() < 0.7
        self.is_calm = not self.is_disturbed
        self.parameters = choices.choice(PARAMETERS.get(protocol, [{}]))
        self._choices = choices
        self._nursery = nursery
        topology = three_brokers(protocol, **self.parameters)
        self._brokers = {
            name: MemoryBroker(self.net, topology, name, protocol) for name in topology.brokers
        }
        self._scopes: dict[str, trio.CancelScope] = {}

    async def start_all(self) -> None:
        for name in self._brokers:
            await self._nursery.start(self._run, name)

    async def disturb(self) -> None:
        """End and restart brokers, one at a time, while `is_disturbed`."""
        while self.is_disturbed:
            await trio.sleep(self._choices.choice((0.3, 1, 5)))
            name = self._choices.choice([*self._brokers])
            self._scopes[name].cancel()
            self.net.listeners.pop(name)
            await trio.sleep(self._choices.choice((0.01, 1, 4)))
            await self._nursery.start(self._run, name)

    async def _run(self, name: str, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as self._scopes[name]:
            await self._brokers[name].run(task_status=task_status)


async def patiently(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a call that is repeated while the broker is unreachable."""
    while True:
        try:
            return await call(*arguments)
        except BrokerUnreachable:
            continue


class Publisher:
    """A publisher; one with a store restarts, and loses nothing that it has published."""

    def __init__(self, name: str, history: History, brokers: Brokers, choices: random.Random):
        self.name = name
        self._history = history
        self._brokers = brokers
        self._choices = choices
        self._count = 0

    async def run(self) -> None:
        choose = self._choices.choice
        store = choose((None, None, MemoryStore()))
        home = choose(HOMES)
        can_move = store is None and self._brokers.is_calm and choose((True, False))
        lives = choose((1, 2, 3)) if store is not None else 1
        for life in range(lives):
            gate = Gate()
            options: dict[str, Any] = {"store": store} if store is not None else {}
            async with connect(
                home, self.name, publishes=True, dial=self._brokers.net.dial, gate=gate, **options
            ) as client:
                for _ in range(choose((10, 20, 40))):
                    await self._act(client, gate)
                    if can_move and choose((True, False, False, False)):
                        await patiently(client.move, choose(HOMES))
                if life == lives - 1:
                    with trio.fail_after(FLUSH_S):
                        await patiently(client.flush)

    async def _act(self, client: Client, gate: Gate) -> None:
        choose = self._choices.choice
        match choose(("one", "one", "one", "many", "pause", "pause", "wait", "flush", "away")):
            case "one":
                await self._publish(client, 1)
            case "many":
                await self._publish(client, choose((2, 3, 5)))
            case "pause":
                await trio.sleep(choose((0, 0.01, 0.2)))
            case "wait":
                await trio.sleep(choose((1, 3)))
            case "flush":
                with trio.move_on_after(choose((0, 0.05, 2))):
                    await patiently(client.flush)
            case "away":
                gate.shut()
                await trio.sleep(choose((0.1, 2)))
                gate.open()

    async def _publish(self, client: Client, count: int) -> None:
        """Publish; a cancelled call counts if the client has numbered its publications."""
        choose, history = self._choices.choice, self._history
        history.calls += 1
        rows: list[tuple[str, Attributes]] = []
        for _ in range(count):
            rows.append((f"{self.name}-{self._count}", {"kind": choose("ab"), "n": self._count}))
            self._count += 1
        for name, attributes in rows:
            history.published[name] = attributes, history.calls
        before = client.next_sequence
        with trio.move_on_after(choose((0, 0.001, 1, 100))):
            if count == 1:
                await client.publish(rows[0][1], rows[0][0].encode())
            else:
                await client.publish_many(
                    [encode_attributes(attributes) for _, attributes in rows],
                    bytes(range(count)),
                    tuple(len(name) for name, _ in rows),
                    "".join(name for name, _ in rows).encode(),
                )
        if client.next_sequence == before:
            for name, _ in rows:
                del history.published[name]


class Undo(Exception):
    """An error of an application inside a transaction."""


class Subscriber:
    """A subscriber with one subscription.

    Attributes:
        started: number of the last publish call before the start; None before the start.
        receipts: deliveries, in order.
        gaps: announced gaps.
    """

    def __init__(
        self, name: str, history: History, brokers: Brokers, choices: random.Random, mode: str
    ) -> None:
        self.name = name
        self.mode = mode
        self.way = choices.choice(("publications", "runs", "receive", "mixed"))
        self.predicate = choices.choice([*PREDICATES])
        self.started: int | None = None
        self.receipts: list[Receipt] = []
        self.gaps: list[object] = []
        self._history = history
        self._brokers = brokers
        self._choices = choices
        self._token = b""

    async def run(self, end: trio.Event) -> None:
        """Receive in one process or several, the last of which ends after `end`."""
        choose = self._choices.choice
        home, store = choose(HOMES), MemoryStore()
        lives = 1 if self.mode == "plain" else choose((1, 2, 3))
        can_move = self.mode == "plain" and self._brokers.is_calm and choose((True, False))
        for life in range(lives):
            gate = Gate()
            async with connect(
                home, self.name, dial=self._brokers.net.dial, gate=gate,
                callbacks=Callbacks(on_gap=self.gaps.append), **self._options(store),
            ) as client:  # fmt: skip
                consumer = await patiently(self._subscribe, client)
                if self.started is None:
                    self.started = self._history.calls
                async with trio.open_nursery() as nursery:
                    if can_move:
                        nursery.start_soon(self._move_about, client, end)
                    elif choose((True, False)):
                        nursery.start_soon(self._be_away, gate)
                    if life == lives - 1:
                        await self._receive_to(end, client, consumer)
                    else:
                        for _ in range(choose((3, 10, 40))):
                            await self._receive(client, consumer, choose((0, 0.001, 0.05, 1)))
                    nursery.cancel_scope.cancel()
            await trio.sleep(choose((0, 0.5, 3)))

    def _options(self, store: MemoryStore) -> dict[str, Any]:
        match self.mode:
            case "store" | "explicit":
                return {"store": store, "automatic_commit": self.mode == "store"}
            case "own":
                return {"tokens": OwnTokens(self._token)}
            case "auto" | "transacted":
                return {"tokens": BrokerTokens()}
        return {}

    async def _subscribe(self, client: Client) -> Any:
        if self.mode == "own":
            return await client.resume(self.predicate)
        if self.mode in ("auto", "transacted"):
            return await client.consume(self.predicate, self.mode, 5)  # type: ignore[arg-type]
        if client.subscriptions:
            return await client.wait_started(*client.subscriptions)
        return await client.subscribe(self.predicate)

    async def _be_away(self, gate: Gate) -> None:
        while True:
            await trio.sleep(self._choices.choice((0.5, 3, 10)))
            gate.shut()
            await trio.sleep(self._choices.choice((0.1, 2, 5)))
            gate.open()

    async def _move_about(self, client: Client, end: trio.Event) -> None:
        while not end.is_set():
            await trio.sleep(self._choices.choice((0.2, 1, 5)))
            await patiently(client.move, self._choices.choice(HOMES))

    async def _receive_to(self, end: trio.Event, client: Client, consumer: Any) -> None:
        while not end.is_set():
            await self._receive(client, consumer, self._choices.choice((0, 0.001, 0.05, 1)))
            await trio.sleep(self._choices.choice((0, 0, 0, 0.1, 1)))
        while await self._receive(client, consumer, QUIET_S):
            pass

    async def _receive(self, client: Client, consumer: Any, wait_s: float) -> bool:
        """Receive once; return True unless the time was over first."""
        with trio.move_on_after(wait_s) as scope:
            if isinstance(consumer, DurableSubscription | Consumer):
                await self._consume(consumer)
            elif self.mode == "explicit":
                items = await client.receive(self._choices.choice((1, 3)))
                self._take(*items)
                for item in items:
                    for number in item.subscriptions:
                        await client.subscription(number).commit(item)
            else:
                await self._receive_in_some_way(client)
        return not scope.cancelled_caught

    async def _receive_in_some_way(self, client: Client) -> None:
        choose = self._choices.choice
        way = choose(("publications", "runs", "receive")) if self.way == "mixed" else self.way
        if way == "publications":
            publication = await anext(client.publications())
            self.receipts.append(receipt_of(publication))
        elif way == "runs":
            self._take(await anext(client))
        else:
            self._take(*await client.receive(choose((1, 2, 100))))

    async def _consume(self, consumer: DurableSubscription | Consumer) -> None:
        if isinstance(consumer, Consumer) and self.mode == "auto":
            publication = await anext(consumer)
            self.receipts.append(receipt_of(publication))
            return
        received: list[Receipt] = []
        try:
            async with consumer.transaction() as transaction:
                for each in await transaction.receive(self._choices.choice((1, 5))):
                    received.append(receipt_of(each))
                if self._choices.random() < 0.2:
                    raise Undo
                if isinstance(consumer, DurableSubscription):
                    self._token = transaction.token  # type: ignore[union-attr]
                self.receipts += received  # the application's own change, kept from here on
        except Undo:
            pass

    def _take(self, *items: Deliveries) -> None:
        for item in items:
            self.receipts += map(receipt_of, publications_of(item))


def receipt_of(publication: Publication) -> Receipt:
    return Receipt(publication.payload.decode(), publication.source, publication.redelivered)


def judge(subscriber: Subscriber, history: History, *, by_kind: bool) -> list[str]:
    """Return the violations: phantoms, unmarked duplicates, losses, false gaps, disorder.

    Args:
        by_kind: the protocol keeps the order of a source within a kind only.
    """
    found: list[str] = []
    matches = PREDICATES[subscriber.predicate]
    may_repeat = subscriber.mode not in ("plain", "own")
    seen: dict[str, None] = {}
    last: dict[tuple[SourceId, str], int] = {}
    for receipt in subscriber.receipts:
        if receipt.name not in history.published:
            found.append(f"phantom {receipt.name}")
            continue
        attributes, _ = history.published[receipt.name]
        if not matches(attributes):
            found.append(f"no match {receipt.name}")
        if receipt.name in seen and not (receipt.redelivered and may_repeat):
            found.append(f"duplicate {receipt.name}")
        seen[receipt.name] = None
        if receipt.redelivered:
            continue
        number = receipt.name.partition("-")[2]
        stream = receipt.source, attributes["kind"] if by_kind else ""
        if last.get(stream, -1) >= int(number):
            found.append(f"order {receipt.name} after {last[stream]}")
        last[stream] = int(number)
    started = subscriber.started if subscriber.started is not None else history.calls
    missing = [
        name
        for name, (attributes, call) in history.published.items()
        if call > started and matches(attributes) and name not in seen
    ]
    if missing:
        found.append(f"missing {len(missing)}: {', '.join(missing[:5])}")
    found += [f"gap {gap}" for gap in subscriber.gaps]
    return found


async def run_program(protocol: str, seed: int) -> tuple[list[str], int]:
    """Run one program; return the violations, and the number of deliveries."""
    choices = random.Random(f"{seed} {protocol}")
    history = History()
    modes = DURABLE_MODES if protocol == "durable" else MODES
    async with trio.open_nursery() as nursery:
        brokers = Brokers(protocol, choices, nursery)
        await brokers.start_all()
        if brokers.is_disturbed:
            nursery.start_soon(brokers.disturb)
        subscribers = [
            Subscriber(f"s{number}", history, brokers, choices, choices.choice(modes))
            for number in range(choices.choice((1, 2, 3)))
        ]
        end = trio.Event()
        async with trio.open_nursery() as clients:
            for subscriber in subscribers:
                clients.start_soon(subscriber.run, end)
            async with trio.open_nursery() as publishers:
                for number in range(choices.choice((1, 2, 3))):
                    publisher = Publisher(f"p{number}", history, brokers, choices)
                    publishers.start_soon(publisher.run)
            brokers.is_disturbed = False
            await trio.sleep(10)
            end.set()
        nursery.cancel_scope.cancel()
    found = [
        f"{each.name} ({each.mode}, {each.way}, {each.predicate}, {brokers.parameters}): {text}"
        for each in subscribers
        for text in judge(each, history, by_kind=protocol == "multi_proxy")
    ]
    return found, sum(len(each.receipts) for each in subscribers)


def run_seed(protocol: str, seed: int) -> tuple[list[str], int]:
    """Run `run_program` in virtual time, with the schedule that the seed determines."""

    async def at_once(work: Callable[[], None], limiter: Any) -> None:
        await trio.lowlevel.checkpoint()
        work()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brokerd.client.store.run_in_thread", at_once)
        patch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr("trio._core._run._r", random.Random(seed))
        before = random.getstate()
        random.seed(seed)
        clock = trio.testing.MockClock(autojump_threshold=0)
        try:
            return trio.run(partial(run_program, protocol, seed), clock=clock)
        finally:
            random.setstate(before)


def main(protocol: str, first: str, count: str) -> None:
    received = 0
    for seed in range(int(first), int(first) + int(count)):
        found, deliveries = run_seed(protocol, seed)
        received += deliveries
        for text in found:
            sys.stdout.write(f"seed {seed}: {text[:400]}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{protocol}: {count} programs, {received:,} deliveries\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
