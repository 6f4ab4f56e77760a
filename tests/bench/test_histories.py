"""Tests of made-up histories: valid ones pass, and exactly the planted mistakes are found."""

from pathlib import Path

import pytest

from bench.histories import MUTATIONS, HistoryRequest, make_history
from brokerd.errors import ConfigError
from results.reference.history_reader import judge_folder


def test_a_history_without_mistakes_is_valid_and_has_about_as_many_deliveries(
    tmp_path: Path,
) -> None:
    made = make_history(HistoryRequest(15_000, publishers=1, subscribers=4), tmp_path)
    found = judge_folder(made.run)
    assert (found.verdict, found.doubts) == ("VALID", ())
    assert found.counts.owed == found.counts.delivered == made.delivered
    assert 7_500 < made.delivered < 30_000


@pytest.mark.parametrize("kind", MUTATIONS)
def test_each_mistake_is_found_and_nothing_else(tmp_path: Path, kind: str) -> None:
    asked = HistoryRequest(10_000, publishers=1, subscribers=3, seed=7, mutations={kind: 3})
    made = make_history(asked, tmp_path)
    found = judge_folder(made.run)
    assert found.verdict == "INVALID"
    assert dict(found.counts.violations) == {kind: 3} == dict(made.mistakes)


def test_an_invalid_mutation_is_named() -> None:
    with pytest.raises(ConfigError, match="no mutation 'mising'; did you mean 'missing'"):
        HistoryRequest(1_000, mutations={"mising": 1})
    with pytest.raises(ConfigError, match="missing = 0: at least one"):
        HistoryRequest(1_000, mutations={"missing": 0})
