"""Stories of brokers with more clients than their neighbours."""

from typing import Any

from brokerd.model.client_messages import Refused
from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.ges.messages import ClientsCounted
from brokerd.protocols.ges.roaming import REFUSAL
from brokerd.protocols.interface import MessageReceived, RedirectClient, Send
from brokerd.protocols.registry import parameters_on
from brokerd.simulator.world.cluster import SimulatedCluster
from brokerd.units import SECOND_NS

LOOK_S = 1.0


class Crowd:
    """Brokers a and b of a cluster and c of another, all linked with each other.

    A broker with more than `above` clients redirects the newest clients.
    """

    def __init__(self, above: int, protocol: str = "ges") -> None:
        values: dict[str, Any] = {
            "schema": SCHEMA,
            "name": "crowd",
            "kind": "hierarchy",
            "brokers": ["a", "b", "c"],
            "hierarchy": {
                "addresses": {"a": "0.0.0", "b": "0.0.1", "c": "0.1.0"},
                "links": [["a", "b"], ["b", "c"], ["a", "c"]],
                "storages": {"c": 2},
            },
            "parameters": {protocol: {"roam_clients_above": above}},
        }
        topology = Topology.from_mapping(values, "crowd")
        self.told: list[str] = []
        self.counted: list[int] = []
        self.cluster = SimulatedCluster(
            topology, protocol, parameters=parameters_on(topology, protocol), watcher=self._watch
        ).start()
        self.cluster.run_until_quiet()

    def _watch(self, _broker: Any, event: Any, effects: Any) -> None:
        self.told += [each.client for each in effects if type(each) is RedirectClient]
        if type(event) is MessageReceived and type(event.message) is ClientsCounted:
            self.counted.append(event.message.clients)

    def come(self, at: str, *names: str, seconds: float = 0.05) -> None:
        """Subscribe clients one after the other."""
        for name in names:
            self.cluster.subscribe(at, "kind = 'a'", name)
            self.cluster.run_for(seconds)

    def at(self, broker: str) -> list[str]:
        """Return the clients at a broker, in the order of their first connection anywhere."""
        number = self.cluster.topology.number_of(broker)
        clients = self.cluster.clients.values()
        return [each.name for each in clients if each.broker == number and each.core.attached]

    def settle(self, looks: int = 10) -> None:
        self.cluster.run_for(looks * LOOK_S)


def names(count: int, first: int = 1) -> list[str]:
    return [f"s{number}" for number in range(first, first + count)]


def the_last_clients_move_within_the_cluster() -> None:
    """No client moves to another cluster, and redirects stop before the target has more clients."""
    crowd = Crowd(above=2)
    crowd.come("a", *names(8))
    crowd.settle()
    assert (crowd.at("a"), crowd.at("b")) == (names(4), names(4, first=5))
    assert crowd.told == [*reversed(names(4, first=5))]
    assert not crowd.at("c")
    crowd.cluster.publish("c", kind="a")
    crowd.cluster.run_for(1)
    assert [len(each.received[1]) for each in crowd.cluster.clients.values() if each.received] == [
        1
    ] * 8


def no_client_moves_below_the_limit() -> None:
    crowd = Crowd(above=4)
    crowd.come("a", *names(4))
    crowd.settle()
    assert not crowd.told
    crowd.come("a", "s5")
    crowd.settle()
    assert crowd.told == ["s5"]


def no_client_moves_to_an_equally_full_broker() -> None:
    """A difference of one client is not worth a redirect."""
    crowd = Crowd(above=2)
    crowd.come("b", "s1", "s2")
    crowd.settle()
    crowd.come("a", "s3", "s4", "s5")
    crowd.settle()
    assert not crowd.told
    crowd.come("a", "s6")
    crowd.settle()
    crowd.come("b", "s7")
    crowd.settle()
    assert crowd.told == ["s6"]


def each_client_is_redirected_once() -> None:
    """The last three clients have no address of another broker."""
    crowd = Crowd(above=2)
    crowd.come("a", *names(8))
    for name in names(3, first=6):
        crowd.cluster.clients[name].on_redirected = lambda addresses: None
    crowd.settle(looks=14)
    crowd.come("b", "s9")
    crowd.settle()
    assert crowd.at("a") == ["s1", *names(3, first=6)]
    assert sorted(crowd.told) == names(7, first=2)


