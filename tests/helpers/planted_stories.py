"""Named bugs outside the protocols: each row names the story that must detect the bug."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from brokerd.simulator.named_bugs import NamedBug, bug_of, plant, read_rows


@dataclass(frozen=True, slots=True)
class Row:
    """A plausible bug, and the story that must detect it.

    Attributes:
        bug: the mistake.
        story: a test of the suite, as in "tests/client/test_core.py::test_…".
        arguments: arguments of the story that are no fixtures.
    """

    bug: NamedBug
    story: str
    arguments: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return the name of the bug."""
        return self.bug.name


def rows_of(path: Path, arguments: Mapping[str, Mapping[str, object]]) -> Iterator[Row]:
    """Yield the rows of a file of named bugs.

    Args:
        path: path of the file.
        arguments: arguments that TOML cannot express, by bug.

    Raises:
        ConfigError: the file cannot be used.
    """
    for row in read_rows(path):
        more = arguments.get(row["name"], {})
        yield Row(bug_of(row, path, "story"), row["story"], {**row.get("arguments", {}), **more})


_UNINTENDED: Final = (NameError, SyntaxError, ImportError)
"""Exceptions of a row that does not run at all; such a row proves nothing."""


def run_story(row: Row, request: pytest.FixtureRequest) -> None:
    """Run the unmodified story of a row."""
    _prepare(row, request)()


_NOT_ALWAYS: Final = {"drawn", "sampled", "skip", "skipif", "xfail"}


def is_a_case(row: Row) -> bool:
    """Return whether the arguments of a row are a case of a parametrized test that always runs."""
    _, story = _story_of(row)
    marks = [*getattr(story, "pytestmark", ())]
    if not story.__name__.startswith("test_") or _NOT_ALWAYS & {mark.name for mark in marks}:
        return False
    cases = [_cases(mark) for mark in marks if mark.name == "parametrize"]
    names = {name for some in cases for case in some for name in case}
    return names == {*row.arguments} and all(
        any(_are_equal(case, row.arguments) for case in some) for some in cases
    )


def _cases(mark: pytest.Mark) -> list[dict[str, Any]]:
    """Return the arguments of the cases of `pytest.mark.parametrize` that have no marks."""
    if mark.kwargs.get("indirect"):
        return []
    names, values = mark.args
    several = [name.strip() for name in names.split(",")] if isinstance(names, str) else [*names]
    found = []
    for value in values:
        is_param = hasattr(value, "marks") and hasattr(value, "values")
        if not (is_param and value.marks):
            row = value.values if is_param else (value,) if len(several) == 1 else value
            found.append(dict(zip(several, row, strict=True)))
    return found


def _are_equal(case: Mapping[str, Any], arguments: Mapping[str, Any]) -> bool:
    """Return whether the arguments have the values of a case; True is no 1."""
    pairs = [(value, arguments[name]) for name, value in case.items()]
    return all(type(one) is type(other) and one == other for one, other in pairs)


def see_caught(row: Row, request: pytest.FixtureRequest) -> None:
    """Run the story of a row with the bug, and check that the story fails.

    Raises:
        AnchorLost: the row no longer matches its module.
    """
    story = _prepare(row, request)
    with plant([row.bug]):
        try:
            story()
        except (Exception, pytest.fail.Exception) as error:
            unintended = [each for each in _leaves(error) if isinstance(each, _UNINTENDED)]
            assert not unintended, f"{row.name} does not even run: {unintended}"
            return
    pytest.fail(f"{row.name} was not seen by {row.story}")


def _prepare(row: Row, request: pytest.FixtureRequest) -> Callable[[], None]:
    module, story = _story_of(row)
    if "closed_connections" in _used_fixtures(module, story):
        request.getfixturevalue("closed_connections")
    wanted = inspect.signature(story).parameters
    fixtures = {each: request.getfixturevalue(each) for each in wanted if each not in row.arguments}
    return lambda: story(**fixtures, **row.arguments)


def _story_of(row: Row) -> tuple[ModuleType, Callable[..., None]]:
    file, _, name = row.story.partition("::")
    module = import_module(file.removesuffix(".py").replace("/", "."))
    return module, getattr(module, name)


def _used_fixtures(*marked: object) -> set[str]:
    """Return the fixtures that marks of a module and of a story name."""
    found = [getattr(each, "pytestmark", ()) for each in marked]
    marks = [mark for row in found for mark in (row if isinstance(row, list) else [row]) if mark]
    return {str(name) for mark in marks if mark.name == "usefixtures" for name in mark.args}


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
