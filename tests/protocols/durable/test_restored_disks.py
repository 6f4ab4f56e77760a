"""Durable brokers that start on an older copy of their disk, or on an empty disk."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.matching.index import MatchingIndex
from brokerd.matching.memo import MatchMemo
from brokerd.model.client_messages import Connect, Subscribe
from brokerd.model.identity import SourceId, StreamId
from brokerd.model.losses import STATE_LOST
from brokerd.model.predicate import EVERYTHING
from brokerd.model.predicate_text import parse_predicate
from brokerd.protocols.durable.catchup_streams import CatchupStreams, CatchupWatch
from brokerd.protocols.durable.filtering_subsystem import FilterLog
from brokerd.protocols.durable.messages import Held, Hold, NothingFetched
from brokerd.protocols.durable.state import COUNTERS, DurableSubscription, Mode
from brokerd.protocols.interface import Effect, MessageReceived, Send, SessionEstablished
from brokerd.protocols.parts.deadlines import DeadlineQueue
from brokerd.protocols.parts.event_machine import EventMachine
from brokerd.simulator.search.plan import read_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.wire.attributes import decode_attribute_table
from tests.helpers.durable_cores import core_of, handle, relay
from tests.helpers.gryphon_stories import cells
from tests.helpers.stream_runs import STREAM

PLAN = """
simulation timed
protocol durable
brokers b1 b2 b3
overlay cells {"bundles": [["b1", "b2"], ["b2", "b3"]], "members": {}}
limits failed=1 links=1
network jitter_ns=1
session heartbeat_ns=80000000 suspicion_ns=250000000 connect_timeout_ns=300000000
core ack_interval_ns=50000000 retry_first_ns=100000000 retry_limit_ns=800000000 \
client_linger_ns=1000000000000000 commit_interval_ns=20000000 silence_interval_ns=20000000 \
release_grace_ns=100000000 hold_lease_ns=1000000000000000 nack_repetition_limit_ns=120000000MORE
chance 1
publisher p0-b1
"""


def report_of(moves: str, more: str = "") -> SeedReport:
    return PlanRun(read_plan(PLAN.replace("MORE", more) + moves)).report(-1, "")


AWAY = """
at 0 subscribe s1-b3 kind = 'a'
at 0.5 publish p0-b1 a,10,3 a,40,3
at 1 fault client_away s1-b3 then 6
at 1.2 fault restored b3 copy then 3.5 4
at 1.5 publish p0-b1 a,10,3 a,40,3
LATER
heal 7
end 7
"""


@pytest.mark.parametrize("later, deliveries", [("", 2), ("at 6.2 publish p0-b1 a,10,3", 3)])
def test_events_released_upstream_and_lost_here_are_a_gap(later: str, deliveries: int) -> None:
    """Broker b3 had acknowledged two events for an absent subscriber; b1 has released both."""
    settings = " max_retain_ns=500000000 passed_limit_bytes="
    report = report_of(AWAY.replace("LATER", later), f"{settings}0")
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == 1
    assert report.counters["deliveries"] == deliveries
    assert report.counters["in_gaps_of_lost_state"] == 2
    stored = report_of(AWAY.replace("LATER", later), f"{settings}1000000")
    assert not stored.violations, stored.describe()
    assert stored.counters["deliveries"] == deliveries + 2, "b2 stores both"
    assert stored.counters["in_gaps_of_lost_state"] == 0


AHEAD = """
at 0 subscribe s1-b3 kind = 'a'
at 0.5 publish p0-b1 a,10,3 a,40,3
at 1.2 fault restored b3 HOW then 3.5 4
at 1.5 publish p0-b1 a,10,3 b,40,3
heal 7
end 7
"""


@pytest.mark.parametrize("how", ["copy", "empty"])
def test_a_restored_broker_receives_the_positions_of_streams(how: str) -> None:
    """No event is published later, and the subscriber is ahead of its broker."""
    text = PLAN.replace("MORE", " max_retain_ns=500000000") + AHEAD.replace("HOW", how)
    run = PlanRun(read_plan(text))
    report = run.report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == 1
    assert report.counters["deliveries"] == 3
    delivered = [broker.core.statistics()["delivered_us.0.0"] for broker in run._cluster.brokers]
    assert delivered[2] == delivered[1]


AGAIN = """
at 0 subscribe s1-b2 kind = 'a'
at 0 subscribe s2-b3 kind = 'a'
at 0.5 fault client_away s2-b3 then 6
at 1.2 fault restored b2 copy then 1.55 4
at 1.5 publish p0-b1 a,10,3 a,40,3
heal 7
end 7
"""


def test_events_that_a_restored_broker_receives_again_are_matched_again() -> None:
    """Client s1 has both events, so no delivery reveals a match at b2; b2 acknowledged neither."""
    report = report_of(AGAIN)
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == 1
    assert report.counters["deliveries"] == 4


MOVED = """
at 0 subscribe s1-b3 kind = 'a'
at 0.5 publish p0-b1 a,10,3 a,40,3
at 1.2 fault restored b3 copy then 3.5 4
at 2 reattach s1-b3 b1
at 2.5 publish p0-b1 a,10,3 a,40,3
heal 7
end 7
"""


def test_a_restored_subscription_of_a_client_that_has_moved_away_ends() -> None:
    report = report_of(MOVED)
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == 1
    assert report.counters["deliveries"] == 4


LOST_ARRIVAL = """
at 0 subscribe s1-b3 kind = 'a'
at 0.5 publish p0-b1 a,10,3 a,40,3
at 1 fault restored b2 empty then 1.52 2.5
at 1.5 reattach s1-b3 b2
at 1.5 publish p0-b1 a,10,3 a,40,3
LATER
at 3.5 publish p0-b1 a,10,3
heal 7
end 7
"""


def test_holds_for_an_arrival_that_its_broker_has_lost_end() -> None:
    """All pubends hold for s1 at b2, and b2 loses its disk before the holds end."""
    for later, deliveries in ("reattach s1-b3 b1", 5), ("unsubscribe s1-b3 1", 4):
        report = report_of(LOST_ARRIVAL.replace("LATER", f"at 1.6 {later}"))
        assert not report.violations, report.describe()
        assert report.counters["losses_accepted"] == 1
        assert report.counters["deliveries"] == deliveries


ENDED = """
at 0 subscribe s1-b3 kind = 'a'
at 0.1 subscribe s1-b3 kind = 'b'
at 1.2 fault restored b3 copy then 3.5 4
at 1.5 unsubscribe s1-b3 1
at 2.5 publish p0-b1 a,10,3 b,40,3
heal 7
end 7
"""


def test_a_restored_subscription_that_its_client_has_ended_ends_again() -> None:
    report = report_of(ENDED)
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == 1
    assert report.counters["deliveries"] == 1


NUMBERED_AGAIN = """
at 0 subscribe s1-b3 kind = 'a'
at 1.2 fault restored b3 copy then 3.5 4
at 1.5 unsubscribe s1-b3 1
at 1.7 forget s1-b3 0
at 1.7 subscribe s1-b3 true
at 2.5 publish p0-b1 a,10,3 b,40,3
at 5 publish p0-b1 b,10,3
heal 7
end 7
"""
"""Since the copy, another process has requested another subscription under the number."""


def test_a_restored_subscription_gives_way_to_a_later_one_of_its_number() -> None:
    report = report_of(NUMBERED_AGAIN)
    assert not report.violations, report.describe()
    assert (report.counters["losses_accepted"], report.counters["deliveries"]) == (1, 3)


RESTORED_BY_REPLICAS = """
at 0 subscribe s1-b1 kind = 'a'
at 0.3 fault client_away s1-b1 then 4
at 0.5 publish p0-b1 a,10,3 a,40,3
at 0.9 fault restored b1 empty then 2.5 3
at 1.1 publish p0-b1 a,10,3
at 2.4 publish p0-b1 a,10,3
heal 7
end 7
"""


def test_what_was_released_before_a_restoration_is_not_lost_early() -> None:
    """The state of the broker has policies of early release, and its core begins with that state.

    Seed 97456021: the first state that was examined was that of the core before it began.
    """
    report = report_of(RESTORED_BY_REPLICAS, " replicas=2 max_retain_ns=20000000")
    assert not report.violations, report.describe()
    assert report.counters["fault_restored"] == 1


CONSUMED = """
consumer c1-b3 1
at 0 subscribe c1-b3 kind = 'a'
at 0 subscribe s2-b2 kind = 'a'
at 0.5 fault client_away s2-b2 then 6
at 1 fault restored b3 copy then 3.5 4
at 1.5 publish p0-b1 a,10,3 a,40,3 a,60,3 a,90,3
at 3.7 forget c1-b3 1
heal 7
end 7
"""


def test_commits_that_a_broker_has_lost_are_delivered_again_and_marked() -> None:
    """A restarted consumer receives all four events again; another subscriber still lacks them."""
    report = report_of(CONSUMED)
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == 1
    assert report.counters["redelivered_to_consumers"] == 4


UNCOMMITTED = """
consumer c1-b3 1
at 0 subscribe c1-b3 kind = 'a'
at 0.5 publish p0-b1 a,10,3
at 1.5 fault restored b3 empty then 3.5 4
at 1.6 fault client_away c1-b3 then 5
at 2 publish p0-b1 b,10,3 b,40,3
heal 7
end 7
"""


def test_an_arrival_at_a_broker_with_a_loss_receives_gaps_of_lost_state() -> None:
    """Two events matched no subscription and were released; the broker has lost that record."""
    report = report_of(UNCOMMITTED)
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == 1


FORGOTTEN = """
at 0 subscribe s1-b1 kind = 'a'
at 0.9 fault kill b1 then 5
at 1 reattach s1-b1 b3
at 2 fault restored b3 empty then 2.5 4
at 3 forget s1-b1 1
heal 7
end 7
"""


def test_a_subscriber_without_memory_ends_its_subscriptions_at_earlier_brokers() -> None:
    """Broker b3 lost, with its disk, the duty to notify b1 that the client has moved."""
    text = PLAN.replace("MORE", "").replace("failed=1", "failed=2").replace("p0-b1", "p0-b2")
    report = PlanRun(read_plan(text + FORGOTTEN)).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == 1


def test_a_catch_up_continues_to_the_end_of_the_lost_range() -> None:
    """The origins of a loss count to the end of the loss, beyond the broker's position."""
    stream, source = StreamId(0, 0, 0), SourceId(0, 0, 1)
    hosted: Any = SimpleNamespace(position=10, identity=stream, log=FilterLog("log"), reading={})
    asked: list[Any] = []
    said: list[Any] = []
    machine = EventMachine()
    subscription = DurableSubscription("s", 1, parse_predicate("true"))

    class Upstream:
        has_lost = True

        def fetch(self, _: StreamId, ranges: Any) -> tuple[()]:
            asked.append([*ranges])
            return ()

    catchups = CatchupStreams(
        machine,
        SimpleNamespace(announce_in=lambda lane, last, gap: said.append(gap)),  # type: ignore[arg-type]
        MatchMemo(MatchingIndex(), decode_attribute_table),
        100,
        100,
        Upstream(),  # type: ignore[arg-type]
        CatchupWatch(machine, DeadlineQueue(), 10**9, dict.fromkeys(COUNTERS, 0)),
        {stream: hosted},
        SimpleNamespace(lanes=lambda _: [subscription.lane(stream)]),  # type: ignore[arg-type]
    )
    lane = subscription.lane(stream)
    lane.matched_after = 10
    catchups.begin(hosted, lane, 5)
    catchups.on_answers([NothingFetched(stream, 20, ((6, 11),), ((source, 7),))])
    assert asked == [[(6, 11)]], "what is lost is not asked for"
    assert (lane.mode, lane.floor) == (Mode.LIVE, 20)
    assert [(gap.first, gap.last, gap.reason) for gap in said] == [(6, 20, STATE_LOST)]


