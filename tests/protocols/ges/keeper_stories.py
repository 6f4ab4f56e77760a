"""Stories of profiles at gatekeepers; every named bug breaks a story."""

from collections.abc import Iterable, Mapping
from typing import Any

from bench.papers.ges.scale_experiments import ProfileBrokers, section_of
from brokerd.overlay.generate import hierarchy
from brokerd.overlay.hierarchy import Address, Hierarchy
from brokerd.overlay.topology import SCHEMA
from brokerd.protocols.ges.confirmations import Confirmations
from brokerd.protocols.ges.connectivity_graph import GraphView, Paths
from brokerd.protocols.ges.core import Ges
from brokerd.protocols.ges.keepers import Keepers
from brokerd.protocols.ges.messages import DutyStated, ProfileStated, UnitsAttested
from brokerd.protocols.ges.parameters import EVERY_NODE, PAPER
from brokerd.protocols.ges.profile_graph import Profiles
from brokerd.protocols.ges.propagation import Propagation
from brokerd.protocols.ges.state import Neighbours
from brokerd.protocols.ges.units import Place
from brokerd.protocols.interface import Send
from brokerd.protocols.registry import read_topology
from brokerd.simulator.world.cluster import SimulatedCluster

PURGE_S = 31
"""A little more than `purge_ns`."""
_PLACES = {"a": "0.0", "b": "0.1", "c": "0.2", "g": "0.3", "d": "1.0", "e": "1.1", "f": "1.2"}
_GATEWAYS = (("a", "d"), ("c", "f"))
_CHAINS = (("a", "b"), ("b", "c"), ("b", "g"), ("d", "e"), ("e", "f"))
"""Two clusters; b and e are between two gatekeepers."""


def _cluster(*links: tuple[str, str]) -> SimulatedCluster:
    return _started(_PLACES, (*links, *_GATEWAYS))


def _started(
    places: Mapping[str, str], links: Iterable[tuple[str, str]], policy: str = PAPER
) -> SimulatedCluster:
    section = {"addresses": {**places}, "links": [list(link) for link in links]}
    overlay = {"kind": "hierarchy", "hierarchy": section, "brokers": [*places]}
    parameters = {"parameters": {"ges": {"keeper_policy": policy}}}
    topology = read_topology({"schema": SCHEMA, "name": "keepers", **overlay, **parameters}, "")
    cluster = SimulatedCluster(topology, "ges", strict=False)
    cluster.start().run_until_quiet()
    return cluster


def _core(cluster: SimulatedCluster, name: str) -> Ges:
    core = cluster.broker(name).broker.core
    assert isinstance(core, Ges), f"{core} is no broker of a hierarchy"
    return core


def _settle(cluster: SimulatedCluster) -> None:
    cluster.run_for(PURGE_S)
    cluster.run_until_quiet()
    cluster.checker.own.check_settled(cluster.brokers)


def _duties(cluster: SimulatedCluster) -> dict[str, int]:
    return {name: _core(cluster, name).units.keepers.duty for name in _PLACES}


# ------------------------------------------------------------ simulated brokers


def brokers_between_gatekeepers_keep_profiles_and_others_do_not() -> None:
    cluster = _cluster(*_CHAINS)
    found = {name: cluster.subscribe(name, f"kind = '{name}'") for name in _PLACES}
    _settle(cluster)
    assert _duties(cluster) == {"a": 2, "b": 2, "c": 2, "g": 0, "d": 2, "e": 2, "f": 2}
    assert _core(cluster, "g").units.profiles.statistics()["subscriptions"] == 1
    for name in _PLACES:
        cluster.publish("g", kind=name)
        cluster.publish("e", kind=name)
    cluster.run_until_quiet()
    assert all(len(each.received) == 2 for each in found.values())
    assert cluster.statistics()["publications_flooded"] == 0


