"""Cells of several brokers on the route of durable subscriptions.

The stories use the paper's ten brokers: p1, the cells b1 and b2, b3 and b4, and s1 to s5.

Paper: [GD02] §3 (cells, sideways routing); [DS03] leaves redundant brokers to [GD02].
"""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import ConfigError, RemoteProtocolError
from brokerd.model.identity import StreamId
from brokerd.protocols.durable.messages import Fetch, Fetched, Hold, Released
from brokerd.protocols.gryphon.checks.planning import tree_of_cells
from brokerd.protocols.interface import MessageReceived, SessionEstablished
from brokerd.protocols.registry import definition_of
from brokerd.simulator.named_bugs import bugs_of, plant
from tests.helpers.durable_cores import core_of, handle
from tests.helpers.durable_stories import DurableStory, fails
from tests.helpers.gryphon_stories import cells, paper_cells

MUTANTS = bugs_of("durable")


class CellStory(DurableStory):
    """A durable story on the paper's brokers: subscribers at s1 and s3, one pubend at each."""

    looks_inside = True

    def __init__(self, **parameters) -> None:
        super().__init__(topology=paper_cells(), pubends=1, **parameters)
        self.away_one, self.other = self.subscriber("s1"), self.subscriber("s3")
        self.sent = self.publish(3)

    def miss(self, count: int = 30):
        """Publish while the subscriber at s1 is absent; return its link."""
        link = self.away(self.away_one)
        self.sent += self.publish(count, pause_s=0.01)
        self.cluster.run_for(3)
        return link

    def fail(self, a: str, b: str) -> None:
        """Close a link; both ends detect the loss at once."""
        self.cluster.link(a, b).cut().suspect()
        self.cluster.link(b, a).suspect()

    def has_all(self) -> bool:
        return self.away_one.received == self.sent == self.other.received

    def is_released(self) -> bool:
        """Return whether the publishers' broker retains nothing."""
        self.cluster.run_for(3)
        return self.kept("p1") == 0


def killed_in_catch_up() -> bool:
    """Kill the broker that forwards the answers of a catch-up stream, for ever."""
    story = CellStory(catchup_batch=5, nack_repetition_ns=5_000_000_000)
    link = story.miss()
    story.quiet_since()
    link.heal()
    story.wait_for(lambda: len(story.away_one.received) > 10)
    story.cluster.broker("b1").kill()
    took_ms = story.wait_for(story.has_all)
    assert story.from_to("s1", "b1", Fetch)
    assert story.from_to("s1", "b2", Fetch)
    return took_ms < 2_000 and story.is_released()


def test_a_catch_up_stream_continues_over_the_other_broker_of_a_cell_at_once() -> None:
    assert killed_in_catch_up()


def test_a_catch_up_stream_waits_if_the_end_of_a_session_repeats_no_request() -> None:
    with plant([MUTANTS["fetches-wait-for-the-lost-neighbour"]]):
        assert fails(killed_in_catch_up)


def around_both() -> bool:
    """Cut the links p1-b1 and b2-s1: requests pass s1, b1, b2, p1, and answers return there."""
    story = CellStory()
    link = story.miss()
    story.fail("p1", "b1")
    story.fail("b2", "s1")
    story.cluster.run_for(1)
    story.quiet_since()
    link.heal()
    story.wait_for(story.has_all)
    assert story.from_to("b1", "b2", Fetch)
    assert story.from_to("b2", "b1", Fetched)
    assert not story.from_to("b2", "b1", Fetch), "a request goes sideways once"
    return story.is_released()


def test_requests_and_released_ticks_pass_a_cell_sideways() -> None:
    assert around_both()


@pytest.mark.parametrize("name", ["fetches-never-sideways", "released-ticks-are-not-sent-sideways"])
def test_without_sideways_messages_a_cell_with_cut_links_stops(name: str) -> None:
    with plant([MUTANTS[name]]):
        assert fails(around_both)


def moved_meanwhile() -> bool:
    """Move a subscription to another broker behind the cell while one of the cell is down."""
    story = CellStory()
    story.miss()
    story.cluster.broker("b1").kill()
    story.cluster.transfers.reattach(story.away_one.client.name, "s2")
    story.sent += story.publish(5)
    story.wait_for(story.has_all)
    story.cluster.run_for(10)
    assert not story.core("p1").holds
    assert not story.core("s2").arrivals
    return story.is_released()


def test_a_subscription_moves_while_a_broker_of_the_cell_is_down() -> None:
    assert moved_meanwhile()


def test_a_hold_that_a_removal_has_overtaken_is_not_set_again() -> None:
    """Requests of one arrival may take different routes; the hold would last for its lease."""

    def is_removed() -> bool:
        core = core_of(0, cells("p1-b1", "b1-s1"))
        core.handle(SessionEstablished(1, 11, 1), 0)
        behind = ((StreamId(0, 0, 0), 0),)
        for ticks in (behind, (), behind):
            handle(core, MessageReceived(1, 11, Hold(0, 2, "c", 1, 1, ticks, 1, 4)))
        assert not core.holds
        handle(core, MessageReceived(1, 11, Hold(0, 2, "c", 1, 1, behind, 1, 5)))
        return len(core.holds) == 1

    assert is_removed()
    with plant([MUTANTS["late-hold-is-set"]]):
        assert fails(is_removed)


