"""Two servers own a topic until a merge: publications of both arrive and none is lost."""

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.protocols.interface import MessageReceived, Send, SessionEstablished, Started
from brokerd.protocols.multi_proxy.messages import (
    CarriedFollower,
    CarriedPart,
    Carry,
    Elsewhere,
    Follow,
    Followed,
    Following,
    Get,
    Merge,
    Merged,
    Messages,
    Owner,
    Periodic,
    PutThrough,
    Servers,
    Stored,
    Transfer,
    Transferred,
    Wanted,
)
from brokerd.protocols.multi_proxy.parameters import CAUSAL, PAPER, MultiProxyParameters
from brokerd.protocols.registry import make_protocol
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.wire.attributes import decode_attribute_table, encode_attributes
from tests.helpers.proxy_stories import CountedStory, Story, sides
from tests.protocols.multi_proxy.test_server import Disk, put

MUTANTS = bugs_of("multi_proxy")

KINDS = "abcdef"
HOME, TOPIC = 3, 3


class Twins(CountedStory):
    """A story in which two proxies gave most topics to different servers, one per access broker."""

    def __init__(self, ownership: str = CAUSAL, **parameters: int) -> None:
        topology = sides(proxies=2, servers=3, edges=2)
        super().__init__(topology, KINDS, ownership=ownership, topics=64, **parameters)
        for at, kinds in (("e1", KINDS), ("e2", KINDS[::-1])):
            for kind in kinds:
                self.subscribe(at, kind)
                self.cluster.run_for(0.05)


# ------------------------------------------------------------ stories


def publications_from_before_a_merge_are_delivered_after_it() -> bool:
    story = Twins()
    story.put()
    story.cluster.run_for(1)
    parted = story.lost()
    story.cluster.run_for(7)
    merged = story.lost()
    story.put()
    story.cluster.run_for(14)
    story.cluster.oracle.judge_end()
    kept = [broker.core.status().queued for broker in story.cluster.brokers]
    return parted > 0 == merged == story.lost() and not any(kept)


def publications_during_a_transfer_arrive_once() -> bool:
    """Return True if publications during a transfer arrive once.

    The receiver is down from the start of the transfer until the last publication.
    """
    story = Twins()
    story.put()
    story.when_told(Merge, story.cluster.broker("v1").kill)
    story.put()
    story.cluster.run_for(3)
    story.put()
    story.cluster.broker("v1").start()
    story.cluster.run_for(12)
    return story.lost() == 0


def crash_of_the_giver() -> bool:
    """Return True if no event is taken twice when the giver dies after Transferred."""
    story = Twins()
    story.put()
    story.cluster.run_for(0.5)
    story.when_told(Transferred, lambda: [story.cluster.broker(v).kill() for v in ("v2", "v3")])
    story.put()
    story.cluster.run_for(2)
    for name in ("v2", "v3"):
        story.cluster.broker(name).start()
    story.cluster.run_for(12)
    return story.lost() == 0


def crash_of_all_servers_while_they_merge() -> bool:
    story = Twins()
    for when in (Merge, Carry, Transfer):
        story.put()
        story.when_told(
            when,
            lambda: [story.cluster.broker(v).kill().start() for v in ("v1", "v2", "v3")],
        )
        story.cluster.run_for(0.1)
    story.put()
    story.cluster.run_for(15)
    return story.lost() == 0


def an_access_broker_down_during_a_merge_follows_its_topics() -> bool:
    """Return True if access brokers that were down during a merge follow their topics.

    The missing publications are at another server when the brokers restart.
    """
    story = Twins()
    story.put()
    story.cluster.run_for(0.2)
    for name in ("e1", "e2"):
        story.cluster.broker(name).kill()
    story.cluster.run_for(12)
    for name in ("e1", "e2"):
        story.cluster.broker(name).start()
    story.cluster.run_for(7)
    story.put()
    story.cluster.run_for(8)
    return story.lost() == 0


