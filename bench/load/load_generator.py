"""A load generator: one process with many publishers and subscribers, controlled by commands.

An agent starts the process, which obeys a control socket. Commands begin actions; `status` contains
their progress, so that no answer has to wait for the brokers:

    connect          attach every client
    know_publishers  announce all publishers to the subscribers
    subscribe        subscribe all clients without a subscription
    fence            each publisher publishes a fence, after all due publications
    expect_fences    announce the fences' numbers to the subscribers
    start            publish by the schedule from t0_ns on until end_ns
    churn            disconnect subscribers by the workload, from measure_from_ns on
    stop             offer nothing more; due publications are still sent
    fault_apply      apply a fault to a client; also fault_look, fault_renew and fault_heal
    latency_samples  totals, and recent stamps of a sample, for live display
    finish           close the clients and all files, and return the online checker's counts

Only `finish` closes logs in order. A process with another end leaves sidecars that record an
incomplete log, and a run with an incomplete log is no evidence.
"""

import heapq
import logging
import signal
import time
from array import array
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

import trio

from bench.load.client_faults import AnyClient, Churn, ClientFaults
from bench.load.content import (
    FENCE,
    ContentTables,
    NumberedBlobs,
    draw_attribute_sets,
    draw_payloads,
)
from bench.load.load_clients import PublisherClient, SubscriberClient
from bench.load.load_files import LoadFiles, LoadSetting
from bench.load.pacing import Alarm, Histogram, Turn, intended_offsets, shaped_offsets
from bench.load.publishers import PublisherSetting
from bench.load.records import LatencySamples
from bench.load.remote_subscriber import ProcessSubscriber
from bench.load.subscribers import Receiver, SourceDirectory, SubscriberSetting
from brokerd.errors import ControlError
from brokerd.runtime.control import serve_control
from brokerd.runtime.memory import resident_bytes
from brokerd.wire.attributes import EncodedAttributes, encode_attributes

BEGINNING_AT_ONCE = 64
"""Clients that make their first attempt at the same time.

A broker has room for some hundreds of unidentified sessions, and closes the oldest beyond. A
thousand simultaneous attempts would all begin again and again.
"""
FLUSH_S = 1.0
LEAVE_TIMEOUT_S = 5.0
TURN_NS = 50_000_000
_GATHERING = ((20_000, 1_000_000), (5_000, 250_000))
"""Publications per second, and the least time between two wake-ups at this rate or above, in ns."""

logger = logging.getLogger(__name__)


