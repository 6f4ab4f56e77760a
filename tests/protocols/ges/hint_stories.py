"""Stories about brokers with more clients than others beside them."""

from typing import Any

from brokerd.overlay.topology import SCHEMA, Topology
from brokerd.protocols.ges.messages import ClientsCounted
from brokerd.protocols.interface import MessageReceived, RedirectClient
from brokerd.protocols.registry import parameters_on
from brokerd.simulator.world.cluster import SimulatedCluster

LOOK_S = 1.0


class Crowd:
    """Two brokers of one cluster, a and b, and one of another, c; all have links with each other.

    With more than `above` clients one tells the last ones to go elsewhere.
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
        """Subscribers come one after the other."""
        for name in names:
            self.cluster.subscribe(at, "kind = 'a'", name)
            self.cluster.run_for(seconds)

    def at(self, broker: str) -> list[str]:
        """The clients that are there, in the order in which they first came anywhere."""
        number = self.cluster.topology.number_of(broker)
        clients = self.cluster.clients.values()
        return [each.name for each in clients if each.broker == number and each.core.attached]

    def settle(self, looks: int = 10) -> None:
        self.cluster.run_for(looks * LOOK_S)


def names(count: int, first: int = 1) -> list[str]:
    return [f"s{number}" for number in range(first, first + count)]


def those_that_came_last_go_next_door() -> None:
    """Nobody goes into another cluster, and nobody goes so far that there are more over there."""
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


def nobody_goes_while_there_is_room() -> None:
    crowd = Crowd(above=4)
    crowd.come("a", *names(4))
    crowd.settle()
    assert not crowd.told
    crowd.come("a", "s5")
    crowd.settle()
    assert crowd.told == ["s5"]


def nobody_goes_where_it_is_as_full() -> None:
    """By one client less over there nothing would be won."""
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


def who_stays_is_told_once_and_others_go() -> None:
    """The last three do not know of any other broker."""
    crowd = Crowd(above=2)
    crowd.come("a", *names(8))
    for name in names(3, first=6):
        crowd.cluster.clients[name].on_redirected = lambda addresses: None
    crowd.settle(looks=14)
    crowd.come("b", "s9")
    crowd.settle()
    assert crowd.at("a") == ["s1", *names(3, first=6)]
    assert sorted(crowd.told) == names(7, first=2)


def nobody_goes_where_nobody_is() -> None:
    crowd = Crowd(above=2)
    crowd.cluster.broker("b").kill()
    crowd.come("a", *names(6))
    crowd.settle()
    assert not crowd.told
    crowd.cluster.broker("b").start()
    crowd.settle()
    assert len(crowd.at("b")) == 3


def numbers_are_told_in_steps() -> None:
    """An eighth of the limit; and nothing of what came and went between two looks."""
    crowd = Crowd(above=32)
    crowd.come("a", *names(12), seconds=1.1)
    assert [number for number in crowd.counted if number] == [4, 8, 12]
    crowd.come("a", *names(4, first=13), seconds=0)
    for name in names(4, first=13):
        crowd.cluster.detach(name)
    crowd.settle(looks=3)
    assert [number for number in crowd.counted if number] == [4, 8, 12]


def nothing_is_told_where_nobody_asks_for_it() -> None:
    crowd = Crowd(above=0)
    crowd.come("a", *names(8))
    crowd.settle()
    assert (crowd.told, crowd.counted) == ([], [])


STORIES = (
    those_that_came_last_go_next_door,
    nobody_goes_while_there_is_room,
    nobody_goes_where_it_is_as_full,
    who_stays_is_told_once_and_others_go,
    nobody_goes_where_nobody_is,
    numbers_are_told_in_steps,
    nothing_is_told_where_nobody_asks_for_it,
)
SEEN = {
    "sent-to-another-cluster": those_that_came_last_go_next_door,
    "sent-to-who-is-away": nobody_goes_where_nobody_is,
    "sent-where-it-is-as-full": nobody_goes_where_it_is_as_full,
    "sent-though-there-is-room": nobody_goes_while_there_is_room,
    "first-come-first-gone": those_that_came_last_go_next_door,
    "sent-again-and-again": who_stays_is_told_once_and_others_go,
    "on-its-way-and-nowhere": those_that_came_last_go_next_door,
    "each-client-is-told-of": numbers_are_told_in_steps,
}
