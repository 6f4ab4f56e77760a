"""Stories of statements that a neighbour forges in the names of other brokers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from brokerd.errors import RemoteProtocolError
from brokerd.model.identity import SubscriptionId
from brokerd.model.predicate import NOTHING
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.ges.messages import GraphStated, ProfileChanged, ProfileStated
from brokerd.protocols.ges.parameters import EVERY_NODE, PAPER
from brokerd.protocols.ges.unit_router import UnitRouter
from brokerd.protocols.ges.units import Version
from brokerd.protocols.interface import MessageReceived
from brokerd.protocols.registry import parameters_on
from brokerd.simulator.world.cluster import SimulatedCluster

KEEPER_POLICY = EVERY_NODE
"""The policy of all brokers, unless a story names one; a test sets another one."""
FAR: Sequence[Version] = ((1, 1 << 62), (1 << 62, 0), (1 << 40, 2), ((1 << 63) - 1, (1 << 63) - 2))
NEAR: Sequence[Version] = ((1, 1_000), (2, 0), (500, 8), (500, 9))


class Attacked:
    """Two clusters, a-b-d and c-e; c is attacked through the session of its neighbour b.

    Args:
        has_third: true if c also links a cluster of one broker, f.
    """

    def __init__(
        self, protocol: str, policy: str | None = None, *, has_third: bool = False
    ) -> None:
        values: dict[str, Any] = {
            "schema": SCHEMA,
            "name": "attacked",
            "kind": "hierarchy",
            "brokers": ["a", "b", "c", "d", "e"],
            "hierarchy": {
                "addresses": {"a": "0.0.0", "b": "0.0.1", "d": "0.0.2", "c": "0.1.0", "e": "0.1.1"},
                "links": [["a", "b"], ["b", "d"], ["b", "c"], ["c", "d"], ["c", "e"]],
                "storages": {"e": 2},
            },
        }
        if has_third:
            values["brokers"].append("f")
            values["hierarchy"]["addresses"]["f"] = "0.2.0"
            values["hierarchy"]["links"].append(["c", "f"])
        topology = Topology.from_mapping(values, "attacked")
        parameters = replace(
            parameters_on(topology, protocol), keeper_policy=policy or KEEPER_POLICY
        )
        self.cluster = SimulatedCluster(topology, protocol, strict=False, parameters=parameters)
        self.cluster.start().run_until_quiet()
        self.wanted = {name: self.cluster.subscribe(name, "true") for name in "abcde"}
        self.cluster.run_until_quiet()

    def core(self, name: str) -> Any:
        core: Any = self.cluster.broker(name).broker.core
        assert isinstance(core.units, UnitRouter), f"{core} is no broker of a hierarchy"
        return core

    def keepers(self, origin: int) -> list[str]:
        """Return the brokers that keep the profile of a broker."""
        own = self.cluster.topology.brokers[origin]
        place = self.core(own).units.place.address
        return [
            name
            for name in "abcde"
            if self.core(name).units.keepers.keeps(
                self.core(name).units.place.outermost_unit_of(place)
            )
        ]

    def forge(self, message: Any, at: str = "c", by: str = "b") -> bool:
        """Deliver a message in a neighbour's session; return False if the broker refuses."""
        broker = self.cluster.broker(at).broker
        peer = self.cluster.topology.number_of(by)
        event = MessageReceived(peer, broker.session_with(peer), message)
        try:
            broker._handle(event)
        except RemoteProtocolError:
            return False
        return True

    def is_served(self) -> bool:
        """Return True if a publication at every broker reaches the subscriber at every broker."""
        for at in "abcde":
            before = {name: len(each.received) for name, each in self.wanted.items()}
            self.cluster.publish(at, kind="a")
            self.cluster.run_for(3)
            if [name for name in "abcde" if len(self.wanted[name].received) == before[name]]:
                return False
        return True


def _profile(origin: int, version: Version) -> ProfileStated:
    return ProfileStated(origin, (0,) if origin in (0, 1, 3) else (0, 1, 1), version, ())


def forged_profiles(protocol: str, policy: str | None = None) -> None:
    """Profiles from the far future or of unknown brokers are refused; others are superseded."""
    story = Attacked(protocol, policy)
    for origin in range(5):
        for version in FAR:
            assert not story.forge(_profile(origin, version)), (origin, version)
    for origin in (5, 60, 1 << 62):
        assert not story.forge(_profile(origin, (1, 2)))
    for version in NEAR:
        for origin in range(5):
            place = story.core("c").units.profiles.statement(origin).place
            assert story.forge(ProfileStated(origin, place, version, ())), (origin, version)
        story.cluster.run_for(5)
    late = story.cluster.subscribe("d", "kind = 'a'")
    story.cluster.run_for(5)
    assert story.is_served()
    assert len(late.received) == 5
    story.cluster.run_until_quiet()
    outbid = [story.core(name).statistics()["profiles_outbid"] for name in "abde"]
    assert all(outbid), outbid
    (told,) = story.core("a").status().discrepancies
    assert "in its name" in told


