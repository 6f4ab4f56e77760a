"""Messages of any type with fields of the right types and arbitrary values."""

from dataclasses import fields, is_dataclass
from random import Random
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from brokerd.model.predicate import MAXIMUM_LIST_ITEMS, OPERATORS, Constraint, Predicate
from brokerd.model.publication import PublicationRun
from brokerd.wire.attributes import encode_attributes
from tests.helpers.message_kinds import all_kinds

_NUMBERS: Final = (0, 1, 2, 3, 4, 7, 100, 1 << 20, 1 << 32, (1 << 53) + 1, (1 << 63) - 1)
_TEXTS: Final = ("", "a", "c1", "c3", "h1", "kind", "ö", "x" * 1_000, "full", "released")
_SCALARS: Final = (True, 1, 1.0, "1", False, 0, -0.0, "", float("inf"), -(1 << 63))
_NESTED: Final = 3


def message_of(kind: type, random: Random) -> Any:
    """Return any encodable message of a type."""
    return value_of(kind, random, 0)


def any_message(random: Random) -> Any:
    """Return a message of any type that may stand in a frame."""
    return message_of(random.choice([*all_kinds()]), random)


def any_run(random: Random) -> PublicationRun:
    """Return a run that a receiver can decode."""
    count = random.randrange(1, 5)
    first = random.choice(_NUMBERS[:-1])
    table = tuple(encode_attributes({"kind": random.choice(_SCALARS)}) for _ in range(2))
    source = value_of(get_type_hints(PublicationRun)["source"], random, 0)
    sequences = range(first, first + count)
    return PublicationRun(source, sequences, table[:1], bytes(count), 2, (b"xy" * count,))


def value_of(annotation: Any, random: Random, depth: int = 0) -> Any:
    """Return any encodable value of an annotation."""
    if annotation is int:
        return random.choice(_NUMBERS)
    if annotation is str:
        return random.choice(_TEXTS)
    if annotation is bytes:
        return random.choice((b"", b"\0", b"\xa0", random.randbytes(random.randrange(40))))
    if annotation is bool:
        return random.random() < 0.5
    if annotation is Constraint:
        return _constraint(random)
    if annotation is Predicate:
        return Predicate(
            tuple(
                tuple(_constraint(random) for _ in range(random.randrange(3)))
                for _ in range(random.randrange(3))
            )
        )
    if annotation is PublicationRun:
        return any_run(random)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return random.choice(arguments)
    if origin in (Union, UnionType):
        (kind,) = (argument for argument in arguments if argument is not NoneType)
        return None if random.random() < 0.5 else value_of(kind, random, depth)
    if origin is tuple and arguments[1:] == (...,):
        count = random.choice((0, 1, 1, 2, 3)) if depth < _NESTED else random.randrange(2)
        return tuple(value_of(arguments[0], random, depth + 1) for _ in range(count))
    if origin is tuple:
        return tuple(value_of(argument, random, depth) for argument in arguments)
    hints = get_type_hints(annotation)
    if issubclass(annotation, tuple):
        return annotation(*(value_of(hints[name], random, depth) for name in annotation._fields))
    assert is_dataclass(annotation), f"no value of {annotation}"
    made: Any = annotation
    names = [each.name for each in fields(made) if each.init]
    return made(**{name: value_of(hints[name], random, depth) for name in names})


def _constraint(random: Random) -> Constraint:
    operator = random.choice(OPERATORS)
    plain = operator.removeprefix("not ")
    value: Any = random.choice(_SCALARS)
    if plain == "exists":
        value = None
    elif plain == "in":
        most = MAXIMUM_LIST_ITEMS if random.random() < 0.05 else 3
        value = tuple(random.choice(_SCALARS) for _ in range(random.randrange(1, most + 1)))
    elif plain in ("prefix", "suffix", "contains"):
        value = random.choice(("", "a", "1"))
    return Constraint(random.choice(("kind", "honest", "x")), operator, value)
