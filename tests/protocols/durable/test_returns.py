"""Stories of clients that reconnect in the middle of an operation.

Paper: [DS03] §2 (model), §3 (release), §4.1 (catch-up, switch-over).
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from brokerd.model.client_messages import Connect, Deliveries, Gap, Silence
from brokerd.protocols.durable.filtering_subsystem import pack_match
from brokerd.protocols.durable.messages import Fetch, Fetched
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.state import ACKNOWLEDGED, Mode
from brokerd.protocols.interface import Chop, LogEnds, MessageReceived, RecordsRead, Started
from brokerd.protocols.registry import definition_of, make_protocol
from brokerd.simulator.checks.protocol_checks import message_of
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.sessions import OldMessage
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.durable_stories import DurableStory
from tests.helpers.gryphon_stories import TWO_SUBENDS, cells

MUTANTS = bugs_of("durable")


def deliveries(story: DurableStory) -> int:
    return sum(len(each.item.run) for each in story.given if type(each.item) is Deliveries)


@pytest.mark.parametrize("at_ms", range(0, 60, 5))
def test_acknowledged_events_are_not_released_before_the_commit(at_ms: int) -> None:
    """After a crash between acknowledgement and commit, the client requests the missing events."""
    story = DurableStory(commit_interval_ns=30_000_000, ack_interval_ns=1_000_000)
    subscription = story.subscriber()
    sent = story.publish(1, pause_s=0)
    story.wait_for(lambda: story.logged("p1") == 1)
    for _ in range(at_ms):
        story.cluster.run_for(0.001)
        on_disk = story.cluster.broker("s1").broker.on_disk().get(ACKNOWLEDGED, {})
        assert story.logged("p1") == 1 or on_disk
    story.kill("s1", 0)
    story.cluster.broker("s1").start()
    sent += story.publish(2)
    story.settle()
    assert subscription.received == sent


@pytest.mark.parametrize("at_ms", range(20, 80, 4))
def test_matches_that_are_ahead_of_the_last_commit_are_dropped_and_written_again(at_ms) -> None:
    story = DurableStory(commit_interval_ns=50_000_000)
    subscription = story.subscriber()
    link = story.away(subscription)
    sent = story.publish(3, pause_s=0.01)
    story.cluster.run_for(at_ms / 1000)
    story.kill("s1", 1_000)
    story.cluster.broker("s1").start()
    story.cluster.run_for(2)
    assert story.logged("s1", "matches.0.0") == 3
    link.heal()
    story.settle()
    assert subscription.received == sent


@pytest.mark.parametrize("pause_ms", [0.2, 0.5, 1, 1.5, 2, 3])
def test_a_catch_up_under_load_ends_live_without_loss_or_duplicate(pause_ms) -> None:
    story = DurableStory(catchup_batch=4)
    subscription = story.subscriber()
    link = story.away(subscription)
    sent = story.publish(15)
    link.heal()
    sent += story.publish(120, pause_s=pause_ms / 1000)
    story.settle()
    assert subscription.received == sent
    assert story.mode(subscription) is Mode.LIVE


def test_a_request_of_a_closed_session_is_not_answered() -> None:
    story = DurableStory()
    subscription = story.subscriber()
    link = story.away(subscription)
    sent = story.publish(10)
    upstream = story.cluster.link("p1", "b1").absorb()
    link.heal()
    story.wait_for(lambda: story.mode(subscription) is Mode.CATCHING_UP)
    link.cut()
    story.cluster.run_for(1)
    story.given.clear()
    upstream.heal()
    story.cluster.run_for(5)
    assert story.given == []
    link.heal()
    story.settle()
    assert subscription.received == sent


def test_a_token_received_after_its_session_closed_is_ignored() -> None:
    """Neither the broker nor the oracle takes the late token for the client's current state."""
    story = DurableStory()
    subscription = story.subscriber()
    broker, client = story.cluster.broker("s1").broker, subscription.client.name
    sent = story.publish(1)
    story.settle(1)
    (stream,) = [each.item.run.source for each in story.given if type(each.item) is Deliveries]
    late = Connect(False, 1, 1, 0, ((1, ((stream, 2**60),)),))
    session = broker.session_with(client)
    assert broker.receive_old(OldMessage(broker, broker.incarnation, client, session + 1, late))
    sent += story.publish(2)
    story.settle(1)
    assert subscription.received == sent
    now = MessageReceived(client, session, late)
    assert message_of(broker, now) is late
    assert message_of(broker, replace(now, session=session + 1)) is None


