"""Regions compared with plain sets of brokers that are computed by reachability alone."""

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from brokerd.overlay.tree import PrimaryTree
from brokerd.protocols.delta_tree import regions
from brokerd.protocols.delta_tree.messages import Tag
from brokerd.protocols.delta_tree.regions import (
    covers,
    includes,
    intersect,
    region,
    select_tags_under,
)
from tests.helpers.delta_tree_bugs import Mutant, plant_mutants
from tests.helpers.strategies import trees


def reachable(topology, start, without):
    """Return the brokers that `start` is connected to if `without` is removed from the tree."""
    links = [link for link in topology.links if without not in link]
    found, size = {start}, 0
    while size < len(found):
        size = len(found)
        found |= {end for link in links for end in link if found & {*link}}
    return found


def covered(topology, tags):
    """Return the set of brokers that tags cover, by removing brokers from the tree."""
    everyone = set(range(len(topology.brokers)))
    found = set()
    for tag in tags:
        found.add(tag.node)
        if tag.beyond:
            found |= everyone - reachable(topology, tag.detector, tag.node)
    return found


@st.composite
def tagged_trees(draw):
    """Draw a tree, an access broker, and two regions with tags that point away from the broker."""
    topology = draw(trees(largest=10).filter(lambda tree: len(tree.brokers) > 1))
    tree = PrimaryTree(topology)
    brokers = st.integers(0, len(topology.brokers) - 1)
    home = draw(brokers)

    @st.composite
    def tags(draw):
        path = tree.path(home, draw(brokers.filter(lambda broker: broker != home)))
        return Tag(path, draw(st.sampled_from(path[:-1])), 1, 1, draw(st.booleans()))

    regions = st.lists(tags(), max_size=4)
    return topology, tree, home, draw(regions), draw(regions)


@given(tagged_trees())
def test_a_region_covers_what_its_tags_cut_off(case):
    topology, tree, home, tags, _ = case
    everyone = range(len(topology.brokers))
    assert [covers(tags, tree.path(home, broker)) for broker in everyone] == [
        broker in covered(topology, tags) for broker in everyone
    ]


@given(tagged_trees())
def test_an_intersection_covers_the_common_elements(case):
    topology, _, _, held, replacement = case
    both = intersect(held, replacement)
    assert covered(topology, both) == covered(topology, held) & covered(topology, replacement)


@given(tagged_trees(), st.data())
def test_the_tags_under_a_broker_are_those_it_stands_before(case, data):
    topology, tree, home, tags, _ = case
    brokers = st.integers(0, len(topology.brokers) - 1)
    away = data.draw(brokers.filter(lambda other: other != home), "away")
    *_, here, broker = tree.path(home, away)
    behind = {broker} | (set(range(len(topology.brokers))) - reachable(topology, here, broker))
    assert select_tags_under(tags, broker) == region(tag for tag in tags if tag.node in behind)


@given(tagged_trees())
def test_a_region_covers_every_region_that_it_includes(case):
    topology, _, _, larger, smaller = case
    if includes(larger, smaller):
        assert covered(topology, smaller) <= covered(topology, larger)
    assert includes(larger, larger[:2])
    assert includes(larger, intersect(larger, smaller))


@given(tagged_trees())
def test_regions_do_not_depend_on_the_order_of_tags(case):
    *_, held, replacement = case
    assert region(held[::-1] + held) == region(held)
    forwards = intersect(held, replacement)
    assert intersect(held[::-1], replacement[::-1]) == forwards


def forgets_the_second_half(old, new):
    """Intersect as first specified: old tags are cut back, and no new tag is added."""
    with plant_mutants([Mutant.HALF_AN_INTERSECTION]):
        return intersect(old, new)


def keeps_the_reach_of_old_tags(old, new):
    """Intersect wrongly: old tags still cover brokers beyond, although the new tags do not."""
    kept = [tag for tag in region(old) if covers(new, tag.path)]
    return region([*kept, *regions._select_entered(region(old), region(new), regions.NOBODY)])


@pytest.mark.parametrize(
    "mutant, wrong_in_that",
    [
        (forgets_the_second_half, lambda found, right: found < right),
        (keeps_the_reach_of_old_tags, lambda found, right: found > right),
    ],
)
def test_the_intersection_property_catches(mutant, wrong_in_that):
    """Half an intersection opens a gate too early or keeps a gate closed for ever."""

    def is_caught(case):
        topology, _, _, held, replacement = case
        found = covered(topology, mutant(held, replacement))
        right = covered(topology, held) & covered(topology, replacement)
        return wrong_in_that(found, right)

    try:
        find(
            tagged_trees(),
            is_caught,
            settings=settings(
                max_examples=2_000,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=[*HealthCheck],
            ),
        )
    except NoSuchExample:
        pytest.fail(f"{mutant.__name__} was not noticed")


def tag_on_chain(detector, node, beyond):
    """Return a tag on the chain 0-1-2-… with access broker 0."""
    return Tag(tuple(range(node + 1)), detector, 1, 1, beyond)


def test_a_confirmation_from_behind_the_barrier_keeps_its_own_tags():
    """On 0-1-2-3-4-5-6-7, broker 4 returns behind the unreachable broker 3 and reports 6 as failed.

    Withheld are only 6, the brokers behind 6, and 4, which has sent no report of its own yet.
    """
    held = [tag_on_chain(2, 3, True), tag_on_chain(2, 4, False)]
    named = [tag_on_chain(5, 6, True), tag_on_chain(2, 4, False)]
    assert intersect(held, named) == (tag_on_chain(2, 4, False), tag_on_chain(5, 6, True))


def test_a_tag_within_another_one_outlives_it():
    """The nearer broker returns; the farther broker has a tag of its own and stays withheld."""
    tags = region([tag_on_chain(1, 2, True), tag_on_chain(3, 4, False)])
    assert tags == (tag_on_chain(1, 2, True), tag_on_chain(3, 4, False))
    left = [tag for tag in tags if tag.node != 2]
    assert [n for n in range(6) if covers(left, tuple(range(n + 1)))] == [4]


def test_two_partitions_of_one_broker_are_one_tag():
    """The detector restarted or lost the broker twice; the covered brokers are the same."""
    earlier, later = (Tag((0, 1, 2), 1, 1, number, True) for number in (1, 2))
    assert region([earlier, later]) == (earlier,)
    assert later.partition.nodes == (2,)


def test_a_tag_covers_newcomers_behind_its_broker_at_any_distance():
    island = tag_on_chain(1, 2, beyond=False)
    assert covers([island], (0, 1, 2, 7), newcomers=7)
    assert not covers([island], (0, 1, 2, 3), newcomers=7), "that was there from the beginning"
    assert not covers([island], (0, 1, 8), newcomers=7), "that has joined elsewhere"


def test_only_newcomers_behind_a_returned_broker_may_stay_tagged():
    island = tag_on_chain(1, 2, beyond=False)
    newcomer, other = (Tag((0, 1, 2, node), 2, 1, 1, False) for node in (7, 3))
    assert intersect([island], [newcomer, other], newcomers=7) == region([newcomer])
    assert intersect([island], [newcomer, other]) == ()
