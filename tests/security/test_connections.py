"""Tests of excessive, slow and repeated connections: S-FRAME-2, S-FLOOD-1, S-WIRE-1, S-CTRL-1."""

import contextlib
import random
import resource
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Any

import cbor2
import pytest
import trio

from brokerd.config import SessionParameters
from brokerd.errors import RemoteProtocolError
from brokerd.model.client_messages import Publish
from brokerd.model.identity import SourceId
from brokerd.protocols.delta_tree.messages import RecoveryFlag
from brokerd.protocols.interface import SessionEstablished, SessionLost
from brokerd.runtime.admission_control import (
    AdmissionControl,
    descriptors_for,
    places_within,
)
from brokerd.runtime.connection import clock_ns
from brokerd.runtime.links import Links
from brokerd.runtime.streams import dial_tcp
from brokerd.sessions.messages import WIRE_VERSION, Farewell, Hello
from brokerd.sessions.session import SelfDescription, SessionTable, client_hello
from tests.helpers.exchange import run_of
from tests.helpers.memory_links import (
    LinkedBroker,
    MemoryNet,
    join_brokers,
    nursery_of_the_test,
    one_broker,
)
from tests.helpers.message_kinds import all_kinds
from tests.helpers.patience import PATIENCE_S
from tests.helpers.ports import OWN_PORTS
from tests.helpers.raw_peer import RawPeer, answer, broker_hello, words
from tests.helpers.virtual_time import in_virtual_time

YES = RecoveryFlag(True)
FLOOD = 5_000
LOITERERS = 500
"""The connections of the flood that its author keeps open."""


# ---------------------------------------------------------------- S-FLOOD-1: places


class Door:
    """Admission control, with the evicted sessions."""

    def __init__(self, descriptors: int | None = None, **limits: int) -> None:
        self.admission = AdmissionControl(SessionParameters(**limits), descriptors)
        self.evicted: list[str] = []

    def knock(self, address: str, name: str) -> Any:
        return self.admission.admit(address, lambda: self.evicted.append(name))


def test_a_flood_evicts_its_own_and_others_keep_their_places() -> None:
    door = Door(strangers_limit=10)
    quiet = [door.knock("10.0.0.1", "broker"), door.knock("10.0.0.2", "client")]
    for number in range(1_000):
        door.knock("10.0.0.66", f"flood{number}")
    assert len(door.evicted) == 992
    assert all(name.startswith("flood") for name in door.evicted)
    assert door.evicted[:2] == ["flood0", "flood1"], "whoever has been there longest goes first"
    assert all(quiet)


