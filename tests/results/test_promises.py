"""A run is judged by what its protocol promises: order, announced gaps, and redelivery."""

from random import Random

import pytest

from results.reference.history import History
from results.reference.rule import check
from tests.helpers.promised_histories import CASES, RELEASED, promised_history

SEEDS = range(12)


def histories(name: str) -> list[History]:
    case = CASES[name]
    found = []
    for seed in SEEDS:
        rng = Random(seed)
        found.append(case.change(promised_history(rng, case.promises), rng))
    return found


# --- The plain checker ------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_promised_is_named_and_what_is_promised_is_not(name: str) -> None:
    seen: set[str] = set()
    for seed, history in enumerate(histories(name)):
        judgement = check(history)
        found = {*judgement.counts.violations}
        wanted = "INVALID" if CASES[name].kinds else "VALID"
        assert judgement.verdict == wanted, f"seed {seed}: {found}, {judgement.because}"
        seen |= found
    assert seen == CASES[name].kinds


def test_what_is_in_a_promised_gap_is_announced_and_not_owed() -> None:
    for history in histories("a_gap_is_announced_for_a_promised_reason"):
        counts = check(history).counts
        assert counts.announced == {RELEASED: 3}
        assert counts.owed == counts.delivered
        assert counts.missing == 0


def test_what_is_given_again_is_counted() -> None:
    for history in histories("what_was_not_committed_comes_again"):
        counts = check(history).counts
        assert counts.redelivered == 3
        assert counts.owed == counts.delivered
