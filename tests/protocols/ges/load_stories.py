"""Stories of links that are slow for a while, or whenever they are used."""

from pathlib import Path
from typing import Any

from brokerd.protocols.ges.connectivity_graph import Paths
from brokerd.protocols.ges.messages import LoadProbe, RoutedPublications
from brokerd.protocols.ges.parameters import GesParameters
from brokerd.protocols.interface import MessageReceived
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.simulator.world.sessions import NetworkParameters
from brokerd.units import MILLISECOND_NS
from pubsubctl.deployment.topologies import load_topology
from tests.helpers.exchange import topology, with_cluster

TOPOLOGY = Path(__file__).parents[3] / "bench" / "topologies" / "t22-hi.toml"
SLOW_NS = 150 * MILLISECOND_NS
"""The delay in one direction; a round trip costs four times as much as on a fast link."""
CHECK_S = 5.1
"""A little more than the interval between checks."""
NETWORK = NetworkParameters(
    latency_lowest_ns=MILLISECOND_NS, latency_highest_ns=MILLISECOND_NS, jitter_ns=0
)


class Triangle:
    """Three brokers with a link between every pair; publications at b0 match a client at b1."""

    def __init__(self, slow_link_ns: int = 100 * MILLISECOND_NS) -> None:
        self.probes = 0
        self.cluster = SimulatedCluster(
            with_cluster(topology(((0, 1), (1, 2), (0, 2)), 1)).restrict_to_kind("hierarchy"),
            "ges",
            strict=False,
            parameters=GesParameters(slow_link_ns=slow_link_ns),
            network=NETWORK,
            watcher=self._count,
        )
        self.cluster.start().run_until_quiet()
        self.wanted = self.cluster.subscribe("b1")
        self.cluster.run_until_quiet()
        self.link = self.cluster.link("b0", "b1")

    def _count(self, _broker: Any, event: Any, _effects: Any) -> None:
        self.probes += type(event) is MessageReceived and type(event.message) is LoadProbe

    def factor(self) -> int:
        """Return the cost of the link from b0 to b1, which all brokers agree on."""
        self.cluster.checker.own.check_settled(self.cluster.brokers)
        found = {
            broker.core.units.view.edges.get(((0,), (1,)), {}).get((0, 1), 0)
            for broker in self.cluster.brokers
        }
        assert len(found) == 1, found
        return found.pop()

    def check(self, seconds: float = CHECK_S) -> int:
        """Publish, wait for the next check of the link, and return the cost."""
        self.cluster.publish("b0", n=1)
        self.cluster.run_for(seconds)
        return self.factor()

    def hops(self) -> int:
        """Return the number of links that a publication uses on its way to the subscriber."""
        before, got = self.cluster.statistics()["publications_forwarded"], len(self.wanted.received)
        self.check()
        assert len(self.wanted.received) == got + 1
        return self.cluster.statistics()["publications_forwarded"] - before


def a_slow_link_costs_more_after_two_checks_and_less_after_three() -> None:
    story = Triangle()
    assert [story.check(), story.hops()] == [1, 1]
    story.link.delay(SLOW_NS)
    assert [story.check() for _ in range(3)] == [1, 4, 4]
    assert story.hops() == 2, "it goes around"
    story.link.delay(0)
    assert [story.check() for _ in range(4)] == [4, 4, 4, 1]
    assert story.hops() == 1
    story.cluster.run_for(20)
    counted = story.cluster.statistics()
    assert (counted["costs_raised"], counted["costs_lowered"]) == (1, 1)


def a_link_that_is_slow_for_a_moment_costs_the_same() -> None:
    story = Triangle()
    for _ in range(3):
        story.link.delay(SLOW_NS)
        assert story.check(1) == 1
        story.link.delay(0)
        assert story.check(CHECK_S - 1) == 1


def a_link_without_answers_costs_more() -> None:
    """An absent answer raises the cost, so publications are rerouted after two checks."""
    story = Triangle()
    story.link.absorb()
    assert [story.check(), story.check()] == [1, 8]
    assert story.hops() == 2
    story.link.heal()
    assert [story.check() for _ in range(4)][-1] == 1


def a_link_is_slow_whenever_it_is_used() -> None:
    """The cost does not oscillate for ever: every pause before the next rise is longer."""
    story = Triangle()
    for _ in range(60):
        story.link.delay(SLOW_NS if story.factor() == 1 else 0)
        story.check()
    assert 1 < story.cluster.statistics()["costs_raised"] <= 5


