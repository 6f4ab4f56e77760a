"""Total order: one sequence for all subscribers despite idleness, restarts and wrong clocks.

Paper: [GD02] §2.2 (preassigned silence), §2.3 (total order).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.identity import StreamId
from brokerd.model.publication import PublicationRun
from brokerd.protocols.definition import Order
from brokerd.protocols.gryphon.messages import Events, Nack, Silent
from brokerd.protocols.gryphon.parameters import GryphonParameters
from brokerd.protocols.gryphon.total_order import merge
from brokerd.protocols.registry import protocol_on, read_topology
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.handles import Subscription
from brokerd.units import MILLISECOND_NS
from tests.helpers.gryphon_stories import Story, cells
from tests.helpers.stream_runs import run_at

MUTANTS = bugs_of("gryphon")

ticks = st.lists(st.integers(1, 40), min_size=1, max_size=12, unique=True).map(sorted)


def at_pubend(number: int, numbers: list[int]) -> PublicationRun:
    return replace(run_at(numbers), source=StreamId(0, number, 0))


@given(st.lists(ticks, min_size=1, max_size=4))
def test_runs_are_cut_so_that_all_ticks_are_in_order(rows):
    parts = [at_pubend(number, row) for number, row in enumerate(rows)]
    ours = [(tick, run.source.publisher) for run in merge(parts) for tick in run.sequences]
    assert ours == sorted((tick, number) for number, row in enumerate(rows) for tick in row)


class TotalStory(Story):
    """Publishers at p1 and s2, subscribers at s1 and s2."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__(order="total", pubends=1, **parameters)
        self.subscribers = [self.cluster.subscribe(name) for name in ("s1", "s2")]
        self.cluster.run_until_quiet()

    def both(self, count: int, pause_s: float = 0.005) -> list[Any]:
        """Publish at p1 and s2 at nearly the same time."""
        sent = []
        for _ in range(count):
            sent += [self.cluster.publish(name, kind="a") for name in ("p1", "s2")]
            self.cluster.run_for(pause_s)
        return sent

    def check(self, sent: list[Any]) -> None:
        """Check that both subscribers received all events in the same order."""
        self.settle()
        first, second = self.subscribers
        assert first.received == second.received
        assert {*first.received} == {*sent}
        assert len(first.received) == len(sent)


def test_two_subscribers_get_two_publishers_in_one_order() -> None:
    story = TotalStory()
    story.check(story.both(30))


def an_event_while_other_pubends_are_idle() -> None:
    """Broker s1 requests ticks of b1, s1 and s2 after 20 ms, and these pubends assign silence."""
    story = TotalStory()
    everybody(story, 1)
    story.quiet_since()
    sent = [story.cluster.publish("p1", kind="a")]
    story.cluster.run_for(0.06)
    assert [each.received[4:] for each in story.subscribers] == [sent, sent]
    assert story.from_to("s1", "b1", Nack)
    assert story.from_to("b1", "s1", Silent)
    story.quiet_since()
    story.cluster.run_for(60)
    assert not [m for *_, m in story.said if type(m) in (Nack, Silent)], "and then all is quiet"


def test_idle_pubends_delay_an_event_only_briefly() -> None:
    """Silence that is final at b1 before s1 receives it is still sent to s1 on request."""
    an_event_while_other_pubends_are_idle()
    with plant([MUTANTS["final-silence-is-not-sent"]]), pytest.raises(AssertionError):
        an_event_while_other_pubends_are_idle()


def test_an_event_follows_assigned_silence_although_the_clock_is_set_back() -> None:
    """Every start of s2 has another clock, up to an hour off, after promises of later ticks."""
    story = TotalStory()
    sent = []
    for _ in range(6):
        sent += story.both(2)
        story.cluster.broker("s2").restart()
        story.cluster.run_for(1)
        sent += story.both(1)
    story.check(sent)
    ours = [m for m in story.from_to("s2", "b1", Events) if not m.again]
    numbers = [tick for m in ours for tick in m.run.sequences]
    assert numbers == sorted(set(numbers))


