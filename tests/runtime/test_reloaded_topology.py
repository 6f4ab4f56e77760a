"""Tests of topology files that change at run time: events of the core, and refusals."""

from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import ControlError
from brokerd.model.operator_acts import OperatorAct
from brokerd.overlay.generate import chain, hierarchy
from brokerd.overlay.topology import JoinedBroker, Topology
from brokerd.protocols.interface import OverlayChanged, TopologyGrown, TopologyShrunk
from brokerd.runtime.growth import Surroundings


def unchecked(_act: OperatorAct) -> None:
    """Accept every change as if it were signed."""


class File:
    """A topology file, and the view of the broker b2 on its surroundings."""

    def __init__(self, topology: Topology, protocol: str) -> None:
        self.topology = topology
        config: Any = SimpleNamespace(
            protocol=protocol,
            topology_file="t.toml",
            broker="b2",
            deployment_id="d1",
            addresses=dict.fromkeys(topology.brokers, "127.0.0.1:1"),
        )
        self.known = Surroundings(config, lambda: self.topology)

    def refused(self) -> str:
        before = self.known.topology
        with pytest.raises(ControlError) as caught:
            self.known.reload(unchecked)
        assert self.known.topology == before
        return str(caught.value)


def test_a_core_is_notified_of_joined_and_departed_brokers() -> None:
    file = File(chain(3, 1), "delta_tree")
    file.topology = file.topology.with_joined(JoinedBroker("n1", "b3", "127.0.0.1:2"), "t.toml")
    assert file.known.reload(unchecked) == [TopologyGrown(3, 2)]
    assert file.known.reload(unchecked) == []
    file.topology = file.topology.without("n1", "t.toml")
    assert file.known.addresses[3] == "127.0.0.1:2"
    assert file.known.reload(unchecked) == [TopologyShrunk(3)]
    assert file.known.addresses.keys() == file.known.names.keys()


def test_a_core_is_notified_once_of_each_of_many_joins_and_departures() -> None:
    file = File(chain(3, 1), "delta_tree")
    for number in range(3, 6):
        joined = JoinedBroker(f"n{number}", "b3", f"127.0.0.1:{number}")
        file.topology = file.topology.with_joined(joined, "t.toml")
        assert file.known.reload(unchecked) == [TopologyGrown(number, 2)]
    for number in range(3, 6):
        file.topology = file.topology.without(f"n{number}", "t.toml")
        assert file.known.reload(unchecked) == [TopologyShrunk(number)]


def test_a_core_is_notified_of_changed_roles() -> None:
    file = File(hierarchy(4, 2), "ges_reliable")
    file.topology = file.topology.with_role("b2", "0", "t.toml")
    (told,) = file.known.reload(unchecked)
    assert told == OverlayChanged(file.topology.overlay("hierarchy"))
    assert file.known.reload(unchecked) == []


def test_a_core_is_notified_of_joins_and_departures_in_a_hierarchy() -> None:
    for protocol in ("ges", "ges_reliable"):
        file = File(hierarchy(4, 2), protocol)
        joined = JoinedBroker("n1", "b2", "127.0.0.1:2", "", ("b3",))
        file.topology = file.topology.with_joined(joined, "t.toml")
        assert file.known.reload(unchecked) == [OverlayChanged(file.topology.overlay("hierarchy"))]
        assert file.known.names[4] == "n1"
        assert file.known.addresses[4] == "127.0.0.1:2"
        assert file.known.reload(unchecked) == []
        file.topology = file.topology.without("n1", "t.toml")
        assert file.known.reload(unchecked) == [OverlayChanged(file.topology.overlay("hierarchy"))]
        assert 4 not in file.known.names


def test_a_topology_change_that_the_protocol_does_not_support_is_refused() -> None:
    file = File(hierarchy(4, 2), "ges")
    file.topology = file.topology.with_role("b2", "0", "t.toml")
    assert "no broker joins, leaves or changes in a ges overlay" in file.refused()
    grown = File(chain(3, 1), "best_effort")
    grown.topology = grown.topology.with_joined(JoinedBroker("n1", "b3", "127.0.0.1:2"), "t.toml")
    assert "no broker joins, leaves or changes in a best_effort overlay" in grown.refused()


@pytest.mark.parametrize(
    "topology, protocol",
    [(chain(3, 1), "best_effort"), (chain(3, 1), "delta_tree"), (hierarchy(4, 2), "ges")],
)
def test_a_file_without_a_change_is_read_again_by_every_protocol(
    topology: Topology, protocol: str
) -> None:
    file = File(topology, protocol)
    assert file.known.reload(unchecked) == []


def test_a_joined_broker_without_an_address_is_refused() -> None:
    file = File(chain(3, 1), "delta_tree")
    before = dict(file.known.names), dict(file.known.addresses)
    file.topology = file.topology.with_joined(JoinedBroker("n1", "b3", ""), "t.toml")
    assert "addresses: none for n1, with whom b2 may have sessions" in file.refused()
    assert (file.known.names, file.known.addresses) == before


def test_a_topology_that_is_no_successor_is_refused() -> None:
    file = File(hierarchy(4, 2).with_role("b2", "0", "t.toml"), "ges_reliable")
    file.topology = hierarchy(4, 2)
    assert "can only join, leave, and change what they are" in file.refused()


def test_a_change_that_is_not_signed_changes_nothing() -> None:
    """The checked act names the whole content of the file, and the number of changes."""
    file = File(chain(3, 1), "delta_tree")
    before = file.topology
    file.topology = after = before.with_joined(JoinedBroker("n1", "b3", "127.0.0.1:2"), "t.toml")
    asked: list[OperatorAct] = []

    def refuse(act: OperatorAct) -> None:
        asked.append(act)
        raise ControlError("user", "not signed")

    with pytest.raises(ControlError, match="not signed"):
        file.known.reload(refuse)
    assert (file.known.topology, 3 in file.known.names) == (before, False)
    assert asked == [OperatorAct("d1", "change-topology", after.content_digest(), 1)]
    assert before.content_digest() != after.content_digest()


def test_a_file_that_changed_after_it_was_read_is_a_discrepancy() -> None:
    file = File(chain(3, 1), "delta_tree")
    assert file.known.discrepancies() == []
    file.topology = file.topology.with_joined(JoinedBroker("n1", "b3", "127.0.0.1:2"), "t.toml")
    assert file.known.discrepancies() == [
        "its topology file has changed, and it has not read it again"
    ]
    file.known.reload(unchecked)
    assert file.known.discrepancies() == []
