"""Stories of parts of a cluster that form units of their own until they rejoin."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from brokerd.errors import RemoteProtocolError
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.ges.core import Ges
from brokerd.protocols.ges.messages import AddressStated, AddressTaken
from brokerd.protocols.ges.parameters import EVERY_NODE, GesParameters
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import MILLISECOND_NS, SECOND_NS
from pubsubctl.deployment.topologies import load_topology

TOPOLOGY = Path(__file__).parents[3] / "bench" / "topologies" / "t22-hi.toml"
KEEPER_POLICY = EVERY_NODE
"""The policy of all brokers; a test sets another one."""
PURGE_S = 3


class Readdressed:
    """A cluster with brokers in a row, all linked to c of another; all subscribe to all events."""

    retry_ns = 500 * MILLISECOND_NS

    def __init__(self, row: str, policy: str = "readdress", seed: int = 0) -> None:
        addresses = {name: f"0.0.{number}" for number, name in enumerate(row)} | {"c": "0.1.0"}
        inside = [[a, b] for a, b in pairwise(row)]
        ways = [[name, "c"] for name in row]
        values: dict[str, Any] = {
            "schema": SCHEMA,
            "name": "row",
            "kind": "hierarchy",
            "brokers": [*addresses],
            "hierarchy": {"addresses": addresses, "links": inside + ways},
        }
        self.row = row
        self._begin(Topology.from_mapping(values, "row"), policy, seed)

    def _begin(self, topology: Topology, policy: str, seed: int = 0) -> None:
        parameters = GesParameters(
            partition_policy=policy,
            keeper_policy=KEEPER_POLICY,
            purge_ns=PURGE_S * SECOND_NS,
            retry_first_ns=self.retry_ns,
            retry_limit_ns=max(self.retry_ns, 2 * SECOND_NS),
            slow_link_ns=SECOND_NS,
            cost_check_ns=100 * MILLISECOND_NS,
        )
        self.cluster = SimulatedCluster(
            topology, "ges", seed=seed, strict=False, parameters=parameters
        )
        self.cluster.start().run_until_quiet()
        self.wanted = {
            name: self.cluster.subscribe(name, "true") for name in self.cluster.topology.brokers
        }
        self.cluster.run_until_quiet()

    def cut(self, *links: str) -> None:
        for link in links:
            self.cluster.link(link[0], link[1]).cut()
        self.cluster.run_for(4 * PURGE_S)

    def heal(self, *links: str) -> None:
        for link in links:
            self.cluster.link(link[0], link[1]).heal()
        self.cluster.run_for(4 * PURGE_S)

    def settle(self) -> None:
        self.cluster.run_until_quiet()
        self.cluster.checker.own.check_settled(self.cluster.brokers)

    def reached(self, at: str) -> list[str]:
        """Return the brokers that a publication at `at` reaches."""
        before = {name: len(each.received) for name, each in self.wanted.items()}
        self.cluster.publish(at, kind="a")
        self.cluster.run_for(2)
        return [name for name, each in self.wanted.items() if len(each.received) > before[name]]

    def core(self, name: str) -> Ges:
        core = self.cluster.broker(name).broker.core
        assert isinstance(core, Ges), f"{core} is not of ges"
        return core

    def addresses(self) -> Sequence[tuple[int, ...]]:
        return [self.core(name).units.place.address for name in self.row]

    def moves(self) -> list[int]:
        return [self.core(name).statistics()["readdressed"] for name in self.row]


HOME = [(0, 0, 0), (0, 0, 1), (0, 0, 2)]


def a_separated_part_becomes_a_unit() -> None:
    """All brokers receive all events; a cluster in two parts receives half without a new unit."""
    for policy, everywhere in (("stay", False), ("readdress", True)):
        story = Readdressed("abd", policy)
        story.cut("ab")
        if everywhere:
            assert story.addresses() == [(0, 0, 0), (0, 63, 1), (0, 63, 2)]
            story.settle()
        assert all(story.reached(at) == [*"abdc"] for at in "abdc") == everywhere
    story.heal("ab")
    assert (story.addresses(), story.moves()) == (HOME, [0, 2, 2])
    story.settle()
    assert all(story.reached(at) == [*"abdc"] for at in "abdc")


def a_short_absence_changes_no_address() -> None:
    story = Readdressed("abd")
    story.cluster.link("a", "b").cut()
    story.cluster.run_for(PURGE_S - 2)
    story.heal("ab")
    assert story.moves() == [0, 0, 0]


def a_returned_broker_keeps_its_address() -> None:
    """Broker b learns of d, which is about to rejoin, before the rest of a's graph."""
    story = Readdressed("abd")
    story.cut("ab")
    link = story.cluster.link("a", "b")
    link.heal()
    link.delay(400 * MILLISECOND_NS)
    story.cluster.run_for(4 * PURGE_S)
    assert (story.addresses(), story.moves()) == (HOME, [0, 2, 2])


