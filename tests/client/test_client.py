"""Tests of the client library against a broker's real core and links, over memory streams."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from brokerd.client.client import Callbacks, Client, ClientError, connect
from brokerd.config import SessionParameters
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import (
    Connect,
    Connected,
    Publish,
    PublishAcknowledged,
    Refused,
    Subscribe,
)
from brokerd.model.identity import SourceId
from brokerd.model.predicate import NOTHING, PredicateError
from brokerd.protocols.delta_tree.clients import Clients
from brokerd.sessions.messages import (
    SEAL_BYTES,
    START_BYTES,
    WIRE_VERSION,
    Heartbeat,
    Hello,
    StateAdvanced,
    StateMark,
)
from brokerd.wire.attributes import encode_attributes
from brokerd.wire.codec import decode, encode
from brokerd.wire.framing import FrameDecoder
from tests.helpers.memory_broker import MemoryBroker, chain
from tests.helpers.memory_links import MemoryNet
from tests.helpers.virtual_time import in_virtual_time

OIL = encode_attributes({"topic": "oil"})


@asynccontextmanager
async def brokers(
    count: int = 1, protocol: str = "delta_tree"
) -> AsyncIterator[list[MemoryBroker]]:
    """Yield a running chain; `brokers[0]._net` is the net of the brokers."""
    net = MemoryNet()
    running = [MemoryBroker(net, chain(count), f"b{n}", protocol) for n in range(count)]
    async with trio.open_nursery() as nursery:
        for broker in running:
            await nursery.start(broker.run)
        yield running
        nursery.cancel_scope.cancel()


def client_of(broker: MemoryBroker, name: str, **options: Any) -> Any:
    return connect(broker.name, name, dial=broker._net.dial, **options)


async def take(client: Client, count: int) -> list[int]:
    """Return the sequence numbers of the next publications."""
    numbers: list[int] = []
    while len(numbers) < count:
        deliveries = await anext(client)
        numbers += deliveries.run.sequences
    return numbers


@in_virtual_time
async def test_publications_arrive_unchanged_and_are_acknowledged() -> None:
    async with (
        brokers(3) as (b0, _, b2),
        client_of(b0, "publisher", publishes=True) as publisher,
        client_of(b2, "subscriber") as subscriber,
    ):
        number = await subscriber.subscribe("topic = 'oil' and price > 10")
        await publisher.publish({"topic": "oil", "price": 12}, b"first")
        await publisher.publish({"topic": "oil", "price": 5}, b"too cheap")
        await publisher.publish({"topic": "oil", "price": 11.5}, b"")
        publications = subscriber.publications()
        first, second = await anext(publications), await anext(publications)
        assert first.source == publisher.source
        assert (first.sequence, first.payload, first.subscriptions) == (1, b"first", (number,))
        assert first.attributes == {"topic": "oil", "price": 12}
        assert (second.sequence, second.payload) == (3, b"")
        with trio.move_on_after(1):
            await anext(publications)  # asking for the next says that this one is safe
        await publisher.flush()
        assert publisher.outstanding == 0


@in_virtual_time
async def test_ten_thousand_publications_cost_a_hop_a_few_dozen_messages() -> None:
    """The batch is the design: work per run, not per publication."""
    async with (
        brokers(3) as (b0, b1, b2),
        client_of(b0, "publisher", publishes=True) as publisher,
        client_of(b2, "subscriber") as subscriber,
    ):
        await subscriber.subscribe("true")
        await publisher.wait_attached()
        handled: list[object] = []
        handle = b1.driver.core.handle

        def counting_handle(event: Any, now_ns: int) -> Any:
            handled.append(event)
            return handle(event, now_ns)

        b1.driver.core.handle = counting_handle  # type: ignore[method-assign]
        blobs = [encode_attributes({"symbol": f"s{n}"}) for n in range(100)]
        for _ in range(10):
            await publisher.publish_many(
                blobs, bytes(n % 100 for n in range(1_000)), 10, bytes(10_000)
            )
        assert await take(subscriber, 10_000) == list(range(1, 10_001))
        with trio.move_on_after(1):
            await anext(subscriber)
        await publisher.flush()
        assert 2 <= len(handled) < 60


@in_virtual_time
async def test_a_publication_is_not_done_before_the_subscriber_has_it() -> None:
    done: list[tuple[int, int]] = []
    callbacks = Callbacks(on_acknowledged=lambda first, last: done.append((first, last)))
    async with (
        brokers() as (b0,),
        client_of(b0, "publisher", publishes=True, callbacks=callbacks) as publisher,
        client_of(b0, "subscriber") as subscriber,
    ):
        await subscriber.subscribe("true")
        await publisher.publish_many([OIL], bytes(10), 1, bytes(10))
        assert await take(subscriber, 10) == list(range(1, 11))
        await trio.sleep(10)
        assert done == []
        with trio.move_on_after(0.1):
            await anext(subscriber)
        await publisher.flush()
        assert done == [(1, 10)]


@in_virtual_time
async def test_delivery_stays_exactly_once_through_interruptions() -> None:
    async with (
        brokers(2) as (b0, b1),
        client_of(b0, "publisher", publishes=True) as publisher,
        client_of(b1, "subscriber") as subscriber,
        trio.open_nursery() as nursery,
    ):
        await subscriber.subscribe("true")
        received: list[int] = []

        async def receive() -> None:
            while True:
                received.extend(await take(subscriber, 1))

        async def interrupt(broker: MemoryBroker, peer: int | str, pause_s: float) -> None:
            while True:
                await trio.sleep(pause_s)
                broker.fault("cut", peer)
                await trio.sleep(0.05)
                broker.heal("cut")

        nursery.start_soon(receive)
        nursery.start_soon(interrupt, b0, "publisher", 0.7)
        nursery.start_soon(interrupt, b1, "subscriber", 1.1)
        nursery.start_soon(interrupt, b1, 0, 1.9)
        for _ in range(100):
            await publisher.publish_many([OIL], bytes(20), 10, bytes(200))
            await trio.sleep(0.1)
        await publisher.flush()
        nursery.cancel_scope.cancel()
    assert received == list(range(1, 2001))
    assert publisher.statistics.resubmitted > 0


@in_virtual_time
async def test_a_full_window_makes_the_publisher_wait() -> None:
    async with (
        brokers() as (b0,),
        client_of(b0, "publisher", publishes=True, window=10) as publisher,
    ):
        await publisher.wait_attached()
        b0.fault("absorb")
        for _ in range(10):
            await publisher.publish(OIL, b"x")
        with trio.move_on_after(30) as scope:
            await publisher.publish(OIL, b"x")
        assert scope.cancelled_caught
        assert publisher.outstanding == 10
        b0.heal("absorb")
        await publisher.publish(OIL, b"x")
        await publisher.flush()


@in_virtual_time
async def test_the_older_of_two_clients_with_one_name_is_superseded() -> None:
    async with brokers() as (b0,), client_of(b0, "c") as older:
        await older.wait_attached()
        async with client_of(b0, "c") as newer:
            with pytest.raises(ClientError, match="superseded"):
                await anext(older)
            await newer.wait_attached()
            await trio.sleep(10)
            assert newer.attached
            assert not older.attached


@in_virtual_time
async def test_a_client_of_another_deployment_is_refused_for_good() -> None:
    async with brokers() as (b0,), client_of(b0, "c", deployment_id="other") as client:
        with pytest.raises(ClientError, match="deployment 'other'"):
            await client.wait_attached()
        with pytest.raises(ClientError, match="refused"):
            await client.publish(OIL, b"")


@in_virtual_time
async def test_a_client_awaits_the_start_and_the_restart_of_its_broker() -> None:
    net = MemoryNet()
    broker = MemoryBroker(net, chain(1), "b0")
    sessions: list[str] = []
    callbacks = Callbacks(on_session=lambda what, _: sessions.append(what))
    async with connect("b0", "c", dial=net.dial, callbacks=callbacks) as client:
        await trio.sleep(3)
        assert set(sessions) == {"failed"}
        for _ in range(2):
            sessions.clear()
            async with trio.open_nursery() as nursery:
                await nursery.start(broker.run)
                await client.wait_attached()
                nursery.cancel_scope.cancel()
            await trio.sleep(2)
            assert sessions[-2:] != ["attached", "attached"]
            assert sessions.count("lost") == 1


@in_virtual_time
async def test_pending_publications_are_sent_before_the_client_closes() -> None:
    async with brokers() as (b0,):
        async with client_of(b0, "publisher", publishes=True) as publisher:
            await publisher.wait_attached()
            publisher.publish_many_nowait([OIL], bytes(100), 100, bytes(10_000))
        await trio.sleep(0.1)
        assert b0.driver.core.statistics()["publications_received"] == 100


@in_virtual_time
async def test_an_exception_in_the_client_block_propagates_unchanged() -> None:
    async with brokers() as (b0,):
        with pytest.raises(ZeroDivisionError):
            async with client_of(b0, "c"):
                _ = 1 // 0


@in_virtual_time
async def test_a_slow_application_stops_its_broker_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("brokerd.client.inbox.INBOX_LIMIT_BYTES", 5_000)
    async with (
        brokers(protocol="best_effort") as (b0,),
        client_of(b0, "publisher", publishes=True) as publisher,
        client_of(b0, "subscriber") as subscriber,
    ):
        await subscriber.subscribe("true")
        for _ in range(100):
            await publisher.publish_many([OIL], bytes(10), 1_000, bytes(10_000))
        await trio.sleep(60)
        assert subscriber.statistics.waiting_bytes < 300_000
        assert await take(subscriber, 1_000) == list(range(1, 1_001))


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) - 16_000])
@in_virtual_time
async def test_a_publication_that_fits_no_frame_is_refused_where_it_is_made(size: int) -> None:
    async with brokers() as (b0,), client_of(b0, "p", publishes=True) as publisher:
        with pytest.raises(ValueError, match="at most"):
            await publisher.publish(OIL, bytes(size))
        with pytest.raises(ValueError, match="at most"):
            await publisher.publish_many([OIL], b"\0", size, bytes(size))
        largest = (1 << 20) - 16_384 - len(OIL)
        await publisher.publish(OIL, bytes(largest))
        await publisher.flush()


@in_virtual_time
async def test_a_predicate_that_cannot_be_read_is_refused_where_it_is_written() -> None:
    async with brokers() as (b0,), client_of(b0, "c") as client:
        with pytest.raises(PredicateError):
            await client.subscribe("price >")


# ---------------------------------------------------------------- against a scripted broker


class ScriptedBroker:
    """The broker's end of one session, message by message."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.hello: Any = None
        self._decoder = FrameDecoder(1 << 20)

    async def next(self) -> Any:
        """Return the next message other than a heartbeat."""
        while True:
            while (frame := self._decoder.next_frame()) is not None:
                message = decode(*frame)
                if message != Heartbeat():
                    return message
            chunk = await self.stream.receive_some(100_000)
            if not chunk:
                raise EOFError
            self._decoder.feed(bytes(chunk))

    async def say(self, *messages: Any) -> None:
        await self.stream.send_all(b"".join(piece for m in messages for piece in encode(m)))

    async def beat(self) -> None:
        """Send a heartbeat."""
        await self.say(Heartbeat())

    async def greet(
        self, protocol: str = "p", name: str = "b", state: StateMark | None = None
    ) -> Connect:
        """Complete the handshake up to the client's Connect; keep the client's Hello."""
        self.hello = hello = await self.next()
        own = WIRE_VERSION, protocol, "d", "t", "broker", name, 0, 1, hello.session, 0, False, ()
        await self.say(Hello(*own, state))
        connect: Connect = await self.next()
        return connect


