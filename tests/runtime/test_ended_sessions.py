"""Stories of sessions that are refused or ended: which session, which reason, and what is counted.

Each story asks both for the effect and for the absence of the effect in the neighbouring case.
"""

import errno
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from brokerd.config import SessionParameters
from brokerd.model.client_messages import Deliveries, Detach, Publish
from brokerd.protocols.interface import (
    MessageReceived,
    OpenFailed,
    SessionEstablished,
    SessionLost,
)
from brokerd.runtime.admission_control import REFUSALS_RECORDED_PER_S
from brokerd.runtime.connection import FLOOD_RECEIVE_BYTES, RECEIVE_BYTES, Connection
from brokerd.sessions.messages import Farewell
from brokerd.sessions.session import client_hello
from tests.helpers.memory_links import (
    LinkedBroker,
    MemoryNet,
    copy,
    join_brokers,
    nursery_of_the_test,
    one_broker,
)
from tests.helpers.raw_peer import answer, broker_hello, raw_peer, words
from tests.helpers.virtual_time import in_virtual_time

SMALL = SessionParameters(
    outbox_limit_bytes=60_000, frame_limit_bytes=32 << 10, slow_after_ns=100_000_000
)


def events_of(broker: LinkedBroker, name: str) -> list[dict[str, Any]]:
    """Return the details of all recorded events of a name."""
    return [details for event, details in broker.records if event == name]


@in_virtual_time
async def test_a_protocol_error_ends_its_own_session_and_no_other() -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        session = b0.links.connections[1].session.number
        b0.links.refuse(1, session - 1, "in an earlier session")
        b0.links.refuse(2, 1, "in a session that has ended")
        await trio.sleep(0.1)
        assert b0.of(SessionLost) == b1.of(SessionLost) == []
        b0.links.refuse(1, session, "in this session")
        lost = await b0.wait_for(SessionLost)
        assert (lost.session, lost.reason) == (session, "protocol_error")
        about = {"peer": "b1", "session": session, "reason": "protocol_error"}
        assert events_of(b0, "session_lost") == [about]
        assert [each["reason"] for each in events_of(b0, "protocol_error")] == [
            "in an earlier session",
            "in a session that has ended",
            "in this session",
        ]


@in_virtual_time
async def test_a_dialled_broker_of_another_deployment_is_sent_the_reason() -> None:
    async with one_broker() as (net, b0, _):
        listener = net.listen("b1")
        b0.links.open(1)
        stream = await listener.accept()
        hello = await answer(stream)
        await stream.send_all(words(broker_hello(session=hello.session, deployment_id="other")))
        refusal = await answer(stream)
        assert isinstance(refusal, Farewell)
        assert refusal.kind == "refused"
        assert (await b0.wait_for(OpenFailed)).reason == refusal.reason
        assert events_of(b0, "hello_refused")[0]["reason"] == refusal.reason


@in_virtual_time
async def test_each_refused_hello_is_counted_once() -> None:
    async with one_broker() as (net, b0, _):
        for place, deployment in enumerate(("other", "d", "another"), start=1):
            stream = await net.dial("b0")
            await stream.send_all(words(broker_hello(session=place, deployment_id=deployment)))
            assert isinstance(await answer(stream), Farewell) == (deployment != "d")
        assert b0.links.counters["connections_refused"] == 2


@in_virtual_time
async def test_an_answer_that_a_blackhole_swallows_establishes_nothing() -> None:
    """The peer accepts late, so the fault begins between the Hello and the answer."""
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        for broker in (b0, b1):
            await nursery.start(broker.run)
        net.listeners["b1"].failures.append(OSError(errno.EMFILE, "no file is free"))
        b0.links.open(1)
        await trio.sleep(0.05)
        b0.fault("blackhole", 1)
        await b1.wait_for(SessionEstablished)
        await b0.wait_for(OpenFailed)
        assert b0.of(SessionEstablished) == []


