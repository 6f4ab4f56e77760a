"""Stories of subscriptions that an operator lists and ends."""

import pytest

from brokerd.protocols.extensions import ListingProtocol, SubscriptionState
from brokerd.protocols.interface import SubscriptionEnded
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.handles import Subscription
from brokerd.units import SECOND_NS
from tests.helpers.durable_stories import DurableStory, fails

MUTANTS = bugs_of("durable")


def listed(story: DurableStory, at: str = "s1") -> dict[str, SubscriptionState]:
    """Return the subscriptions at a broker, by client."""
    core = story.core(at)
    assert isinstance(core, ListingProtocol)
    return {each.client: each for each in core.list_subscriptions(story.cluster.schedule.now_ns)}


def absent() -> tuple[DurableStory, Subscription]:
    """Return a story with an absent subscriber that lacks ten events, and a present one."""
    story = DurableStory()
    away = story.subscriber("s1", "kind = 'a' or not symbol prefix 'it''s'")
    story.subscriber("s1")
    story.away(away)
    story.publish(10)
    story.cluster.run_for(5)
    return story, away


def holds_back() -> bool:
    """Return True if a list names the absent subscriber that holds back a release, and no other."""
    story, away = absent()
    found = listed(story)
    theirs = found.pop(away.client.name)
    (other,) = found.values()
    assert (theirs.mode, theirs.number, other.mode) == ("away", 1, "live")
    assert theirs.predicate == "kind = 'a' or not symbol prefix 'it''s'"
    assert theirs.away_ns is not None
    assert 5 * SECOND_NS < theirs.away_ns < 8 * SECOND_NS
    assert other.away_ns is None
    assert theirs.behind_us.keys() == {*theirs.holds}
    assert (other.behind_us, other.holds) == ({}, ())
    later = story.subscriber("s1")
    story.away(later)
    story.publish(2)
    story.cluster.run_for(5)
    found = listed(story)
    assert found[later.client.name].behind_us
    return [name for name, each in found.items() if each.holds] == [away.client.name]


def test_a_list_names_the_subscriber_that_holds_back_a_release() -> None:
    assert holds_back()
    story = DurableStory()
    subscriber = story.subscriber()
    story.publish(3)
    story.settle()
    assert (state := listed(story)[subscriber.client.name]).mode == "live"
    assert (state.behind_us, state.holds) == ({}, ())


def ended(*, restarts: bool = False) -> bool:
    """Return True if the end of an absent subscription releases what it lacked."""
    story, away = absent()
    assert story.kept("p1") == 10
    story.cluster.oracle.on_unsubscribed(away.client.name, away.number)
    s1 = story.cluster.broker("s1")
    s1.broker.operate(SubscriptionEnded(away.client.name, away.number))
    assert listed(story)[away.client.name].mode == "ending"
    story.cluster.run_for(5)
    assert away.client.name not in listed(story)
    if restarts:
        s1.kill()
        s1.start()
        story.cluster.run_for(5)
        assert away.client.name not in listed(story)
    return story.kept("p1") == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_the_end_of_an_absent_subscription_releases_its_events(restarts: bool) -> None:
    assert ended(restarts=restarts)


def counted() -> bool:
    """Return True if lists and statistics count the events that an absent subscriber lacks."""
    story = DurableStory()
    away, other = story.subscriber("s1", "kind = 'a'"), story.subscriber("s1")
    story.publish(2)
    story.settle()
    assert story.core("s1").statistics()["queue_owed"] == 0
    story.away(away)
    for kind in "aabab":
        story.note_published(story.cluster.publish("p1", kind=kind))
    story.cluster.run_for(5)
    theirs = listed(story)[away.client.name]
    assert sum(each or 0 for each in theirs.behind_events.values()) == 3
    core = story.core("s1")
    numbers = core.statistics()
    counts = [numbers[f"subscriptions_{name}"] for name in ("away", "holding")]
    assert (counts, numbers["queue_owed"]) == ([1, 1], 3)
    after = {stream: [tick] for stream, tick in theirs.acknowledged.items()}
    retained = [each for each in story.core("p1").list_retained(after) if each.events]
    assert sum(each.events for each in retained) == 5
    assert all(each.brokers for each in retained)
    assert {each.after[after[each.stream][0]] for each in retained} == {
        (each.events, each.payload_bytes) for each in retained
    }
    story.cluster.run_for(1)
    s1 = story.cluster.broker("s1")
    s1.kill()
    s1.start()
    story.cluster.run_for(5)
    assert story.core("s1").statistics()["queue_owed"] == 3
    return len(other.received) == 7


def test_a_list_counts_the_events_that_a_subscriber_lacks_also_after_a_restart() -> None:
    assert counted()


def test_the_events_of_a_subscription_that_has_moved_are_not_counted_before_its_arrival() -> None:
    story = DurableStory()
    mover, _ = story.subscriber("s1"), story.subscriber("s2")
    story.away(mover)
    story.publish(5)
    story.cluster.run_for(3)
    story.cluster.link("p1", "b1").cut()
    story.cluster.transfers.reattach(mover.client.name, "s2")
    story.cluster.run_for(0.5)
    assert None in listed(story, "s2")[mover.client.name].behind_events.values()


def test_the_end_of_an_unknown_subscription_changes_nothing() -> None:
    story, away = absent()
    before = listed(story)
    for client, number in (("nobody", 1), (away.client.name, 7)):
        story.cluster.broker("s1").broker.operate(SubscriptionEnded(client, number))
    assert listed(story).keys() == before.keys()


def notified() -> bool:
    """Return True if a connected client is notified of the end of its subscription."""
    story = DurableStory()
    subscriber = story.subscriber()
    client = subscriber.client
    story.cluster.oracle.on_unsubscribed(client.name, 1)
    client.on_refused = lambda refused: None
    story.cluster.broker("s1").broker.operate(SubscriptionEnded(client.name, 1))
    story.cluster.run_for(2)
    assert listed(story) == {}
    return [each.reason for each in client.refused] == ["an operator has ended the subscription"]


def test_a_connected_client_is_notified_of_the_end_of_its_subscription() -> None:
    assert notified()


STORIES = (
    ("ended-by-an-operator-and-kept", ended),
    ("ended-by-an-operator-in-silence", notified),
    ("every-lagging-subscription-is-a-holder", holds_back),
    ("acknowledged-matches-are-still-owed", counted),
    ("owed-matches-are-lost-in-a-restart", counted),
)


@pytest.mark.parametrize("name, told", STORIES, ids=[name for name, _ in STORIES])
def test_a_story_fails_with_its_named_bug(name: str, told) -> None:
    with plant([MUTANTS[name]]):
        assert fails(told), f"{name} is not seen"
