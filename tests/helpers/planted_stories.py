"""Named bugs beside the protocols': rows that say which story of the suite must see them."""

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
    """A mistake that a change may make, and the story that must see it.

    Attributes:
        bug: the mistake.
        story: a test of the suite, as in "tests/client/test_core.py::test_…".
        arguments: its arguments that are no fixtures.
    """

    bug: NamedBug
    story: str
    arguments: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the bug."""
        return self.bug.name


def rows_of(path: Path, arguments: Mapping[str, Mapping[str, object]]) -> Iterator[Row]:
    """Yield the rows of a file of named bugs.

    Args:
        path: of the file.
        arguments: those that TOML cannot write, by the name of the bug.

    Raises:
        ConfigError: the file cannot be used.
    """
    for row in read_rows(path):
        more = arguments.get(row["name"], {})
        yield Row(bug_of(row, path, "story"), row["story"], {**row.get("arguments", {}), **more})


_UNINTENDED: Final = (NameError, SyntaxError, ImportError)
"""What a row raises that would not run at all: nobody has to see that."""


def run_story(row: Row, request: pytest.FixtureRequest) -> None:
    """Run the story of a row, as it stands."""
    _prepared(row, request)()


def see_caught(row: Row, request: pytest.FixtureRequest) -> None:
    """Run the story of a row with the bug, and see it fail.

    Raises:
        AnchorLost: the row does not fit its module any more.
    """
    story = _prepared(row, request)
    with plant([row.bug]):
        try:
            story()
        except (Exception, pytest.fail.Exception) as error:
            unintended = [each for each in _leaves(error) if isinstance(each, _UNINTENDED)]
            assert not unintended, f"{row.name} does not even run: {unintended}"
            return
    pytest.fail(f"{row.name} was not seen by {row.story}")


def _prepared(row: Row, request: pytest.FixtureRequest) -> Callable[[], None]:
    file, _, name = row.story.partition("::")
    story = getattr(import_module(file.removesuffix(".py").replace("/", ".")), name)
    wanted = inspect.signature(story).parameters
    fixtures = {each: request.getfixturevalue(each) for each in wanted if each not in row.arguments}
    return lambda: story(**fixtures, **row.arguments)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]