def a_dear_link_has_a_new_session() -> None:
    """The cost survives the session, and the link is checked although it carries no traffic."""
    story = Triangle()
    story.link.delay(SLOW_NS)
    assert [story.check(), story.check()] == [1, 4]
    story.link.cut()
    story.cluster.run_for(3)
    assert story.factor() == 0
    story.link.heal()
    story.cluster.run_for(3)
    assert story.factor() == 4
    story.cluster.run_for(4 * CHECK_S)
    assert story.factor() == 1


def no_probe_is_sent_without_a_limit() -> None:
    """No probe is sent without a configured limit, nor over unused links."""
    for slow_link_ns, sent in ((0, 0), (100 * MILLISECOND_NS, 1)):
        story = Triangle(slow_link_ns)
        for _ in range(5):
            story.check(0.5)
        story.cluster.run_for(60)
        assert story.probes == sent


def two_loaded_gateways_each_look_better_to_the_other() -> None:
    """Clusters c and a of T22 learn the cost of their own gateway before the cost of the other.

    Meanwhile both route by the other's gateway; no broker receives the same request twice.
    """
    seen: dict[tuple[Any, ...], None] = {}
    again: list[tuple[Any, ...]] = []

    def watch(broker: Any, event: Any, _effects: Any) -> None:
        message = event.message if type(event) is MessageReceived else None
        if type(message) is RoutedPublications:
            for number in message.run.sequences:
                for target in message.targets:
                    what = target.level, target.unit, target.skip
                    key = broker.number, message.run.source, number, what
                    if key in seen:
                        again.append(key)
                    seen[key] = None

    cluster = SimulatedCluster(
        load_topology(TOPOLOGY).restrict_to_kind("hierarchy"),
        "ges",
        strict=False,
        parameters=GesParameters(slow_link_ns=160 * MILLISECOND_NS),
        network=NETWORK,
        watcher=watch,
    )
    cluster.start().run_until_quiet()
    wanted = cluster.subscribe("n10")
    cluster.run_until_quiet()
    for ends in (("n5", "n11"), ("n8", "n12")):
        cluster.link(*ends).delay(2 * SLOW_NS)
    for ends in (("n6", "n8"), ("n4", "n9"), ("n9", "n7")):
        cluster.link(*ends).delay(60 * MILLISECOND_NS)

    def crossed() -> bool:
        cores = [cluster.brokers[cluster.topology.number_of(name)].core for name in ("n6", "n8")]
        ways = [Paths(core.units.place, core.units.view).best((0, 1)) for core in cores]
        return [way and way[1][1] for way in ways] == [(0, 0, 0), (0, 0, 2)]

    def publish() -> None:
        for publisher in ("n4", "n7"):
            cluster.publish(publisher, n=1)

    publish()
    cluster.run_for(5.05)
    publish()
    cluster.run_for(4.93)
    both_cross = 0
    for _ in range(14):
        publish()
        cluster.run_for(0.01)
        both_cross += crossed()
    assert both_cross > 1
    for _ in range(2):
        publish()
        cluster.run_for(5)
    assert not again
    assert not crossed()
    received = [(each.client, each.sequence) for each in wanted.received]
    assert received == list(dict.fromkeys(received))
    got = len(received)
    publish()
    cluster.run_for(1)
    assert len(wanted.received) == got + 2
    cluster.checker.own.check_settled(cluster.brokers)
    assert cluster.statistics()["costs_raised"] == 2


STORIES = (
    a_slow_link_costs_more_after_two_checks_and_less_after_three,
    a_link_that_is_slow_for_a_moment_costs_the_same,
    a_link_without_answers_costs_more,
    a_link_is_slow_whenever_it_is_used,
    a_dear_link_has_a_new_session,
    no_probe_is_sent_without_a_limit,
)
SEEN = {
    "slow-links-cost-the-same": a_slow_link_costs_more_after_two_checks_and_less_after_three,
    "new-cost-is-not-stated": a_slow_link_costs_more_after_two_checks_and_less_after_three,
    "cheaper-end-counts": a_slow_link_costs_more_after_two_checks_and_less_after_three,
    "dear-at-first-sight": a_link_that_is_slow_for_a_moment_costs_the_same,
    "cheap-at-first-sight": a_slow_link_costs_more_after_two_checks_and_less_after_three,
    "dear-for-ever": a_slow_link_costs_more_after_two_checks_and_less_after_three,
    "waits-for-an-answer": a_link_without_answers_costs_more,
    "rises-and-falls-for-ever": a_link_is_slow_whenever_it_is_used,
    "cheap-by-a-new-session": a_dear_link_has_a_new_session,
    "a-probe-per-publication": no_probe_is_sent_without_a_limit,
    "links-are-measured-by-default": no_probe_is_sent_without_a_limit,
}
"""Named bugs with the stories that they break."""