def test_a_question_without_an_arrival_releases_the_hold() -> None:
    """A broker that lost state requests the hold on its disk; the subscription does not need it."""
    core = core_of(1, cells("p1-b1", "b1-s1"))
    handle(core, SessionEstablished(0, 10, 1))
    question = Held(1, 0, "s", 1, 3, (), 0)
    (effect,) = handle(core, MessageReceived(0, 10, question))
    assert isinstance(effect, Send)
    assert isinstance(effect.message, Hold)
    assert (effect.message.behind, effect.message.generation) == ((), 3)


def test_a_hold_follows_the_removal_that_an_earlier_question_caused() -> None:
    """A pubend ignores requests of arrivals before a removal, of the same incarnation.

    The client returns after the answer to the question of a pubend that had lost its own state.
    """
    core = relay()
    released = requests_of(handle(core, MessageReceived(2, 12, Held(1, 2, "c", 1, 1, (), 0))))
    handle(core, SessionEstablished("c", 20, 1))
    handle(core, MessageReceived("c", 20, Connect(False, 1, 1, 0, ((1, ((STREAM, 5),)),))))
    held = requests_of(handle(core, MessageReceived("c", 20, Subscribe(1, EVERYTHING))))
    assert [each.behind for each in released] == [()]
    assert {each.to for each in held} == {0, 2}
    assert all(each.behind and each.stay > released[0].stay for each in held)


