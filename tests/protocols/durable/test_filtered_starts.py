"""Filters between brokers of durable: events that no subscription wants do not pass a link.

A subscription starts once all pubends match their events with its predicate.

Paper: [GD02] §2.1 (filters at brokers); [DS03] §4.1 (a new subscriber's starting point).
"""

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.client_messages import Gap
from brokerd.protocols.durable.messages import LOST, Fetch
from brokerd.protocols.durable.parameters import DurableParameters
from brokerd.protocols.gryphon import BEGINS
from brokerd.protocols.gryphon.messages import AckExpected, Done, Events, FilterChange, Silent
from brokerd.protocols.registry import definition_of
from brokerd.simulator.checks.liveness import WhileBroken
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.cluster import NotQuietError
from brokerd.units import MILLISECOND_NS, SECOND_NS
from tests.helpers.durable_stories import DurableStory, fails
from tests.helpers.gryphon_stories import cells, paper_cells

MUTANTS = bugs_of("durable")
FILTERED = {"filters": True, "delay_curiosity_ns": 400 * MILLISECOND_NS}


class FilteredStory(DurableStory):
    """A durable story with filters, on one path with two subscribers' brokers; one pubend each."""

    looks_inside = True

    def __init__(self, **parameters) -> None:
        super().__init__(**{"pubends": 1, **FILTERED, **parameters})

    def send(self, kind: str, count: int = 1) -> list:
        """Publish events of a kind, one after another."""
        sent = []
        for _ in range(count):
            sent.append(self.note_published(self.cluster.publish("p1", kind=kind)))
            self.cluster.run_for(0.02)
        return sent

    def filters_of(self, at: str, of: str) -> int:
        """Return the number of predicates in a broker's filter, as another broker has it."""
        number = self.cluster.topology.number_of(of)
        known = self.core(at).gryphon.filters.predicates(number)
        return -1 if known is None else len(known)


def withheld() -> bool:
    """Publish what nobody wants, in front of and behind an event that a subscriber wants."""
    story = FilteredStory()
    subscriber = story.subscriber("s1", "kind = 'b'")
    story.quiet_since()
    story.send("a", 20)
    story.cluster.run_for(5)
    assert not story.from_to("p1", "b1", Events)
    assert story.from_to("b1", "s1", Silent), "the broker asks for what it has no news of"
    assert story.kept("p1") == 0
    sent = story.send("b")
    story.settle()
    assert not story.from_to("b1", "s2", Events)
    return subscriber.received == sent


def test_events_without_a_subscriber_do_not_pass_a_link_and_are_released() -> None:
    assert withheld()


def test_events_for_a_subscriber_that_is_away_pass_and_wait_for_it() -> None:
    story = FilteredStory()
    away = story.subscriber("s1", "kind = 'b'")
    link = story.away(away)
    story.send("a", 5)
    sent = story.send("b", 5)
    story.cluster.run_for(3)
    assert story.logged("s1", "matches.0.0") == 5
    link.heal()
    story.settle()
    assert away.received == sent


def restarted() -> bool:
    """Restart the broker of a subscriber that is away, and publish for it."""
    story = FilteredStory()
    away = story.subscriber("s1", "kind = 'b'")
    link = story.away(away)
    broker = story.cluster.broker("s1")
    broker.kill()
    sent = story.send("b", 3)
    broker.start()
    story.cluster.run_for(2)
    sent += story.send("b", 3)
    link.heal()
    story.settle()
    return away.received == sent


def test_a_restart_keeps_the_filter_of_subscribers_that_are_away() -> None:
    assert restarted()
    with plant([MUTANTS["predicates-are-not-restored"]]):
        assert fails(restarted)


def moved_behind_withheld_events() -> bool:
    """Move a subscription to a broker from which its events were withheld so far."""
    story = FilteredStory(commit_interval_ns=20 * MILLISECOND_NS)
    mover, other = story.subscriber("s1", "kind = 'a'"), story.subscriber("s2", "kind = 'b'")
    first = story.send("a")
    story.send("b")
    story.cluster.run_for(3)
    story.away(mover)
    sent = story.send("a", 5)
    story.quiet_since()
    story.cluster.transfers.reattach(mover.client.name, "s2")
    story.cluster.run_for(0.3)
    sent += story.send("a", 5)
    story.settle()
    assert len(other.received) == 1
    assert story.from_to("s2", "b1", Fetch)
    return mover.received == first + sent


