"""Predicates as plain lists for the meta store."""

from typing import Any

from brokerd.model.predicate import Constraint, Predicate


def predicate_row(predicate: Predicate) -> list[list[list[Any]]]:
    """Return a predicate as plain lists; floats become text, because rows hold no floats."""
    return [
        [[test.attribute, test.operator, _plain(test.value)] for test in conjunction]
        for conjunction in predicate.any_of
    ]


def read_predicate(row: Any) -> Predicate:
    """Return the predicate in a row of `predicate_row`.

    Raises:
        TypeError, ValueError, PredicateError: the row belongs to no predicate.
    """
    return Predicate(
        tuple(
            tuple(
                Constraint(attribute, operator, _value(value))
                for attribute, operator, value in conjunction
            )
            for conjunction in row
        )
    )


def _plain(value: Any) -> list[Any]:
    if value is None:
        return ["nothing"]
    if isinstance(value, tuple):
        return ["list", *[_plain(item) for item in value]]
    if isinstance(value, float):
        return ["float", value.hex()]
    return ["plain", value]


def _value(row: list[Any]) -> Any:
    kind, *rest = row
    if kind == "nothing":
        return None
    if kind == "list":
        return tuple(_value(item) for item in rest)
    return float.fromhex(rest[0]) if kind == "float" else rest[0]
