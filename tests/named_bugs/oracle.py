"""Mistakes in the oracle, which judges what simulated clients see."""

from typing import Final

from brokerd.protocols.definition import Order
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
        {"order": Order.NONE, "sequence": 1},
    ),
    Row(
        "topics-move-in-the-order-of-their-publisher",
        _ORACLE,
        "        if not self.promises.order.is_of_sources:\n            # A publication missing",
        "        if self.promises.order is Order.NONE:\n            # A publication missing",
        f"{_STORIES}test_in_no_order_nothing_comes_again_after_a_move",
        {"order": Order.TOPIC, "sequence": 1},
    ),
    Row(
        "overtaken-publication-was-had",
        _ORACLE,
        "        if not self.promises.order.is_of_sources:\n            if sequence in stream.got:\n",
        "        if not self.promises.order.is_of_sources:\n"
        "            if sequence in stream.got or sequence <= stream.had:\n",
        f"{_STORIES}test_a_publication_overtaken_before_a_subscription_is_given_up_may_follow",
        {"order": Order.TOPIC},
    ),
    Row(
        "gap-announced-before-a-move-is-owed",
        _ORACLE,
        "            after.excused |= before.excused\n",
        "",
        f"{_STORIES}test_a_gap_announced_before_a_whole_move_is_not_owed_after_it",
        {"order": Order.TOPIC},
    ),
    Row(
        "whole-move-may-lose-in-no-order",
        _ORACLE,
        "            if whole and before.fence is not None:",
        "            if not whole and before.fence is not None:",
        f"{_STORIES}test_in_no_order_a_whole_move_loses_nothing",
        {"order": Order.NONE},
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
