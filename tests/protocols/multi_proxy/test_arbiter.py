"""Ownership of topics under arbiters: one server, under all failures."""

from collections.abc import Callable

import pytest

from brokerd.errors import ConfigError
from brokerd.protocols.multi_proxy.messages import (
    Assign,
    Assigned,
    Claim,
    Generation,
    Located,
    Owned,
    Owner,
)
from brokerd.protocols.multi_proxy.parameters import ARBITER, MultiProxyParameters
from brokerd.protocols.multi_proxy.routes import Places
from brokerd.protocols.multi_proxy.topics import Topics
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.proxy_stories import Story, sides
from tests.protocols.multi_proxy.test_server import SERVER, Disk

MUTANTS = bugs_of("multi_proxy")


def story_of(proxies: int = 2, servers: int = 3, edges: int = 2, **parameters: int) -> Story:
    return Story(sides(proxies, servers, edges), ownership=ARBITER, **parameters)


def owners_told(story: Story) -> dict[int, set[int]]:
    """Return, per topic, the servers that arbiters have named as owners."""
    found: dict[int, set[int]] = {}
    for _, _, message in story.said:
        if isinstance(message, Located):
            for topic, server, _ in message.owners:
                found.setdefault(topic, set()).add(server)
    return found


def arbiter_of(story: Story, kind: str) -> str:
    return story.owner(Topics(story.parameters, decode_attribute_table).topic_of_value(kind))


def kind_decided_at(story: Story, arbiter: str) -> str:
    return next(kind for kind in "abcdefghijklmnop" if arbiter_of(story, kind) == arbiter)


def test_topics_go_to_the_server_with_fewest() -> None:
    story = story_of(proxies=1, topics=30)
    story.cluster.subscribe("e1")
    story.cluster.run_for(2)
    owners = [server for (server,) in owners_told(story).values()]
    assert len(owners) == 31
    counts = [owners.count(server) for server in {*owners}]
    assert max(counts) - min(counts) <= 1


def test_an_arbiter_that_is_down_delays_new_topics_only() -> None:
    story = story_of(proxies=2)
    old = kind_decided_at(story, "v1")
    subscription = story.cluster.subscribe("e1", f"kind = '{old}'")
    story.cluster.run_for(1)
    (server,) = owners_told(story)[
        Topics(story.parameters, decode_attribute_table).topic_of_value(old)
    ]
    if story.topology.brokers[server] != "v1":
        story.cluster.broker("v1").kill()
    sent = story.publish("e2", 3, kind=old)
    story.cluster.run_for(1)
    assert subscription.received == sent


def test_ownership_is_one_of_those_there_are() -> None:
    with pytest.raises(ConfigError, match="ownership = 'arbitrator'; one of arbiter, rendezvous"):
        MultiProxyParameters(ownership="arbitrator").check("here")


# ------------------------------------------------------------ rules and their bugs


HOME, OTHER = 4, 5
"""Access brokers of a server among three."""
TOPIC = Places(SERVER, sides(1, 3, 2), 8).arbiters.index(SERVER)
"""A topic that the server decides on."""
ELSEWHERE = Places(SERVER, sides(1, 3, 2), 8).arbiters.index(2)
"""A topic that the second server decides on."""


def claim(candidate: int, home: int = HOME) -> Claim:
    return Claim(SERVER, home, (Owner(TOPIC, candidate),))


def located(owner: int, home: int = HOME, number: int = 1) -> Located:
    return Located(SERVER, home, (Owner(TOPIC, owner, number),))


def assign(server: int, number: int) -> Assign:
    return Assign(server, SERVER, (Generation(TOPIC, number),))


def assigned(server: int, number: int) -> Assigned:
    return Assigned(server, SERVER, (Generation(TOPIC, number),))


def the_first_candidate_owns_it_for_ever() -> bool:
    """Return True if the first candidate wins.

    Two access brokers ask at once, over proxies that prefer different servers.
    """
    disk = Disk(ARBITER, 3)
    return (
        disk.tell(claim(2)) == [assign(2, 1)]
        and disk.tell(claim(3, OTHER)) == [assign(2, 1)]
        and disk.tell(assigned(2, 1)) == [located(2), located(2, OTHER)]
        and disk.tell(claim(3, OTHER)) == [located(2, OTHER)]
    )


def an_owner_is_announced_once_durable() -> bool:
    disk = Disk(ARBITER, 3)
    disk.tell(claim(2))
    return disk.request(assigned(2, 1)) == []


def a_server_confirms_a_topic_once_durable() -> bool:
    disk = Disk(ARBITER, 3)
    message = Assign(SERVER, 2, (Generation(ELSEWHERE, 1),))
    early = disk.request(message)
    answer = Assigned(SERVER, 2, (Generation(ELSEWHERE, 1),))
    return early == [] and disk.tell(message) == [answer, answer]


def a_late_server_loses_its_topic() -> bool:
    """Return True if a late confirmation has no effect.

    No broker was notified that the late server is the owner.
    """
    disk = Disk(ARBITER, 3)
    disk.tell(claim(2))
    disk.now_ns = 2 * SECOND_NS
    if disk.tell(claim(3)) != [assign(3, 2)] or disk.tell(assigned(2, 1)):
        return False
    disk.now_ns = 4 * SECOND_NS
    return (
        disk.tell(claim(2)) == [assign(2, 3)]
        and disk.tell(assigned(2, 1)) == []
        and disk.tell(assigned(2, 3)) == [located(2, number=3)]
    )