def a_gatekeeper_decides_before_it_has_profiles_again() -> None:
    """Broker a has a link to b in its graph before the profiles of b, c and g."""
    cluster = _cluster(*_CHAINS)
    found = cluster.subscribe("g", "kind = 'x'")
    other = cluster.subscribe("c", "kind = 'y'")
    _settle(cluster)
    cluster.link("a", "b").delay(1_000_000_000)
    cluster.broker("a").restart()
    while ((0, 0), (0, 1)) not in _core(cluster, "a").units.view.edges:
        cluster.run_for(0.01)
    assert _core(cluster, "a").units.profiles.size(cluster.topology.number_of("g")) == 0
    cluster.publish("d", kind="x")
    cluster.run_for(10)
    assert len(found.received) == 1
    assert not other.received
    assert cluster.statistics()["publications_flooded"] > 0
    _settle(cluster)


def a_change_returns_behind_its_confirmation() -> None:
    """Broker a confirms the change that c sends from outside, and then sends it to c itself.

    The change reaches a from inside its unit later, while c waits for d.
    """
    cluster_of_b = {"a": "0.1.0.1", "b": "0.1.0.2", "o": "0.1.0.0"}
    others = {"c": "0.1.1.0", "d": "0.2.0.0", "e": "0.0.0.0"}
    around = (("a", "e"), ("a", "c"), ("b", "c"), ("c", "d"))
    cluster = _started(cluster_of_b | others, (*around, ("a", "o"), ("a", "b"), ("b", "o")))
    for ends, delay_ms in ((("a", "b"), 200), (("b", "o"), 100), (("c", "d"), 500)):
        cluster.link(*ends).delay(delay_ms * 1_000_000)
    found = cluster.subscribe("b", "true")
    cluster.run_for(10)
    assert found.started


def a_broker_links_gatekeepers_for_a_while() -> None:
    """Broker b takes the duty at once during a cut of a–c, and keeps it until confirmed."""
    cluster = _cluster(*_CHAINS, ("a", "c"))
    cluster.subscribe("e", "kind = 'e'")
    _settle(cluster)
    assert _duties(cluster)["b"] == 1, "g is behind it"
    cluster.link("a", "c").cut()
    cluster.run_for(5)
    assert _duties(cluster)["b"] == 2
    assert _core(cluster, "b").units.profiles.size(cluster.topology.number_of("e")) == 1
    _settle(cluster)
    cluster.link("a", "c").heal()
    cluster.run_for(5)
    assert _duties(cluster)["b"] == 2, "others may not have heard of the link"
    _settle(cluster)
    assert _duties(cluster)["b"] == 1


def a_duty_ends_with_the_statements_in_the_place_of_lost_brokers() -> None:
    """Broker b keeps the profiles of all clusters until c and g are lost for ever, both at once.

    The last statement that changes the graph at b is its own, about the link between c and g.
    """
    places = {"a": "0.0.0", "b": "0.1.0", "c": "0.1.1", "g": "0.2.0", "d": "1.0.0", "e": "2.0.0"}
    links = (("a", "b"), ("b", "c"), ("c", "g"), ("a", "g"), ("a", "d"), ("c", "e"), ("d", "e"))
    cluster = _started(places, links)
    assert _core(cluster, "b").units.keepers.duty == 3
    for name in ("c", "g"):
        cluster.broker(name).kill()
    cluster.run_for(10 * PURGE_S)
    assert _core(cluster, "b").units.keepers.duty == 2
    _settle(cluster)


def a_cluster_loses_and_regains_gatekeepers() -> None:
    cluster = _cluster(*_CHAINS)
    inside = cluster.subscribe("b", "true")
    outside = cluster.subscribe("e", "true")
    _settle(cluster)
    for gatekeeper in ("a", "c"):
        cluster.broker(gatekeeper).kill()
    cluster.run_for(200)
    _settle(cluster)
    assert _duties(cluster)["b"] == 1
    cluster.publish("g", kind="x")
    cluster.run_until_quiet()
    assert (len(inside.received), len(outside.received)) == (1, 0)
    cluster.broker("c").start()
    _settle(cluster)
    late = cluster.subscribe("d", "true")
    cluster.run_until_quiet()
    assert late.started
    cluster.publish("g", kind="x")
    cluster.run_until_quiet()
    assert (len(inside.received), len(outside.received), len(late.received)) == (2, 1, 1)