def forged_places_of_profiles() -> None:
    """A profile at a place where no keeper would ask its owner is refused."""
    story = Attacked("ges", PAPER)
    for origin, place in ((0, (0, 1, 1)), (0, (0, 1)), (1, (0, 0, 2)), (3, (1,)), (2, (0, 0))):
        stated = ProfileStated(origin, place, (1, 1_000), ())
        assert not story.forge(stated), stated
        assert not story.forge(stated, at="b", by="a"), stated
    story.cluster.run_for(5)
    assert story.is_served()


def forged_changes_of_profiles() -> None:
    """A forged change of the owner's profile is superseded; a change without end is refused."""
    story = Attacked("ges")
    origin = story.cluster.topology.number_of("c")
    incarnation, number = story.core("c").units.profiles.version(origin)
    gone = tuple(story.core("c").units.profiles.by_origin()[origin].predicates)
    change = ProfileChanged(origin, (0, 1), (incarnation, number + 2), (), gone)
    assert story.forge(change, at="b", by="c")
    story.cluster.run_for(5)
    keepers = story.keepers(origin)
    assert {*"bcd"} <= {*keepers}
    assert all(story.core(name).units.profiles.size(origin) for name in keepers)
    assert story.is_served()
    many = tuple((SubscriptionId(origin, 1, each), NOTHING) for each in range((1 << 18) + 1))
    known = story.core("b").units.profiles.version(origin)
    more = ProfileChanged(origin, (0, 1), (known[0], known[1] + 2), many, ())
    assert not story.forge(more, at="b", by="c")


def forged_connections(protocol: str) -> None:
    """An unknown connection is refused; a connection that was reported down is restored."""
    story = Attacked(protocol)
    known = list(story.core("c").units.view.statements())
    for each in known:
        for version in FAR:
            assert not story.forge(GraphStated((replace(each, version=version),)))
    made_up = replace(known[0], low=0, high=4, by=0)
    assert not story.forge(GraphStated((made_up,)))
    assert not story.forge(GraphStated((replace(known[0], low=7, high=9, by=7),)))
    for version in NEAR:
        forged = [replace(each, version=version, factor=0) for each in known]
        story.forge(GraphStated(tuple(forged)))
        story.cluster.run_for(5)
    assert story.is_served()
    assert sum(story.core(name).statistics()["statements_outbid"] for name in "abcde")


def a_broker_that_restarted_beside_the_attacker() -> None:
    """The restarted broker accepts versions that leap; the first honest neighbour corrects them."""
    story = Attacked("ges", has_third=True)
    origin = story.cluster.topology.number_of("a")
    for name in ("b", "d"):
        story.cluster.link("c", name).cut()
    story.cluster.run_for(2)
    for name in ("e", "f", "c"):
        story.cluster.broker(name).kill()
    for name in ("e", "f", "c"):
        story.cluster.broker(name).start()
    story.cluster.run_for(2)
    honest = ProfileStated(origin, (0, 0), (1, 4), ())
    assert story.forge(replace(honest, version=(1 << 61, 0)), by="e")
    assert story.forge(honest, by="e")
    assert story.core("c").units.profiles.version(origin) == (1, 4)
    assert not story.forge(replace(honest, version=(1 << 61, 0)), by="e")


def forged_profiles_in_ges() -> None:
    forged_profiles("ges")


def forged_profiles_at_gatekeepers() -> None:
    forged_profiles("ges", PAPER)


def forged_connections_in_ges() -> None:
    forged_connections("ges")


STORIES = (
    forged_profiles_in_ges,
    forged_profiles_at_gatekeepers,
    forged_places_of_profiles,
    forged_changes_of_profiles,
    forged_connections_in_ges,
    a_broker_that_restarted_beside_the_attacker,
)
SEEN = {
    "versions-leap": forged_profiles_in_ges,
    "profiles-of-strangers": forged_profiles_in_ges,
    "profiles-at-any-place": forged_places_of_profiles,
    "forged-profile-stays": forged_profiles_in_ges,
    "forged-change-stays": forged_changes_of_profiles,
    "profile-without-end": forged_changes_of_profiles,
    "forged-connection-stays": forged_connections_in_ges,
    "connections-of-strangers": forged_connections_in_ges,
    "leap-from-an-unknown-version": a_broker_that_restarted_beside_the_attacker,
}
