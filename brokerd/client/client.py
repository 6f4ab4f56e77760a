"""The client library on trio: `async with connect(address, name) as client`.

It reconnects by itself, sends again what was not done, and gives each publication once. What
the application hands over while a write is in flight goes out with the next one, as one run;
nothing ever waits for company.
"""

import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import trio

from brokerd.client.core import (
    Announced,
    Attached,
    ClientCore,
    PublicationsDone,
    Received,
    RequestRefused,
    RetryLater,
    SubscriptionAnswered,
    Withheld,
)
from brokerd.config import SECOND_NS, SessionParameters
from brokerd.errors import BrokerError, RemoteProtocolError
from brokerd.model.client_messages import Deliveries, Notice
from brokerd.model.identity import SourceId
from brokerd.model.predicate import Predicate, Scalar
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import Buffer
from brokerd.protocols.interface import LossReason
from brokerd.runtime.connection import (
    CLIENT_MARGIN_BYTES,
    Connection,
    Dial,
    Incoming,
    clock_ns,
    close_stream,
    dial_tcp,
    first_message,
)
from brokerd.sessions.failure_detector import check_interval_ns
from brokerd.sessions.framing import FrameDecoder
from brokerd.sessions.messages import WIRE_VERSION, Farewell, Hello
from brokerd.sessions.session import Session, SessionState, client_hello
from brokerd.wire.attributes import decode_attributes, encode_attributes
from brokerd.wire.codec import encode

WINDOW_PUBLICATIONS: Final = 65_536
INBOX_LIMIT_BYTES: Final = 32 << 20
RECONNECT_FIRST_S: Final = 0.1
RECONNECT_LIMIT_S: Final = 2.0
RETRY_S: Final = 0.2
LEAVING_S: Final = 1.0

_CHECKPOINT_EVERY: Final = 64


class ClientError(BrokerError):
    """The client cannot go on: refused, superseded by another of its name, or at odds."""


@dataclass(frozen=True, slots=True)
class Publication:
    """One delivered publication, taken out of its run."""

    source: SourceId
    sequence: int
    attributes: Mapping[str, Scalar]
    payload: bytes
    subscriptions: tuple[int, ...]


def _nothing(*_: Any) -> None:
    pass


@dataclass(slots=True)
class Callbacks:
    """Called at once and in order while the client works; they must return quickly.

    Attributes:
        on_acknowledged: (first, last): all publications in this range are done, once each.
        on_withheld: publications the duplicate check kept from the application.
        on_notice: matching publications that a partition keeps from a subscription, in order
            with what `receive` returns; the source is heard later, from some publication on.
        on_session: (what, details): "attached" with source and broker_incarnation, "lost" with
            a reason, "failed" with why an attempt came to nothing.
        on_subscription: (number, state).
        on_refused: (request, number, reason): the broker will not do this.
    """

    on_acknowledged: Callable[[int, int], None] = _nothing
    on_withheld: Callable[[Deliveries], None] = _nothing
    on_notice: Callable[[Notice], None] = _nothing
    on_session: Callable[[str, Mapping[str, Any]], None] = _nothing
    on_subscription: Callable[[int, str], None] = _nothing
    on_refused: Callable[[str, int, str], None] = _nothing


@asynccontextmanager
async def connect(
    address: str,
    name: str,
    *,
    publishes: bool = False,
    incarnation: int = 1,
    deployment_id: str = "",
    window: int = WINDOW_PUBLICATIONS,
    parameters: SessionParameters | None = None,
    callbacks: Callbacks | None = None,
    dial: Dial = dial_tcp,
) -> AsyncIterator["Client"]:
    """A client called `name` of the broker at "host:port"; it connects in the background.

    Args:
        publishes: whether it will publish.
        incarnation: of its publication counter, which starts at 1; up by one each time a
            process under this name starts counting anew.
        deployment_id: refuse a broker of another deployment; empty for any.
        window: how many publications may be outstanding before `publish` waits.

    What is raised inside the `async with` comes out as it is. On leaving it, what the broker
    still has to be told is written, but nothing is waited for: `flush` does that.

    Raises:
        ClientError: from any method, once the broker has refused the client for good.
    """
    core = ClientCore(name, publishes=publishes, incarnation=incarnation)
    client = Client(
        core, address, deployment_id, window, parameters or SessionParameters(),
        callbacks or Callbacks(), dial,
    )  # fmt: skip
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client._run)
        try:
            yield client
        except BaseException as error:
            failure = error
        with trio.CancelScope(shield=True):
            await client._leave()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