@asynccontextmanager
async def scripted(room_bytes: int = 1 << 16, **options: Any) -> AsyncIterator[tuple[Client, Any]]:
    net = MemoryNet(room_bytes)
    listener = net.listen("b")
    async with connect("b", "c", dial=net.dial, **options) as client:

        async def next_session() -> ScriptedBroker:
            return ScriptedBroker(await listener.accept())

        yield client, next_session


SOURCE = SourceId(0, 0, 1)


@in_virtual_time
async def test_publications_queued_during_a_write_are_sent_as_one_run() -> None:
    async with scripted(room_bytes=2_000, publishes=True) as (client, next_session):
        broker = await next_session()
        await broker.greet()
        await broker.say(Connected(SOURCE, 1))
        await client.wait_attached()
        runs = []
        async with trio.open_nursery() as nursery:

            async def read_slowly() -> None:
                while sum(map(len, runs)) < 1_000:
                    await trio.sleep(0.01)
                    message = await broker.next()
                    assert isinstance(message, Publish)
                    runs.append(message.run)

            nursery.start_soon(read_slowly)
            for _ in range(1_000):
                await client.publish(OIL, bytes(50))
        assert [s for run in runs for s in run.sequences] == list(range(1, 1_001))
        assert len(runs) < 50


@in_virtual_time
async def test_a_client_returns_the_newest_state_mark_to_its_broker_only() -> None:
    marks = [StateMark(0, n, bytes(START_BYTES), n, n, bytes(SEAL_BYTES)) for n in range(3)]
    async with scripted() as (_, next_session):
        expected = (None, marks[2], marks[2], None)
        for returned, name in zip(expected, "bbcc", strict=True):
            broker = await next_session()
            await broker.greet(name=name, state=marks[0] if name == "b" else None)
            await broker.say(Connected(None, 1))
            if name == "b":
                await broker.say(StateAdvanced(marks[2], None))
            await trio.sleep(0.01)
            await broker.stream.aclose()
            assert broker.hello.witnessed == returned


