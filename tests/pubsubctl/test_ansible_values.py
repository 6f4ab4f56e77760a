"""Tests of Ansible's values that stand in a text: Python literals, or the text itself."""

from typing import Any

import pytest

from pubsubctl.inventory.importers.ansible_files import LONGEST_VALUE, MOST_BRACKETS, literal


@pytest.mark.parametrize(
    "text, value",
    [
        ("22", 22),
        ("-1.5", -1.5),
        ("'lab'", "lab"),
        ('"a b"', "a b"),
        ("[1, 'x']", [1, "x"]),
        ("{'a': 1}", {"a": 1}),
        ("(1, 2)", (1, 2)),
        ("True", True),
        ("None", None),
        ("b'bytes'", "bytes"),
        ("b'\\xff'", "\ufffd"),
        ("1j", "1j"),
    ],
)
def test_a_literal_has_its_value(text: str, value: Any) -> None:
    found = literal(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        *("lab", "...", "[1, 2", "a.b.c", "1 + 2", "f(1)", "'a", "", " ", "{{ x }}", "yes", "true"),
        "[" * (MOST_BRACKETS + 1) + "]" * (MOST_BRACKETS + 1),
        f"'{'x' * LONGEST_VALUE}'",
        "[" * MOST_BRACKETS,
        "'\\N{no such name}'",
    ],
)
def test_any_other_text_is_itself(text: str) -> None:
    assert literal(text) == text