def no_client_moves_to_an_unreachable_broker() -> None:
    crowd = Crowd(above=2)
    crowd.cluster.broker("b").kill()
    crowd.come("a", *names(6))
    crowd.settle()
    assert not crowd.told
    crowd.cluster.broker("b").start()
    crowd.settle()
    assert len(crowd.at("b")) == 3


def counts_are_announced_in_steps() -> None:
    """Counts are announced in steps of an eighth of the limit, without short visits."""
    crowd = Crowd(above=32)
    crowd.come("a", *names(12), seconds=1.1)
    assert [number for number in crowd.counted if number] == [4, 8, 12]
    crowd.come("a", *names(4, first=13), seconds=0)
    for name in names(4, first=13):
        crowd.cluster.population.detach(name)
    crowd.settle(looks=3)
    assert [number for number in crowd.counted if number] == [4, 8, 12]


def no_counts_are_announced_without_a_limit() -> None:
    crowd = Crowd(above=0)
    crowd.come("a", *names(8))
    crowd.settle()
    assert (crowd.told, crowd.counted) == ([], [])


class Parted:
    """A chain a, b, d of a cluster, and c of another, linked to a, b and d."""

    def __init__(self, policy: str = "induce_roam", protocol: str = "ges") -> None:
        values: dict[str, Any] = {
            "schema": SCHEMA,
            "name": "parted",
            "kind": "hierarchy",
            "brokers": ["a", "b", "c", "d"],
            "hierarchy": {
                "addresses": {"a": "0.0.0", "b": "0.0.1", "d": "0.0.2", "c": "0.1.0"},
                "links": [["a", "b"], ["b", "d"], ["b", "c"], ["c", "d"], ["a", "c"]],
                "storages": {"c": 2},
            },
            "parameters": {protocol: {"partition_policy": policy, "purge_ns": PURGE_NS}},
        }
        topology = Topology.from_mapping(values, "parted")
        self.sent: list[tuple[str, tuple[str, ...]]] = []
        self.refused: list[str] = []
        self.cluster = SimulatedCluster(
            topology, protocol, parameters=parameters_on(topology, protocol), watcher=self._watch
        ).start()
        self.cluster.run_until_quiet()
        for at in "abd":
            self.cluster.subscribe(at, "kind = 'a'", f"s-{at}")
        self.cluster.run_for(1)

    def _watch(self, _broker: Any, _event: Any, effects: Any) -> None:
        for each in effects:
            if type(each) is RedirectClient:
                self.sent.append((each.client, tuple("abcd"[to] for to in each.brokers)))
            elif type(each) is Send and type(each.message) is Refused:
                self.refused.append(each.message.reason)

    def where(self, client: str) -> str:
        found = self.cluster.clients[client]
        return self.cluster.brokers[found.broker].name if found.core.attached else "nowhere"


PURGE_NS = 3 * SECOND_NS


def clients_of_a_separated_part_are_redirected() -> None:
    """Brokers b and d lose a for a while and then reconnect."""
    parted = Parted()
    cluster, link = parted.cluster, parted.cluster.link("a", "b")
    link.cut()
    cluster.run_for(2)
    assert not parted.sent, "it may be back in a moment"
    cluster.run_for(2.5)
    assert sorted(parted.sent) == [("s-b", ("c", "a")), ("s-d", ("c", "a"))]
    assert [parted.where(f"s-{at}") for at in "abd"] == ["a", "c", "c"]
    late = cluster.client("late", "d")
    cluster.run_for(1)
    assert (parted.where("late"), late.refused) == ("nowhere", [])
    assert {*parted.refused} == {REFUSAL}
    cluster.publish("a", kind="a")
    cluster.run_for(1)
    link.heal()
    cluster.run_for(10)
    assert parted.where("late") == "d"
    assert [len(cluster.clients[f"s-{at}"].received[1]) for at in "abd"] == [1, 1, 1]
    link.cut()
    cluster.run_for(7)
    assert parted.sent[2:] == [("late", ("c", "a"))]


def a_part_without_brokers_beyond_redirects_clients() -> None:
    """Broker d alone has lost all links."""
    parted = Parted()
    for peer in "bc":
        parted.cluster.link(peer, "d").cut()
    parted.cluster.run_for(7)
    assert parted.sent == [("s-d", ("a", "b"))]
    assert [parted.where(f"s-{at}") for at in "abd"] == ["a", "b", "a"]


