"""Retention by age and by size at servers, and the gaps for subscribers that lack events."""

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.client_messages import Connect, Gap, Subscribe
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.predicate_text import parse_predicate
from brokerd.model.publication import OriginRun, PublicationRun
from brokerd.protocols.interface import (
    CloseSession,
    Commit,
    Deliver,
    MessageReceived,
    Persisted,
    SessionEstablished,
    Started,
)
from brokerd.protocols.multi_proxy.definition import MULTI_PROXY
from brokerd.protocols.multi_proxy.messages import (
    LOST,
    Followed,
    Following,
    Lost,
    LostRun,
    Merge,
    Servers,
)
from brokerd.protocols.multi_proxy.parameters import RENDEZVOUS, MultiProxyParameters
from brokerd.protocols.multi_proxy.retention import LostRecords
from brokerd.protocols.registry import make_protocol
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.handles import PublicationHandle, Subscription
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.proxy_stories import Story, sides
from tests.protocols.multi_proxy.test_causal_ownership import Twins
from tests.protocols.multi_proxy.test_stories import owner_of, queued

MUTANTS = bugs_of("multi_proxy")

PROXY, SERVER, HOME = 0, 1, 2
TOPIC = 1
SOURCE = SourceId(2, 0, 1)
AWAY_S = 3.0
RECORD_BYTES = 100
"""A limit between the size of one record and the size of two."""


def retaining() -> Story:
    """Return a story that may release publications older than a second."""
    return Story(max_retain_ns=SECOND_NS)


def short_of_room() -> Story:
    """Return a story with room for three publications, a record each, in a server's log."""
    return Story(max_retain_bytes=3 * RECORD_BYTES)


def told(subscription: Subscription) -> list[tuple[int, int]]:
    """Return the sequence numbers that were announced to an application as lost."""
    gaps = [gap for gap in subscription.client.gaps if gap.number == subscription.number]
    assert {gap.reason for gap in gaps} <= {LOST}
    return [(gap.first, gap.last) for gap in gaps]


def numbers(sent: Sequence[PublicationHandle]) -> list[int]:
    return [each.sequence for each in sent]


def missed_while_away(story: Story, count: int = 3) -> tuple[Subscription, list[PublicationHandle]]:
    """Publish while a subscriber's broker is down for longer than the retention time."""
    subscription = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    story.publish("e2", 2)
    story.cluster.run_for(0.5)
    story.cluster.broker("e1").kill()
    missed = story.publish("e2", count)
    story.cluster.run_for(AWAY_S)
    return subscription, missed


# ------------------------------------------------------------ rules and their bugs


def events_beyond_the_age_are_released() -> bool:
    story = retaining()
    missed_while_away(story)
    return queued(story, owner_of(story, "a")) == 0


def a_late_subscriber_receives_the_right_gap() -> bool:
    """Return True if a late subscriber receives the right gap and all later events."""
    story = retaining()
    subscription, missed = missed_while_away(story)
    before = list(subscription.received)
    story.cluster.broker("e1").start()
    later = story.publish("e2", 2)
    story.cluster.run_for(3)
    story.cluster.oracle.judge_end()
    first, *_, last = numbers(missed)
    return (told(subscription), subscription.received) == ([(first, last)], before + later)


def a_subscriber_that_returns_in_time_lacks_nothing() -> bool:
    story = retaining()
    subscription = story.cluster.subscribe("e1", "kind = 'a'")
    story.cluster.run_for(1)
    story.cluster.broker("e1").kill()
    first, last = numbers(story.publish("e2", 2))
    story.cluster.run_for(0.7)
    sent = story.publish("e2", 3)
    story.cluster.run_for(0.5)
    story.cluster.broker("e1").start()
    story.cluster.run_for(3)
    return (told(subscription), subscription.received) == ([(first, last)], sent)


def a_restarted_server_keeps_its_released_ranges() -> bool:
    story = retaining()
    subscription, missed = missed_while_away(story)
    story.cluster.broker(owner_of(story, "a")).kill().start()
    story.cluster.run_for(1)
    story.cluster.broker("e1").start()
    story.cluster.run_for(3)
    story.cluster.oracle.judge_end()
    first, *_, last = numbers(missed)
    return told(subscription) == [(first, last)]


