"""Tests that the suite detects the named bugs outside the protocols, from client to checkers.

The row of a bug names a story of the suite, which is run here with the bug. The suite runs the
story without the bug: as a test, or here with the arguments of the row. One row per story may run
here in any case, among the fixtures of this folder. `make test` draws both kinds of runs.
"""

import gc
import warnings
from collections.abc import Iterator

import pytest

from tests.helpers.planted_stories import Row, is_a_case, run_story, see_caught
from tests.named_bugs.rows import ROWS

# A story that a bug ends may leave sockets open; another story must not be blamed for them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module", autouse=True)
def collect_remains() -> Iterator[None]:
    """Collect open resources of planted stories, before the tests of another file."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _is_a_test(row: Row) -> bool:
    file, _, name = row.story.rpartition("/")[2].partition("::")
    return file.startswith("test_") and name.startswith("test_") and not row.arguments


STORIES = {f"{row.story}({row.arguments})": row for row in ROWS if not _is_a_test(row)}
FIRST = {row.story: row for row in reversed(STORIES.values())}
"""The first row of every story."""


@pytest.mark.drawn("delta_tree")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_named_bug_is_seen(row: Row, request: pytest.FixtureRequest) -> None:
    see_caught(row, request)


@pytest.mark.drawn("delta_tree")
@pytest.mark.parametrize("row", STORIES.values(), ids=lambda row: row.story.partition("::")[2])
def test_without_it_nothing_is_seen(row: Row, request: pytest.FixtureRequest) -> None:
    if row is FIRST[row.story] or not is_a_case(row):
        run_story(row, request)
