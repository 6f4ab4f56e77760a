"""Brokers and units that fail for a while or for ever; every named bug breaks a story."""

from collections.abc import Callable
from dataclasses import replace
from itertools import compress
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from bench.papers.ges.routing import Routing, RoutingError, flood
from brokerd.errors import RemoteProtocolError
from brokerd.protocols.ges.connectivity_graph import Paths
from brokerd.protocols.ges.messages import Target
from brokerd.protocols.ges.parameters import EVERY_NODE, PAPER
from brokerd.simulator.checks.violations import InvariantViolated
from brokerd.simulator.named_bugs import bugs_of, plant
from brokerd.simulator.world.cluster import NotQuietError, SimulatedCluster
from pubsubctl.deployment.topologies import load_topology
from tests.helpers.exchange import Exchange, blob
from tests.protocols.ges import (
    apart_stories,
    broken_link_stories,
    forged_stories,
    hint_stories,
    keeper_stories,
    load_stories,
    readdress_stories,
    slow_stories,
    start_stories,
)

MUTANTS = bugs_of("ges")

TOPOLOGY = Path(__file__).parents[3] / "bench" / "topologies" / "t22-hi.toml"
BROKEN = (
    AssertionError,
    InvariantViolated,
    NotQuietError,
    RemoteProtocolError,
    RoutingError,
)
FOR_EVER_S = 200
"""Much longer than `purge_ns`, for units of units."""


class Story:
    """The 22 brokers with a publisher at n22 and a few matching subscribers."""

    keeper_policy = EVERY_NODE

    def __init__(self) -> None:
        # As a hierarchy alone, with brokers that join and depart.
        topology = load_topology(TOPOLOGY).restrict_to_kind("hierarchy")
        policy = (("keeper_policy", self.keeper_policy),)
        topology = replace(topology, settings=(("ges", policy),))
        self.cluster = SimulatedCluster(topology, "ges", strict=False)
        self.cluster.start().run_until_quiet()
        self.wanted = {
            name: self.cluster.subscribe(name, f"kind = '{kind}'")
            for name, kind in (("n9", "a"), ("n8", "a"), ("n14", "b"), ("n20", "b"), ("n5", "c"))
        }
        self.cluster.run_until_quiet()

    def publish(self, at: str, *kinds: str) -> None:
        for kind in kinds:
            self.cluster.publish(at, kind=kind)
            self.cluster.run_until_quiet()

    def kill(self, *names: str) -> None:
        for name in names:
            self.cluster.broker(name).kill()

    def cut(self, *links: tuple[str, str]) -> None:
        for link in links:
            self.cluster.link(*link).cut()

    def heal(self, *links: tuple[str, str]) -> None:
        for link in links:
            self.cluster.link(*link).heal()

    def settle(self, seconds: float = 10) -> None:
        """Let time pass, then check that all brokers have the same state."""
        self.cluster.run_for(seconds)
        self.cluster.run_until_quiet()
        self.cluster.checker.own.check_settled(self.cluster.brokers)

    def join(self, name: str, *near: str, place: str = "") -> None:
        self.cluster.join(name, *near, place=place).start()
        self.cluster.run_until_quiet()

    def leave(self, name: str) -> None:
        """Detach the clients of a broker, as an operator would, and let the broker depart."""
        for client in [*self.cluster.clients.values()]:
            if client.broker == self.cluster.topology.number_of(name) and not client.detached:
                self.cluster.population.detach(client.name)
        self.cluster.run_until_quiet()
        self.cluster.leave(name)

    def got(self, name: str) -> int:
        return len(self.wanted[name].received)

    def count(self, counter: str) -> int:
        return self.cluster.statistics()[counter]


def all_is_well() -> None:
    story = Story()
    story.settle()
    story.publish("n22", "a", "b", "c", "d")
    assert [story.got(name) for name in story.wanted] == [1, 1, 1, 1, 1]


def a_broker_is_away_for_a_moment() -> None:
    story = Story()
    story.kill("n6")
    story.cluster.run_for(20)
    assert story.count("spoken_for") == 0
    story.cluster.broker("n6").start()
    story.settle(40)
    story.publish("n22", "a", "b", "c")
    assert [story.got(name) for name in story.wanted] == [1, 1, 1, 1, 1]
    assert story.count("spoken_for") == 0


def both_ends_of_a_link_between_units_die() -> None:
    story = Story()
    story.kill("n5", "n11")
    story.settle(FOR_EVER_S)
    before = story.count("publications_without_route")
    story.publish("n22", "a", "b", "c")
    assert [story.got(name) for name in ("n9", "n8", "n14", "n20")] == [1, 1, 1, 1]
    assert story.count("publications_without_route") == before


