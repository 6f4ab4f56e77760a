"""Writers and readers of values of any annotation, as items of a flat CBOR array.

Both functions are built once per annotation, at import, so that no type is inspected while messages
pass. A value is one or more items, in the order of its annotation:

- an integer (0 to 2⁶³-1), a boolean, bytes, a text (1,024 bytes at most): one item;
- a tuple of fixed length, a named tuple, a dataclass: the items of each of its fields;
- a tuple of any length: the number of elements, then the items of each;
- T | None: 0 for None, else 1 and the items of T;
- a test of a predicate: attribute, operator, and the reference value, which may be an array.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from itertools import islice
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import cbor2

from brokerd.model.predicate import Constraint
from brokerd.wire.strict_cbor import (
    FALSE,
    INTEGERS,
    TRUE,
    Misfit,
    check_integer,
    check_integers,
    octets,
    text,
)

TEXT_LIMIT_BYTES: Final = 1_024

Writer = Callable[[Any, list[bytes]], None]
"""Appends the items of a value."""
Reader = Callable[[Iterator[Any]], Any]
"""Reads the items of a value and returns it; Misfit or StopIteration if the items do not fit."""


class Shape(NamedTuple):
    """The writer and the reader of values of an annotation.

    Attributes:
        make: as `read`, for items that were checked to be integers; None if there are other items.
        width: number of items per value, if `make` is set.
    """

    write: Writer
    read: Reader
    make: Reader | None = None
    width: int = 0


def shape_of(annotation: Any) -> Shape:
    """Return the shape of an annotation."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if annotation is Constraint:
        return Shape(_write_constraint, _read_constraint)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _literal(arguments)
    if origin in (Union, UnionType):
        (kind,) = (argument for argument in arguments if argument is not NoneType)
        assert len(arguments) == 2, f"{annotation} is more than one type or None"
        return _optional(shape_of(kind))
    if origin is tuple and arguments[1:] == (...,):
        return _repeat(shape_of(arguments[0]))
    if origin is tuple:
        return _record([shape_of(argument) for argument in arguments], iter, tuple)
    hints = get_type_hints(annotation)
    if issubclass(annotation, tuple):
        named = [shape_of(hints[name]) for name in annotation._fields]
        return _record(named, iter, annotation._make)
    assert is_dataclass(annotation), f"no shape for {annotation}"
    make: Any = annotation
    names = [field.name for field in fields(annotation)]
    return _record(
        [shape_of(hints[name]) for name in names],
        lambda value: [getattr(value, name) for name in names],
        lambda values: make(*values),
    )


def _record(shapes: list[Shape], parts: Callable[[Any], Any], build: Callable[[Any], Any]) -> Shape:
    """Return the shape of a sequence of parts.

    Args:
        parts: returns the parts of a value.
        build: returns the value made of its parts.
    """
    assert shapes, "a value without parts would have no items"
    writers = [shape.write for shape in shapes]
    readers = [shape.read for shape in shapes]

    def write(value: Any, items: list[bytes]) -> None:
        for write_part, part in zip(writers, parts(value), strict=True):
            write_part(part, items)

    def read(items: Iterator[Any]) -> Any:
        return build([read_part(items) for read_part in readers])

    makers = [shape.make for shape in shapes if shape.make is not None]
    if len(makers) < len(shapes):
        return Shape(write, read)
    width = sum(shape.width for shape in shapes)
    if width == len(shapes):
        return _integers(width, parts, build)

    def make(items: Iterator[Any]) -> Any:
        return build([make_part(items) for make_part in makers])

    return Shape(write, _check(make, width), make, width)


def _integers(width: int, parts: Callable[[Any], Any], build: Callable[[Any], Any]) -> Shape:
    """Return the shape of a record that consists of integers only."""

    def write(value: Any, items: list[bytes]) -> None:
        items += [INTEGERS[part] for part in parts(value)]

    def make(items: Iterator[Any]) -> Any:
        return build(islice(items, width))

    return Shape(write, _check(make, width), make, width)


def _check(make: Reader, width: int) -> Reader:
    def read(items: Iterator[Any]) -> Any:
        taken = list(islice(items, width))
        if len(taken) < width:
            raise StopIteration
        check_integers(taken)
        return make(iter(taken))

    return read