def an_unannounced_gap_counts_as_aftermath() -> bool:
    """Return True if an unannounced gap counts as aftermath.

    The aftermath ends when the access broker has returned and notified its clients.
    """
    story = retaining()
    missed_while_away(story)
    server = story.cluster.brokers[story.topology.number_of(owner_of(story, "a"))].core
    left = server.aftermath()
    story.cluster.broker("e1").start()
    story.cluster.run_for(3)
    return len(left) == 1 and "lost" in left[0] and not server.aftermath()


def a_client_ahead_of_its_broker_receives_a_gap_for_the_rest() -> bool:
    """Return True if a client that is ahead of its broker receives a gap for the rest only.

    The broker had acknowledged less than the client has.
    """
    home = Home()
    home.restarted(had=14)
    home.lost(LostRun(11, SOURCE, 101, 105), LostRun(16, SOURCE, 107, 108))
    (gap,) = home.gaps
    return (gap.first, gap.last, gap.origins) == (15, 17, ((SOURCE, 105, 105), (SOURCE, 107, 108)))


def events_beyond_the_room_are_released() -> bool:
    story = short_of_room()
    missed_while_away(story, count=9)
    server = story.cluster.brokers[story.topology.number_of(owner_of(story, "a"))].core
    return 0 < server.server.log.logged_bytes <= 3 * RECORD_BYTES


def events_within_the_room_are_kept() -> bool:
    """Return True if only as many of the oldest events are released as necessary."""
    story = short_of_room()
    subscription, missed = missed_while_away(story, count=9)
    left = queued(story, owner_of(story, "a"))
    before = list(subscription.received)
    story.cluster.broker("e1").start()
    story.cluster.run_for(2)
    later = story.publish("e2", 2)
    story.cluster.run_for(1)
    story.cluster.oracle.judge_end()
    (gap,) = told(subscription)
    is_whole = subscription.received == before + missed[-left:] + later
    return left >= 3 and is_whole and gap == (missed[0].sequence, missed[-left - 1].sequence)


def the_newest_record_is_kept_at_any_size() -> bool:
    story = Story(max_retain_bytes=1)
    subscription, missed = missed_while_away(story)
    story.cluster.broker("e1").start()
    story.cluster.run_for(3)
    return told(subscription) == [(1 + 2, 2 + 2)] and subscription.received[-1] == missed[-1]


def a_restarted_server_keeps_events_within_the_room() -> bool:
    story = short_of_room()
    missed_while_away(story)
    server = owner_of(story, "a")
    story.cluster.broker(server).kill().start()
    story.cluster.run_for(1)
    story.publish("e2", 3)
    story.cluster.run_for(1)
    return queued(story, server) <= 4


def events_in_transfer_are_kept_without_room() -> bool:
    """Return True if events in transfer are kept without room.

    The receiver is down, and more events arrive than the log has room for.
    """
    story = Twins(max_retain_bytes=4 * RECORD_BYTES)
    story.put()
    story.when_told(Merge, story.cluster.broker("v1").kill)
    story.cluster.run_for(0.1)
    numbers = map(story.topology.number_of, ("v2", "v3"))
    servers = [story.cluster.brokers[number].core.server for number in numbers]
    given = [topic for server in servers for topic in server.log if topic.is_frozen and topic.runs]
    before = [topic.released for topic in given]
    for kind in "ghijklmn":
        story.publish("e1", 1, kind=kind)
    story.cluster.run_for(1)
    is_short = any(each.log.logged_bytes > 4 * RECORD_BYTES for each in servers)
    return is_short and bool(given) and [topic.released for topic in given] == before