def requests_of(effects: list[Effect]) -> list[Hold]:
    """Return the requests for holds among the messages to neighbours."""
    messages = [each.message for each in effects if isinstance(each, Send)]
    return [each for each in messages if isinstance(each, Hold)]


MOVED_AND_ENDED = """
simulation adversarial
protocol durable
brokers b1 b2 b3
overlay cells {"bundles": [["b1", "b2"], ["b2", "b3"]], "members": {}}
limits failed=1 links=1
network jitter_ns=1
core client_linger_ns=1000000000000000 hold_lease_ns=1000000000000000
chance 8056760046265 only
publisher p0-b3
at 0 take b1:dials:b2
at 1 take b2>b1
at 2 subscribe s10-b1 kind in ('False', true)
at 2 take s10-b1:dials:b1
at 3 take b1>s10-b1
at 4 take s10-b1>b1
at 5 take b1>s10-b1
at 6 take s10-b1>b1
at 7 take b1:disk
at 8 take b1>s10-b1
at 9 take b1>s10-b1
at 10 reattach s10-b1 b2
at 10 take s10-b1:dials:b2
at 11 take b2>s10-b1
at 12 take s10-b1>b2
at 13 take s10-b1>b1
at 14 take b2>s10-b1
at 15 fault restored b2 copy
at 16 unsubscribe s10-b1 1
at 16 take s10-b1>b2
at 17 take b2:disk
at 18 take timer
at 19 publish p0-b3 False,40,0
heal 20
end 20
"""
"""A subscription moves to b2 and ends there, and an older copy of b2's disk has it again."""


def test_holds_of_a_restored_subscription_last_as_long_as_the_subscription() -> None:
    """Its client does not return, so its broker ends it after `client_linger_ns` only."""
    report = PlanRun(read_plan(MOVED_AND_ENDED)).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == 1
