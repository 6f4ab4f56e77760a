"""Values of options and arguments: texts, paths, numbers, and lists of texts.

Typer converts each value and each default with pydantic, whose import takes longer than most verbs.
A parameter of another type than these is left to typer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import typer

_NUMBERS: Final = {int: "a whole number", float: "a number"}
_TYPES: Final = (bool, str, Path, *_NUMBERS, list[str])
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
            raise typer.BadParameter(f"{value!s}: {kind}{self._range()}", ctx=ctx, param=param)
        return number

    def _has(self, number: float) -> bool:
        return (self._least is None or number >= self._least) and (
            self._most is None or number <= self._most
        )

    def _range(self) -> str:
        words = [
            f" {word} {bound:,}"
            for word, bound in (("from", self._least), ("to", self._most))
            if bound is not None
        ]
        return "".join(words)


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
