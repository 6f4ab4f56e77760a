"""Filters between brokers: withheld events, silence, and the limits of silence.

Paper: [GD02] §2.1, §3.1 (filters of ostreams); the paper omits changes of filters.
"""

from collections.abc import Callable

import pytest

from brokerd.protocols.gryphon.checks.marks import FILTER_MARKS
from brokerd.protocols.gryphon.checks.planning import tree_of_cells
from brokerd.protocols.gryphon.messages import EVERYWHERE, AckExpected, Done, Events, Nack
from brokerd.protocols.interface import MessageReceived
from brokerd.simulator.checks.marks import MarkStep, MarkTable
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.handles import PublicationHandle, Subscription
from brokerd.units import SECOND_NS
from brokerd.wire.attributes import encode_attributes
from tests.helpers.gryphon_stories import Story, paper_cells
from tests.helpers.stream_runs import run_at
from tests.protocols.gryphon.test_restarts import ClockAt

MUTANTS = bugs_of("gryphon")


def contents(kinds: str) -> list[tuple[bytes, bytes]]:
    return [(encode_attributes({"kind": kind}), b"") for kind in kinds]


def subscribe(story: Story, name: str, *kinds: str) -> Subscription:
    """Return a started subscription to events of these kinds."""
    subscription = story.cluster.subscribe(name, " or ".join(f"kind = '{kind}'" for kind in kinds))
    story.cluster.run_until_quiet()
    return subscription


def of_kind(sent: list[PublicationHandle], kinds: str, wanted: str) -> list[PublicationHandle]:
    return [each for each, kind in zip(sent, kinds, strict=True) if kind in wanted]


# ---------------------------------------------------------------- withheld events


def a_thousand_between_two() -> None:
    """Publish 1,000 events between two that s1 matches, before any acknowledgement."""
    story = Story(ack_interval_ns=60 * SECOND_NS)
    one, every = subscribe(story, "s1", "b"), subscribe(story, "s2", "a", "b")
    kinds = "b" + "a" * 1_000 + "b"
    sent = []
    for place in range(0, len(kinds), 20):
        sent += story.cluster.publish_run("p1", contents(kinds[place : place + 20]))
        story.cluster.run_for(0.001)
    story.cluster.run_for(2)
    assert one.received == [sent[0], sent[-1]]
    assert every.received == sent
    first, second = story.from_to("b1", "s1", Events)
    assert len(first.run) == len(second.run) == 1
    assert second.start <= first.end, "with all the silence between them"
    assert not [m for *_, m in story.said if type(m) is Nack]


def test_unwanted_events_become_silence_around_wanted_events() -> None:
    a_thousand_between_two()
    with plant([MUTANTS["bracket-ends-at-unmatched-event"]]), pytest.raises(AssertionError):
        a_thousand_between_two()


def idle_for_a_minute() -> None:
    story = Story()
    none, every = subscribe(story, "s1", "b"), subscribe(story, "s2", "a")
    sent = story.publish(60, pause_s=1)
    story.settle()
    assert (none.received, every.received) == ([], sent)
    assert not story.from_to("b1", "s1", Events)
    assert not [m for *_, m in story.said if type(m) in (AckExpected, Nack)]
    assert not sum(story.cluster.broker(name).status().queued for name in ("p1", "b1", "s1", "s2"))


def test_an_idle_cell_is_not_asked_for_acknowledgements() -> None:
    idle_for_a_minute()
    with plant([MUTANTS["acks-wait-for-unmatched-events"]]), pytest.raises(AssertionError):
        idle_for_a_minute()


