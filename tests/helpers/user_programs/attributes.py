"""Attributes of all kinds, and predicates with functions that select the same publications."""

import random
from collections.abc import Callable
from typing import Final

from brokerd.model.predicate import Scalar
from tests.helpers.user_programs.history import Attributes

VALUES: Final[tuple[Scalar | None, ...]] = (
    None, 0, 1, True, False, 1.0, 0.0, -0.0, "1", "", "true", "ü\N{SLIGHTLY SMILING FACE}",
    "x" * 200, 1 << 62, -(1 << 62), 1.5,
)  # fmt: skip
"""Values of an attribute; some are equal in Python and are of different kinds. None: absent."""


def _number(value: Scalar | None) -> float | None:
    """Return a number; None for other kinds."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_number(attributes: Attributes, test: Callable[[float], bool]) -> bool:
    value = _number(attributes.get("v"))
    return value is not None and test(value)


PREDICATES: Final[dict[str, Callable[[Attributes], bool]]] = {
    "true": lambda each: True,
    "kind = 'a'": lambda each: each["kind"] == "a",
    "n > 20": lambda each: int(each["n"]) > 20,
    "kind = 'b' or n < 30": lambda each: each["kind"] == "b" or int(each["n"]) < 30,
    "v = 1": lambda each: _is_number(each, lambda value: value == 1),
    "v != 1": lambda each: _is_number(each, lambda value: value != 1),
    "v < 1.5": lambda each: _is_number(each, lambda value: value < 1.5),
    "v = true or kind = 'a'": lambda each: each.get("v") is True or each["kind"] == "a",
    "v = '1' or v = ''": lambda each: each.get("v") in ("1", ""),
    "v exists": lambda each: "v" in each,
    "not v exists": lambda each: "v" not in each,
    "v in (0, '1', false)": lambda each: (
        each.get("v") is False or each.get("v") == "1" or _number(each.get("v")) == 0
    ),
}


def draw_attributes(choices: random.Random, number: int) -> Attributes:
    """Return attributes: a kind, a number, and a value of any kind or none."""
    found: dict[str, Scalar] = {"kind": choices.choice("ab"), "n": number}
    value = choices.choice(VALUES)
    if value is not None:
        found["v"] = value
    return found


def shape_of(attributes: Attributes) -> dict[str, tuple[str, str]]:
    """Return attributes with their kinds: 1, True and 1.0 differ, and so do 0.0 and -0.0."""
    return {name: (type(value).__name__, repr(value)) for name, value in attributes.items()}