def test_a_subscriber_catching_up_on_one_pubend_is_live_on_the_others() -> None:
    story = DurableStory(pubends=2)
    subscription = story.subscriber()
    sent = []
    for client in ("missed", "b", "c", "d"):
        sent.append(story.cluster.publish("p1", client=client, kind="a"))
        story.settle(1)
    link = story.away(subscription)
    sent.append(story.cluster.publish("p1", client="missed", kind="a"))
    story.cluster.run_for(1)
    upstream = story.cluster.link("p1", "b1").absorb()
    link.heal()
    story.wait_for(lambda: story.mode(subscription) is not Mode.AWAY)
    modes = [story.mode(subscription, pubend) for pubend in (0, 1)]
    assert sorted(mode.name for mode in modes) == ["CATCHING_UP", "LIVE"]
    upstream.heal()
    story.settle()
    assert subscription.received == sent


def test_forty_returning_subscribers_fetch_each_event_once() -> None:
    story = DurableStory()
    all_forty = [story.cluster.subscribe("s1") for _ in range(40)]
    story.cluster.run_until_quiet()
    links = [story.away(each) for each in all_forty]
    sent = story.publish(20)
    story.cluster.run_for(3)
    story.quiet_since()
    for link in links:
        link.heal()
    story.settle()
    assert all(each.received == sent for each in all_forty)
    asked = [start for each in story.from_to("s1", "b1", Fetch) for start, _ in each.ranges]
    assert len(asked) == len(set(asked))
    assert sum(len(each.run) for each in story.from_to("b1", "s1", Fetched)) == 20


def test_a_broker_without_matching_subscribers_does_not_block_release() -> None:
    story = DurableStory()
    nobody = story.subscriber("s1", "kind = 'never'")
    story.publish(20)
    story.cluster.run_for(15)
    assert story.kept("p1") == 0
    assert nobody.received == []
    said = [each.item for each in story.given if type(each.item) is Silence]
    assert all(a.last < b.first for a, b in pairwise(said))
    assert said


def test_deliveries_of_a_closed_session_are_not_acknowledged() -> None:
    """Acknowledgements are lost with the session; the client reconnects with an older token."""
    story = DurableStory()
    subscription = story.subscriber()
    tokens = dict(story.taken(subscription))
    link = story.cluster.link(subscription.client.name, "s1").absorb("out")
    story.publish(5, pause_s=0.001)
    link.cut()
    story.cluster.run_for(5)
    assert story.kept("p1") == 5
    story.taken(subscription).update(tokens)
    story.given.clear()
    link.heal()
    story.cluster.run_for(5)
    assert deliveries(story) == 5
    assert story.kept("p1") == 0


@pytest.mark.parametrize("window", [1, 10, 100])
def test_every_catching_up_subscriber_gets_a_turn_in_any_window(window: int) -> None:
    """A stalled client with a long catch-up is first and delays no other client."""
    story = DurableStory(catchup_batch=5, catchup_window=window, live_limit=5)
    frozen, *others = [story.cluster.subscribe("s1") for _ in range(6)]
    story.cluster.run_until_quiet()
    links = [story.away(each) for each in (frozen, *others)]
    sent = story.publish(40)
    frozen.client.take_after_ns = 10**12
    links[0].heal()
    story.wait_for(lambda: story.mode(frozen) is Mode.CATCHING_UP)
    upstream = story.cluster.link("p1", "b1").absorb()
    for link in links[1:]:
        link.heal()
    story.wait_for(lambda: all(story.mode(each) is not Mode.AWAY for each in others))
    upstream.heal()
    story.cluster.run_for(20)
    assert [each.received for each in others] == [sent] * 5
    assert all(story.mode(each) is Mode.LIVE for each in others)
    frozen.client.take_after_ns = 0
    story.settle(2_000)
    assert frozen.received == sent


def test_catch_up_requests_fill_the_window_exactly() -> None:
    story = DurableStory(catchup_batch=5, catchup_window=10, fetched_limit_bytes=1)
    all_six = [story.subscriber("s1", f"kind = '{kind}'") for kind in "abcdef"]
    links = [story.away(each) for each in all_six]
    contents = [(story.blob(kind), b"") for kind in 5 * "abcdef"]
    sent = story.cluster.publish_run("p1", contents)
    story.cluster.run_for(1)
    upstream = story.cluster.link("p1", "b1").absorb()
    story.quiet_since()
    for link in links:
        link.heal()
    story.cluster.run_for(1.5)
    asked = {tick for each in story.from_to("s1", "b1", Fetch) for tick, _ in each.ranges}
    assert len(asked) == 10
    upstream.heal()
    story.settle()
    received = {each.sequence for subscription in all_six for each in subscription.received}
    assert received == {each.sequence for each in sent}


