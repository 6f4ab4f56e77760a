"""Stories of faults on connections, on objects: what is counted, held, and kept open."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio.testing

from brokerd.protocols.interface import MessageReceived
from brokerd.runtime.impairments import MAXIMUM_PARKED, Impairments
from brokerd.sessions.link_faults import read_fault
from tests.helpers.memory_links import copy
from tests.helpers.virtual_time import in_virtual_time

PEER, OTHER = 1, 2
RUN = copy(1)
PLAIN = "a message without publications"

OUT = {
    "": {},
    "absorb": {"absorbed_messages": 2, "absorbed_publications": 1},
    "send-omission": {"absorbed_messages": 2, "absorbed_publications": 1},
    "blackhole": {},
    "delay": {"forwarded_since_applied": 2, "limited_messages": 2},
    "receive-omission": {},
}
IN = {
    "": {},
    "absorb": {"absorbed_messages": 2, "absorbed_publications": 1, "absorbed_bytes": 50},
    "receive-omission": {"absorbed_messages": 2, "absorbed_publications": 1, "absorbed_bytes": 50},
    "blackhole": {"forwarded_since_applied": 2},
    "delay": {"forwarded_since_applied": 2, "limited_messages": 2},
    "send-omission": {},
}


def is_of_broker(verb: str) -> bool:
    """Return True if the verb is for all links of a broker."""
    return verb.endswith("omission")


def impaired(verb: str, peer: int = PEER, direction: str = "both") -> Impairments:
    """Return impairments with a fault of a verb; none for an empty verb."""
    impairments = Impairments()
    if verb:
        value = {"delay_ms": 5} if verb == "delay" else {}
        of = None if is_of_broker(verb) else peer
        impairments.faults.apply(read_fault("f", verb, of, direction, value, None))
    return impairments


def connected(impairments: Impairments, peer: int = PEER, waiting: int = 0) -> Any:
    connection = SimpleNamespace(
        peer=peer, is_closed=False, outbox=SimpleNamespace(waiting_frames=waiting)
    )
    impairments.act_on(connection)  # type: ignore[arg-type]
    return connection


def counts(impairments: Impairments) -> dict[str, int]:
    """Return the counters of the only fault that are not 0."""
    return {
        name: count
        for fault in impairments.faults
        for name, count in fault.counters.items()
        if count
    }


@pytest.mark.parametrize("verb", OUT)
@pytest.mark.parametrize("peer", [PEER, OTHER])
def test_sent_messages_are_counted_as_the_fault_treats_them(verb: str, peer: int) -> None:
    impairments = impaired(verb)
    connection = connected(impairments, peer)
    for message in (RUN, PLAIN):
        impairments.count_outgoing(connection, message)
    assert counts(impairments) == (OUT[verb] if peer == PEER or is_of_broker(verb) else {})


@pytest.mark.parametrize("verb", IN)
@pytest.mark.parametrize("peer", [PEER, OTHER])
def test_received_messages_are_counted_as_the_fault_treats_them(verb: str, peer: int) -> None:
    impairments = impaired(verb)
    events = [MessageReceived(peer, 1, message) for message in (RUN, PLAIN)]
    impairments.count_incoming(connected(impairments, peer), events, 50)
    assert counts(impairments) == (IN[verb] if peer == PEER or is_of_broker(verb) else {})


@pytest.mark.parametrize("verb", ["absorb", "blackhole", "delay"])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_messages_of_the_other_direction_are_not_counted(verb: str, direction: str) -> None:
    events = [MessageReceived(PEER, 1, message) for message in (RUN, PLAIN)]
    received = impaired(verb, direction=direction)
    received.count_incoming(connected(received), events, 50)
    assert counts(received) == (IN[verb] if direction == "in" else {})
    sent = impaired(verb, direction=direction)
    for message in (RUN, PLAIN):
        sent.count_outgoing(connected(sent), message)
    assert counts(sent) == (OUT[verb] if direction == "out" else {})


@pytest.mark.parametrize("verb", ["cut", "blackhole", "delay", "absorb"])
def test_frames_that_a_stopped_session_has_not_written_are_counted(verb: str) -> None:
    impairments = impaired(verb)
    impairments.count_ended(connected(impairments, waiting=3))
    lost = {"dropped_frames": 3} if verb in ("cut", "blackhole") else {}
    assert counts(impairments) == {"sessions_down": 1, **lost}


def test_held_messages_are_released_in_order_once_and_never_after_their_session() -> None:
    impairments = impaired("absorb")
    first, second = connected(impairments), connected(impairments)
    events = [MessageReceived(PEER, place, PLAIN) for place in range(4)]
    for place, event in enumerate(events):
        assert not impairments.absorb((first, second)[place % 2], [event], 10)
    assert impairments.absorbed.held_bytes == 40
    assert impairments.release() == [], "while the fault lasts"
    impairments.faults.heal("f")
    for connection in (first, second):
        impairments.act_on(connection)
    first.is_closed = True
    assert impairments.release() == [events[1], events[3]]
    assert impairments.release() == []
    assert impairments.absorbed.held_bytes == 0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_messages_that_arrive_together_are_held_with_their_size_together(count: int) -> None:
    impairments = impaired("absorb")
    events = [MessageReceived(PEER, place, PLAIN) for place in range(count)]
    for times in (1, 2):
        impairments.absorb(connected(impairments), events, 1000)
        assert impairments.absorbed.held_bytes == 1000 * times


def test_a_full_buffer_is_reported_when_it_fills_and_not_while_it_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impairments = impaired("absorb")
    monkeypatch.setattr(impairments.absorbed, "_limit_bytes", 25)
    connection = connected(impairments)
    event = MessageReceived(PEER, 1, PLAIN)
    for _ in range(2):
        filled = [impairments.absorb(connection, [event], 10) for _ in range(5)]
        assert filled == [False, False, True, False, False]
        impairments.absorbed.take(lambda _: True)  # its session has ended


@in_virtual_time
async def test_hidden_streams_are_closed_after_their_fault_or_beyond_the_limit() -> None:
    impairments = impaired("blackhole", PEER, "out")
    streams = [trio.testing.memory_stream_pair()[0] for _ in range(MAXIMUM_PARKED + 2)]
    beyond = [impairments.park(PEER, stream) for stream in streams]
    assert beyond == [*[None] * MAXIMUM_PARKED, *streams[:2]]
    impairments.park(OTHER, other := trio.testing.memory_stream_pair()[0])
    assert impairments.unpark() == [other], "no blackhole hides it"
    impairments.faults.heal("f")
    assert impairments.unpark() == streams[3:], "the oldest went for the last one"
    assert impairments.unpark() == []


@pytest.mark.parametrize("direction", ["in", "out", "both"])
@in_virtual_time
async def test_a_blackhole_in_either_direction_hides_closes_and_stops_new_connections(
    direction: str,
) -> None:
    impairments = impaired("blackhole", PEER, direction)
    stream = trio.testing.memory_stream_pair()[0]
    impairments.park(PEER, stream)
    assert impairments.unpark() == []
    with trio.move_on_after(60) as waiting:
        await impairments.wait_passable(PEER)
    assert waiting.cancelled_caught
    impairments.faults.heal("f")
    assert impairments.unpark() == [stream]
    await impairments.wait_passable(PEER)


@in_virtual_time
async def test_a_connection_over_a_slow_link_takes_both_ways() -> None:
    impairments = impaired("delay", PEER, "out")
    impairments.faults.apply(read_fault("g", "delay", PEER, "in", {"delay_ms": 7}, None))
    began_s = trio.current_time()
    await impairments.wait_passable(PEER)
    assert round(trio.current_time() - began_s, 4) == 0.012
    impairments.faults.apply(read_fault("h", "cut", PEER, "both", {}, None))
    with pytest.raises(ConnectionRefusedError, match="cut"):
        await impairments.wait_passable(PEER)
    assert [fault.counters["refused_connections"] for fault in impairments.faults] == [1, 1, 1]
