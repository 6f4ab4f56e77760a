"""Named bugs of all but the protocols, from the client to checkers and plans, are seen.

The row of each says by which story of the suite; that is run here with the bug. Without the bug
the suite runs it: as a test, or here with the arguments of its row.
"""

import pytest

from tests.helpers.planted_stories import Row, run_story, see_caught
from tests.named_bugs.rows import ROWS


def _is_a_test(row: Row) -> bool:
    file, _, name = row.story.rpartition("/")[2].partition("::")
    return file.startswith("test_") and name.startswith("test_") and not row.arguments


STORIES = {f"{row.story}({row.arguments})": row for row in ROWS if not _is_a_test(row)}


@pytest.mark.drawn("delta_tree")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_named_bug_is_seen(row: Row, request: pytest.FixtureRequest) -> None:
    see_caught(row, request)


@pytest.mark.parametrize("row", STORIES.values(), ids=lambda row: row.story.partition("::")[2])
def test_without_it_nothing_is_seen(row: Row, request: pytest.FixtureRequest) -> None:
    run_story(row, request)