def each_part_is_another_unit() -> None:
    """The two parts that came off merge first and are a unit until they rejoin."""
    story = Readdressed("abdef")
    story.cut("ab", "de")
    assert [address[1] for address in story.addresses()] == [0, 63, 63, 61, 61]
    story.settle()
    assert all(story.reached(at) == [*"abdefc"] for at in "abdefc")
    story.heal("de")
    story.cluster.run_for(4 * PURGE_S)
    assert [address[1] for address in story.addresses()] == [0, 63, 63, 63, 63]
    story.settle()
    story.heal("ab")
    assert [address[1] for address in story.addresses()] == [0, 0, 0, 0, 0]
    story.settle()
    assert all(story.reached(at) == [*"abdefc"] for at in "abdefc")


def each_broker_of_a_joined_part_waits_for_its_lowest() -> None:
    """Brokers that were alone for a moment do not take an address of their own in a larger part."""
    for seed in (3, 4, 9):
        story = Readdressed("abdef", seed=seed)
        moves = sum(story.moves())
        story.cut("ab", "de")
        story.heal("de")
        assert [address[1] for address in story.addresses()] == [0, 63, 63, 63, 63], seed
        assert sum(story.moves()) - moves == 12


def the_lowest_member_is_away_for_long() -> None:
    """The other members treat themselves as split off until the lowest member returns."""
    story = Readdressed("abd")
    story.cluster.broker("a").kill()
    story.cluster.run_for(4 * PURGE_S)
    assert story.addresses()[1:] == [(0, 63, 1), (0, 63, 2)]
    story.settle()
    assert all(story.reached(at) == [*"bdc"] for at in "bdc")
    story.cluster.broker("a").start()
    story.cluster.run_for(4 * PURGE_S)
    assert story.addresses() == HOME
    story.settle()


def a_restarted_broker_follows_its_part() -> None:
    story = Readdressed("abd")
    story.cut("ab")
    story.cluster.broker("d").kill()
    story.cluster.run_for(1)
    story.cluster.broker("d").start()
    story.cluster.run_for(4 * PURGE_S)
    assert story.addresses() == [(0, 0, 0), (0, 63, 1), (0, 63, 2)]
    story.settle()


def there_is_no_room_for_another_unit() -> None:
    story = Readdressed("abd")
    for name in "bd":
        taken = story.core(name)._readdressing
        taken._homes = {**taken._homes, **{100 + each: (0, each, 0) for each in range(64)}}
    story.cut("ab")
    assert (story.addresses(), story.moves()) == (HOME, [0, 0, 0])


class T22(Readdressed):
    """The 22 brokers, with n14 and n15 as the only cluster of their super-cluster."""

    def __init__(self) -> None:
        self.row = "?"
        self._begin(load_topology(TOPOLOGY).restrict_to_kind("hierarchy"), "readdress")


def a_part_is_beside_the_unit_that_it_has_ways_to() -> None:
    story = T22()
    names = story.cluster.topology.brokers
    for link, address in (
        (("n14", "n15"), (0, 58, 0, 1)),
        (("n7", "n8"), (0, 0, 63, 1)),
    ):
        story.cluster.link(*link).cut()
        story.cluster.run_for(4 * PURGE_S)
        assert story.core(link[1]).units.place.address == address
        story.settle()
        assert all(story.reached(at) == [*names] for at in ("n22", *link))
        story.cluster.link(*link).heal()
        story.cluster.run_for(4 * PURGE_S)
        story.settle()


class Random22(Readdressed):
    """The 22 brokers, with clusters that split and rejoin at random."""

    def __init__(self, seed: int) -> None:
        topology = load_topology(TOPOLOGY).restrict_to_kind("hierarchy")
        self.row = ""
        self._begin(topology, "readdress")
        random, cluster = Random(f"readdressed {seed}"), self.cluster
        links = cluster.graph.overlay.links
        names = topology.brokers
        for _ in range(12):
            each = cluster.link(*(names[end] for end in random.choice(links)))
            each.cut()
            cluster.run_for(random.choice((0.5, 2, 5, 8)))
            if random.random() < 0.5:
                each.heal()
            cluster.run_for(random.choice((0, 0.5, 2, 5)))
        for a, b in links:
            cluster.link(names[a], names[b]).heal()
        cluster.run_for(10 * PURGE_S)