@pytest.mark.parametrize("is_client", [True, False])
@in_virtual_time
async def test_only_a_client_is_evicted_for_reading_nothing(is_client: bool) -> None:
    """The session of a broker ends, too, but a broker keeps its subscriptions."""
    net = MemoryNet(room_bytes=4_096)
    b0 = LinkedBroker(net, 0, SMALL)
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        hello = client_hello("deaf", "d", 1, 1) if is_client else broker_hello()
        deaf = await raw_peer(net, hello)
        established = await b0.wait_for(SessionEstablished)
        nursery.start_soon(deaf.live)
        for first in range(1, 100):
            b0.send(established.peer, Deliveries(copy(first, 1_000).run, (1,)))
            await trio.sleep(0.01)
        lost = await b0.wait_for(SessionLost)
        assert lost.reason == "overflow"
        evicted = [each["peer"] for each in events_of(b0, "slow_consumer_put_out")]
        assert evicted == (["deaf"] if is_client else [])
        assert b0.links.counters["slow_consumers"] == is_client
        left = [each for each in b0.of(MessageReceived) if isinstance(each.message, Detach)]
        assert len(left) == is_client
        if is_client:
            refusals = []
            for _ in range(3):
                again = await raw_peer(net, client_hello("deaf", "d", 1, 1))
                refusals.append(isinstance(await answer(again.stream), Farewell))
            assert refusals == [True, False, False], "the client is notified once"


@in_virtual_time
async def test_each_time_that_an_absorbing_broker_is_full_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first buffer is discarded with its session, and not passed on."""
    net = MemoryNet(room_bytes=2_000)
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    monkeypatch.setattr(b0.links._impairments.absorbed, "_limit_bytes", 5_000)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        b0.fault("absorb", 1, "in")
        for episode in (1, 2):
            await b1.wait_for(SessionEstablished, episode)
            await b0.wait_for(SessionEstablished, episode)
            for first in range(1, 21):
                b1.send(0, copy(first, 1_000))
            await trio.sleep(0.3)
            assert len(events_of(b0, "absorb_full")) == episode
            b0.fault("cut", 1)
            await b1.wait_for(SessionLost, episode)
            b0.heal("cut")
            b1.links.open(0)


@in_virtual_time
async def test_each_refusal_is_either_recorded_or_counted_once_in_a_later_record() -> None:
    """Strangers come in floods, with quiet seconds between."""
    async with one_broker() as (net, b0, _):
        refused = 0
        for flood in (3, 2 * REFUSALS_RECORDED_PER_S, 1, 0, 3 * REFUSALS_RECORDED_PER_S, 1, 1):
            for place in range(flood):
                stream = await net.dial("b0")
                hello = broker_hello(session=refused + place + 1, deployment_id="other")
                await stream.send_all(words(hello))
                assert isinstance(await answer(stream), Farewell)
            refused += flood
            await trio.sleep(1)
    recorded = events_of(b0, "hello_refused")
    assert len(recorded) < refused
    assert len(recorded) + sum(each["unrecorded_before"] for each in recorded) == refused


@in_virtual_time
async def test_a_client_is_found_silent_after_each_wait_for_its_rate() -> None:
    """A broker that does not read for a while blames nobody meanwhile, and detects silence then."""
    net = MemoryNet()
    b0 = LinkedBroker(net, 0, SessionParameters(client_publications_per_second=10))
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        for session in (1, 2):
            peer = await raw_peer(net, client_hello("c", "d", session, session))
            await b0.wait_for(SessionEstablished, session)
            began_s = trio.current_time()
            for first in range(1, 31):
                await peer.say(Publish(copy(first, 10).run))
            lost = await b0.wait_for(SessionLost, session)
            assert lost.reason == "silent"
            assert 1.9 < trio.current_time() - began_s < 7
            await trio.sleep(10)


def test_reads_are_large_in_each_flood_and_only_then() -> None:
    reader: Any = SimpleNamespace(_receive_bytes=RECEIVE_BYTES)
    take = partial(Connection._take_read, reader)
    for _ in range(2):
        for size in (10, RECEIVE_BYTES - 1):
            assert take(bytes(size), RECEIVE_BYTES) == bytes(size)
            assert reader._receive_bytes == RECEIVE_BYTES
        for size in (RECEIVE_BYTES, RECEIVE_BYTES + 1, FLOOD_RECEIVE_BYTES):
            assert take(bytes(size), reader._receive_bytes) == bytes(size)
            assert reader._receive_bytes == FLOOD_RECEIVE_BYTES
        assert take(bytes(RECEIVE_BYTES), FLOOD_RECEIVE_BYTES) == bytes(RECEIVE_BYTES)
        assert reader._receive_bytes == RECEIVE_BYTES
