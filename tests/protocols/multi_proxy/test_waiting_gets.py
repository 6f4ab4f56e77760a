"""Stories of Gets that wait at a server for publications, with `get_wait_ns` 0."""

from collections.abc import Callable

import pytest

from brokerd.protocols.multi_proxy.messages import Put
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from tests.helpers.proxy_stories import Story, sides
from tests.protocols.multi_proxy.test_stories import owner_of, proxy_of

MUTANTS = bugs_of("multi_proxy")


def _story(proxies: int = 2) -> Story:
    return Story(sides(proxies, servers=1), get_wait_ns=0)


def nothing_is_sent_while_nothing_happens() -> bool:
    story = _story()
    story.cluster.subscribe("e1", "kind = 'a'")
    story.publish("e2", 3)
    story.cluster.run_for(5)
    story.said.clear()
    story.cluster.run_for(600)
    return not story.said


def a_later_topic_is_requested_although_a_get_waits() -> bool:
    story = _story()
    story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    later = story.cluster.subscribe("e1", "kind = 'b'")
    story.cluster.run_for(1)
    sent = story.publish("e2", 1, kind="b")
    story.cluster.run_for(5)
    return later.received == sent


def the_last_acknowledgement_is_reported() -> bool:
    story = _story()
    story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    story.publish("e2", 3)
    story.cluster.run_for(2)
    server = story.cluster.broker(owner_of(story, "a")).broker.core.server
    return bool(server.count_retained() == 0)


def a_get_is_repeated_when_its_route_ends() -> bool:
    """The proxy still has a session with the server, which would answer over it at first."""
    story = _story()
    found = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    story.cluster.link("e1", proxy_of(story, "e1")).cut()
    story.cluster.run_for(5)
    sent = story.publish("e2", 2)
    story.cluster.run_for(0.5)
    return found.received == sent


def an_answer_returns_over_the_proxy_of_its_get() -> bool:
    """A Put that a slow proxy delivers late has no effect on the route of the answer."""
    story = _story()
    found = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    before = proxy_of(story, "e1")
    server = owner_of(story, "a")
    story.cluster.link(before, server).delay(8_000_000_000)
    late = story.publish("e1", 1, pause_s=0.1)
    story.cluster.link("e1", before).cut()
    story.cluster.run_for(6)
    assert proxy_of(story, "e1") != before
    story.cluster.run_for(6)
    assert len(story.told(before, Put)) == 1
    sent = late + story.publish("e2", 1)
    story.cluster.run_for(5)
    return found.received == sent


def an_answer_is_repeated_around_a_stalled_proxy() -> bool:
    """The proxy keeps its sessions, and forwards nothing; later answers take the other one."""
    story = _story()
    found = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    stalled = proxy_of(story, "e1")
    story.cluster.broker(stalled).absorb()
    other = "e2" if proxy_of(story, "v1") != stalled else "e1"
    sent = story.publish(other, 1)
    story.cluster.run_for(2)
    is_repeated = found.received == sent
    sent += story.publish(other, 3)
    story.cluster.run_for(0.1)
    return is_repeated and found.received == sent


RULES: dict[str, Callable[[], bool]] = {
    "gets-wait-for-further-topics": a_later_topic_is_requested_although_a_get_waits,
    "acknowledgements-wait-for-publications": the_last_acknowledgement_is_reported,
    "waiting-get-is-not-repeated": a_get_is_repeated_when_its_route_ends,
    "answers-follow-later-requests": an_answer_returns_over_the_proxy_of_its_get,
    "answers-are-not-repeated": an_answer_is_repeated_around_a_stalled_proxy,
    "repeated-answers-change-no-route": an_answer_is_repeated_around_a_stalled_proxy,
    "waiting-get-has-a-timeout": nothing_is_sent_while_nothing_happens,
}


@pytest.mark.parametrize("bug", RULES)
def test_a_rule_of_waiting_gets_holds_and_its_bug_is_seen(bug: str) -> None:
    assert RULES[bug]()
    with plant([MUTANTS[bug]]):
        try:
            assert not RULES[bug]()
        except InvariantViolated:
            pass