@in_virtual_time
async def test_a_lone_publication_leaves_at_once() -> None:
    async with scripted(publishes=True) as (client, next_session):
        broker = await next_session()
        await broker.greet()
        await broker.say(Connected(SOURCE, 1))
        await client.wait_attached()
        await trio.sleep(0.3)
        now = trio.current_time()
        await client.publish(OIL, b"x")
        assert len((await broker.next()).run) == 1
        assert trio.current_time() == now


@in_virtual_time
async def test_a_broker_that_breaks_the_rules_is_left_for_good() -> None:
    async with scripted(publishes=True) as (client, next_session):
        broker = await next_session()
        await broker.greet()
        await broker.say(Connected(SOURCE, 1), PublishAcknowledged(1, 5))
        with pytest.raises(ClientError, match="never sent"):
            await anext(client)


@in_virtual_time
async def test_a_silent_broker_is_suspected_and_dialled_again() -> None:
    async with scripted(parameters=SessionParameters()) as (client, next_session):
        silent = await next_session()
        await silent.greet()
        began = trio.current_time()
        again = await next_session()
        assert trio.current_time() - began < 1.2
        with contextlib.suppress(EOFError, RemoteProtocolError):
            while True:
                await silent.next()
        assert (await again.greet()).next_sequence == 1
        assert not client.attached