class LoadGenerator:
    """The process, with its clients, its files, and its commands.

    Attributes:
        setting: the settings.
        reserve_wanted: set when a publisher runs short of reserved sequence numbers.
        turn: time for which subscribers record deliveries before the control socket is served.
        beginning: semaphore of clients in their first attempt; each client releases it afterwards.
        files: the record files.
        fence_blob: the attributes of this run's fences.
        samples_of_sent: samples of recently sent publications.
        receiver: records and judges deliveries.
    """

    def __init__(self, setting: LoadSetting) -> None:
        self.setting = setting
        self.reserve_wanted = trio.Event()
        self.turn = Turn(TURN_NS)
        self.beginning = trio.Semaphore(BEGINNING_AT_ONCE)
        self._attribute_sets = draw_attribute_sets(
            setting.seed, dict(setting.attributes), setting.sets
        )
        self._blobs = EncodedAttributes(map(encode_attributes, self._attribute_sets))
        self._numbered = NumberedBlobs.from_workload(
            self._attribute_sets, dict(setting.attributes), encode_attributes
        )
        self.fence_blob = encode_attributes({FENCE: setting.run_id})
        self._tables: dict[int, ContentTables] = {}
        self._directory = SourceDirectory(setting.brokers, setting.seed, self._tables)
        self.files = LoadFiles(setting)
        self.samples_of_sent, self._received = LatencySamples(), LatencySamples()
        self.receiver = Receiver(
            setting.subscribers, self._attribute_sets, self._blobs, self.fence_blob,
            self._directory, partial(self.files.append, "deliveries"), self._received,
            self.files.write_line, partial(self.files.append, "positions"),
            in_total_order=setting.order == "total",
            may_overtake=setting.may_overtake,
            level=setting.records,
        )  # fmt: skip
        self._publishers = [
            self._publisher(publisher, number)
            for number, publisher in enumerate(setting.publishers)
        ]
        self._subscribers = [
            self._subscriber(subscriber, number)
            for number, subscriber in enumerate(setting.subscribers)
        ]
        self._clients: list[AnyClient] = [*self._publishers, *self._subscribers]
        self._faults = ClientFaults(
            {client.name: client for client in self._clients}, self.start_task, self.note_problem
        )
        self._churn = Churn(self._subscribers, self.start_task, self.files.write_line)
        self._expected_fences: list[tuple[str, int, int]] = []
        self._problems: dict[str, int] = {}
        self._state = "idle"
        self._lateness = Histogram()
        self._stated_lateness = Histogram()
        self._second = _Second(time.monotonic_ns(), time.process_time())
        self._nursery: trio.Nursery
        self._clients_scope = trio.CancelScope()
        self._clients_ended = trio.Event()
        self._schedule_scope = trio.CancelScope()
        self._finishing = trio.Lock()
        self._syncing = trio.Lock()

    def _publisher(self, setting: PublisherSetting, number: int) -> PublisherClient:
        tables = self.tables_for(setting.size_bytes)
        return PublisherClient(
            self, setting, number, tables, self.fence_blob, self.record_publications,
            self.samples_of_sent,
        )  # fmt: skip

    def _subscriber(
        self, setting: SubscriberSetting, number: int
    ) -> SubscriberClient | ProcessSubscriber:
        kind = ProcessSubscriber if setting.own_process else SubscriberClient
        return kind(self, setting, number)

    async def run(self) -> None:
        """Obey the control socket until SIGTERM; then end at once, with closed files or not."""
        commands = {
            "status": self._on_status,
            "latency_samples": self._on_latency_samples,
            "connect": self._on_connect,
            "publishers": self._on_publishers,
            "know_publishers": self._on_know_publishers,
            "subscribe": self._on_subscribe,
            "fence": self._on_fence,
            "expect_fences": self._on_expect_fences,
            "start": self._on_start,
            "churn": self._churn.on_churn,
            "stop": self._on_stop,
            "fault_apply": self._faults.on_apply,
            "fault_look": self._faults.on_look,
            "fault_renew": self._faults.on_renew,
            "fault_heal": self._faults.on_heal,
            "finish": self._on_finish,
        }
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    await nursery.start(serve_control, self.setting.control_socket, commands)
                    nursery.start_soon(self._write_statistics)
                    nursery.start_soon(self._reserve_numbers)
                    async for _ in signals:
                        break
                nursery.cancel_scope.cancel()
        finally:
            self.files.abandon()

    # ------------------------------------------------------------ commands

    async def _on_status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        unfenced = [client for client in self._publishers if client.load.is_fence_due]
        unknown = [client for client in self._clients if not client.is_known]
        unstarted = [client for client in self._subscribers if not client.is_started]
        return {
            "process": self.setting.process,
            "state": self._state,
            "now_ns": time.monotonic_ns(),
            "not_attached": [client.name for client in unknown],
            "attach_failure": next((why for each in unknown if (why := each.attach_failure)), ""),
            "not_started": [client.name for client in unstarted],
            "not_fenced": [client.name for client in unfenced],
            "fences_missing": self.receiver.checker.fences_missing(self._expected_fences),
            **self._sum_publishers(),
            "delivered": self.receiver.delivered,
            "withheld": self.receiver.withheld,
            "lateness": self._stated_lateness.snapshot(),
            "faults": self._faults.active,
            "problems": [f"{text} ({times} times)" for text, times in self._problems.items()],
        }

    async def _on_latency_samples(self, arguments: dict[str, Any]) -> dict[str, Any]:
        after_ns = arguments.get("after_ns", 0)
        if type(after_ns) is not int:
            raise ControlError("user", f"after_ns = {after_ns!r}; a time of this machine's clock")
        return {
            "process": self.setting.process,
            "run_id": self.setting.run_id,
            "state": self._state,
            "now_ns": time.monotonic_ns(),
            **self._sum_publishers(),
            "delivered": self.receiver.delivered,
            "sent_rows": self.samples_of_sent.read_since(after_ns),
            "received_rows": self._received.read_since(after_ns),
        }

    async def _on_connect(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._state == "idle":
            self._state = "connected"
            self._nursery.start_soon(self._run_clients)
        return {}

    async def _on_publishers(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"publishers": [client.describe() for client in self._publishers]}

    async def _on_know_publishers(self, arguments: dict[str, Any]) -> dict[str, Any]:
        for publisher in arguments["publishers"]:
            self.tables_for(publisher["size_bytes"])
            self._directory.register(
                publisher["identity"], publisher["index"], publisher["size_bytes"]
            )
        return {}

    async def _on_subscribe(self, arguments: dict[str, Any]) -> dict[str, Any]:
        for client in self._subscribers:
            client.subscribe()
        return {}

    async def _on_fence(self, arguments: dict[str, Any]) -> dict[str, Any]:
        now_ns = time.monotonic_ns()
        for client in self._publishers:
            client.load.offer_fence()
            client.pump(now_ns)
        return {}

    async def _on_expect_fences(self, arguments: dict[str, Any]) -> dict[str, Any]:
        for fence in arguments["fences"]:
            key = (fence["publisher"], fence["incarnation"], fence["sequence"])
            self.receiver.checker.add_fence(*key)
            self._expected_fences.append(key)
        return {}

    async def _on_start(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._state != "connected":
            raise ControlError("user", f"cannot start: {self.setting.process} is {self._state}")
        self._state = "started"
        self._nursery.start_soon(
            self._publish, arguments["t0_ns"], arguments["measure_from_ns"], arguments["end_ns"]
        )
        return {}

    async def _on_stop(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self._schedule_scope.cancel()
        for client in self._publishers:
            client.load.is_flooding = False
        if self._state == "started":
            self._state = "stopped"
        return {}

    async def _on_finish(self, arguments: dict[str, Any]) -> dict[str, Any]:
        async with self._finishing:
            if self._state != "finished":
                await self._finish()
        return {
            "online": self.receiver.checker.report()["totals"],
            "digests": await trio.to_thread.run_sync(self.files.digests),
            **self._sum_publishers(),
            "delivered": self.receiver.delivered,
            "withheld": self.receiver.withheld,
            "late_p99_ns": self._lateness.quantile_ns(0.99),
            "late_max_ns": self._lateness.largest_ns,
            "problems": [f"{text} ({times} times)" for text, times in self._problems.items()],
        }

    async def _finish(self) -> None:
        """Detach from the brokers and close all files in order."""
        await self._on_stop({})
        for client in self._clients:
            client.leave()
        if self._state != "idle":
            with trio.move_on_after(LEAVE_TIMEOUT_S):
                await self._clients_ended.wait()
        self._clients_scope.cancel()
        self._state = "finished"
        self._write_second()
        for publisher in self._publishers:
            self._lateness.add_all(publisher.load.counts.measured_lateness)
        report = None
        if self._subscribers:
            report = {
                **self.receiver.checker.report(),
                "run_id": self.setting.run_id,
                "streams": self.receiver.positions_by_stream,
            }
        async with self._syncing:
            self.files.close(self._publisher_tables(), self._delivery_tables(), report)

    # ------------------------------------------------------------ clients

    async def _run_clients(self) -> None:
        try:
            with self._clients_scope:
                async with trio.open_nursery() as nursery:
                    for client in self._clients:
                        await self.beginning.acquire()
                        nursery.start_soon(client.run)
        finally:
            self._clients_ended.set()

    def start_task(self, task: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Start a task that lives as long as the load generator."""
        self._nursery.start_soon(task, *arguments)

    def note_problem(self, text: str) -> None:
        """Record a problem for the verdict of the run."""
        if text not in self._problems and len(self._problems) < 100:
            logger.error("%s", text)
        self._problems[text] = self._problems.get(text, 0) + 1

    def record_publications(self, rows: bytes | bytearray) -> None:
        self.files.append("publications", rows)

    def tables_for(self, size_bytes: int) -> ContentTables:
        """Return the contents of publications of this size."""
        tables = self._tables.get(size_bytes)
        if tables is None:
            payloads = draw_payloads(self.setting.seed, size_bytes)
            tables = ContentTables(self._attribute_sets, self._blobs, payloads, self._numbered)
            self._tables[size_bytes] = tables
        return tables

    # ------------------------------------------------------------ publishing

    async def _publish(self, t0_ns: int, measure_from_ns: int, end_ns: int) -> None:
        """Offer every publication at its intended time, from `t0_ns` on until `end_ns`."""
        for client in self._publishers:
            client.load.measure_from_ns = measure_from_ns
        alarm = Alarm()
        try:
            with self._schedule_scope:
                schedules = self._schedules(t0_ns, end_ns - t0_ns)
                await alarm.sleep_until(t0_ns)
                self._set_flooding(True)
                quantum_ns = self._quantum_ns()
                while schedules:
                    await alarm.sleep_until(schedules[0].next_ns)
                    now_ns = time.monotonic_ns()
                    while schedules and schedules[0].next_ns <= now_ns:
                        schedule = schedules[0]
                        schedule.client.load.offer(schedule.take_due(now_ns), now_ns)
                        schedule.client.pump(now_ns)
                        if schedule.is_over:
                            heapq.heappop(schedules)
                        else:
                            heapq.heapreplace(schedules, schedule)
                    if quantum_ns:
                        await alarm.sleep_until(now_ns + quantum_ns)
                await alarm.sleep_until(end_ns)
        finally:
            self._set_flooding(False)
            alarm.close()
        if self._state == "started":
            self._state = "stopped"

    def _schedules(self, t0_ns: int, duration_ns: int) -> list["_Schedule"]:
        schedules = []
        for client in self._publishers:
            numerator, denominator = client.load.setting.rate
            if numerator:
                setting = client.load.setting
                if setting.shape:
                    offsets = shaped_offsets(
                        setting.shape,
                        arrivals=setting.arrivals,
                        seed=self.setting.seed,
                        index=setting.index,
                    )
                else:
                    offsets = intended_offsets(
                        numerator=numerator,
                        denominator=denominator,
                        arrivals=setting.arrivals,
                        seed=self.setting.seed,
                        index=setting.index,
                        duration_ns=duration_ns,
                    )
                schedule = _Schedule(client, offsets, t0_ns)
                if not schedule.is_over:
                    schedules.append(schedule)
        heapq.heapify(schedules)
        return schedules

    def _quantum_ns(self) -> int:
        """Return the time for which due publications gather, if single wake-ups cost more."""
        rates = [client.load.setting.rate for client in self._publishers]
        per_second = sum(numerator / denominator for numerator, denominator in rates)
        return next((pause_ns for limit, pause_ns in _GATHERING if per_second >= limit), 0)

    def _set_flooding(self, is_on: bool) -> None:
        now_ns = time.monotonic_ns()
        for client in self._publishers:
            if not client.load.setting.rate[0]:
                client.load.is_flooding = is_on
                client.pump(now_ns)

    async def _reserve_numbers(self) -> None:
        """Keep sequence numbers reserved on disk, ahead of sent publications."""
        while True:
            await self.reserve_wanted.wait()
            self.reserve_wanted = trio.Event()
            wanting = [(client, client.load.wants_numbers()) for client in self._publishers]
            wanting = [(client, up_to) for client, up_to in wanting if up_to]
            now_ns = time.monotonic_ns()
            for client, up_to in wanting:
                self.files.append("intents", client.load.intent_row(up_to, now_ns))
            if wanting:
                await self._sync_intents()
            now_ns = time.monotonic_ns()
            for client, up_to in wanting:
                client.load.reserved = up_to
                client.pump(now_ns)

    async def _sync_intents(self) -> None:
        """Make appended intents durable. Files are not closed meanwhile."""
        async with self._syncing:
            if not self.files.is_closed:
                self.files.flush("intents")
                await trio.to_thread.run_sync(self.files.sync, "intents")

    # ------------------------------------------------------------ records

    async def _write_statistics(self) -> None:
        while True:
            await trio.sleep(FLUSH_S)
            self._write_second()

    def _write_second(self) -> None:
        if self.files.is_closed:
            return
        now_ns, cpu_s = time.monotonic_ns(), time.process_time()
        before, self._second = self._second, _Second(now_ns, cpu_s)
        lateness = Histogram()
        for client in self._publishers:
            lateness.add_all(client.load.take_lateness())
        self._stated_lateness.add_all(lateness)
        late_ns = lateness.quantile_ns(0.99)
        rss_bytes = resident_bytes()
        self.files.write_line(
            "stats",
            {
                "t_ns": now_ns,
                "proc_id": self.setting.process,
                **self._sum_publishers(),
                "late_p99_us": late_ns // 1000,
                "late_max_us": lateness.largest_ns // 1000,
                "delivered": self.receiver.delivered,
                "withheld": self.receiver.withheld,
                "cpu_ratio": (cpu_s - before.cpu_s) * 1e9 / max(1, now_ns - before.at_ns),
                "saturated": late_ns > self.setting.lateness_limit_ns,
                **({} if rss_bytes is None else {"rss_bytes": rss_bytes}),
            },
        )
        self.receiver.settle(now_ns)
        self.files.flush()

    def _sum_publishers(self) -> dict[str, Any]:
        counts = [client.load.counts for client in self._publishers]
        return {
            "offered": sum(each.offered for each in counts),
            "sent": sum(each.sent for each in counts),
            "acknowledged": sum(each.acknowledged for each in counts),
            "rejected": sum(each.rejected for each in counts),
            "backlog": sum(client.load.backlog for client in self._publishers),
            "open": sum(client.load.open for client in self._publishers),
            "blocked_us": sum(each.blocked_ns for each in counts) // 1000,
            "skipped": 0,
        }

    def _publisher_tables(self) -> dict[str, Any]:
        fence = {FENCE: self.setting.run_id}
        return {
            "publishers": [client.load.identity for client in self._publishers],
            "attribute_sets": [*self._attribute_sets, fence],
            "publisher_names": {
                client.load.identity: client.load.setting.name for client in self._publishers
            },
        }

    def _delivery_tables(self) -> dict[str, Any]:
        return {
            "publishers": self._directory.names,
            "subscriptions": self.receiver.subscriptions,
            "partitions": [asdict(partition) for partition in self.receiver.partitions],
            "streams": self.receiver.streams,
            **self.receiver.sample,
        }


class _Schedule:
    """The position of a publisher in its schedule; ordered by the next intended time."""

    def __init__(
        self, client: PublisherClient, offsets: "Iterator[array[int]]", t0_ns: int
    ) -> None:
        self.client = client
        self.is_over = False
        self.next_ns = 0
        self._offsets = offsets
        self._t0_ns = t0_ns
        self._chunk = array("q")
        self._place = 0
        self._advance()

    def __lt__(self, other: Self) -> bool:
        return self.next_ns < other.next_ns

    def take_due(self, now_ns: int) -> "array[int]":
        """Return the intended times up to `now_ns`, of one chunk; `next_ns` is the next time."""
        end = bisect_right(self._chunk, now_ns - self._t0_ns, self._place)
        due = array("q", [self._t0_ns + offset for offset in self._chunk[self._place : end]])
        self._place = end
        self._advance()
        return due

    def _advance(self) -> None:
        if self._place == len(self._chunk):
            chunk = next(self._offsets, None)
            if chunk is None:
                self.is_over = True
                return
            self._chunk, self._place = chunk, 0
        self.next_ns = self._t0_ns + self._chunk[self._place]


@dataclass(frozen=True, slots=True)
class _Second:
    """Time of the last line of statistics, and the processor time until then."""

    at_ns: int
    cpu_s: float


def run_load(mapping: dict[str, Any]) -> None:
    """Run a load generator until SIGTERM (role "load" of the agent)."""
    trio.run(LoadGenerator(LoadSetting.from_mapping(mapping)).run)
