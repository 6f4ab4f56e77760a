"""Tests of link faults: the affected links, and invalid requests."""

from typing import Any

import pytest

from brokerd.errors import ControlError
from brokerd.sessions.link_faults import (
    CLEAR,
    AbsorbedMessages,
    LinkFaults,
    LinkTreatment,
    read_fault,
)
from brokerd.units import MILLISECOND_NS


def faults(*descriptions: tuple[Any, ...]) -> LinkFaults:
    """Return faults from tuples of verb, peer, direction and parameters."""
    together = LinkFaults()
    for number, (verb, peer, direction, parameters) in enumerate(descriptions):
        together.apply(read_fault(f"f{number}", verb, peer, direction, parameters, None))
    return together


def test_a_fault_acts_on_its_link_and_direction_only() -> None:
    one = faults(("blackhole", 1, "out", {}))
    assert one.treatment(1, "out") == LinkTreatment(blackholed=True)
    assert one.treatment(1, "in") == one.treatment(2, "out") == CLEAR


def test_a_fault_of_all_links_concerns_clients_too() -> None:
    everywhere = faults(("absorb", None, "both", {}))
    for peer in (1, 2, "a client"):
        assert everywhere.treatment(peer, "in").absorbs
        assert everywhere.treatment(peer, "out").absorbs


def test_a_cut_is_never_one_way() -> None:
    assert faults(("cut", 1, "out", {})).treatment(1, "in").cut


def test_faults_of_one_link_add_up() -> None:
    several = faults(
        ("delay", 1, "both", {"delay_ms": 20}),
        ("delay", None, "out", {"delay_ms": 5}),
        ("bandwidth", 1, "out", {"bytes_per_second": 1_000}),
        ("bandwidth", 1, "out", {"bytes_per_second": 500}),
    )
    assert several.treatment(1, "out") == LinkTreatment(
        delay_ns=25 * MILLISECOND_NS, bytes_per_second=500
    )
    assert several.treatment(1, "in") == LinkTreatment(delay_ns=20 * MILLISECOND_NS)
    several.heal("f3")
    assert several.treatment(1, "out").bytes_per_second == 1_000


def test_the_same_fault_again_only_moves_its_end_and_another_of_its_id_is_refused() -> None:
    one = faults(("absorb", 1, "both", {}))
    one.apply(read_fault("f0", "absorb", 1, "both", {}, 50))
    assert (one.list_expired(49), one.list_expired(50)) == ([], ["f0"])
    with pytest.raises(ControlError, match="exists already, as 'absorb'"):
        one.apply(read_fault("f0", "cut", 1, "both", {}, 50))


def test_healing_twice_or_without_a_fault_changes_nothing() -> None:
    one = faults(("absorb", 1, "both", {}))
    assert one.heal("f0") is not None
    assert one.heal("f0") is None
    assert not one.renew("f0", None)
    assert len(one) == 0


def test_counters_count_for_the_faults_that_act() -> None:
    two = faults(("absorb", 1, "in", {}), ("absorb", 2, "both", {}))
    two.count(1, "in", absorbed_messages=2)
    two.count(1, "out", absorbed_messages=4)
    two.count(1, "both", sessions_down=1)
    first, second = two
    assert (first.counters["absorbed_messages"], first.counters["sessions_down"]) == (2, 1)
    assert set(second.counters.values()) == {0}


@pytest.mark.parametrize(
    "verb, direction, parameters, why",
    [
        ("stall", "both", {}, "verb 'stall'; one of absorb"),
        ("absorb", "up", {}, "direction 'up'; one of both"),
        ("absorb", "both", {"delay_ms": 1}, "takes no parameters"),
        ("delay", "both", {}, "delay_ms is a whole number from 1"),
        ("delay", "both", {"delay_ms": 0}, "from 1 to 60000"),
        ("delay", "both", {"delay_ms": "5"}, "whole number"),
        ("delay", "both", {"ms": 5}, "takes delay_ms, not 'ms'"),
        ("bandwidth", "both", {"bytes_per_second": True}, "whole number"),
    ],
)
def test_an_invalid_fault_request_is_refused_with_the_reason(
    verb: str, direction: str, parameters: dict[str, Any], why: str
) -> None:
    with pytest.raises(ControlError, match=why) as caught:
        read_fault("f", verb, 1, direction, parameters, None)
    assert caught.value.kind == "user"


def test_absorbed_messages_of_selected_owners_are_released_in_order() -> None:
    absorbed: AbsorbedMessages[str, int] = AbsorbedMessages(limit_bytes=10)
    for number, owner in enumerate("abab"):
        absorbed.hold(owner, number, 3)
    assert absorbed.is_full
    assert absorbed.take(lambda owner: owner == "b") == [("b", 1), ("b", 3)]
    assert not absorbed.is_full
    assert absorbed.take(lambda _: True) == [("a", 0), ("a", 2)]
    assert absorbed.held_bytes == 0


