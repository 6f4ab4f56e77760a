"""Groups of options, help texts with a section for each group, and values of options.

Typer converts each value and each default with pydantic, whose import takes longer than most verbs.
Parameters of other types are left to typer.
"""

import inspect
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

MOST: Final = (1 << 63) - 1
_NUMBERS: Final = {int: "a whole number", float: "a number"}
_TYPES: Final = (bool, str, Path, *_NUMBERS, list[str])
_VALUES: Final = {int: "N", float: "N", str: "NAME", Path: "FILE"}
"""The name of an option's value in help texts, unless the option has another."""
_OF_FILES: Final = ("exists", "resolve_path")
"""Settings of a parameter that typer checks against the file system."""


class PlainValue:
    """The conversion of the values of one parameter."""

    def __init__(self, annotation: Any, least: float | None, most: float | None) -> None:
        self._annotation = annotation
        self._least = least
        self._most = most

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a value of the parameter's type.

        Raises:
            BadParameter: the value is no number, or out of range; names value and range.
        """
        if param.multiple or param.nargs == -1:
            return [str(each) for each in value or ()]
        if value is None:
            return None
        if self._annotation not in _NUMBERS:
            return self._annotation(value)
        try:
            number = self._annotation(value)
        except ValueError:
            number = None
        if number is None or not self._has(number):
            kind = _NUMBERS[self._annotation]
            words = f"{value!s}: {kind}{self._range(number)}"
            raise typer.BadParameter(words, ctx=ctx, param=param)
        return number

    def _has(self, number: float) -> bool:
        return (self._least is None or number >= self._least) and number <= self._bound

    @property
    def _bound(self) -> float:
        """The largest number, by default of 64 bits."""
        return MOST if self._most is None else self._most

    def _range(self, number: float | None) -> str:
        least = "" if self._least is None else f" from {self._least:,}"
        is_over = number is not None and number > self._bound
        return f"{least} to {self._bound:,}" if self._most is not None or is_over else least


def read_plainly(parameters: Sequence[Any]) -> list[Any]:
    """Return parameters that convert plain values without pydantic, if this typer permits it."""
    for parameter in parameters:
        described = getattr(parameter, "type_descriptor", None)
        if described is None or not hasattr(parameter, "_runtime_param"):
            continue
        about = described.parameter_info
        is_checked = any(getattr(about, name, False) is True for name in _OF_FILES)
        if described.annotation in _TYPES and not is_checked and about.parser is None:
            parameter._runtime_param = PlainValue(described.annotation, about.min, about.max)
    return [*parameters]


def name_values(parameters: Sequence[Any]) -> list[Any]:
    """Return parameters whose values have a name in help texts and errors: BROKER, FILE, N."""
    for parameter in parameters:
        described = getattr(parameter, "type_descriptor", None)
        if parameter.metavar is not None or described is None:
            continue
        if parameter.param_type_name == "argument":
            parameter.metavar = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
        elif not described.is_choice:
            parameter.metavar = _VALUES.get(described.annotation)
    return [*parameters]


def usage_pieces(parameters: Iterable[Any]) -> list[str]:
    """Return the arguments of a usage line: BROKER, [DIR], RUN..., [RUN...]."""
    return [
        _name_of(each) if each.required else f"[{_name_of(each)}]"
        for each in parameters
        if each.param_type_name == "argument"
    ]


def _name_of(argument: Any) -> str:
    return str(argument.metavar).removeprefix("[").removesuffix("]")


def options_in(panel: str) -> Callable[..., Any]:
    """Return the declaration of an option with this panel of the help text."""
    return partial(typer.Option, rich_help_panel=panel)


GLOBAL_OPTIONS = "Global options (pubsubctl --help) may stand here too."
_ARGUMENTS = "Arguments"
_OPTIONS = "Options"
_NAMES_WIDTH: Final = 30
"""The widest column of names; a description of a longer name begins below it."""
_DESCRIBED_DEFAULT: Final = re.compile(r"(\[default: )\(([^)]*)\)")
"""A default that the option describes; typer writes it between brackets."""
_LONGEST_SENTENCE: Final = 200
"""A command's first sentence is whole, and broken into lines by the width of the terminal."""
_NARROWEST: Final = 30
_WIDEST: Final = 100


def help_width() -> int:
    """Return the width of help texts, by the terminal."""
    return min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST) - 2


def with_groups(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with the fields of its option groups in place of the groups.

    A group is a parameter whose annotation is a dataclass.
    """
    hints = get_type_hints(function, include_extras=True)
    hints.pop("return", None)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in groups:
            parameters += _fields_of(groups[parameter.name])
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(kind=kind, annotation=hints[parameter.name]))

    @wraps(function)
    def command(**values: Any) -> Any:
        for name, group in groups.items():
            own = {field.name: values.pop(field.name) for field in fields(group)}
            values[name] = group(**own)
        return function(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _fields_of(group: Any) -> Iterable[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )


class GroupedCommand(TyperCommand):
    """A command with a section of help text per group of options."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters with `--help`, named, with values that need no pydantic."""
        return name_values(read_plainly(super().get_params(ctx)))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line, with the names of arguments as they are."""
        return [self.options_metavar or "", *usage_pieces(self.get_params(ctx))]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write a line about global options, below the help text of each verb."""
        with formatter.indentation():
            formatter.write_paragraph()
            formatter.write_text(self.epilog or GLOBAL_OPTIONS)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options by group."""
        write_options(self, ctx, formatter)


class GroupedVerbs(TyperGroup):
    """A group of commands with a section of help text per subgroup."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters with `--help`, named, with values that need no pydantic."""
        return name_values(read_plainly(super().get_params(ctx)))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, then the commands by group."""
        write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a line per command, in the order of registration."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in commands:
            if command is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                title = panel if isinstance(panel, str) else "Commands"
                row = (name, command.get_short_help_str(_LONGEST_SENTENCE))
                sections.setdefault(title, []).append(row)
        _write_sections(formatter, sections)


def write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the arguments of a command, then the options by group."""
    sections: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: []}
    options: list[tuple[str, str]] = []
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        if parameter.param_type_name == "argument":
            sections[_ARGUMENTS].append((_name_of(parameter), record[1]))
        elif panel := getattr(parameter, "rich_help_panel", None):
            sections.setdefault(panel, []).append(record)
        else:
            options.append(record)
    _write_sections(formatter, {**sections, _OPTIONS: options})


def _write_sections(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    for title, found in sections.items():
        if not found:
            continue
        rows = [(name, _DESCRIBED_DEFAULT.sub(r"\1\2", text)) for name, text in found]
        with formatter.section(title):
            formatter.write_dl(rows, col_max=min(_NAMES_WIDTH, formatter.width // 3 + 4))


def add_command(
    app: typer.Typer, name: str, function: Callable[..., Any], panel: str | None = None
) -> None:
    """Register a verb, with its option groups and its section of the help text."""
    register = app.command(name, cls=GroupedCommand, rich_help_panel=panel)
    register(with_groups(function))


def verbs(name: str, text: str, *, needs_verb: bool = True) -> typer.Typer:
    """Return an empty group of verbs; with `needs_verb`, the group alone is refused."""
    return typer.Typer(
        name=name, help=text, cls=GroupedVerbs, no_args_is_help=needs_verb, rich_markup_mode=None
    )
