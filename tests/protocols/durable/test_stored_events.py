"""Stories of events that brokers store after these have passed, and a comparison with a plain list.

Paper: [DS03] §1.1, §3 (intermediate brokers cache events), §5.1 (subscribers come and go).
"""

from random import Random

import pytest

from brokerd.errors import ConfigError
from brokerd.model.identity import StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.durable.messages import Fetch, Fetched
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.durable.passed_events import PassedEvents
from brokerd.protocols.gryphon import EVENT_BYTES, IntervalSet, Stream, weight_bytes
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.search.plan import read_plan
from brokerd.simulator.search.plan_run import PlanRun
from tests.helpers.durable_stories import DurableStory, fails

MUTANTS = bugs_of("durable")

MANY_BYTES = 1 << 20

BROKERS = ("p1", "b1", "s1")


def counted(story: DurableStory, name: str) -> list[int]:
    """Return a statistic of all brokers."""
    return [story.core(broker).statistics()[name] for broker in BROKERS]


def returned(limit_bytes: int) -> DurableStory:
    """Return a story of a subscriber that has missed twenty events, beside a live one."""
    story = DurableStory(passed_limit_bytes=limit_bytes)
    away, other = story.subscriber(), story.subscriber()
    link = story.away(away)
    sent = story.publish(20)
    story.cluster.run_for(5)
    assert [story.kept(broker) for broker in BROKERS] == [20, 0, 0]
    assert counted(story, "passed_bytes")[0] == 0, "its log has them"
    assert max(counted(story, "passed_bytes")) <= limit_bytes
    story.quiet_since()
    link.heal()
    story.settle()
    assert away.received == other.received == sent
    return story


def test_a_returning_subscriber_receives_what_its_own_broker_has_stored() -> None:
    story = returned(MANY_BYTES)
    assert story.from_to("s1", "b1", Fetch) == []
    assert counted(story, "fetched_from_pubends") == [0, 0, 0]
    assert counted(story, "fetched_from_store") == [0, 0, 20]
    assert counted(story, "passed_bytes") == [0, 0, 0], "all have released them"


def test_without_a_store_the_publishers_broker_sends_each_missed_event_again() -> None:
    story = returned(0)
    assert counted(story, "fetched_from_pubends") == [20, 0, 0]
    assert counted(story, "fetched_from_store") == [0, 0, 0]


def test_events_that_a_store_had_no_room_for_are_fetched() -> None:
    story = returned(8 * (EVENT_BYTES + 20))
    (stored,) = {each for each in counted(story, "fetched_from_store") if each}
    assert 0 < stored < 20
    assert counted(story, "fetched_from_pubends") == [20 - stored, 0, 0]


def restarted(**parameters: int) -> tuple[DurableStory, bool]:
    """Return a story with the publishers' broker out of reach, and whether a subscriber catches up.

    The subscriber's broker restarts, so its store is empty.
    """
    story = DurableStory(passed_limit_bytes=MANY_BYTES, **parameters)
    away = story.subscriber()
    link = story.away(away)
    sent = story.publish(40)
    story.cluster.run_for(5)
    story.cluster.broker("s1").kill()
    story.cluster.run_for(1)
    story.cluster.broker("s1").start()
    story.cluster.run_for(5)
    upstream = story.cluster.link("p1", "b1")
    upstream.cut()
    story.cluster.run_for(3)
    story.quiet_since()
    link.heal()
    story.cluster.run_for(10)
    has_caught_up = away.received == sent
    upstream.heal()
    story.settle()
    assert away.received == sent
    return story, has_caught_up


def test_a_subscriber_catches_up_without_the_publishers_broker_from_a_store_on_the_route() -> None:
    story, has_caught_up = restarted()
    assert has_caught_up
    assert counted(story, "fetched_from_store") == [0, 40, 0]


def test_answers_from_a_store_fit_the_window_of_the_neighbour() -> None:
    """A window has eight events; one more is sent where none fits."""
    story, _ = restarted(answer_window_bytes=8 * EVENT_BYTES)
    answers = story.from_to("b1", "s1", Fetched)
    assert sum(len(each.run) for each in answers) == 40
    assert max(len(each.run) for each in answers) <= 9


def test_few_missed_events_are_read_from_the_publishers_broker() -> None:
    """Each of six subscribers is away for 5 s of a minute, one after another ([DS03] §5.1.1)."""
    story = DurableStory(passed_limit_bytes=MANY_BYTES)
    subscribers = [story.subscriber() for _ in range(6)]
    sent = []
    for each in subscribers:
        link = story.cluster.link(each.client.name, "s1")
        link.cut()
        for _ in range(5):
            sent += story.publish(2)
            story.cluster.run_for(1)
        link.heal()
        story.cluster.run_for(5)
    story.settle()
    assert all(each.received == sent for each in subscribers)
    read, stored = (
        sum(counted(story, name)) for name in ("fetched_from_pubends", "fetched_from_store")
    )
    assert stored >= 40
    assert read <= 0.1 * (read + stored)


LOSS = """
simulation timed
protocol durable
brokers b1 b2 b3
overlay cells {"bundles": [["b1", "b2"], ["b2", "b3"]], "members": {}}
limits failed=1 links=1
network jitter_ns=1
core client_linger_ns=1000000000000000 hold_lease_ns=1000000000000000 commit_interval_ns=20000000
chance 1
publisher p0-b1
at 0.1 subscribe s1-b3 true
at 0.5 publish p0-b1 a,10,3
at 1 fault client_away s1-b3 then 8
at 1.5 publish p0-b1 a,10,3 a,40,3
at 2 fault restored b1 empty then 3 4
heal 10
end 12
"""
"""The publishers' broker loses its log while a subscriber is away."""


