"""Reader for TOML files of the user: bounded size, line numbers of values, error messages.

Every problem is one line that begins with file and line, names key and value, and ends with the
nearest valid value.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from brokerd.text import (
    BYTE_ORDER_MARK,
    explain_problem,
    explain_schema,
    nearest,
    parse_toml,
    problem_of,
)
from brokerd.text import shown as shown
from pubsubctl.errors import UserError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

LARGEST_FILE_BYTES = 1 << 20

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*[A-Za-z0-9_\"'-]+)*)\s*=")

Place = tuple[str | int, ...]
Model = TypeVar("Model")

_ADAPTERS: "Final[dict[Any, TypeAdapter[Any]]]" = {}


@dataclass(frozen=True)
class TomlFile:
    """The content of a TOML file and the line number of every key.

    Attributes:
        path: the path as the user wrote the name.
        values: the content.
    """

    path: Path
    values: Mapping[str, Any]
    _lines: Mapping[Place, int]

    def line_of(self, place: Place) -> int:
        """Return the line of a key, or of the nearest enclosing table; 1 if unknown."""
        while place:
            if place in self._lines:
                return self._lines[place]
            place = place[:-1]
        return 1

    def where(self, place: Place) -> str:
        """Return `file:line: key` for a message."""
        return f"{self.path}:{self.line_of(place)}: {format_place(place)}".rstrip(": ")


def load_toml(path: Path) -> TomlFile:
    """Read a TOML file.

    Raises:
        UserError: the file is missing, cannot be read, is too large, or is not TOML.
    """
    try:
        if path.is_dir():
            raise UserError(f"{path}: is a folder, not a TOML file")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise UserError(f"{path}: larger than {LARGEST_FILE_BYTES >> 20} MiB")
    try:
        text = content.decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {problem_of(error)}") from None
    return toml_of(text, path)


def toml_of(text: str, path: Path) -> TomlFile:
    """Return the content of a TOML file from its text.

    Raises:
        UserError: the text is not TOML, or out of bounds.
    """
    try:
        values = parse_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not TOML: {error}") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    return TomlFile(path, values, _lines_of_keys(text))


def validate(model: type[Model], file: TomlFile) -> Model:
    """Return the file's content as `model`, a dataclass or pydantic model without further keys.

    Raises:
        UserError: with every problem, one line per problem.
    """
    from pydantic import ValidationError

    try:
        return adapter_of(model).validate_python(file.values)
    except ValidationError as error:
        raise UserError(*(_problem(detail, model, file) for detail in error.errors())) from None


def adapter_of(model: "type[Model]") -> "TypeAdapter[Model]":
    """Return the validator of a model; to make one takes far longer than to validate a file."""
    if model not in _ADAPTERS:
        from pydantic import TypeAdapter

        _ADAPTERS[model] = TypeAdapter(model)
    return _ADAPTERS[model]


def check_schema(file: TomlFile, schema: str) -> None:
    """Refuse a file of another schema.

    Raises:
        UserError: the schema is missing or different; names the expected schema.
    """
    found = file.values.get("schema")
    if found is None:
        raise UserError(f"{file.path}:1: key 'schema' is missing; expected schema = \"{schema}\"")
    if problem := explain_schema(found, schema):
        raise UserError(f"{file.path}:{file.line_of(('schema',))}: {problem}")


def format_place(place: Place) -> str:
    """Return a place in dotted notation: hosts[0].vars.ports."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            plain = len(part) <= 64 and part.isprintable() and part == part.strip()
            text += ("." if text else "") + (part if plain else shown(part))
    return text


def _problem(detail: Any, model: Any, file: TomlFile) -> str:
    place: Place = tuple(detail["loc"])
    where = file.where(place)
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        tables = _tables_with(model, place)
        belongs = f"; it belongs to {' or '.join(tables)}" if tables else ""
        near = belongs or nearest(place[-1], _keys_at(model, place[:-1]))
        return f"{file.where(place)}: unknown key{near}"
    if detail["type"] == "missing":
        return f"{file.where(place[:-1])}: key {place[-1]!r} is missing"
    message = explain_problem(detail)
    if detail["type"] == "literal_error":
        message = f"one of {detail['ctx']['expected']}"
    return f"{where} = {shown(detail['input'])}: {message[:1].lower()}{message[1:]}"


def _keys_at(model: Any, place: Place) -> list[str]:
    """Return the keys that are valid in the table at `place`."""
    return [*_types_at(model, place)]


def _types_at(model: Any, place: Place) -> dict[Any, Any]:
    """Return key → type of the table at `place`."""
    current = model
    for part in place:
        types = _types_of(current)
        # A key chosen by the user (the name of a group) stays at the model of its values.
        if part in types:
            current = _model_in(types[part])
    return _types_of(current)


def _tables_with(model: Any, place: Place) -> list[str]:
    """Return the tables directly below an unknown key's table in which the key is valid."""
    found = []
    for key, annotation in _types_at(model, place[:-1]).items():
        if place[-1] not in _types_of(_model_in(annotation)):
            continue
        name = ".".join([*(part for part in place[:-1] if isinstance(part, str)), str(key)])
        kind = get_origin(annotation)
        if kind in (list, tuple):
            found.append(f"[[{name}]]")
        else:
            found.append(f"[{name}.NAME]" if kind in (dict, Mapping) else f"[{name}]")
    return found


def _types_of(model: Any) -> dict[Any, Any]:
    """Return key → type of a table."""
    if is_dataclass(model):
        types = get_type_hints(model)
        return {each.name: types[each.name] for each in fields(model)}
    found = getattr(model, "model_fields", {})
    return {field.alias or name: field.annotation for name, field in found.items()}


def _model_in(annotation: Any) -> Any:
    """Return the model of a table in an annotation, or None."""
    if is_dataclass(annotation) or hasattr(annotation, "model_fields"):
        return annotation
    found = (_model_in(inner) for inner in get_args(annotation))
    return next((each for each in found if each is not None), None)


_QUOTES = ('"""', "'''")
"""Delimiters of strings of several lines."""


def _lines_of_keys(text: str) -> dict[Place, int]:
    """Return the line of each table and key, as far as a line-by-line scan can find the line."""
    lines: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    table: Place = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if quote:  # the text of a string has no keys
            quote = "" if quote in line else quote
            continue
        if not line.lstrip().startswith("#"):
            quote = next((each for each in _QUOTES if line.count(each) == 1), "")
        if header := _HEADER.match(line):
            names = _split_key(header[2])
            table = _resolve(names[:-1], counts)
            if header[1] == "[[":
                array = (*table, names[-1])
                counts[array] = counts.get(array, -1) + 1
                table = (*array, counts[array])
            else:
                table = _resolve(names, counts)
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            place: Place = (*table, *_split_key(key[1]))
            lines.setdefault(place, number)
    return lines


def _resolve(names: list[str], counts: Mapping[Place, int]) -> Place:
    """Return a header's names, with the index of the latest element after each array of tables."""
    place: Place = ()
    for name in names:
        place = (*place, name)
        if place in counts:
            place = (*place, counts[place])
    return place


def _split_key(text: str) -> list[str]:
    return [part.strip().strip("\"'") for part in text.split(".")]
