"""Transfers of topics by order of arbiters: one server at a time owns a topic."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.client_messages import Connect, Subscribe
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.interface import (
    Commit,
    Event,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    Started,
)
from brokerd.protocols.multi_proxy.claims import Claims
from brokerd.protocols.multi_proxy.messages import (
    Assign,
    Assigned,
    CarriedPart,
    Claim,
    Follow,
    Followed,
    Following,
    Generation,
    Give,
    Locate,
    Located,
    Merged,
    Move,
    Owned,
    Owner,
    Servers,
    Transfer,
    Transferred,
)
from brokerd.protocols.multi_proxy.parameters import ARBITER, MultiProxyParameters
from brokerd.protocols.multi_proxy.routes import Places
from brokerd.protocols.multi_proxy.topics import Topics
from brokerd.protocols.registry import make_protocol
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.proxy_stories import CountedStory, sides
from tests.protocols.multi_proxy.test_causal_ownership import HOME, carry, of_kind, transfer
from tests.protocols.multi_proxy.test_server import Disk

MUTANTS = bugs_of("multi_proxy")

KINDS = "abcdefghijklmnop"
SERVERS = ("v1", "v2", "v3")


class Uneven(CountedStory):
    """A story in which the first of three servers was down and owns no topics."""

    def __init__(self, spread_topics: int = 2) -> None:
        super().__init__(
            sides(proxies=2, servers=3, edges=2),
            "",
            ownership=ARBITER,
            topics=64,
            spread_topics=spread_topics,
        )
        topics = Topics(self.parameters, decode_attribute_table)
        self.kinds = "".join(
            kind for kind in KINDS if self.owner(topics.topic_of_value(kind)) != SERVERS[0]
        )
        self.cluster.broker("v1").kill()
        for kind in self.kinds:
            self.subscribe("e1", kind)
            self.subscribe("e2", kind)
        self.cluster.run_for(0.5)
        self.put()
        self.cluster.run_for(0.5)

    def owned(self) -> list[int]:
        """Return the number of topics that every server is asked for."""
        cores: list[Any] = [each.core for each in self.cluster.brokers if each.name in SERVERS]
        return [len(core.server.requested) for core in cores]

    def is_in_order(self) -> bool:
        """Return True if all received publications of a publisher in a topic are in order."""
        return all(
            [each for each in had.received if each.client == client]
            == [each for _, each in self.sent if each.client == client and each in had.received]
            for _, had in self.subscriptions
            for client in {each.client for each in had.received}
        )

    def is_over(self) -> bool:
        """Return True if all publications arrived and no broker keeps any."""
        self.cluster.run_for(8)
        self.cluster.oracle.judge_end()
        kept = [broker.core.status().queued for broker in self.cluster.brokers]
        return self.lost() == 0 and not any(kept)


# ------------------------------------------------------------ stories


def a_returned_server_receives_its_share_of_topics() -> bool:
    """Return True if a returned server gets its share of topics.

    Publications meanwhile arrive once, and no broker keeps any at the end.
    """
    story = Uneven()
    before = story.owned()
    story.cluster.broker("v1").start()
    for _ in range(10):
        story.put()
    is_over, after = story.is_over(), story.owned()
    story.put()
    return not before[0] and max(after) - min(after) < 2 and is_over and story.is_over()


def topics_stay_where_they_are_unless_they_are_to_be_spread() -> bool:
    story = Uneven(spread_topics=0)
    story.cluster.broker("v1").start()
    story.put()
    return story.is_over() and story.owned()[0] == 0


def servers_die_at_each_write_of_a_move() -> bool:
    """Return True if crashes of all servers and an access broker at every write lose no event."""
    kinds = (Move, Give, Transfer, Transferred, Merged, Assigned)
    return all(servers_die_at_a_message_of_a_move(kind) for kind in kinds)


def servers_die_at_a_message_of_a_move(kind: type) -> bool:
    """Return True if a crash of all servers and an access broker at a message loses no event."""
    story = Uneven()
    story.said.clear()
    story.cluster.broker("v1").start()
    story.when_told(
        kind, lambda: [story.cluster.broker(each).kill().start() for each in (*SERVERS, "e1")]
    )
    story.put()
    return story.is_over() and all(story.owned())


def a_restarted_access_broker_follows_its_moved_topics() -> bool:
    """Return True if a restarted access broker follows its topics to their new server.

    Publications meanwhile are kept there, although it also follows topics at the first server.
    """
    story = Uneven()
    story.cluster.broker("v1").start()
    story.cluster.run_for(3)
    story.cluster.broker("e1").kill()
    story.put(homes=("e2",))
    story.cluster.run_for(1)
    story.cluster.broker("e1").start()
    return story.is_over()


def events_of_the_former_owner_are_delivered_first() -> bool:
    """Return True if events of the former owner come first.

    An access broker that was down during the move receives the events of both servers together.
    """
    story = Uneven()
    story.cluster.broker("e1").kill()
    for _ in range(5):
        story.put(homes=("e2",))
    story.cluster.broker("v1").start()
    story.cluster.run_for(3)
    for _ in range(5):
        story.put(homes=("e2",))
    story.cluster.broker("e1").start()
    return story.is_over() and story.is_in_order()


def the_former_owner_redirects_a_follower_to_the_new_owner() -> bool:
    """Return True if the former owner redirects a follower to the new owner.

    The former owner has dropped almost all state of the topic.
    """
    server = given_away()
    told = server.tell(Follow(GIVER, HOME, 1, 1, (TOPIC,)))
    return told == [Merged(HOME, (Owner(TOPIC, TAKER, 2),))]


# ------------------------------------------------------------ one server, message by message

TAKER, GIVER = 1, 2
TOPIC = Places(TAKER, sides(1, 2, 2), 8).arbiters.index(TAKER)
"""A topic that the first of two servers decides on."""


def an_arbiter() -> Disk:
    """Return the first of three servers; the second owns the topic."""
    disk = Disk(ARBITER, 3)
    disk.tell(Claim(1, HOME, (Owner(DECIDED, 2),)))
    disk.tell(Assigned(2, 1, (Generation(DECIDED, 1),)))
    return disk


DECIDED = Places(1, sides(1, 3, 2), 8).arbiters.index(1)
"""A topic that the first of three servers decides on."""


def move(server: int) -> Move:
    return Move(1, (Owner(DECIDED, server),))


def give(server: int, owner: int, number: int) -> Give:
    return Give(server, 1, DECIDED, owner, number)


def moved(owner: int, number: int) -> Assigned:
    return Assigned(owner, 1, (Generation(DECIDED, number),))


def located(owner: int, number: int) -> list[Located]:
    return [Located(1, HOME, (Owner(DECIDED, owner, number),))]


def a_topic_moves_to_a_new_server() -> bool:
    """Return True if a topic moves to a new server.

    Access brokers are sent to the first server until the second has the topic.
    """
    disk = an_arbiter()
    claim = Claim(1, HOME, (Owner(DECIDED, 3),))
    return (
        disk.tell(move(2)) == []
        and disk.tell(move(3)) == [give(2, 3, 2)]
        and disk.tell(move(1)) == []
        and disk.tell(claim) == located(2, 1)
        and disk.tell(moved(3, 2)) == []
        and disk.tell(claim) == located(3, 2)
        and disk.tell(move(2)) == []
        and disk.tell(moved(3, 2)) == []
    )


def a_move_is_durable_before_it_is_announced() -> bool:
    return an_arbiter().request(move(3)) == []


def a_restarted_arbiter_continues_a_move() -> bool:
    disk = an_arbiter()
    disk.tell(move(3))
    disk.start(2)
    disk.now_ns += 10**10
    pending = of_kind(disk.tick(), Give)
    disk.tell(moved(3, 2))
    disk.start(3)
    disk.now_ns += 10**10
    owner = disk.tell(Claim(1, HOME, (Owner(DECIDED, 2),)))
    return pending == [give(2, 3, 2)] and owner == located(3, 2) and disk.tell(move(2)) == []


def given_away() -> Disk:
    """Return the second of two servers after it gave the topic to its arbiter, the first."""
    server = Disk(ARBITER, servers=2, number=GIVER)
    server.tell(Assign(GIVER, TAKER, (Generation(TOPIC, 1),)))
    server.tell(Give(GIVER, TAKER, TOPIC, TAKER, 2))
    server.tell(Transferred(TAKER, GIVER, TOPIC, TAKER))
    return server


def the_giver_of_a_topic_reports_the_transfer_again() -> bool:
    server = given_away()
    server.start(2)
    again = server.tell(Give(GIVER, TAKER, TOPIC, TAKER, 2))
    return again == [Assigned(TAKER, TAKER, (Generation(TOPIC, 2),))]


def a_transferred_topic_keeps_its_owner_after_a_crash() -> bool:
    """Return True if a transferred topic keeps its owner and generation after a crash."""
    server = Disk(ARBITER, servers=2)
    server.tell(carry(1, 4))
    come = replace(transfer(4), generation=2)
    told = of_kind(server.tell(come), Owned)
    server.start(2)
    answers = server.tell(Follow(TAKER, HOME, 1, 1, (come.topic,)))
    return told == [Owned((Owner(come.topic, TAKER, 2),))] and bool(of_kind(answers, Following))


def a_topic_in_arrival_is_not_announced_as_owned() -> bool:
    """Return True if a server does not announce a topic that it has only begun to receive.

    Seed 741939: the server died between the carried events and the end of the transfer.
    """
    server = Disk(ARBITER, servers=2)
    server.tell(carry(1, 4))
    server.said.clear()
    server.start(2)
    return of_kind(server.said, Owned) == [Owned(())]


def chooses_at_home(chosen: Mapping[str, Any]) -> Callable[[Owner], bool]:
    """Return a function that names an owner to an access broker and reports if it is chosen.

    Args:
        chosen: the owners on the disk of the access broker.
    """
    proxy, home = 0, 3
    core = make_protocol(
        "multi_proxy",
        home,
        sides(proxies=1, servers=2, edges=1),
        MultiProxyParameters(ownership=ARBITER, topics=8, topic_attribute="kind"),
        decode_attribute_table,
    )
    core.handle(Started(2, bool(chosen), {"chosen": chosen}), 0)
    core.handle(SessionEstablished(proxy, 7, 1), 0)

    def chooses(owner: Owner) -> bool:
        effects = core.handle(MessageReceived(proxy, 7, Merged(home, (owner,))), 0)
        commits = [each for each in effects if isinstance(each, Commit)]
        for commit in commits:
            assert commit.token is not None
            core.handle(Persisted(commit.token), 0)
        return bool(commits)

    return chooses


def statements_from_before_a_move_change_nothing() -> bool:
    chooses = chooses_at_home({str(TOPIC): [TAKER, 2]})
    older, later = Owner(TOPIC, GIVER, 1), Owner(TOPIC, GIVER, 3)
    return not chooses(older) and chooses(later)


def an_earlier_owner_does_not_replace_a_later_one() -> bool:
    """Return True if an earlier owner does not replace a later owner.

    Seed 724939: the later owner released events that the access broker had not received.
    """
    chooses = chooses_at_home({})
    assert chooses(Owner(TOPIC, TAKER, 2))
    return not chooses(Owner(TOPIC, GIVER, 1))


def a_request_for_an_owner_ends_with_a_later_row() -> bool:
    """Return True if a request for an owner ends when a later row names the owner.

    Seed 743348: one subscription matches all topics, the other a topic with an owner.
    """
    proxy, home = 0, 3
    rows: dict[str, dict[str, Any]] = {}
    said: list[Any] = []

    def started(incarnation: int) -> Callable[[Event], None]:
        core = make_protocol(
            "multi_proxy",
            home,
            sides(proxies=1, servers=2, edges=1),
            MultiProxyParameters(ownership=ARBITER, topics=8, topic_attribute="kind"),
            decode_attribute_table,
        )

        def happens(event: Event) -> None:
            for effect in core.handle(event, 0):
                if isinstance(effect, Send):
                    said.append(effect.message)
                elif isinstance(effect, Commit):
                    for change in effect.changes:
                        rows.setdefault(change.table, {})[change.key] = change.value
                    if effect.token is not None:
                        happens(Persisted(effect.token))

        happens(Started(incarnation, incarnation > 1, rows))
        happens(SessionEstablished(proxy, 7, 1))
        happens(MessageReceived(proxy, 7, Servers((TAKER, GIVER))))
        for follow in [each for each in said if isinstance(each, Follow)]:
            followed = tuple(Followed(follow.server, topic, 0, 0) for topic in follow.topics)
            answer = Following(follow.server, home, incarnation, follow.number, followed, ())
            happens(MessageReceived(proxy, 7, answer))
        return happens

    happens = started(1)
    happens(SessionEstablished("s", 8, 1))
    happens(MessageReceived("s", 8, Connect(False, 0, 1, 0, ())))
    happens(MessageReceived("s", 8, Subscribe(1, parse_predicate("true"))))
    happens(MessageReceived("s", 8, Subscribe(2, parse_predicate("kind = 'a'"))))
    wanted = Topics(MultiProxyParameters(topics=8, topic_attribute="kind"), decode_attribute_table)
    topic = wanted.topic_of_value("a")
    arbiter = Places(home, sides(1, 2, 1), 8).arbiters[topic]
    owner = Owner(topic, TAKER, 1)
    happens(MessageReceived(proxy, 7, Located(arbiter, home, (owner,))))
    follow = [each for each in said if isinstance(each, Follow) and each.topics == (topic,)][-1]
    followed = (Followed(TAKER, topic, 0, 0),)
    answer = Following(TAKER, home, 1, follow.number, followed, ())
    happens(MessageReceived(proxy, 7, answer))
    said.clear()
    started(2)
    asked = [each for locate in said if isinstance(locate, Locate) for each in locate.topics]
    return bool(asked) and topic not in asked


def a_proxy_moves_no_topic_before_all_servers_announce_theirs() -> bool:
    """Return True if a proxy moves no topic before all servers have announced theirs.

    The proxy has the owners from a message to an access broker, but only from one server.
    """
    claims = Claims(8, [(1, "v1"), (2, "v2")], (1, 2), [1] * 8, spread=2)
    claims.learn(1, [Owner(topic, 1, 1) for topic in (5, 3)])
    claims.on_announcement(1)
    early = claims.move()
    claims.on_announcement(2)
    return early is None and claims.move() == Move(1, (Owner(3, 2),))


def the_history_of_owners_survives_a_crash() -> bool:
    """Return True if the history of owners survives a crash.

    The topic belonged to the third server, then to the second, and now to the first.
    """
    server = Disk(ARBITER, servers=3)
    parts = (CarriedPart(2, 4, 4, ()), CarriedPart(3, 5, 5, ()))
    server.tell(replace(transfer(4), generation=3, parts=parts, followers=()))
    follow = Follow(1, HOME, 1, 1, (transfer(4).topic,))
    (before,) = of_kind(server.tell(follow), Following)
    server.start(2)
    (after,) = of_kind(server.tell(follow), Following)
    return [[each.part for each in told.topics] for told in (before, after)] == [[1, 2, 3]] * 2


RULES: dict[str, Callable[[], bool]] = {
    "never-spread": a_returned_server_receives_its_share_of_topics,
    "moved-owner-dropped": a_restarted_access_broker_follows_its_moved_topics,
    "proxy-counts-listed-topics-only": a_proxy_moves_no_topic_before_all_servers_announce_theirs,
    "moves-back": a_topic_moves_to_a_new_server,
    "moves-before-it-is-written": a_move_is_durable_before_it_is_announced,
    "move-is-volatile": a_restarted_arbiter_continues_a_move,
    "transfer-is-ordered-once": a_restarted_arbiter_continues_a_move,
    "transfer-is-not-reported": the_giver_of_a_topic_reports_the_transfer_again,
    "owned-before-it-is-given": a_topic_in_arrival_is_not_announced_as_owned,
    "given-and-not-owned": a_transferred_topic_keeps_its_owner_after_a_crash,
    "later-owner-first": events_of_the_former_owner_are_delivered_first,
    "age-of-owners-dropped": the_history_of_owners_survives_a_crash,
    "first-owner-of-no-generation": (an_earlier_owner_does_not_replace_a_later_one),
    "row-answers-no-request": a_request_for_an_owner_ends_with_a_later_row,
    "older-owner-followed": statements_from_before_a_move_change_nothing,
}

STORIES = (
    topics_stay_where_they_are_unless_they_are_to_be_spread,
    servers_die_at_each_write_of_a_move,
    the_former_owner_redirects_a_follower_to_the_new_owner,
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
        except (InvariantViolated, RemoteProtocolError):
            pass


def test_a_spread_of_one_topic_is_none() -> None:
    with pytest.raises(ConfigError, match="spread_topics = 1; 0, or at least 2"):
        MultiProxyParameters(spread_topics=1).check("here")
