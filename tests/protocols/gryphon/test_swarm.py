"""Swarms of gryphon: no violations, full coverage of all rules, and named bugs found."""

import os

import pytest

from brokerd.simulator.checks.marks import compute_coverage, describe_coverage
from brokerd.simulator.checks.protocol_checks import marks_of
from brokerd.simulator.named_bugs import bugs_of, mistaken_functions, plant
from brokerd.simulator.search.adversary import AdversaryOptions, run_adversary
from brokerd.simulator.search.swarm import SwarmOptions, run_seed, run_swarm
from tests.helpers.gryphon_stories import Story
from tests.helpers.seeds import seeds_of_the_mix
from tests.protocols.gryphon.test_checks import SEEN
from tests.protocols.gryphon.test_filter_routes import STORIES as ROUTE_STORIES
from tests.protocols.gryphon.test_replicas import BUGS as REPLICA_BUGS

BY_ROUTES = tuple(bug for bugs in ROUTE_STORIES.values() for bug in bugs)
MUTANTS = bugs_of("gryphon")
BUGS = tuple(bugs_of("gryphon").values())

CORES = os.cpu_count() or 1
SEEDS = seeds_of_the_mix(64, long=1)
BY_A_STORY = "delivered-counts-as-acknowledged"
"""Few seeds have a broker that dies between its acknowledgement and the client's."""
BY_STORIES = (
    BY_A_STORY,
    *BY_ROUTES,
    *REPLICA_BUGS,
    "own-streams-lose-without-a-gap",
    "idle-brokers-never-doubt",
    "proof-of-an-ended-subscription",
    "proof-of-a-taken-gap",
    "only-last-tick-of-a-new-stream",
    "first-pubends-alone-have-gaps",
    "one-member-serves-all",
    "final-of-a-cell-sent-to-another",
    "start-is-not-announced",
    "waiting-events-count-as-received",
    "never-sideways",
    "sideways-requests-are-dropped",
    "answered-ticks-are-not-forwarded",
    "requests-expire-at-repetition",
    "M09-tick-used-again",
    "clock-precedes-assigned-ticks",
    "published-not-recovered",
    "chopped-before-written",
    "events-sent-sideways-twice",
    "requests-sent-sideways-twice",
    *(bug for _, bug, _ in SEEN.values()),
    "filter-is-confirmed-before-it-is-durable",
    "volatile-start-of-a-subscription",
    "acks-are-not-sent-sideways",
    "gaps-split-without-end",
    "changed-filter-releases-nothing",
    "kept-beside-although-unwanted",
    "retained-events-await-no-ack",
    "sideways-ack-request-unanswered",
    "older-filter-applies",
    "silence-of-a-cell-sent-to-another",
    "acks-wait-for-unmatched-events",
    "bracket-ends-at-unmatched-event",
    "begins-at-the-lowest-answer",
    "pubend-begins-at-its-clock",
    "pubend-begins-without-agreement",
    "pubend-begins-after-one-round",
    "answered-before-it-is-written",
    "awaited-streams-are-volatile",
    "join-request-is-not-repeated",
    "silence-beyond-the-lease",
    "final-silence-is-not-sent",
    "window-is-not-returned",
    "waiting-answers-are-dropped",
    "window-probe-is-sent-once",
    "never-waits",
    "waits-for-ever",
    "receives-without-room-below",
    "stall-holds-for-ever",
    "window-bounds-nothing",
    "skipped-cell-gets-no-end",
    "lost-neighbour-is-awaited",
    "repeated-requests-wait-for-the-log",
    "answered-requests-are-retained",
    "sideways-windows-wait-for-each-other",
    "publisher-changes-its-pubend",
    "one-message-for-a-whole-gap",
    "never-in-doubt",
    "doubts-stay-on-the-way",
    "doubts-repeat-no-ack",
    "waits-although-its-peer-is-there",
    "forged-filter-stays",
    "leaves-before-the-streams-pass",
    "leaves-before-own-events",
    "leaves-before-stated-ticks",
    "stated-ticks-are-not-requested",
    "starts-without-positions",
    "restart-has-begun-too-early",
    "first-final-is-not-announced",
)
"""Named bugs that only stories, scenarios or whole checks find.

The stories are those of cells, total order, joining pubends, requests, losses, restarts, filters,
moves and slow brokers.
"""
BUDGET = 40
EARLY = (4, 8)
"""Short seeds that find most named bugs."""
FIRST = {
    "curiosity-is-permanent": 5,
    "tick-lease-not-written": 6,
    "unknown-filter-passes-nothing": 1,
    "subscription-starts-with-the-stream": 14,
    "present-request-is-not-recorded": 8,
}
"""Seeds that find the other named bugs; the search starts there."""


def test_a_swarm_finds_no_violation_and_reaches_every_mark() -> None:
    reports = list(run_swarm(SEEDS, "gryphon", CORES))
    failed = [(report.seed, report.violations) for report in reports if report.violations]
    assert not failed
    marks = compute_coverage(marks_of("gryphon"), reports)
    assert all(row.is_enough for row in marks), describe_coverage(marks)
    assert sum(report.counters["at_risk"] for report in reports) > 1_000


@pytest.mark.parametrize("first", [1, 160])
def test_an_adversary_without_a_clock_breaks_nothing(first: int) -> None:
    """A broker's clock advances with its deadlines only, so every expiry needs a deadline."""
    options = AdversaryOptions(protocol="gryphon")
    reports = [run_adversary(seed, options) for seed in range(first, first + 6)]
    assert not [(report.seed, report.violations) for report in reports if report.violations]


@pytest.mark.drawn("gryphon")
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in BY_STORIES])
def test_a_named_bug_is_seen(name: str) -> None:
    options = SwarmOptions(mutants=frozenset((name,)), check_purity=False)
    first = (FIRST[name],) if name in FIRST else ()
    for seed in dict.fromkeys((*first, *EARLY, *range(1, 1 + BUDGET))):
        if run_seed(seed, "gryphon", options).violations:
            return
    pytest.fail(f"{name} survived seeds 1 to {BUDGET}")


def crash_before_a_client_has_got_it() -> bool:
    """Return True if a client of a broker that crashes and restarts receives all events."""
    story = Story()
    subscription = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    link = story.cluster.link(subscription.client.name, "s1").absorb()
    sent = story.publish(5, pause_s=0.2)
    story.cluster.broker("s1").kill()
    story.cluster.run_for(0.2)
    link.heal()
    story.cluster.broker("s1").start()
    story.cluster.run_for(20)
    return subscription.received == sent


def test_unacknowledged_deliveries_are_requested_after_a_crash_of_the_access_broker() -> None:
    assert crash_before_a_client_has_got_it()
    with plant([MUTANTS[BY_A_STORY]]):
        assert not crash_before_a_client_has_got_it()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_row_of_a_bug_fits_the_source(bug) -> None:
    assert mistaken_functions((bug,))
