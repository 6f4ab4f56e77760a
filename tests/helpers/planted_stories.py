"""Named bugs beside the protocols': rows that say which story of the suite must see them."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

import pytest

from brokerd.named_bugs import Edit, NamedBug, planted


@dataclass(frozen=True, slots=True)
class Row:
    """A mistake that somebody might make, and what must see it.

    Attributes:
        file, text, mistaken: as of `Edit`.
        story: a test of the suite, as in "tests/client/test_core.py::test_…".
        arguments: its arguments that are no fixtures.
    """

    name: str
    file: str
    text: str
    mistaken: str
    story: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bug(self) -> NamedBug:
        """What is planted."""
        return NamedBug(self.name, self.story, (Edit(self.file, self.text, self.mistaken),))


_UNINTENDED: Final = (NameError, SyntaxError, ImportError)
"""What a row raises that would not run at all: nobody has to see that."""


def run_story(row: Row, request: pytest.FixtureRequest) -> None:
    """Run the story of a row, as it stands."""
    _prepared(row, request)()


def see_caught(row: Row, request: pytest.FixtureRequest) -> None:
    """Run the story of a row with the bug, and see it fail.

    Raises:
        BugNotFound: the row no longer fits the file that it is about.
    """
    story = _prepared(row, request)
    with planted([row.bug]):
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