def test_while_a_pubend_is_down_all_waits_and_nothing_is_out_of_order() -> None:
    story = TotalStory()
    sent = story.both(2)
    story.cluster.run_for(1)
    story.cluster.broker("s2").kill()
    story.cluster.run_for(1)
    sent += [story.cluster.publish("p1", kind="a") for _ in range(3)]
    story.cluster.run_for(5)
    assert len(story.subscribers[0].received) == 4
    story.cluster.broker("s2").start()
    sent += story.both(2)
    story.check(sent)


def test_silence_is_not_announced_for_ticks_of_events_being_written() -> None:
    story = TotalStory(doubt_curiosity_ns=0)
    sent = []
    for pause_ms in range(12):
        sent += story.both(1, pause_s=pause_ms / 2_000)
    story.check(sent)


def everybody(story: TotalStory, rounds: int) -> list[Any]:
    """Publish at all four brokers every 200 ms, so that the rate of all pubends is measured."""
    sent = []
    for _ in range(rounds):
        sent += [story.cluster.publish(name, kind="a") for name in ("p1", "b1", "s1", "s2")]
        story.cluster.run_for(0.2)
    return sent


def an_event_soon_after_others(percent: int) -> None:
    """No request is due within 400 ms, so only assigned silence avoids a wait for other events."""
    story = TotalStory(
        doubt_curiosity_ns=400 * MILLISECOND_NS, silence_percent=percent, filters=False
    )
    sent = everybody(story, 6)
    sent += [story.cluster.publish(name, kind="a") for name in ("p1", "b1", "s1", "s2")]
    story.cluster.run_for(0.05)
    story.quiet_since()
    sent.append(story.cluster.publish("p1", kind="a"))
    story.cluster.run_for(0.02)
    assert [sent[-1] in each.received for each in story.subscribers] == [percent > 0] * 2
    assert not [m for *_, m in story.said if type(m) is Nack]
    story.check(sent + everybody(story, 1))


@pytest.mark.parametrize("percent", [0, 50])
def test_silence_assigned_beforehand_is_not_waited_for(percent: int) -> None:
    an_event_soon_after_others(percent)


def crash_within_silence_assigned_beforehand() -> None:
    """Broker p1 restarts within its preassigned silence, with another clock every time."""
    story = TotalStory(silence_percent=90)
    sent = everybody(story, 4)
    for _ in range(4):
        sent += everybody(story, 1)
        sent.append(story.cluster.publish("p1", kind="a"))
        story.cluster.run_for(0.01)
        story.cluster.broker("p1").restart()
        story.cluster.run_for(0.005)
        sent.append(story.cluster.publish("p1", kind="a"))
    story.check(sent)
    told = [m for m in story.from_to("p1", "b1", Events) if not m.again]
    assert any(m.end > m.run.last + 1 for m in told)
    assert all(before.end <= m.run.first for before, m in pairwise(told))


def test_after_a_crash_the_next_event_is_behind_silence_assigned_beforehand() -> None:
    crash_within_silence_assigned_beforehand()


def rare_events() -> None:
    """Every event is published long after the last lease expired."""
    story = TotalStory(silence_percent=90)
    sent = []
    for _ in range(6):
        sent.append(story.cluster.publish("p1", kind="a"))
        story.cluster.run_for(6)
    story.check(sent)


@pytest.mark.parametrize(
    "bug, rule, story",
    [
        (
            "event-inside-silence",
            "assert ",
            partial(an_event_soon_after_others, 50),
        ),
        ("silence-beyond-the-lease", "unassigned tick", rare_events),
    ],
)
def test_bugs_of_silence_assigned_beforehand_are_seen(
    bug: str, rule: str, story: Callable[[], None]
) -> None:
    story()
    seen = (InvariantViolated, RemoteProtocolError, AssertionError)
    with plant([MUTANTS[bug]]), pytest.raises(seen, match=rule):
        story()


@pytest.mark.parametrize("order", ["publisher", "total"])
def test_a_run_is_judged_by_the_order_of_its_topology(order: str) -> None:
    values = {**cells("p1-b1", "b1-s1").to_mapping(), "parameters": {"gryphon": {"order": order}}}
    topology = read_topology(values, "t.toml")
    promises = protocol_on(topology, "gryphon").promises()
    assert promises.order is Order(order)
    assert promises.as_mapping()["order"] == order


