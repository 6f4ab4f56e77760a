"""The clients of a load generator: the client library, with a log of sessions and deliveries."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import trio

from bench.load.content import ContentTables
from bench.load.load_files import ClientHost
from bench.load.publishers import PublisherLoad, PublisherSetting
from bench.load.records import LatencySamples
from bench.load.subscribers import SubscriberSetting
from brokerd.client.client import Callbacks, Client, ClientError, Gate, connect
from brokerd.client.events import GapAnnounced
from brokerd.history.records import ACKNOWLEDGED
from brokerd.model.client_messages import Deliveries, Notice
from brokerd.model.identity import SourceId

DETACH_TIMEOUT_S = 2.0
_RECEIVED_AT_ONCE = 64
"""Number of runs after which other tasks may run."""


class LoadClient:
    """A client of one broker, for the time of the load generator.

    Attributes:
        name: name in logs.
        broker: the present broker.
        gate: gate of the connection to the broker.
        session: number of sessions so far.
        attached_ns, lost_ns: begin of the last session, and time of the last loss; 0 for never.
        lost_because: reason of the last loss.
        attach_failure: reason why the last attempt to attach failed; "" without a failure.
        processed: number of runs that the application has processed.
    """

    def __init__(
        self, generator: ClientHost, setting: PublisherSetting | SubscriberSetting
    ) -> None:
        self.name = setting.name
        self.broker = setting.broker
        self.gate = Gate()
        self.session = self.attached_ns = self.lost_ns = self.processed = 0
        self.lost_because = self.attach_failure = ""
        self._generator = generator
        self._client_name = setting.client
        self._addresses = (setting.address, *setting.failover)
        self._client: Client | None = None
        self._serving = trio.CancelScope()
        self._moving_to = ""
        self._is_up = False
        self._has_tried = False

    @property
    def is_known(self) -> bool:
        """True if the client is attached on its present session."""
        return self._client is not None and self._client.attached

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes that arrived and that the application has not processed."""
        return self._client.statistics.waiting_bytes if self._client is not None else 0

    @property
    def leaves_freely(self) -> bool:
        """True if the client keeps its identity at another broker, as a publisher too."""
        return self._client is not None and self._client.leaves_freely

    async def move(self, broker: str, address: str) -> None:
        """Move to another broker; raise ClientError if the broker refuses the client."""
        assert self._client is not None, f"{self.name} is nowhere"
        self._moving_to = broker
        try:
            await self._client.move(address)
        finally:
            self._moving_to = ""

    def leave(self) -> None:
        """Detach from the broker, which then keeps no state; `run` returns after the detachment."""
        self._serving.cancel()

    async def run(self) -> None:
        """Remain connected until `leave`, or until a final refusal."""
        try:
            async with connect(
                self._addresses,
                self._client_name,
                publishes=self.publishes,
                deployment_id=self._generator.setting.deployment_id,
                parameters=self._generator.setting.session,
                tls=self._generator.setting.tls,
                gate=self.gate,
                callbacks=self.callbacks(),
                elsewhere=[*self._generator.setting.addresses],
                unreachable_after_s=math.inf,  # brokers fail here on purpose
            ) as client:
                self._client = client
                with self._serving:
                    await self.serve(client)
                # Without a detachment the broker would keep the subscriptions for a return of
                # the client, and hold publications of the next run.
                with trio.move_on_after(DETACH_TIMEOUT_S):
                    await client.detach(drain=False)
        except ClientError as error:
            self._generator.note_problem(f"{self.name}: {error}")
        finally:
            self._start_next_client()

    def _start_next_client(self) -> None:
        """Let the next client begin, after the first attempt of this client."""
        if not self._has_tried:
            self._has_tried = True
            self._generator.beginning.release()

    publishes = False

    async def serve(self, client: Client) -> None:
        """Serve the client while it is connected."""
        raise NotImplementedError

    def callbacks(self) -> Callbacks:
        return Callbacks(on_session=self._on_session, on_refused=self._on_refused)

    def _on_session(self, change: str, details: Mapping[str, Any]) -> None:
        self._start_next_client()
        if change == "attached":
            self._on_attached()
            self.on_attached(details["source"])
        elif change == "moved":
            address = details["address"]
            to = self._moving_to or self._generator.setting.addresses.get(address, address)
            self._moving_to = ""
            if self._is_up:
                self._on_lost(f"moved to {to}")
            self.broker = to
            self._on_attached()
        elif change == "lost" and self._is_up:
            self._on_lost(details["reason"])
        else:  # the attempt failed; the library tries again
            place = f"{details['address']}: " if details.get("address") else ""
            self.attach_failure = f"{place}{details['reason']}"

    def _on_attached(self) -> None:
        self.session += 1
        self._is_up = True
        self.attached_ns = time.monotonic_ns()
        self._generator.files.write_session(self, self.attached_ns, "up", "")

    def _on_lost(self, reason: str) -> None:
        self._is_up = False
        self.lost_ns, self.lost_because = time.monotonic_ns(), reason
        self._generator.files.write_session(self, self.lost_ns, "down", reason)

    def _on_refused(self, request: str, number: int, reason: str) -> None:
        self._generator.note_problem(f"{self.name}: {request} refused: {reason}")

    def on_attached(self, source: SourceId | None) -> None:
        """Handle the attachment of the client on a new session."""


