"""Every rule that simulations check gryphon against detects a bug (`checks/steps.py`)."""

import inspect
import re
from collections.abc import Callable

import pytest

from brokerd.protocols.gryphon.checks import ghost_joins, ghosts, holdings, steps, traffic
from brokerd.protocols.gryphon.checks.planning import tree_of_cells
from brokerd.protocols.gryphon.messages import Events, Nack
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.search.swarm import SwarmOptions, run_seed
from brokerd.units import MILLISECOND_NS
from tests.helpers.gryphon_stories import Story

MUTANTS = bugs_of("gryphon")

BUDGET = 60

# Rule → invariant of the design, a named bug that it finds, the first seed of a swarm with it.
SEEN = {
    "silent event": ("I1", "M02-silence-over-unknown", 1),
    "other event": ("I2", "another-number-than-its-publishers", 1),
    "unassigned tick": ("I3", "silent-behind-an-event", 1),
    "tick reused": ("I4", "ticks-follow-the-clock-alone", 1),
    "pubend with a gap": ("I4", "no-silence-before-an-event", 1),
    "gap": ("I5", "M01-horizon-ignored", 1),
    "final early": ("I6", "M04-done-with-the-first", 1),
    "acknowledged ahead": ("I7", "received-counts-as-acknowledged", 1),
    "acknowledgement decreased": ("I7", "acknowledgement-decreases", 1),
    "chopped early": ("I8", "chops-all-there-is", 1),
    "curiosity": ("I9", "received-ticks-are-requested", 2),
    "still curious": ("I9", "answer-leaves-curiosity", 2),
    "requested twice": ("I10", "recent-request-is-repeated", 6),
    "requested without need": ("I10", "request-has-one-tick-more", 1),
    "unrequested": ("I10", "answers-beyond-the-request", 3),
    "acknowledged early": ("I12", "acknowledged-when-assigned", 1),
    "ranges": ("I13", "neighbouring-ranges-stay-apart", 2),
    "liveness": ("I14", "no-ack-is-expected", 1),
    "total order": ("I15", "merge-follows-arrivals", 4),
    "retained": ("I16", "final-events-are-retained", 1),
    "window": ("I16", "answers-unbounded", 26),
    "unsettled": ("I16", "stream-settles-on-request-only", 1),
}
BY_STORIES = {
    "route back": "I11",
    "joined early": "I12",
    "start unannounced": "I15",
    "start early": "I15",
}
"""Invariants of all further pubends; see the stories of joining pubends."""
ALIKE = {"tick order": "tick reused"}
"""A reused tick may be another pubend's highest tick, or lie below it."""


def test_every_invariant_and_every_rule_of_the_checks_is_seen_to_fail() -> None:
    seen = {number for number, _, _ in SEEN.values()} | {*BY_STORIES.values()}
    assert seen == {f"I{number}" for number in range(1, 17)}
    for module in (ghosts, ghost_joins, holdings, traffic):
        rules = {*re.findall(r'InvariantViolated\(\s*"([^"]+)"', inspect.getsource(module))}
        assert rules <= {*SEEN, *BY_STORIES, *ALIKE}, module.__name__
    for rule in (*SEEN, *BY_STORIES):
        assert rule in steps.__doc__ or rule in ("gap", "liveness")


@pytest.mark.parametrize("rule", SEEN)
def test_a_rule_sees_a_mistake(rule: str) -> None:
    _, bug, first = SEEN[rule]
    options = SwarmOptions(mutants=frozenset((bug,)), check_purity=False)
    for seed in dict.fromkeys((first, *range(1, BUDGET))):
        report = run_seed(seed, "gryphon", options)
        if report.rule == rule:
            return
    pytest.fail(f"{rule} does not see {bug} in {BUDGET} seeds")


CELL_OF_THREE = tree_of_cells(
    ["p1", "b1", "b2", "b3", "s1", "s2"],
    [("p1", "middle"), ("middle", "s1"), ("middle", "s2")],
    {"middle": ["b1", "b2", "b3"]},
)


def fail(story: Story, *links: tuple[str, str]) -> None:
    for a, b in links:
        story.cluster.link(a, b).cut().suspect()
        story.cluster.link(b, a).suspect()


def events_cannot_be_passed_on() -> None:
    """Broker b2 loses the link to s1 while an event arrives from a peer; b3 would reach s1."""
    story = Story(topology=CELL_OF_THREE, pubends=1)
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    fail(story, ("p1", "b2"), ("p1", "b3"), ("b1", "s1"))
    story.cluster.run_for(1)
    sent = story.publish(1)
    story.cluster.link("b1", "b2").delay(50 * MILLISECOND_NS)
    sent += story.publish(1, pause_s=0.03)
    assert story.from_to("b1", "b2", Events)[1:], "it is on its way"
    fail(story, ("b2", "s1"))
    story.settle()
    assert subscriber.received == sent


def questions_cannot_be_passed_on() -> None:
    """Broker b2 loses the link to p1 while b1 forwards a request of s1; b3 would reach p1."""
    story = Story(topology=CELL_OF_THREE, pubends=1)
    subscriber = story.cluster.subscribe("s1")
    story.cluster.run_until_quiet()
    fail(story, ("b1", "p1"), ("s1", "b2"), ("s1", "b3"))
    story.cluster.run_for(1)
    sent = story.publish(1)
    story.lose("p1", "b2", Events)
    sent += story.publish(2, pause_s=0.01)
    story.cluster.link("b1", "b2").delay(50 * MILLISECOND_NS)
    story.wait_for(lambda: bool(story.from_to("b1", "b2", Nack)))
    fail(story, ("b2", "p1"))
    story.settle()
    assert subscriber.received == sent


@pytest.mark.parametrize(
    "story, bug",
    [
        (events_cannot_be_passed_on, "events-sent-sideways-twice"),
        (questions_cannot_be_passed_on, "requests-sent-sideways-twice"),
    ],
)
def test_nothing_passes_between_peers_of_a_cell_twice(story: Callable[[], None], bug: str) -> None:
    story()
    with plant([MUTANTS[bug]]), pytest.raises(InvariantViolated, match="route back"):
        story()


SOON_NS = 5 * MILLISECOND_NS


def test_a_request_may_be_answered_by_a_later_event_of_the_same_step() -> None:
    """Seed 96000104: both wait for the log of b1. In total order s1 requests silence of p1."""
    soon = {"retry_first_ns": SOON_NS, "retry_limit_ns": SOON_NS}
    story = Story("p1-b1", "b1-s1", pubends=1, order="total", **soon)
    subscriber = story.cluster.subscribe("s1")
    for name in ("p1", "s1", "b1"):
        story.publish(1, at=name)
    story.publish(100, pause_s=0, at="b1")
    story.cluster.run_for(0.02)
    b1 = story.cluster.broker("b1")
    b1.restart()
    story.cluster.run_for(0.01)
    story.quiet_since()
    story.publish(1, at="s1")
    story.wait_for(lambda: bool(story.from_to("s1", "b1", Nack)))
    story.publish(1, pause_s=0.01)
    assert b1.broker.core.is_reading
    story.settle()
    assert story.from_to("b1", "p1", Nack)
    assert len(subscriber.received) == 105