def an_access_broker_restarted_after_a_merge_finds_its_topics() -> bool:
    """Return True if restarted access brokers and proxies find the topics again.

    The proxies have lost all state, too.
    """
    story = Twins()
    story.put()
    story.cluster.run_for(12)
    merges = sum(type(message) is Merge for _, _, message in story.said)
    for name in ("e1", "e2", "x1", "x2"):
        story.cluster.broker(name).kill().start()
    story.cluster.run_for(2)
    story.put()
    story.cluster.run_for(8)
    again = sum(type(message) is Merge for _, _, message in story.said)
    return story.lost() == 0 and merges == again


def views_of_two_partitioned_proxies_are_merged() -> bool:
    """Return True if the views of two partitioned proxies are merged after the partition.

    For 10 s the first proxy reaches only the first server, and the second only the others.
    """
    story = Story(sides(proxies=2, servers=2, edges=2), ownership=CAUSAL, topics=16)
    cuts = [
        story.cluster.link(*ends).cut()
        for ends in (("x1", "v2"), ("x2", "v1"), ("e1", "x2"), ("e2", "x1"))
    ]
    story.cluster.run_for(4)
    first, second = (story.cluster.subscribe(at, "kind = 'a'") for at in ("e1", "e2"))
    story.cluster.run_for(1)
    available = first.started and second.started
    sent = [*story.publish("e1", 5), *story.publish("e2", 5)]
    story.cluster.run_for(8)
    parted = len(first.received), len(second.received)
    for cut in cuts:
        cut.heal()
    story.cluster.run_for(12)
    came = all(
        sorted(map(str, each.received)) == sorted(map(str, sent)) for each in (first, second)
    )
    return available and parted == (5, 5) and came


def a_topic_without_followers_is_released() -> bool:
    story = Twins()
    story.put()

    def leave() -> None:
        for _, had in story.subscriptions:
            story.cluster.unsubscribe(had.client.name)

    story.when_told(Merge, leave)
    story.cluster.run_for(15)
    story.publish("e1", 3)
    story.cluster.run_for(12)
    return not any(broker.core.status().queued for broker in story.cluster.brokers)


def a_new_follower_receives_only_later_events_of_another_server() -> bool:
    """Return True if a new subscription receives no earlier event of another server.

    Both servers had the events before the subscription started.
    """
    story = Twins()
    story.put()
    story.cluster.run_for(4)
    early = story.cluster.subscribe("e1", "kind = 'c'")
    story.cluster.run_for(12)
    return early.started and early.received == []


# ------------------------------------------------------------ one server, message by message


def carry(first: int, last: int, giver: int = 2) -> Carry:
    """Return positions of a server, carried to the server before it, with events of HOME."""
    count, blob = last - first + 1, encode_attributes({"kind": "a"})
    origin = OriginRun(SourceId(HOME, 0, 1), range(first, last + 1))
    run = PublicationRun(
        StreamId(giver, TOPIC, 0), range(first, last + 1), (blob,), bytes(count), 0, (), (origin,)
    )
    return Carry(giver - 1, giver, TOPIC, 0, run)


def transfer(last: int) -> Transfer:
    return Transfer(
        1,
        2,
        TOPIC,
        0,
        (CarriedPart(2, 0, last, ()),),
        (PutThrough(SourceId(HOME, 0, 1), last),),
        (CarriedFollower(HOME, (Elsewhere(2, TOPIC, 1),)),),
    )


def a_server() -> Disk:
    """Return the first of two servers."""
    return Disk(CAUSAL, servers=2)


def of_kind(said: list[Any], kind: type) -> list[Any]:
    return [each for each in said if type(each) is kind]


def a_topic_is_accepted_once_complete() -> bool:
    server = a_server()
    server.tell(carry(1, 2))
    hole = server.tell(transfer(4))
    server.tell(carry(1, 4))
    early = of_kind(server.request(transfer(4)), Transferred)
    answers = of_kind(server.tell(transfer(4)), Transferred)
    return not hole and not early and answers == [Transferred(1, 2, TOPIC, 1)]