def _repeat(shape: Shape) -> Shape:
    """Return the shape of a count, then each element."""
    write_each, read_each, make_each, width = shape

    def write(values: Any, items: list[bytes]) -> None:
        items.append(INTEGERS[len(values)])
        for value in values:
            write_each(value, items)

    def write_integers(values: Any, items: list[bytes]) -> None:
        items.append(INTEGERS[len(values)])
        items += [INTEGERS[value] for value in values]

    def read(items: Iterator[Any]) -> Any:
        # A count that is too large ends with the items: each value takes one at least.
        return tuple([read_each(items) for _ in range(check_integer(next(items)))])

    def read_integers(items: Iterator[Any]) -> Any:
        count = check_integer(next(items))
        if not count:
            return ()
        taken = list(islice(items, count * width)) if count < _MOST else []
        if len(taken) < count * width:
            raise StopIteration
        check_integers(taken)
        if make_each is None or shape is _INTEGER:
            return tuple(taken)
        each = iter(taken)
        return tuple([make_each(each) for _ in range(count)])

    if make_each is None:
        return Shape(write, read)
    return Shape(write_integers if shape is _INTEGER else write, read_integers)


_MOST: Final = 1 << 32
"""More items than any frame has, which bounds the argument of `islice`, too."""


def _optional(shape: Shape) -> Shape:
    """Return the shape of 0, or 1 and the value."""
    write_present, read_present = shape.write, shape.read
    absent, present = INTEGERS[0], INTEGERS[1]

    def write(value: Any, items: list[bytes]) -> None:
        if value is None:
            items.append(absent)
        else:
            items.append(present)
            write_present(value, items)

    def read(items: Iterator[Any]) -> Any:
        count = next(items)
        if type(count) is not int or not 0 <= count <= 1:
            raise Misfit("neither 0 nor 1 before what may be absent")
        return read_present(items) if count else None

    return Shape(write, read)


def _literal(words: tuple[str, ...]) -> Shape:
    written = {word: text(word) for word in words}

    def write(value: Any, items: list[bytes]) -> None:
        items.append(written[value])

    def read(items: Iterator[Any]) -> Any:
        value = next(items)
        if type(value) is not str or value not in written:
            raise Misfit(f"expected one of {', '.join(words)}")
        return value

    return Shape(write, read)


def _write_integer(value: int, items: list[bytes]) -> None:
    items.append(INTEGERS[value])


def _read_integer(items: Iterator[Any]) -> int:
    return check_integer(next(items))


def _write_text(value: str, items: list[bytes]) -> None:
    items.append(text(value))


def _read_text(items: Iterator[Any]) -> str:
    return check_text(next(items))


def check_text(value: Any) -> str:
    """Return the value, which must be text of at most TEXT_LIMIT_BYTES.

    Raises:
        Misfit: the value is something else.
    """
    if (
        type(value) is not str
        or len(value) > TEXT_LIMIT_BYTES
        or (not value.isascii() and len(value.encode()) > TEXT_LIMIT_BYTES)
    ):
        raise Misfit(
            f"expected text of at most {TEXT_LIMIT_BYTES} bytes, got {type(value).__name__}"
        )
    return value


def _write_octets(value: bytes, items: list[bytes]) -> None:
    items.append(octets(value))


def _read_octets(items: Iterator[Any]) -> bytes:
    value = next(items)
    if type(value) is not bytes:
        raise Misfit(f"expected bytes, got {type(value).__name__}")
    return value


def _write_boolean(value: bool, items: list[bytes]) -> None:
    items.append(TRUE if value else FALSE)


def _read_boolean(items: Iterator[Any]) -> bool:
    value = next(items)
    if type(value) is not bool:
        raise Misfit(f"expected a boolean, got {type(value).__name__}")
    return value


def _write_constraint(constraint: Constraint, items: list[bytes]) -> None:
    items += [text(constraint.attribute), text(constraint.operator), cbor2.dumps(constraint.value)]


def _read_constraint(items: Iterator[Any]) -> Constraint:
    attribute, operator, reference = check_text(next(items)), next(items), next(items)
    if type(operator) is not str:
        raise Misfit(f"expected an operator, got {type(operator).__name__}")
    return Constraint(
        attribute, operator, tuple(reference) if type(reference) is list else reference
    )


_INTEGER: Final = Shape(_write_integer, _read_integer, next, 1)
_PLAIN: Final[dict[Any, Shape]] = {
    int: _INTEGER,
    str: Shape(_write_text, _read_text),
    bytes: Shape(_write_octets, _read_octets),
    bool: Shape(_write_boolean, _read_boolean),
}