def test_the_fuller_of_two_full_disks_refuses_a_write() -> None:
    both = LinkFaults()
    for fault_id, free_bytes in (("large", 100), ("small", 10)):
        parameters = {"free_bytes": free_bytes}
        both.apply(read_fault(fault_id, "disk-full", None, "both", parameters, None))
    assert both.take_room(10)
    assert not both.take_room(1)
    large, small = both
    assert (large.counters["refused_writes"], small.counters["refused_writes"]) == (0, 1)
    assert large.counters["written_bytes"] == 10


def test_a_fault_without_an_end_never_expires_and_a_renewed_one_expires_later() -> None:
    together = faults(("cut", 1, "both", {}), ("cut", 2, "both", {}))
    assert together.list_expired(1 << 62) == []
    assert together.renew("f1", 50)
    assert (together.list_expired(49), together.list_expired(50)) == ([], ["f1"])
    assert together.renew("f1", None)
    assert together.list_expired(1 << 62) == []
    assert not together.renew("f2", 50)


@pytest.mark.parametrize("peer, direction", [(1, "both"), (None, "out"), (1, "in")])
def test_a_fault_of_a_disk_is_for_no_link_and_no_direction(
    peer: int | None, direction: str
) -> None:
    with pytest.raises(ControlError, match="is for a broker"):
        read_fault("f0", "disk-full", peer, direction, {"free_bytes": 1}, None)


@pytest.mark.parametrize(
    "verb, name, lowest, highest",
    [("delay", "delay_ms", 1, 60_000), ("disk-full", "free_bytes", 0, 1 << 40)],
)
def test_a_number_of_a_fault_is_within_its_bounds(
    verb: str, name: str, lowest: int, highest: int
) -> None:
    for value in (lowest, highest):
        read_fault("f0", verb, None, "both", {name: value}, None)
    for value in (lowest - 1, highest + 1):
        with pytest.raises(ControlError, match="whole number from"):
            read_fault("f0", verb, None, "both", {name: value}, None)


@pytest.mark.parametrize("mode", ["blackhole", "cut"])
def test_a_partition_has_peers_and_acts_on_these_only(mode: str) -> None:
    with pytest.raises(ControlError, match="needs the peers"):
        read_fault("f0", "partition", None, "both", {"mode": mode}, None)
    with pytest.raises(ControlError, match="one of blackhole, cut"):
        read_fault("f0", "partition", None, "both", {"mode": "x"}, None, (1,))
    together = LinkFaults()
    together.apply(read_fault("f0", "partition", None, "both", {"mode": mode}, None, (1, 2)))
    for peer, is_cut in ((1, True), (2, True), (3, False)):
        found = together.treatment(peer, "in")
        assert (found.blackholed, found.cut) == (is_cut and mode != "cut", is_cut and mode == "cut")


@pytest.mark.parametrize("verb, way", [("send-omission", "out"), ("receive-omission", "in")])
def test_an_omission_holds_one_direction_beside_other_faults(verb: str, way: Any) -> None:
    together = faults((verb, None, "both", {}), ("delay", 1, "both", {"delay_ms": 5}))
    other: Any = "in" if way == "out" else "out"
    assert together.treatment(1, way).absorbs
    assert not together.treatment(1, other).absorbs
    assert together.treatment(1, other).delay_ns == 5 * MILLISECOND_NS


def test_a_link_is_limited_by_a_delay_or_by_a_bandwidth() -> None:
    for verb, name in (("delay", "delay_ms"), ("bandwidth", "bytes_per_second")):
        assert faults((verb, 1, "both", {name: 9})).treatment(1, "in").is_limited
    assert not faults(("blackhole", 1, "both", {})).treatment(1, "in").is_limited


def test_slowed_writes_are_counted_for_the_faults_that_slow_them() -> None:
    together = faults(
        ("slow-fsync", None, "both", {"delay_ms": 5}),
        ("disk-full", None, "both", {"free_bytes": 9}),
    )
    together.count_slowed_write()
    together.count_slowed_write()
    assert [fault.counters["slowed_writes"] for fault in together] == [2, 0]
    assert together.write_delay_ns() == 5 * MILLISECOND_NS
    assert together.treatment(1, "both") == CLEAR


def test_absorbed_messages_fill_their_room_exactly() -> None:
    held = AbsorbedMessages[str, int](10)
    for size, is_full in ((9, False), (1, True)):
        held.hold("a", size, size)
        assert held.is_full == is_full
    held.take(lambda _: True)
    assert (held.is_full, held.held_bytes) == (False, 0)
