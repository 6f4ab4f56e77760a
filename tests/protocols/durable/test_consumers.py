"""Subscribers without storage: the broker keeps the committed positions.

Paper: [DS03] §1, §5.2 (JMS durable subscriptions).
"""

import pytest

from brokerd.model.client_messages import (
    CommitConsumed,
    Connect,
    Consume,
    ConsumedCommitted,
    Consuming,
    Refused,
    Subscribed,
)
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.durable.messages import Beyond, Fetch
from brokerd.protocols.interface import (
    Append,
    Commit,
    DeadlineReached,
    Effect,
    Event,
    MessageReceived,
    Persisted,
    Send,
    SessionEstablished,
    SessionLost,
)
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.units import SECOND_NS
from tests.helpers.durable_cores import handle, relay
from tests.helpers.durable_stories import DurableStory, fails
from tests.helpers.stream_runs import STREAM

MUTANTS = bugs_of("durable")


def consumer(story: DurableStory, uncommitted: int = 1, at: str = "s1"):
    subscription = story.cluster.consume(at, uncommitted=uncommitted)
    story.cluster.run_until_quiet()
    return subscription


def begin_anew(story: DurableStory, subscription):
    """Replace the consumer's process by a new process without state and the same number."""
    name = subscription.client.name
    old = [*subscription.received]
    subscription.client = story.cluster.population.forget(name)
    return old


@pytest.mark.parametrize("uncommitted", [1, 4])
def test_a_consumer_gets_everything_once_and_its_commits_are_on_disk(uncommitted) -> None:
    story = DurableStory()
    subscription = consumer(story, uncommitted)
    sent = story.publish(12)
    story.settle()
    assert subscription.received == sent
    story.settle(3)
    assert story.kept("p1") == 0


def crashed(at_ms: int, uncommitted: int = 1) -> bool:
    """Return True if the successor of a process that crashes at `at_ms` misses no event."""
    story = DurableStory()
    subscription = consumer(story, uncommitted)
    sent = story.publish(6, pause_s=0.002)
    story.cluster.run_for(at_ms / 1000)
    had = begin_anew(story, subscription)
    sent += story.publish(3)
    story.settle()
    again = subscription.client.again
    both = had + [each for each in subscription.received if each not in had]
    repeated = [each for each in subscription.received if each in had]
    return both == sent and len(repeated) <= uncommitted and len(again) >= len(repeated)


MOMENTS = range(0, 60, 5)


@pytest.mark.parametrize("uncommitted", [1, 3])
def test_a_crash_between_work_and_commit_redelivers_at_most_one_marked_batch(uncommitted) -> None:
    assert not [each for each in MOMENTS if fails(crashed, each, uncommitted)]


def crashed_together(at_ms: int, kept: int = 0) -> bool:
    """Return True if no committed event is delivered again after the broker crashes too."""
    story = DurableStory(commit_interval_ns=10**10)
    subscription = consumer(story)
    sent = story.publish(6, pause_s=0.002)
    story.cluster.run_for(at_ms / 1000)
    story.kill("s1", kept)
    had = begin_anew(story, subscription)
    story.cluster.broker("s1").start()
    story.settle()
    sent += story.publish(3)
    story.settle()
    return had + [each for each in subscription.received if each not in had] == sent


def test_a_joint_crash_of_consumer_and_broker_loses_no_event() -> None:
    assert not [each for each in MOMENTS if fails(crashed_together, each)]


def crashed_broker(at_ms: int) -> bool:
    """Return True if a consumer resumes normally after its broker crashes."""
    story = DurableStory(commit_interval_ns=10**10)
    subscription = consumer(story)
    sent = story.publish(6, pause_s=0.002)
    story.cluster.run_for(at_ms / 1000)
    story.kill("s1", 0)
    story.cluster.broker("s1").start()
    story.settle()
    sent += story.publish(3)
    story.settle()
    return subscription.received == sent and not subscription.client.waits