def a_later_change_overtakes_an_earlier_one() -> None:
    _overtake(PAPER)


def a_later_change_overtakes_an_earlier_one_at_brokers_that_keep_all_profiles() -> None:
    _overtake(EVERY_NODE)


def _overtake(policy: str) -> None:
    """Start no subscription before z has it; o has the later change before m has the first."""
    links = [("n", "m"), ("n", "o"), ("m", "o"), ("m", "z")]
    places = {name: f"0.{number}" for number, name in enumerate(("m", "n", "o", "z"))}
    for number, gatekeeper in enumerate([*places], 1):
        places[f"of-{gatekeeper}"] = f"{number}.0"
        links.append((gatekeeper, f"of-{gatekeeper}"))
    cluster = _started(places, links, policy)
    cluster.broker("z").absorb()
    cluster.link("m", "o").delay(300_000_000)
    cluster.link("n", "m").delay(1_000_000_000)
    first = cluster.subscribe("n", "kind = 'a'")
    cluster.run_for(4)
    cluster.link("n", "m").delay(0)
    cluster.subscribe("n", "kind = 'b'", "other")
    cluster.run_for(5)
    assert not first.started
    cluster.broker("z").release()
    cluster.run_for(5)
    assert first.started


def a_unit_is_a_destination_until_its_last_subscription_ends() -> None:
    """Brokers d and e in one cluster want the same; d does not any more, and then e."""
    cluster = _cluster(*_CHAINS)
    found = {name: cluster.subscribe(name, "kind = 'x'", name) for name in "de"}
    _settle(cluster)
    for name, links in (("d", 2), ("e", 0)):
        cluster.unsubscribe(name, found[name].number)
        cluster.run_until_quiet()
        before = cluster.statistics()["publications_forwarded"]
        cluster.publish("a", kind="x")
        cluster.run_until_quiet()
        assert cluster.statistics()["publications_forwarded"] - before == links
        assert (len(found["d"].received), len(found["e"].received)) == (0, 1)


def a_statement_in_the_place_of_a_live_broker_is_refuted() -> None:
    """Broker g has restarted, and has the subscription at h, behind b, from outside only.

    What g states in the place of h reaches b over the link that is whole again, not from outside.
    """
    links = (*_CHAINS, ("g", "e"), ("b", "h"), *_GATEWAYS)
    cluster = _started({**_PLACES, "h": "0.4"}, links)
    number = cluster.topology.number_of("h")
    found = cluster.subscribe("h", "kind = 'h'")
    _settle(cluster)
    for link in (("b", "g"), *_GATEWAYS):
        cluster.link(*link).cut()
    cluster.broker("g").restart()
    while _core(cluster, "g").units.profiles.version(number) is None:
        cluster.run_for(1)
    cluster.link("b", "g").heal()
    cluster.run_for(5)
    for gatekeepers in _GATEWAYS:
        cluster.link(*gatekeepers).heal()
    _settle(cluster)
    cluster.publish("d", kind="h")
    cluster.publish("e", kind="h")
    cluster.run_until_quiet()
    assert len(found.received) == 2


# ------------------------------------------------------------ parts


def a_change_uses_one_link_between_two_units_and_no_answers_where_it_crosses() -> None:
    """Clusters of 8, 8 and 4 brokers in a ring, with two links between neighbours."""
    cost = ProfileBrokers(section_of(hierarchy(20, 8)), PAPER).cost_of_change(1)
    assert (cost.messages, cost.answers, cost.keepers) == (10, 6, 7)


_NEIGHBOURS = {1: (0, 1), 4: (1, 0)}


