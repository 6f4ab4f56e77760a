"""Mistakes in the oracle, which judges what simulated clients see."""

from typing import Final

from tests.helpers.planted_stories import Row

_ORACLE: Final = "brokerd/simulator/checks/oracle.py"
_STORIES: Final = "tests/simulator/test_oracle.py::"

ROWS: Final = (
    Row(
        "forgets-in-no-order-what-came-before-a-move",
        _ORACLE,
        "            after.got |= before.got\n",
        "",
        f"{_STORIES}test_in_no_order_nothing_comes_again_after_a_move",
        {"sequence": 1},
    ),
    Row(
        "whole-move-may-lose-in-no-order",
        _ORACLE,
        "            if whole and before.fence is not None:",
        "            if not whole and before.fence is not None:",
        f"{_STORIES}test_in_no_order_a_whole_move_loses_nothing",
    ),
    Row(
        "gap-is-owed-to-who-forgot",
        _ORACLE,
        "        stream.excused |= old.excused\n",
        "",
        f"{_STORIES}test_a_gap_told_before_a_client_forgot_need_not_be_told_again",
        {"again": (1, 3, 4)},
    ),
    Row(
        "gap-excuses-what-lies-behind-it",
        _ORACLE,
        "        stream.excused |= old.excused\n",
        "        stream.excused |= set(old.ranks) if old.excused else set()\n",
        f"{_STORIES}test_such_a_gap_excuses_nothing_else",
        {"again": (4,), "rule": "gap"},
    ),
)
