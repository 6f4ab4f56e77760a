"""Mistakes in how a plan is run: what is waited for, and for how long."""

from pathlib import Path
from typing import Final

from tests.helpers.planted_stories import Row

_STORY: Final = (
    "tests/simulator/test_plans.py::test_a_plan_in_which_something_was_wrong_once_is_right"
)
_SOUND: Final = Path(__file__).parents[1] / "simulator" / "plans" / "sound"

ROWS: Final = (
    Row(
        "waits-for-silence",
        "brokerd/simulator/search/swarm.py",
        "self._drain(lambda: not self._has_converged(), until_quiet=True)",
        "self._drain(lambda: bool(schedule.pending) or not self._has_converged())",
        _STORY,
        {"path": _SOUND / "said_in_every_period.plan"},
    ),
    Row(
        "all-have-their-turn-at-once",
        "brokerd/simulator/checks/timeliness.py",
        "planning.turns(parameters, plan.publications) * (message_ns + disk_ns)",
        "0",
        _STORY,
        {"path": _SOUND / "one_at_a_time.plan"},
    ),
    Row(
        "moves-to-where-nobody-is",
        "brokerd/simulator/world/client_mobility.py",
        "return to != client.broker and to not in gone and client.broker not in gone",
        "return to != client.broker",
        _STORY,
        {"path": _SOUND / "moved_to_where_nobody_is.plan"},
    ),
)