@pytest.mark.parametrize("takes_ms, is_said", [(1, False), (10**6, True)])
def test_a_diverging_catch_up_is_reported(takes_ms: int, is_said: bool) -> None:
    story = DurableStory(catchup_batch=5, catchup_watch_ns=10**9)
    subscription = story.subscriber()
    link = story.away(subscription)
    story.publish(20)
    subscription.client.take_after_ns = takes_ms * 10**6
    link.heal()
    story.publish(100)
    assert (story.cluster.statistics()["catchups_diverging"] > 0) == is_said
    assert (story.cluster.statistics()["catching_up"] > 0) == is_said


def test_an_announced_gap_is_repeated_until_committed() -> None:
    """The client crashes between the gap and the commit, and reconnects with the older token."""
    story = DurableStory(max_retain_ns=2 * SECOND_NS, release_grace_ns=SECOND_NS)
    subscription = story.subscriber()
    story.publish(2)
    story.cluster.run_for(1)
    link = story.away(subscription)
    tokens = dict(story.taken(subscription))
    lost = story.publish(3)
    story.cluster.run_for(6)
    for is_acknowledged in (False, True):
        story.given.clear()
        story.taken(subscription).update(tokens)
        link.heal()
        story.wait_for(lambda: story.mode(subscription) is not Mode.AWAY)
        if not is_acknowledged:
            link.absorb("out")
        story.cluster.run_for(2)
        gaps = [each.item for each in story.given if type(each.item) is Gap]
        assert len(gaps) == 1
        (gap,) = gaps
        ((_, first, last),) = gap.origins
        assert first <= lost[0].sequence
        assert last == lost[-1].sequence
        link.cut()
        story.cluster.run_for(1)
    story.given.clear()
    link.heal()
    story.cluster.run_for(5)
    assert Gap not in {type(each.item) for each in story.given}


def test_no_crash_brings_back_a_subscription_that_has_acknowledged_nothing() -> None:
    """The broker crashes during the unsubscription with a varying part of the last changes."""
    for at_ms in range(0, 12, 2):
        for kept in range(4):
            story = DurableStory()
            subscription = story.subscriber()
            story.publish(3)
            story.cluster.run_for(2)
            subscription.client.unsubscribe(subscription.number)
            story.cluster.run_for(at_ms / 1000)
            story.kill("s1", kept)
            rows = story.cluster.broker("s1").broker.on_disk()
            owners = {row[0] for row in rows.get("subscriptions", {}).values()}
            assert owners <= {int(key.partition("/")[0]) for key in rows.get(ACKNOWLEDGED, {})}


def test_a_returning_subscriber_receives_a_new_pubend_from_its_start() -> None:
    story = DurableStory()
    subscription = story.subscriber()
    sent = story.publish(3)
    link = story.away(subscription)
    sent += story.publish(3)
    tokens = {stream for _, stream in story.taken(subscription)}
    story.add_broker("p2", *TWO_SUBENDS, "b1-p2")
    story.cluster.run_for(2)
    new = story.publish(3, at="p2")
    assert {each.identity for each in story.core("s1").hosted.values()} > tokens
    story.cluster.run_for(2)
    link.heal()
    story.settle()
    assert [each for each in subscription.received if each not in new] == sent
    assert [each for each in subscription.received if each in new] == new


def test_an_unsubscribe_during_catch_up_stops_delivery_and_blocks_no_subscriber() -> None:
    """The leaver has used the whole catch-up window, and another subscriber waits for a turn."""
    story = DurableStory(catchup_batch=5, catchup_window=1, live_limit=5)
    leaver, other = story.subscriber("s1", "kind = 'a'"), story.subscriber("s1", "kind = 'b'")
    links = [story.away(each) for each in (leaver, other)]
    sent = story.cluster.publish_run("p1", [(story.blob(kind), b"") for kind in 20 * "ab"])
    story.cluster.run_for(3)
    upstream = story.cluster.link("p1", "b1").absorb()
    for link, each in zip(links, (leaver, other), strict=True):
        link.heal()
        story.wait_for(lambda each=each: story.mode(each) is Mode.CATCHING_UP)
    story.cluster.unsubscribe(leaver.client.name, leaver.number)
    story.cluster.run_for(1)
    upstream.heal()
    story.settle()
    assert leaver.received == []
    assert other.received == sent[1::2]
    assert story.cluster.statistics()["catching_up"] == 0
    assert story.kept("p1") == 0
    assert not any(len(each.log) for each in story.core("s1").hosted.values())


