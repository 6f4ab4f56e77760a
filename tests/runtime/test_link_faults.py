"""Tests of link faults: delays, drops, refusals, and complete cleanup."""

import pytest
import trio

from brokerd.protocols.delta_tree.messages import RecoveryFlag
from brokerd.protocols.interface import OpenFailed, SessionEstablished, SessionLost
from brokerd.units import SECOND_NS
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants
from tests.helpers.memory_links import (
    LinkedBroker,
    MemoryNet,
    copy,
    join_brokers,
    nursery_of_the_test,
)
from tests.helpers.virtual_time import in_virtual_time

YES = RecoveryFlag(True)


@in_virtual_time
async def test_an_absorbing_broker_receives_all_sends_nothing_and_is_not_suspected() -> None:
    net = MemoryNet()
    b0, b1, b2 = (LinkedBroker(net, number) for number in range(3))
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1, b2)
        b0.fault("absorb")
        for first in range(1, 6):
            b1.send(0, copy(first))
            b2.send(0, copy(first))
            b0.send(1, copy(first))
        await trio.sleep(600)
        assert b0.messages(1) == b0.messages(2) == b1.messages(0) == []
        assert b0.of(SessionLost) == b1.of(SessionLost) == []
        counters = b0.counters("absorb")
        assert counters["absorbed_publications"] == 15
        assert 3 <= counters["absorbed_messages"] <= 15
        assert counters["absorbed_bytes"] > 100
        assert counters["forwarded_since_applied"] == 0

        b1.send(0, copy(6))
        await trio.sleep(0.1)
        b0.heal("absorb")
        b1.send(0, copy(7))
        await trio.sleep(0.1)
        assert b0.sequences(1) == [1, 2, 3, 4, 5, 6, 7]
        assert b0.sequences(2) == [1, 2, 3, 4, 5]
        assert b1.sequences(0) == [1, 2, 3, 4, 5]


@in_virtual_time
async def test_a_broker_with_send_omission_handles_messages_and_is_not_suspected() -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        b0.fault("send-omission")
        for first in range(1, 6):
            b1.send(0, copy(first))
            b0.send(1, copy(first))
        await trio.sleep(600)
        assert b0.sequences(1) == [1, 2, 3, 4, 5]
        assert b1.messages(0) == b0.of(SessionLost) == b1.of(SessionLost) == []
        counters = b0.counters("send-omission")
        assert counters["absorbed_publications"] == 5, "what came in is not held"
        assert counters["forwarded_since_applied"] == 0
        b0.heal("send-omission")
        b0.send(1, copy(6))
        await trio.sleep(0.1)
        assert b1.sequences(0) == [1, 2, 3, 4, 5, 6]


@in_virtual_time
async def test_a_broker_that_omits_receives_sends_on_and_is_not_suspected() -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        b0.fault("receive-omission")
        for first in range(1, 6):
            b1.send(0, copy(first))
            b0.send(1, copy(first))
        await trio.sleep(600)
        assert b1.sequences(0) == [1, 2, 3, 4, 5]
        assert b0.messages(1) == b0.of(SessionLost) == b1.of(SessionLost) == []
        counters = b0.counters("receive-omission")
        assert counters["absorbed_publications"] == 5, "the messages sent are not held"
        assert counters["forwarded_since_applied"] == 0
        b0.heal("receive-omission")
        b1.send(0, copy(6))
        await trio.sleep(0.1)
        assert b0.sequences(1) == [1, 2, 3, 4, 5, 6]


@plant_mutants([Mutant.HEARTBEATS_IN_QUEUE])
@in_virtual_time
async def test_mutant_m40_makes_an_absorbing_broker_look_dead() -> None:
    net = MemoryNet()
    b0 = LinkedBroker(net, 0)
    b1 = LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        b0.fault("absorb")
        lost = await b1.wait_for(SessionLost)
        assert lost.reason == "silent"


@in_virtual_time
async def test_absorbed_messages_are_discarded_with_their_session() -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        b0.fault("absorb", 1)
        b1.send(0, copy(1))
        b0.send(1, copy(1))
        await trio.sleep(1)
        b0.fault("cut", 1)
        await b1.wait_for(SessionLost)
        b0.heal("cut")
        b0.heal("absorb")
        b1.links.open(0)
        await b0.wait_for(SessionEstablished, 2)
        await trio.sleep(1)
        assert b0.messages(1) == b1.messages(0) == []
        b0.assert_sessions_end_once()


@in_virtual_time
async def test_an_absorbing_broker_stops_reading_at_its_limit_and_reports_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = MemoryNet(room_bytes=2_000)
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    monkeypatch.setattr(b0.links._impairments.absorbed, "_limit_bytes", 5_000)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        b0.fault("absorb", 1)
        for first in range(1, 41):
            b1.send(0, copy(first, 1_000))
        await trio.sleep(0.5)
        assert "absorb_full" in [event for event, _ in b0.records]
        assert b0.links._impairments.absorbed.held_bytes < 10_000
        b0.heal("absorb")
        await trio.sleep(0.5)
        assert b0.sequences(1) == list(range(1, 41))