@pytest.mark.parametrize("is_even", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_the_oldest_stranger_of_the_busiest_address_is_evicted(seed: int, is_even: bool) -> None:
    """Addresses have crowds of their own size, or nearly all of the same size."""
    draw = random.Random(seed)
    door = Door(strangers_limit=20)
    inside: dict[str, Any] = {}
    for number in range(600 if is_even else 2_000):
        place = draw.randrange(12) if is_even else int(draw.paretovariate(1)) % 9
        address = f"10.0.0.{place}"
        name = f"{address}/{number}"
        before = [*inside, name]
        counts = Counter(each.partition("/")[0] for each in before)
        admitted = door.knock(address, name)
        if admitted is not None:
            inside[name] = admitted
        gone = door.evicted or [name] * (admitted is None)
        assert len(gone) == (len(before) > 20)
        for out in gone:
            there = out.partition("/")[0]
            assert counts[there] == max(counts.values())
            assert out == next(each for each in before if each.startswith(f"{there}/"))
            if (left := inside.pop(out, None)) is not None:
                left.left()
        door.evicted.clear()
        for known in draw.sample([*inside], draw.randrange(3)) if len(inside) > 5 else []:
            inside.pop(known).on_handshake_end()


def test_addresses_that_have_left_are_not_kept() -> None:
    door = Door()
    stays = door.knock("10.0.0.1", "client")
    for number in range(50):
        visits = [door.knock(f"10.0.9.{number}", "") for _ in range(1 + number % 3)]
        visits[0].on_handshake_end()
        for admitted in visits:
            admitted.left()
    assert door.admission.open == 1
    assert "10.0.9." not in repr(vars(door.admission)), "a flood from many addresses leaves nothing"
    stays.left()


def test_connections_per_address_are_limited_and_places_are_reused() -> None:
    door = Door(connections_per_address=3)
    visits = [door.knock("10.0.0.66", str(number)) for number in range(5)]
    assert [admitted is not None for admitted in visits] == [True, True, True, False, False]
    assert door.knock("10.0.0.1", "other") is not None
    visits[0].left()
    assert door.knock("10.0.0.66", "again") is not None


def test_clients_cannot_use_the_places_reserved_for_brokers() -> None:
    door = Door(connections_limit=10, broker_reserve=4)
    for number in range(10):
        admitted = door.knock(f"10.0.0.{number}", "client")
        admitted.on_handshake_end()
        stays = door.admission.can_stay(is_broker=False)
        assert stays is (number < 6)
        if not stays:
            assert door.admission.can_stay(is_broker=True)
            admitted.left()


def test_a_full_broker_refuses_connections_and_evicts_no_member() -> None:
    door = Door(connections_limit=5, broker_reserve=0)
    for number in range(5):
        door.knock(f"10.0.0.{number}", "member").on_handshake_end()
    assert door.knock("10.0.0.9", "late") is None
    assert door.evicted == []


def test_places_leave_file_descriptors_for_everything_else() -> None:
    door = Door(descriptors=descriptors_for(3), connections_limit=1_000, broker_reserve=0)
    members = [door.knock(f"10.0.0.{number}", "m") for number in range(4)]
    for member in members[:3]:
        member.on_handshake_end()
    assert door.admission.open == 4, "one of them was evicted and has not left yet"
    assert door.evicted == ["m"]


@pytest.mark.parametrize(
    "descriptors, places", [(1, 1), (6, 3), (64, 32), (256, 128), (512, 256), (1024, 768)]
)
def test_few_descriptors_leave_half_of_them_for_connections(descriptors: int, places: int) -> None:
    assert places_within(descriptors) == places
    assert places_within(descriptors_for(places)) == places


class TcpBroker:
    """The links of one broker on a real port of this machine."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.events: list[Any] = []
        names = {other: f"b{other}" for other in range(2) if other != number}
        own = SelfDescription("p", "d", "t", f"b{number}", number, 1, names)
        self.links = Links(
            SessionTable(own),
            SessionParameters(heartbeat_ns=10**9, suspicion_ns=30 * 10**9),
            {other: f"127.0.0.1:{OWN_PORTS[other]}" for other in names},
            self._post,
            lambda _event, _details: None,
            dial=dial_tcp,
            descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )

    def _post(self, events: Sequence[Any]) -> int:
        self.events.extend(events)
        return 0

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        listeners = await trio.open_tcp_listeners(OWN_PORTS[self.number], host="127.0.0.1")
        await self.links.run(list(listeners), task_status=task_status)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


async def until(condition: Any) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.01)


def test_five_thousand_connects_disturb_no_broker_and_a_client_gets_in() -> None:
    async def flood(open_now: list[socket.socket]) -> None:
        for _ in range(FLOOD):
            stranger = socket.socket()
            stranger.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                stranger.connect(("127.0.0.1", OWN_PORTS[0]))
            open_now.append(stranger)
            if len(open_now) > LOITERERS:
                open_now.pop(0).close()
            await trio.lowlevel.checkpoint()

    async def attach(name: str) -> None:
        """Attach as a client does: repeat until the broker replies."""
        with trio.fail_after(PATIENCE_S):
            while True:
                async with await trio.open_tcp_stream("127.0.0.1", OWN_PORTS[0]) as stream:
                    with contextlib.suppress(trio.BrokenResourceError, RemoteProtocolError):
                        await stream.send_all(words(client_hello(name, "d", 1, 1)))
                        assert isinstance(await answer(stream), Hello)
                        return

    async def story() -> None:
        b0, b1 = TcpBroker(0), TcpBroker(1)
        loiterers: list[socket.socket] = []
        async with nursery_of_the_test() as nursery:
            await nursery.start(b0.run)
            await nursery.start(b1.run)
            b0.links.open(1)
            await until(lambda: b0.of(SessionEstablished) and b1.of(SessionEstablished))
            async with trio.open_nursery() as both:
                both.start_soon(flood, loiterers)
                both.start_soon(attach, "during")
            await attach("after")
            b0.links.connections[1].send(YES)
            b0.links.connections[1].flush(clock_ns())
            await until(lambda: len(b1.events) == 2)
            assert b0.links._admission.open < 1_000
            assert b0.links.counters["connections_refused"] > 0
            assert not [lost for lost in b0.of(SessionLost) if lost.peer == 1]
            assert b1.of(SessionLost) == []
            for stranger in loiterers:
                stranger.close()

    trio.run(story)


# ---------------------------------------------------------------- S-FRAME-2: the slow


@in_virtual_time
async def test_five_hundred_trickling_connections_are_closed_while_others_are_served() -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    hello = words(client_hello("loris", "d", 1, 1))
    lives: list[float] = []

    async def trickle() -> None:
        stream = await net.dial("b0")
        began = trio.current_time()
        with contextlib.suppress(trio.BrokenResourceError):
            for byte in hello:
                await stream.send_all(bytes([byte]))
                await trio.sleep(1)
        lives.append(trio.current_time() - began)

    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        for _ in range(500):
            nursery.start_soon(trickle)
        await trio.sleep(2)
        client = await net.dial("b0")
        await client.send_all(words(client_hello("c", "d", 1, 1)))
        assert isinstance(await answer(client), Hello)
        assert trio.current_time() < 3
        b0.send(1, YES)
        await trio.sleep(15)
        assert b1.messages(0) == [YES]
        assert len(lives) == 500
        assert max(lives) <= 15
        assert b0.links._admission.open <= 1, "the client, if it lives"


# ---------------------------------------------------------------- S-WIRE-1: again


@in_virtual_time
async def test_a_recorded_plaintext_session_is_refused_while_it_is_up_and_afterwards() -> None:
    recording = words(broker_hello(), YES)
    async with one_broker() as (net, b0, _):
        first = await net.dial("b0")
        await first.send_all(recording)
        assert isinstance(await answer(first), Hello)
        for when in ("is up", "is over"):
            again = await net.dial("b0")
            await again.send_all(recording)
            refusal = await answer(again)
            assert isinstance(refusal, Farewell)
            assert when in refusal.reason
            await first.aclose()
            await b0.wait_for(SessionLost)
        assert b0.messages(1) == [YES]
        fresh = await net.dial("b0")
        await fresh.send_all(words(broker_hello(session=5, newest=3)))
        assert isinstance(await answer(fresh), Hello), "a new session is none that was recorded"


@pytest.mark.parametrize(
    "changes",
    [
        {"wire_version": WIRE_VERSION + 1},
        {"protocol": "gossip"},
        {"deployment_id": "last week's"},
        {"topology_digest": "other"},
        {"name": "b2"},
    ],
)
@in_virtual_time
async def test_a_broker_with_a_mismatched_hello_is_refused_with_a_farewell(
    changes: dict[str, Any],
) -> None:
    async with one_broker() as (net, b0, _):
        stream = await net.dial("b0")
        await stream.send_all(words(broker_hello(**({"number": 1} | changes))))
        refusal = await answer(stream)
        assert isinstance(refusal, Farewell)
        assert refusal.kind == "refused"
        assert b0.of(SessionEstablished) == []


# ---------------------------------------------------------------- S-AUTHZ-1: how much


@in_virtual_time
async def test_a_publisher_above_its_rate_is_delayed_without_delay_to_others() -> None:
    net = MemoryNet(room_bytes=1_000)
    parameters = SessionParameters(client_publications_per_second=100, suspicion_ns=60 * 10**9)
    b0 = LinkedBroker(net, 0, parameters)

    async def publish(name: str, session: int, first: int, count: int) -> None:
        stream = await net.dial("b0")
        await stream.send_all(words(client_hello(name, "d", 1, session)))
        assert isinstance(await answer(stream), Hello)
        nursery.start_soon(listen, stream)
        for sequence in range(first, first + count):
            await stream.send_all(words(Publish(run_of(SourceId(0, 1, 1), sequence, b"\xa0"))))

    async def listen(stream: trio.abc.Stream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass

    def taken(name: str) -> int:
        return sum(len(message.run) for message in b0.messages(name))

    async with nursery_of_the_test() as nursery:
        await nursery.start(b0.run)
        nursery.start_soon(publish, "greedy", 1, 1, 1_000)
        nursery.start_soon(publish, "modest", 1, 1, 90)
        await trio.sleep(1)
        assert taken("modest") == 90
        assert 100 <= taken("greedy") < 300
        nursery.start_soon(publish, "greedy", 2, 1, 1_000)
        await trio.sleep(1)
        assert taken("greedy") < 400, "connecting again gains nothing"
        await trio.sleep(18)
        assert b0.sequences("greedy")[-1_000:] == [*range(1, 1_001)], "in the end it all comes"
        assert [lost.reason for lost in b0.of(SessionLost)] == ["closed_by_us"], "superseded"
        assert b0.links.counters["publishers_slowed"] > 0


def frame(header: bytes) -> bytes:
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


# ---------------------------------------------------------------- S-CTRL-1: commands


@pytest.mark.parametrize(
    "said",
    [
        [1, 1, "fault_apply", {"fault_id": "f", "verb": "absorb", "peer": ""}],
        [1, 1, "status", {}],
        [max(kind.number for kind in all_kinds().values()) + 1, "stall"],
        [0],
        ["stall"],
    ],
)
@pytest.mark.parametrize("greeted", [False, True])
@in_virtual_time
async def test_no_command_is_obeyed_over_a_link(said: list[Any], greeted: bool) -> None:
    async with one_broker() as (net, b0, _):
        stream = await net.dial("b0")
        await stream.send_all(words(client_hello("c", "d", 1, 1)) * greeted)
        await stream.send_all(frame(cbor2.dumps(said)))
        await RawPeer(stream).read_to_the_end()
        assert len(b0.links.faults) == 0
        assert [lost.reason for lost in b0.of(SessionLost)] == ["protocol_error"] * greeted
        assert trio.current_time() < 1


def test_no_message_of_the_wire_is_a_command() -> None:
    modules = {kind.__module__ for kind in all_kinds()}
    assert not any("control" in module or "fault" in module for module in modules)
