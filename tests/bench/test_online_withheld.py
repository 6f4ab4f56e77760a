"""Tests of withheld publications: the online checker counts them as the reference does."""

from random import Random

import pytest

from results.reference.history import History
from results.reference.rule import check
from results.rules.risks import Tree
from results.rules.withholding import Barriers, RequestTimes
from tests.helpers.online import Online
from tests.helpers.withheld_histories import PUBLICATIONS, SPOILED, barrier_history

PREDICATES = ("true", "price > 40")
COUNTS = (
    "missing",
    "fence_missing",
    "duplicate",
    "reordered",
    "withheld_delivered",
    "withheld_late",
)


def agree(history: History, rng: Random) -> None:
    plain = check(history).counts
    checker = Online(history, rng=rng).checker
    report = checker.report()
    totals, (lane,) = report["totals"], report["lanes"]
    assert (totals["owed"], totals["withheld"]) == (plain.owed, sum(plain.withheld.values()))
    assert {name: totals[name] for name in COUNTS} == {
        name: plain.violations.get(name, 0) for name in COUNTS
    }
    barriers = Barriers(Tree(history.links), history.delta, history.faults, history.newcomers)
    (subscription,) = history.subscriptions
    by_name = {str(notice.partition): notice.partition for notice in subscription.notices}
    reasons: dict[str, bool] = {}
    unjustified = 0
    for told in lane.get("announced", ()):
        name = told["partition"]
        if name not in reasons:
            asked = RequestTimes(subscription.issued_ns, subscription.accepted_ns)
            excuse = barriers.excuse(
                by_name[name], subscription.broker, "a", asked, told["announced_ns"]
            )
            reasons[name] = excuse is not None
        unjustified += 0 if reasons[name] else told["publications"]
    assert unjustified == plain.violations.get("withheld_unjustified", 0)


@pytest.mark.parametrize("predicate", PREDICATES)
def test_a_stream_may_begin_late_at_a_gate(predicate: str) -> None:
    for seed in range(20):
        rng = Random(seed)
        agree(barrier_history(rng, predicate=predicate), rng)


@pytest.mark.parametrize("predicate", PREDICATES)
@pytest.mark.parametrize("name", SPOILED)
def test_withheld_violations_are_counted_as_by_the_reference(name: str, predicate: str) -> None:
    for seed in range(20):
        rng = Random(seed)
        history = barrier_history(rng, predicate=predicate)
        agree(SPOILED[name][0](history, rng), rng)


def test_a_fence_that_was_announced_is_not_waited_for() -> None:
    """A gate that stays closed must not prevent the end of a run."""
    rng = Random(1)
    checker = Online(barrier_history(rng, withheld=10), rng=rng).checker
    assert checker.fences_missing([("a/0", 0, 1), ("a/0", 0, PUBLICATIONS)]) == 0
    lane = checker.progress_of("s", "a/0", 0)
    assert lane is not None
    assert checker.fences_missing([("a/0", 0, 60)]) == 1
    lane.withhold(55, 60, "d#1.2:b-a", 1)
    assert checker.fences_missing([("a/0", 0, 60)]) == 0


def test_a_notice_of_more_than_can_have_been_published_costs_no_time() -> None:
    rng = Random(1)
    checker = Online(barrier_history(rng, predicate="price > 40"), rng=rng).checker
    lane = checker.progress_of("s", "a/0", 0)
    assert lane is not None
    lane.withhold(1, 1 << 60, "d#1.2:b-a", 1)
    assert lane.last_accounted() < 1 << 27