def test_an_order_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match="order = 'fifo'; one of publisher, total"):
        GryphonParameters.from_mapping({"order": "fifo"}, "t").check("t")


@pytest.mark.parametrize(
    "values, what",
    [
        ({"silence_percent": 50}, "silence_percent = 50 with order = 'publisher'"),
        ({"order": "total", "silence_percent": 101}, "silence_percent = 101; from 0 to 100"),
    ],
)
def test_silence_that_cannot_be_assigned_is_refused(values: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        GryphonParameters.from_mapping(values, "t").check("t")


def who_came_late_gets_what_was_before() -> None:
    """Broker s1 dies with an event that one client has not acknowledged and another lacks."""
    story = TotalStory()
    link = story.cluster.link(story.subscribers[0].client.name, "s1").absorb()
    story.publish()
    late = story.cluster.subscribe("s1")
    story.cluster.run_for(0.3)
    sent = story.publish(at="s2")
    story.cluster.run_for(0.3)
    assert late.received == sent
    story.cluster.broker("s1").kill()
    link.heal()
    story.cluster.run_for(1)
    story.cluster.broker("s1").start()
    story.cluster.run_for(20)
    assert late.received == sent


def who_is_slow_gets_what_was_before(**parameters: Any) -> None:
    """As above, with one client that has received no event when s1 dies."""
    story = TotalStory(**parameters)
    first = story.subscribers[0]
    first.client.take_after_ns = 5000 * MILLISECOND_NS
    before = story.publish()
    story.cluster.run_for(0.3)
    late = story.cluster.subscribe("s1", client=first.client.name)
    story.cluster.run_for(0.3)
    sent = story.publish(at="s2")
    story.cluster.run_for(0.3)
    assert (first.received, late.received) == ([*before, *sent], sent)
    story.cluster.broker("s1").restart()
    story.cluster.run_for(20)
    assert (first.received, late.received) == ([*before, *sent], sent)
    story.check([*before, *sent])


def who_forgets_gets_what_was_before() -> None:
    """A client that received an event restarts without memory; another at s1 lacks the event."""
    story = TotalStory()
    first, _ = story.subscribers
    other = story.cluster.subscribe("s1")
    story.cluster.run_for(0.3)
    link = story.cluster.link(other.client.name, "s1").absorb()
    story.publish()
    story.cluster.run_for(0.3)
    forgetful = Subscription(
        story.cluster.state, story.cluster.population.forget(first.client.name), 1
    )
    story.cluster.run_for(0.5)
    sent = story.publish(at="s2")
    story.cluster.run_for(0.3)
    assert forgetful.received == sent
    story.cluster.broker("s1").restart()
    story.cluster.run_for(1)
    link.heal()
    story.cluster.run_for(20)
    assert forgetful.received == sent


def who_forgets_has_not_had_what_it_did_not_acknowledge() -> None:
    """The client was slow to process its events, and restarts without memory."""
    story = TotalStory()
    first, _ = story.subscribers
    first.client.take_after_ns = 60_000 * MILLISECOND_NS
    sent = story.publish(2) + story.publish(at="s2")
    story.cluster.run_for(0.3)
    forgetful = Subscription(
        story.cluster.state, story.cluster.population.forget(first.client.name), 1
    )
    story.cluster.run_for(20)
    assert forgetful.received == sent


@pytest.mark.parametrize(
    "story",
    [
        who_came_late_gets_what_was_before,
        who_is_slow_gets_what_was_before,
        partial(who_is_slow_gets_what_was_before, filters=False),
        who_forgets_gets_what_was_before,
    ],
    ids=["late", "slow", "without-filters", "forgetful"],
)
def test_a_subscriber_receives_no_earlier_event_after_a_restart(
    story: Callable[[], None],
) -> None:
    story()
    with (
        plant([MUTANTS["start-is-not-announced"]]),
        pytest.raises(InvariantViolated, match="total order"),
    ):
        story()


def test_a_subscriber_without_memory_receives_its_unacknowledged_events() -> None:
    who_forgets_has_not_had_what_it_did_not_acknowledge()
    with plant([MUTANTS["waiting-events-count-as-received"]]), pytest.raises(AssertionError):
        who_forgets_has_not_had_what_it_did_not_acknowledge()