class _Part:
    """The keepers of broker 0 with the address 0.0, in a cluster with 0.1, 0.2 and 0.3."""

    def __init__(
        self, address: Address = (0, 0), neighbours: Mapping[int, Address] = _NEIGHBOURS
    ) -> None:
        place = Place(address)
        self.near = Neighbours(place, {**neighbours}, dict.fromkeys(neighbours))
        self.view = GraphView(0, place)
        self.profiles = Profiles(lambda blobs: [{} for _ in blobs])
        paths = Paths(place, self.view)
        self.keepers = Keepers(0, self.near, self.view, paths, PAPER)

    def see(self, *edges: tuple[Any, Any, tuple[int, int]]) -> list[Any]:
        """Use these edges and the own links as the graph, and return the statements."""
        place = self.near.place
        own = [
            (place.address, place.outermost_unit_of(address), (0, peer))
            for peer, address in self.near.addresses.items()
        ]
        self.view.edges = {(a, b): {link: 1} for a, b, link in (*own, *edges)}
        self.view.changes += 1
        return self.keepers.look().statements


def a_broker_that_will_link_gatekeepers_is_awaited() -> None:
    """Broker 1 has stated no duty for other clusters, but the graph has it between 0 and 2."""
    part = _Part()
    part.see(((0, 1), (0, 2), (1, 2)))
    part.keepers.on_stated(1, DutyStated(1, True, 1))
    assert not part.keepers.may_need(1, (1,))
    part.see(((0, 1), (0, 2), (1, 2)), ((0, 2), (1,), (2, 5)))
    assert part.keepers.may_need(1, (1,))
    assert not part.keepers.needs(1, (1,))


def an_attestation_for_an_earlier_duty_does_not_count() -> None:
    """The attestation was in flight while this broker had a smaller duty and removed profiles."""
    part = _Part()
    (told,) = [each for each in part.see() if each.peer == 4]
    early, late = (UnitsAttested(((1,),), told.message.number + step) for step in (-1, 0))
    part.keepers.on_attested(4, early)
    assert not part.keepers.is_complete((1,))
    part.keepers.on_attested(4, late)
    assert part.keepers.is_complete((1,))


def a_unit_out_of_reach_is_attested_again() -> None:
    part = _Part()
    part.see(((0, 1), (2,), (1, 6)))
    part.keepers.on_attested(1, UnitsAttested(((2,),), 9))
    assert part.keepers.is_complete((2,))
    part.see()
    assert not part.keepers.is_complete((2,))
    asked = part.see(((0, 1), (2,), (1, 6)))
    assert asked, "it asks its neighbours again"
    assert not part.keepers.is_complete((2,))
    assert part.keepers.incomplete(()) == [(0,), (1,), (2,)]
    number = asked[0].message.number
    part.keepers.on_attested(1, UnitsAttested(((2,),), number - 2))
    assert not part.keepers.is_complete((2,)), "an answer of before the loss arrives late"
    part.keepers.on_attested(1, UnitsAttested(((2,),), number))
    assert part.keepers.is_complete((2,))


def a_unit_is_attested_once_all_of_it_is() -> None:
    """Broker 4 is in another cluster, and 0.1 has not attested its own profiles yet."""
    part = _Part()
    part.see()
    part.keepers.on_stated(4, DutyStated(2, True, 3))
    assert not [*part.keepers.attest()]
    part.keepers.on_attested(1, UnitsAttested(((0, 1),), 9))
    assert [each.message for each in part.keepers.attest()] == [UnitsAttested(((0,),), 3)]


def _make_propagation(part: _Part, keepers: Keepers, *homes: tuple[int, ...]) -> Propagation:
    propagation = Propagation(
        0, part.near, part.profiles, keepers, Confirmations(0, part.near), may_move=True
    )
    propagation.start(1)
    propagation.use(Hierarchy(tuple(map(str, homes)), homes, ()))
    return propagation


def a_statement_in_the_place_of_a_broker_names_its_unit() -> None:
    """Broker 2 in another cluster is known outside of the common super-cluster only."""
    part = _Part((0, 0, 0), {1: (1, 0, 0)})
    keepers = Keepers(0, part.near, part.view, Paths(part.near.place, part.view), EVERY_NODE)
    propagation = _make_propagation(part, keepers, (0, 0, 0), (1, 0, 0), (0, 1, 0))
    propagation.on_stated(1, ProfileStated(2, (0,), (1, 2), ()), 0)
    assert [*propagation.find_outside_only()] == [2]
    propagation.speak_for_unknown(2, 0)
    assert part.profiles.statement(2) == ProfileStated(2, (0, 1), (1, 3), ())


