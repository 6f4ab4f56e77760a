"""Gryphon brokers that start on an older copy of their disk, or on an empty disk."""

from collections.abc import Sequence

import pytest

from brokerd.model.client_messages import Gap
from brokerd.protocols.gryphon.messages import Done
from brokerd.protocols.interface import Deliver, Effect, Event
from brokerd.simulator.checks.growth import sizes_of
from brokerd.simulator.checks.marks import MarkStep
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.search.plan import read_plan
from brokerd.simulator.search.plan_run import PlanRun
from brokerd.simulator.search.seed_report import SeedReport
from brokerd.simulator.search.swarm import SwarmOptions, run_seed
from brokerd.simulator.world.clock import TimedSchedule, WallClocks
from brokerd.simulator.world.views import BrokerView
from brokerd.units import SECOND_NS

PLAN = """
simulation timed
protocol gryphon
brokers b1 b2
overlay cells {"bundles": [["b1", "b2"]], "members": {}}
limits failed=1 links=1
core filters=FILTERS client_linger_ns=1000000000000000
chance 1
publisher p0-b1
at 0.1 subscribe s1-b1 true
at 1 publish p0-b1 a,10,3
at 2 fault client_away s1-b1 then 6
at 2.5 fault restored b1 empty then 4 5
at 3 publish p0-b1 a,10,3 a,40,3
heal 10
end 10
"""

NEXT_TICK = """
simulation adversarial
protocol gryphon
brokers b1 b1-2 b2 b3 b4 b4-2
overlay cells {"bundles": [["cell-b1", "cell-b4"], ["cell-b4", "b2"], ["cell-b1", "b3"]], "links": [["b1", "b4-2"], ["b2", "b4-2"], ["b2", "b4"], ["b1-2", "b3"], ["b1", "b3"]], "members": {"cell-b1": ["b1", "b1-2"], "cell-b4": ["b4", "b4-2"]}}
limits failed=1 links=3
network jitter_ns=1
core filters=False silence_limit_ns=1000000 pubends=1 gap_curiosity_ns=60000000 nack_repetition_ns=80000000 nack_repetition_limit_ns=320000000 nack_window=8 ack_expected_ns=400000000 ack_expected_check_ns=100000000 ack_interval_ns=50000000 answer_window_bytes=4000 send_stall_ns=200000000 retry_first_ns=100000000 retry_limit_ns=800000000 client_window=16 client_linger_ns=1000000000000000
chance 163536938966905 only
publisher p0-b2
publisher p2-b3
at 0 take b2:dials:b4-2
at 1 take b1:dials:b4-2
at 2 take b4-2>b2
at 3 take b4-2>b2
at 4 take b1:dials:b3
at 5 take b4-2>b2
at 6 take b3>b1
at 7 take p2-b3:dials:b3
at 8 take b4-2>b1
at 9 take b1>b4-2
at 10 take b3>p2-b3
at 11 take p2-b3>b3
at 12 take b3:disk
at 13 fault restored b2 empty then 31 33
at 13 take b3>p2-b3
at 14 subscribe s2-b2 true
at 15 take s2-b2:dials:b2
at 16 take b2>s2-b2
at 17 take s2-b2>b2
at 18 take b2>s2-b2
at 19 take s2-b2>b2
at 20 take b2:disk
at 21 take b2>s2-b2
at 22 publish p0-b2 false,60,0
at 23 take b2>s2-b2
at 24 take b3>b1
at 25 publish p2-b3 true,90,0
at 25 take p2-b3>b3
at 26 take b3:log
at 27 take b3>b1
at 28 take b1>b4-2
at 29 take b4-2>b2
at 30 take b2>s2-b2
at 32 take b2>s2-b2
at 34 take s2-b2:tries-again
at 35 take b2:disk
at 36 take s2-b2:dials:b2
at 37 take b2>s2-b2
at 38 take s2-b2>b2
at 39 take b2>s2-b2
at 40 take s2-b2>b2
at 41 take b2:disk
at 42 take b2>s2-b2
at 43 take b2>s2-b2
at 44 take b2>s2-b2
at 45 take b2>s2-b2
at 46 publish p2-b3 False,90,8 False,40,0
heal 47
end 47
"""  # noqa: E501
"""A subscription restarts while the publication of the next tick is in flight."""