def test_a_subscription_that_moves_receives_what_its_new_broker_was_not_sent() -> None:
    assert moved_behind_withheld_events()
    with plant([MUTANTS["starts-before-the-streams-pass"]]):
        assert fails(moved_behind_withheld_events)


def test_a_subscription_starts_while_the_route_changes_and_misses_nothing_from_then_on() -> None:
    story = FilteredStory(topology=paper_cells())
    other = story.subscriber("s3", "kind = 'a'")
    story.cluster.link("p1", "b1").cut()
    subscriber = story.cluster.subscribe("s1", "kind = 'a'")
    sent = story.send("a", 3)
    story.cluster.broker("b2").kill()
    story.cluster.link("p1", "b1").heal()
    story.cluster.run_for(3)
    sent += story.send("a", 20)
    story.settle()
    assert other.received == sent
    assert subscriber.received == sent[-len(subscriber.received) :]
    assert len(subscriber.received) >= 20


def away_while_unwanted_events_are_released() -> bool:
    """Release events of a subscriber that is away, and later ones that nobody wants."""
    story = FilteredStory(
        max_retain_ns=SECOND_NS, release_grace_ns=SECOND_NS, delay_curiosity_ns=60 * SECOND_NS
    )
    away = story.subscriber("s1", "kind = 'b'")
    link = story.away(away)
    lost = story.send("b", 5) + story.send("a", 5)
    story.cluster.run_for(5)
    assert story.kept("p1") == 0
    link.heal()
    story.cluster.run_for(2)
    kept = story.send("b", 2)
    story.settle()
    gaps = [each.item for each in story.given if type(each.item) is Gap]
    assert [gap.reason for gap in gaps] == [LOST]
    assert story.told(away) == [(lost[0].sequence, lost[-1].sequence)]
    return away.received == kept


def test_unwanted_events_behind_the_released_ones_are_no_lost_state() -> None:
    """Seed 64005026: the broker knew none of them, and took their release for its own loss."""
    assert away_while_unwanted_events_are_released()
    with plant([MUTANTS["unwanted-events-count-as-lost-state"]]):
        assert fails(away_while_unwanted_events_are_released)


def begun_without_positions() -> bool:
    """Start a subscription behind events, and restart its broker."""
    story = FilteredStory()
    story.subscriber("s1", "kind = 'a'")
    story.send("a", 3)
    story.subscriber("s1", "kind = 'b'")
    before = [dict(each.begins_after) for each in story.core("s1").registered.present.values()]
    broker = story.cluster.broker("s1")
    broker.kill()
    broker.start()
    story.settle()
    after = [dict(each.begins_after) for each in story.core("s1").registered.present.values()]
    return before == after == [{}, {}]


def test_a_started_subscription_keeps_no_beginnings() -> None:
    """Seed 64005039: only the subscriptions of a restart had none."""
    assert begun_without_positions()
    with plant([MUTANTS["beginnings-outlive-the-start"]]):
        assert fails(begun_without_positions)


def changed_in_catch_up() -> bool:
    """Begin and end other subscriptions at a broker while one of it catches up."""
    story = FilteredStory(catchup_batch=3)
    away, leaver = story.subscriber("s1", "kind = 'a'"), story.subscriber("s1", "kind = 'b'")
    link = story.away(away)
    sent = story.send("a", 30)
    story.cluster.run_for(2)
    link.heal()
    story.wait_for(lambda: len(away.received) > 3)
    story.cluster.unsubscribe(leaver.client.name, leaver.number)
    late = story.cluster.subscribe("s1", "kind = 'c'")
    sent += story.send("a", 5)
    story.cluster.run_for(2)
    wanted = story.send("c", 2)
    story.settle()
    assert story.filters_of("p1", "s1") == 2
    return away.received == sent and late.received == wanted


def test_filters_change_during_catch_up() -> None:
    assert changed_in_catch_up()


def left_while_waiting() -> bool:
    """Close the session of a client whose subscription waits for an unreachable pubend."""
    story = FilteredStory()
    link = story.cluster.link("p1", "b1").cut()
    story.cluster.run_for(1)
    subscriber = story.cluster.subscribe("s1", "kind = 'a'")
    story.cluster.run_for(1)
    assert story.filters_of("b1", "s1") == 1
    assert not story.core("s1").registered.present, "it waits"
    client = story.away(subscriber)
    assert story.filters_of("b1", "s1") == 0
    link.heal()
    client.heal()
    story.settle()
    sent = story.send("a", 2)
    story.settle()
    assert story.from_to("s1", "b1", FilterChange)
    return subscriber.received == sent


