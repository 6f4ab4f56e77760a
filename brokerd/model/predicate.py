"""Content predicates: an OR of conjunctions of simple tests on attributes.

`Predicate.matches` is the reference semantics of the broker's matching index. The semantics:
a test on an absent attribute is false, negated tests too (only `not exists` holds); int and
float compare as numbers, bool and str only with their own kind, any other pair of kinds makes
the test false, negated or not; strings compare by code point; NaN is refused.

Equality and hash of predicates follow the same rule: `x = true` and `x = 1` are two predicates,
`x = 1` and `x = 1.0` are one. Equal predicates match the same publications.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.errors import BrokerError

Scalar = str | int | float | bool
Attributes = Mapping[str, Scalar]
DecodeAttributes = Callable[[Sequence[bytes]], Sequence[Attributes]]
"""Decodes attribute blobs; raises ValueError if a blob is malformed."""

OPERATORS = (
    "=", "!=", "<", "<=", ">", ">=", "in", "prefix", "suffix", "contains", "exists",
    "not in", "not prefix", "not suffix", "not contains", "not exists",
)  # fmt: skip

MAXIMUM_TERMS = 64
MAXIMUM_STRING_BYTES = 256
MAXIMUM_LIST_ITEMS = 256
MAXIMUM_DEPTH = 8
INTEGER_LIMIT = 1 << 63


class PredicateError(BrokerError):
    """A predicate that cannot be parsed or is larger than the limits.

    The text states place and fault.
    """


@dataclass(frozen=True, slots=True)
class Constraint:
    """One test: attribute, operator, and reference value.

    `value` is a scalar; a tuple of scalars for `in` and `not in`; None for `exists` and `not
    exists`. Two tests are equal if attribute, operator, kind and value are equal.

    Raises:
        PredicateError: operator and value do not fit, or the value breaks a limit.
    """

    attribute: str
    operator: str
    value: Scalar | tuple[Scalar, ...] | None = field(compare=False)
    _key: tuple[object, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_string(self.attribute)
        if not self.attribute:
            raise PredicateError("an attribute name is empty")
        if self.operator not in OPERATORS:
            raise PredicateError(
                f"unknown operator {str(self.operator)[:40]!a}; one of {', '.join(OPERATORS)}"
            )
        plain = self.operator.removeprefix("not ")
        if plain == "exists":
            fits = self.value is None
        elif plain == "in":
            fits = isinstance(self.value, tuple) and len(self.value) <= MAXIMUM_LIST_ITEMS
            fits = fits and bool(self.value)
        elif plain in ("prefix", "suffix", "contains"):
            fits = isinstance(self.value, str)
        else:
            fits = isinstance(self.value, str | int | float | bool)
        if not fits:
            raise PredicateError(
                f"operator {self.operator!r} cannot take the given value "
                f"(lists hold 1 to {MAXIMUM_LIST_ITEMS} items)"
            )
        for item in self.value if isinstance(self.value, tuple) else (self.value,):
            if item is not None:
                check_scalar(item)
        # Python's 1 == True would make two tests one.
        object.__setattr__(self, "_key", comparison_key(self.value))

    def holds(self, attributes: Attributes) -> bool:
        """Return True if the test holds for these attributes."""
        value = attributes.get(self.attribute)
        if value is None:
            return self.operator == "not exists"
        return holds_for(self.operator, value, self.value)


def holds_for(operator: str, value: Scalar, reference: object) -> bool:
    """Return True if a present attribute's `value` passes the test against `reference`."""
    if operator in ("exists", "not exists"):
        return operator == "exists"
    if isinstance(reference, tuple):
        comparable = [item for item in reference if kind(item) == kind(value)]
        return bool(comparable) and (value in comparable) == (operator == "in")
    if kind(reference) != kind(value):
        return False
    plain = operator.removeprefix("not ")
    if plain in _TEXT_TESTS and not isinstance(value, str):
        return False
    return bool(_TESTS[plain](value, reference)) == (plain == operator)


_TEXT_TESTS = ("prefix", "suffix", "contains")
_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda value, reference: value == reference,
    "!=": lambda value, reference: value != reference,
    "<": lambda value, reference: value < reference,
    "<=": lambda value, reference: value <= reference,
    ">": lambda value, reference: value > reference,
    ">=": lambda value, reference: value >= reference,
    "prefix": lambda value, reference: value.startswith(reference),
    "suffix": lambda value, reference: value.endswith(reference),
    "contains": lambda value, reference: reference in value,
}


def kind(value: object) -> str:
    """Return the kind of a value, which determines comparable values: bool, number or text."""
    if isinstance(value, bool):
        return "bool"
    return "text" if isinstance(value, str) else "number"


def comparison_key(value: object) -> tuple[object, ...]:
    """Return a key that two values share if, and only if, `=` holds between them.

    Python's own equality takes `True` for 1. Use this wherever a value is a part of a key.
    A tuple, as `in` has it, gives the keys of its items.
    """
    if isinstance(value, tuple):
        return tuple([comparison_key(item) for item in value])
    return kind(value), value


def check_scalar(value: object) -> None:
    """Refuse a value that no attribute or test may contain.

    Raises:
        PredicateError: NaN, an integer beyond 64 bits, a string over the limit, another type.
    """
    if isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_string(value)
    elif isinstance(value, float):
        if math.isnan(value):
            raise PredicateError("NaN is not a value")
    elif isinstance(value, int):
        if not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
            raise PredicateError("an integer needs more than 64 bits")
    else:
        raise PredicateError(f"a value of type {type(value).__name__} cannot be compared")


def _check_string(text: object) -> None:
    if not isinstance(text, str):
        raise PredicateError(f"a name is text, and not of type {type(text).__name__}")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        # Half of a surrogate pair has no encoding.
        raise PredicateError(f"a string with half of a character: {text[:40]!a}") from None
    if size_bytes > MAXIMUM_STRING_BYTES:
        raise PredicateError(f"a string is longer than {MAXIMUM_STRING_BYTES} bytes")


Conjunction = tuple[Constraint, ...]


def _is_conjunction(tests: object) -> bool:
    return type(tests) is tuple and all(type(each) is Constraint for each in tests)


@dataclass(frozen=True, slots=True)
class Predicate:
    """A disjunction of conjunctions: true if every test of at least one conjunction is.

    `((),)` matches everything, `()` nothing.

    Raises:
        PredicateError: more than 64 tests in all, or not made of tuples of tests.
    """

    any_of: tuple[Conjunction, ...]

    def __post_init__(self) -> None:
        if type(self.any_of) is not tuple or not all(map(_is_conjunction, self.any_of)):
            raise PredicateError("a predicate is a tuple of tuples of tests")
        terms = sum(max(1, len(conjunction)) for conjunction in self.any_of)
        if terms > MAXIMUM_TERMS:
            raise PredicateError(f"{terms} tests; at most {MAXIMUM_TERMS}")

    def matches(self, attributes: Attributes) -> bool:
        """Return True if the predicate matches a publication with these attributes."""
        return any(
            all(constraint.holds(attributes) for constraint in conjunction)
            for conjunction in self.any_of
        )


EVERYTHING = Predicate(((),))
NOTHING = Predicate(((Constraint("mark", "exists", None), Constraint("mark", "not exists", None)),))
"""Matches no publication.

A client that moves adds this subscription to its others: the subscription starts behind all
publications sent before.
"""