def test_a_broker_without_clients_does_not_wait_for_its_own_disk() -> None:
    with plant([MUTANTS["a-route-holds-back"]]):
        assert fails(moved_meanwhile)


def decommissioned(then: str = "") -> bool:
    """Decommission the only broker with subscribers behind a cell of two brokers.

    Args:
        then: the next event. "restart": the brokers of the cell create their streams again.
            "cut": they do not receive the last events.
    """
    bundles = [("p1", "left"), ("left", "s1")]
    topology = tree_of_cells(["p1", "b1", "b2", "s1"], bundles, {"left": ["b1", "b2"]})
    story = DurableStory(topology=topology, pubends=1)
    lost, other = story.subscriber("s1"), story.subscriber("p1")
    sent = story.publish(3)
    story.cluster.run_for(3)
    story.away(lost)
    story.cluster.broker("s1").kill()
    sent += story.publish(3)
    story.cluster.run_for(3)
    assert story.kept("p1") == 3
    assert not story.cluster.membership.decommission("s1")
    story.cluster.run_for(1)
    for broker in ("b1", "b2") if then == "restart" else ():
        story.cluster.broker(broker).restart()
    links = [story.cluster.link("p1", each).cut() for each in ("b1", "b2") if then == "cut"]
    sent += story.publish(3)
    story.cluster.run_for(5)
    for link in links:
        link.heal()
        story.cluster.run_for(5)
    return other.received == sent and story.kept("p1") == story.kept("b1") == 0


def test_a_cell_without_a_broker_below_holds_nothing_back() -> None:
    """Seed 64005047: the cell had nothing to wait for, and stopped with a fault."""
    assert decommissioned()
    with plant([MUTANTS["a-cell-waits-for-no-cell"]]), pytest.raises(ValueError, match="empty"):
        decommissioned()


@pytest.mark.parametrize(
    "then, bug",
    [
        ("restart", "decommissioned-cell-in-new-streams"),
        ("cut", "a-cell-waits-for-unrequested-events"),
    ],
)
def test_a_cell_without_a_broker_below_acknowledges_everything(then: str, bug: str) -> None:
    """Seed 71502037: streams began after the decommission, and last events did not arrive."""
    assert decommissioned(then)
    with plant([MUTANTS[bug]]):
        assert fails(lambda: decommissioned(then))


def lossy_start() -> bool:
    """Start a broker of the cell on an empty disk, with the loss accepted."""
    story = CellStory()
    broker = story.cluster.broker("b1").broker
    broker.kill()
    broker.accept_loss()
    story.cluster.run_for(1)
    story.sent += story.publish(5)
    story.settle()
    return not story.from_to("b1", "p1", Hold) and story.has_all()


def test_a_broker_without_clients_asks_for_no_holds_after_a_loss() -> None:
    """Seed 64001057: its question named a broker that can have no holds, and ended sessions."""
    assert lossy_start()
    ends = pytest.raises(RemoteProtocolError, match="no pubend has the stream")
    with plant([MUTANTS["brokers-without-clients-request-holds"]]), ends:
        lossy_start()


def test_only_a_cell_and_its_peers_release_for_the_cell() -> None:
    core = core_of(0, cells("p1-b1", "b1-s1"))
    core.handle(SessionEstablished(1, 11, 1), 0)
    with pytest.raises(RemoteProtocolError, match="releases for cell 2"):
        core.handle(MessageReceived(1, 11, Released(2, ())), 0)


@pytest.mark.parametrize("late", [0, 4])
def test_a_late_report_of_a_peer_lowers_no_released_tick(late: int) -> None:
    """b1 forwards an earlier report of s1 to b2, which has a later one of s1 itself."""
    topology = paper_cells()
    p1, b1, b2, s1 = map(topology.number_of, ("p1", "b1", "b2", "s1"))
    core: Any = core_of(b2, topology)
    for peer in (p1, b1, s1):
        core.handle(SessionEstablished(peer, 10 + peer, 1), 0)
    stream, cell = StreamId(p1, 0, 0), core.release._routes.cell_by_broker[s1]
    for peer, tick in ((s1, 4), (s1, 9), (b1, late)):
        core.handle(MessageReceived(peer, 10 + peer, Released(cell, ((stream, tick),))), 0)
    assert core.release.below(cell, SimpleNamespace(identity=stream)) == 9


def test_a_broker_of_a_redundant_cell_is_not_decommissioned() -> None:
    topology = paper_cells()
    check = definition_of("durable").check_decommission
    with pytest.raises(ConfigError, match="b1 is one of several brokers of cell 'left'"):
        check(topology, topology.number_of("b1"), "here")
    check(topology, topology.number_of("s1"), "here")