ENDED = """
simulation timed
protocol gryphon
brokers b1 b2
overlay cells {"bundles": [["b1", "b2"]], "members": {}}
limits failed=1 links=1
core client_linger_ns=1000000000000000
chance 1
publisher p1-b2
at 0.1 subscribe s1-b1 price >= 70
at 0.1 subscribe s1-b1 true
at 2 fault restored b1 copy then 5 6
at 3 unsubscribe s1-b1 2
at 4 publish p1-b2 d,10,8
at 7 publish p1-b2 d,80,8
heal 9
end 12
"""
"""A subscription ends, and an older copy of the disk has it again."""


def _report(filters: bool) -> SeedReport:
    return PlanRun(read_plan(PLAN.replace("FILTERS", str(filters)))).report(-1, "")


@pytest.mark.parametrize("filters", [True, False])
def test_a_loss_is_announced_to_subscribers_of_the_broker_itself(filters: bool) -> None:
    """The loss marker is older than the subscription, which its broker lost, too."""
    report = _report(filters)
    assert not report.violations, report.describe()
    assert report.counters["losses_accepted"] == 1
    assert (report.counters["deliveries"], report.counters["in_gaps_of_lost_state"]) == (1, 2)


def test_a_loss_in_own_streams_that_is_not_announced_is_seen() -> None:
    with plant([bugs_of("gryphon")["own-streams-lose-without-a-gap"]]):
        assert _report(filters=True).violations


@pytest.mark.parametrize(
    "name", ["first-pubends-alone-have-gaps", "only-last-tick-of-a-new-stream"]
)
def test_a_gap_in_one_stream_of_a_broker_excuses_no_loss_in_another(name: str) -> None:
    """A second publisher is at another pubend, of which the client has received nothing."""
    text = PLAN.replace("FILTERS", "True")
    text = text.replace("publisher p0-b1", "publisher p0-b1\npublisher p1-b1")
    plan = read_plan(text.replace("at 3 ", "at 2.9 publish p1-b1 a,10,3 a,20,3\nat 3 "))
    report = PlanRun(plan).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["in_gaps_of_lost_state"] == 4
    with plant([bugs_of("gryphon")[name]]):
        report = PlanRun(plan).report(-1, "")
    assert "misses" in report.violations[0]


def test_a_restarted_subscription_receives_the_event_of_the_next_tick() -> None:
    """A gap after the position of the client would cover an event that is not lost."""
    report = PlanRun(read_plan(NEXT_TICK)).report(-1, "")
    assert not report.violations, report.describe()
    assert report.counters["owed"] == 3


def test_a_restart_is_announced_once_a_crash_cannot_repeat_it() -> None:
    """The broker crashes between the announcement of the gap and the row of the restart."""
    options = SwarmOptions(settings=("nack_chunk_ns=100000",))
    report = run_seed(131_000_005, "gryphon", options)
    assert not report.violations, report.describe()
    assert report.counters["in_gaps_of_lost_state"]


def test_the_clock_of_a_broker_that_accepts_a_loss_is_ahead_of_all_its_times() -> None:
    clocks = WallClocks(1)
    earlier = [clocks.read_at_start(0, 0) for _ in range(20)]
    clocks.set_ahead(0)
    assert clocks.read_at_start(0, 0) > max(earlier)


def test_a_subscription_that_ended_on_the_lost_disk_is_owed_no_released_events() -> None:
    """The publisher's broker releases what nobody wants, before the older copy returns."""
    report = PlanRun(read_plan(ENDED)).report(-1, "")
    assert not report.violations, report.describe()
    assert (report.counters["losses_accepted"], report.counters["deliveries"]) == (1, 1)