# ---------------------------------------------------------------- ending, leaving, moving


def rows(*running: MemoryBroker) -> list[int]:
    return [broker.driver.core.statistics()["subscriptions"] for broker in running]


@in_virtual_time
async def test_an_ended_subscription_delivers_nothing() -> None:
    async with (
        brokers(2) as running,
        client_of(running[0], "publisher", publishes=True) as publisher,
        client_of(running[1], "subscriber") as subscriber,
    ):
        ended = await subscriber.subscribe("topic = 'oil'")
        kept = await subscriber.subscribe("topic = 'gas'")
        await publisher.publish({"topic": "oil"}, b"")
        await publisher.publish({"topic": "gas"}, b"")
        with trio.move_on_after(1):
            await publisher.flush()  # both have come and lie in the inbox
        await subscriber.unsubscribe(ended)
        await publisher.publish({"topic": "oil"}, b"")
        await publisher.publish({"topic": "gas"}, b"")
        publications = subscriber.publications()
        got = [await anext(publications) for _ in range(2)]
        assert [(each.sequence, each.subscriptions) for each in got] == [(2, (kept,)), (4, (kept,))]
        assert rows(*running) == [1, 1]
        with pytest.raises(ClientError, match="no subscription 1"):
            await subscriber.unsubscribe(ended)
        assert await subscriber.subscribe("topic = 'oil'") == 3, "no number is used again"


