"""Cells of several brokers: forwarding, requests and link failures.

The stories use the paper's ten brokers; publishers c0 to c3 have a pubend each.

Paper: [GD02] §3, §4.2.
"""

import pytest

from brokerd.model.identity import StreamId
from brokerd.protocols.gryphon.messages import EVERYWHERE, Done, Events, LinkStatus, Nack
from brokerd.protocols.gryphon.routes import Links, Routes
from brokerd.protocols.registry import definition_of
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from tests.helpers.gryphon_stories import PaperStory, paper_cells

MUTANTS = bugs_of("gryphon")


def test_brokers_of_a_cell_split_the_pubends_without_duplicates() -> None:
    story = PaperStory()
    story.rounds(5)
    for left, right in (("b1", "b3"), ("b2", "b4")):
        ours = [0, 2] if left == "b1" else [1, 3]
        for broker, below in ((left, ("s1", "s2")), (right, ("s3", "s4", "s5"))):
            assert story.first_ways("p1", broker) == ours
            for name in below:
                assert story.first_ways(broker, name) == ours
    assert not story.first_ways("b1", "b2")
    story.check()
    assert not [m for *_, m in story.said if type(m) is Nack]


def test_the_other_broker_of_a_cell_replaces_a_lost_link_until_repair() -> None:
    """The lost events are requested from that broker; the other subscriber is unaffected (Fig. 6).

    The link is silent for 2.4 s, and for another 0.75 s until the failure is detected.
    """
    story = PaperStory()
    link = story.cluster.link("b1", "s1").absorb()
    story.rounds(60)  # 2.4 s
    link.cut()
    story.quiet_since()
    story.rounds(25)
    assert story.requested("s1", "b1") == 0
    assert 2 * 3_100 <= story.requested("s1", "b2") <= 2 * 3_300, "two of four pubends went by b1"
    assert story.requested("b2", "p1") == story.requested("s1")
    assert story.requested("s2") == 0
    story.quiet_since()
    story.rounds(5)
    assert story.first_ways("p1", "b2") == [0, 1, 2, 3], "b2 gets to both of them, b1 does not"
    link.heal()
    story.cluster.run_for(3)
    story.quiet_since()
    story.rounds(5)
    assert story.first_ways("p1", "b2") == [1, 3]
    story.check()


def test_after_a_crash_two_subscribers_gaps_are_one_question_to_the_pubend() -> None:
    """Fig. 7: the range that b2 requests is half of the ranges that s1 and s2 request."""
    story = PaperStory()
    broker = story.cluster.broker("b1")
    links = [story.cluster.link("b1", name).absorb() for name in ("s1", "s2")]
    story.rounds(60)
    broker.kill()
    for link in links:
        link.heal()
    story.quiet_since()
    story.rounds(25)
    below = story.requested("s1", "b2") + story.requested("s2", "b2")
    assert 4 * 2_350 <= below <= 4 * 3_300, "from the first lost event on"
    assert abs(story.requested("b2", "p1") - below / 2) <= below / 20
    story.quiet_since()
    broker.start()
    story.rounds(50)
    story.check()
    assert story.requested("s1") == story.requested("s2") == 0, "that it comes back makes no gap"
    assert story.requested("s3") == 0


def test_messages_between_peers_of_a_cell_are_sent_if_needed_and_never_twice() -> None:
    """Broker b2 is cut off from p1, and b1 from s1: events for s1 take the path p1, b1, b2, s1."""
    story = PaperStory()
    story.cluster.link("p1", "b2").cut()
    story.cluster.link("b1", "s1").cut()
    story.cluster.run_for(1)
    story.quiet_since()
    story.rounds(5)
    story.check()
    assert story.first_ways("b1", "b2") == story.first_ways("b2", "s1") == [0, 1, 2, 3]
    assert not story.first_ways("b2", "s2")
    cell_of_s1 = 2 + 1  # the two cells of several brokers come first, then p1
    assert {m.onto for m in story.from_to("b1", "b2", Events)} == {cell_of_s1}
    assert {m.onto for m in story.from_to("b2", "s1", Events)} == {EVERYWHERE}
    assert not story.from_to("b2", "b1", Events)