@pytest.mark.parametrize("direction", ["both", "out"])
@in_virtual_time
async def test_through_a_blackhole_not_even_a_close_is_noticed(direction: str) -> None:
    """Both ends detect the fault by silence; the streams stay open until the fault is healed."""
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        b0.fault("blackhole", 1, direction)
        b0.send(1, copy(1))
        b0.links.close(1, "to see whether it is noticed")
        began = trio.current_time()
        lost = await b1.wait_for(SessionLost)
        assert lost.reason == "silent"
        assert 0.5 <= trio.current_time() - began <= 1
        b0.links.open(1)
        b1.links.open(0)
        await b0.wait_for(OpenFailed)
        await b1.wait_for(OpenFailed)
        assert b1.messages(0) == []
        b0.heal("blackhole")
        b1.links.open(0)
        await b0.wait_for(SessionEstablished, 2)
        b0.assert_sessions_end_once()
        b1.assert_sessions_end_once()


@in_virtual_time
async def test_a_short_blackhole_loses_nothing() -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        b0.fault("blackhole", 1)
        b0.send(1, copy(1))
        b1.send(0, copy(1))
        await trio.sleep(0.4)
        assert b0.messages(1) == b1.messages(0) == []
        assert (b0.links.can_exchange(1), b1.links.can_exchange(0)) == (False, True)
        b0.heal("blackhole")
        await trio.sleep(0.1)
        assert b0.links.can_exchange(1)
        assert len(b0.messages(1)) == len(b1.messages(0)) == 1
        assert b0.of(SessionLost) == b1.of(SessionLost) == []


@in_virtual_time
async def test_a_cut_link_is_noticed_at_both_ends_and_refuses_until_it_is_healed() -> None:
    net = MemoryNet()
    b0, b1, b2 = (LinkedBroker(net, number) for number in range(3))
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1, b2)
        b0.fault("cut", 1)
        await b1.wait_for(SessionLost)
        await b0.wait_for(SessionLost)
        b0.links.open(1)
        b1.links.open(0)
        assert "cut" in (await b0.wait_for(OpenFailed)).reason
        await b1.wait_for(OpenFailed)
        counters = b0.counters("cut")
        assert (counters["sessions_down"], counters["refused_connections"]) == (1, 2)
        assert b0.links.counters["broker_sessions_lost"] == 1
        b0.send(2, YES)
        await trio.sleep(0.1)
        assert b2.messages(0) == [YES]
        b0.heal("cut")
        b1.links.open(0)
        await b0.wait_for(SessionEstablished, 3)


@pytest.mark.parametrize("direction, there, back", [("out", 2, 0), ("in", 0, 2), ("both", 2, 2)])
@in_virtual_time
async def test_a_delay_holds_messages_up_in_its_direction_and_keeps_their_order(
    direction: str, there: int, back: int
) -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        b0.fault("delay", 1, direction, delay_ms=2_000)
        b0.send(1, copy(1))
        b1.send(0, copy(1))
        await trio.sleep(1.9)
        assert (len(b1.sequences(0)), len(b0.sequences(1))) == (not there, not back)
        b0.heal("delay")
        b0.send(1, copy(2))
        b1.send(0, copy(2))
        await trio.sleep(0.05)
        assert (len(b1.sequences(0)), len(b0.sequences(1))) == (0 if there else 2, 0 if back else 2)
        await trio.sleep(0.1)
        assert b0.sequences(1) == b1.sequences(0) == [1, 2]
        assert b0.of(SessionLost) == b1.of(SessionLost) == []


@pytest.mark.parametrize("room_bytes", [1_000, 1 << 20])
@pytest.mark.parametrize("direction", ["out", "in"])
@in_virtual_time
async def test_a_narrow_link_delays_messages_and_is_not_suspected(
    direction: str, room_bytes: int
) -> None:
    net = MemoryNet(room_bytes)
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    sender, receiver = (b0, b1) if direction == "out" else (b1, b0)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        b0.fault("bandwidth", 1, direction, bytes_per_second=10_000)
        began = trio.current_time()
        for first in range(1, 6):
            sender.send(receiver.number, copy(first, 20_000))
        while len(receiver.sequences(sender.number)) < 5:
            await trio.sleep(0.1)
        assert 9.5 < trio.current_time() - began < 12
        assert b0.of(SessionLost) == b1.of(SessionLost) == []


@in_virtual_time
async def test_a_fault_heals_when_its_lease_expires() -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        await join_brokers(nursery, b0, b1)
        now_ns = round(trio.current_time() * SECOND_NS)
        b0.fault("absorb", 1, ends_ns=now_ns + 2 * SECOND_NS)
        b1.send(0, YES)
        await trio.sleep(1.5)
        assert b0.links.faults.renew("absorb", now_ns + 4 * SECOND_NS)
        await trio.sleep(2)
        assert b0.messages(1) == []
        await trio.sleep(1)
        assert b0.messages(1) == [YES]


@in_virtual_time
async def test_a_probe_reports_whether_a_session_is_possible() -> None:
    net = MemoryNet()
    b0, b1 = LinkedBroker(net, 0), LinkedBroker(net, 1)
    async with nursery_of_the_test() as nursery:
        for broker in (b0, b1):
            await nursery.start(broker.run)
        assert await b0.links.probe(1) is None
        assert await b0.links.probe(2) == "nobody listens on b2"
        b0.fault("cut", 1)
        assert await b0.links.probe(1) == "the link is cut"
        b0.heal("cut")
        b1.fault("blackhole", 0)
        assert await b0.links.probe(1) == "no answer in time"
        b1.heal("blackhole")
        b1.links._table.own.topology_digest = "another"
        assert "topology digest" in str(await b0.links.probe(1))
        assert b0.events == b1.events == []
