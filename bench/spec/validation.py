"""Values of a file as an instance of a closed model, or one sentence for each error.

A sentence names file, key and value, and the nearest valid key or value.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from bench.spec.keys import option_keys
from brokerd.errors import ConfigError
from brokerd.overlay.topology import nearest
from brokerd.text import explain_problem, explain_schema, shown


class SpecError(ConfigError):
    """A workload, topology or option that cannot be used; the user's fault."""

    exit_status: ClassVar[int] = 2


_QUOTED: Final = re.compile(r"'([^']*)'")
_Model = TypeVar("_Model", bound=BaseModel)


def validate(
    model: type[_Model],
    values: Mapping[str, Any],
    where: str,
    origins: Mapping[str, str] | None = None,
) -> _Model:
    """Return `values` as an instance of a closed model.

    Args:
        origins: dotted key → origin of a value that is not from the file.

    Raises:
        SpecError: the values are invalid; names `where`, key, value and valid values, for up to 8
            errors.
    """
    if problem := _explain_schema(model, values):
        raise SpecError(f"{where}: {problem}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = dict.fromkeys(
            _explain_override(problem, model, origins or {})
            or f"{where}: {_explain(problem, model)}"
            for problem in error.errors()
        )
        raise SpecError("\n".join([*problems][:8])) from error


def _explain_schema(model: type[BaseModel], values: Mapping[str, Any]) -> str:
    """Return the error of the schema of a file of another kind; "" if equal or missing."""
    wanted = _schema_of(model)
    return explain_schema(values["schema"], wanted) if wanted and "schema" in values else ""


def _schema_of(model: type[BaseModel]) -> str:
    """Return the schema that a kind of files states; "" if it states none."""
    wanted = [
        get_args(info.annotation)[0]
        for info in model.model_fields.values()
        if info.alias == "schema" and get_args(info.annotation)
    ]
    return str(wanted[0]) if wanted else ""


def _explain_override(problem: Any, model: type[BaseModel], origins: Mapping[str, str]) -> str:
    """Return the error of a value that is not from the file; "" for a value of the file."""
    key = ".".join(part for part in problem["loc"] if isinstance(part, str))
    origin = origins.get(key) or origins.get(_join_keys(problem["loc"]))
    if origin is None or problem["type"] == "missing":
        return ""
    if problem["type"] == "extra_forbidden":
        return f"{origin}: {_explain(problem, model)}"
    given = problem["input"]
    found = f"{origin} = {shown(given)}"
    found += "" if origin.startswith("--") else ", in place of the file's value"
    if problem["type"] == "literal_error":
        return f"{found}{nearest(given, _QUOTED.findall(problem['ctx']['expected']))}"
    text = explain_problem(problem)
    statement = f"{key} = {given!r}"
    return (
        f"{found}{text.removeprefix(statement)}"
        if text.startswith(statement)
        else f"{found}: {text}"
    )


def _explain(problem: Any, model: type[BaseModel]) -> str:
    """Return one sentence: key, value, the error and valid values."""
    place: tuple[Any, ...] = problem["loc"]
    key = _join_keys(place)
    given = problem["input"]
    kind = problem["type"]
    if kind == "extra_forbidden":
        inside = f"{_join_keys(place[:-1])}: " if len(place) > 1 else ""
        return f"{inside}unknown key {place[-1]!r}{_nearest_key(model, place)}"
    if kind == "missing":
        wanted = f"; write schema = {schema!r}" if (schema := _schema_of(model)) else ""
        return f"key {key!r} is missing{wanted if key == 'schema' else ''}"
    if kind == "literal_error":
        return (
            f"{key} = {shown(given)}{nearest(given, _QUOTED.findall(problem['ctx']['expected']))}"
        )
    text = explain_problem(problem)
    if text.startswith(f"{key} = {given!r}"):
        return text
    if isinstance(given, Mapping) or (kind == "value_error" and isinstance(given, list)):
        return f"{key}: {text}" if key else text
    return f"{key} = {shown(given)}: {text}"


def _join_keys(place: Sequence[Any]) -> str:
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _keys_at(model: type[BaseModel], place: Sequence[Any]) -> list[str]:
    """Return the valid keys of the table at `place`."""
    for part in place:
        if isinstance(part, int):
            continue
        field_info = next(
            info for name, info in model.model_fields.items() if (info.alias or name) == part
        )
        model = next(_models_in(field_info.annotation))
    return [info.alias or name for name, info in model.model_fields.items() if not info.exclude]


def _nearest_key(model: type[BaseModel], place: Sequence[Any]) -> str:
    """Return the hint for an unknown key: its place in another table, or the nearest key."""
    word = place[-1]
    if (known := _KEYS_OF_OPTIONS.get(str(word))) in _keys_at(model, place[:-1]):
        return f"; did you mean {known!r}?"
    elsewhere = [*option_keys(word), *(key for key in _all_keys(model) if key.endswith(f".{word}"))]
    if elsewhere:
        return f"; did you mean {elsewhere[0]!r}?"
    return nearest(word, _keys_at(model, place[:-1]))


_KEYS_OF_OPTIONS: Final = {"instances": "repetitions", "over": "axes", "bound": "bounds"}
"""Keys whose option on the command line has another name."""


def _all_keys(model: type[BaseModel], inside: str = "") -> Iterator[str]:
    """Yield all dotted keys of a model and its tables, in order of the file."""
    for name, info in model.model_fields.items():
        key = f"{inside}{info.alias or name}"
        if not info.exclude:
            yield key
            for table in _models_in(info.annotation):
                yield from _all_keys(table, f"{key}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models_in(argument)