def a_transfer_with_a_lost_run_is_refused() -> bool:
    """Return True if a server refuses a transfer after the first carried run was lost."""
    server = a_server()
    server.tell(carry(3, 4))
    hole = server.tell(transfer(4))
    server.tell(carry(1, 2))
    server.tell(carry(3, 4))
    server.tell(transfer(4))
    server.tell(Follow(1, HOME, 1, 1, (TOPIC,)))
    wanted = Wanted(2, TOPIC, 1, 1, 9)
    messages = of_kind(server.tell(Get(1, HOME, 1, 1, (wanted,))), Messages)
    return not hole and [each for run in messages for each in run.run.sequences] == [2, 3, 4]


def a_carried_topic_of_another_owner_is_dropped() -> bool:
    """Return True if a server drops a carried topic that is owned elsewhere.

    A third server gives the topic to the second, which must give it to the first.
    """
    server = Disk(CAUSAL, servers=3, number=2)
    server.tell(carry(1, 2, giver=3))
    kept = server.core.status().queued
    server.tell(Merge(2, (Owner(TOPIC, 1),)))
    server.tell(Transferred(1, 2, TOPIC, 1))
    gone = server.core.status().queued
    server.start(2)
    return (kept, gone, server.core.status().queued) == (2, 0, 0)


def a_put_stored_at_another_server_is_not_repeated() -> bool:
    server = a_server()
    server.tell(carry(1, 4))
    server.tell(transfer(4))
    again = put(1, 4, home=HOME)
    return [each.through for each in of_kind(server.tell(again), Stored)] == [4]


def a_follower_continues_after_its_position_at_the_former_owner() -> bool:
    """Return True if a follower continues after its position at the former owner.

    The position survives a crash of the server, and no event is released before.
    """
    server = a_server()
    server.tell(carry(1, 4))
    server.tell(transfer(4))
    server.tell(Periodic(2, 1, 1, (), (Elsewhere(2, TOPIC, 4),)))
    server.start(2)
    server.tell(Periodic(2, 1, 1, (), (Elsewhere(2, TOPIC, 4),)))
    (following,) = of_kind(server.tell(Follow(1, HOME, 1, 1, (TOPIC,))), Following)
    wanted = Wanted(2, TOPIC, 1, 1, 9)
    messages = of_kind(server.tell(Get(1, HOME, 1, 1, (wanted,))), Messages)
    positions = [number for each in messages for number in each.run.sequences]
    return Followed(2, TOPIC, 1, 4) in following.topics and positions == [2, 3, 4]


def an_expected_follower_is_kept_until_it_arrives() -> bool:
    """Return True if an expected follower is kept until it arrives.

    It reports its other topics before it is notified that this topic moved here.
    """
    server = a_server()
    server.tell(carry(1, 4))
    server.tell(transfer(4))
    server.tell(Follow(1, HOME, 1, 1, ()))
    server.tell(Periodic(2, 1, 1, (), (Elsewhere(2, TOPIC, 4),)))
    (following,) = of_kind(server.tell(Follow(1, HOME, 1, 2, (TOPIC,))), Following)
    return Followed(2, TOPIC, 1, 4) in following.topics


def an_expected_follower_survives_a_restart_of_its_server() -> bool:
    """Return True if an expected follower is kept by a server that was down.

    The crash lies between the report of other topics and the follower's arrival.
    """
    server = a_server()
    server.tell(carry(1, 4))
    server.tell(transfer(4))
    server.tell(Follow(1, HOME, 1, 1, ()))
    server.start(2)
    server.tell(Periodic(2, 1, 1, (), (Elsewhere(2, TOPIC, 4),)))
    server.tell(Follow(1, HOME, 1, 2, (TOPIC,)))
    wanted = Wanted(2, TOPIC, 1, 1, 9)
    messages = of_kind(server.tell(Get(1, HOME, 1, 1, (wanted,))), Messages)
    return [number for each in messages for number in each.run.sequences] == [2, 3, 4]


