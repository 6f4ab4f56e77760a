"""Tests of the figures of hierarchies: the reference topology, and critical links."""

import tomllib
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import ConfigError
from brokerd.overlay.generate import hierarchy, random_hierarchy
from brokerd.overlay.small_world import small_world
from brokerd.overlay.topology import Topology
from tests.helpers.strategies import hierarchies

TOPOLOGIES = Path(__file__).parents[2] / "bench" / "topologies"


def t22(name: str) -> Topology:
    values = tomllib.loads((TOPOLOGIES / f"{name}.toml").read_text(encoding="utf-8"))
    return Topology.from_mapping(values, name)


@pytest.mark.parametrize(
    "name, links, degree, clustering, mean_path, longest, critical",
    [
        ("t22-hi", (20, 5, 7, 2), 3.091, 0.386, 3.143, 6, 2),
        ("t22-lo", (13, 3, 6, 2), 2.182, 0.0, 4.165, 11, 16),
    ],
)
def test_the_reference_topology_has_the_figures_computed_for_it(
    name, links, degree, clustering, mean_path, longest, critical
):
    found = t22(name).overlay("hierarchy").facts()
    assert tuple(found[f"links_of_level_{level}"] for level in range(4)) == links
    assert found["mean_degree"] == degree
    assert found["clustering"] == clustering
    assert (found["mean_path_links"], found["longest_path_links"]) == (mean_path, longest)
    assert found["critical_links"] == critical


def test_in_two_brokers_clusters_of_the_reference_topology_one_link_is_all_there_is():
    topology = t22("t22-hi")
    critical = topology.overlay("hierarchy").critical_links()
    assert [[topology.brokers[end] for end in link] for link in critical] == [
        ["n7", "n8"],
        ["n14", "n15"],
    ]


@given(hierarchies())
def test_a_link_is_critical_exactly_if_no_topology_is_valid_without_it(topology):
    values = topology.to_mapping()
    links = values["hierarchy"]["links"]
    needed = []
    for place, link in enumerate(topology.links):
        rest = [*links[:place], *links[place + 1 :]]
        without = {**values, "hierarchy": {**values["hierarchy"], "links": rest}}
        try:
            Topology.from_mapping(without, "t")
        except ConfigError:
            needed.append(link)
    assert list(topology.section.critical_links()) == needed


@given(st.integers(1, 40), st.integers(2, 4), st.integers())
def test_paths_are_those_of_a_walk_in_breadth(brokers, levels, seed):
    topology = random_hierarchy(brokers, levels, Random(seed).randrange)
    near = topology.neighbours()
    lengths = []
    for start in range(brokers):
        distances = {start: 0}
        order = [start]
        for broker in order:
            for other in near[broker]:
                if other not in distances:
                    distances[other] = distances[broker] + 1
                    order.append(other)
        lengths += [distance for distance in distances.values() if distance]
    found = small_world(brokers, topology.links)
    assert found.longest_path_links == max(lengths, default=0)
    assert found.mean_path_links == pytest.approx(sum(lengths) / max(1, len(lengths)))


def test_clusters_make_clustering_and_a_line_has_none():
    ring_of_pairs = small_world(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    assert ring_of_pairs.clustering == 0
    assert small_world(3, [(0, 1), (1, 2), (0, 2)]).clustering == 1
    assert hierarchy(64, 8).overlay().facts()["clustering"] > 0.8
