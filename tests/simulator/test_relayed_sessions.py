"""Tests of sessions over a third broker: no delivery waits for up to δ links that stay down.

Every story runs with the strict oracle, and each necessary rule has a mutant.

Paper: [DFT11] abstract (δ concurrent failures of brokers and links), §II (one-sided activity).
"""

import pytest

from bench.papers.dft11.stalls import count_stalls, total_stalls
from brokerd.errors import ConfigError
from brokerd.overlay.topology import Topology
from brokerd.protocols.delta_tree.parameters import DeltaTreeParameters
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.handles import PublicationHandle
from brokerd.units import MILLISECOND_NS, SECOND_NS
from tests.helpers.cluster import STEADY, chain, star, tree
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants


class Story:
    """A cluster in which every broker subscribes to everything and publishes."""

    def __init__(self, topology: Topology, assist: str = "on") -> None:
        parameters = DeltaTreeParameters(delta=topology.delta, assist=assist)
        self.cluster = SimulatedCluster(topology, network=STEADY, parameters=parameters).start()
        self.heard = {name: self.cluster.subscribe(name) for name in topology.brokers}
        for name in topology.brokers:
            self.cluster.client(f"p-{name}", name, publishes=True)
        self.cluster.run_until_quiet()

    def publish(self) -> list[PublicationHandle]:
        """Publish one publication at every broker."""
        return [self.cluster.publish(name, n=1) for name in self.heard]

    def waiting(self) -> list[str]:
        """Return the owed deliveries that are missing."""
        return self.cluster.oracle.obligations.describe_undelivered()

    def relayed(self, name: str) -> list[str]:
        """Return the peers of a broker's relayed sessions."""
        status = self.cluster.broker(name).status()
        return [self.cluster.topology.brokers[peer] for peer in status.detail["relayed"]]

    def end(self) -> None:
        """Run until quiet; check that no delivery is missing and no relayed session remains."""
        self.cluster.run_until_quiet()
        self.cluster.oracle.judge_end()
        self.cluster.inspection.check_internals()
        assert self.cluster.statistics()["queue_publications"] == 0
        assert [name for name in self.heard if self.relayed(name)] == []


@pytest.mark.sampled
@pytest.mark.parametrize("delta", [1, 2, 3])
def test_nothing_waits_for_up_to_delta_links_that_stay_down(delta: int) -> None:
    """Links fail in one direction or both, silently or not; without relays a fifth would wait."""
    seeds = range(4)
    without = total_stalls(count_stalls(seed, delta, "off") for seed in seeds)
    assert without["stalled"] > len(seeds) // 2, without
    assert without["missing"] > without["owed"] // 20, without
    stories = [count_stalls(seed, delta, "on") for seed in seeds]
    assert [story for story in stories if story.is_stalled] == []
    assert sum(story.owed for story in stories) == without["owed"]


@pytest.mark.parametrize("which", ["both", "out", "in"])
def test_brokers_at_a_cut_link_exchange_messages_through_a_relay(which: str) -> None:
    story = Story(chain("b1", "b2", "b3"))
    story.cluster.link("b1", "b2").cut(which)
    story.cluster.run_for(3)
    assert story.relayed("b1") == ["b2"]
    assert story.relayed("b2") == ["b1"]
    story.publish()
    story.cluster.run_for(0.1)
    assert story.waiting() == []
    story.cluster.link("b1", "b2").heal()
    story.end()


def test_a_leaf_behind_a_cut_link_is_served_by_the_bypassing_broker() -> None:
    """The demo's cut: s3 has the link to b3 alone, and p1 is two links away."""
    story = Story(tree("p1-b3", "b3-s3", "b3-s4", "b3-b4"))
    story.cluster.link("b3", "s3").cut()
    story.cluster.run_for(1)
    story.publish()
    story.cluster.run_for(0.5)
    assert story.waiting() == []
    assert story.relayed("s3") == ["b3"]
    story.cluster.link("b3", "s3").heal()
    story.end()


def test_with_delta_two_the_relay_that_is_needed_is_dialled_for_it() -> None:
    """b1 has lost b2 and b3 and reaches only b4, which reaches b2 on request."""
    story = Story(chain("b1", "b2", "b3", "b4", delta=2))
    story.cluster.link("b1", "b2").cut()
    story.cluster.link("b1", "b3").blackhole()
    story.cluster.run_for(6)
    story.publish()
    story.cluster.run_for(0.5)
    assert story.waiting() == []
    assert story.relayed("b1") == ["b2"]
    for far in ("b2", "b3"):
        story.cluster.link("b1", far).heal()
    story.end()


