"""The routes of changed filters: few messages, none late, over cells of two brokers."""

from collections import Counter
from collections.abc import Callable

import pytest

from brokerd.protocols.gryphon.messages import Beginnings, Events, FilterChange
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.wire.attributes import encode_attributes
from tests.helpers.gryphon_stories import Story, paper_cells

MUTANTS = bugs_of("gryphon")


def _count(story: Story) -> Counter[str]:
    names = story.cluster.topology.brokers
    return Counter(type(message).__name__ for *_, to, message in story.said if to in names)


def a_change_uses_one_broker_of_each_cell() -> None:
    """Five brokers have subscribers, and two cells of two brokers connect them with p1."""
    story = Story(topology=paper_cells())
    before = _count(story)
    subscription = story.cluster.subscribe("s1", "kind = 'a'")
    story.cluster.run_until_quiet()
    assert subscription.started
    counts = _count(story) - before
    assert counts == {"FilterChange": 7, "Beginnings": 7}
    before = _count(story)
    story.cluster.unsubscribe(subscription.client.name, subscription.number)
    story.cluster.run_until_quiet()
    assert _count(story) - before == {"FilterChange": 7}


def events_follow_the_changes_that_a_broker_is_owed() -> None:
    """Pubends of p1 use b1 or b2; b2 has no change before the first event over it."""
    story = Story(topology=paper_cells())
    subscription = story.cluster.subscribe("s1", "kind = 'a'")
    story.cluster.run_until_quiet()
    assert not story.from_to("s1", "b2", FilterChange)
    assert not story.from_to("p1", "b2", FilterChange)
    sent = []
    for publisher in range(8):
        name = f"publisher-{publisher}"
        story.cluster.client(name, "p1", publishes=True)
        content = encode_attributes({"kind": "a"}), b""
        sent += story.cluster.publish_run("p1", [content], name)
        story.cluster.run_until_quiet()
    assert sorted(subscription.received, key=sent.index) == sent
    to_b2 = [type(m) for _, a, b, m in story.said if (a, b) == ("p1", "b2")]
    assert Events in to_b2
    assert to_b2.index(FilterChange) < to_b2.index(Events)


def the_next_broker_receives_what_a_lost_one_has_not_sent_on() -> None:
    story = Story(topology=paper_cells())
    story.cluster.broker("b1").absorb()
    subscription = story.cluster.subscribe("s1", "kind = 'a'")
    story.cluster.run_for(1)
    assert not subscription.started
    assert story.from_to("s1", "b1", FilterChange)
    story.cluster.broker("b1").kill()
    story.cluster.run_for(10)
    assert subscription.started
    sent = story.publish(4)
    story.settle()
    assert subscription.received == sent


def a_lost_broker_had_the_beginnings() -> None:
    """Broker b1 takes them, and fails before it has sent them to s1."""
    story = Story(topology=paper_cells())
    subscription = story.cluster.subscribe("s1", "kind = 'a'")
    story.wait_for(lambda: bool(story.from_to("s1", "b1", FilterChange)))
    story.wait_for(lambda: bool(story.from_to("b1", "p1", FilterChange)))
    story.cluster.link("b1", "s1").absorb()
    story.cluster.run_for(1)
    assert not subscription.started
    story.cluster.broker("b1").kill()
    story.cluster.run_for(10)
    assert subscription.started


def two_brokers_of_a_cell_have_half_of_the_beginnings_each() -> None:
    """Broker b1 is linked with s1 and p1 only, and b2 with s1 and s2."""
    story = Story(topology=paper_cells())
    for link in (("b1", "b2"), ("b1", "s2"), ("b2", "p1")):
        story.cluster.link(*link).cut()
    story.cluster.run_for(5)
    subscription = story.cluster.subscribe("s1", "kind = 'a'")
    story.cluster.run_for(5)
    assert story.from_to("b2", "s1", Beginnings)
    assert subscription.started


STORIES: dict[Callable[[], None], tuple[str, ...]] = {
    a_change_uses_one_broker_of_each_cell: ("changes-over-every-link", "each-beginning-alone"),
    events_follow_the_changes_that_a_broker_is_owed: ("events-before-owed-changes",),
    the_next_broker_receives_what_a_lost_one_has_not_sent_on: ("owed-changes-stay",),
    a_lost_broker_had_the_beginnings: ("beginnings-are-sent-once",),
    two_brokers_of_a_cell_have_half_of_the_beginnings_each: ("beginnings-wait-for-ever",),
}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_rules_hold_in(story: Callable[[], None]) -> None:
    story()


@pytest.mark.parametrize(
    "story, bug", [(story, bug) for story, bugs in STORIES.items() for bug in bugs]
)
def test_a_story_detects(story: Callable[[], None], bug: str) -> None:
    with plant([MUTANTS[bug]]), pytest.raises((AssertionError, InvariantViolated)):
        story()
