"""Histories in which two ends coincide, or are one nanosecond apart."""

from dataclasses import replace
from random import Random

import pytest

from results.reference.rule import JITTER_NS, check
from tests.helpers.promised_histories import PLAIN, promised_history


@pytest.mark.parametrize("back_ns", [JITTER_NS, JITTER_NS + 1])
def test_a_clock_may_go_back_by_its_jitter_and_not_further(back_ns: int) -> None:
    """One step leads back, all others lead on."""
    history = promised_history(Random(1), PLAIN)
    rows = [*history.subscriptions[0].delivered]
    began_ns = rows[-1].received_ns
    rows = [
        replace(row, received_ns=began_ns + 10 * JITTER_NS * place)
        for place, row in enumerate(rows)
    ]
    rows[5] = replace(rows[5], received_ns=rows[4].received_ns - back_ns)
    first, *others = history.subscriptions
    changed = replace(history, subscriptions=[replace(first, delivered=rows), *others])
    judgement = check(changed)
    found = [doubt for doubt in judgement.doubts if "went back" in doubt]
    assert len(found) == (back_ns > JITTER_NS)
    assert all(f"{back_ns / 1e9:.3f} s" in doubt for doubt in found)


def test_the_least_that_is_owed_to_anyone_is_the_least() -> None:
    """Two subscriptions want all, and two want less."""
    history = promised_history(Random(1), PLAIN)
    everything, less = check(history).counts.owed, check(history).counts.least_owed
    assert less is not None
    name, _, least = less
    (predicate,) = (s.predicate for s in history.subscriptions if s.subscription == name)
    assert predicate != "true"
    assert least * check(history).counts.pairs < everything