@in_virtual_time
async def test_an_unsubscription_is_requested_again_after_a_lost_session() -> None:
    async with brokers(2) as running, client_of(running[1], "subscriber") as subscriber:
        number = await subscriber.subscribe("true")
        running[1].fault("cut", "subscriber")
        with trio.move_on_after(1):
            await subscriber.unsubscribe(number)
        running[1].heal("cut")
        await subscriber.wait_attached()
        while subscriber._broker.core.subscriptions.ending:
            await trio.sleep(0.01)
        assert rows(*running) == [0, 0]


@in_virtual_time
async def test_a_client_that_detaches_leaves_nothing_behind() -> None:
    async with (
        brokers(2) as running,
        client_of(running[0], "publisher", publishes=True) as publisher,
        client_of(running[1], "subscriber") as subscriber,
    ):
        await subscriber.subscribe("true")
        await publisher.publish({"topic": "oil"}, b"")
        await anext(subscriber)
        await subscriber.detach()
        await publisher.publish({"topic": "oil"}, b"")
        await publisher.detach()
        assert publisher.outstanding == 0
        await trio.sleep(0.1)
        assert rows(*running) == [0, 0]
        with pytest.raises(ClientError, match="has detached"):
            await subscriber.receive()
        with pytest.raises(ClientError, match="has detached"):
            await publisher.publish({"topic": "oil"}, b"")
    async with client_of(running[1], "subscriber") as again:
        assert again.next_sequence == 1


@in_virtual_time
async def test_a_subscriber_that_moves_gets_everything_once_and_in_order() -> None:
    async with (
        brokers(4) as running,
        client_of(running[1], "publisher", publishes=True) as publisher,
        client_of(running[3], "subscriber") as subscriber,
        trio.open_nursery() as nursery,
    ):
        await subscriber.subscribe("topic = 'oil'")
        got: list[int] = []

        async def receive() -> None:
            async for deliveries in subscriber:
                got.extend(deliveries.run.sequences)
                await trio.sleep(0.003)

        async def publish() -> None:
            for _ in range(300):
                await publisher.publish({"topic": "oil"}, b"")
                await trio.sleep(0.002)

        nursery.start_soon(receive)
        nursery.start_soon(publish)
        await trio.sleep(0.2)
        await subscriber.move("b0")
        await trio.sleep(0.05)
        await subscriber.move("b3")
        await trio.sleep(3)
        assert got == list(range(1, 301))
        assert rows(*running) == [1, 1, 1, 1]
        nursery.cancel_scope.cancel()