def test_a_subscription_waits_for_all_pubends_and_ends_with_its_client_meanwhile() -> None:
    assert left_while_waiting()
    with plant([MUTANTS["a-start-outlives-its-client"]]):
        assert fails(left_while_waiting)


def test_the_end_of_a_subscription_removes_its_beginning() -> None:
    story = FilteredStory()
    subscriber = story.subscriber("s1", "kind = 'a'")
    broker = story.cluster.broker("s1").broker
    assert len(broker.disk.recovered()[BEGINS]) == 1
    story.cluster.unsubscribe(subscriber.client.name, subscriber.number)
    story.send("a")
    story.settle()
    assert not broker.disk.recovered().get(BEGINS)
    assert story.filters_of("p1", "s1") == 0


def decommissioned_with_an_ack() -> bool:
    """Decommission a broker while the members of a cell owe each other an ack of its cell."""
    story = FilteredStory(topology=paper_cells())
    other = story.subscriber("s2", "kind = 'a'")
    story.cluster.broker("s1").kill()
    story.cluster.run_for(3)
    sent = [story.note_published(story.cluster.publish("p1", kind="a"))]
    story.wait_for(lambda: bool(story.from_to("p1", "b1", Events)))
    assert not story.cluster.membership.decommission("s1")
    sent += story.send("a", 2)
    story.settle()
    core, number_of = story.core("b1").gryphon, story.cluster.topology.number_of
    cell = story.core("p1").gryphon._routes.cell_of(number_of("s1"))
    last = next(each for each in core.streams if each.identity.broker == number_of("p1"))
    acks = ((last.identity, last.knowledge.final + 1),)
    core.on_done(number_of("b2"), Done(cell, acks))  # it has not been notified yet
    return other.received == sent and story.kept("p1") == 0


def decommissioned_with_a_request() -> bool:
    """Decommission a broker while a member of a cell requests acks of its cell from the other."""
    story = FilteredStory(topology=paper_cells(), filters=False)
    other = story.subscriber("s2")
    sent = story.send("a")
    story.cluster.broker("s1").kill()
    story.cluster.run_for(3)
    assert not story.cluster.membership.decommission("s1")
    sent += story.send("a", 2)
    story.settle()
    core, number_of = story.core("b1").gryphon, story.cluster.topology.number_of
    last = next(each for each in core.streams if each.identity.broker == number_of("p1"))
    cell = core._routes.cell_of(number_of("s1"))
    request = AckExpected(last.identity, last.knowledge.final + 1, cell)
    core._on_ack_expected(number_of("b2"), request)  # b2 has not been notified yet
    return other.received == sent and story.kept("p1") == 0


def decommissioned_with_a_release() -> bool:
    """Decommission a broker whose released tick one member of a cell has not forwarded yet."""
    story = FilteredStory(topology=paper_cells(), filters=False, ack_interval_ns=SECOND_NS)
    other = story.subscriber("s2")
    cell = story.core("b1")._routes.cell_of(story.cluster.topology.number_of("s1"))
    sent = story.send("a")
    story.wait_for(lambda: cell in story.core("b1").release._beside)
    story.cluster.broker("s1").kill()
    story.cluster.run_for(0.1)
    assert not story.cluster.membership.decommission("s1")
    sent += story.send("a", 2)
    story.settle()
    return other.received == sent


@pytest.mark.parametrize(
    "story, bug",
    [
        (decommissioned_with_an_ack, "acks-of-a-decommissioned-cell"),
        (decommissioned_with_an_ack, "repeated-acks-of-a-decommissioned-cell"),
        (decommissioned_with_a_request, "decommissioned-cell-is-no-target"),
        (decommissioned_with_a_release, "releases-of-a-decommissioned-cell"),
    ],
)
def test_nothing_of_a_decommissioned_cell_is_forwarded_within_a_cell(story, bug: str) -> None:
    """Seed 68001031, with filters: a broker stopped with a fault."""
    assert story()
    with plant([MUTANTS[bug]]), pytest.raises((KeyError, RemoteProtocolError)):
        story()