class Client:
    """One client; made by `connect`.

    Attributes:
        name: at its broker.
    """

    def __init__(
        self,
        core: ClientCore,
        address: str,
        deployment_id: str,
        window: int,
        parameters: SessionParameters,
        callbacks: Callbacks,
        dial: Dial,
    ) -> None:
        self.name = core.name
        self._core = core
        self._address = address
        self._deployment_id = deployment_id
        self._window = window
        self._parameters = parameters
        self._callbacks = callbacks
        self._dial = dial
        self._connection: Connection | None = None
        self._sessions = 0
        self._failure: str | None = None
        self._retries: list[int] = []
        self._started: dict[int, str] = {}
        self._refused: dict[int, str] = {}
        self._inbox: deque[Received | Announced] = deque()
        self._inbox_bytes = 0
        self._taking = 0
        self._handed_on = 0
        self._changed = trio.Event()
        self._arrived = trio.Event()

    # ------------------------------------------------------------ state

    @property
    def attached(self) -> bool:
        """Whether what is handed over now can be sent at once."""
        return self._core.attached

    @property
    def source(self) -> SourceId | None:
        """Under which source its publications go; None before the first attach."""
        return self._core.source

    @property
    def next_sequence(self) -> int:
        """The number of the next publication."""
        return self._core.next_sequence

    @property
    def outstanding(self) -> int:
        """How many publications are not known to be done."""
        return self._core.outstanding

    @property
    def duplicates(self) -> int:
        """How many publications were kept from the application because it had them."""
        return self._core.duplicates

    @property
    def resubmitted(self) -> int:
        """How many publications were sent again."""
        return self._core.resubmitted

    async def wait_attached(self) -> None:
        """Wait until the broker knows this client."""
        while not self._core.attached:
            await self._wait_changed()

    # ------------------------------------------------------------ publishing

    def publish_many_nowait(
        self,
        attribute_table: Sequence[bytes],
        attribute_index: Sequence[int],
        payload_lengths: int | tuple[int, ...],
        payload: Buffer,
    ) -> range:
        """Hand over consecutive publications whatever the window says; returns their numbers.

        Args:
            attribute_table: distinct encoded attribute maps; not all need be used.
            attribute_index: per publication, its place in the table; `bytes` is the fast kind.
            payload_lengths: of each payload, or one for all.
            payload: all payloads, one after the other; must not change afterwards.

        Raises:
            ValueError: a publication is larger than a frame.
        """
        self._check_alive()
        longest = payload_lengths if isinstance(payload_lengths, int) else max(payload_lengths)
        self._check_size(longest + max(map(len, attribute_table)))
        numbers = self._core.publish_many(
            attribute_table, attribute_index, payload_lengths, payload
        )
        self._nudge()
        return numbers

    async def publish_many(
        self,
        attribute_table: Sequence[bytes],
        attribute_index: Sequence[int],
        payload_lengths: int | tuple[int, ...],
        payload: Buffer,
    ) -> range:
        """As `publish_many_nowait`, once the window has room for one of them."""
        await self._wait_for_room()
        return self.publish_many_nowait(attribute_table, attribute_index, payload_lengths, payload)

    async def publish(self, attributes: Mapping[str, Scalar] | bytes, payload: bytes) -> int:
        """Hand over one publication; returns its number.

        `attributes` may be encoded already (`encode_attributes`), which is much faster where
        they repeat.
        """
        await self._wait_for_room()
        blob = attributes if isinstance(attributes, bytes) else encode_attributes(attributes)
        self._check_size(len(blob) + len(payload))
        number = self._core.publish(blob, payload)
        self._nudge()
        return number

    async def flush(self) -> None:
        """Wait until everything published is done, in the sense of the protocol's promise."""
        while self._core.outstanding:
            await self._wait_changed()

    async def _wait_for_room(self) -> None:
        self._check_alive()
        if self._core.outstanding < self._window:
            await trio.lowlevel.checkpoint()
        while self._core.outstanding >= self._window:
            await self._wait_changed()

    def _check_size(self, size_bytes: int) -> None:
        limit = self._parameters.frame_limit_bytes - 2 * CLIENT_MARGIN_BYTES
        if size_bytes > limit:
            raise ValueError(f"a publication of {size_bytes} bytes; at most {limit}")

    # ------------------------------------------------------------ subscribing

    def subscribe_nowait(self, predicate: str | Predicate) -> int:
        """Ask for publications, from now on and after each reconnect; returns a number.

        Raises:
            PredicateError: the predicate cannot be read.
        """
        self._check_alive()
        if isinstance(predicate, str):
            predicate = parse_predicate(predicate)
        number = self._core.subscribe(predicate)
        self._nudge()
        return number

    async def subscribe(self, predicate: str | Predicate) -> int:
        """As `subscribe_nowait`, and wait until the subscription has started."""
        number = self.subscribe_nowait(predicate)
        await self.wait_started(number)
        return number

    async def wait_started(self, number: int) -> None:
        """Wait until every broker routes by this subscription.

        Raises:
            ClientError: the broker will not have it.
        """
        while self._started.get(number) != "started":
            if number in self._refused:
                raise ClientError(f"subscription {number} was refused: {self._refused[number]}")
            await self._wait_changed()

    def __aiter__(self) -> "Client":
        return self

    async def __anext__(self) -> Deliveries:
        """The next run of publications, with the numbers of the subscriptions it is for.

        Asking for it says that the application has the one before, for good.
        """
        return (await self.receive(1))[0]

    async def receive(self, limit: int = 1_000) -> list[Deliveries]:
        """What has come, at least one run and up to about `limit`; asking again acknowledges."""
        self._acknowledge_taken()
        self._handed_on += 1
        self._announce_leading()
        if self._inbox and self._handed_on % _CHECKPOINT_EVERY:
            self._check_alive()
        else:
            await trio.lowlevel.checkpoint()
        while not self._inbox:
            self._check_alive()
            self._arrived = trio.Event()
            await self._arrived.wait()
            self._announce_leading()
        taken: list[Deliveries] = []
        while self._inbox and len(taken) < limit:
            received = self._inbox.popleft()
            self._taking = received.serial
            if isinstance(received, Announced):
                self._callbacks.on_notice(received.notice)
                continue
            taken.extend(received.deliveries)
            self._inbox_bytes -= _size(received)
        if self._connection is not None and self._connection.reading_stopped:
            self._connection.wake()
        return taken

    def publications(self) -> "PublicationIterator":
        """Single publications with decoded attributes: convenient, and not the fast way."""
        return PublicationIterator(self)

    def _announce_leading(self) -> None:
        """Tell of notices that nothing the application has not got came before."""
        while self._inbox and isinstance(announced := self._inbox[0], Announced):
            self._inbox.popleft()
            self._callbacks.on_notice(announced.notice)
            self._core.take(announced.serial)
            self._nudge()

    def _acknowledge_taken(self) -> None:
        if self._taking:
            self._core.take(self._taking)
            self._taking = 0
            if self._connection is not None:
                self._connection.flush(clock_ns())

    # ------------------------------------------------------------ what connections tell

    def received(self, connection: Connection, incoming: list[Incoming]) -> None:
        """See connection.Owner."""
        arrived = changed = False
        try:
            for message, _ in incoming:
                for event in self._core.on_message(message.message):
                    if isinstance(event, Received):
                        self._inbox.append(event)
                        self._inbox_bytes += _size(event)
                        arrived = True
                    elif isinstance(event, Announced):
                        self._inbox.append(event)
                        arrived = True
                    else:
                        self._happened(event)
                        changed = True
        except RemoteProtocolError as error:
            connection.end("protocol_error", Farewell("fault", error.reason))
            self._fail(f"the broker broke the rules: {error.reason}")
        if changed:
            self._announce()
        if arrived:
            self._arrived.set()
        connection.flush(clock_ns(), hurried=changed)

    def may_read(self, connection: Connection) -> bool:
        """See connection.Owner."""
        return self._inbox_bytes < INBOX_LIMIT_BYTES

    def refill(self, connection: Connection) -> None:
        """See connection.Owner: what was handed over since the last write goes out together."""
        for message in self._core.messages_to_send():
            if not connection.send(message):
                return

    def ended(self, connection: Connection, reason: LossReason) -> None:
        """See connection.Owner."""
        self._connection = None
        self._core.on_lost()
        farewell = connection.farewell
        why = f"{farewell.kind}: {farewell.reason}" if farewell else str(reason)
        self._callbacks.on_session("lost", {"reason": why})
        if farewell is not None and farewell.kind in ("refused", "superseded", "fault"):
            self._fail(why)
        self._announce()

    def _happened(self, event: object) -> None:
        callbacks = self._callbacks
        match event:
            case PublicationsDone(first, last):
                callbacks.on_acknowledged(first, last)
            case Attached(source, broker_incarnation):
                details = {"source": source, "broker_incarnation": broker_incarnation}
                callbacks.on_session("attached", details)
            case SubscriptionAnswered(number, state):
                self._started[number] = state
                callbacks.on_subscription(number, state)
            case Withheld(deliveries):
                callbacks.on_withheld(deliveries)
            case RetryLater(refused):
                self._retries.append(refused.number)
            case RequestRefused(refused):
                if refused.number:
                    self._refused[refused.number] = refused.reason
                else:
                    self._fail(f"{refused.request} was refused: {refused.reason}")
                callbacks.on_refused(refused.request, refused.number, refused.reason)

    # ------------------------------------------------------------ the session

    async def _run(self) -> None:
        """Keep a session with the broker until the client fails for good."""
        pause_s = RECONNECT_FIRST_S
        while self._failure is None:
            why = await self._attach_once()
            if why is None:
                pause_s = RECONNECT_FIRST_S
            else:
                self._callbacks.on_session("failed", {"reason": why})
            await trio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, RECONNECT_LIMIT_S)

    async def _attach_once(self) -> str | None:
        """Open a session and serve it to its end; or say why there was none."""
        stream: trio.abc.Stream | None = None
        decoder = FrameDecoder()
        session: Session | str = "no answer in time"
        try:
            with trio.move_on_after(self._parameters.connect_timeout_ns / SECOND_NS):
                try:
                    stream = await self._dial(self._address)
                    session = await self._shake_hands(stream, decoder)
                except (OSError, trio.BrokenResourceError, RemoteProtocolError) as error:
                    session = str(error)[:300]
            if isinstance(session, str) or stream is None:
                return str(session)
            await self._serve(session, stream, decoder)
            return None
        finally:
            if stream is not None:
                await close_stream(stream)

    async def _shake_hands(self, stream: trio.abc.Stream, decoder: FrameDecoder) -> Session | str:
        self._sessions += 1
        hello = client_hello(self.name, self._deployment_id, self._core.incarnation, self._sessions)
        await stream.send_all(b"".join(encode(hello)))
        answer = await first_message(stream, decoder)
        if isinstance(answer, Farewell):
            if answer.kind == "refused":
                self._fail(f"refused: {answer.reason}")
            return answer.reason
        assert isinstance(answer, Hello), answer
        if answer.wire_version != WIRE_VERSION or answer.session != self._sessions:
            return f"{answer.name[:64]!r} answers with wire version {answer.wire_version}"
        session = Session(answer.number, answer.session, SessionState.ESTABLISHED)
        session.number, session.incarnation = self._sessions, answer.incarnation
        return session

    async def _serve(
        self, session: Session, stream: trio.abc.Stream, decoder: FrameDecoder
    ) -> None:
        connection = Connection(stream, session, decoder, self._parameters, self)
        self._connection = connection
        self._core.on_established()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_after, connection)
            await connection.serve()
            nursery.cancel_scope.cancel()

    async def _look_after(self, connection: Connection) -> None:
        """Send heartbeats, notice silence, repeat what was refused for the time being."""
        tick_s = check_interval_ns(self._parameters) / SECOND_NS
        beats = retried_at = 0.0
        while True:
            await trio.sleep(tick_s)
            now = trio.current_time()
            if now + tick_s / 2 >= beats:
                connection.beat()
                beats = now + self._parameters.heartbeat_ns / SECOND_NS
            connection.check(clock_ns())
            if self._retries and now - retried_at >= RETRY_S:
                retried_at = now
                self._retry(connection)

    def _retry(self, connection: Connection) -> None:
        numbers, self._retries = self._retries, []
        if 0 in numbers:
            connection.end("closed_by_us", Farewell("stopping", "to be attached anew"))
            return
        for number in numbers:
            self._core.subscribe_again(number)
        connection.flush(clock_ns(), hurried=True)

    async def _leave(self) -> None:
        """Let the broker have what it should know, for a moment at most."""
        self._acknowledge_taken()
        connection = self._connection
        if connection is None:
            return
        connection.flush(clock_ns(), hurried=True)
        with trio.move_on_after(LEAVING_S):
            while not connection.over and not connection.is_idle:
                await trio.sleep(0.001)
        connection.end("closed_by_us", Farewell("stopping", "the client leaves"))
        with trio.move_on_after(LEAVING_S):
            await connection.gone.wait()

    # ------------------------------------------------------------ waiting

    def _nudge(self) -> None:
        if self._connection is not None:
            self._connection.flush(clock_ns(), hurried=True)

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _wait_changed(self) -> None:
        self._check_alive()
        await self._changed.wait()
        self._check_alive()

    def _fail(self, why: str) -> None:
        if self._failure is None:
            self._failure = why
        self._announce()
        self._arrived.set()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise ClientError(f"client {self.name}: {self._failure}")


class PublicationIterator:
    """What a client receives, one by one; a run counts as taken when all of it was."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._rest: Iterator[Publication] = iter(())

    def __aiter__(self) -> "PublicationIterator":
        return self

    async def __anext__(self) -> Publication:
        while (publication := next(self._rest, None)) is None:
            self._rest = _single_publications(await anext(self._client))
        return publication


def _single_publications(deliveries: Deliveries) -> Iterator[Publication]:
    run, numbers = deliveries.run, deliveries.subscriptions
    for sequence, blob, payload in run.publications():
        yield Publication(run.source, sequence, decode_attributes(blob), bytes(payload), numbers)


def _size(received: Received) -> int:
    return sum(item.run.payload_bytes() + 64 for item in received.deliveries)