def another_server_confirms_no_assignment() -> bool:
    disk = Disk(ARBITER, 3)
    disk.tell(claim(2))
    return disk.tell(assigned(3, 1)) == [] and disk.tell(assigned(2, 1)) == [located(2)]


def decisions_outlive_a_crash() -> bool:
    disk = Disk(ARBITER, 3)
    disk.tell(claim(2))
    disk.start(2)
    pending = disk.tell(claim(2))
    disk.tell(assigned(2, 1))
    disk.start(3)
    return pending == [assign(2, 1)] and disk.tell(claim(3)) == [located(2)]


def told_when(story: Story, kind: type, broker: str, crash: str) -> None:
    """Run until a broker sends a message of a kind, then crash a broker at once."""
    for _ in range(5_000):
        if story.told(broker, kind):
            story.cluster.broker(crash).kill()
            return
        story.cluster.run_for(0.0005)
    raise AssertionError(f"{broker} has said no {kind.__name__}")


def unacknowledged(story: Story) -> list[object]:
    return [each for each in story.cluster.oracle.obligations.unacknowledged() if each[1]]


def a_candidate_that_dies_is_replaced() -> bool:
    story = story_of(proxies=1)
    kind = kind_decided_at(story, "v3")
    subscription = story.cluster.subscribe("e1", f"kind = '{kind}'")
    told_when(story, Assign, "v3", "v1")
    story.cluster.run_for(5)
    sent = story.publish("e2", 2, kind=kind)
    story.cluster.run_for(2)
    story.cluster.broker("v1").start()
    story.cluster.run_for(3)
    return subscription.received == sent and {
        server for servers in owners_told(story).values() for server in servers
    } == {story.topology.number_of("v2")}


def puts_that_wait_for_an_owner_are_sent_once() -> bool:
    story = story_of()
    sent = story.publish("e2", 3)
    story.cluster.run_for(2)
    return len(sent) == 3 and not unacknowledged(story)


def an_arbiter_is_queried_until_it_answers() -> bool:
    story = story_of()
    kind = kind_decided_at(story, "v3")
    story.cluster.broker("v3").kill()
    story.publish("e2", 1, kind=kind)
    story.cluster.run_for(2)
    story.cluster.broker("v3").start()
    story.cluster.run_for(5)
    return not unacknowledged(story)


def a_home_that_was_down_follows_all_at_once() -> bool:
    """Return True if a restarted access broker follows all topics at once.

    A subscription is to a topic with an owner that must be requested.
    """
    story = story_of()
    subscription = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    link = story.cluster.link(subscription.client.name, "e1").absorb()
    sent = story.publish("e2", 5, pause_s=0.4)
    story.cluster.broker("e1").kill()
    story.cluster.run_for(0.2)
    link.heal()
    story.cluster.broker("e1").start()
    story.cluster.run_for(5)
    return subscription.received == sent


def a_first_owner_is_announced_to_proxies_only() -> bool:
    story = story_of(servers=5, edges=4)
    subscription = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    assert subscription.started
    assert story.told("v1", Owned), "the owner announces its topic"
    return not any(story.told(proxy, Owned) for proxy in ("x1", "x2"))


def owners_are_announced_when_their_arbiter_fails() -> bool:
    """Return True if a subscription starts at a broker that has never requested the owner.

    The arbiter of the topic has failed, the owner is up.
    """
    story = story_of()
    kind = kind_decided_at(story, "v3")
    story.cluster.subscribe("e1", f"kind = '{kind}'")
    story.cluster.run_for(1)
    assert [*owners_told(story).values()] == [{story.topology.number_of("v1")}]
    story.cluster.broker("v3").kill()
    story.cluster.run_for(1)
    later = story.cluster.subscribe("e2", f"kind = '{kind}'")
    story.cluster.run_for(2)
    return later.started


RULES: dict[str, Callable[[], bool]] = {
    "owners-announced-to-all": a_first_owner_is_announced_to_proxies_only,
    "owners-of-a-failed-arbiter-unknown": owners_are_announced_when_their_arbiter_fails,
    "newest-candidate-owns": the_first_candidate_owns_it_for_ever,
    "decisions-dropped": decisions_outlive_a_crash,
    "owner-is-announced-before-its-row": an_owner_is_announced_once_durable,
    "assigned-before-it-is-written": a_server_confirms_a_topic_once_durable,
    "older-generation-owns": a_late_server_loses_its_topic,
    "confirmed-by-any-server": another_server_confirms_no_assignment,
    "keeps-to-its-candidate": a_candidate_that_dies_is_replaced,
    "never-put-when-owned": puts_that_wait_for_an_owner_are_sent_once,
    "arbiter-is-queried-once": an_arbiter_is_queried_until_it_answers,
    "owners-are-volatile": a_home_that_was_down_follows_all_at_once,
}


@pytest.mark.parametrize("bug", RULES)
def test_a_rule_holds_and_its_bug_is_seen(bug: str) -> None:
    assert RULES[bug]()
    with plant([MUTANTS[bug]]):
        try:
            assert not RULES[bug]()
        except InvariantViolated:
            pass