def test_a_broker_that_its_cell_cannot_reach_requests_missed_events_on_return() -> None:
    story = PaperStory()
    links = [story.cluster.link(name, "s1") for name in ("b1", "b2")]
    for link in links:
        link.cut()
    story.cluster.run_for(1)
    story.quiet_since()
    story.rounds(5)
    assert not story.from_to("b1", "b2", Events), "neither of them gets to s1"
    for link in links:
        link.heal()
    story.rounds(1)
    story.check()


def test_a_log_is_truncated_despite_acknowledgements_to_different_brokers() -> None:
    story = PaperStory()
    story.cluster.link("b1", "s1").cut()
    story.cluster.link("b2", "s2").cut()
    story.cluster.run_for(2)
    story.quiet_since()
    story.rounds(5)
    story.check()
    assert not story.from_to("s1", "b1", Done)
    assert not story.from_to("s2", "b2", Done)
    assert story.cluster.broker("p1").status().queued == 0
    assert story.from_to("b1", "b2", Done)


def test_a_broker_without_a_route_asks_all_upstream_brokers_and_receives_once() -> None:
    """A subscriber's broker restarts without a route for the stream."""
    story = PaperStory()
    story.cluster.broker("s1").kill()
    story.rounds(3)
    story.cluster.broker("s1").start()
    story.quiet_since()
    story.rounds(1)
    story.check()


def test_several_brokers_receive_a_stream_if_none_reaches_all_children() -> None:
    """Broker b1 reaches s2 only, b2 reaches s1 only, and they do not reach each other."""
    routes = Routes(0, paper_cells(), 4)
    links = Links(routes, routes.neighbours)
    left, s1, s2 = 0, 3, 4
    stream = StreamId(0, 0, 0)
    assert links.down(stream, left) == ((1, EVERYWHERE),)
    assert links.down(StreamId(0, 1, 0), left) == ((2, EVERYWHERE),)
    links.record_cells(1, LinkStatus((s2,), (s1,)))
    links.record_cells(2, LinkStatus((s1,), (s2,)))
    assert links.down(stream, left) == ((1, EVERYWHERE),)
    links.record_cells(1, LinkStatus((s2,), ()))
    assert links.down(stream, left) == ((1, EVERYWHERE), (2, EVERYWHERE))
    links.record_cells(2, LinkStatus((s1, s2), ()))
    assert links.down(stream, left) == ((2, EVERYWHERE),), "it gets to more"
    links.on_session_change(1)
    assert links.down(stream, left) == ((1, EVERYWHERE),), "nothing was said on its new session"


def test_found_routes_are_as_many_as_pubends_and_brokers() -> None:
    """The last sender of a stream changes, and messages pass sideways or not."""
    topology, pubends = paper_cells(), 17
    b1, s1 = (Routes(broker, topology, pubends) for broker in (1, 5))
    for routes in (b1, s1):
        links = Links(routes, routes.neighbours)
        for stream in routes.pubend_streams():
            upstream, children = routes.of(stream)
            for sideways in (False, True):
                for cell in children:
                    assert links.down(stream, cell, sideways=sideways)
                for via in (None, *routes.neighbours) if upstream is not None else ():
                    asked = links.up(stream, via, sideways=sideways)
                    assert asked == (via,) or via not in asked
        assert len(links.senders) <= len(routes.hosts)
        assert len(links.receivers) <= pubends * len(routes.cells)


def no_broker_gets_to_both() -> bool:
    """Return True if all events arrive when b1 reaches s2 only and b2 reaches s1 only."""
    story = PaperStory()
    for link in (("b1", "s1"), ("b2", "s2"), ("b1", "b2")):
        story.cluster.link(*link).cut()
    story.cluster.run_for(2)
    story.rounds(5)
    story.cluster.run_for(10)
    return all(len(each.received) == len(story.sent) for each in story.subscribers)


