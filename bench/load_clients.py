"""The clients of a load generator: sessions with brokers, and what comes over them.

The decisions are the client library's (`brokerd.client.core`). Here is its shell: it hands
whole received chunks to the core, and writes whatever has gathered while the last write was in
flight, so that its cost is per run and not per message.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from bench.content import ContentTables
from bench.publishing import PublisherLoad, PublisherSetting
from bench.receiving import SubscriberSetting
from brokerd.client.core import (
    Attached,
    ClientCore,
    ClientEvent,
    PublicationsDone,
    Received,
    RequestRefused,
    RetryLater,
    SubscriptionAnswered,
)
from brokerd.config import SECOND_NS, SessionParameters
from brokerd.errors import RemoteProtocolError
from brokerd.history.records import ACKNOWLEDGED
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import PublicationRun
from brokerd.sessions.failure_detector import FailureDetector
from brokerd.sessions.framing import FrameDecoder
from brokerd.sessions.messages import Farewell, Heartbeat, Hello
from brokerd.sessions.session import client_hello
from brokerd.wire.codec import decode, encode

if TYPE_CHECKING:
    from bench.load_generator import LoadGenerator

RECEIVE_BYTES = 1 << 18
CONNECT_TIMEOUT_S = 2.0
RETRY_FIRST_S, RETRY_LIMIT_S = 0.05, 1.0

_HEARTBEAT = b"".join(encode(Heartbeat()))

logger = logging.getLogger(__name__)


class LoadClient:
    """One client of one broker, for as long as the load generator keeps it.

    Attributes:
        name: as logs have it.
        core: the library's decisions.
    """

    def __init__(
        self,
        generator: "LoadGenerator",
        *,
        name: str,
        client: str,
        broker: str,
        address: str,
        publishes: bool,
    ) -> None:
        self.generator = generator
        self.name = name
        self.broker = broker
        self.core = ClientCore(client, publishes=publishes)
        self._address = address
        self._session = 0
        self._to_write = trio.Event()
        self._session_scope = trio.CancelScope()
        self._parameters = SessionParameters()

    @property
    def is_known(self) -> bool:
        """Whether its broker knows it, on the session it has now."""
        return self.core.attached

    def wake(self) -> None:
        """Let the writer look what there is to send."""
        self._to_write.set()

    def reconnect(self) -> None:
        """End the session, if there is one, and open another."""
        self._session_scope.cancel()

    async def run(self) -> None:
        """Keep a session until cancelled."""
        pause_s = RETRY_FIRST_S
        while True:
            reason = "closed by us"
            established_ns = 0
            try:
                stream, decoder = await self._open()
                established_ns = self._note_session("up", "")
                pause_s = RETRY_FIRST_S
                self.core.on_established()
                reason = await self._serve(stream, decoder)
            except (OSError, trio.BrokenResourceError) as error:
                reason = str(error) or type(error).__name__
            except RemoteProtocolError as error:
                reason = error.reason
                self.generator.note_problem(f"{self.name}: {error.reason}")
            finally:
                self.core.on_lost()
                if established_ns:
                    self._note_session("down", reason)
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_LIMIT_S)

    def _note_session(self, event: str, reason: str) -> int:
        now_ns = time.monotonic_ns()
        line = {"t_ns": now_ns, "client": self.name, "broker": self.broker, "event": event}
        line |= {"session": self._session, "reason": reason}
        self.generator.files.write_line("sessions", line)
        return now_ns

    # ------------------------------------------------------------ one session

    async def _open(self) -> tuple[trio.SocketStream, FrameDecoder]:
        host, _, port = self._address.rpartition(":")
        with trio.fail_after(CONNECT_TIMEOUT_S):
            stream = await trio.open_tcp_stream(host, int(port))
            self._session += 1
            setting = self.generator.setting
            hello = client_hello(self.core.name, setting.deployment_id, 1, self._session)
            decoder = FrameDecoder()
            try:
                await stream.send_all(b"".join(encode(hello)))
                while (frame := decoder.next_frame()) is None:
                    chunk = await stream.receive_some(RECEIVE_BYTES)
                    if not chunk:
                        raise OSError("closed before it said Hello")
                    decoder.feed(bytes(chunk))
                answer = decode(*frame)
                if isinstance(answer, Farewell):
                    raise RemoteProtocolError(self.broker, f"{answer.kind}: {answer.reason}")
                if not isinstance(answer, Hello):
                    raise RemoteProtocolError(self.broker, f"{type(answer).__name__} before Hello")
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
        decoder.limit_bytes = self._parameters.frame_limit_bytes
        return stream, decoder

    async def _serve(self, stream: trio.SocketStream, decoder: FrameDecoder) -> str:
        """Read and write until the session ends; returns why."""
        detector = FailureDetector(self._parameters, time.monotonic_ns())
        reasons: list[str] = []
        async with stream:
            try:
                async with trio.open_nursery() as nursery:
                    self._session_scope = nursery.cancel_scope
                    nursery.start_soon(self._write, stream)
                    nursery.start_soon(self._watch, detector, reasons, nursery.cancel_scope)
                    reasons.append(await self._read(stream, decoder, detector))
                    nursery.cancel_scope.cancel()
            except* (OSError, trio.BrokenResourceError) as group:
                reasons.append(str(group.exceptions[0]))
        return reasons[0] if reasons else "closed by us"

    async def _read(
        self, stream: trio.SocketStream, decoder: FrameDecoder, detector: FailureDetector
    ) -> str:
        while True:
            # What came together with the Hello is still in the decoder the first time.
            now_ns = time.monotonic_ns()
            while (frame := decoder.next_frame()) is not None:
                message = decode(*frame, self.broker)
                if isinstance(message, Heartbeat):
                    continue
                if isinstance(message, Farewell):
                    return f"{message.kind}: {message.reason}"
                self.on_message(message, now_ns)
            self.on_chunk_end(now_ns)
            self._to_write.set()
            chunk = await stream.receive_some(RECEIVE_BYTES)
            if not chunk:
                return "closed by the broker"
            detector.heard()
            decoder.feed(bytes(chunk))

    async def _write(self, stream: trio.SocketStream) -> None:
        heartbeat_s = self._parameters.heartbeat_ns / SECOND_NS
        next_beat = trio.current_time() + heartbeat_s
        while True:
            self._to_write = trio.Event()
            pieces = [
                piece for message in self.core.messages_to_send() for piece in encode(message)
            ]
            if trio.current_time() >= next_beat:
                pieces.insert(0, _HEARTBEAT)
                next_beat = trio.current_time() + heartbeat_s
            if pieces:
                await stream.send_all(b"".join(pieces))
                continue
            with trio.move_on_at(next_beat):
                await self._to_write.wait()

    async def _watch(
        self, detector: FailureDetector, reasons: list[str], scope: trio.CancelScope
    ) -> None:
        while True:
            await trio.sleep(detector.tick_ns / SECOND_NS)
            if detector.check(time.monotonic_ns()):
                reasons.append("silent")
                scope.cancel()

    # ------------------------------------------------------------ what came

    def on_message(self, message: Any, now_ns: int) -> None:
        """A message of the session, which the library makes events of."""
        for event in self.core.on_message(message):
            self.on_event(event, now_ns)

    def on_event(self, event: ClientEvent, now_ns: int) -> None:
        """Something the library says."""
        if isinstance(event, RequestRefused):
            refused = event.refused
            self.generator.note_problem(f"{self.name}: {refused.request} refused: {refused.reason}")
        elif isinstance(event, RetryLater):
            self.generator.retry_later(self, event.refused.number)

    def on_chunk_end(self, now_ns: int) -> None:
        """Everything that was received together has been handed over."""


class PublisherClient(LoadClient):
    """A publisher and its client."""

    def __init__(
        self,
        generator: "LoadGenerator",
        setting: PublisherSetting,
        number: int,
        tables: ContentTables,
        fence_blob: bytes,
        record: Callable[[bytes | bytearray], None],
    ) -> None:
        super().__init__(
            generator,
            name=setting.name,
            client=setting.client,
            broker=setting.broker,
            address=setting.address,
            publishes=True,
        )
        self.load = PublisherLoad(setting, self.core, tables, fence_blob, record)
        self._number = number

    @property
    def is_known(self) -> bool:
        return self.core.attached and bool(self.load.identity)

    def describe(self) -> dict[str, Any]:
        """What others must know of it."""
        load = self.load
        return {
            "name": load.setting.name,
            "identity": load.identity,
            "incarnation": load.incarnation,
            "index": load.setting.index,
            "size_bytes": load.setting.size_bytes,
            "fences": load.fences,
        }

    def pump(self, now_ns: int) -> None:
        """Hand over what is due, and see that numbers stay reserved."""
        self.load.pump(now_ns)
        if self.load.wants_numbers():
            self.generator.reserve_wanted.set()
        self.wake()

    def on_event(self, event: ClientEvent, now_ns: int) -> None:
        match event:
            case Attached(source):
                assert source is not None, f"{self.name} publishes and has no source"
                if not self.load.identity:
                    seed = self.generator.setting.seed
                    self.load.identified(source.publisher, source.incarnation, self._number, seed)
            case PublicationsDone(first, last):
                row = self.load.acknowledged_row(first, last, now_ns, ACKNOWLEDGED)
                self.generator.files.append("acks", row)
            case _:
                super().on_event(event, now_ns)

    def on_chunk_end(self, now_ns: int) -> None:
        self.pump(now_ns)


class SubscriberClient(LoadClient):
    """A subscriber with its one subscription.

    Attributes:
        is_started: whether its broker has said that the subscription has started.
    """

    def __init__(self, generator: "LoadGenerator", setting: SubscriberSetting, number: int) -> None:
        super().__init__(
            generator,
            name=setting.name,
            client=setting.client,
            broker=setting.broker,
            address=setting.address,
            publishes=False,
        )
        self.is_started = False
        self._setting = setting
        self._number = number
        self._issued_ns = 0

    def subscribe(self) -> None:
        """Subscribe, once."""
        if not self._issued_ns:
            self._issued_ns = time.monotonic_ns()
            text = self._setting.predicate_with_fence(self.generator.setting.run_id)
            self.core.subscribe(parse_predicate(text))
            self.wake()

    def on_message(self, message: Any, now_ns: int) -> None:
        duplicates = self.core.duplicates
        events = self.core.on_message(message)
        if self.core.duplicates > duplicates:
            self._note_withheld(message.run, events, now_ns)
        for event in events:
            self.on_event(event, now_ns)

    def _note_withheld(self, run: PublicationRun, events: list[ClientEvent], now_ns: int) -> None:
        """Write down what the library keeps from the application because it has had it."""
        given = {
            sequence
            for event in events
            if isinstance(event, Received)
            for delivery in event.deliveries
            for sequence in delivery.run.sequences
        }
        positions = [place for place, n in enumerate(run.sequences) if n not in given]
        self.generator.receiver.note_withheld(self._number, run.select(positions), now_ns)

    def on_event(self, event: ClientEvent, now_ns: int) -> None:
        match event:
            case Received(deliveries, serial):
                for delivery in deliveries:
                    self.generator.receiver.receive(self._number, delivery.run, now_ns)
                self.core.take(serial)
            case SubscriptionAnswered(_, state):
                if state == "started" and not self.is_started:
                    self.is_started = True
                    self._write_down(now_ns)
            case _:
                super().on_event(event, now_ns)

    def _write_down(self, accepted_ns: int) -> None:
        setting = self._setting
        self.generator.files.write_line(
            "subscriptions",
            {
                "sub_id": setting.subscription,
                "subscriber": setting.name,
                "broker": setting.broker,
                "predicate": setting.predicate,
                "t_issued_ns": self._issued_ns,
                "t_accepted_ns": accepted_ns,
            },
        )
