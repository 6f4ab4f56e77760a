"""Load generators for systems under test: publishers and subscribers with the system's client.

Apart from the client, these are usual load generators: schedule, contents, records, online checker.
The asyncio client library and trio share one thread: asyncio runs the loop, trio is its guest.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import trio

from bench.load.load_clients import LoadClient, PublisherClient, SubscriberClient
from bench.load.load_files import LoadSetting
from bench.load.load_generator import LoadGenerator
from bench.load.publishers import PublisherSetting
from bench.load.subscribers import SubscriberSetting
from bench.spec.values import topics_of
from bench.systems.boundary import (
    Attachment,
    ConnectionLost,
    Delivery,
    System,
    SystemClient,
    load_driver,
)
from bench.systems.publications import FenceCopies, NotOurs, OutgoingPublications, Places, unpack
from brokerd.client.client import Gate
from brokerd.model.identity import SourceId
from brokerd.wire.attributes import decode_attributes

ATTACH_WITHIN_S: Final = 5.0
AGAIN_S: Final = 0.1
LEAVE_WITHIN_S: Final = 2.0
ONE_TOPIC: Final = "all"
"""The topic of a workload without topics."""


class SystemLoad(LoadGenerator):
    """A LoadGenerator with clients of a system under test.

    Args:
        about: result of `SystemUnderTest.load_setting`.
    """

    def __init__(self, setting: LoadSetting, about: Mapping[str, Any]) -> None:
        self.system: System = load_driver(about["driver"], Path(about["source"]))
        self.topic: str | None = about["topic"]
        self.topics: tuple[str, ...] = tuple(about["topics"])
        self._addresses: dict[str, str] = dict(about["addresses"])
        self._settings = dict(about["settings"])
        super().__init__(setting)

    def _publisher(self, setting: PublisherSetting, number: int) -> PublisherClient:
        return SystemPublisher(self, setting, number)

    def _subscriber(self, setting: SubscriberSetting, number: int) -> SubscriberClient:
        return SystemSubscriber(self, setting, number)

    def client(
        self, setting: PublisherSetting | SubscriberSetting, publishes: bool
    ) -> SystemClient:
        """Return the system's client for a publisher or subscriber."""
        own = self._addresses[setting.broker]
        others = [address for address in self._addresses.values() if address != own]
        return self.system.client(
            Attachment(setting.client, (own, *others), publishes, self.topics, self._settings)
        )

    async def _on_status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        status = await super()._on_status(arguments)
        subscribers = [each for each in self._subscribers if isinstance(each, SystemSubscriber)]
        return {**status, "holes": sum(each.places.holes for each in subscribers)}

    def source_of(self, setting: PublisherSetting) -> SourceId:
        return SourceId(self.setting.brokers.index(setting.broker), setting.index, 1)

    def topics_of_publication(self, blob: bytes) -> tuple[str, ...]:
        """Return the topics of a publication with these attributes; all topics for a fence."""
        if blob == self.fence_blob or self.topic is None:
            return self.topics
        return (_value(blob, self.topic),)

    def is_fence(self, blob: bytes) -> bool:
        """Return True if these are the attributes of this run's fences."""
        return blob == self.fence_blob


@lru_cache(maxsize=4096)
def _value(blob: bytes, attribute: str) -> str:
    return str(decode_attributes(blob)[attribute])


class SystemGate(Gate):
    """A Gate that clients in the asyncio loop can wait for; the clients cut their connections."""

    def __init__(self) -> None:
        super().__init__()
        self._is_shut, self._is_open = asyncio.Event(), asyncio.Event()
        self._is_open.set()

    def shut(self) -> None:
        super().shut()
        self._is_open.clear()
        self._is_shut.set()

    def open(self) -> None:
        super().open()
        self._is_shut.clear()
        self._is_open.set()

    async def wait_shut(self) -> None:
        await self._is_shut.wait()

    async def wait_open(self) -> None:
        await self._is_open.wait()


class SystemLoadClient(LoadClient):
    """A LoadClient that attaches with the system's own client.

    Attributes:
        client: the client of the system.
    """

    client: SystemClient
    gate: SystemGate
    _generator: SystemLoad

    @property
    def is_known(self) -> bool:
        return self._is_up

    @property
    def waiting_bytes(self) -> int:
        return 0

    async def run(self) -> None:
        """Attach repeatedly until `leave`."""
        over = trio.Event()
        task = asyncio.get_running_loop().create_task(self._live())
        task.add_done_callback(lambda _: over.set())
        try:
            with self._serving:
                await over.wait()
        finally:
            task.cancel()
            with trio.CancelScope(shield=True):
                await over.wait()
            self._start_next_client()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._generator.note_problem(f"{self.name}: {type(error).__name__}: {error}")

    async def _live(self) -> None:
        try:
            while True:
                await self.gate.wait_open()
                try:
                    async with asyncio.timeout(ATTACH_WITHIN_S):
                        await self.client.attach()
                except (ConnectionLost, OSError, TimeoutError) as error:
                    self._on_session("refused", {"reason": str(error) or "no answer in time"})
                    await asyncio.sleep(AGAIN_S)
                    continue
                self._on_session("attached", {"source": self.source()})
                self._on_session("lost", {"reason": await self._serve_until_lost()})
        finally:
            with suppress(ConnectionLost, OSError, TimeoutError):
                async with asyncio.timeout(LEAVE_WITHIN_S):
                    await self.client.leave()

    async def _serve_until_lost(self) -> str:
        """Serve until the connection is lost or the gate shut, and return the reason."""
        served = asyncio.ensure_future(self.serve_connection())
        shut = asyncio.ensure_future(self.gate.wait_shut())
        try:
            either: set[asyncio.Future[Any]] = {served, shut}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if served.done():
                return served.result()
        finally:
            for task in (served, shut):
                task.cancel()
            await asyncio.gather(served, shut, return_exceptions=True)
        await self.client.drop()
        return "refused"

    def source(self) -> SourceId | None:
        """Return the source of its publications, or None."""
        return None

    async def serve_connection(self) -> str:
        """Serve until the connection is lost, and return the reason."""
        raise NotImplementedError