REQUESTED_AGAIN = """
simulation timed
protocol gryphon
brokers b1 b2 b3
overlay cells {"bundles": [["b1", "b3"], ["b3", "b2"]], "members": {}}
limits failed=1 links=1
core client_linger_ns=1000000000000000 order=ORDER
chance 1
publisher p0-b2
"""
"""Between broker and pubend there is a broker that keeps silence for unwanted events."""

ENDED_BEFORE = (
    REQUESTED_AGAIN
    + """
at 0.1 subscribe s1-b1 true
at 0.2 subscribe s2-b1 price >= 70
at 2 fault restored b1 copy then 5 6
at 3 unsubscribe s1-b1 1
at 3.2 fault client_away s2-b1 then 8
at 4 publish p0-b2 d,80,8 d,10,8 d,90,8
at 7 forget s1-b1 0
at 7 subscribe s1-b1 true
heal 9
end 12
"""
)
"""Another subscription has events kept; those between them are silent."""

OTHER_PREDICATE = (
    REQUESTED_AGAIN.replace("ORDER", "publisher")
    + """
at 0.1 subscribe s1-b1 kind = 'a'
at 1 publish p0-b2 a,80,8
at 2 fault restored b1 copy then 5 6
at 2.5 unsubscribe s1-b1 1
at 3 forget s1-b1 0
at 3 subscribe s1-b1 true
at 4 publish p0-b2 d,80,8 d,10,8 d,90,8
at 7 publish p0-b2 d,80,8
heal 9
end 12
"""
)
"""Since the copy the client has lost its memory, and has requested another subscription."""


@pytest.mark.parametrize("order", ["publisher", "total"])
def test_a_restored_subscription_that_had_ended_does_not_continue(order: str) -> None:
    """Seed 96000198: another process requested it again, and received events around silence."""
    report = PlanRun(read_plan(ENDED_BEFORE.replace("ORDER", order))).report(-1, "")
    assert not report.violations, report.describe()
    assert (report.counters["losses_accepted"], report.counters["deliveries"]) == (1, 2)


def test_a_restored_subscription_gives_way_to_a_later_one_of_its_number() -> None:
    report = PlanRun(read_plan(OTHER_PREDICATE)).report(-1, "")
    assert not report.violations, report.describe()
    assert (report.counters["owed"], report.counters["deliveries"]) == (4, 5)


CRASH = """
simulation timed
protocol gryphon
brokers b1 b2
overlay cells {"bundles": [["b1", "b2"]], "members": {}}
limits failed=1 links=1
network jitter_ns=1 latency_highest_ns=150000
core filters=FILTERS client_linger_ns=1000000000000000 ack_interval_ns=1000000
chance 1
publisher p0-b2
at 0.1 subscribe s1-b1 true
at 1 publish p0-b2 a,10,3
at 2 fault client_away s1-b1 then 6
at 2.5 fault restored b1 empty then 4 5
at 5.5 publish p0-b2 a,10,3 a,40,3
KILL
at 9 publish p0-b2 a,10,3
heal 10
end 10
"""
"""The broker of a subscriber crashes again after the restart on an empty disk."""


def _report_before_return(order: str) -> SeedReport:
    plan = CRASH.replace("KILL", "at 5.8 fault kill b1 then 6.5")
    plan = plan.replace("FILTERS", f"False order={order}")
    return PlanRun(read_plan(plan)).report(-1, "")


@pytest.mark.parametrize("order", ["publisher", "total"])
def test_a_crash_before_the_client_returns_loses_nothing_without_a_gap(order: str) -> None:
    """The broker without the subscription had acknowledged the events of the other broker."""
    report = _report_before_return(order)
    assert not report.violations, report.describe()
    assert (report.counters["deliveries"], report.counters["in_gaps_of_lost_state"]) == (2, 2)