RULES: dict[str, Callable[[], bool]] = {
    "kept-for-ever": events_beyond_the_age_are_released,
    "lost-before-its-time": a_subscriber_that_returns_in_time_lacks_nothing,
    "kept-without-room": events_beyond_the_room_are_released,
    "lost-with-room": events_within_the_room_are_kept,
    "newest-lost": the_newest_record_is_kept_at_any_size,
    "given-and-lost": events_in_transfer_are_kept_without_room,
    "size-dropped": a_restarted_server_keeps_events_within_the_room,
    "lost-in-silence": a_late_subscriber_receives_the_right_gap,
    "lost-for-all": a_client_ahead_of_its_broker_receives_a_gap_for_the_rest,
    "lost-unsaid": an_unannounced_gap_counts_as_aftermath,
    "lost-numbers-are-volatile": a_restarted_server_keeps_its_released_ranges,
    "lost-counts-as-done": a_restarted_server_keeps_its_released_ranges,
}


@pytest.mark.parametrize("bug", RULES)
def test_a_rule_holds_and_its_bug_is_seen(bug: str) -> None:
    assert RULES[bug]()
    with plant([MUTANTS[bug]]):
        try:
            assert not RULES[bug]()
        except InvariantViolated:
            pass


# ------------------------------------------------------------ other rules


class Home:
    """The core of an access broker that was down, and the gaps that its client receives."""

    def __init__(self) -> None:
        self.core = make_protocol(
            "multi_proxy",
            HOME,
            sides(proxies=1, servers=1, edges=1),
            MultiProxyParameters(ownership=RENDEZVOUS, topics=1, topic_attribute="kind"),
            decode_attribute_table,
        )
        self.gaps: list[Gap] = []

    def restarted(self, had: int) -> None:
        """Restart the broker with a client that has more of the topic than was acknowledged."""
        rows: dict[str, dict[str, Any]] = {
            "subscriptions": {"s/1": [[["kind", "=", ["plain", "a"]]]]},
            "begins": {"s/1": [[SERVER, TOPIC, 0, 0]]},
        }
        self.do(Started(2, True, rows))
        self.do(SessionEstablished(PROXY, 7, 1))
        self.do(MessageReceived(PROXY, 7, Servers((SERVER,))))
        self.do(SessionEstablished("s", 8, 1))
        resume = ((1, ((StreamId(SERVER, TOPIC, 0), had),)),)
        self.do(MessageReceived("s", 8, Connect(False, 0, 1, 0, resume)))
        self.do(MessageReceived("s", 8, Subscribe(1, parse_predicate("kind = 'a'"))))
        followed = (Followed(SERVER, TOPIC, 10, 20),)
        self.do(MessageReceived(PROXY, 7, Following(SERVER, HOME, 2, 1, followed, ())))

    def lost(self, *runs: LostRun) -> None:
        """Receive the server's message about released runs."""
        self.do(MessageReceived(PROXY, 7, Lost(SERVER, HOME, SERVER, TOPIC, runs)))

    def do(self, event: Any) -> None:
        """Handle an event and the events that follow from durable writes."""
        for effect in self.core.handle(event, 0):
            if isinstance(effect, Commit) and effect.token is not None:
                self.do(Persisted(effect.token))
            elif isinstance(effect, Deliver):
                assert isinstance(effect.item, Gap)
                self.gaps.append(effect.item)
            elif isinstance(effect, CloseSession):
                raise RemoteProtocolError(effect.peer, effect.reason)


@pytest.mark.parametrize(
    "runs",
    [(), (LostRun(11, SOURCE, 5, 4),), (LostRun(11, SOURCE, 1, 2), LostRun(14, SOURCE, 3, 4))],
)
def test_impossible_loss_reports_are_refused(runs: tuple[LostRun, ...]) -> None:
    home = Home()
    home.restarted(had=10)
    with pytest.raises(RemoteProtocolError):
        home.lost(*runs)


def test_losses_beyond_a_gap_or_already_received_are_ignored() -> None:
    home = Home()
    home.restarted(had=10)
    home.lost(LostRun(12, SOURCE, 1, 2))
    home.lost(LostRun(8, SOURCE, 1, 3))
    assert home.gaps == []
    home.lost(LostRun(9, SOURCE, 1, 4))
    home.lost(LostRun(9, SOURCE, 1, 4))
    assert [(gap.first, gap.last, gap.origins) for gap in home.gaps] == [
        (11, 12, ((SOURCE, 3, 4),)),
    ]


