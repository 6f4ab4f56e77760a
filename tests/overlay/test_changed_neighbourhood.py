"""Property test: a neighbourhood that grew and shrank is that of the tree at the end."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from brokerd.overlay.topology import JoinedBroker, Topology
from brokerd.overlay.tree import Neighbourhood, PrimaryTree
from tests.helpers.strategies import trees

ADDRESS = "127.0.0.1:1"


def _leaf_names(topology: Topology, center: int) -> list[str]:
    neighbours = topology.neighbours()
    names = topology.present()
    numbers = {name: topology.brokers.index(name) for name in names}
    return [
        name for name in names if len(neighbours[numbers[name]]) == 1 and numbers[name] != center
    ]


def _facts(found: Neighbourhood) -> tuple[object, ...]:
    neighbours = {broker: sorted(near) for broker, near in found.neighbours.items()}
    return found.center, found.radius, found.paths, neighbours, found.newcomers, found.left


@given(trees(), st.data())
def test_a_neighbourhood_that_changes_is_that_of_the_changed_tree(topology, data):
    center = data.draw(st.integers(0, len(topology.brokers) - 1))
    found = PrimaryTree(topology).surroundings(center)
    left: list[int] = []  # of the departures that were near enough to be announced
    for number in range(data.draw(st.integers(1, 6))):
        leaves = _leaf_names(topology, center)
        before = PrimaryTree(topology).surroundings(center)
        if leaves and data.draw(st.booleans()):
            name = data.draw(st.sampled_from(leaves))
            broker = topology.brokers.index(name)
            topology = topology.without(name, "t.toml")
            if broker in before.paths:
                found = found.without_leaf(broker)
                left.append(broker)
        else:
            parent = data.draw(st.sampled_from(topology.present()))
            broker = len(topology.brokers)
            joined = JoinedBroker(f"n{number}", parent, ADDRESS)
            topology = topology.with_joined(joined, "t.toml")
            after = PrimaryTree(topology).surroundings(center)
            if broker in after.paths:
                found = found.with_leaf(broker, topology.brokers.index(parent))
        known = PrimaryTree(topology).surroundings(center)
        assert _facts(found) == _facts(replace(known, left=tuple(left)))
