"""Tests of the plain checker on made-up histories, spoiled and unspoiled."""

import random
from dataclasses import replace

import pytest

from results.reference.history import (
    ACKNOWLEDGED,
    History,
    Judgement,
    PublicationRow,
    PublisherLog,
    SubscriptionLog,
)
from results.reference.rule import check
from results.reference.verdict import decide as second_opinion
from results.rules.expectation import ExpectedContent
from results.rules.terms import Counts, Fault, Guarantee
from results.rules.verdicts import decide
from tests.helpers.histories import (
    LEGAL,
    MILLISECOND,
    MUTATIONS,
    Mutation,
    delivery,
    random_history,
    workload,
)

SEEDS = range(40)
UNDECIDED = {
    "lose_unanswered",
    "truncate_log", "lose_publisher_log_line", "use_records_of_an_old_run", "nothing_at_risk",
}  # fmt: skip


def spoiled(mutation: Mutation, seed: int) -> tuple[History, History] | None:
    history = random_history(random.Random(seed))
    changed = mutation(history, random.Random(seed + 1))
    return None if changed is None else (history, changed)


def test_the_design_asks_for_this_many_mutations() -> None:
    assert (len(MUTATIONS), len(LEGAL)) == (24, 2)


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_every_way_to_spoil_a_history_is_caught(mutation: Mutation) -> None:
    cases = 0
    for seed in SEEDS:
        if (both := spoiled(mutation, seed)) is None:
            continue
        verdict = check(both[1]).verdict
        expected = "UNKNOWN" if mutation.__name__ in UNDECIDED else "INVALID"
        assert verdict == expected, f"seed {seed}: {verdict}"
        cases += 1
    assert cases >= len(SEEDS) / 2


@pytest.mark.parametrize("change", LEGAL.values(), ids=LEGAL.keys())
def test_a_legal_history_is_never_called_invalid(change: Mutation) -> None:
    seen = set()
    for seed in SEEDS:
        if both := spoiled(change, seed):
            verdicts = [check(history).verdict for history in both]
            assert verdicts[0] == verdicts[1] != "INVALID", f"seed {seed}: {verdicts}"
            seen.add(verdicts[0])
    assert seen == {"VALID", "UNKNOWN"}


# --- One story each -------------------------------------------------------------------------


def story(
    *, publications: int = 12, faults: tuple[Fault, ...] = (), lost: tuple[int, ...] = (), **more
) -> History:
    """Return a history: one publisher at a, one subscription at c behind b; n is sent at n ms."""
    content = ExpectedContent.from_workload(workload(1, [{"at": "a", "size": "12B"}]), "run-1")
    rows = []
    for sequence in range(1, publications + 1):
        fence = sequence in (1, publications)
        chosen = content.fence_set if fence else content.choice(0, 0, sequence)[0]
        rows.append(PublicationRow(0, sequence, chosen, sequence * MILLISECOND))
    log = PublisherLog("a/0", "a-pub-1", tuple(rows), ((0, 1, publications, ACKNOWLEDGED),))
    told = tuple(
        delivery(content, log, row, row.sent_ns + 250_000)
        for row in rows
        if row.sequence not in lost
    )
    values = {"deliveries_per_pair_min": 0, "faults": faults, **more}
    return History(
        content,
        [log],
        [SubscriptionLog("s", "c", "true", told)],
        [("a", "b"), ("b", "c")],
        **values,
    )


def ms(number: float) -> int:
    return round(number * MILLISECOND)


STALL = Fault("stall", "absorb", "b", ms(3.5), ms(3.6))
KILL = Fault("kill", "kill", "b", ms(6.5), ms(6.6))


def test_publications_sent_between_stall_and_kill_were_at_risk_and_recovered() -> None:
    judgement = check(story(faults=(STALL, KILL)))
    assert judgement.verdict == "VALID"
    assert (judgement.counts.owed, judgement.counts.delivered) == (10, 10)
    assert (judgement.counts.at_risk, judgement.counts.recovered) == (3, 3)
    (recovery,) = judgement.recoveries
    assert recovery.window.fault_ids == ("stall", "kill")
    assert recovery.window.ended_by == "kill"
    # The last one sent at risk was sent at 6 ms and arrived at 6.25, before the kill at 6.5.
    assert recovery.recovered_after_ns == -ms(0.25)


def test_a_loss_is_invalid_whatever_else_is_unknown() -> None:
    judgement = check(story(lost=(5,), doubts=("the generator could not hold its rate",)))
    assert judgement.verdict == "INVALID"
    assert judgement.because == ("1 missing: owed and never delivered",)
    assert judgement.doubts[0] == "the generator could not hold its rate"
    (violation,) = judgement.violations
    assert (violation.kind, violation.source, violation.sequence) == ("missing", "a/0", 5)


def test_a_run_in_which_nothing_was_at_risk_proves_nothing() -> None:
    judgement = check(story())
    assert judgement.verdict == "UNKNOWN"
    assert judgement.because == ("nothing was at risk: no publication was sent through a fault",)
    assert check(story(calm=True)).verdict == "VALID"


def test_a_fault_elsewhere_puts_nothing_at_risk() -> None:
    history = story(faults=(replace(STALL, target="d"), replace(KILL, target="d")))
    history = replace(history, links=[*history.links, ("b", "d")])
    assert check(history).counts.at_risk == 0