def test_two_brokers_without_a_third_wait_for_their_link() -> None:
    story = Story(chain("b1", "b2"))
    story.cluster.link("b1", "b2").cut()
    story.cluster.run_for(5)
    story.publish()
    story.cluster.run_for(5)
    assert len(story.waiting()) == 4
    assert story.relayed("b1") == []
    story.cluster.link("b1", "b2").heal()
    story.end()


def test_a_subscription_behind_a_cut_link_receives_from_all_sources_at_once() -> None:
    story = Story(chain("b1", "b2", "b3"))
    story.cluster.link("b1", "b2").cut()
    story.cluster.run_for(3)
    late = story.cluster.subscribe("b1", "true", "late")
    story.cluster.run_for(0.1)
    assert late.started
    published = story.publish()
    story.cluster.run_for(0.1)
    assert sorted(late.received, key=str) == published
    assert story.cluster.oracle.gates.describe_closed() == []
    story.cluster.link("b1", "b2").heal()
    story.end()


def test_a_gate_that_closed_before_the_relay_was_found_opens_while_the_link_is_down() -> None:
    """b3 is unreachable when `late` starts; the relay's links return, b2's do not."""
    story = Story(chain("b1", "b2", "b3"))
    for near in ("b1", "b2"):
        story.cluster.link(near, "b3").cut()
    story.cluster.run_for(3)
    late = story.cluster.subscribe("b1", "true", "late")
    story.cluster.run_for(3)
    assert late.started
    assert story.cluster.oracle.gates.describe_closed() != []
    story.cluster.link("b1", "b3").heal()
    story.cluster.run_for(5)
    assert story.relayed("b2") == ["b3"]
    assert story.cluster.oracle.gates.describe_closed() == []
    published = story.publish()
    story.cluster.run_for(0.1)
    assert sorted(late.received, key=str) == published
    story.cluster.link("b2", "b3").heal()
    story.end()


def test_a_broker_behind_a_cut_link_recovers_and_resumes() -> None:
    """The neighbour transfers the lost state through the broker in the middle."""
    story = Story(chain("b1", "b2", "b3"))
    story.cluster.link("b1", "b2").cut()
    story.cluster.run_for(3)
    story.cluster.broker("b1").restart()
    story.cluster.run_for(5)
    assert story.cluster.broker("b1").status().state == "running"
    story.publish()
    story.cluster.run_for(0.5)
    assert story.waiting() == []
    story.cluster.link("b1", "b2").heal()
    story.end()


def test_the_relay_dies_and_another_one_is_found() -> None:
    """Two failures, so δ = 2: the link and the relay."""
    story = Story(star("b1", "b2", "b3", "b4", delta=2))
    story.cluster.link("b1", "b2").cut()
    story.cluster.run_for(3)
    assert story.relayed("b2") == ["b1"]
    story.cluster.broker("b3").kill()
    story.cluster.run_for(3)
    assert story.relayed("b2") == ["b1"]
    for name in ("b1", "b2", "b4"):
        story.cluster.publish(name, n=1)
    story.cluster.run_for(0.1)
    assert [line for line in story.waiting() if "b3" not in line and "unack" not in line] == []
    story.cluster.broker("b3").start()
    story.cluster.link("b1", "b2").heal()
    story.end()


def test_a_link_that_flaps_changes_the_session_less_and_less_often_and_loses_nothing() -> None:
    story = Story(chain("b1", "b2", "b3"))
    link = story.cluster.link("b1", "b2")
    changes = []
    for _ in range(12):
        before = story.cluster.statistics()["relayed_sessions_established"]
        for _ in range(10):
            link.cut()
            story.publish()
            story.cluster.run_for(0.3)
            link.heal()
            story.publish()
            story.cluster.run_for(0.2)
        changes.append(story.cluster.statistics()["relayed_sessions_established"] - before)
    assert changes[-1] <= changes[0] <= 20, changes
    story.end()


def test_a_false_suspicion_ends_with_the_return_of_the_direct_session() -> None:
    story = Story(chain("b1", "b2", "b3"))
    story.cluster.link("b1", "b2").suspect()
    story.publish()
    story.cluster.run_for(0.1)
    assert story.waiting() == []
    assert story.relayed("b1") == []
    story.end()