def a_unit_dies() -> None:
    story = Story()
    story.kill("n14", "n15")
    story.settle(FOR_EVER_S)
    sent = story.count("publications_forwarded")
    story.publish("n22", "b")
    assert story.got("n20") == 1
    assert (
        story.count("publications_forwarded") == sent + 4
    )  # gatekeepers of all levels are asked, and n20 is a gatekeeper


def all_brokers_with_a_profile_have_restarted() -> None:
    """Broker n15 has lost n14's profile; brokers outside of their cluster have not."""
    story = Story()
    story.kill("n14", "n15")
    story.cluster.run_for(5)
    story.cluster.broker("n15").start()
    story.settle(FOR_EVER_S)


def a_broker_is_cut_off_for_long() -> None:
    story, links = Story(), (("n9", "n4"), ("n9", "n7"))
    story.cut(*links)
    story.cluster.run_for(FOR_EVER_S)
    assert story.cluster.brokers[8].core.statistics()["spoken_for"] == 0
    assert story.count("spoken_for") > 0
    story.heal(*links)
    story.settle(20)
    story.publish("n22", "a")
    assert (story.got("n9"), story.got("n8")) == (1, 1)


def two_halves_are_apart_for_long() -> None:
    story, links = Story(), (("n8", "n1"), ("n15", "n16"))
    story.cut(*links)
    story.cluster.run_for(FOR_EVER_S)
    story.heal(*links)
    story.settle(20)
    story.publish("n22", "a", "b", "c")
    assert [story.got(name) for name in story.wanted] == [1, 1, 1, 1, 1]


def two_units_are_cut_off_together_for_long() -> None:
    """The two units keep a connection with each other that other brokers report as lost."""
    story = Story()
    links = (("n5", "n11"), ("n8", "n12"), ("n7", "n14"), ("n15", "n16"))
    story.cut(*links)
    story.cluster.run_for(FOR_EVER_S)
    story.heal(*links)
    story.settle(20)
    story.publish("n22", "a", "b", "c")
    assert [story.got(name) for name in story.wanted] == [1, 1, 1, 1, 1]


def a_link_fails() -> None:
    story = Story()
    story.cut(("n1", "n2"))
    story.settle()
    story.publish("n22", "a", "b", "c")
    assert [story.got(name) for name in story.wanted] == [1, 1, 1, 1, 1]


def a_cluster_partitions_inside() -> None:
    """Broker n7 reaches n8 around the outside only, which is no valid route."""
    story = Story()
    story.cut(("n7", "n8"))
    story.cluster.run_for(5)
    story.publish("n7", "a", "b", "c")


def a_way_ends_while_something_is_on_it() -> None:
    """Broker n9 is on the route from n7 to n4 when its cluster loses the link to n4."""
    found = flood(load_topology(TOPOLOGY), Random(1))
    found.disconnect(3, 8)
    found.settle()
    way = ((0, 0, 1, 0), (0, 0, 2))
    target = Target(0, (0, 0, 2, 0), (), (way,), 0)
    routed = Routing(found)._routers[8].route([target], lambda _: ())
    assert not routed.lost


def two_units_each_prefer_the_gateway_of_the_other() -> None:
    """Clusters c and a have the cost of their own gateway, and not of the other's."""
    found = flood(load_topology(TOPOLOGY), Random(1))
    number = found.section.brokers.index
    n6, n8 = number("n6"), number("n8")
    found.charge(number("n5"), number("n11"), 64)
    while found.views[n6].near((0, 0, 2, 1))[0, 1] == 1:
        found.step()
    found.charge(n8, number("n12"), 64)
    ways = [Paths(found.places[here], found.views[here]).best((0, 1)) for here in (n6, n8)]
    assert [way and way[1][1] for way in ways] == [(0, 0, 0), (0, 0, 2)]
    for settled in (False, True):
        if settled:
            found.settle()
        for publisher in ("n4", "n5", "n7", "n8", "n9"):
            wanted = [number(name) for name in ("n10", "n13", "n22")]
            Routing(found).publish(number(publisher), wanted)


def a_repeated_publication_is_delivered_once() -> None:
    exchange = Exchange(((0, 1), (1, 2)), protocol="ges")
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 2)
    exchange.subscribe(subscriber, "true")
    for _ in range(2):
        exchange.publish(publisher, 1, blob(kind="a"))
    assert subscriber.got() == [1]


def two_clients_of_one_broker_receive_from_each_other() -> None:
    exchange = Exchange(((0, 1),), protocol="ges")
    publisher, subscriber = exchange.client("p", 0, publishes=True), exchange.client("s", 0)
    exchange.subscribe(subscriber, "kind = 'a'")
    exchange.publish(publisher, 1, blob(kind="a"), blob(kind="b"), blob(kind="a"))
    assert subscriber.got() == [1, 3]


