"""Stories about stamps of several clocks, and about latencies between clocks."""

from random import Random
from typing import Any

import numpy as np
import pytest

from results.checker.clocks import Clocks, judge_one_way
from results.reference import times as reference

MS = 1_000_000
SECOND = 1_000_000_000


def row(host: str, phase: str, t_s: float, offset_ns: int, err_ns: int, **more: Any) -> Any:
    return {
        "phase": phase,
        "host_id": host,
        "ref_host": "a",
        "same_clock": host == "a",
        "clock_id": f"boot-{host}",
        "t_ns": round(t_s * SECOND),
        "offset_ns": offset_ns,
        "drift_ppb": 0.0,
        "rtt_min_ns": 2 * err_ns,
        "err_ns": err_ns,
        "n": 30,
        **more,
    }


CLOCKS = Clocks.from_rows(
    "a",
    [
        row("a", "before", 100, 0, 0),
        row("b", "before", 100, 5 * SECOND, MS),
        row("c", "before", 100, 0, 0, same_clock=True, clock_id="boot-a"),
        row("d", "before", 100, 0, MS),
        row("a", "after", 200, 0, 0),
        row("b", "after", 200, 5 * SECOND + 4 * MS, 2 * MS),
    ],
)


@pytest.mark.parametrize(
    "median_us, error_us, is_told",
    [
        (1_000.0, 0, True),  # one clock
        (-5.0, 0, True),  # one clock: a negative latency is evidence, and shown
        (1_000.0, 100, True),  # exactly a tenth
        (1_000.0, 101, False),
        (50_000.0, 500, True),
        (0.0, 1, False),
        (-200.0, 10, False),
        (1_000.0, None, False),
    ],
)
def test_a_latency_between_clocks_is_reported_up_to_a_tenth_of_error(
    median_us: float, error_us: float | None, is_told: bool
) -> None:
    judged = judge_one_way(median_us, error_us)
    assert judged.is_announced is is_told, judged
    assert judged.words.startswith("refused") is not is_told


def test_a_stamp_of_another_clock_is_moved_along_the_line_between_two_looks() -> None:
    assert CLOCKS.offset_ns("b", 105 * SECOND) == 5 * SECOND
    halfway = CLOCKS.offset_ns("b", 155 * SECOND)
    assert halfway == pytest.approx(5 * SECOND + 2 * MS, abs=1_000)
    assert CLOCKS.offset_ns("b", 300 * SECOND) == 5 * SECOND + 4 * MS


def test_stamps_of_the_same_clock_stay_as_they_are() -> None:
    assert CLOCKS.offset_ns("a", 7) == CLOCKS.offset_ns("c", 7) == 0
    assert CLOCKS.share("a", "c")
    assert not CLOCKS.share("a", "b")
    assert CLOCKS.error_between_ns("a", "c", 0) == 0


def test_the_error_is_the_worst_of_both_looks_and_more_where_there_was_one_only() -> None:
    assert CLOCKS.error_ns("b", 200 * SECOND) == 2 * MS + 50_000
    once = CLOCKS.error_ns("d", 160 * SECOND)
    assert once == MS + 6 * MS  # a minute of a clock of which nothing is known
    assert CLOCKS.error_between_ns("b", "d", 160 * SECOND) == 2 * MS + 50_000 + 7 * MS


def test_a_host_without_clock_comparisons_has_no_error_bound() -> None:
    assert CLOCKS.error_ns("x", 0) is None
    assert CLOCKS.error_between_ns("a", "x", 0) is None
    assert not CLOCKS.share("x", "y")
    assert CLOCKS.share("x", "x")


def test_hosts_of_one_boot_are_one_machine() -> None:
    assert CLOCKS.machines(["a", "b", "c", "d"]) == 3


def test_a_run_that_compared_no_clocks_had_one() -> None:
    assert Clocks("a").share("a", "b")
    assert Clocks("a").machines(["a", "b"]) == 1


@pytest.mark.parametrize("seed", range(30))
def test_both_judges_move_stamps_alike_and_bound_errors_alike(seed: int) -> None:
    """Few distinct instants are drawn, so that stamps often coincide."""
    random = Random(seed)
    hosts = "abcd"
    days_ns = random.choice((0, 2**53 + 1, 2**60 + 1, -(2**61) - 3))
    lines = [
        row(
            host, phase, random.choice((100, 100, 200, 201)),
            random.choice((-7, 0, 1, 4, 10**15)) + days_ns, random.choice((0, 3, MS, 5 * MS)),
            clock_id=random.choice(("boot-a", f"boot-{host}", f"boot-{host}")),
        )
        for host in hosts
        for phase in ("before", "after")[: random.randrange(3)]
    ]  # fmt: skip
    until_ns = random.choice((99, 100, 150, 300)) * SECOND
    ours = Clocks.from_rows("a", lines)
    theirs = reference.Clocks("a", until_ns, tuple(lines))
    for one in hosts:
        stamps = [
            seconds * SECOND + by_ns + beyond_ns
            for seconds in (99, 100, 150, 200, 201, 400)
            for by_ns in (-1, 0, 1, 10**15)
            for beyond_ns in {0, days_ns}
        ]
        wanted = [theirs.offset_ns(one, stamp_ns) for stamp_ns in stamps]
        assert [ours.offset_ns(one, stamp_ns) for stamp_ns in stamps] == wanted, lines
        assert ours.offsets_ns(one, np.array(stamps, "i8")).tolist() == wanted, lines
        for other in hosts:
            found_ns = ours.error_between_ns(one, other, until_ns)
            assert found_ns == theirs.error_ns(one, other), (one, other, lines)
        assert ours.error_between_ns(one, "a", until_ns) == theirs.error_ns(one), lines
        pairs = [(one, other) for other in random.sample(hosts, 2)]
        found = [ours.error_between_ns(*pair, until_ns) for pair in pairs]
        worst_ns = None if None in found else max(each or 0 for each in found)
        assert theirs.worst_ns(pairs) == worst_ns, (pairs, lines)
