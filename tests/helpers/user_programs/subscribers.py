"""Subscribers of a random program."""

import random
from typing import Any, Final

import trio

from brokerd.client.application import Publication
from brokerd.client.client import Callbacks, Client, ClientError, connect
from brokerd.client.consumer import BrokerTokens, Consumer
from brokerd.client.events import GapAnnounced
from brokerd.client.tokens import OwnTokens
from brokerd.client.transactions import DurableSubscription, Transaction
from brokerd.model.client_messages import Deliveries
from brokerd.runtime.streams import Gate
from tests.helpers.every_protocol import HOMES
from tests.helpers.user_programs.attributes import PREDICATES
from tests.helpers.user_programs.environment import (
    Brokers,
    MemoryStore,
    StoreFull,
    impatiently,
    patiently,
)
from tests.helpers.user_programs.history import (
    Gap,
    History,
    Receipt,
    SubscriptionRecord,
    receipt_of,
    singles_of,
)

MODES: Final = ("plain", "plain", "store", "explicit")
DURABLE_MODES: Final = (*MODES, "own", "auto", "transacted")
SINGLE: Final = ("own", "auto", "transacted")
"""Modes with one subscription."""
QUIET_S: Final = 40.0
"""A subscriber that receives nothing for so long, after the last fault, has received everything."""


class Undo(Exception):
    """An error of an application inside a transaction, or while it handles a publication."""