def _report_after_first_final(move: str) -> tuple[SeedReport, int]:
    """Return a report, and the number of subscriptions with beginnings of announced gaps."""
    plan = CRASH.replace("KILL", f"at 5.8 fault kill b1 then 6.5\nat {move}")
    run = PlanRun(read_plan(plan.replace("FILTERS", "False")))
    report = run.report(-1, "")
    return report, sizes_of(run.cluster.brokers[0].core)["Clients._proofs"]


@pytest.mark.parametrize(
    "move, name",
    [
        ("9.5 unsubscribe s1-b1 1", "proof-of-an-ended-subscription"),
        ("9.5 fault client_away s1-b1 then 9.9", "proof-of-a-taken-gap"),
    ],
)
def test_no_beginning_of_an_announced_gap_is_kept(move: str, name: str) -> None:
    """The subscription ends, or its client returns with the gap, in the life that announced it."""
    assert _report_after_first_final(move)[1] == 0
    with plant([bugs_of("gryphon")[name]]):
        assert _report_after_first_final(move)[1] == 1


def test_a_gap_that_did_not_arrive_is_announced_again() -> None:
    """The client is away when a stream arrives first, and the broker states no later position."""
    report, _ = _report_after_first_final("8.5 fault client_away s1-b1 then 9.5")
    assert not report.violations, report.describe()
    assert (report.counters["deliveries"], report.counters["in_gaps_of_lost_state"]) == (2, 2)


def test_a_final_tick_that_is_not_announced_at_first_is_seen() -> None:
    with plant([bugs_of("gryphon")["first-final-is-not-announced"]]):
        assert _report_before_return("publisher").violations


def _gap_after_crash() -> tuple[SeedReport, int, int]:
    """Crash a restarted broker when it acknowledges an event behind its beginning.

    Returns:
        The report, the last acknowledged tick and the last tick of the gap.
    """
    run: PlanRun
    begun: list[int] = []
    acknowledged: list[int] = []
    gaps: list[int] = []

    def watch(broker: BrokerView, event: Event, effects: Sequence[Effect]) -> None:
        cluster, now_ns = run.cluster, run.cluster.schedule.now_ns
        schedule = cluster.schedule
        assert isinstance(schedule, TimedSchedule)
        if broker.number or now_ns < 6 * SECOND_NS:
            return
        step = MarkStep(broker, event, effects)
        delivered = [each.item for each in step.acts.get(Deliver, ()) if type(each.item) is Gap]
        gaps.extend(gap.last for gap in delivered if gap.stream.broker == 1)
        begun.extend(row.value[0][1] for row in step.rows("begins"))
        if begun and not acknowledged:
            through = [end for each in step.sent.get(Done, ()) for _, end in each.through]
            acknowledged.extend(end for end in through if end > begun[0])
            if acknowledged:
                schedule.at(now_ns + 1, cluster.broker("b1").kill)
                schedule.at(now_ns + SECOND_NS // 2, cluster.broker("b1").start)

    dense = [f"at 7.{place:04} publish p0-b2 a,10,3" for place in range(0, 2_000, 5)]
    plan = CRASH.replace("KILL", "\n".join(dense)).replace("chance 1", "chance 2")
    plan = plan.replace("FILTERS", "True")
    run = PlanRun(read_plan(plan), watcher=watch)
    return run.report(-1, ""), acknowledged[0], max(gaps)


def test_a_crash_between_the_rows_of_a_restart_does_not_shorten_its_gap() -> None:
    """The broker had acknowledged an event between its beginning and its delivery."""
    report, acknowledged, gap = _gap_after_crash()
    assert not report.violations, report.describe()
    assert acknowledged <= gap


def test_a_gap_that_a_crash_shortens_is_seen() -> None:
    with plant([bugs_of("gryphon")["restart-has-begun-too-early"]]):
        _, acknowledged, gap = _gap_after_crash()
    assert acknowledged > gap