def in_the_end_all_are_where_they_were() -> None:
    moves = 0
    for seed in range(6):
        story = Random22(seed)
        story.settle()
        names = story.cluster.topology.brokers
        assert story.reached("n22") == [*names]
        moves += story.cluster.statistics()["readdressed"]
    assert moves > 6


class SlowlyDialled(Readdressed):
    """A cluster in which a session takes longer to reopen than `purge_ns`."""

    retry_ns = (PURGE_S + 2) * SECOND_NS


def repeated_readdressing_waits_longer_each_time() -> None:
    story = SlowlyDialled("abd")
    story.cut("ab")
    story.heal("ab")
    story.cluster.run_for(30 * PURGE_S)
    assert story.addresses() == HOME
    assert max(story.moves()) <= 3
    story.settle()


def subscriptions_wait_until_neighbours_take_the_address() -> None:
    """Broker b subscribes while c has only the profile from before the change of address."""
    story = Readdressed("abd")
    story.cluster.link("b", "c").delay(300 * MILLISECOND_NS)
    story.cluster.broker("a").kill()
    while story.addresses()[1] == HOME[1]:
        story.cluster.run_for(0.05)
    for _ in range(30):
        story.cluster.subscribe("b", "kind = 'b'")
        story.cluster.run_for(0.05)
    assert story.moves() == [0, 1, 1]
    story.cluster.link("b", "c").heal()
    story.cluster.broker("a").start()
    story.cluster.run_for(4 * PURGE_S)
    story.settle()
    assert all(story.reached(at) == [*"abdc"] for at in "abdc")


def a_probe_before_the_address_is_answered() -> None:
    """Broker c probes b before it has b's new address; the cost of the link stays the same."""
    story = Readdressed("abd")
    story.cluster.link("b", "c").delay(150 * MILLISECOND_NS)
    story.cluster.broker("a").kill()
    while story.addresses()[1] == HOME[1]:
        story.cluster.run_for(0.05)
    for _ in range(300):
        story.cluster.publish("c", kind="a")
        story.cluster.run_for(0.01)
    story.cluster.run_for(2)
    assert [story.core("c").units.dissemination.factor(peer) for peer in (1, 2)] == [1, 1]


def an_impossible_address_is_not_announced() -> None:
    core = Readdressed("abd").core("b")
    for address in ((0, 63), (0, 63, 1), (1, 1, 2), (0, 64, 2), (0, -1, 2), (0, 0, 2)):
        with pytest.raises(RemoteProtocolError, match="but announces"):
            core._readdressing.on_stated(2, AddressStated(address), may_follow=False)
    with pytest.raises(RemoteProtocolError, match="that was not assigned to it"):
        core._readdressing.on_taken(2, AddressTaken((0, 0, 2)))


STORIES = (
    an_impossible_address_is_not_announced,
    a_separated_part_becomes_a_unit,
    a_short_absence_changes_no_address,
    a_returned_broker_keeps_its_address,
    each_part_is_another_unit,
    each_broker_of_a_joined_part_waits_for_its_lowest,
    the_lowest_member_is_away_for_long,
    a_restarted_broker_follows_its_part,
    there_is_no_room_for_another_unit,
    a_part_is_beside_the_unit_that_it_has_ways_to,
    in_the_end_all_are_where_they_were,
    repeated_readdressing_waits_longer_each_time,
    subscriptions_wait_until_neighbours_take_the_address,
    a_probe_before_the_address_is_answered,
)
SEEN = {
    "members-of-a-part-move-alone": a_separated_part_becomes_a_unit,
    "all-parts-are-one-unit": each_part_is_another_unit,
    "short-separation-moves-first": each_broker_of_a_joined_part_waits_for_its_lowest,
    "beside-a-unit-that-it-has-no-way-to": a_part_is_beside_the_unit_that_it_has_ways_to,
    "never-back-in-its-cluster": a_separated_part_becomes_a_unit,
    "returned-broker-follows-others": a_returned_broker_keeps_its_address,
    "messages-for-another-address-are-handled": in_the_end_all_are_where_they_were,
    "neighbour-stays-where-it-was": a_separated_part_becomes_a_unit,
    "wants-at-its-old-address": a_separated_part_becomes_a_unit,
    "graph-of-the-earlier-address-stays": a_separated_part_becomes_a_unit,
    "link-stays-where-it-was": a_separated_part_becomes_a_unit,
    "to-and-fro-for-ever": repeated_readdressing_waits_longer_each_time,
    "sends-to-an-earlier-address": subscriptions_wait_until_neighbours_take_the_address,
    "probes-wait-for-the-address": a_probe_before_the_address_is_answered,
}