class PublisherClient(LoadClient):
    """A publisher and its client.

    Attributes:
        load: the publications of the publisher.
    """

    publishes = True

    def __init__(
        self,
        generator: ClientHost,
        setting: PublisherSetting,
        number: int,
        tables: ContentTables,
        fence_blob: bytes,
        record: Callable[[bytes | bytearray], None],
        samples: LatencySamples,
    ) -> None:
        super().__init__(generator, setting)
        self.load = PublisherLoad(setting, tables, fence_blob, record, samples)
        self._number = number

    def describe(self) -> dict[str, Any]:
        """Return the description of the publisher for other load generators."""
        load = self.load
        return {
            "name": load.setting.name,
            "identity": load.identity,
            "incarnation": load.incarnation,
            "index": load.setting.index,
            "size_bytes": load.setting.size_bytes,
            "fences": load.fences,
        }

    async def serve(self, client: Client) -> None:
        self.load.client = client
        await trio.sleep_forever()

    def pump(self, now_ns: int) -> None:
        """Send due publications, and request a reservation of numbers if necessary."""
        self.load.pump(now_ns)
        if self.load.wants_numbers():
            self._generator.reserve_wanted.set()

    def callbacks(self) -> Callbacks:
        callbacks = super().callbacks()
        callbacks.on_acknowledged = self._on_acknowledged
        return callbacks

    def on_attached(self, source: SourceId | None) -> None:
        assert source is not None, f"{self.name} publishes and has no source"
        if not self.load.identity:
            seed = self._generator.setting.seed
            self.load.on_identity(source.publisher, source.incarnation, self._number, seed)
        self.pump(time.monotonic_ns())

    def _on_acknowledged(self, first: int, last: int) -> None:
        now_ns = time.monotonic_ns()
        row = self.load.take_acknowledged_row(first, last, now_ns, ACKNOWLEDGED)
        self._generator.files.append("acks", row)
        self.pump(now_ns)


class SubscriberClient(LoadClient):
    """A subscriber with its only subscription.

    Attributes:
        is_started: True after the broker has announced the start of the subscription.
        absences: begin and end of each absence under churn, in ns from the start of the
            measurement.
    """

    def __init__(self, generator: ClientHost, setting: SubscriberSetting, number: int) -> None:
        super().__init__(generator, setting)
        self.is_started = False
        self.absences = setting.absences
        self._setting = setting
        self._number = number
        self._issued_ns = 0
        self._may_take = trio.Event()
        self._may_take.set()

    def stop_taking(self) -> None:
        """Stop processing, and so acknowledging, until `take_on`."""
        self._may_take = trio.Event()

    def take_on(self) -> None:
        """Process waiting deliveries, and resume."""
        self._may_take.set()

    def subscribe(self) -> None:
        """Subscribe, at most once."""
        if self._client is not None and not self._issued_ns:
            self._issued_ns = time.monotonic_ns()
            run_id = self._generator.setting.run_id
            self._client.subscribe_nowait(self._setting.predicate_with_fence(run_id))

    async def serve(self, client: Client) -> None:
        turn = self._generator.turn
        while True:
            received = await client.receive(_RECEIVED_AT_ONCE)
            now_ns = time.monotonic_ns()
            self.processed += len(received)
            for deliveries in received:
                self._take_down(deliveries, now_ns)
            # Not in between: records of other clients would precede with later stamps.
            if turn.is_over(time.monotonic_ns() - now_ns):
                await trio.lowlevel.checkpoint()
                turn.renew()
            if not self._may_take.is_set():
                await self._may_take.wait()

    def _take_down(self, deliveries: Deliveries, received_ns: int) -> None:
        receiver = self._generator.receiver
        if deliveries.redelivered:
            receiver.note_redelivered(self._number, deliveries.run, received_ns)
        else:
            receiver.receive(self._number, deliveries.run, received_ns)

    def callbacks(self) -> Callbacks:
        callbacks = super().callbacks()
        callbacks.on_subscription = self._on_subscription
        callbacks.on_withheld = self._on_withheld
        callbacks.on_notice = self._on_notice
        callbacks.on_gap = self._on_gap
        return callbacks

    def _on_notice(self, notice: Notice) -> None:
        self._generator.receiver.note_notice(self._number, notice, time.monotonic_ns())

    def _on_gap(self, gap: GapAnnounced) -> None:
        self._generator.receiver.note_gap(self._number, gap, time.monotonic_ns())

    def _on_withheld(self, deliveries: Deliveries) -> None:
        now_ns = time.monotonic_ns()
        self._generator.receiver.note_withheld(self._number, deliveries.run, now_ns)

    def _on_subscription(self, number: int, state: str) -> None:
        if state != "started" or self.is_started:
            return
        self.is_started = True
        self._generator.files.write_subscription(self._setting, self._issued_ns)
