"""Tests of matching sequences against evaluations of the predicate."""

import json
from random import Random

from bench.load.content import ContentTables, SourceContent
from bench.load.expected_content import MatchingSequences, MatchTables
from results.rules.expectation import Scalar, parse_predicate

SETS = 40
BLOCK = 64
TABLES = ContentTables.build(
    3, [{"n": number} for number in range(SETS)], 4, lambda each: json.dumps(each).encode()
)


def test_the_count_of_a_range_equals_the_sum_over_its_sequence_numbers() -> None:
    """Ranges are near and far, in any order, and two subscriptions share a source."""
    for wanted in (0, 1, 3, 17, SETS - 1, SETS):
        _try_a_predicate(wanted)


def _try_a_predicate(wanted: int) -> None:
    random = Random(wanted)
    chosen = random.sample(range(SETS), wanted)
    matching = bytes(number in chosen for number in range(SETS))
    source = SourceContent(TABLES, 3, 0, 1, block_size=BLOCK)
    found, other = MatchingSequences(source, matching), MatchingSequences(source, matching)
    matches = [bool(matching[source.choice(number)[0]]) for number in range(2000)]
    for _ in range(60):
        after = random.randrange(1990)
        up_to = random.randrange(after, 2000)
        asked = random.choice([found, other])
        assert asked.count_between(after, up_to) == sum(matches[after + 1 : up_to + 1])
    numbers = [number for number in range(1, 2000) if matches[number]]
    for place in range(0, max(0, len(numbers) - 200), 150):
        run = numbers[place : place + 170]
        before = numbers[place - 1] if place else 0
        assert found.is_next(before, run)
        if wanted < SETS:
            assert not found.is_next(before, [*run[:80], *run[81:]])
            assert not found.is_next(before, run[1:])


def test_a_table_equals_the_answers_for_each_set() -> None:
    """Sets differ if a value has another type, or if an attribute is absent."""
    random = Random(5)
    values = [1, 1.0, True, 2, "1", "a"]
    sets: list[dict[str, Scalar]] = [
        {name: random.choice(values) for name in "abc" if random.random() < 0.8} for _ in range(300)
    ]
    tables = MatchTables(sets)
    for text in ("true", "a = 1", "not (a = 1) or b > 1", "a = true and b exists", "c in (1, 'a')"):
        predicate = parse_predicate(text)
        asked = bytes(predicate.holds(attributes) for attributes in sets)
        assert tables.table(predicate) == asked
        assert tables.table(predicate) is tables.table(predicate)
