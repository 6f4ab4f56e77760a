"""The piece of a log on which the checker is tried."""

from itertools import combinations, pairwise
from random import Random
from typing import Any

import pytest

from results.checker.canary import SHORTEST_PIECE, longest_rising


def rows(sequences: list[int]) -> list[dict[str, Any]]:
    return [{"incarnation": 1, "seq": sequence} for sequence in sequences]


def rising(sequences: list[int]) -> list[int]:
    return [row["seq"] for row in longest_rising(rows(sequences))]


def test_a_rising_sequence_is_kept_whole() -> None:
    assert rising([1, 2, 5, 9]) == [1, 2, 5, 9]
    assert rising([]) == []
    assert rising([3, 3, 3]) == [3]


def test_an_overtaking_publication_does_not_hide_the_others() -> None:
    """The last publication of a stretch arrives first, as with topics of different speed."""
    assert rising([40, *range(1, 40)]) == [*range(1, 40)]
    topics = [n for topic in range(8, 0, -1) for n in range(topic, 100, 8)]
    assert len(rising(topics)) >= SHORTEST_PIECE


@pytest.mark.parametrize("seed", range(20))
def test_the_rising_piece_is_as_long_as_any_rising_subsequence(seed: int) -> None:
    sequences = [Random(seed).randrange(12) for _ in range(10)]
    found = rising(sequences)
    longest = max(
        n
        for n in range(1, 11)
        for chosen in combinations(sequences, n)
        if all(a < b for a, b in pairwise(chosen))
    )
    assert len(found) == longest
    assert found == sorted({*found})