class Subscriber:
    """A subscriber, which ends and makes subscriptions while it receives.

    Attributes:
        records: deliveries by subscription.
        way: calls that receive.
    """

    def __init__(
        self, name: str, history: History, brokers: Brokers, choices: random.Random, mode: str
    ) -> None:
        self.name = name
        self.mode = mode
        self.way = choices.choice(("publications", "runs", "receive", "mixed"))
        self.records: dict[int, SubscriptionRecord] = {}
        self._history = history
        self._brokers = brokers
        self._choices = choices
        self._token = b""
        self._uncommitted: list[Publication | Deliveries] = []
        self._store = MemoryStore()
        self._calls: dict[int, int] = {}
        self._has_put_back = False

    # ------------------------------------------------------------ processes

    async def run(self, end: trio.Event) -> None:
        """Receive in one process or several, the last of which ends after `end`."""
        choose = self._choices.choice
        home = choose(HOMES)
        lives = 1 if self.mode == "plain" else choose((1, 2, 3))
        for life in range(lives):
            is_last = life == lives - 1
            is_over = False
            while not is_over:
                is_over = True
                try:
                    await self._live(home, end if is_last else None)
                except* StoreFull:
                    is_over = False
                self._store = MemoryStore(self._store.content)  # a killed process saves no more
                self._uncommitted.clear()
            await trio.sleep(choose((0, 0.5, 3)))

    async def _live(self, home: str, end: trio.Event | None) -> None:
        """Receive in one process."""
        choose = self._choices.choice
        gate = Gate()
        can_move = self.mode == "plain" and self._brokers.is_calm and choose((True, False))
        tasks = 1 if self.mode in SINGLE else choose((1, 1, 2))
        async with connect(
            home, self.name, dial=self._brokers.net.dial, gate=gate,
            callbacks=Callbacks(on_gap=self._add_gap), **self._options(),
        ) as client:  # fmt: skip
            consumer = await patiently(self._begin, client)
            async with trio.open_nursery() as nursery:
                if can_move:
                    nursery.start_soon(self._move_about, client)
                elif choose((True, False)):
                    nursery.start_soon(self._be_away, gate)
                if self.mode not in SINGLE and choose((True, False)):
                    nursery.start_soon(self._change_subscriptions, client)
                async with trio.open_nursery() as receiving:
                    for task in range(tasks):
                        receiving.start_soon(self.receive_to, end, client, consumer, task)
                nursery.cancel_scope.cancel()
            if end is None and choose((True, False)):
                gate.shut()  # the process is killed
                self._store.saves_left = 0

    def _options(self) -> dict[str, Any]:
        match self.mode:
            case "store" | "explicit":
                return {"store": self._store, "automatic_commit": self.mode == "store"}
            case "own":
                return {"tokens": OwnTokens(self._token)}
            case "auto" | "transacted":
                return {"tokens": BrokerTokens()}
        return {}

    def _add_gap(self, gap: GapAnnounced) -> None:
        self.records[gap.number].gaps.append(Gap(gap, self._history.calls))

    # ------------------------------------------------------------ subscriptions

    async def _begin(self, client: Client) -> Any:
        """Continue the subscriptions of the process before, or make the first."""
        if self.mode in SINGLE:
            predicate = self.records[1].predicate if self.records else self._draw()
            self.records.setdefault(1, SubscriptionRecord(predicate))
            if self.mode == "own":
                consumer = await client.resume(predicate)
            else:
                consumer = await client.consume(predicate, self.mode, 5)  # type: ignore[arg-type]
            self._note_start(1)
            return consumer
        for number, predicate in client.subscriptions.items():
            assert number in self.records, f"{predicate} of nobody"
            self.records[number].ended = None  # the end was not saved
            await client.wait_started(number)
            self._note_start(number)
        if not client.subscriptions:
            await self._subscribe(client)
        return None

    def _draw(self) -> str:
        return self._choices.choice([*PREDICATES])

    def _note_start(self, number: int) -> None:
        if self.records[number].started is None:
            self.records[number].started = self._history.calls

    async def _subscribe(self, client: Client) -> None:
        predicate = self._draw()
        number = client.subscribe_nowait(predicate)
        self.records[number] = SubscriptionRecord(predicate)
        await patiently(client.wait_started, number)
        self._note_start(number)

    async def _change_subscriptions(self, client: Client) -> None:
        choose = self._choices.choice
        while True:
            await trio.sleep(choose((0, 0.05, 0.5, 3)))
            try:
                if len(client.subscriptions) < choose((1, 2, 3, 4)):
                    await impatiently(self._choices, self._subscribe, client)
                elif len(client.subscriptions) > 1:
                    number = choose([*client.subscriptions])
                    await impatiently(self._choices, self._unsubscribe, client, number)
            except ClientError as error:
                if "is moving" not in str(error):
                    raise

    async def _unsubscribe(self, client: Client, number: int) -> None:
        if self._choices.random() < 0.5:
            client.unsubscribe_nowait(number)
            self.records[number].end(self._calls)
            return
        self.records[number].end(self._calls)
        try:
            await client.unsubscribe(number)
        except ClientError:
            self.records[number].ended = None
            raise

    # ------------------------------------------------------------ faults

    async def _be_away(self, gate: Gate) -> None:
        while True:
            await trio.sleep(self._choices.choice((0.5, 3, 10)))
            self._history.is_disturbed = True
            gate.shut()
            await trio.sleep(self._choices.choice((0.1, 2, 5)))
            gate.open()
            if "store" in self._options() and self._choices.random() < 0.2:
                self._store.saves_left = self._choices.choice((0, 1, 5))

    async def _move_about(self, client: Client) -> None:
        while True:
            await trio.sleep(self._choices.choice((0.2, 1, 5)))
            self._history.is_disturbed = True
            place = self._choices.choice(HOMES)
            await impatiently(self._choices, patiently, client.move, place)

    # ------------------------------------------------------------ receiving

    async def receive_to(
        self, end: trio.Event | None, client: Client, consumer: Any, task: int
    ) -> None:
        """Receive some times; with `end` until then, and until no more arrives."""
        choose = self._choices.choice
        if end is None:
            for _ in range(choose((3, 10, 40))):
                await self._receive(client, consumer, task)
            return
        while not end.is_set():
            await self._receive(client, consumer, task)
            await trio.sleep(choose((0, 0, 0, 0.1, 1)))
        is_quiet = False
        while not is_quiet:
            await self._commit_all(client)  # the broker waits for commits before it delivers more
            with trio.move_on_after(QUIET_S) as scope:
                await self._receive_once(client, consumer, task)
            is_quiet = scope.cancelled_caught and not self._has_put_back

    async def _receive(self, client: Client, consumer: Any, task: int) -> None:
        await impatiently(self._choices, self._receive_once, client, consumer, task)
        if self.mode == "explicit" and self._choices.random() < 0.5:
            await self._commit_some(client)

    async def _receive_once(self, client: Client, consumer: Any, task: int) -> None:
        self._calls[task] = self._calls.get(task, 0) + 1
        if isinstance(consumer, DurableSubscription | Consumer):
            await self._consume(consumer)
            return
        choose = self._choices.choice
        way = choose(("publications", "runs", "receive")) if self.way == "mixed" else self.way
        if way == "publications":
            try:
                async for publication in client.publications():
                    self._take(client, [publication], task)
                    if choose((True, False)):
                        raise Undo
                    if choose((True, False)):
                        break
            except Undo:
                pass
        elif way == "runs":
            self._take(client, [await anext(client)], task)
        else:
            self._take(client, await client.receive(choose((1, 2, 100))), task)

    def _take(self, client: Client, items: Any, task: int) -> None:
        """Record deliveries, at the instant at which the application has them."""
        if self.mode == "explicit":
            self._uncommitted += items
        for item in items:
            for publication in singles_of(item):
                receipt = receipt_of(publication, task, self._calls[task])
                for number in publication.subscriptions:
                    self.records[number].add(receipt)

    async def _consume(self, consumer: DurableSubscription | Consumer) -> None:
        record = self.records[consumer.number]
        if isinstance(consumer, Consumer) and self.mode == "auto":
            record.add(receipt_of(await anext(consumer)))
            if self._choices.random() < 0.3:
                await consumer.commit()
            return
        received: list[Receipt] = []
        gaps: list[GapAnnounced] = []
        self._has_put_back = False
        try:
            async with consumer.transaction() as transaction:
                for _ in range(self._choices.choice((1, 1, 2))):
                    batch = await transaction.receive(self._choices.choice((1, 5)))
                    received += map(receipt_of, batch)
                    if isinstance(transaction, Transaction):
                        gaps = transaction.gaps
                if self._choices.random() < 0.2:
                    raise Undo
                if isinstance(transaction, Transaction):
                    self._token = transaction.token
                record.receipts += received  # the application's own change, kept from here on
                for gap in gaps:
                    self._add_gap(gap)
        except Undo:
            pass
        except trio.Cancelled:
            self._has_put_back = bool(received or gaps)
            raise

    # ------------------------------------------------------------ commits

    async def _commit_some(self, client: Client) -> None:
        """Commit some deliveries: late, in any order, twice, cancelled, in another task."""
        choices = self._choices
        count = choices.randrange(len(self._uncommitted) + 1)
        items = choices.sample(self._uncommitted, count)
        if count and choices.random() < 0.2:
            items.append(items[0])
        if choices.random() < 0.3:
            async with trio.open_nursery() as nursery:
                for item in items:
                    nursery.start_soon(self._commit, client, item)
            return
        for item in items:
            await impatiently(choices, self._commit, client, item)

    async def _commit_all(self, client: Client) -> None:
        if self.mode != "explicit":
            return
        uncommitted, self._uncommitted = self._uncommitted, []
        for item in uncommitted:
            await self._commit(client, item)

    async def _commit(self, client: Client, item: Publication | Deliveries) -> None:
        for number in item.subscriptions:
            if number in client.subscriptions:
                await client.subscription(number).commit(item)