@pytest.mark.parametrize("parameters", [{}, {"events_per_message": 1}, {"order": "total"}])
def test_each_subscriber_receives_its_matches_for_any_grouping_of_events(
    parameters: dict[str, object],
) -> None:
    story = Story(**parameters)
    subscribers = {name: subscribe(story, name, *kinds) for name, kinds in
                   (("s1", "ac"), ("s2", "b"), ("b1", "c"))}  # fmt: skip
    kinds = "abcab" * 8
    sent = []
    for place in range(0, 40, 4):
        sent += story.cluster.publish_run("p1", contents(kinds[place : place + 4]))
        story.cluster.run_for(0.03)
    story.settle()
    for name, wanted in (("s1", "ac"), ("s2", "b"), ("b1", "c")):
        assert subscribers[name].received == of_kind(sent, kinds, wanted)
    told = {len(m.run) for m in story.from_to("b1", "s1", Events)}
    assert (told == {1}) == ("events_per_message" in parameters)
    assert parameters == {"order": "total"} or not story.from_to("s1", "b1", Nack)


def test_a_route_change_between_two_wanted_events_costs_one_gap_at_most() -> None:
    story = Story(topology=paper_cells(), pubends=1)
    subscriber = subscribe(story, "s1", "b")
    subscribe(story, "s2", "a")
    link = story.cluster.link("b1", "s1")
    ways = (change() for change in (link.cut, link.heal))
    kinds = "abaa|aaab|aab"
    sent = []
    for kind in kinds:
        if kind == "|":
            next(ways)
            continue
        sent.append(story.cluster.publish("p1", kind=kind))
        story.cluster.run_for(0.04)
    story.settle()
    assert subscriber.received == of_kind(sent, kinds.replace("|", ""), "b")
    assert len(story.times_ms("s1", Nack)) <= 2


def sideways_where_somebody_wants_it_only_later() -> None:
    """Subscriber s2 starts after an event that b1 acknowledged for s2; b2 receives it then."""
    story = Story(topology=paper_cells(), pubends=1)
    first = subscribe(story, "s1", "b")
    for link in (("p1", "b2"), ("b1", "s1")):
        story.cluster.link(*link).cut()
    sent = [story.cluster.publish("p1", kind="b")]
    story.cluster.run_for(0.01)
    late = story.cluster.subscribe("s2", "kind = 'b'")
    story.cluster.run_for(30)
    assert late.started
    assert story.from_to("b2", "s1", Events)
    assert (first.received, late.received) == (sent, [])
    assert [story.cluster.broker(name).status().queued for name in ("p1", "b1", "b2")] == [0, 0, 0]


def test_a_cell_keeps_no_event_that_one_of_its_brokers_has_filtered() -> None:
    sideways_where_somebody_wants_it_only_later()
    with plant([MUTANTS["kept-beside-although-unwanted"]]), pytest.raises(AssertionError):
        sideways_where_somebody_wants_it_only_later()


def kept_where_the_pubend_is_done() -> None:
    """Broker u1 lacks the subscription of s1, and b1 has it; b1's events to s1 are lost."""
    names = ["p1", "u1", "u2", "b1", "s1", "s2"]
    bundles = [("p1", "up"), ("up", "b1"), ("up", "s2"), ("b1", "s1")]
    story = Story(topology=tree_of_cells(names, bundles, {"up": ["u1", "u2"]}), pubends=1)
    every = subscribe(story, "s2", "a")
    for link in (("p1", "u2"), ("u1", "b1"), ("u2", "s2")):
        story.cluster.link(*link).cut()
    story.cluster.run_for(3)
    story.cluster.link("u2", "u1").cut("out")
    story.lose("b1", "s1", Events)
    late = story.cluster.subscribe("s1", "kind = 'a'")
    story.cluster.run_for(0.05)
    sent = [story.cluster.publish("p1", kind="a")]
    story.cluster.run_for(2)
    story.cluster.link("u2", "u1").heal()
    story.cluster.run_for(30)
    assert (every.received, late.received, late.started) == (sent, [], True)
    assert not sum(story.cluster.broker(name).status().queued for name in names)


def one_of_a_cell_has_not_heard() -> None:
    """As above, but b2 misses the acknowledgement of s2 and has no link to request it."""
    story = Story(topology=paper_cells(), pubends=1)
    subscribe(story, "s1", "b")
    for link in (("p1", "b2"), ("b2", "s2"), ("b1", "s1")):
        story.cluster.link(*link).cut()
    story.cluster.publish("p1", kind="b")
    story.lose("b1", "b2", Done)
    story.cluster.run_for(0.01)
    late = story.cluster.subscribe("s2", "kind = 'b'")
    story.cluster.run_for(60)
    assert late.started
    assert story.from_to("b2", "s1", Events)
    assert not sum(story.cluster.broker(name).status().queued for name in ("p1", "b1", "b2"))