def a_broker_that_starts_alone_is_cut_off() -> None:
    parted = Parted()
    parted.cluster.broker("d").kill()
    for peer in "bc":
        parted.cluster.link(peer, "d").cut()
    parted.cluster.broker("d").start()
    parted.cluster.run_for(7)
    assert parted.sent == [("s-d", ("a", "b"))]
    assert [parted.where(f"s-{at}") for at in "abd"] == ["a", "b", "a"]


def a_lowest_member_that_never_returns_denies_no_service() -> None:
    """Broker a is dead: b and d send clients to c, and accept clients again `purge_ns` later."""
    parted = Parted()
    parted.cluster.broker("a").kill()
    parted.cluster.run_for(5)
    late = parted.cluster.client("late", "d")
    parted.cluster.run_for(0.5)
    assert (parted.where("late"), late.refused) == ("nowhere", [])
    parted.cluster.run_for(6)
    assert parted.where("late") == "d"
    parted.cluster.link("b", "d").cut()
    parted.cluster.run_for(4)
    assert parted.sent[2:] == [("late", ("c", "a", "b"))], "d is cut off from b, the lowest left"
    parted.cluster.broker("a").start()
    parted.cluster.link("b", "d").heal()
    parted.cluster.run_for(2)
    parted.cluster.link("a", "b").cut()
    parted.cluster.run_for(7)
    assert "s-b" not in [client for client, _ in parted.sent[3:]], "it has gone to c already"
    assert parted.cluster.brokers[1].core.statistics()["clusters_partitioned"] == 2


def without_a_policy_clients_stay_where_they_are() -> None:
    parted = Parted("stay")
    parted.cluster.link("a", "b").cut()
    parted.cluster.run_for(10)
    assert (parted.sent, parted.cluster.transfers.redirected) == ([], 0)
    parted.cluster.client("late", "d")
    parted.cluster.run_for(1)
    assert parted.where("late") == "d"


def a_departed_broker_is_not_missed() -> None:
    """Broker b has the lowest address of the remaining members."""
    parted = Parted()
    parted.cluster.population.detach("s-a")
    parted.cluster.run_for(1)
    parted.cluster.leave("a")
    parted.cluster.run_for(10)
    assert not parted.sent
    parted.cluster.link("b", "d").cut()
    parted.cluster.run_for(7)
    assert parted.sent == [("s-d", ("c", "b"))]


STORIES = (
    the_last_clients_move_within_the_cluster,
    no_client_moves_below_the_limit,
    no_client_moves_to_an_equally_full_broker,
    each_client_is_redirected_once,
    no_client_moves_to_an_unreachable_broker,
    counts_are_announced_in_steps,
    no_counts_are_announced_without_a_limit,
    clients_of_a_separated_part_are_redirected,
    a_part_without_brokers_beyond_redirects_clients,
    a_broker_that_starts_alone_is_cut_off,
    without_a_policy_clients_stay_where_they_are,
    a_departed_broker_is_not_missed,
    a_lowest_member_that_never_returns_denies_no_service,
)
SEEN = {
    "sent-to-another-cluster": the_last_clients_move_within_the_cluster,
    "clients-are-redirected-to-absent-brokers": no_client_moves_to_an_unreachable_broker,
    "sent-where-it-is-as-full": no_client_moves_to_an_equally_full_broker,
    "sent-though-there-is-room": no_client_moves_below_the_limit,
    "first-clients-are-redirected-first": the_last_clients_move_within_the_cluster,
    "sent-again-and-again": each_client_is_redirected_once,
    "on-its-way-and-nowhere": the_last_clients_move_within_the_cluster,
    "every-client-changes-the-count": counts_are_announced_in_steps,
    "cut-off-at-first-sight": clients_of_a_separated_part_are_redirected,
    "every-part-is-cut-off": clients_of_a_separated_part_are_redirected,
    "separated-part-accepts-clients": clients_of_a_separated_part_are_redirected,
    "healed-unit-accepts-no-clients": clients_of_a_separated_part_are_redirected,
    "across-before-beyond": clients_of_a_separated_part_are_redirected,
    "departed-broker-stays-a-member": a_departed_broker_is_not_missed,
    "refuses-clients-for-ever": a_lowest_member_that_never_returns_denies_no_service,
    "failed-though-it-returned": a_lowest_member_that_never_returns_denies_no_service,
    "alone-and-unaware": a_broker_that_starts_alone_is_cut_off,
    "clients-roam-by-default": without_a_policy_clients_stay_where_they_are,
}
