"""Stories about stamps of several clocks, and latencies that may be told or not."""

from typing import Any

import pytest

from results.checker.clocks import Clocks, judge_one_way

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
    assert judged.is_told is is_told, judged
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
