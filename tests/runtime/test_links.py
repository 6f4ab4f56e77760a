"""Tests of sessions on streams: events of the core for any act of a peer or a fault."""

import errno
import struct
from typing import Any

import pytest
import trio

from brokerd.config import SessionParameters
from brokerd.model.client_messages import Acknowledge, Deliveries
from brokerd.model.identity import SourceId
from brokerd.protocols.delta_tree.messages import RecoveryFlag
from brokerd.protocols.interface import OpenFailed, SessionEstablished, SessionLost
from brokerd.sessions.messages import (
    WIRE_VERSION,
    Farewell,
    Heartbeat,
    Hello,
    StateAdvanced,
    StateMark,
)
from brokerd.sessions.session import client_hello
from brokerd.wire.codec import encode
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants
from tests.helpers.memory_links import (
    LinkedBroker,
    MemoryNet,
    copy,
    join_brokers,
    nursery_of_the_test,
)
from tests.helpers.raw_peer import RawPeer, raw_peer
from tests.helpers.virtual_time import in_virtual_time

YES, NO = RecoveryFlag(True), RecoveryFlag(False)


# ---------------------------------------------------------------- coming and going


@in_virtual_time
async def test_two_brokers_that_open_at_once_get_one_session() -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        for broker in (b0, b1):
            await nursery.start(broker.run)
        b0.links.open(1)
        b1.links.open(0)
        await trio.sleep(30)
        assert [type(event) for event in b0.events] == [SessionEstablished]
        assert [type(event) for event in b1.events] == [SessionEstablished]


@in_virtual_time
async def test_an_open_fails_once_without_a_listener_or_an_answer() -> None:
    net = MemoryNet()
    b0 = LinkedBroker(net, 0)
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        b0.links.open(1)
        b0.links.open(1)
        assert (await b0.wait_for(OpenFailed)).reason == "nobody listens on b1"
        await trio.sleep(0)
        assert b0.links.obstacles == {}, "a peer that is down is shown as such"
        net.listen("b1")  # takes connections and says nothing
        b0.links.open(1)
        await b0.wait_for(OpenFailed, 2)
        await trio.sleep(0)
        assert b0.links.obstacles == {1: "no answer in time"}
        await trio.sleep(30)
        assert [event.peer for event in b0.of(OpenFailed)] == [1, 1]


@in_virtual_time
async def test_messages_arrive_in_order_and_a_quiet_session_stays_up() -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        sent = [copy(first) for first in range(1, 500)]
        for message in sent:
            b0.send(1, message)
        b1.send(0, YES)
        await trio.sleep(600)
        assert b1.sequences(0) == list(range(1, 500))
        assert b0.messages(1) == [YES]
        assert b0.of(SessionLost) == b1.of(SessionLost) == []


@in_virtual_time
async def test_both_ends_are_notified_once_of_a_closed_session() -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        for _ in range(3):
            b1.send(0, YES)
            b0.links.close(1, "had enough")
            b0.links.close(1, "really")
            b0.send(1, NO)  # to nobody
            await b1.wait_for(SessionLost)
            assert [event.reason for event in b0.of(SessionLost)] == ["closed_by_us"]
            assert [event.reason for event in b1.of(SessionLost)] == ["closed_by_peer"]
            assert b1.messages(0) == []
            b0.assert_sessions_end_once()
            b1.assert_sessions_end_once()
            b0.events.clear()
            b1.events.clear()
            b1.links.open(0)
            await b0.wait_for(SessionEstablished)
            await b1.wait_for(SessionEstablished)
            established = b0.of(SessionEstablished) + b1.of(SessionEstablished)
            assert len(established) == 2


@in_virtual_time
async def test_a_restarted_peer_replaces_its_dead_session() -> None:
    net = MemoryNet()
    b0 = LinkedBroker(net, 0)
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        names = (1, "b1", "p", "d", "t")
        for incarnation in (1, 2):
            hello = Hello(
                WIRE_VERSION,
                names[2],
                names[3],
                names[4],
                "broker",
                "b1",
                1,
                incarnation,
                3,
                0,
                True,
                (),
            )
            await raw_peer(net, hello, YES)
            await b0.wait_for(SessionEstablished, incarnation)
        await trio.sleep(0.1)
        kinds = [type(event).__name__ for event in b0.events]
        assert kinds == ["SessionEstablished", "MessageReceived", "SessionLost",
                         "SessionEstablished", "MessageReceived"]  # fmt: skip
        b0.assert_sessions_end_once()


