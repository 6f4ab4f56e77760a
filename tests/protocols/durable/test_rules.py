"""Every invariant of durable is checked by a rule that a named bug breaks.

A failing story shows that a bug is found; these tests show which rule finds the bug. Commits of a
client (J9) are also tested in `tests/client/test_transactions.py`.

Paper: [DS03]; the invariants are numbered as in `checks/disks.py`.
"""

import ast
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.search.swarm import run_seed
from tests.helpers.durable_stories import DurableStory
from tests.protocols.durable import (
    test_consumers,
    test_early_release,
    test_moves,
    test_returns,
    test_stored_events,
    test_stories,
)

MUTANTS = bugs_of("durable")

HERE = Path(__file__).parent


def comes_to_rest() -> bool:
    """Return True if all subscribers become live and all state durable once no event is owed."""
    story = DurableStory(catchup_batch=5, catchup_window=1, live_limit=5)
    both = story.subscriber(), story.subscriber()
    links = [story.away(each) for each in both]
    story.publish(10)
    upstream = story.cluster.link("p1", "b1").absorb()
    for link in links:
        link.heal()
    story.cluster.run_for(2)
    upstream.heal()
    story.cluster.run_for(20)
    if left := story.cluster.checker.own.list_rest(story.cluster.brokers):
        raise InvariantViolated("left over", "; ".join(left))
    return True


RULES = (
    ("J2", "gap", "lost-is-silent", test_early_release.away_for_too_long, ()),
    ("J2", "delivered to client again", "no-floor", test_stories.given_again, ()),
    (
        "J7",
        "fed by another",
        "left-with-its-catch-up",
        test_returns.test_a_request_of_a_closed_session_is_not_answered,
        (),
    ),
    ("J8", "live early", "live-too-early", test_stories.in_small_batches, ()),
    ("J8", "live early", "live-from-the-beginning", test_stories.in_small_batches, ()),
    (
        "J5",
        "matches",
        "matches-of-connected-clients-only",
        test_stories.test_a_returning_subscriber_fetches_missed_events_that_only_the_pubend_keeps,
        (),
    ),
    ("J5", "matches", "previous-of-another", test_stories.in_small_batches, ()),
    ("J5", "chopped early", "chopped-before-rows", test_stories.in_small_batches, ()),
    (
        "J9",
        "acknowledged without client",
        "old-session-counts",
        test_returns.test_deliveries_of_a_closed_session_are_not_acknowledged,
        (),
    ),
    ("J9", "committed early", "answered-before-committed", test_consumers.crashed_together, (20,)),
    ("J10", "lost early", "delivered-is-released", test_early_release.away_for_too_long, ()),
    (
        "J11",
        "fetched twice",
        "subscriptions-repeat-requests",
        test_stories.test_two_returning_subscribers_share_one_fetch,
        (),
    ),
    ("J12", "left over", "not-admitted-again", comes_to_rest, ()),
    (
        "J10",
        "policy recorded",
        "restart-records-no-policy",
        test_early_release.a_reset_that_a_crash_interrupts_is_recorded,
        (),
    ),
    ("J1", "released early", "released-before-written", test_stories.one_of_two_is_away, ()),
    (
        "J1",
        "released as it was",
        "released-as-before-its-arrival",
        test_moves.test_a_moved_subscriber_receives_missed_events_and_its_old_broker_releases_it,
        (),
    ),
    (
        "J1, J12",
        "released as it was",
        "released-as-before-its-end",
        test_stories.test_an_unsubscription_releases_its_withheld_publications,
        (),
    ),
    ("J1, J6", "order of positions", "not-truncated", test_stories.new_beside_an_old_tail, ()),
    ("J3, J10", "gap unpromised", "released-before-it-is-held", test_moves.out_of_reach, ()),
    (
        "J4",
        "gap to live subscription",
        "live-from-the-beginning",
        test_early_release.away_for_too_long,
        (),
    ),
    ("J13", "hold passed", "hold-dropped", test_moves.asked_again_late, (False,)),
    (
        "J14",
        "stored before a loss",
        "stored-events-outlive-a-loss",
        test_stored_events.gap_of_a_loss,
        (),
    ),
    (
        "J14",
        "stored too much",
        "stored-without-a-limit",
        test_stored_events.test_events_that_a_store_had_no_room_for_are_fetched,
        (),
    ),
)


ORDERS = {
    "rows behind matches": "rows-before-matches",
    "what others hear of a commit behind its rows": "announced-before-rows",
    "what is released behind its rows": "released-before-written",
    "what is done behind its rows": "volatile-ticks-are-acknowledged",
    "the end of matches behind rows": "chopped-before-rows",
    "a subscription's start behind its row": "accepted-before-written",
    "the answer to a commit behind its token": "answered-before-committed",
    "that a hold is there behind its row": "held-before-written",
    "that a subscription has gone behind the end of its row": "end-confirmed-before-written",
    "the end of what is acknowledged behind the end of the row": "rows-dropped-before-the-end",
    "matches behind the last commit dropped before there are more": "not-truncated",
    "nothing given that a client has": "no-floor",
    "silence of the pubend only": "answered-from-silence",
}
"""Ordering requirements and required steps, with the named bug that violates them."""


def test_each_order_has_a_bug_and_each_bug_a_test_that_names_it() -> None:
    assert set(ORDERS.values()) <= MUTANTS.keys()
    trees = [ast.parse(each.read_text(encoding="utf-8")) for each in HERE.glob("test_*.py")]
    texts = [
        str(node.value)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
    ]
    named = Counter(word for text in texts for word in text.split())
    named.subtract(ORDERS.values())
    assert not [bug for bug in MUTANTS if named[bug] < 1]


def broken(story: Callable[..., bool | None], *arguments: object) -> str:
    """Return the rule that a story breaks; "" if no rule is broken."""
    try:
        story(*arguments)
    except InvariantViolated as error:
        return error.rule
    return ""


@pytest.mark.parametrize(
    "rule, bug, story, arguments",
    [row[1:] for row in RULES],
    ids=[f"{row[0]} {row[1]}" for row in RULES],
)
def test_a_mistake_breaks_the_rule_that_stands_for_an_invariant(
    monkeypatch, rule, bug, story, arguments
) -> None:
    monkeypatch.setattr(DurableStory, "looks_inside", True)
    assert broken(story, *arguments) == ""
    with plant([MUTANTS[bug]]):
        assert broken(story, *arguments) == rule


@pytest.mark.parametrize("seed", [206, 94_000_078])
def test_no_rule_accuses_a_broker_of_what_an_earlier_process_did(seed: int) -> None:
    """Plans of clients that restart.

    206: a subscription without memory has the identity of an earlier one. 94,000,078: a gap names
    released publications that do not match, behind all that the earlier process acknowledged.
    """
    assert run_seed(seed, "durable").violations == ()
