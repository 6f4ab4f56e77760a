"""Stories of single publish requests, fetch requests and subscriptions.

The problems that the paper describes come first.
"""

from collections.abc import Callable

import pytest

from brokerd.protocols.multi_proxy.messages import Follow, Get, Put, Stored
from brokerd.protocols.multi_proxy.topics import Topics
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.proxy_stories import Story, sides

MUTANTS = bugs_of("multi_proxy")


def topic_of(story: Story, kind: str) -> int:
    return Topics(story.parameters, decode_attribute_table).topic_of_value(kind)


def owner_of(story: Story, kind: str) -> str:
    return story.owner(topic_of(story, kind))


def proxy_of(story: Story, home: str, kind: str = "a") -> str:
    """Return the proxy of an access broker's last request to the owner of a topic."""
    server = story.topology.number_of(owner_of(story, kind))
    asked = [
        peer
        for who, peer, message in story.said
        if who == home and isinstance(message, Put | Follow | Get) and message.server == server
    ]
    return story.topology.brokers[asked[-1]]


def test_publications_arrive_once_and_in_order() -> None:
    story = Story()
    first, second = story.cluster.subscribe("e1", "kind = 'a'"), story.cluster.subscribe("v1")
    story.cluster.run_for(1)
    sent = story.publish("e2", 5) + story.publish("x1", 5)
    others = story.publish("e2", 3, kind="b")
    story.cluster.run_for(2)
    assert first.received == sent
    assert sorted(map(str, second.received)) == sorted(map(str, sent + others))
    story.cluster.oracle.judge_end()


def test_publications_are_routed_around_a_dead_proxy() -> None:
    story = Story()
    subscription = story.cluster.subscribe("e1")
    story.cluster.run_for(1)
    story.cluster.broker(proxy_of(story, "e2")).kill()
    sent = story.publish("e2", 5)
    story.cluster.run_for(2)
    assert subscription.received == sent


def test_a_dead_server_does_not_delay_other_topics() -> None:
    story = Story(sides(proxies=2, servers=2))
    kinds = {owner_of(story, kind): kind for kind in "abcdefgh"}
    dead, live = sorted(kinds)
    subscription = story.cluster.subscribe("e1", f"kind = '{kinds[live]}'")
    story.cluster.run_for(1)
    story.cluster.broker(dead).kill()
    waiting = story.publish("e2", 3, kind=kinds[dead])
    sent = story.publish("e2", 3, kind=kinds[live])
    story.cluster.run_for(1)
    assert subscription.received == sent
    assert waiting
    done = [message for who, _, message in story.said if who == "x1" and type(message) is Stored]
    assert all(story.topology.brokers[message.server] == live for message in done)


def test_a_new_subscription_after_an_unsubscribe_receives_no_earlier_publications() -> None:
    """Other clients of the broker follow the topic all the time."""
    story = Story()
    other = story.cluster.subscribe("e1", "kind = 'a'")
    leaver = story.cluster.subscribe("e1", "kind = 'a'", client="leaver")
    story.cluster.run_for(1)
    story.cluster.unsubscribe("leaver")
    between = story.publish("e2", 2)
    again = story.cluster.subscribe("e1", "kind = 'a'", client="leaver")
    story.cluster.run_for(1)
    after = story.publish("e2", 2)
    story.cluster.run_for(1)
    assert other.received == between + after
    assert leaver.received == []
    assert again.received == after


def test_an_access_broker_follows_no_topic_without_subscribers() -> None:
    story = Story()
    subscription = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    story.cluster.unsubscribe(subscription.client.name)
    story.cluster.run_for(1)
    story.publish("e2", 5)
    story.cluster.run_for(1)
    last = {message.server: message.topics for message in story.told("e1", Follow)}
    assert not any(last.values())
    assert [name for name in story.topology.brokers if queued(story, name)] == []


def queued(story: Story, name: str) -> int:
    """Return the number of unacknowledged publications at a broker."""
    broker = story.cluster.brokers[story.topology.number_of(name)]
    return broker.core.status().queued


# ------------------------------------------------------------ rules and their bugs


