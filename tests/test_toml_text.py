"""TOML documents that are too deep, too large, or have numbers out of bounds."""

import pytest

from brokerd.text import DEEPEST, LARGEST_TOML, parse_toml


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("a = [{ b = nan }]", "a[0].b = nan is not a finite number"),
        ("a.b = -inf", "a.b = -inf is not a finite number"),
        (f"a = {1 << 70}", "does not fit into 64 bits"),
        (f"a = {'9' * 10_000}", "digits"),
        (f"a = {'[' * 100_000}{']' * 100_000}", "nested more than"),
        (f"a = {'[' * 40}{']' * 40}", "nested more than"),
        ("a." * 20_000 + "a = 1", "a key with more than"),
        ("[" + "a." * 20_000 + "a]", "a key with more than"),
        ("#" * (LARGEST_TOML + 1), "larger than"),
    ],
    ids=range(9),
)
def test_a_value_out_of_bounds_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  its text is looked at
        parse_toml(text)
    assert complaint in str(caught.value)


def test_a_document_within_the_limits_is_parsed() -> None:
    text = f"a = {'[' * (DEEPEST - 1)}{']' * (DEEPEST - 1)}\nb = {(1 << 63) - 1}\nc.d.e = 1.5\n"
    assert parse_toml(text)["b"] == (1 << 63) - 1