@in_virtual_time
async def test_a_state_before_a_farewell_is_no_message_of_the_protocol() -> None:
    """A broker that stops may send both at once."""
    net = MemoryNet()
    b0 = LinkedBroker(net, 0)
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        mark = StateMark(0, 1, b"12345678", 1, 1, bytes(16))
        texts = ("p", "d", "t", "broker", "b1")
        peer = await raw_peer(net, Hello(WIRE_VERSION, *texts, 1, 1, 3, 0, False, (), mark))
        advanced = StateAdvanced(mark._replace(commits=2), None)
        said = (YES, advanced, NO, Farewell("stopping", "the broker is being stopped"))
        await peer.stream.send_all(b"".join([part for each in said for part in encode(each)]))
        lost = await b0.wait_for(SessionLost)
        assert lost.reason == "closed_by_peer"
        assert b0.messages(1) == [YES, NO]


@in_virtual_time
async def test_a_newer_client_session_supersedes_the_older_with_a_reason() -> None:
    net = MemoryNet()
    b0 = LinkedBroker(net, 0)
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        first = await raw_peer(net, client_hello("c", "d", 1, 1))
        await b0.wait_for(SessionEstablished)
        await raw_peer(net, client_hello("c", "d", 1, 1))
        await b0.wait_for(SessionEstablished, 2)
        await first.read_to_the_end()
        hello, farewell = first.messages()
        assert isinstance(hello, Hello)
        assert (type(farewell), farewell.kind) == (Farewell, "superseded")
        b0.assert_sessions_end_once()


@in_virtual_time
async def test_a_stopping_broker_sends_a_farewell_to_every_session() -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        client = await raw_peer(net, client_hello("c", "", 1, 1))
        await b0.wait_for(SessionEstablished, 2)
        nursery.start_soon(client.read_to_the_end)
        await b0.links.stop()
        await b1.wait_for(SessionLost)
        assert client.messages()[-1] == Farewell("stopping", "the broker is being stopped")
        b1.links.open(0)
        await b1.wait_for(OpenFailed)


# ---------------------------------------------------------------- strangers and the ill-mannered


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"".join(encode(Heartbeat())),
        b"".join(encode(YES)),
        b"".join(encode(copy(1, 5_000))),
        b"",
    ],
)
@in_virtual_time
async def test_a_malformed_stranger_is_disconnected_without_effect_on_others(said: bytes) -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        stranger = RawPeer(await net.dial("b0"))
        await stranger.stream.send_all(said)
        assert await stranger.read_to_the_end() == b""
        assert trio.current_time() < 6
        b0.send(1, YES)
        await trio.sleep(1)
        assert b1.messages(0) == [YES]
        assert len(b0.of(SessionEstablished)) == 1


@in_virtual_time
async def test_a_connection_that_trickles_a_hello_is_closed_after_five_seconds() -> None:
    net = MemoryNet()
    b0 = LinkedBroker(net, 0)
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        slow = RawPeer(await net.dial("b0"))
        began = trio.current_time()
        nursery.start_soon(slow.read_to_the_end)
        hello = b"".join(encode(client_hello("slow", "", 1, 1)))
        with pytest.raises(trio.BrokenResourceError):
            await slow.trickle(hello, 1)
        assert trio.current_time() - began < 7


@in_virtual_time
async def test_a_client_that_trickles_a_frame_is_disconnected_while_others_continue() -> None:
    net = MemoryNet()
    b0 = LinkedBroker(net, 0)
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        slow = await raw_peer(net, client_hello("slow", "", 1, 1))
        nursery.start_soon(slow.read_to_the_end)
        frame = b"".join(encode(Deliveries(copy(1, 2_000).run, (1,))))
        with pytest.raises(trio.BrokenResourceError):
            await slow.trickle(frame, 0.1)
        lost = await b0.wait_for(SessionLost)
        assert lost.reason == "protocol_error"
        assert trio.current_time() < 13


@pytest.mark.parametrize(
    "said",
    [
        struct.pack(">II", 1 << 21, 100),
        struct.pack(">II", 6, 2) + b"\x81\x63",
        b"".join(encode(client_hello("c", "", 1, 1))),
        b"".join(encode(YES))[:-1] + b"\x02",
    ],
)
@in_virtual_time
async def test_a_protocol_violation_closes_a_session_after_its_earlier_messages(
    said: bytes,
) -> None:
    net = MemoryNet()
    b0 = LinkedBroker(net, 0)
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        peer = await raw_peer(net, client_hello("c", "", 1, 1), YES)
        await peer.stream.send_all(b"".join(encode(NO)) + said)
        lost = await b0.wait_for(SessionLost)
        assert lost.reason == "protocol_error"
        assert b0.messages("c") == [YES, NO]
        await peer.read_to_the_end()
        assert peer.messages()[-1].kind == "fault"
        b0.assert_sessions_end_once()


