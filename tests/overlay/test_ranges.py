"""Tests of ranges in names: expansions, and names without a range."""

import pytest

from brokerd.text import expand_range, expand_ranges


@pytest.mark.parametrize(
    "text, names",
    [
        ("n", ["n"]),
        ("n[1:3]", ["n1", "n2", "n3"]),
        ("n[01:02]-a", ["n01-a", "n02-a"]),
        ("n[098:101]", ["n098", "n099", "n100", "n101"]),
        ("n[5:5]", ["n5"]),
        ("b[1:6:2]", ["b1", "b3", "b5"]),
    ],
)
def test_a_range_keeps_its_leading_zeros(text: str, names: list[str]) -> None:
    assert expand_range(text) == names


@pytest.mark.parametrize(
    "text, why",
    [
        ("b[1:6:0]", "steps of 0"),
        ("b[6:1]", "backwards, from 6 to 1"),
        ("b[1-6]", "a range is written"),
        ("b[1:2][1:2]", "only one range"),
        ("n[1:1000000]", "1,000,000 names; a range has at most 4,096"),
        (f"n[1:{10**20 - 1}]", "names; a range has at most 4,096"),
        ("b[1:9999]", "9,999 names; a range has at most 4,096"),
    ],
)
def test_an_invalid_range_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        expand_range(text)


def test_a_list_of_names_may_hold_ranges() -> None:
    assert expand_ranges(["a", "b[1:5:2]"]) == ["a", "b1", "b3", "b5"]
    assert expand_ranges("brokers") == "brokers"
    assert expand_ranges([1]) == [1]
