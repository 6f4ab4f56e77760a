"""Tests of the valid value that an error names for a number with a wrong unit."""

import pytest

from bench.spec.values import parse_rate
from brokerd.units import parse_duration_ns, parse_latency_ns, parse_size_bytes


@pytest.mark.parametrize(
    "text, duration, size, rate",
    [
        ("10", "10s", "10B", "10/s"),
        (10, "10s", "10B", "10/s"),
        ("1.5 secs", "1.5s", "", "1.5/s"),
        ("5m", "5min", "5MB", "5/min"),
        ("2 Hours", "2h", "", "2/h"),
        ("40Hz", "", "", "40/s"),
        ("100kb", "", "100kB", ""),
        ("unlimited", "", "", "max"),
        ("fast", "", "", ""),
        ("-5s", "", "", ""),
        (True, "", "", ""),
    ],
)
def test_a_number_with_a_usual_unit_is_answered_with_the_valid_one(
    text: object, duration: str, size: str, rate: str
) -> None:
    readers = ((parse_duration_ns, duration), (parse_size_bytes, size), (parse_rate, rate))
    for read, guess in readers:
        with pytest.raises(ValueError, match="has a number") as refused:
            read(text)
        hint = str(refused.value).partition("did you mean ")[2]
        assert hint == (f'"{guess}"?' if guess else "")
        if guess:
            read(guess)


def test_a_latency_without_a_unit_is_answered_in_milliseconds() -> None:
    for text, hint in (("20", "20ms"), (5, "5ms"), ("2sec", "2s")):
        with pytest.raises(ValueError, match=f'did you mean "{hint}"'):
            parse_latency_ns(text)