def a_put_is_tried_again_over_another_proxy_and_stored_once() -> bool:
    """Return True if a publish request is repeated over another proxy and stored once.

    The first proxy holds the request and releases it later.
    """
    story = Story()
    subscription = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    before = proxy_of(story, "e2")
    stuck = story.cluster.link(owner_of(story, "a"), before).absorb()
    sent = story.publish("e2", 1)
    story.cluster.run_for(2)
    came = subscription.received == sent and proxy_of(story, "e2") != before
    stuck.heal()
    story.cluster.run_for(1)
    return came and len(story.told("e2", Put)) > 1 and subscription.received == sent


def events_of_and_missed_by_a_dead_server_arrive_once() -> bool:
    story = Story()
    subscription = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    sent = story.publish("e2", 5)
    story.cluster.run_for(1)
    server = story.cluster.broker(owner_of(story, "a"))
    sent += story.publish("e2", 3, pause_s=0)
    server.kill()
    sent += story.publish("e2", 3)
    story.cluster.run_for(2)
    server.start()
    story.cluster.run_for(1)
    return subscription.received == sent


def a_restarted_access_broker_fetches_undelivered_events() -> bool:
    """Return True if a restarted access broker fetches undelivered publications again.

    A client that follows a topic of another server connects at the same time.
    """
    story = Story()
    kinds = {owner_of(story, kind): kind for kind in "abcdefgh"}
    first, second = (
        story.cluster.subscribe("e1", f"kind = '{kinds[server]}'") for server in sorted(kinds)
    )
    third = story.cluster.subscribe("e1")
    story.cluster.run_for(1)
    links = [story.cluster.link(each.client.name, "e1").absorb() for each in (first, third)]
    sent = story.publish("e2", 5, kind=kinds["v1"], pause_s=0.4)
    story.cluster.broker("e1").kill()
    story.cluster.run_for(0.2)
    for link in links:
        link.heal()
    story.cluster.broker("e1").start()
    story.cluster.run_for(5)
    return (first.received, second.received, third.received) == (sent, [], sent)


def a_subscription_starts_once_its_server_has_it() -> bool:
    story = Story()
    server = story.cluster.broker(owner_of(story, "a"))
    server.kill()
    subscription = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    early = subscription.started
    server.start()
    story.cluster.run_for(5)
    return subscription.started and not early


def a_crash_of_its_home_does_not_start_a_subscription() -> bool:
    story = Story()
    server = story.cluster.broker(owner_of(story, "a"))
    server.kill()
    subscription = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    story.cluster.broker("e1").kill().start()
    story.cluster.run_for(2)
    early = subscription.started
    server.start()
    story.cluster.run_for(5)
    return subscription.started and not early


def a_publisher_is_done_when_all_topics_are() -> bool:
    story = Story()
    kinds = {owner_of(story, kind): kind for kind in "abcdefgh"}
    dead, live = sorted(kinds)
    story.cluster.broker(dead).kill()
    story.publish("e2", 1, kind=kinds[live])
    story.publish("e2", 1, kind=kinds[dead])
    story.publish("e2", 1, kind=kinds[live])
    story.publish("e2", 1, kind=kinds[dead])
    story.cluster.run_for(1)
    done = {
        number
        for _, numbers in story.cluster.oracle.obligations.unacknowledged()
        for number in numbers
    }
    return done == {2, 3, 4}


RULES: dict[str, Callable[[], bool]] = {
    "request-is-not-repeated": a_put_is_tried_again_over_another_proxy_and_stored_once,
    "keeps-to-its-proxy": a_put_is_tried_again_over_another_proxy_and_stored_once,
    "puts-only-the-last-again": events_of_and_missed_by_a_dead_server_arrive_once,
    "new-way-begins-empty": events_of_and_missed_by_a_dead_server_arrive_once,
    "done-when-handed-out": a_restarted_access_broker_fetches_undelivered_events,
    "access-broker-continues-at-the-head": (a_restarted_access_broker_fetches_undelivered_events),
    "follows-piece-by-piece": a_restarted_access_broker_fetches_undelivered_events,
    "begins-unfollowed": a_subscription_starts_once_its_server_has_it,
    "recovers-unfollowed": a_crash_of_its_home_does_not_start_a_subscription,
    "done-with-the-last-topic": a_publisher_is_done_when_all_topics_are,
}


@pytest.mark.parametrize("bug", RULES)
def test_a_rule_holds_and_its_bug_is_seen(bug: str) -> None:
    assert RULES[bug]()
    with plant([MUTANTS[bug]]):
        try:
            assert not RULES[bug]()
        except InvariantViolated:
            pass
