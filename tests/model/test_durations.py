"""Tests of durations in words: units, bounds, and text that parses to the same value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.units import (
    HOUR_NS,
    LONGEST_NS,
    MILLISECOND_NS,
    SECOND_NS,
    format_duration,
    parse_duration_ns,
)


def test_a_duration_beyond_the_longest_is_refused_with_the_limit() -> None:
    assert parse_duration_ns("10000h") == 10_000 * HOUR_NS < 2**63
    for text in ("10001h", "99999999999h", "600001min"):
        with pytest.raises(ValueError, match="at most 10000h"):
            parse_duration_ns(text)
    with pytest.raises(ValueError, match="a unit"):
        parse_duration_ns(f"{'9' * 5_000}h")


@pytest.mark.parametrize(
    "text, duration_ns",
    [("1min30s", 90 * SECOND_NS), ("2.5s", 2_500 * MILLISECOND_NS), ("7us", 7_000), ("0s", 0)],
)
def test_a_duration_may_have_several_parts(text: str, duration_ns: int) -> None:
    assert parse_duration_ns(text) == duration_ns


def test_a_step_bounds_the_precision() -> None:
    assert parse_duration_ns("1.5ms") == 1_500_000
    with pytest.raises(ValueError, match="whole number of milliseconds"):
        parse_duration_ns("1.5ms", MILLISECOND_NS)


@given(st.integers(0, LONGEST_NS))
def test_formatted_text_parses_to_the_same_value(duration_ns: int) -> None:
    assert parse_duration_ns(format_duration(duration_ns)) == duration_ns


@pytest.mark.parametrize(
    "duration_ns, text",
    [
        (90 * SECOND_NS, "90s"),
        (120 * SECOND_NS, "2min"),
        (2_500_000_000, "2.5s"),
        (1_500, "1500ns"),
    ],
)
def test_the_shortest_exact_text(duration_ns: int, text: str) -> None:
    assert format_duration(duration_ns) == text
