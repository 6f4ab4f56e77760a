"""Named bugs of all but the protocols, from the client to checkers and plans, are seen.

The row of each says by which story of the suite; that is run here with the bug and without.
"""

import pytest

from tests.helpers.planted_stories import Row, run_story, see_caught
from tests.named_bugs.agent import ROWS as AGENT
from tests.named_bugs.client import ROWS as CLIENT
from tests.named_bugs.clients import ROWS as CLIENTS
from tests.named_bugs.counters import ROWS as COUNTERS
from tests.named_bugs.injector import ROWS as INJECTOR
from tests.named_bugs.joining import ROWS as JOINING
from tests.named_bugs.load_generator import ROWS as LOAD_GENERATOR
from tests.named_bugs.lost_state import ROWS as LOST_STATE
from tests.named_bugs.model import ROWS as MODEL
from tests.named_bugs.oracle import ROWS as ORACLE
from tests.named_bugs.plans import ROWS as PLANS
from tests.named_bugs.programs import ROWS as PROGRAMS
from tests.named_bugs.publishers import ROWS as PUBLISHERS
from tests.named_bugs.reference import ROWS as REFERENCE
from tests.named_bugs.repetitions import ROWS as REPETITIONS
from tests.named_bugs.rules import ROWS as RULES
from tests.named_bugs.runtime import ROWS as RUNTIME
from tests.named_bugs.sessions import ROWS as SESSIONS
from tests.named_bugs.storage import ROWS as STORAGE
from tests.named_bugs.wire import ROWS as WIRE

ROWS = (
    *(*CLIENT, *WIRE, *SESSIONS, *STORAGE, *REFERENCE, *RULES, *INJECTOR, *LOAD_GENERATOR),
    *(*AGENT, *REPETITIONS, *JOINING, *ORACLE, *PLANS, *RUNTIME, *PROGRAMS, *PUBLISHERS),
    *(*MODEL, *CLIENTS, *LOST_STATE, *COUNTERS),
)
STORIES = {f"{row.story}({row.arguments})": row for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_named_bug_is_seen(row: Row, request: pytest.FixtureRequest) -> None:
    see_caught(row, request)


@pytest.mark.parametrize("row", STORIES.values(), ids=lambda row: row.story.partition("::")[2])
def test_without_it_nothing_is_seen(row: Row, request: pytest.FixtureRequest) -> None:
    run_story(row, request)