def test_a_consumer_repeats_unanswered_requests_after_its_broker_crashes() -> None:
    """The broker has lost the record of its deliveries and trusts the consumer."""
    assert not [each for each in MOMENTS if fails(crashed_broker, each)]


def cut_off(at_ms: int) -> bool:
    """Return True if a consumer receives the events within reach of a restarted, cut-off broker."""
    story = DurableStory(commit_interval_ns=10**10)
    subscription = consumer(story)
    sent = story.publish(6, pause_s=0.002)
    story.cluster.run_for(at_ms / 1000)
    link = story.cluster.link("b1", "s1").cut()
    story.kill("s1", 0)
    story.cluster.broker("s1").start()
    story.cluster.run_for(5)
    near = story.publish(3, at="s1")
    story.cluster.run_for(5)
    if [each for each in subscription.received if each in near] != near:
        return False
    link.heal()
    story.settle()
    far = [each for each in subscription.received if each in sent]
    return far == sent and not subscription.client.waits


def test_a_consumer_does_not_wait_for_a_pubend_that_its_broker_cannot_ask() -> None:
    assert not [each for each in MOMENTS if fails(cut_off, each)]


def commits_the_future() -> bool:
    """Return True if a commit of unpublished ticks is refused and not confirmed."""
    core, predicate = relay(), parse_predicate("true")
    handle(core, SessionEstablished("c", 20, 1))
    handle(core, MessageReceived("c", 20, Connect(False, 1, 1, 0, ())))
    handle(core, MessageReceived("c", 20, Consume(1, predicate, 1)))
    asked = handle(core, MessageReceived("c", 20, CommitConsumed(1, 1, ((STREAM, 99),))))
    told = handle(core, MessageReceived(0, 10, Beyond(STREAM, 9, ((99, 100),))))
    refused = [each for each in told if type(each) is Send and type(each.message) is Refused]
    return Send(0, Fetch(STREAM, ((99, 100),))) in asked and len(refused) == 1


def crashed_twice(consumers: int, limit: int = 1) -> bool:
    """Return True if each redelivery is marked after two processes and a broker with a slow disk.

    The broker has not stored the first process's token when the second begins.

    Args:
        consumers: more than one share a transaction, so that requests wait for each other.
        limit: the limit of uncommitted publications of the later processes.
    """
    story = DurableStory(commit_interval_ns=10**10, token_lanes=1)
    many = [consumer(story) for _ in range(consumers)]
    story.cluster.broker("s1").broker.disk._delay_ns = SECOND_NS
    sent = story.publish(4)
    had = []
    for _ in range(2):
        story.wait_for(lambda: all(each.client.is_committing for each in many))
        for each in many:
            story.cluster.population.consumers[each.client.name] = limit
        story.cluster.run_for(0.05)
        had = [begin_anew(story, each) for each in many]
    story.kill("s1", 0)
    story.cluster.broker("s1").start()
    story.settle()
    return all(
        (each.received[-1], *before[:1]) == (sent[-1], sent[1])
        for each, before in zip(many, had, strict=True)
    )


def reply_lost() -> bool:
    """Return True if a repeated commit is answered after the first reply was lost."""
    story = DurableStory()
    subscription = consumer(story)
    sent = story.publish(1)
    link = story.cluster.link(subscription.client.name, "s1")
    commits = subscription.client.core.subscriptions.commits
    original = commits.request
    requests: list[CommitConsumed] = []

    def request(*arguments):
        requests.append(original(*arguments))
        return requests[-1]

    commits.request = request
    story.cluster.publish("p1", kind="a")
    story.wait_for(lambda: bool(requests))
    before = tokens(story)
    story.wait_for(lambda: tokens(story) != before)
    link.cut()
    story.cluster.run_for(1)
    assert subscription.client.waits
    on_disk = tokens(story)
    link.heal()
    story.cluster.run_for(10)
    assert subscription.client.core.attached
    assert all(tokens(story)[key] >= last for key, last in on_disk.items())
    return not subscription.client.waits and len(subscription.received) == len(sent) + 1