def test_an_unobserved_fault_leaves_the_verdict_open() -> None:
    judgement = check(story(faults=(replace(STALL, observed_ns=None), KILL)))
    assert judgement.verdict == "UNKNOWN"
    assert judgement.because == ("fault stall (absorb b) was not observed",)
    judgement = check(story(faults=(STALL, replace(KILL, applied_ns=None, observed_ns=None))))
    assert judgement.because == ("fault kill (kill b) was not applied",)


def test_too_few_deliveries_prove_nothing() -> None:
    judgement = check(story(faults=(STALL, KILL), deliveries_per_pair_min=11))
    assert judgement.verdict == "UNKNOWN"
    assert judgement.because == (
        "10 deliveries of a/0 are owed to subscription s; the workload requires 11 of every source "
        "to every subscription",
    )


def test_without_a_closing_fence_the_end_is_open() -> None:
    history = story(faults=(STALL, KILL), lost=(11, 12))
    (log,) = history.publishers
    no_fence = replace(log.published[-1], attribute_set=history.content.choice(0, 0, 12)[0])
    log = replace(log, published=(*log.published[:-1], no_fence))
    judgement = check(replace(history, publishers=[log]))
    assert judgement.verdict == "UNKNOWN"
    assert judgement.because == ("source a/0 has no opening and closing fence",)
    assert check(history).verdict == "INVALID"


def test_only_the_last_of_an_incarnation_may_be_left_undone() -> None:
    """A killed publisher leaves the last publications unacknowledged, perhaps undelivered."""
    whole = story(faults=(STALL, KILL))
    (log,) = whole.publishers
    (subscription,) = whole.subscriptions
    # The publisher starts again before its seventh.
    log = replace(
        log,
        published=[
            row if row.sequence < 7 else replace(row, incarnation=1, sequence=row.sequence - 6)
            for row in log.published
        ],
    )
    log = replace(
        log,
        published=[
            row
            if row.attribute_set == whole.content.fence_set
            else replace(row, attribute_set=whole.content.choice(0, *row.key)[0])
            for row in log.published
        ],
    )

    def without(*undone: int) -> Judgement:
        known = [row for row in log.published if row.incarnation or row.sequence not in undone]
        told = [delivery(whole.content, log, row, row.sent_ns + 250_000) for row in known]
        answers = [(*row.key, row.sequence, ACKNOWLEDGED) for row in known]
        return check(
            replace(
                whole,
                publishers=[replace(log, answers=answers)],
                subscriptions=[replace(subscription, delivered=told)],
            )
        )

    assert without().verdict == "VALID"
    assert without(5, 6).verdict == "VALID"
    assert without(3, 6).because == (
        "source a/0, incarnation 0: 1 matching publications were not acknowledged and not "
        "delivered, although later ones were; the first is 3",
    )


def test_an_unwanted_publication_may_lack_an_acknowledgement() -> None:
    history = story(calm=True, lost=(5,))
    (log,) = history.publishers
    (subscription,) = history.subscriptions
    answers = [(0, 1, 4, ACKNOWLEDGED), (0, 6, 12, ACKNOWLEDGED)]
    fences = [row for row in subscription.delivered if row.sequence in (1, 12)]
    never = replace(subscription, predicate="symbol = 'NONE'", delivered=fences)
    history = replace(history, publishers=[replace(log, answers=answers)])
    assert "not delivered" in check(history).because[0]
    assert not any(
        "not delivered" in said for said in check(replace(history, subscriptions=[never])).because
    )


def test_content_that_differs_from_the_seed_is_a_doubt() -> None:
    history = story(faults=(STALL, KILL))
    (log,) = history.publishers
    other = replace(log.published[5], attribute_set=(log.published[5].attribute_set + 1) % 12)
    log = replace(log, published=(*log.published[:5], other, *log.published[6:]))
    judgement = check(replace(history, publishers=[log]))
    assert judgement.because == ("source a/0 published other content than the seed determines",)


def test_a_gap_that_was_declared_is_still_a_gap() -> None:
    history = story(faults=(STALL, KILL), lost=(5,))
    (subscription,) = history.subscriptions
    rows = list(subscription.delivered)
    rows.insert(4, replace(rows[3], sequence=5, kind=2))
    history = replace(history, subscriptions=[replace(subscription, delivered=tuple(rows))])
    assert check(history).counts.violations == {"gap_not_permitted": 1, "missing": 1}


@pytest.mark.parametrize("guarantee, violations, verdict", [
    (Guarantee(), {"duplicate": 1}, "INVALID"),
    (Guarantee("at-least-once"), {"duplicate": 1}, "VALID"),
    (Guarantee("at-least-once"), {"missing": 1}, "INVALID"),
    (Guarantee("at-most-once", gapless=False), {"missing": 1}, "VALID"),
    (Guarantee("at-most-once"), {"missing": 1}, "INVALID"),
    (Guarantee("at-most-once", gapless=False), {"duplicate": 1}, "INVALID"),
    (Guarantee(order="none"), {"reordered": 1}, "VALID"),
    (Guarantee(order="none"), {"phantom": 1}, "INVALID"),
])  # fmt: skip
def test_a_run_is_judged_against_what_its_workload_asks_for(
    guarantee: Guarantee, violations: dict[str, int], verdict: str
) -> None:
    counts = Counts(1, 10, 9, 1, 1, violations, least_owed=("s", "a/0", 10))
    assert decide(counts, (), guarantee, calm=False, deliveries_per_pair_min=1)[0] == verdict
    assert second_opinion(counts, (), guarantee, False, 1)[0] == verdict