def test_all_events_arrive_if_no_broker_of_a_cell_reaches_all() -> None:
    assert no_broker_gets_to_both()
    with plant([MUTANTS["one-member-serves-all"]]):
        assert not no_broker_gets_to_both()


def one_cell_is_behind() -> bool:
    """Return True if s2 receives missing events from b2 that s1 has acknowledged already."""
    story = PaperStory()
    story.cluster.link("p1", "b2").cut()
    story.cluster.link("b1", "s1").cut()
    story.cluster.run_for(1)
    link = story.cluster.link("b1", "s2").absorb()
    story.rounds(10)
    link.cut()
    story.rounds(10)
    story.cluster.run_for(15)
    return all(len(each.received) == len(story.sent) for each in story.subscribers)


def test_events_final_in_one_cell_still_reach_another_cell() -> None:
    assert one_cell_is_behind()
    with (
        plant([MUTANTS["final-of-a-cell-sent-to-another"]]),
        pytest.raises(InvariantViolated, match="gap"),
    ):
        one_cell_is_behind()


def test_clients_are_refused_where_a_broker_is_one_of_several() -> None:
    homes = definition_of("gryphon").homes(paper_cells())
    assert homes == ("p1", "s1", "s2", "s3", "s4", "s5")


def only_sideways(*, loses: bool) -> bool:
    """Return True if s1 receives all events by p1, b1, b2.

    If `loses`, events that were lost between b1 and b2 are included.
    """
    story = PaperStory()
    story.cluster.link("p1", "b2").cut()
    story.cluster.link("b1", "s1").cut()
    story.cluster.run_for(1)
    link = story.cluster.link("b1", "b2")
    if loses:
        link.absorb()
        story.rounds(3)
        link.cut()
        story.cluster.run_for(0.2)
        link.heal()
        story.cluster.run_for(3)
    story.rounds(3)
    story.cluster.run_for(15)
    return all(len(each.received) == len(story.sent) for each in story.subscribers)


@pytest.mark.parametrize(
    "bug, loses", [("never-sideways", False), ("sideways-requests-are-dropped", True)]
)
def test_events_and_requests_pass_between_peers_of_a_cell(bug: str, loses: bool) -> None:
    assert only_sideways(loses=loses)
    with plant([MUTANTS[bug]]):
        assert not only_sideways(loses=loses)


def sideways_before_anybody_knows(delay_ms: int) -> PaperStory:
    """Cut b1 off from s1, and notify p1 late: events for s1 take the path b1, b2 meanwhile."""
    story = PaperStory()
    story.cluster.link("p1", "b1").delay(delay_ms * 1_000_000)
    story.cluster.link("b1", "s1").cut()
    story.cluster.link("b1", "s1").suspect()
    story.cluster.link("s1", "b1").suspect()
    story.quiet_since()
    return story


def test_events_sent_before_a_link_loss_is_reported_pass_over_a_peer() -> None:
    story = sideways_before_anybody_knows(30)
    story.rounds(1, pause_s=0.1)
    cell_of_s1 = 2 + 1
    (told,) = {m.onto for m in story.from_to("b1", "b2", Events)}
    assert told == cell_of_s1
    assert story.first_ways("b1", "b2") == [0, 2], "those that came by b1"
    assert not [m for m in story.from_to("b2", "s2", Events) if m.run.source.publisher in (0, 2)]
    assert story.first_ways("b1", "s2") == [0, 2], "s2 gets them as ever"
    story.quiet_since()
    story.rounds(3)
    assert not story.from_to("b1", "b2", Events), "by now p1 knows"
    assert story.first_ways("p1", "b2") == [0, 1, 2, 3]
    assert not story.times_ms("s1", Nack), "nothing was lost"
    story.check()