class SystemPublisher(SystemLoadClient, PublisherClient):
    """A publisher."""

    def __init__(self, generator: SystemLoad, setting: PublisherSetting, number: int) -> None:
        tables = generator.tables_for(setting.size_bytes)
        PublisherClient.__init__(
            self, generator, setting, number, tables, generator.fence_blob,
            generator.record_publications, generator.samples_of_sent,
        )  # fmt: skip
        self.gate = SystemGate()
        self.client = generator.client(setting, publishes=True)
        self._source = generator.source_of(setting)
        self.outgoing = OutgoingPublications(
            self.client,
            self._source,
            setting.client,
            generator.topics_of_publication,
            lambda sequence: self._on_acknowledged(sequence, sequence),
        )
        self.load.client = self.outgoing

    def source(self) -> SourceId:
        return self._source

    async def serve_connection(self) -> str:
        self.outgoing.attached = True
        if not self._generator.system.resends:
            self.outgoing.send_again()
        self.pump(time.monotonic_ns())
        lost = asyncio.ensure_future(self.client.wait_lost())
        try:
            return await self.outgoing.repeat_until_lost(lost)
        finally:
            lost.cancel()
            self.outgoing.attached = False
            if not self._generator.system.resends:
                self.outgoing.stop()


class SystemSubscriber(SystemLoadClient, SubscriberClient):
    """A subscriber with its only subscription.

    Attributes:
        places: received places of its topics.
    """

    def __init__(self, generator: SystemLoad, setting: SubscriberSetting, number: int) -> None:
        SubscriberClient.__init__(self, generator, setting, number)
        self.gate = SystemGate()
        self.client = generator.client(setting, publishes=False)
        self._topics = generator.topics
        if generator.topic is not None:
            wanted = topics_of(setting.predicate, generator.topic, generator.topics)
            assert wanted is not None, setting.predicate
            self._topics = wanted
        self._fences = FenceCopies(self._topics)
        self.places = Places()
        self._requested = asyncio.Event()

    def subscribe(self) -> None:
        if not self._issued_ns:
            self._issued_ns = time.monotonic_ns()
            self._requested.set()

    async def serve_connection(self) -> str:
        lost = asyncio.ensure_future(self.client.wait_lost())
        taking = asyncio.ensure_future(self._take())
        try:
            either: set[asyncio.Future[Any]] = {lost, taking}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                await taking
            return await lost
        except ConnectionLost as error:
            return str(error)
        finally:
            for task in (lost, taking):
                task.cancel()
            await asyncio.gather(lost, taking, return_exceptions=True)

    async def _take(self) -> None:
        await self._requested.wait()
        await self.client.subscribe(self._topics)
        self._on_subscription(1, "started")
        while True:
            deliveries = await self.client.receive()
            now_ns = time.monotonic_ns()
            for delivery in deliveries:
                self._take_in(delivery, now_ns)
            # Acknowledged deliveries are with the operating system, and survive this process.
            self._generator.files.flush("deliveries")
            await self.client.acknowledge(deliveries)

    def _take_in(self, delivery: Delivery, received_ns: int) -> None:
        self.processed += 1
        try:
            run, place = unpack(delivery.body)
        except NotOurs as error:
            self._generator.note_problem(f"{self.name}: {delivery.topic}: {error}")
            return
        self.places.take(run.source, delivery.topic, place)
        is_fence = self._generator.is_fence(run.blob(0))
        if not is_fence or self._fences.is_complete(run.source, run.first, delivery.topic):
            self._generator.receiver.receive(self._number, run, received_ns)


def run_system_load(mapping: dict[str, Any]) -> None:
    """Run a load generator for a system until SIGTERM (role "system-load" of the agent)."""
    about = mapping["system"]
    setting = LoadSetting.from_mapping({k: v for k, v in mapping.items() if k != "system"})
    asyncio.run(_as_guest(lambda: SystemLoad(setting, about)))


async def _as_guest(make: Callable[[], SystemLoad]) -> None:
    """Run a load generator's trio in this thread, beside the asyncio loop."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[Any] = loop.create_future()
    trio.lowlevel.start_guest_run(
        make().run,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=over.set_result,
        host_uses_signal_set_wakeup_fd=True,
    )
    (await over).unwrap()