def demanded_without_a_link(*, moves: bool) -> bool:
    """Return True if a started subscription is owed events beside a pubend out of reach for ever.

    Args:
        moves: the client has moved since, and its subscription may not start there.
    """
    story = FilteredStory()
    subscriber = story.subscriber("s1", "kind = 'a'")
    story.cluster.link("p1", "b1").cut()
    story.cluster.run_for(1)
    if moves:
        story.cluster.transfers.reattach(subscriber.client.name, "s2")
        story.cluster.run_for(1)
    story.cluster.publish("s2", kind="a")
    numbers = tuple(map(story.cluster.topology.number_of, ("p1", "b1")))
    found = WhileBroken(story.cluster, [numbers]).missing()
    return any(f"{subscriber.client.name}/1 misses" in each for each in found)


@pytest.mark.parametrize("moves", [False, True])
def test_only_a_subscription_at_its_present_broker_is_owed_events_beside_a_lost_pubend(
    moves: bool,
) -> None:
    assert demanded_without_a_link(moves=moves) is not moves


def test_filters_need_a_bound_for_silence_and_refuse_losses_of_brokers_with_clients() -> None:
    with pytest.raises(ConfigError, match="filters = true and delay_curiosity_ns = 0"):
        DurableParameters(filters=True).check("here")
    DurableParameters(**FILTERED).check("here")
    why = definition_of("durable").keeps_loss
    topology = paper_cells()
    for name, filtered, refuses in (("s1", True, True), ("s1", False, False), ("b1", True, False)):
        chosen = DurableParameters(**{**FILTERED, "filters": filtered})
        assert bool(why(topology, chosen, topology.number_of(name))) == refuses
    assert not why(cells("p1-s1"), DurableParameters(), 0)


def moved_with_a_commit() -> bool:
    """Move a consumer whose commit has not been answered to a broker without its predicate."""
    story = FilteredStory()
    subscription = story.cluster.consume("s1", "kind = 'a'", uncommitted=1)
    story.cluster.run_until_quiet()
    sent = story.send("a", 3)
    sent.append(story.cluster.publish("p1", kind="a"))
    story.wait_for(lambda: subscription.client.waits)
    story.cluster.link(subscription.client.name, "s1").cut()
    story.cluster.transfers.reattach(subscription.client.name, "s2")
    sent += story.send("a", 5)
    story.settle()
    return [*dict.fromkeys(subscription.received)] == sent


def test_a_commit_that_moves_along_is_answered_after_the_start() -> None:
    assert moved_with_a_commit()
    waits = pytest.raises(NotQuietError, match="waits for what it has consumed")
    with plant([MUTANTS["commit-before-the-start-is-ignored"]]), waits:
        moved_with_a_commit()


@pytest.mark.parametrize("starts", [False, True])
def test_a_commit_is_owed_an_answer_once_its_subscription_can_start(starts: bool) -> None:
    """The consumer moves with an unanswered commit, while a pubend is unreachable or not."""
    story = FilteredStory()
    subscription = story.cluster.consume("s1", "kind = 'a'", uncommitted=1)
    story.cluster.run_until_quiet()
    story.send("a", 3)
    story.cluster.publish("p1", kind="a")
    story.wait_for(lambda: subscription.client.waits)
    story.cluster.link(subscription.client.name, "s1").cut()
    story.cluster.link("p1", "b1").cut()
    story.cluster.transfers.reattach(subscription.client.name, "s2")
    story.cluster.run_for(2)
    number_of = story.cluster.topology.number_of
    broken = [] if starts else [(number_of("p1"), number_of("b1"))]
    waits = f"{subscription.client.name} waits for what it has consumed to be committed"
    assert (waits in WhileBroken(story.cluster, broken).missing()) is starts


def limited() -> bool:
    """Request more than permitted: the later subscription could start at once."""
    story = FilteredStory(client_subscriptions=1)
    story.subscriber("s1", "kind = 'a'")
    cluster = story.cluster
    for kind in "ba":
        cluster.subscribe("s1", f"kind = '{kind}'", client="x-s1")
    cluster.run_for(5)
    return [*cluster.clients["x-s1"].started_numbers] == [1]


def test_subscriptions_that_wait_count_against_the_limit_of_a_client() -> None:
    """Seed 71001066: the refusal of the first request arrived after the start of the second."""
    assert limited()
    with plant([MUTANTS["waiting-starts-have-no-limit"]]):
        assert fails(limited)