def a_server_keeps_events_that_other_servers_lack() -> bool:
    """Return True if a server keeps events that other servers have not received.

    Its own followers have acknowledged all events, or it has no followers.
    """
    server = a_server()
    server.tell(put(1, 3, home=HOME))
    kept = server.core.status().queued
    server.tell(Periodic(2, 1, 1, (TOPIC,), (Elsewhere(1, TOPIC, 3),)))
    asked = server.core.status().queued
    server.tell(Periodic(2, 1, 2, (), (Elsewhere(1, TOPIC, 2),)))
    server.tell(Periodic(2, 1, 1, (), (Elsewhere(1, TOPIC, 3),)))
    return (kept, asked, server.core.status().queued) == (3, 3, 1)


def puts_to_a_topic_in_transfer_are_refused() -> bool:
    """Return True if publish requests to a topic in transfer are refused.

    The refusal starts at once; later requests are redirected when the new owner has the topic.
    """
    server = Disk(CAUSAL, servers=2, number=2)
    server.tell(put(1, 3, home=HOME, server=2))
    server.request(Merge(2, (Owner(TOPIC, 1),)))
    said = server.tell(put(4, 5, previous=3, home=HOME, server=2))
    late, given = of_kind(said, Stored), of_kind(said, Transfer)
    server.start(2)
    again = of_kind(server.tell(put(4, 5, previous=3, home=HOME, server=2)), Stored)
    new = server.tell(Follow(2, HOME, 1, 1, (TOPIC,)))
    server.tell(Transferred(1, 2, TOPIC, 1))
    server.start(3)
    told = server.tell(put(4, 5, previous=3, home=HOME, server=2))
    return (
        not late
        and not again
        and not of_kind(new, Following)
        and [each.parts[0].last for each in given] == [3]
        and told == [Merged(HOME, (Owner(TOPIC, 1),))]
    )


def events_are_transferred_once_durable() -> bool:
    """Return True if an event that is not on disk is not transferred.

    Seed 768736: another topic is in transfer and due to be repeated.
    """
    server = Disk(CAUSAL, servers=2, number=2)
    server.tell(Merge(2, (Owner(TOPIC + 1, 1),)))
    server.tell(put(1, 1, home=HOME, server=2))
    server.request(put(2, 2, previous=1, home=HOME, server=2))
    server.request(Merge(2, (Owner(TOPIC, 1),)))
    server.now_ns += 10**10
    early = of_kind(server.due(), Transfer)
    late = [each for each in of_kind(server.tick(), Transfer) if each.topic == TOPIC]
    return (
        [each.topic for each in early] == [TOPIC + 1]
        and [each.parts[0].last for each in late[:1]] == [2]
        and [pair.through for each in late[:1] for pair in each.sources] == [2]
    )


class FormerFollower:
    """An access broker that followed the topic's server long ago and has no use for the topic."""

    server, home = 1, 2

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.core = make_protocol(
            "multi_proxy",
            self.home,
            sides(proxies=1, servers=1, edges=1),
            MultiProxyParameters(ownership=CAUSAL, topics=8, topic_attribute="kind"),
            decode_attribute_table,
        )
        self.core.handle(Started(2, True, {"chosen": {str(TOPIC): self.server}}), 0)
        self.core.handle(SessionEstablished(0, 7, 1), 0)
        self.told(Servers((self.server,)))

    def told(self, message: Any) -> None:
        effects = self.core.handle(MessageReceived(0, 7, message), 0)
        self.said.extend(each.message for each in effects if isinstance(each, Send))

    def answered(self, number: int, *topics: int) -> None:
        """Receive the server's answer to the request with this number."""
        followed = tuple(Followed(self.server, topic, 0, 0) for topic in topics)
        self.told(Following(self.server, self.home, 2, number, followed, ()))

    def waited_for(self) -> None:
        """Receive a Merged message of the server, which expects the access broker to follow."""
        self.told(Merged(self.home, (Owner(TOPIC, self.server),)))

    def followed(self) -> list[tuple[int, ...]]:
        """Return the topics of all Follow requests, request by request."""
        return [each.topics for each in of_kind(self.said, Follow)]


