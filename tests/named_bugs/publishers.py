"""Mistakes in the publisher table: sources that are used twice, or lost."""

from typing import Final

from brokerd.model.identity import SourceId
from tests.helpers.planted_stories import Row

_TABLE: Final = "brokerd/protocols/parts/publishers.py"
_SERVICE: Final = "brokerd/protocols/parts/clients/service.py"
_TESTS: Final = "tests/protocols/parts/test_clients.py::"
_RESTARTED: Final = "tests/simulator/test_restarted_publishers.py::"

ROWS: Final = (
    Row(
        "source-used-twice",
        _TABLE,
        "            incarnation = max(known.incarnation + 1, message.incarnation, self._lineage)",
        "            incarnation = message.incarnation",
        _RESTARTED + "test_all_that_a_restarted_publisher_publishes_is_delivered",
        {"protocol": "gryphon"},
    ),
    Row(
        "incarnation-forgotten-by-a-restart",
        _TABLE,
        "        return source, Change(TABLE, client, tuple(row))",
        "        return source, Change(TABLE, client, (row.number, 1, 0, b''))",
        _TESTS + "test_a_new_source_is_new_after_two_restarts_of_the_broker",
    ),
    Row(
        "lost-answer-makes-another-source",
        _TABLE,
        "        return bool(message.instance) and asked == (self.requested, self.instance)",
        "        return False",
        _TESTS + "test_a_publisher_whose_answer_was_lost_gets_the_same_source_again",
    ),
    Row(
        "continues-without-a-record",
        _TABLE,
        "        if known.number != source.publisher:\n",
        "        if not known:\n",
        _TESTS + "test_a_publisher_does_not_continue_as_a_source_without_a_record",
        {"source": SourceId(3, 1, 1)},
    ),
    Row(
        "chosen-incarnation-used-twice",
        _TABLE,
        "            message.exact_incarnation\n",
        "            False\n",
        _TESTS + "test_an_incarnation_that_has_been_used_is_refused_to_a_caller_that_chose_it",
        {"chosen": 1},
    ),
    Row(
        "incarnation-without-a-bound",
        _SERVICE,
        "            or not 0 <= message.incarnation <= MOST_INCARNATION",
        "            or message.incarnation < 0",
        _TESTS + "test_impossible_numbers_in_connect_close_the_session",
        {"impossible": {"incarnation": 2**62}},
    ),
    Row(
        "older-store-of-a-publisher-accepted",
        _SERVICE,
        "        if message.highest_sequence < known:",
        "        if False:",
        _RESTARTED + "test_a_publisher_whose_store_is_an_older_copy_is_refused",
        {"protocol": "gryphon"},
    ),
)