def gap_of_a_loss() -> bool:
    """Return True if events that their pubend has lost are a gap, although brokers stored them."""
    report = PlanRun(read_plan(LOSS)).report(-1, "")
    if report.violations:
        raise InvariantViolated(report.rule, report.describe())
    assert report.counters["losses_accepted"] == 1
    return (report.counters["deliveries"], report.counters["in_gaps_of_lost_state"]) == (1, 2)


# ---------------------------------------------------------------- a plain list

STREAMS = StreamId(0, 0, 0), StreamId(0, 1, 0)


def run_of(stream: StreamId, ticks: list[int]) -> PublicationRun:
    payload = b"".join(b"%10d" % tick for tick in ticks)
    return PublicationRun(stream, tuple(ticks), (b"",), bytes(len(ticks)), 10, (payload,))


def test_stored_events_match_a_plain_list_for_any_history() -> None:
    """Without evictions; every event is requested by its tick."""
    for seed in range(100):
        random, store = Random(seed), PassedEvents(MANY_BYTES)
        streams = {each: Stream(each, 0, (), DurableParameters()) for each in STREAMS}
        plain: dict[StreamId, list[int]] = {each: [] for each in STREAMS}
        for _ in range(30):
            stream = streams[random.choice(STREAMS)]
            identity, knowledge = stream.identity, stream.knowledge
            if random.random() < 0.6:
                start = knowledge.highest + 1
                ticks = sorted(random.sample(range(start, start + 20), random.randrange(1, 9)))
                knowledge.accumulate(start, start + 20, run_of(identity, ticks))
                store.pass_on(stream, 0)
                knowledge.finish(random.randrange(start, start + 20))
                plain[identity] += ticks
            elif random.random() < 0.5:
                through = random.randrange(knowledge.highest + 1)
                store.drop_through(identity, through)
                plain[identity] = [tick for tick in plain[identity] if tick > through]
            else:
                wanted = [tick for tick in plain[identity] if random.random() < 0.5]
                left = IntervalSet((tick, tick + 1) for tick in (*wanted, knowledge.highest + 9))
                found = store.take(identity, left)
                assert [*(found.sequences if found else ())] == wanted, f"seed {seed}"
                assert [*left] == [(knowledge.highest + 9, knowledge.highest + 10)]
            runs = [run for _, runs in store.runs() for run in runs]
            assert store.stored_bytes == sum(map(weight_bytes, runs)), f"seed {seed}"
            assert sum(map(len, runs)) == sum(map(len, plain.values())), f"seed {seed}"


def kept_within(limit_bytes: int) -> list[int]:
    """Return the stored ticks of a stream of forty events."""
    store, stream = PassedEvents(limit_bytes), Stream(STREAMS[0], 0, (), DurableParameters())
    for tick in range(1, 41):
        stream.knowledge.accumulate(tick, tick + 1, run_of(STREAMS[0], [tick]))
        store.pass_on(stream, 0)
        assert store.stored_bytes <= limit_bytes
    return [tick for _, runs in store.runs() for run in runs for tick in run.sequences]


def test_a_full_store_has_the_newest_events() -> None:
    assert kept_within(0) == kept_within(EVENT_BYTES) == []
    assert kept_within(10 * (EVENT_BYTES + 10))[-9:] == [*range(32, 41)]
    assert kept_within(MANY_BYTES) == [*range(1, 41)]


def whole_request() -> bool:
    """Return True if a range with silent ticks is requested as a whole."""
    store, stream = PassedEvents(MANY_BYTES), Stream(STREAMS[0], 0, (), DurableParameters())
    stream.knowledge.accumulate(1, 100, run_of(STREAMS[0], [10, 20, 30]))
    store.pass_on(stream, 0)
    left = IntervalSet([(1, 100)])
    return store.take(STREAMS[0], left) is None and [*left] == [(1, 100)]


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="passed_limit_bytes = -1; at least 0"):
        DurableParameters(passed_limit_bytes=-1).check("here")


# ---------------------------------------------------------------- named bugs


def answers_fit() -> bool:
    """See test_answers_from_a_store_fit_the_window_of_the_neighbour."""
    test_answers_from_a_store_fit_the_window_of_the_neighbour()
    return True


def newest_stay() -> bool:
    """See test_a_full_store_has_the_newest_events."""
    test_a_full_store_has_the_newest_events()
    return True


def released_at_all() -> bool:
    """See test_a_returning_subscriber_receives_what_its_own_broker_has_stored."""
    test_a_returning_subscriber_receives_what_its_own_broker_has_stored()
    return True


STORIES = (
    ("stored-events-outlive-a-loss", gap_of_a_loss),
    ("stored-events-without-room", answers_fit),
    ("stored-without-a-limit", newest_stay),
    ("stored-events-cut-a-request", whole_request),
    ("stored-after-their-release", released_at_all),
    ("nothing-is-stored", released_at_all),
)


@pytest.mark.parametrize("name, told", STORIES, ids=[name for name, _ in STORIES])
def test_a_story_passes_without_its_named_bug_and_fails_with_it(name: str, told) -> None:
    assert told()
    with plant([MUTANTS[name]]):
        assert fails(told), f"{name} is not seen"