def tokens(story: DurableStory, at: str = "s1") -> dict:
    return dict(story.cluster.broker(at).broker.on_disk().get("acknowledged", {}))


def test_a_commit_with_a_lost_reply_is_repeated_and_answered() -> None:
    assert reply_lost()


def test_the_newer_of_two_connections_of_a_consumer_continues_with_its_token() -> None:
    """Later commits of the older connection have no effect."""
    story = DurableStory()
    subscription = consumer(story)
    subscription.client.works_ns = 0
    sent = story.publish(3)
    older = subscription.client
    older.works_ns = 10**12
    sent += [story.cluster.publish("p1", kind="a")]
    story.wait_for(lambda: len(older.received[1]) == 4)
    before = tokens(story)
    had = begin_anew(story, subscription)
    newer = subscription.client
    newer.works_ns = 0
    older._commit()
    story.settle()
    assert had == sent
    assert [sequence for _, sequence in newer.received[1]] == [4]
    assert [sequence for _, sequence in newer.again] == [4]
    assert tokens(story) != before


def test_a_moved_consumer_keeps_its_token() -> None:
    story = DurableStory()
    subscription = consumer(story)
    sent = story.publish(4)
    story.cluster.run_for(2)
    story.cluster.transfers.reattach(subscription.client.name, "s2")
    story.cluster.run_for(2)
    sent += story.publish(4)
    story.settle()
    assert subscription.received == sent
    assert tokens(story, "s1") == {}
    assert tokens(story, "s2")
    begin_anew(story, subscription)
    story.settle()
    sent = story.publish(2)
    story.settle()
    assert subscription.received == sent
    assert not story.core("s1").aftermath()


def zombie() -> bool:
    """Return True if a consumer that reports less than it committed resumes after the commit."""
    story = DurableStory()
    subscription = consumer(story)
    sent = story.publish(4)
    story.settle()
    link = story.away(subscription)
    taken = story.taken(subscription)
    taken.update({key: 5 for key, last in taken.items() if last})
    story.given.clear()
    link.heal()
    story.settle()
    return subscription.received == sent and not story.given


def came_back_with_more() -> bool:
    """Return True if a broker releases events that a returning consumer committed elsewhere.

    No other event advances the stream at this broker.
    """
    core, consume = relay(), Consume(1, parse_predicate("true"), 1)

    def happens(event: Event, now_ns: int = 0) -> None:
        for effect in core.handle(event, now_ns):
            if isinstance(effect, Commit | Append) and effect.token is not None:
                happens(Persisted(effect.token), now_ns)

    happens(DeadlineReached(), SECOND_NS)
    for session, had in ((20, 3), (21, 9)):
        happens(SessionEstablished("c", session, session))
        happens(
            MessageReceived("c", session, Connect(False, session, 1, 0, ((1, ((STREAM, had),)),)))
        )
        happens(MessageReceived("c", session, consume))
        happens(DeadlineReached(), session * SECOND_NS)
        if session == 20:
            happens(SessionLost("c", session, "timeout"))
    return core.statistics()["released_us.0.0"] == 9