def a_subscription_awaits_an_absent_broker_for_purge_ns() -> None:
    exchange = Exchange(((0, 1), (1, 2)), protocol="ges")
    exchange.kill(2)
    subscriber = exchange.client("s", 0)
    exchange.subscribe(subscriber, "true")
    assert getattr(subscriber.answers[-1], "state", "none") == "pending"
    exchange.advance(31)
    assert subscriber.answers[-1].state == "started"


def a_broker_joins_and_leaves_again() -> None:
    """Publications reach the new broker's clients and bypass the broker after its departure."""
    story = Story()
    cluster = story.cluster
    new = cluster.join("m1", "n9", "n14")
    early = cluster.subscribe("n9", "kind = 'z'")
    cluster.run_until_quiet()
    assert early.started, "who has yet to start is not waited for"
    cluster.publish("n22", kind="a")
    new.start()
    story.settle()
    late = cluster.subscribe("m1", "kind = 'a'")
    cluster.run_until_quiet()
    story.publish("n22", "a", "b", "c")
    story.publish("m1", "a", "b", "c", "z")
    assert [story.got(name) for name in story.wanted] == [3, 3, 2, 2, 2]
    assert (len(late.received), len(early.received)) == (2, 1)
    cluster.publish("n22", kind="a")
    story.leave("m1")
    cluster.publish("n22", kind="a")
    cluster.run_until_quiet()
    cluster.checker.own.check_settled(cluster.brokers)
    story.publish("n22", "a", "b", "c")
    assert [story.got(name) for name in story.wanted] == [6, 6, 3, 3, 3]
    number = cluster.topology.number_of("m1")
    assert not any(number in broker.core.status().wanted for broker in cluster.state.staying)
    story.settle(FOR_EVER_S)
    assert story.count("spoken_for") == 0


def a_broker_opens_a_cluster_and_another_joins_that() -> None:
    story = Story()
    story.join("m1", "n9", "n13", place="0.3.0.0")
    story.join("m2", "m1", "n14")
    assert story.cluster.topology.joined[1].place == "0.3.0.1"
    found = story.cluster.subscribe("m2", "kind = 'a'")
    story.settle()
    story.publish("n22", "a")
    story.publish("m1", "a")
    assert (story.got("n9"), story.got("n8"), len(found.received)) == (2, 2, 2)
    story.leave("n15")
    story.settle()
    story.publish("n22", "a", "b")
    assert (story.got("n9"), story.got("n14"), len(found.received)) == (3, 1, 3)


def a_departed_broker_dies_before_its_clients_leave() -> None:
    """No broker received an empty profile of the departed broker; all drop the profile at once."""
    story = Story()
    story.kill("n14")
    story.cluster.run_until_quiet()
    story.cluster.leave("n14")
    story.cluster.run_until_quiet()
    living = [broker for broker in story.cluster.brokers if broker.alive]
    number = story.cluster.topology.number_of("n14")
    assert not any(broker.core.units.profiles.wants(number) for broker in living)
    assert not any(
        each.by == number and each.factor for b in living for each in b.core.units.view.statements()
    )
    story.settle(FOR_EVER_S)
    assert story.count("spoken_for") == 0


def brokers_join_and_depart_while_others_are_down() -> None:
    """Broker n7 starts with the current topology, a newcomer dies, n20 departs, n5 restarts."""
    story = Story()
    story.kill("n7")
    story.join("m1", "n8", "n7")
    story.kill("m1")
    story.cluster.publish("n22", kind="a")
    story.cluster.run_for(1)
    story.cluster.broker("n7").start()
    story.cluster.broker("m1").start()
    story.cluster.broker("n5").restart()
    story.leave("n20")
    story.settle()
    found = story.cluster.subscribe("m1", "kind = 'a'")
    story.cluster.run_until_quiet()
    story.publish("n22", "a", "b")
    assert (story.got("n9"), story.got("n14"), len(found.received)) == (2, 1, 1)


def an_event_for_one_name_reaches_gatekeepers_and_its_broker_only() -> None:
    """In place of a list of recipients, a client subscribes to its name.

    From n22, the gatekeepers that decide are n19, and n2 and n1 on the way to the other half.
    """
    story = Story()
    found = {
        name: story.cluster.subscribe(at, f"to = '{name}'", name)
        for name, at in (("anna", "n20"), ("ben", "n10"))
    }
    story.settle()
    brokers = story.cluster.brokers
    for name, reached in (("anna", "n1 n2 n19 n20 n22"), ("nobody", "n1 n2 n19 n22")):
        before = [each.core.statistics()["publications_received"] for each in brokers]
        story.cluster.publish("n22", to=name)
        story.cluster.run_for(2)
        after = [each.core.statistics()["publications_received"] for each in brokers]
        received = (had < has for had, has in zip(before, after, strict=True))
        assert [*compress((each.name for each in brokers), received)] == reached.split()
    assert [len(each.received) for each in found.values()] == [1, 0]


