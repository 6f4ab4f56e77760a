"""Mistakes in the predicate model."""

from typing import Final

from tests.helpers.planted_stories import Row

_PREDICATE: Final = "brokerd/model/predicate.py"
_KEY: Final = "return kind(value), value"
_STORIES: Final = "tests/protocols/test_kinds_of_values.py::"
_STORY: Final = (
    f"{_STORIES}test_two_subscribers_at_one_broker_ask_for_values_that_python_takes_for_equal"
)

ROWS: Final = (
    *[
        Row(
            f"true-is-one-{protocol}",
            _PREDICATE,
            _KEY,
            "return ('any', value)",
            _STORY,
            {"protocol": protocol, "at": "c3"},
        )
        for protocol in ("gryphon", "durable")
    ],
    Row(
        "true-is-one-at-a-storage",
        _PREDICATE,
        _KEY,
        "return ('any', value)",
        f"{_STORIES}test_a_storage_asks_its_parent_for_each_of_them",
    ),
    *[
        Row(
            f"true-is-one-in-a-swarm-of-{protocol}",
            _PREDICATE,
            _KEY,
            "return ('any', value)",
            "tests/simulator/test_plans.py::"
            "test_values_that_are_alike_across_kinds_are_drawn_and_make_no_difference",
            {"protocol": protocol},
        )
        for protocol in ("gryphon", "ges_reliable", "durable")
    ],
    Row(
        "true-is-one-by-hash-and-equality",
        _PREDICATE,
        _KEY,
        "return ('any', value)",
        "tests/model/test_predicate.py::test_predicates_are_equal_by_kind_and_value",
    ),
    Row(
        "one-and-one-point-zero-are-two",
        _PREDICATE,
        _KEY,
        "return type(value), value",
        "tests/model/test_predicate.py::test_predicates_are_equal_by_kind_and_value",
    ),
)