@in_virtual_time
async def test_excess_silent_connections_are_refused_while_peers_connect() -> None:
    net = MemoryNet()
    few = SessionParameters(strangers_limit=20)
    b0, b1 = LinkedBroker(net, 0, few), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        flood = [RawPeer(await net.dial("b0")) for _ in range(500)]
        await trio.sleep(0.5)
        assert b0.links.counters["connections_refused"] == 480
        await trio.sleep(HANDSHAKE_AND_A_BIT)
        await raw_peer(net, client_hello("c", "", 1, 1))
        await b0.wait_for(SessionEstablished, 2)
        assert b0.of(SessionLost) == []
        del flood


HANDSHAKE_AND_A_BIT = 5.5


# ---------------------------------------------------------------- stalled and silent peers

SMALL = SessionParameters(outbox_limit_bytes=100_000, frame_limit_bytes=64 << 10)


async def flood_one_who_never_reads() -> tuple[LinkedBroker, RawPeer]:
    net = MemoryNet(room_bytes=4_096)
    b0 = LinkedBroker(net, 0, SMALL)
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        deaf = await raw_peer(net, client_hello("deaf", "", 1, 1))
        await b0.wait_for(SessionEstablished)
        nursery.start_soon(deaf.live)
        for first in range(1, 200):
            b0.send("deaf", Deliveries(copy(first, 1_000).run, (1,)))
            await trio.sleep(0.001)
        if not b0.of(SessionLost):
            with trio.move_on_after(5):
                await deaf.read_to_the_end()
    return b0, deaf


@in_virtual_time
async def test_a_peer_that_never_reads_loses_its_session_and_no_frame_before_that() -> None:
    b0, _ = await flood_one_who_never_reads()
    assert [event.reason for event in b0.of(SessionLost)] == ["overflow"]
    assert b0.links.counters["outbox_overflows"] == 1
    b0.assert_sessions_end_once()


@in_virtual_time
async def test_mutant_m38_drops_a_required_publication() -> None:
    with plant_mutants([Mutant.FULL_QUEUE_DROPS_OLDEST]):
        b0, deaf = await flood_one_who_never_reads()
    assert b0.of(SessionLost) == []
    received = [m.run.first for m in deaf.messages() if isinstance(m, Deliveries)]
    assert received != list(range(received[0], received[-1] + 1))


@in_virtual_time
async def test_a_peer_that_falls_silent_is_suspected_and_learns_of_it() -> None:
    net = MemoryNet()
    b0 = LinkedBroker(net, 0)
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        peer = await raw_peer(net, client_hello("c", "", 1, 1))
        began = trio.current_time()
        lost = await b0.wait_for(SessionLost)
        assert lost.reason == "silent"
        assert [b0.links.counters[f"sessions_{why}"] for why in ("lost", "silent")] == [1, 1]
        assert 0.75 <= trio.current_time() - began <= 1
        await peer.read_to_the_end()


@in_virtual_time
async def test_any_byte_is_a_sign_of_life_even_inside_a_frame() -> None:
    net = MemoryNet()
    b0 = LinkedBroker(net, 0)
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        peer = await raw_peer(net, client_hello("c", "", 1, 1))
        await peer.trickle(b"".join(encode(copy(1, 10))), 0.2)
        assert b0.of(SessionLost) == []
        assert len(b0.messages("c")) == 1


async def supersede_inside_a_frame() -> RawPeer:
    """Let a newer session replace an older session whose peer has read half a frame."""
    net = MemoryNet(room_bytes=4_096)
    b0 = LinkedBroker(net, 0)
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        old = await raw_peer(net, client_hello("c", "", 1, 1))
        await b0.wait_for(SessionEstablished)
        b0.send("c", Deliveries(copy(1, 20_000).run, (1,)))
        await trio.sleep(0.1)
        await raw_peer(net, client_hello("c", "", 1, 1))
        await trio.sleep(1.5)  # it does not read while the broker would let it
        await old.read_to_the_end()
    return old


@in_virtual_time
async def test_nothing_follows_a_frame_that_was_cut_short() -> None:
    old = await supersede_inside_a_frame()
    assert len(old.received) < 20_000
    assert b"superseded" not in old.received


