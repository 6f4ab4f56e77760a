"""Tests of rules that the checker and its plain twin must read alike."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from results.reference import verdict as reference
from results.reference.history import ACKNOWLEDGED, REJECTED
from results.reference.risk import DeliveryPaths, Tree, is_certainly_sent_in, times_of_risk
from results.reference.rule import check
from results.rules import verdicts
from results.rules.risks import Exposure, risk_windows
from results.rules.terms import Counts, Fault, Guarantee, RiskWindow
from tests.helpers.histories import MILLISECOND
from tests.helpers.plain_times import is_certainly_in
from tests.helpers.withheld_histories import SECOND, barrier_history
from tests.results.test_reference_check import story
from tests.results.test_risks import LINKS, fault, short

Doubts = Callable[[Iterable[Fault]], Iterable[str]]
Decide = Callable[..., tuple[str, Any, Any]]


# --- Verdicts -------------------------------------------------------------------------------


@pytest.mark.parametrize("decide", [verdicts.decide, reference.decide])
def test_a_doubt_leaves_unproven_losses_open(decide: Decide) -> None:
    whole = Counts(1, 10, 10, 1, 1, {}, least_owed=("s", "a/0", 10))
    lossy = replace(whole, delivered=9, violations={"missing": 1})
    assert decide(whole, (), Guarantee(), False, 1)[0] == "VALID"
    assert decide(whole, ("who knows",), Guarantee(), False, 1)[0] == "UNKNOWN"
    assert decide(lossy, ("who knows",), Guarantee(), False, 1)[0] == "INVALID"
    assert decide(replace(whole, at_risk=0), (), Guarantee(), False, 1)[0] == "UNKNOWN"


@pytest.mark.parametrize("decide", [verdicts.decide, reference.decide])
def test_order_violations_count_only_if_order_is_guaranteed(decide: Decide) -> None:
    for order, kind, name in (
        ("publisher", "reordered", "INVALID"),
        ("total", "reordered", "INVALID"),
        ("total", "order_differs", "INVALID"),
        ("none", "reordered", "VALID"),
    ):
        counts = Counts(1, 10, 10, 1, 1, {kind: 1}, least_owed=("s", "a/0", 10))
        assert decide(counts, (), Guarantee(order=order), False, 1)[0] == name, (order, kind)


@pytest.mark.parametrize("doubts", [verdicts.doubts_about_faults, reference.doubts_about_faults])
def test_a_fault_is_believed_when_it_was_applied_and_then_seen(doubts: Doubts) -> None:
    sound = fault("1", "kill", 2, 9)
    assert list(doubts([sound])) == []
    for wrong in (
        {"applied_ns": None},
        {"observed_ns": None},
        {"err_ns": None},
        {"observed_ns": MILLISECOND},
        {"healed_ns": MILLISECOND},
    ):
        assert len(list(doubts([replace(sound, **wrong)]))) == 1, wrong


# --- When and where something was at risk ---------------------------------------------------


@pytest.mark.parametrize("windows_of", [risk_windows, times_of_risk])
def test_an_ending_fault_has_its_own_window_if_it_affects_more(
    windows_of: Callable[[list[Fault]], list[Any]],
) -> None:
    link = fault("1", "absorb", 2, target="b-1-s1", parts=("b-1-s1",))
    both = fault("2", "kill", 5, target="s1", parts=("s1", "b-1-s1"))
    same = replace(both, parts=("b-1-s1",))
    assert [short(each) for each in windows_of([link, both])] == [
        ("1+2", 2, 5, "kill"),
        ("2", 5, None, ""),
    ]
    assert [short(each) for each in windows_of([link, same])] == [("1+2", 2, 5, "kill")]


@pytest.mark.parametrize("windows_of", [risk_windows, times_of_risk])
def test_a_fault_is_ended_by_a_fault_over_all_of_its_targets_only(
    windows_of: Callable[[list[Fault]], list[Any]],
) -> None:
    links = fault("1", "partition", 2, 9, target="p1|s1", parts=("p1-b-1", "b-1-s1"))
    one = fault("2", "cut", 5, 7, target="b-1-s1", parts=("b-1-s1",))
    assert [short(each) for each in windows_of([links, one])] == [
        ("1", 2, 9, "release"),
        ("2", 5, 7, "release"),
    ]
    gone = fault("1", "absorb", 2, 5)  # with the broker, at the same moment
    assert [short(each) for each in windows_of([gone, fault("2", "kill", 5)])] == [
        ("1+2", 2, 5, "kill")
    ]


def test_a_moving_client_is_at_risk_only_on_links_of_both_routes() -> None:
    roam = fault("r", "client-roam", 8, target="c", to="s2", parts=("client:c",))
    roam = replace(roam, observed_ns=10 * MILLISECOND)
    for target, at_ms, is_at_risk in (
        *(("b-1-s1", 1, True), ("b-1-s1", 9, False), ("b-1-s1", 12, False)),
        *(("b-1-s2", 1, False), ("b-1-s2", 9, False), ("b-1-s2", 12, True)),
        ("p1-b-1", 9, True),
    ):
        cut = fault("1", "cut", at_ms, at_ms + 1, target=target, parts=(target,))
        window = next(each for each in risk_windows([roam, cut]) if each.verb == "cut")
        for ways in (
            Exposure(LINKS, [roam, cut]).holds,
            DeliveryPaths(Tree(LINKS), [roam, cut]).lead_through,
        ):
            assert ways(window, "p", "p1", "c", "s1") == is_at_risk, (target, at_ms)
            assert ways(window, "c", "s1", "d", "p1") == is_at_risk, ("publisher", target, at_ms)
            moving = next(each for each in risk_windows([roam, cut]) if each.verb == "client-roam")
            assert ways(moving, "c", "s1", "d", "p1"), "what it publishes while it moves"
            assert not ways(moving, "p", "s1", "d", "p1")


@pytest.mark.parametrize("is_in", [is_certainly_in, is_certainly_sent_in])
def test_a_publication_within_the_clock_error_is_not_surely_at_risk(
    is_in: Callable[[RiskWindow, int], bool],
) -> None:
    (window,) = risk_windows([fault("1", "cut", 2, 6, err_ns=MILLISECOND)])
    assert [is_in(window, ms * MILLISECOND) for ms in range(1, 7)] == [
        *(False, False, True, True, False, False)
    ]


# --- What is owed ---------------------------------------------------------------------------


def test_an_acknowledged_publication_is_owed_despite_a_rejection() -> None:
    history = story(calm=True, lost=(5,))
    (log,) = history.publishers
    answers = [(0, 1, 12, ACKNOWLEDGED), (0, 5, 5, REJECTED)]
    judgement = check(replace(history, publishers=[replace(log, answers=answers)]))
    assert judgement.counts.violations == {"missing": 1}


def test_a_log_with_changed_content_hides_no_loss() -> None:
    history = story(calm=True, lost=(5,))
    (log,) = history.publishers
    (subscription,) = history.subscriptions
    kept = [row for row in log.published if row.sequence != 5]
    was = history.content.attributes(log.published[4].attribute_set)
    other = next(
        number
        for number in range(history.content.fence_set)
        if history.content.attributes(number)["symbol"] != was["symbol"]
    )
    wanted = replace(
        subscription,
        predicate=f"symbol = '{was['symbol']}'",
        delivered=[
            row
            for row, sent in zip(subscription.delivered, kept, strict=True)
            if row.sequence in (1, 12)
            or history.content.attributes(sent.attribute_set)["symbol"] == was["symbol"]
        ],
    )
    rows = [
        replace(row, attribute_set=other) if row.sequence == 5 else row for row in log.published
    ]
    judgement = check(
        replace(history, publishers=[replace(log, published=rows)], subscriptions=[wanted])
    )
    assert judgement.counts.violations == {"missing": 1}


def test_a_past_fault_does_not_justify_withholding_later_publications() -> None:
    history = barrier_history(Random(3), withheld=20)
    (log,) = history.publishers
    (subscription,) = history.subscriptions

    def later(stamp_ns: int, sequence: int) -> int:
        return stamp_ns + 60 * SECOND * (sequence > 15)

    rows = [replace(row, sent_ns=later(row.sent_ns, row.sequence)) for row in log.published]
    told = [
        replace(row, received_ns=later(row.received_ns, row.sequence))
        for row in subscription.delivered
    ]
    judgement = check(
        replace(
            history,
            publishers=[replace(log, published=rows)],
            subscriptions=[replace(subscription, delivered=told)],
        )
    )
    assert judgement.counts.violations == {"withheld_unjustified": 5}
