"""Tests of the pace of acknowledgements: at once, batched, or when the sender seems to wait."""

from itertools import pairwise

from brokerd.sessions.outbox import COMPANY, LONGEST_NS, SHORTEST_NS, TO_PUBLISHER_NS, Pace

MS = 1_000_000
NOW = 1_000 * MS


def told_at(pace: Pace, arrivals: list[int], until_ns: int) -> list[int]:
    """Return the times of acknowledgements of a subscriber that receives single publications."""
    told: list[int] = []
    unsaid, due_ns = 0, 0
    arrivals = list(arrivals)
    now_ns = heard_ns = 0
    while now_ns < until_ns:
        coming = arrivals[0] if arrivals else until_ns
        now_ns = min(coming, due_ns) if unsaid else coming
        if arrivals and now_ns == arrivals[0]:
            heard_ns = arrivals.pop(0)
            unsaid += 1
        if not unsaid:
            continue
        due_ns = pace.due_ns(now_ns, unsaid, heard_ns)
        if due_ns <= now_ns:
            told.append(now_ns)
            pace.left_ns, pace.held_ns, unsaid = now_ns, 0, 0
    return told


def test_sparse_publications_are_acknowledged_at_once() -> None:
    arrivals = [NOW + place * 20 * MS for place in range(5)]
    assert told_at(Pace(is_origin=True), arrivals, NOW + 200 * MS) == arrivals


def test_in_a_stream_ten_milliseconds_go_together() -> None:
    arrivals = [NOW + place * MS for place in range(101)]
    told = told_at(Pace(is_origin=True), arrivals, NOW + 100 * MS + 1)
    assert told == [NOW + place * LONGEST_NS for place in range(11)]


def test_in_a_flood_so_many_go_together_and_never_sooner_than_writes_are_worth() -> None:
    flood = [NOW + place * MS // 10 for place in range(1_000)]
    told = told_at(Pace(is_origin=True), flood, NOW + 100 * MS)
    between = {after - before for before, after in pairwise(told)}
    assert between == {COMPANY * MS // 10}
    flood = [NOW + place * MS // 100 for place in range(10_000)]
    told = told_at(Pace(is_origin=True), flood, NOW + 100 * MS)
    between = {after - before for before, after in pairwise(told)}
    assert between == {SHORTEST_NS}


def test_a_sender_that_waits_with_a_full_window_is_not_kept_waiting() -> None:
    pace = Pace(is_origin=True, left_ns=NOW)
    came_ns = NOW + MS
    told = told_at(pace, [came_ns], NOW + 50 * MS)
    assert told == [came_ns + SHORTEST_NS]


def test_a_forwarding_broker_waits_only_after_its_own_last_write() -> None:
    pace = Pace(left_ns=NOW)
    assert pace.due_ns(NOW + 3 * MS, 1, NOW + 3 * MS) <= NOW + 3 * MS
    assert pace.due_ns(NOW + MS, 1, NOW + MS) == NOW + SHORTEST_NS


def test_a_publisher_is_acknowledged_sooner_except_in_a_flood() -> None:
    pace = Pace(to_publisher=True, left_ns=NOW)
    assert pace.due_ns(NOW + MS // 4, 1, NOW) == NOW + TO_PUBLISHER_NS
    assert pace.due_ns(NOW + MS, 1, NOW) <= NOW + MS
    assert pace.due_ns(NOW + MS, 1, NOW, in_flood=True) == NOW + SHORTEST_NS