def claimed_in_an_earlier_session() -> bool:
    """Return True if a request of a lost session attaches nothing in the next session.

    The row of the higher limit is durable only after the client has connected again. The client has
    not requested the subscription in that session, so it cannot place deliveries.
    """
    core, predicate = relay(), parse_predicate("true")

    def connect(session: int) -> None:
        handle(core, SessionEstablished("c", session, session))
        handle(core, MessageReceived("c", session, Connect(False, session, 1, 0, ())))

    connect(20)
    handle(core, MessageReceived("c", 20, Consume(1, predicate, 1)))
    handle(core, SessionLost("c", 20, "silent"))
    connect(21)
    asked = core.handle(MessageReceived("c", 21, Consume(1, predicate, 4)), 0)
    handle(core, SessionLost("c", 21, "silent"))
    connect(22)
    rows = [each for each in asked if isinstance(each, Commit) and each.token is not None]
    unasked = [each for row in rows for each in handle(core, Persisted(row.token))]
    again = handle(core, MessageReceived("c", 22, Consume(1, predicate, 4)))

    def told(effects: list[Effect]) -> list[type]:
        return [type(each.message) for each in effects if type(each) is Send and each.peer == "c"]

    return bool(rows) and told(unasked) == [] and told(again) == [Consuming, Subscribed]


def committed_and_not_let_go_of() -> bool:
    """Return True if a broker is at rest only after it released all committed events."""
    story = DurableStory(commit_interval_ns=SECOND_NS)
    subscription = consumer(story)
    subscription.client.works_ns = 10**12
    story.publish(1)
    story.cluster.run_for(3)
    subscription.client._commit()
    story.wait_for(lambda: not subscription.client.waits)
    assert matches(story) == 1
    under_way = story.core("s1").aftermath()
    story.cluster.run_for(2)
    return bool(under_way) and not story.core("s1").aftermath() and matches(story) == 0


def matches(story: DurableStory, at: str = "s1") -> int:
    return sum(len(hosted.log) for hosted in story.core(at).hosted.values())


STORIES = (
    ("claim-of-an-earlier-session", claimed_in_an_earlier_session, [()]),
    ("at-rest-before-tokens-are-released", committed_and_not_let_go_of, [()]),
    ("adopted-releases-nothing", came_back_with_more, [()]),
    ("answered-before-committed", crashed_together, [(each,) for each in MOMENTS]),
    ("redelivered-unmarked", crashed, [(each,) for each in MOMENTS]),
    ("restart-marks-nothing", crashed_together, [(each,) for each in MOMENTS]),
    ("begins-after-a-token-in-memory", crashed_twice, [(1,)]),
    ("begins-while-its-token-waits", crashed_twice, [(2,)]),
    ("higher-limit-begins-while-its-token-waits", crashed_twice, [(2, 2)]),
    ("token-of-the-client", zombie, [()]),
    ("committed-again-is-not-answered", reply_lost, [()]),
    ("commit-waits-for-a-pubend", cut_off, [(each,) for each in MOMENTS]),
    ("commit-of-the-future", commits_the_future, [()]),
)


@pytest.mark.parametrize("name, told, tellings", STORIES, ids=[name for name, *_ in STORIES])
def test_a_story_passes_without_its_named_bug_and_fails_with_it(name, told, tellings) -> None:
    assert not [each for each in tellings if fails(told, *each)]
    with plant([MUTANTS[name]]):
        assert any(fails(told, *each) for each in tellings), f"{name} is not seen"


class CountingStory(DurableStory):
    """A durable story that counts the consumers answered at once."""

    def __init__(self, **parameters) -> None:
        self.answers: list[int] = []
        super().__init__(**parameters)

    def _watch(self, broker, event, effects) -> None:
        super()._watch(broker, event, effects)
        answered = [
            each
            for each in effects
            if type(each) is Send and type(each.message) is ConsumedCommitted
        ]
        self.answers += [len(answered)] if answered else []


@pytest.mark.parametrize("lanes, batch, most", [(1, 0, 11), (4, 0, 2), (1, 1, 1), (1, 3, 3)])
def test_waiting_consumers_share_a_transaction(lanes, batch, most) -> None:
    """Requests that arrive during a transaction share the next, up to the batch size and lanes."""
    story = CountingStory(token_lanes=lanes, token_batch=batch)
    many = [consumer(story) for _ in range(12)]
    for each in many:
        each.client.works_ns = 0
    sent = story.publish(5)
    story.settle()
    assert all(each.received == sent for each in many)
    assert max(story.answers) == most