def test_a_waiting_subscription_receives_nothing_after_its_client_leaves() -> None:
    """The client's other subscription used the window, and the awaited events are in the cache."""
    story = DurableStory(catchup_batch=5, catchup_window=1, live_limit=5)
    first, other = story.subscriber("s1", "kind = 'a'"), story.subscriber("s1", "kind = 'b'")
    second = story.cluster.subscribe("s1", "kind = 'b'", first.client.name)
    story.cluster.run_until_quiet()
    link, others = story.away(first), story.away(other)
    sent = story.cluster.publish_run("p1", [(story.blob(kind), b"") for kind in 3 * "ab"])
    story.cluster.run_for(3)
    others.heal()
    story.wait_for(lambda: other.received == sent[1::2])
    upstream = story.cluster.link("p1", "b1").absorb()
    link.heal()
    story.wait_for(lambda: story.mode(second) is Mode.CATCHING_UP)
    story.given.clear()
    link.cut()
    story.cluster.run_for(1)
    assert story.given == []
    link.heal()
    story.cluster.run_for(1)
    upstream.heal()
    story.settle()
    assert deliveries(story) == len(sent)
    assert [first.received, second.received, other.received] == [sent[::2], sent[1::2], sent[1::2]]


def test_a_pending_commit_appears_in_the_aftermath() -> None:
    story = DurableStory(commit_interval_ns=5_000_000_000)
    story.subscriber("s1")
    story.publish(1)
    story.cluster.run_for(2)
    assert any("commit" in line for line in story.core("s1").aftermath())
    story.cluster.run_for(10)
    assert not story.core("s1").aftermath()


def test_records_released_before_a_crash_are_truncated_after_it() -> None:
    """The end of the last subscription is on disk, and no event of the stream arrives."""
    newest: dict[int, int] = {}
    records = [pack_match(10 * index, [1], index, newest) for index in (1, 2, 3)]
    topology, parameters = cells("p1-b1", "b1-s1"), DurableParameters()
    core = make_protocol("durable", 1, topology, parameters, decode_attribute_table)
    logs = {log: LogEnds() for log in definition_of("durable").all_logs(topology, parameters)}
    logs["matches.0.0"] = LogEnds(1, 4)
    rows = {"delivered": {"0.0": 30}, "written": {"0.0": 4}}
    core.handle(Started(2, True, rows, logs), 0)
    found = core.handle(RecordsRead("matches.0.0", 1, tuple(records)), 0)
    assert Chop("matches.0.0", 4) in found


SEEN = (
    ("quiet-before-its-commit", test_a_pending_commit_appears_in_the_aftermath, ()),
    (
        "chopped-at-the-next-commit",
        test_records_released_before_a_crash_are_truncated_after_it,
        (),
    ),
    (
        "new-pubend-begins-where-it-is",
        test_a_returning_subscriber_receives_a_new_pubend_from_its_start,
        (),
    ),
    (
        "ended-stays-in-the-window",
        test_an_unsubscribe_during_catch_up_stops_delivery_and_blocks_no_subscriber,
        (),
    ),
    (
        "admitted-during-the-disconnection",
        test_a_waiting_subscription_receives_nothing_after_its_client_leaves,
        (),
    ),
    (
        "rows-dropped-before-the-end",
        test_no_crash_brings_back_a_subscription_that_has_acknowledged_nothing,
        (),
    ),
    ("requests-without-a-window", test_catch_up_requests_fill_the_window_exactly, ()),
    (
        "not-admitted-again",
        test_every_catching_up_subscriber_gets_a_turn_in_any_window,
        (1,),
    ),
    ("divergence-unsaid", test_a_diverging_catch_up_is_reported, (10**6, True)),
    ("fetched-by-each-alone", test_forty_returning_subscribers_fetch_each_event_once, ()),
    (
        "old-session-counts",
        test_deliveries_of_a_closed_session_are_not_acknowledged,
        (),
    ),
)


@pytest.mark.parametrize("name, story, told", SEEN, ids=[name for name, *_ in SEEN])
def test_a_story_sees_its_bug(name: str, story: Callable[..., None], told: tuple[int, ...]) -> None:
    with plant([MUTANTS[name]]), pytest.raises((AssertionError, InvariantViolated)):
        story(*told)
