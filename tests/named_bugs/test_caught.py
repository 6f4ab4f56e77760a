"""Named bugs of all but the protocols, from the client to checkers and plans, are seen.

The row of each says by which story of the suite; that is run here with the bug and without.
"""

import pytest

from tests.helpers.planted_stories import Row, run_story, see_caught
from tests.named_bugs.rows import ROWS

STORIES = {f"{row.story}({row.arguments})": row for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_named_bug_is_seen(row: Row, request: pytest.FixtureRequest) -> None:
    see_caught(row, request)


@pytest.mark.parametrize("row", STORIES.values(), ids=lambda row: row.story.partition("::")[2])
def test_without_it_nothing_is_seen(row: Row, request: pytest.FixtureRequest) -> None:
    run_story(row, request)