@pytest.mark.parametrize(
    "story, bug",
    [
        (kept_where_the_pubend_is_done, "retained-events-await-no-ack"),
        (one_of_a_cell_has_not_heard, "sideways-ack-request-unanswered"),
    ],
)
def test_a_broker_requests_acknowledgement_of_events_that_others_have_released(
    story: Callable[[], None], bug: str
) -> None:
    story()
    with plant([MUTANTS[bug]]), pytest.raises(AssertionError):
        story()


def test_events_of_a_closed_session_count_for_no_mark() -> None:
    story = Story()
    late = Events(0, 1, 9, False, True, EVERYWHERE, run_at((3, 6)))
    table = MarkTable(FILTER_MARKS)
    table.step(MarkStep(story.cluster.broker("b1").broker, MessageReceived(0, 99, late), ()))
    assert not any(table.counts.values())


# ---------------------------------------------------------------- subscriptions that start and end


def test_a_subscription_gets_all_that_is_published_after_its_start_and_nothing_else() -> None:
    """Until then, events with the same contents were announced as silence."""
    story = Story()
    subscribe(story, "s1", "b")
    before = [story.cluster.publish("p1", kind=kind) for kind in "abab" * 10]
    story.cluster.run_for(0.003)  # some events are in flight
    late = subscribe(story, "s1", "a")
    after = [story.cluster.publish("p1", kind=kind) for kind in "abab" * 10]
    story.settle()
    got = late.received
    assert got[-20:] == of_kind(after, "abab" * 10, "a")
    wanted_before = of_kind(before, "abab" * 10, "a")
    assert got[:-20] == wanted_before[len(wanted_before) - len(got[:-20]) :]


def test_a_subscription_starts_when_all_pubends_can_be_reached() -> None:
    story = Story()
    story.cluster.broker("s2").kill()
    late = story.cluster.subscribe("s1", "kind = 'a'")
    story.cluster.run_for(20)
    story.publish(2)
    assert not late.started
    story.cluster.broker("s2").start()
    story.cluster.run_for(5)
    assert late.started
    sent = story.publish(2)
    story.settle()
    assert late.received == sent


def begins_while_a_log_is_slow() -> None:
    """Events in flight to the log get lower ticks after a crash, in a burst or by a clock."""
    story = Story(pubends=1)
    subscribe(story, "s2", "b")
    pubend = story.cluster.broker("p1").broker
    pubend.disk.log_lane.hold()
    before = story.cluster.publish_run("p1", contents("a" * 1_000))
    story.cluster.run_for(0.05)
    late = story.cluster.subscribe("s1", "kind = 'a'")
    story.cluster.run_for(0.05)
    assert late.started
    pubend.kill(0)
    pubend._wall_clocks = ClockAt(0)  # type: ignore[assignment]
    pubend.start()
    after = story.publish(3)
    story.settle()
    assert late.received == before + after


def test_a_subscription_begins_behind_nothing_that_a_crash_may_take() -> None:
    begins_while_a_log_is_slow()
    with (
        plant([MUTANTS["volatile-start-of-a-subscription"]]),
        pytest.raises(InvariantViolated, match="misses"),
    ):
        begins_while_a_log_is_slow()


def test_events_are_not_sent_downstream_after_the_last_unsubscribe() -> None:
    story = Story()
    subscribe(story, "s2", "a")
    ends = subscribe(story, "s1", "a")
    story.publish(2)
    story.settle()
    story.cluster.unsubscribe(ends.client.name, ends.number)
    story.cluster.run_until_quiet()
    story.quiet_since()
    story.publish(3)
    story.settle()
    assert not story.from_to("b1", "s1", Events)
    assert len(story.from_to("b1", "s2", Events)) == 3


