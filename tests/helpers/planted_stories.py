"""Named bugs outside the protocols: each row names the story that must detect the bug."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
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
    file, _, name = row.story.partition("::")
    module = import_module(file.removesuffix(".py").replace("/", "."))
    story = getattr(module, name)
    if "closed_connections" in _used_fixtures(module, story):
        request.getfixturevalue("closed_connections")
    wanted = inspect.signature(story).parameters
    fixtures = {each: request.getfixturevalue(each) for each in wanted if each not in row.arguments}
    return lambda: story(**fixtures, **row.arguments)


def _used_fixtures(*marked: object) -> set[str]:
    """Return the fixtures that marks of a module and of a story name."""
    found = [getattr(each, "pytestmark", ()) for each in marked]
    marks = [mark for row in found for mark in (row if isinstance(row, list) else [row]) if mark]
    return {str(name) for mark in marks if mark.name == "usefixtures" for name in mark.args}


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
