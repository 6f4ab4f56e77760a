"""Durations in words, of brokers and of fault schedules: how long they may be."""

from collections.abc import Callable

import pytest

from brokerd import units as durations
from fault_injection.schedule.durations import parse_duration_ns as parse_fault_time_ns

HOUR_NS = 3_600 * 10**9


@pytest.mark.parametrize("parse", [durations.parse_duration_ns, parse_fault_time_ns])
def test_what_no_clock_could_count_is_refused_with_the_limit(
    parse: Callable[[object], int],
) -> None:
    assert parse("10000h") == 10_000 * HOUR_NS < 2**63
    for text in ("10001h", "99999999999h", "600001min"):
        with pytest.raises(ValueError, match="at most 10000h"):
            parse(text)
    with pytest.raises(ValueError, match="a unit"):
        parse(f"{'9' * 5_000}h")
