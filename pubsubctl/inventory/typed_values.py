"""Reader for the values of a file as dataclasses, without pydantic, which imports slowly.

The dataclasses declare keys, types and valid values once. `read_typed` accepts the values that a
valid file has; pydantic reads the same declarations, describes the problems of other files, and
makes the JSON Schema. Values that pydantic would convert (a number that is written as text) are
left to it.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

CLOSED = {"extra": "forbid"}
"""The configuration of a dataclass whose unknown keys are refused."""

Model = TypeVar("Model")


class NotPlain(Exception):
    """A value that pydantic has to convert or to refuse."""


class Checked:
    """An annotation of a value that a function checks and converts; see `checked`."""

    check: Callable[[Any], Any]
    written_as: Any = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import BeforeValidator

        given = {} if self.written_as is None else {"json_schema_input_type": self.written_as}
        return handler.generate_schema(Annotated[source, BeforeValidator(self.check, **given)])


def checked(check: Callable[[Any], Any], written_as: Any = None) -> Checked:
    """Return an annotation of a value.

    Args:
        check: returns the value to use, or raises ValueError.
        written_as: the type of the value in a file, if it is not the annotated type.
    """
    annotation = Checked()
    annotation.check, annotation.written_as = check, written_as
    return annotation


@dataclass(frozen=True)
class Between:
    """An annotation of a number: its smallest and its largest value."""

    least: float
    most: float
    is_strict: bool = True

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import Field

        bounds = Field(ge=self.least, le=self.most, strict=self.is_strict or None)
        return handler.generate_schema(Annotated[source, bounds])


def read_typed(model: type[Model], values: Any) -> Model:
    """Return a file's values as a dataclass.

    Raises:
        NotPlain: pydantic has to convert or to refuse a value.
    """
    found = _read(model, values)
    assert isinstance(found, model), found
    return found


@cache
def _types_of(model: Any) -> Mapping[str, Any]:
    return get_type_hints(model, include_extras=True)


def _read(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _read_table(kind, value)
    if hasattr(kind, "__metadata__"):
        return _read_annotated(inner[0], kind.__metadata__, value)
    if origin in (Union, UnionType):
        return _read(next(each for each in inner if each is not type(None)), value)
    if origin is Literal and value in inner:
        return value
    if origin is list and isinstance(value, list):
        return [_read(inner[0], each) for each in value]
    if origin is dict and isinstance(value, dict):
        return {_read(inner[0], key): _read(inner[1], each) for key, each in value.items()}
    if kind is type(value):
        return value
    raise NotPlain


def _read_annotated(kind: Any, annotations: tuple[Any, ...], value: Any) -> Any:
    for each in annotations:
        if isinstance(each, Checked):
            try:
                value = each.check(value)
            except (TypeError, ValueError):
                raise NotPlain from None
    value = _read(kind, value)
    for each in annotations:
        if isinstance(each, Between) and not each.least <= value <= each.most:
            raise NotPlain
    return value


def _read_table(model: Any, value: Any) -> Any:
    types = _types_of(model)
    if not isinstance(value, dict) or value.keys() - types.keys():
        raise NotPlain
    for each in fields(model):
        if each.default is MISSING and each.default_factory is MISSING and each.name not in value:
            raise NotPlain
    return model(**{key: _read(types[key], given) for key, given in value.items()})