@in_virtual_time
async def test_a_moving_publisher_continues_as_another_source_after_its_confirmations() -> None:
    async with (
        brokers(3) as running,
        client_of(running[0], "publisher", publishes=True) as publisher,
        client_of(running[2], "subscriber") as subscriber,
        trio.open_nursery() as nursery,
    ):
        await subscriber.subscribe("true")
        got: list[tuple[SourceId, int]] = []

        async def receive() -> None:
            async for deliveries in subscriber:
                got.extend((deliveries.run.source, n) for n in deliveries.run.sequences)

        nursery.start_soon(receive)
        for place in ("b2", "b0", "b1"):
            for _ in range(3):
                await publisher.publish({"topic": "oil"}, b"")
            await publisher.move(place)
        await publisher.publish({"topic": "oil"}, b"")
        await publisher.flush()
        sources = list(dict.fromkeys(source for source, _ in got))
        assert [source.broker for source in sources] == [0, 2, 0, 1]
        assert [source.incarnation for source in sources] == [1, 2, 3, 4]
        assert [n for _, n in got] == [1, 2, 3] * 3 + [1]
        nursery.cancel_scope.cancel()


@in_virtual_time
async def test_a_client_of_a_lost_broker_moves_and_receives_later_publications() -> None:
    async with (
        brokers(3) as running,
        client_of(running[0], "publisher", publishes=True) as publisher,
        client_of(running[2], "subscriber") as subscriber,
    ):
        await subscriber.subscribe("true")
        await publisher.publish({"topic": "oil"}, b"")
        assert await take(subscriber, 1) == [1]
        running[2].fault("cut", "subscriber")
        await trio.sleep(2)
        await subscriber.move("b1")
        await publisher.publish({"topic": "oil"}, b"")
        assert await take(subscriber, 1) == [2]


@in_virtual_time
async def test_a_cancelled_move_leaves_the_client_at_its_broker() -> None:
    async with (
        brokers(3) as running,
        client_of(running[0], "publisher", publishes=True) as publisher,
        client_of(running[2], "subscriber") as subscriber,
    ):
        await subscriber.subscribe("true")
        with trio.move_on_after(2):
            await subscriber.move("nowhere")
        await publisher.publish({"topic": "oil"}, b"")
        assert await take(subscriber, 1) == [1]
        await trio.sleep(0.1)
        assert rows(*running) == [1, 1, 1]


@in_virtual_time
async def test_a_move_fails_if_the_old_broker_refuses_its_mark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mark separates the rest of the old stream; without the mark the rest is undefined."""
    subscribe = Clients.on_subscribe

    def refuse_marks(self: Clients, name: str, message: Subscribe) -> None:
        if message.predicate == NOTHING:
            refused = Refused("subscribe", message.number, "nobody marks here", False)
            self._state.machine.send(name, refused)
        else:
            subscribe(self, name, message)

    monkeypatch.setattr(Clients, "on_subscribe", refuse_marks)
    async with (
        brokers(3) as running,
        client_of(running[0], "publisher", publishes=True) as publisher,
        client_of(running[2], "subscriber") as subscriber,
    ):
        await subscriber.subscribe("true")
        with pytest.raises(ClientError, match="nobody marks here"):
            await subscriber.move("b0")
        await publisher.publish({"topic": "oil"}, b"")
        assert await take(subscriber, 1) == [1]


@pytest.mark.parametrize("leave", ["unsubscribe", "detach"])
@in_virtual_time
async def test_a_client_with_a_full_inbox_can_leave(
    leave: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's reply follows deliveries that the application never fetches."""
    monkeypatch.setattr("brokerd.client.inbox.INBOX_LIMIT_BYTES", 5_000)
    async with (
        brokers(protocol="best_effort") as (b0,),
        client_of(b0, "publisher", publishes=True) as publisher,
        client_of(b0, "subscriber") as subscriber,
    ):
        number = await subscriber.subscribe("true")
        for _ in range(100):
            await publisher.publish_many([OIL], bytes(10), 1_000, bytes(10_000))
        await trio.sleep(60)
        with trio.move_on_after(60) as patience:
            await (subscriber.detach() if leave == "detach" else subscriber.unsubscribe(number))
        assert not patience.cancelled_caught