def an_expected_follower_releases_an_unused_topic() -> bool:
    """Return True if an expected follower without a use for a topic releases the topic.

    It follows the topic first, and then stops.
    """
    home = FormerFollower()
    home.answered(1)
    home.waited_for()
    home.answered(2, TOPIC)
    return home.followed() == [(), (TOPIC,), ()]


def an_expected_follower_releases_a_topic_before_an_answer() -> bool:
    home = FormerFollower()
    home.waited_for()
    home.answered(1)
    home.waited_for()
    home.answered(2, TOPIC)
    home.answered(3)
    return home.followed()[:3] == [(), (TOPIC,), ()]


RULES: dict[str, Callable[[], bool]] = {
    "waited-for-in-vain": an_expected_follower_releases_an_unused_topic,
    "topic-is-left-before-the-answer": (an_expected_follower_releases_a_topic_before_an_answer),
    "kept-for-followers-only": publications_from_before_a_merge_are_delivered_after_it,
    "moved-and-begun-anew": publications_from_before_a_merge_are_delivered_after_it,
    "followers-miss-arrived-parts": publications_from_before_a_merge_are_delivered_after_it,
    "given-once": publications_during_a_transfer_arrive_once,
    "given-before-it-is-written": events_are_transferred_once_durable,
    "choice-dropped": an_access_broker_restarted_after_a_merge_finds_its_topics,
    "expected-for-ever": a_topic_without_followers_is_released,
    "begins-with-all-there-is": (a_new_follower_receives_only_later_events_of_another_server),
    "topic-with-holes-changes-its-owner": a_topic_is_accepted_once_complete,
    "transferred-part-begins-at-the-first-arrival": a_transfer_with_a_lost_run_is_refused,
    "topic-changes-its-owner-before-its-row": a_topic_is_accepted_once_complete,
    "half-of-it-left-behind": a_carried_topic_of_another_owner_is_dropped,
    "sources-left-behind": a_put_stored_at_another_server_is_not_repeated,
    "followers-left-behind": a_follower_continues_after_its_position_at_the_former_owner,
    "expected-topics-dropped": an_expected_follower_is_kept_until_it_arrives,
    "expected-and-not-written": an_expected_follower_survives_a_restart_of_its_server,
    "older-word-counts": a_server_keeps_events_that_other_servers_lack,
    "followed-publications-are-released": a_server_keeps_events_that_other_servers_lack,
    "put-while-it-is-given": puts_to_a_topic_in_transfer_are_refused,
    "followed-while-it-is-given": puts_to_a_topic_in_transfer_are_refused,
    "transfer-is-volatile": puts_to_a_topic_in_transfer_are_refused,
}

STORIES = (
    crash_of_the_giver,
    crash_of_all_servers_while_they_merge,
    an_access_broker_down_during_a_merge_follows_its_topics,
    views_of_two_partitioned_proxies_are_merged,
)


@pytest.mark.parametrize("story", STORIES)
def test_nothing_is_lost_or_doubled_by(story: Callable[[], bool]) -> None:
    assert story()


@pytest.mark.parametrize("bug", RULES)
def test_a_rule_holds_and_its_bug_is_seen(bug: str) -> None:
    assert RULES[bug]()
    with plant([MUTANTS[bug]]):
        try:
            assert not RULES[bug]()
        except (InvariantViolated, RemoteProtocolError, AssertionError, KeyError):
            pass


def test_the_causal_mode_carries_no_warning_of_losses() -> None:
    assert not MultiProxyParameters(ownership=CAUSAL).warnings()
    assert MultiProxyParameters(ownership=PAPER).warnings()