@in_virtual_time
async def test_mutant_m39_writes_into_the_middle_of_a_frame() -> None:
    with plant_mutants([Mutant.HALF_A_FRAME]):
        old = await supersede_inside_a_frame()
    assert len(old.received) < 20_000
    assert b"superseded" in old.received


@in_virtual_time
async def test_a_session_that_ends_as_it_begins_hands_nothing_on() -> None:
    """The first messages arrived with the Hello, before the core had seen the session."""
    net = MemoryNet()
    b0 = LinkedBroker(net, 0)
    post = b0.links._post

    def close_at_once(events: list[Any]) -> int:
        count = post(events)
        if isinstance(events[0], SessionEstablished):
            b0.links.close(events[0].peer, "not today")
        return count

    b0.links._post = close_at_once
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        await raw_peer(net, client_hello("c", "", 1, 1), YES)
        await trio.sleep(1)
        assert [type(event) for event in b0.events] == [SessionEstablished, SessionLost]


# ---------------------------------------------------------------- brokers that leave the tree


@in_virtual_time
async def test_a_broker_that_leaves_while_it_is_dialled_or_probed_is_not_there() -> None:
    """The link is slow, so that the topology changes before the first message."""
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        for broker in (b0, b1):
            await nursery.start(broker.run)
        b0.fault("delay", 1, delay_ms=200)
        probed: list[str | None] = []

        async def probe() -> None:
            probed.append(await b0.links.probe(1))

        b0.links.open(1)
        nursery.start_soon(probe)
        await trio.sleep(0.1)
        del b0.names[1]
        await trio.sleep(1)
        assert b0.events == [OpenFailed(1, "it has left the tree")]
        assert probed == ["it has left the tree"]


@in_virtual_time
async def test_a_broker_that_leaves_between_hello_and_its_answer_is_not_there() -> None:
    net = MemoryNet()
    net.latency_s = 0.1
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        for broker in (b0, b1):
            await nursery.start(broker.run)
        b0.links.open(1)
        await trio.sleep(0.05)
        del b0.names[1]
        await trio.sleep(1)
        assert b0.events == [OpenFailed(1, "it has left the tree")]


@in_virtual_time
async def test_nothing_is_left_of_a_broker_that_has_left() -> None:
    net = MemoryNet()
    b0, b1, b2 = (LinkedBroker(net, number) for number in range(3))
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        b0.links.open(2)
        for peer in (1, 2):
            del b0.names[peer]
            b0.links.forget(peer)
        assert b0.of(SessionLost) == [SessionLost(1, 1, "closed_by_us")]
        await b0.wait_for(OpenFailed)
        await nursery.start(b2.run)
        b2.links.open(0)
        refused = await b2.wait_for(OpenFailed)
        assert refused.reason == "'b2' is not number 2 near b0"
        assert b0.links.session_peers() == []


# ---------------------------------------------------------------- accepting


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ECONNABORTED, errno.EPROTO, errno.EPERM])
@in_virtual_time
async def test_a_failed_accept_ends_nothing_and_the_next_connection_is_served(number: int) -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        for broker in (b0, b1):
            await nursery.start(broker.run)
        net.listeners["b1"].failures += [OSError(number, "refused")] * 3
        b0.links.open(1)
        await b0.wait_for(SessionEstablished)
        accepts = [details for event, details in b1.records if event == "accept_failed"]
        assert len(accepts) == 1, "consecutive failures are one line"


# ---------------------------------------------------------------- others wait for a client


@in_virtual_time
async def test_short_waits_for_a_client_that_acknowledges_never_add_up() -> None:
    """The client acknowledges during all waits of others, until two waits end the session."""
    net = MemoryNet()
    b0 = LinkedBroker(net, 0)
    almost_ns = SessionParameters().slow_after_ns * 2 // 3
    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        slow = await raw_peer(net, client_hello("slow", "", 1, 1))
        await b0.wait_for(SessionEstablished)
        connection = b0.links.connections["slow"]
        for place in range(1, 6):
            connection.wait_for_progress(almost_ns)
            await slow.say(Acknowledge(SourceId(0, 1, 1), place, place))
            await trio.sleep(0.1)
            connection.wait_for_progress(almost_ns)
            assert b0.of(SessionLost) == []
        for _ in range(2):
            connection.wait_for_progress(almost_ns)
        await trio.sleep(0.1)
        assert [event.reason for event in b0.of(SessionLost)] == ["overflow"]