def test_a_restarted_intermediate_broker_forwards_every_wanted_event() -> None:
    """Broker b1 restarts without filters, again and again, while events flow."""
    story = Story()
    subscribers = subscribe(story, "s1", "b"), subscribe(story, "s2", "a")
    kinds, sent = "ababab" * 10, []
    for place, kind in enumerate(kinds):
        if place % 6 == 5:
            story.cluster.broker("b1").restart()
        sent.append(story.cluster.publish("p1", kind=kind))
        story.cluster.run_for(0.05)
    story.settle()
    assert [each.received for each in subscribers] == [of_kind(sent, kinds, k) for k in "ba"]


# ---------------------------------------------------------------- outdated filters

LEFT, RIGHT = ("b1", "b2"), ("c1", "c2")


class TwoWays(Story):
    """Two routes from p1 to s1 over two cells of two; b2 and c2 lack the second subscription."""

    def __init__(self) -> None:
        bundles = [("p1", "left"), ("left", "right"), ("right", "s1")]
        members = {"left": LEFT, "right": RIGHT}
        names = ["p1", *LEFT, *RIGHT, "s1"]
        super().__init__(topology=tree_of_cells(names, bundles, members), pubends=1)
        self.first = subscribe(self, "s1", "a")
        for link in (("c2", "s1"), ("b2", "c2")):  # a new session begins with all filters
            self.cluster.link(*link).cut()
            self.cluster.run_for(1)
            self.cluster.link(*link).heal()
            self.cluster.run_for(2)
        self.cut = [("p1", "b2"), ("b1", "b2"), ("b2", "c1"), ("b1", "c2"), ("c1", "c2")]
        for a, b in (*self.cut, ("c2", "s1")):
            self.cluster.link(a, b).cut()
        self.cluster.run_for(1)
        self.second = self.cluster.subscribe("s1", "kind = 'b'")
        self.cluster.run_for(1)
        assert self.second.started

    def check(self, kinds: str, sent: list[PublicationHandle]) -> None:
        self.cluster.link("c2", "s1").heal()
        self.cluster.run_for(3)
        self.settle()
        assert self.first.received == of_kind(sent, kinds, "a")
        assert self.second.received == of_kind(sent, kinds, "b")


def a_pubend_comes_back_with_events() -> None:
    story = TwoWays()
    story.cluster.link("p1", "b1").absorb()
    sent = story.cluster.publish_run("p1", contents("abb"))
    story.cluster.run_for(0.1)
    story.cluster.broker("p1").kill()
    story.cluster.link("p1", "b1").heal()
    story.cluster.link("p1", "b1").cut()
    story.cluster.link("p1", "b2").heal()
    story.cluster.broker("p1").start()
    story.cluster.run_for(3)
    sent += story.cluster.publish_run("p1", contents("aba"))
    story.cluster.run_for(1)
    story.check("abbaba", sent)


def what_goes_sideways_is_for_others_too() -> None:
    story = Story(topology=paper_cells(), pubends=1)
    first, second = subscribe(story, "s1", "a"), subscribe(story, "s2", "b")
    story.cluster.link("b1", "s1").cut()
    story.cluster.link("p1", "b2").cut()
    story.cluster.run_for(3)
    sent = story.cluster.publish_run("p1", contents("abba"))
    story.cluster.run_for(1)
    assert story.from_to("b1", "b2", Events)
    story.settle()
    assert first.received == of_kind(sent, "abba", "a")
    assert second.received == of_kind(sent, "abba", "b")


@pytest.mark.parametrize(
    "story, bug",
    [
        (a_pubend_comes_back_with_events, "older-filter-applies"),
        (a_pubend_comes_back_with_events, "filter-is-confirmed-before-it-is-durable"),
        (what_goes_sideways_is_for_others_too, "silence-of-a-cell-sent-to-another"),
    ],
)
def test_an_event_is_not_checked_against_an_older_filter(
    story: Callable[[], None], bug: str
) -> None:
    story()
    with plant([MUTANTS[bug]]), pytest.raises(InvariantViolated, match="silent event"):
        story()