STORIES: tuple[Callable[[], None], ...] = (
    all_is_well,
    an_event_for_one_name_reaches_gatekeepers_and_its_broker_only,
    a_broker_is_away_for_a_moment,
    both_ends_of_a_link_between_units_die,
    a_unit_dies,
    all_brokers_with_a_profile_have_restarted,
    a_broker_is_cut_off_for_long,
    two_halves_are_apart_for_long,
    two_units_are_cut_off_together_for_long,
    a_link_fails,
    a_cluster_partitions_inside,
    a_way_ends_while_something_is_on_it,
    two_units_each_prefer_the_gateway_of_the_other,
    a_repeated_publication_is_delivered_once,
    two_clients_of_one_broker_receive_from_each_other,
    a_subscription_awaits_an_absent_broker_for_purge_ns,
    a_broker_joins_and_leaves_again,
    a_broker_opens_a_cluster_and_another_joins_that,
    a_departed_broker_dies_before_its_clients_leave,
    brokers_join_and_depart_while_others_are_down,
    *apart_stories.STORIES,
    *forged_stories.STORIES,
    *load_stories.STORIES,
    *hint_stories.STORIES,
    *keeper_stories.STORIES,
    *broken_link_stories.STORIES,
    *readdress_stories.STORIES,
    *slow_stories.STORIES,
    *start_stories.STORIES,
)
SEEN = {
    "links-stated-as-inside": all_is_well,
    "returned-statements-are-accepted": all_is_well,
    "profiles-stated-as-inside": all_is_well,
    "lost-session-stays-in-graph": a_link_fails,
    "sent-to-all-units": all_is_well,
    "only-for-others": two_clients_of_one_broker_receive_from_each_other,
    "routes-return-to-a-unit": a_cluster_partitions_inside,
    "one-way-only": a_way_ends_while_something_is_on_it,
    "each-decides-anew": two_units_each_prefer_the_gateway_of_the_other,
    "overtaken-is-delivered": a_repeated_publication_is_delivered_once,
    "started-before-all-confirm": a_subscription_awaits_an_absent_broker_for_purge_ns,
    "lost-neighbour-is-awaited": a_subscription_awaits_an_absent_broker_for_purge_ns,
    "links-of-the-dead-stay": both_ends_of_a_link_between_units_die,
    "the-dead-want-for-ever": a_unit_dies,
    "dead-and-silent-about-wants": two_halves_are_apart_for_long,
    "dead-and-silent-about-links": two_units_are_cut_off_together_for_long,
    "outside-statement-stays-outside": two_halves_are_apart_for_long,
    "only-outsiders-remember": all_brokers_with_a_profile_have_restarted,
    "missed-at-first-sight": a_broker_is_away_for_a_moment,
    "alone-and-speaks-for-all": a_broker_is_cut_off_for_long,
    "newcomer-is-awaited-before-its-start": a_broker_joins_and_leaves_again,
    "newcomer-is-no-neighbour": a_broker_joins_and_leaves_again,
    "leaver-stays-a-neighbour": a_broker_joins_and_leaves_again,
    "links-of-a-departed-broker-stay": a_departed_broker_dies_before_its_clients_leave,
    "profile-of-a-departed-broker-stays": a_departed_broker_dies_before_its_clients_leave,
    **apart_stories.SEEN,
    **broken_link_stories.SEEN,
    **forged_stories.SEEN,
    **load_stories.SEEN,
    **hint_stories.SEEN,
    **keeper_stories.SEEN,
    **readdress_stories.SEEN,
    **slow_stories.SEEN,
    **start_stories.SEEN,
}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_rules_hold_in(story: Callable[[], None]) -> None:
    story()


@pytest.mark.parametrize("story", STORIES[: STORIES.index(a_way_ends_while_something_is_on_it)])
def test_the_rules_hold_with_profiles_at_gatekeepers_in(
    story: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Story, "keeper_policy", PAPER)
    story()


@pytest.mark.parametrize(
    "module", [forged_stories, readdress_stories, start_stories], ids=lambda module: module.__name__
)
def test_stories_hold_with_profiles_at_gatekeepers_in(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEEPER_POLICY", PAPER)
    for story in module.STORIES:
        story()


@pytest.mark.drawn("ges")
@pytest.mark.parametrize("bug", [*MUTANTS])
def test_each_named_bug_is_seen(bug: str) -> None:
    with plant([MUTANTS[bug]]), pytest.raises(BROKEN):
        SEEN[bug]()


def test_each_named_bug_has_a_story() -> None:
    assert {*SEEN} == {*MUTANTS}