def _published_over_both_switches() -> None:
    """Break a link during publications, and heal the link during publications.

    The relay is slow, so that some publications are in it when the direct session begins.
    """
    story = Story(chain("b1", "b2", "b3"))
    for _ in range(3):
        story.publish()
    story.cluster.link("b1", "b2").cut()
    for _ in range(3):
        story.publish()
    story.cluster.run_for(3)
    story.cluster.link("b2", "b3").delay(300 * MILLISECOND_NS)
    for _ in range(40):
        story.publish()
        story.cluster.run_for(0.05)
    story.cluster.link("b1", "b2").heal()
    for _ in range(60):
        story.publish()
        story.cluster.run_for(0.05)
    story.cluster.link("b2", "b3").heal()
    story.end()


def test_messages_in_flight_at_either_switch_arrive_once_and_in_order() -> None:
    _published_over_both_switches()


@pytest.mark.parametrize(
    "mutant",
    [Mutant.SWITCHED_UNTOLD, Mutant.NO_RESEND_ON_ACTIVATION, Mutant.RESEND_AFTER_NEWER],
    ids=str,
)
def test_a_switch_without_sending_again_or_out_of_order_is_caught(mutant: Mutant) -> None:
    with pytest.raises((InvariantViolated, AssertionError)), plant_mutants([mutant]):
        _published_over_both_switches()


def _published_over_a_relay_whose_link_blips() -> None:
    """Lose and restore the session between the relay b3 and one of b1 and b2.

    Messages in the relay are lost, so the relayed session must end at both ends.
    """
    for near in ("b2", "b1"):
        story = Story(chain("b1", "b2", "b3"))
        story.cluster.link("b1", "b2").cut()
        story.cluster.run_for(5)
        story.publish()
        story.cluster.run_for(0.001)
        story.cluster.link(near, "b3").cut().heal()
        story.publish()
        story.cluster.run_for(8)
        assert story.waiting() == []
        story.cluster.link("b1", "b2").heal()
        story.end()


def test_a_relayed_session_that_has_lost_something_is_never_continued() -> None:
    """Design rule M3′, for sessions of two legs."""
    _published_over_a_relay_whose_link_blips()


@pytest.mark.parametrize("mutant", [Mutant.RELAY_RESUMES, Mutant.RELAYED_OUTLIVES_LEG], ids=str)
def test_a_relayed_session_that_is_continued_is_caught(mutant: Mutant) -> None:
    with pytest.raises((InvariantViolated, AssertionError)), plant_mutants([mutant]):
        _published_over_a_relay_whose_link_blips()


def _seconds_until_all_is_delivered(topology: Topology, isolated: str) -> float:
    """Cut a broker off for a minute; return the seconds from the heal to complete delivery."""
    story = Story(topology)
    others = [name for name in topology.brokers if name != isolated]
    for name in others:
        story.cluster.link(isolated, name).cut()
    story.cluster.run_for(60.7)
    story.publish()
    story.cluster.run_for(1)
    assert story.waiting()
    began_ns = story.cluster.schedule.now_ns
    for name in others:
        story.cluster.link(isolated, name).heal()
    while story.waiting():
        story.cluster.run_for(0.01)
    taken_s = (story.cluster.schedule.now_ns - began_ns) / SECOND_NS
    story.end()
    return taken_s


def test_the_first_broker_to_notice_a_return_notifies_the_others() -> None:
    """An attempt is at most the retry limit and a connect timeout away; one attempt suffices."""
    topology = tree("b1-b2", "b2-b3", "b2-b4", "b1-b5", "b5-b6", "b5-b7")
    assert _seconds_until_all_is_delivered(topology, "b2") <= 4.0


def test_without_assist_there_is_none() -> None:
    story = Story(chain("b1", "b2", "b3"), assist="off")
    story.cluster.link("b1", "b2").cut()
    story.cluster.run_for(5)
    story.publish()
    story.cluster.run_for(5)
    assert story.waiting()
    assert "relayed_sessions_established" not in story.cluster.statistics()


def test_a_value_that_assist_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="assist = 'maybe'; one of off, on"):
        DeltaTreeParameters.from_mapping({"assist": "maybe"}, "test")