def test_a_gap_covers_only_the_lost_topic_of_a_publisher() -> None:
    """Events of the other topic have higher and lower sequence numbers."""
    story = retaining()
    kinds = {owner_of(story, kind): kind for kind in "abcdefgh"}
    first, second = (kinds[server] for server in sorted(kinds))
    subscription = story.cluster.subscribe("e1")
    story.cluster.run_for(1)
    story.cluster.broker("e1").kill()
    missed = []
    for _ in range(3):
        missed += story.publish("e2", 1, kind=first)
        story.publish("e2", 1, kind=second)
    story.cluster.run_for(AWAY_S)
    dead = story.cluster.broker(owner_of(story, second))
    dead.kill()
    story.cluster.broker("e1").start()
    later = story.publish("e2", 1, kind=first)
    story.cluster.run_for(2)
    assert told(subscription) == [(number, number) for number in numbers(missed)]
    assert subscription.received == later
    dead.start()
    story.cluster.run_for(3)
    story.cluster.oracle.judge_end()


def test_gaps_are_promised_only_with_retention_limits() -> None:
    retaining_for_1_s = MultiProxyParameters(max_retain_ns=SECOND_NS)
    assert MULTI_PROXY.promises_with(MultiProxyParameters()).gaps == ()
    promised = MULTI_PROXY.promises_with(retaining_for_1_s)
    assert (promised.gaps, promised.gap_age_ns) == ((LOST,), SECOND_NS)
    (warning,) = retaining_for_1_s.warnings()
    assert "1 s receives a gap" in warning
    bounded = MultiProxyParameters(max_retain_ns=SECOND_NS, max_retain_bytes=1_000)
    promised = MULTI_PROXY.promises_with(bounded)
    assert (promised.gaps, promised.gap_age_ns) == ((LOST,), 0)
    assert "oldest" in bounded.warnings()[1]
    with pytest.raises(ConfigError, match="max_retain_ns = -1; at least 0"):
        MultiProxyParameters(max_retain_ns=-1).check("here")


def test_lost_records_are_recovered_from_their_row() -> None:
    blob = (b"",)
    origins = (OriginRun(SOURCE, (1, 2, 5)), OriginRun(SourceId(3, 0, 1), range(7, 9)))
    run = PublicationRun(StreamId(SERVER, 4, 0), range(11, 16), blob, bytes(5), 0, (), origins)
    lost, again = LostRecords(4), LostRecords(4)
    lost.add(run)
    row = lost.row(15)
    assert row is not None
    again.recover(15, row.value)
    assert again.after(10) == lost.after(10) == [
        LostRun(11, SOURCE, 1, 2), LostRun(13, SOURCE, 5, 5), LostRun(14, SourceId(3, 0, 1), 7, 8),
    ]  # fmt: skip
    assert again.first == 11
    assert [change.value for change in again.forget(15)] == [None]
    assert (again.first, len(again)) == (None, 0)


def test_lost_records_are_in_order_whatever_the_order_of_their_rows() -> None:
    """Rows of a disk have no order, and records of a topic that returns are below later ones."""
    runs = [LostRun(at, SOURCE, at, at) for at in (9, 10, 11, 100)]
    for order in permutations(runs):
        recovered, carried = LostRecords(4), LostRecords(4)
        for run in order:
            recovered.recover(run.end, [[run.position, *run.source, run.first, run.last]])
        assert (recovered.first, recovered.after(9)) == (9, [*_joined(runs[1:])])
        assert len([*carried.carry(order)]) == len(runs)
        assert (carried.first, carried.after(9)) == (9, [*_joined(runs[1:])])


def _joined(runs: Sequence[LostRun]) -> list[LostRun]:
    """Return runs with those that continue each other as one."""
    found: list[LostRun] = []
    for run in runs:
        if found and found[-1].continues_in(run):
            found[-1] = found[-1]._replace(last=run.last)
        else:
            found.append(run)
    return found