def a_statement_in_the_place_of_a_neighbour_reaches_it() -> None:
    """Broker 1 keeps no profiles, and its unit is unknown to the author."""
    part = _Part((0, 0), {1: (0, 1), 4: (0, 2)})
    part.see()
    part.keepers.on_stated(1, DutyStated(0, True, 1))
    part.keepers.on_stated(4, DutyStated(1, True, 1))
    part.keepers.duty = 1
    propagation = _make_propagation(part, part.keepers, *[(0, number) for number in range(5)])
    stated = ProfileStated(1, (0, 2), (1, 3), ())
    assert propagation.on_stated(4, stated, 0) == [Send(1, stated)]


STORIES = (
    brokers_between_gatekeepers_keep_profiles_and_others_do_not,
    a_gatekeeper_decides_before_it_has_profiles_again,
    a_change_returns_behind_its_confirmation,
    a_broker_links_gatekeepers_for_a_while,
    a_cluster_loses_and_regains_gatekeepers,
    a_duty_ends_with_the_statements_in_the_place_of_lost_brokers,
    a_unit_is_a_destination_until_its_last_subscription_ends,
    a_statement_in_the_place_of_a_live_broker_is_refuted,
    a_statement_in_the_place_of_a_broker_names_its_unit,
    a_statement_in_the_place_of_a_neighbour_reaches_it,
    a_later_change_overtakes_an_earlier_one,
    a_later_change_overtakes_an_earlier_one_at_brokers_that_keep_all_profiles,
    a_change_uses_one_link_between_two_units_and_no_answers_where_it_crosses,
    a_broker_that_will_link_gatekeepers_is_awaited,
    an_attestation_for_an_earlier_duty_does_not_count,
    a_unit_out_of_reach_is_attested_again,
    a_unit_is_attested_once_all_of_it_is,
)
SEEN = {
    "relays-keep-nothing": brokers_between_gatekeepers_keep_profiles_and_others_do_not,
    "decides-without-profiles": a_gatekeeper_decides_before_it_has_profiles_again,
    "new-duty-is-not-served": a_broker_links_gatekeepers_for_a_while,
    "smaller-duty-begins-at-once": a_broker_links_gatekeepers_for_a_while,
    "unkept-profiles-stay": a_broker_links_gatekeepers_for_a_while,
    "own-statements-leave-the-duty": (a_duty_ends_with_the_statements_in_the_place_of_lost_brokers),
    "no-controller-keeps-the-cluster": a_cluster_loses_and_regains_gatekeepers,
    "answers-overtake-earlier-changes": a_later_change_overtakes_an_earlier_one,
    "all-links-between-units": (
        a_change_uses_one_link_between_two_units_and_no_answers_where_it_crosses
    ),
    "confirmed-change-counts-as-crossing": a_change_returns_behind_its_confirmation,
    "crossing-changes-are-answered": (
        a_change_uses_one_link_between_two_units_and_no_answers_where_it_crosses
    ),
    "awaits-stated-duties-only": a_broker_that_will_link_gatekeepers_is_awaited,
    "attestations-for-earlier-duties": an_attestation_for_an_earlier_duty_does_not_count,
    "attestations-outlive-paths": a_unit_out_of_reach_is_attested_again,
    "revoked-attestations-are-not-requested": a_unit_out_of_reach_is_attested_again,
    "attests-parts-of-a-unit": a_unit_is_attested_once_all_of_it_is,
    "one-predicate-of-each-unit": a_unit_is_a_destination_until_its_last_subscription_ends,
    "live-broker-receives-no-statement": a_statement_in_the_place_of_a_live_broker_is_refuted,
    "substitute-names-its-author": a_statement_in_the_place_of_a_broker_names_its_unit,
    "substitute-passes-its-neighbour": a_statement_in_the_place_of_a_neighbour_reaches_it,
}
